//! The ledger's programs: what they need to know of the kernel, and their legs.

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray, PerCpuHashMap};
use profiler_ebpf::ledger::{
    Histogram, LEDGER_FRAMES, LatencyRecord, LedgerCpu, PreemptionCounts, PreemptionKey,
    TimerCounts, TimerKey, entries,
};
use profiler_ebpf::{COMM_LEN, UNKNOWN};

use super::ProbeStatus;
use super::legs::{self, Leg, SchedEvent, Surroundings};
use super::loader::Loader;
use super::object::Plain;
use crate::kernel::{Btf, Kallsyms, KernelFacts, Model, TracepointFormat};

/// Where fields lie that only the ledger reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerOffsets {
    /// `task_struct.flags`.
    pub task_flags: Option<u32>,
    /// `task_struct.prio`.
    pub task_prio: Option<u32>,
    /// `next_comm` in the sched_switch record.
    pub switch_next_comm: Option<u32>,
    /// `pid` in the records of sched_waking and sched_wakeup_new, where it lies at
    /// the same place in both.
    pub wake_pid: Option<u32>,
    /// `timer_list.function`.
    pub timer_function: Option<u32>,
    /// `timer_list.expires`.
    pub timer_expires: Option<u32>,
    /// `process_timer.task`, since 4.15.
    pub timer_task: Option<u32>,
    /// `hrtimer.function`.
    pub hrtimer_function: Option<u32>,
}

impl LedgerOffsets {
    /// Reads them. `format` gives the format of `sched/NAME`.
    pub fn find(btf: Option<&Btf>, format: impl Fn(&str) -> Option<TracepointFormat>) -> Self {
        let member = |structure: &str, name: &str| {
            let offset = btf?.member_offset(structure, name).ok()?;
            Some(offset.bytes)
        };
        let field = |tracepoint: &str, name: &str, size: u32| {
            let format = format(tracepoint)?;
            let field = format.field(name)?;
            (field.size == size).then_some(field.offset)
        };
        let first = |name| (member("process_timer", name) == Some(0)).then_some(());
        Self {
            task_flags: member("task_struct", "flags"),
            task_prio: member("task_struct", "prio"),
            switch_next_comm: field("sched_switch", "next_comm", COMM_LEN as u32),
            wake_pid: field("sched_waking", "pid", 4)
                .filter(|&offset| field("sched_wakeup_new", "pid", 4) == Some(offset)),
            timer_function: member("timer_list", "function"),
            timer_expires: member("timer_list", "expires"),
            timer_task: first("timer").and_then(|()| member("process_timer", "task")),
            hrtimer_function: member("hrtimer", "function"),
        }
    }
}

/// What the ledger's programs are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerSettings {
    /// Whether the lazy preemption model is in force.
    pub lazy_model: bool,
    /// Address of `process_timeout`.
    pub process_timeout: Option<u64>,
    /// Address of the tick's function.
    pub tick_function: Option<u64>,
    /// Where fields lie.
    pub offsets: LedgerOffsets,
}

impl LedgerSettings {
    /// For the running kernel.
    pub fn new(facts: &KernelFacts, kallsyms: &Kallsyms, offsets: LedgerOffsets) -> Self {
        Self {
            lazy_model: facts.preempt_model.active == Model::Lazy,
            process_timeout: kallsyms.address("process_timeout"),
            // Renamed in 6.9; the older kernel has another function of the newer
            // one's name.
            tick_function: kallsyms
                .address("tick_sched_timer")
                .or_else(|| kallsyms.address("tick_nohz_handler")),
            offsets,
        }
    }

    /// Sets the programs' globals and sizes the ledger's maps; without settings
    /// they take next to no memory.
    pub(super) fn apply(values: &LedgerGlobals, loader: &mut Loader) {
        let LedgerGlobals {
            small,
            medium,
            large,
        } = values;
        for (name, value) in small {
            loader.set(name, value);
        }
        for (name, value) in medium {
            loader.set(name, value);
        }
        for (name, value) in large {
            loader.set(name, value);
        }
        let wanted = small.iter().any(|(_, value)| *value != 0);
        for (map, entries) in entries::ALL {
            loader.size(map, if wanted { entries } else { 1 });
        }
    }
}

/// Values of the programs' globals, by name.
pub(super) struct LedgerGlobals {
    small: [(&'static str, u8); 2],
    medium: [(&'static str, u32); 8],
    large: [(&'static str, u64); 2],
}

impl From<Option<&LedgerSettings>> for LedgerGlobals {
    fn from(settings: Option<&LedgerSettings>) -> Self {
        let none = LedgerSettings::default();
        let LedgerSettings {
            lazy_model,
            process_timeout,
            tick_function,
            offsets,
        } = settings.unwrap_or(&none);
        let or_unknown = |offset: Option<u32>| offset.unwrap_or(UNKNOWN);
        Self {
            small: [
                ("WANT_LEDGER", settings.is_some().into()),
                ("LAZY_MODEL", (*lazy_model).into()),
            ],
            medium: [
                ("TASK_FLAGS", or_unknown(offsets.task_flags)),
                ("TASK_PRIO", or_unknown(offsets.task_prio)),
                ("SWITCH_NEXT_COMM", or_unknown(offsets.switch_next_comm)),
                ("WAKE_PID", or_unknown(offsets.wake_pid)),
                ("TIMER_FUNCTION", or_unknown(offsets.timer_function)),
                ("TIMER_EXPIRES", or_unknown(offsets.timer_expires)),
                ("TIMER_TASK", or_unknown(offsets.timer_task)),
                ("HRTIMER_FUNCTION", or_unknown(offsets.hrtimer_function)),
            ],
            large: [
                ("PROCESS_TIMEOUT", process_timeout.unwrap_or_default()),
                ("TICK_FUNCTION", tick_function.unwrap_or_default()),
            ],
        }
    }
}

/// The ledger's maps.
pub struct LedgerMaps {
    /// Counters of each CPU.
    pub cpus: PerCpuArray<MapData, Plain<LedgerCpu>>,
    /// Wake-up latencies by cause, and hand-offs.
    pub causes: PerCpuArray<MapData, Plain<Histogram>>,
    /// Wake-up latencies by task name.
    pub groups: PerCpuHashMap<MapData, [u8; COMM_LEN], Plain<Histogram>>,
    /// The longest latencies.
    pub worst: PerCpuArray<MapData, Plain<LatencyRecord>>,
    /// Preemptions.
    pub preemptions: HashMap<MapData, Plain<PreemptionKey>, Plain<PreemptionCounts>>,
    /// Waits for timers.
    pub timers: HashMap<MapData, Plain<TimerKey>, Plain<TimerCounts>>,
    /// Stacks by their keys.
    pub stacks: HashMap<MapData, u64, [u64; LEDGER_FRAMES]>,
}

impl LedgerMaps {
    /// Takes them out of `ebpf`.
    ///
    /// # Errors
    ///
    /// When a map is missing or of another size than the ABI says.
    pub fn take(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let mut map = |name: &'static str| {
            ebpf.take_map(name)
                .with_context(|| format!("the BPF object has no map {name}"))
        };
        Ok(Self {
            cpus: map("LEDGER")?.try_into().context("map LEDGER")?,
            causes: map("WAKE_CAUSES")?.try_into().context("map WAKE_CAUSES")?,
            groups: map("WAKE_GROUPS")?.try_into().context("map WAKE_GROUPS")?,
            worst: map("WORST")?.try_into().context("map WORST")?,
            preemptions: map("PREEMPTIONS")?.try_into().context("map PREEMPTIONS")?,
            timers: map("TIMER_SITES")?.try_into().context("map TIMER_SITES")?,
            stacks: map("LEDGER_STACKS")?
                .try_into()
                .context("map LEDGER_STACKS")?,
        })
    }
}

/// Attaches to everything but switches. The rows of the status table.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    settings: &LedgerSettings,
    refusals: &mut Vec<String>,
) -> Vec<ProbeStatus> {
    let offsets = &settings.offsets;
    let knows_pid = (around.offsets.task_pid.is_some(), "task_struct.pid");
    let wakes =
        [("wake", "sched_waking"), ("wake_new", "sched_wakeup_new")].map(|(wanted, tracepoint)| {
            let event = SchedEvent {
                wanted,
                tracepoint,
                reads: knows_pid,
                fields: &[offsets.wake_pid],
            };
            legs::attach_sched(ebpf, around, refusals, &event)
        });
    let mut rows = Vec::from(wakes);

    let known = |known: bool, what: &'static str| (known, what);
    let timer = [
        known(
            offsets.timer_function.is_some()
                && offsets.timer_expires.is_some()
                && offsets.timer_task.is_some(),
            "timer_list, process_timer",
        ),
        known(around.offsets.task_pid.is_some(), "task_struct.pid"),
        known(settings.process_timeout.is_some(), "process_timeout"),
    ];
    rows.push(attach_pair(
        ebpf,
        around,
        refusals,
        "timer",
        &timer,
        // The end first, as for rcu_barrier.
        [
            ("timer_expire", "timer_expire_entry"),
            ("timer_start", "timer_start"),
        ],
    ));
    let tick = [
        known(offsets.hrtimer_function.is_some(), "hrtimer.function"),
        known(settings.tick_function.is_some(), "the tick's function"),
    ];
    rows.push(attach_pair(
        ebpf,
        around,
        refusals,
        "tick",
        &tick,
        [
            ("tick_end", "hrtimer_expire_exit"),
            ("tick", "hrtimer_expire_entry"),
        ],
    ));
    rows
}

/// Attaches two programs to two tracepoints, or none.
fn attach_pair(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
    wanted: &str,
    reads: &[(bool, &str)],
    pair: [(&'static str, &'static str); 2],
) -> ProbeStatus {
    let needed = || {
        reads
            .iter()
            .try_for_each(|(known, what)| legs::needs(*known, what))
    };
    let [first, second] = pair;
    let legs = vec![
        Leg::new("tp_btf", move |ebpf: &mut Ebpf| {
            needed()?;
            let name = |program: &str| format!("{program}_btf");
            legs::tp_btf(ebpf, &name(first.0), first.1, around)?;
            legs::tp_btf(ebpf, &name(second.0), second.1, around)
                .inspect_err(|_| legs::unload(ebpf, &name(first.0)))
        }),
        Leg::new("raw_tp", move |ebpf: &mut Ebpf| {
            needed()?;
            let name = |program: &str| format!("{program}_raw");
            legs::raw_tp(ebpf, &name(first.0), first.1)?;
            legs::raw_tp(ebpf, &name(second.0), second.1)
                .inspect_err(|_| legs::unload(ebpf, &name(first.0)))
        }),
    ];
    legs::first(ebpf, wanted, refusals, legs)
}
