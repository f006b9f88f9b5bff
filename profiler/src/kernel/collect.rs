//! Puts the facts together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::mounts::debugfs_path;
use super::{
    BootParameters, Capabilities, Config, INFERRED, Kallsyms, KernelFacts, KernelMemory,
    MachineFacts, ModelInputs, base_name, find_config, find_hz, infer_config, kernel_build_id,
    lockdown, machine_facts, preempt_model, root,
};

/// Largest content of a knob that is kept.
const MAX_KNOB: usize = 64 << 10;

/// What the catalogue wants to know of a kernel.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Base names of symbols.
    pub symbols: BTreeSet<String>,
    /// Paths of run-time knobs, e.g. `/proc/sys/kernel/sched_schedstats`. Below
    /// `/sys/kernel/debug` and `/sys/kernel/tracing` they are looked for wherever
    /// those file systems are mounted.
    pub knobs: Vec<String>,
}

/// What is known of a kernel and its machine.
#[derive(Debug)]
pub struct Facts {
    /// The kernel.
    pub kernel: KernelFacts,
    /// The machine.
    pub machine: MachineFacts,
    /// The kernel's symbols, which are too many to record.
    pub symbols: Kallsyms,
}

/// Reads the facts below `root`: `/` for the running kernel, else a directory that
/// holds files of another. `memory` is the running kernel's memory where there is a
/// way to read it. What is missing is missing; nothing here fails.
pub fn collect(root: &Path, wanted: &Wanted, memory: Option<&dyn KernelMemory>) -> Facts {
    let read = |path: &str| root::read_text(root, path).unwrap_or_default();
    let symbols = match root::read(root, "/proc/kallsyms") {
        Ok(text) => Kallsyms::parse(&text),
        Err(_) => Kallsyms::default(),
    };
    let release = read("/proc/sys/kernel/osrelease");
    let version = read("/proc/sys/kernel/version");
    let arch = match read("/proc/sys/kernel/arch") {
        // That file is of 6.1; before, the kernel is taken to be of this build's kind.
        arch if arch.is_empty() => build_arch().to_owned(),
        arch => arch,
    };
    let boot_parameters = read("/proc/cmdline");
    let boot = BootParameters::parse(&boot_parameters);
    let (config, config_source) = config_of(root, &release, &symbols);
    let debugfs = debugfs_model(root);
    let realtime = root::read_text(root, "/sys/kernel/realtime").ok();
    let preempt_model = preempt_model(&ModelInputs {
        release: &release,
        version: &version,
        arch: &arch,
        debugfs: debugfs
            .as_ref()
            .map(|(text, path)| (text.as_str(), path.as_str())),
        realtime: realtime.as_deref(),
        config: &config,
        config_source: &config_source,
        boot: &boot,
        symbols: &symbols,
        memory,
    });
    let kernel = KernelFacts {
        build_id: kernel_build_id(root).unwrap_or_default(),
        preempt_model,
        hz: find_hz(root, &config),
        clock: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        lockdown: lockdown(root, &config, &config_source, &boot),
        symbols_hidden: explain_hidden_symbols(root, &symbols),
        present_symbols: present(&symbols, &wanted.symbols),
        knobs: knobs(root, &wanted.knobs),
        modules: count_modules(root),
        release,
        version,
        arch,
        config_source,
        config,
        boot_parameters,
    };
    Facts {
        kernel,
        machine: machine_facts(root),
        symbols,
    }
}

fn config_of(root: &Path, release: &str, symbols: &Kallsyms) -> (Config, String) {
    find_config(root, release).unwrap_or_else(|| {
        let config = infer_config(symbols);
        let source = if symbols.is_empty() {
            "none: neither a configuration nor symbols could be read"
        } else {
            INFERRED
        };
        (config, source.to_owned())
    })
}

/// `sched/preempt` moved into its directory in 5.13; 5.12 has `sched_preempt`.
fn debugfs_model(root: &Path) -> Option<(String, String)> {
    let point = debugfs_path(root)?;
    [
        format!("{point}/sched/preempt"),
        format!("{point}/sched_preempt"),
    ]
    .into_iter()
    .find_map(|path| Some((root::read_text(root, &path).ok()?, path)))
}

/// `uname -m` of the architecture this was built for.
fn build_arch() -> &'static str {
    match std::env::consts::ARCH {
        "powerpc64" => "ppc64le",
        arch => arch,
    }
}

/// Which of `wanted` the kernel or a module has; programs of BPF do not count.
fn present(symbols: &Kallsyms, wanted: &BTreeSet<String>) -> BTreeSet<String> {
    wanted
        .iter()
        .filter(|name| {
            let mut found = symbols.variants(base_name(name));
            found.any(|symbol| symbol.module != "bpf")
        })
        .cloned()
        .collect()
}

fn knobs(root: &Path, paths: &[String]) -> BTreeMap<String, String> {
    let moved = [
        ("/sys/kernel/debug/", super::debugfs(root)),
        ("/sys/kernel/tracing/", super::tracefs(root)),
    ];
    let read = |path: &String| {
        let place = moved.iter().find_map(|(prefix, mounted)| {
            let rest = path.strip_prefix(prefix)?;
            Some(mounted.as_ref()?.join(rest))
        });
        let place = place.unwrap_or_else(|| root::join(root, path));
        // Anything else than a file, e.g. a pipe of trace events, would block.
        if !std::fs::metadata(&place).ok()?.is_file() {
            return None;
        }
        let bytes = std::fs::read(&place).ok()?;
        let text = String::from_utf8_lossy(bytes.get(..MAX_KNOB).unwrap_or(&bytes));
        Some((path.clone(), text.trim().to_owned()))
    };
    paths.iter().filter_map(read).collect()
}

/// Loaded modules; absent where `/proc/modules` is not, as with `CONFIG_MODULES=n`.
fn count_modules(root: &Path) -> Option<u32> {
    let text = root::read_text(root, "/proc/modules").ok()?;
    u32::try_from(text.lines().count()).ok()
}

/// Why addresses are missing from `/proc/kallsyms` and what shows them; `None` when
/// they are there.
///
/// The rule is `kallsyms_show_value` in kernel/kallsyms.c (its later home is
/// kernel/ksyms_common.c).
pub fn explain_hidden_symbols(root: &Path, symbols: &Kallsyms) -> Option<String> {
    if symbols.is_empty() {
        return Some(match root::read(root, "/proc/kallsyms") {
            Err(error) => format!("/proc/kallsyms: {error} (needs CONFIG_KALLSYMS)"),
            Ok(_) => "/proc/kallsyms lists no symbols".to_owned(),
        });
    }
    if !symbols.hidden() {
        return None;
    }
    let number = |path: &str| root::read_text(root, path).ok()?.parse::<i32>().ok();
    let restrict = number("/proc/sys/kernel/kptr_restrict");
    let shown = restrict.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let syslog = Capabilities::load(root).is_ok_and(|held| held.has("CAP_SYSLOG"));
    let fix = if restrict.is_some_and(|value| value >= 2) {
        "which hides them from everyone; show them with: sysctl -w kernel.kptr_restrict=1"
    } else if syslog {
        "and CAP_SYSLOG is held, but not in the first user namespace; run outside of containers"
    } else {
        "and CAP_SYSLOG is missing; run as root, or with that capability"
    };
    Some(format!(
        "/proc/kallsyms shows every address as zero: kernel.kptr_restrict is {shown}, {fix}"
    ))
}

#[cfg(test)]
#[path = "collect_tests.rs"]
mod tests;
