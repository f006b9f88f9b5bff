//! The BPF object: which of the two is loaded, with which globals and sizes.

use std::ops::Range;

use anyhow::Context as _;
use aya::maps::{Array, HashMap, MapData, PerCpuArray, RingBuf};
use aya::{Ebpf, Pod};
use profiler_ebpf::{CpuState, PEEK_BYTES, RCU_WAITS, TaskEntry, TaskSlot, UNKNOWN, target};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::ledger::{LedgerGlobals, LedgerMaps, LedgerSettings};
use super::loader::Loader;
use super::offsets::Offsets;
use super::target::Scope;

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/preemptprof.bpf.o"));
static OBJECT_WITH_LOG: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/preemptprof-log.bpf.o"));

/// The globals that hold the text of each of `RCU_WAITS`.
const RCU_TEXT_GLOBALS: [(&str, &str); RCU_WAITS.len()] = [
    ("RCU0_START", "RCU0_END"),
    ("RCU1_START", "RCU1_END"),
    ("RCU2_START", "RCU2_END"),
    ("RCU3_START", "RCU3_END"),
    ("RCU4_START", "RCU4_END"),
    ("RCU5_START", "RCU5_END"),
    ("RCU6_START", "RCU6_END"),
];

/// The globals that hold the texts that an idle CPU waits in.
const IDLE_TEXT_GLOBALS: [(&str, &str); IDLE_TEXTS] = [
    ("IDLE0_START", "IDLE0_END"),
    ("IDLE1_START", "IDLE1_END"),
    ("IDLE2_START", "IDLE2_END"),
    ("IDLE3_START", "IDLE3_END"),
];

/// How many texts that an idle CPU waits in the programs are told.
pub const IDLE_TEXTS: usize = 4;

/// A type of the ABI as a map value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Plain<T>(pub T);

// SAFETY: zerocopy's derives prove that `T` has no padding and that every bit
// pattern is a value of it.
unsafe impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Pod for Plain<T> {}

/// What the programs are told before they are loaded.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose numbers are wanted.
    pub scope: Scope,
    /// Struct and record offsets.
    pub offsets: Offsets,
    /// The texts that an idle CPU waits in, [`IDLE_TEXTS`] at most.
    pub idle_texts: Vec<Range<u64>>,
    /// Text of each of `RCU_WAITS` that the off-CPU leg is to watch.
    pub rcu_texts: [Option<(u64, u64)>; RCU_WAITS.len()],
    /// Whether the kernel has cgroups.
    pub has_cgroups: bool,
    /// Whether user stacks are wanted.
    pub user_stacks: bool,
    /// `kernel.perf_event_max_stack`.
    pub max_stack: u32,
    /// Length of an epoch, nanoseconds.
    pub epoch_ns: u64,
    /// Size of the ring buffer, bytes.
    pub ring_bytes: u32,
    /// Tasks the map of tasks has room for.
    pub max_tasks: u32,
    /// Whether the programs write log lines.
    pub log: bool,
    /// What the ledger's programs are told; `None` when there is to be no ledger.
    pub ledger: Option<LedgerSettings>,
}

impl Settings {
    /// For programs that are only run on request: the least a kernel accepts.
    pub(super) fn smallest() -> Self {
        Self {
            scope: Scope::machine(),
            offsets: Offsets::default(),
            idle_texts: Vec::new(),
            rcu_texts: Default::default(),
            has_cgroups: false,
            user_stacks: false,
            max_stack: 1,
            epoch_ns: 1,
            ring_bytes: 4096,
            max_tasks: 1,
            log: false,
            ledger: None,
        }
    }
}

/// Parses the object, sets its globals and makes its maps. No program is loaded.
///
/// # Errors
///
/// When the kernel refuses a map: no privileges, no ring buffer (before 5.8), or
/// no memory.
pub(super) fn open(settings: &Settings) -> anyhow::Result<Ebpf> {
    // Before 5.11 maps count against this limit. Where it cannot be raised, the
    // maps may still fit.
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the structure is valid for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };

    let Scope {
        mode,
        cgroup_id,
        cgroup_level,
        pid_namespace,
    } = settings.scope;
    let Offsets {
        prev_state_arg,
        task_state,
        task_pid,
        task_comm,
        preempt_count: _,
        switch_prev_state,
        switch_next_pid,
        fork_child,
        free_pid,
        free_comm,
        // Set with the ledger's own.
        ledger: _,
    } = &settings.offsets;
    let or_unknown = |offset: &Option<u32>| offset.unwrap_or(UNKNOWN);
    let small: [(&'static str, u8); 5] = [
        ("TARGET_MODE", mode),
        ("HAS_CGROUPS", settings.has_cgroups.into()),
        ("ADOPT", pid_namespace.is_some().into()),
        ("USER_STACKS", settings.user_stacks.into()),
        (
            "RCU_OFF_CPU",
            settings.rcu_texts.iter().any(Option::is_some).into(),
        ),
    ];
    let medium: [(&'static str, u32); 11] = [
        ("CGROUP_LEVEL", cgroup_level),
        ("MAX_STACK", settings.max_stack),
        ("PREV_STATE_ARG", or_unknown(prev_state_arg)),
        ("TASK_STATE", or_unknown(task_state)),
        ("TASK_PID", or_unknown(task_pid)),
        ("TASK_COMM", or_unknown(task_comm)),
        ("SWITCH_PREV_STATE", or_unknown(switch_prev_state)),
        ("SWITCH_NEXT_PID", or_unknown(switch_next_pid)),
        ("FORK_CHILD", or_unknown(fork_child)),
        ("FREE_PID", or_unknown(free_pid)),
        ("FREE_COMM", or_unknown(free_comm)),
    ];
    let (pidns_dev, pidns_ino) = pid_namespace.unwrap_or_default();
    let large: [(&'static str, u64); 5] = [
        ("CGROUP_ID", cgroup_id),
        ("PIDNS_DEV", pidns_dev),
        ("PIDNS_INO", pidns_ino),
        ("EPOCH_NS", settings.epoch_ns),
        ("WAKEUP_BYTES", u64::from(settings.ring_bytes) / 2),
    ];

    let ledger = LedgerGlobals::from(settings.ledger.as_ref());
    let mut loader = Loader::lock();
    LedgerSettings::apply(&ledger, &mut loader);
    for (name, value) in &small {
        loader.set(name, value);
    }
    for (name, value) in &medium {
        loader.set(name, value);
    }
    for (name, value) in &large {
        loader.set(name, value);
    }
    // Each of them is set, as the loader may have been used before.
    for (index, (start_name, end_name)) in IDLE_TEXT_GLOBALS.iter().enumerate() {
        let text = settings.idle_texts.get(index);
        loader.set(start_name, &text.map_or(0, |text| text.start));
        loader.set(end_name, &text.map_or(0, |text| text.end));
    }
    let texts = settings.rcu_texts.map(Option::unwrap_or_default);
    for ((start_name, end_name), (start, end)) in RCU_TEXT_GLOBALS.iter().zip(&texts) {
        loader.set(start_name, start);
        loader.set(end_name, end);
    }
    loader.size("EVENTS", settings.ring_bytes);
    loader.size("TASKS", settings.max_tasks);
    let cpus = aya::util::nr_cpus().map_err(|(path, error)| anyhow::anyhow!("{path}: {error}"))?;
    loader.size("CHECKS", u32::try_from(cpus)?);
    let object = if settings.log {
        OBJECT_WITH_LOG
    } else {
        OBJECT
    };
    loader.load(object).context("loading the BPF object")
}

/// The maps, taken out of the object so that they outlive its programs.
pub struct Maps {
    /// Counters of each possible CPU.
    pub cpus: PerCpuArray<MapData, Plain<CpuState>>,
    /// Everything the programs send; taken by the drain.
    pub events: Option<RingBuf<MapData>>,
    /// The target's tasks, with switches that are not in `slots`.
    pub tasks: HashMap<MapData, u32, Plain<TaskEntry>>,
    /// Switches of most of them.
    pub slots: Array<MapData, Plain<TaskSlot>>,
    /// Process ids of the target in the profiler's PID namespace.
    pub ns_targets: HashMap<MapData, u32, u32>,
    /// What `peek` read.
    pub peek: Array<MapData, [u8; PEEK_BYTES]>,
    /// The ledger's; `None` when there is none.
    pub ledger: Option<LedgerMaps>,
}

impl Maps {
    /// Takes the maps out of `ebpf`.
    ///
    /// # Errors
    ///
    /// When a map is missing or of another size than the ABI says: the object is
    /// not of this build.
    pub fn take(ebpf: &mut Ebpf, ledger: bool) -> anyhow::Result<Self> {
        let ledger = ledger.then(|| LedgerMaps::take(ebpf)).transpose()?;
        let mut map = |name: &'static str| {
            ebpf.take_map(name)
                .with_context(|| format!("the BPF object has no map {name}"))
        };
        Ok(Self {
            cpus: map("CPUS")?.try_into().context("map CPUS")?,
            events: Some(map("EVENTS")?.try_into().context("map EVENTS")?),
            slots: map("SLOTS")?.try_into().context("map SLOTS")?,
            tasks: map("TASKS")?.try_into().context("map TASKS")?,
            ns_targets: map("NS_TARGETS")?.try_into().context("map NS_TARGETS")?,
            peek: map("PEEK")?.try_into().context("map PEEK")?,
            ledger,
        })
    }
}

/// Whether a mode counts switches of tasks it is not told of.
pub(super) const fn needs_forks(mode: u8) -> bool {
    mode == target::TASKS
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    use super::*;

    /// Names of everything in an object that has to do with log lines.
    fn log_names(bytes: &[u8]) -> Vec<String> {
        let file = object::File::parse(bytes).unwrap();
        let symbols = file.symbols().filter_map(|symbol| symbol.name().ok());
        let sections = file.sections();
        symbols
            .map(str::to_owned)
            .chain(sections.filter_map(|section| section.name().ok().map(str::to_owned)))
            .filter(|name| name.to_lowercase().contains("log"))
            .collect()
    }

    /// Names of its programs and maps.
    fn globals(bytes: &[u8]) -> Vec<String> {
        let file = object::File::parse(bytes).unwrap();
        let mut names: Vec<String> = file
            .symbols()
            .filter(|symbol| symbol.is_global())
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn without_log_lines_there_is_no_trace_of_them() {
        assert_eq!(log_names(OBJECT), Vec::<String>::new());
        assert!(!OBJECT.windows(8).any(|bytes| bytes == b"AYA_LOGS"));
    }

    #[test]
    fn the_object_with_log_lines_has_all_the_other_has() {
        let logs = log_names(OBJECT_WITH_LOG);
        for name in ["AYA_LOGS", "AYA_LOG_LEVEL"] {
            assert!(logs.iter().any(|log| log == name), "{logs:?}");
        }
        let mut with_log = globals(OBJECT_WITH_LOG);
        with_log.retain(|name| !name.starts_with("AYA_LOG"));
        assert_eq!(with_log, globals(OBJECT));
    }
}
