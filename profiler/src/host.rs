//! The host a measurement is made on: facts, and what the choice of legs needs.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::catalog::Catalog;
use crate::error::hinted;
use crate::kernel::{
    self, Btf, Capabilities, CpuList, Facts, KernelFacts, Release, TracepointFormat, Wanted,
};
use crate::probes::{Memory, Offsets, ProbeStatus, Surroundings};

/// The running kernel and machine.
pub struct Host {
    /// Facts for the recording.
    pub facts: Facts,
    release: Option<Release>,
    offsets: Offsets,
    loader_btf: Result<aya::Btf, String>,
    tracefs: Option<PathBuf>,
}

/// What sampling and BPF need.
const NEEDED: [&str; 2] = ["CAP_BPF", "CAP_PERFMON"];

impl Host {
    /// Says which capabilities are missing, before anything is started.
    ///
    /// # Errors
    ///
    /// When some are.
    pub fn check_privileges() -> anyhow::Result<()> {
        let capabilities =
            Capabilities::load(Path::new("/")).context("reading /proc/self/status")?;
        let missing = capabilities.missing(&NEEDED, running_release());
        if missing.is_empty() {
            return Ok(());
        }
        Err(hinted(
            format!("not permitted: {} missing", missing.join(" and ")),
            [
                "run it as root: sudo preemptprof ...".to_owned(),
                format!(
                    "or give the program what it needs: setcap cap_bpf,cap_perfmon,cap_syslog,\
                     cap_sys_resource+ep {}",
                    std::env::current_exe().unwrap_or_default().display()
                ),
            ],
        ))
    }

    /// The facts of the kernel below `root`, without loading anything.
    pub fn facts_without_privileges(root: &Path) -> KernelFacts {
        kernel::collect(root, &Self::wanted(), None).kernel
    }

    fn wanted() -> Wanted {
        let catalog = Catalog::builtin();
        Wanted {
            symbols: catalog.symbols(),
            knobs: catalog.knob_paths(),
        }
    }

    /// What the kernel and the caller's privileges allow, a row each.
    pub fn capabilities(&self) -> Vec<ProbeStatus> {
        let facts = &self.facts.kernel;
        let row = |wanted: &str, found: String, why: String, fix: &str| ProbeStatus {
            wanted: wanted.to_owned(),
            leg: found,
            fix: if why.is_empty() {
                String::new()
            } else {
                fix.to_owned()
            },
            why_not_better: why,
            ..ProbeStatus::default()
        };
        let missing = Capabilities::load(Path::new("/")).map_or_else(
            |error| vec![error.to_string()],
            |capabilities| {
                let missing = capabilities.missing(&NEEDED, running_release());
                missing.into_iter().map(str::to_owned).collect()
            },
        );
        let ok = || "ok".to_owned();
        let no = || "none".to_owned();
        vec![
            if missing.is_empty() {
                row("privileges", ok(), String::new(), "")
            } else {
                let why = format!("{} missing", missing.join(" and "));
                row("privileges", no(), why, "sudo preemptprof ...")
            },
            match &facts.symbols_hidden {
                None => row(
                    "kernel symbols",
                    "/proc/kallsyms".to_owned(),
                    String::new(),
                    "",
                ),
                Some(why) => row(
                    "kernel symbols",
                    no(),
                    why.clone(),
                    "sudo, or sysctl kernel.kptr_restrict=0",
                ),
            },
            match &self.loader_btf {
                Ok(_) => row(
                    "BTF",
                    "/sys/kernel/btf/vmlinux".to_owned(),
                    String::new(),
                    "",
                ),
                Err(why) => row(
                    "BTF",
                    no(),
                    why.clone(),
                    "a kernel with CONFIG_DEBUG_INFO_BTF",
                ),
            },
            match &self.tracefs {
                Some(path) => row("tracefs", path.display().to_string(), String::new(), ""),
                None => row(
                    "tracefs",
                    no(),
                    "not mounted; only the perf tracepoint legs need it".to_owned(),
                    "mount -t tracefs none /sys/kernel/tracing",
                ),
            },
            if facts.config.is_empty() {
                let why = "no /proc/config.gz and no file in /boot or /lib/modules".to_owned();
                row(
                    "kernel config",
                    facts.config_source.clone(),
                    why,
                    "install the kernel's config file",
                )
            } else {
                row(
                    "kernel config",
                    facts.config_source.clone(),
                    String::new(),
                    "",
                )
            },
        ]
    }

    /// Reads everything. What is missing is missing; nothing here fails.
    pub fn gather() -> Self {
        let root = Path::new("/");
        let memory = Memory::default();
        let facts = kernel::collect(root, &Self::wanted(), Some(&memory));
        let release = Release::parse(&facts.kernel.release);
        let tracefs = kernel::tracefs(root);
        let btf = Btf::load(root);
        let offsets = Offsets::find(btf.as_ref().ok(), release, |name| {
            TracepointFormat::load(tracefs.as_deref()?, "sched", name).ok()
        });
        // Before the loader's own copy is made, which is several times as large.
        let readable = btf.map(drop);
        let loader_btf = match readable {
            Ok(()) => aya::Btf::from_sys_fs().map_err(|error| format!("BTF: {error}")),
            Err(why) => Err(why.to_string()),
        };
        Self {
            facts,
            release,
            offsets,
            loader_btf,
            tracefs,
        }
    }

    /// What the choice of legs depends on.
    pub fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            release: self.release,
            offsets: &self.offsets,
            btf: self.loader_btf.as_ref().map_err(Clone::clone),
            tracefs: match &self.tracefs {
                Some(_) => Ok(()),
                None => Err("tracefs is not mounted".to_owned()),
            },
        }
    }

    /// Keeps the facts alone, once nothing is to be attached any more: what was
    /// only needed for that takes much memory.
    pub fn forget_btf(&mut self) {
        self.loader_btf = Err("not kept".to_owned());
    }

    /// CPUs online now.
    ///
    /// # Errors
    ///
    /// When `/sys` does not say.
    pub fn online_cpus(&self) -> anyhow::Result<CpuList> {
        CpuList::load(Path::new("/"), "/sys/devices/system/cpu/online")
            .context("reading /sys/devices/system/cpu/online")
    }

    /// Frames the kernel gives of one stack, and we keep, at most.
    pub fn max_stack(&self) -> u32 {
        let ours = profiler_ebpf::MAX_FRAMES as u32;
        std::fs::read_to_string("/proc/sys/kernel/perf_event_max_stack")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .map_or(ours, |theirs: u32| theirs.clamp(1, ours))
    }
}

/// The running kernel's line; one that cannot be read is taken for old.
fn running_release() -> Release {
    std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .ok()
        .and_then(|release| Release::parse(&release))
        .unwrap_or(Release::new(5, 8))
}
