//! The host a measurement is made on: facts, and what the choice of legs needs.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::catalog::Catalog;
use crate::error::hinted;
use crate::kernel::{
    self, Btf, Capabilities, CpuList, Facts, Release, TracepointFormat, Wanted,
};
use crate::probes::{Memory, Offsets, Surroundings};

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

    /// Reads everything. What is missing is missing; nothing here fails.
    pub fn gather() -> Self {
        let root = Path::new("/");
        let catalog = Catalog::builtin();
        let wanted = Wanted {
            symbols: catalog.symbols(),
            knobs: catalog.knob_paths(),
        };
        let memory = Memory::default();
        let facts = kernel::collect(root, &wanted, Some(&memory));
        let release = Release::parse(&facts.kernel.release);
        let tracefs = kernel::tracefs(root);
        let btf = Btf::load(root);
        let offsets = Offsets::find(btf.as_ref().ok(), release, |name| {
            TracepointFormat::load(tracefs.as_deref()?, "sched", name).ok()
        });
        let loader_btf = match &btf {
            Ok(_) => aya::Btf::from_sys_fs().map_err(|error| format!("BTF: {error}")),
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
