//! The facts a recording carries, so that a report needs no live kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

/// Everything known about the kernel that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// `uname -r`.
    pub release: String,
    /// `uname -v`.
    pub version: String,
    /// `uname -m`.
    pub arch: String,
    /// GNU build id of vmlinux from `/sys/kernel/notes`, lower-case hex; empty
    /// when the kernel has none.
    pub build_id: String,
    /// The preemption model in force and how that is known.
    pub preempt_model: PreemptModel,
    /// `CONFIG_HZ`; absent when it could be neither read nor inferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// Path of the config that was read, or `inferred from symbols`.
    pub config_source: String,
    /// The kernel's configuration; empty when none could be read.
    pub config: Config,
    /// The current clocksource, e.g. `tsc`.
    pub clock: String,
    /// `/proc/cmdline`.
    pub boot_parameters: String,
    /// The lockdown state.
    pub lockdown: Lockdown,
    /// Why kernel addresses could not be read from `/proc/kallsyms`; absent when
    /// they could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols_hidden: Option<String>,
    /// The symbols the catalogue asks about that this kernel has (base names,
    /// compiler suffixes such as `.isra.0` removed).
    pub present_symbols: BTreeSet<String>,
    /// Contents (trimmed) of the run-time knobs the catalogue asks about, by
    /// path. A knob that does not exist or cannot be read is left out.
    pub knobs: BTreeMap<String, String>,
    /// How many modules were loaded; absent when that could not be read, e.g. on a
    /// kernel with `CONFIG_MODULES=n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modules: Option<u32>,
}

/// A kernel configuration: only what is set, by name with the `CONFIG_` prefix.
/// `# CONFIG_X is not set` and a missing name are the same thing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Config(pub BTreeMap<String, String>);

impl Config {
    /// The value of `name` (`y`, `m`, a number, or a string without its quotes).
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether no configuration was read at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The preemption model in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreemptModel {
    /// The model itself.
    pub active: Model,
    /// How it is known, e.g. `/sys/kernel/debug/sched/preempt`.
    pub source: String,
    /// The models this kernel can be switched to at run time; empty when the
    /// model is fixed or not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub available: Vec<Model>,
}

/// A preemption model, by the names of the `preempt=` boot parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Model {
    /// `PREEMPT_NONE`.
    None,
    /// `PREEMPT_VOLUNTARY`.
    Voluntary,
    /// `PREEMPT`.
    Full,
    /// `PREEMPT_LAZY`, since 6.13.
    Lazy,
    /// `PREEMPT_RT`.
    Rt,
    /// Could not be found out.
    #[default]
    Unknown,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Voluntary => "voluntary",
            Self::Full => "full",
            Self::Lazy => "lazy",
            Self::Rt => "rt",
            Self::Unknown => "unknown",
        })
    }
}

/// The kernel's lockdown state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lockdown {
    /// The state itself.
    pub state: LockdownState,
    /// How it is known.
    pub source: String,
}

/// A lockdown state, as `/sys/kernel/security/lockdown` names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LockdownState {
    /// Not locked down.
    None,
    /// No modification of the running kernel.
    Integrity,
    /// Nor reading of its secrets.
    Confidentiality,
    /// Could not be found out.
    #[default]
    Unknown,
}

/// Facts of the machine that change what a benchmark measures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// CPU model name.
    pub cpu_model: String,
    /// CPUs the kernel could bring up.
    pub possible_cpus: u32,
    /// CPUs online at the start of the run.
    pub online_cpus: u32,
    /// Hypervisor vendor, or `none`.
    pub hypervisor: String,
    /// `/sys/devices/system/cpu/vulnerabilities`, by name.
    pub mitigations: BTreeMap<String, String>,
    /// `/sys/devices/system/cpu/smt/control`, or `unknown`.
    pub smt: String,
    /// cpufreq governor of CPU 0, or `none`.
    pub governor: String,
    /// CPUs' worth of time the profiler's own cgroup may use; absent when
    /// unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_cpu_limit: Option<f64>,
    /// Fraction of the CPUs' time stolen by the hypervisor during the run;
    /// absent before the run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steal: Option<f64>,
}

/// A kernel release as a comparable number. Distribution suffixes are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// The 6 of 6.12.95.
    pub major: u32,
    /// The 12 of 6.12.95.
    pub minor: u32,
}

impl Release {
    /// A release by its numbers.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Reads the leading `MAJOR.MINOR` of `uname -r` or of a catalogue entry.
    pub fn parse(release: &str) -> Option<Self> {
        let mut parts = release.split(|c: char| !c.is_ascii_digit());
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        Some(Self { major, minor })
    }
}
