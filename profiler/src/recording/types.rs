//! The recording in memory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ledger::Ledger;
use crate::kernel::{KernelFacts, MachineFacts};
use crate::probes::ProbeStatus;

/// One profiled run, or several of one command, whole. Ids are indexes into the tables beside them; the
/// reader guarantees that each is in range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// What was known when the run began.
    pub header: Header,
    /// What was known when it ended; a salvaged recording has a default one.
    pub trailer: Trailer,
    /// Task names, unescaped, as the kernel gave them.
    pub comms: Vec<String>,
    /// Symbols that occur in frames.
    pub symbols: Vec<Symbol>,
    /// Addresses that occur in stacks.
    pub frames: Vec<Frame>,
    /// Distinct stacks, kernel and user.
    pub stacks: Vec<Stack>,
    /// The samples, in order of arrival.
    pub samples: Vec<Sample>,
    /// Per-CPU counters, one record per CPU and epoch, in order of arrival.
    pub epochs: Vec<Epoch>,
    /// rcu_barrier calls.
    pub rcu: Vec<RcuEvent>,
    /// Whether the recording has its footer and says it lost nothing at the end.
    pub complete: bool,
}

/// What was known when the run began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Version of preemptprof that wrote the recording.
    pub tool_version: String,
    /// The kernel that was measured.
    pub kernel: KernelFacts,
    /// The machine it ran on.
    pub machine: MachineFacts,
    /// The command and its arguments; empty when something running was attached
    /// to.
    pub command: Vec<String>,
    /// Whose numbers these are.
    pub target: Target,
    /// How samples were taken.
    pub sampling: Sampling,
    /// Nominal length of an epoch, nanoseconds.
    pub epoch_ns: u64,
    /// Wall-clock start of the run, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// CLOCK_MONOTONIC at the start of the run, the origin of every `time_ns`.
    pub started_mono_ns: u64,
    /// Where the samples come from when another tool took them; absent when
    /// preemptprof did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
}

/// Whose numbers a recording holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Target {
    /// A command that was started, with all its descendants.
    #[default]
    Command,
    /// The whole machine.
    Machine,
    /// Running processes, with their descendants.
    Pids {
        /// Process ids in the caller's PID namespace.
        pids: Vec<u32>,
    },
    /// A cgroup and those below it.
    Cgroup {
        /// Its directory.
        path: String,
    },
}

/// How samples were taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// `cycles` or `cpu-clock`.
    pub event: String,
    /// `sampled-nmi` or `sampled-timer`.
    pub evidence: Evidence,
    /// Samples per second and CPU asked for.
    pub hz: u64,
    /// CPUs sampled, as a kernel CPU list (`0-3,6`).
    pub cpus: String,
}

/// How a number came to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Counted, each one.
    Counted,
    /// Sampled by an NMI: sees code that runs with interrupts off.
    SampledNmi,
    /// Sampled by a timer interrupt: blind while interrupts are off.
    #[default]
    SampledTimer,
    /// Computed from other numbers of this run.
    Derived,
    /// Concluded from something indirect.
    Inferred,
}

impl Evidence {
    /// The name used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::SampledNmi => "sampled-nmi",
            Self::SampledTimer => "sampled-timer",
            Self::Derived => "derived",
            Self::Inferred => "inferred",
        }
    }
}

/// What was known when the run ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trailer {
    /// The run's outcome.
    pub run: RunInfo,
    /// The status table as it stood at the end.
    pub probes: Vec<ProbeStatus>,
    /// The machine's facts with those measured during the run.
    pub machine: MachineFacts,
    /// Switch totals of the target at the end, read from the maps after detach,
    /// so that they do not depend on epoch records having arrived. Absent when
    /// no leg watched switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switches: Option<SwitchCounts>,
    /// The same for everything that is not the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_switches: Option<SwitchCounts>,
    /// Switches by task of the target, most first.
    pub task_switches: Vec<TaskSwitches>,
    /// The ledger; absent unless it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<Ledger>,
    /// Samples dropped in the kernel because the CPU was idle.
    pub idle_samples: u64,
    /// Losses by CPU and reason, only those above 0.
    pub losses: Vec<Loss>,
    /// Times in which a CPU was not watched.
    pub gaps: Vec<Gap>,
    /// The profiler's own cost.
    pub overhead: Overhead,
    /// Calls that were counted; absent when none were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting: Option<super::Counting>,
    /// Warnings for the reader of the report, whole sentences.
    pub warnings: Vec<String>,
    /// The runs, in the order they were made, when the command was run more than
    /// once. Everything else here is the sum over the profiled ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunRecord>,
}

/// One run of the command among several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Whether it was profiled; of one that was not, only these fields are known.
    pub profiled: bool,
    /// When it began, nanoseconds since the recording's start.
    pub start_ns: u64,
    /// When it ended, nanoseconds since the recording's start.
    pub end_ns: u64,
    /// From its start to its end, seconds.
    pub wall_s: f64,
    /// Its exit status (128+N by signal N).
    pub exit_code: i32,
    /// The benchmark's own result, where its output had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
    /// The values that a sweep gave its parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub point: BTreeMap<String, String>,
    /// Switches of the target in this run; absent when it was not profiled or no
    /// leg watched them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<SwitchCounts>,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunInfo {
    /// From the workload's start to its end, seconds.
    pub wall_s: f64,
    /// The workload's exit status (128+N by signal N); absent when nothing was
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The benchmark's own result, where one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<Metric>,
}

/// A benchmark's own result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// e.g. `total time`.
    pub name: String,
    /// The value, in `unit`.
    pub value: f64,
    /// e.g. `s`.
    pub unit: String,
    /// `lower` or `higher`.
    pub better: String,
}

/// Context switches away from tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchCounts {
    /// The task blocked or ended: the kernel's nvcsw.
    pub voluntary: u64,
    /// The task could have gone on: the kernel's nivcsw.
    pub preempted: u64,
}

/// Switches of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TaskSwitches {
    /// Thread id in the initial PID namespace.
    pub pid: u32,
    /// The task's name when it was last seen.
    pub comm: String,
    /// Its switches.
    pub counts: SwitchCounts,
}

/// Records lost on one CPU for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// The CPU.
    pub cpu: u32,
    /// e.g. `ring_full`; `stack_truncated` counts records that arrived cut short
    /// and is not part of a total.
    pub reason: String,
    /// How many.
    pub count: u64,
}

/// A time in which a CPU was not watched.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// The CPU.
    pub cpu: u32,
    /// Start, nanoseconds since the run's start.
    pub from_ns: u64,
    /// End, nanoseconds since the run's start.
    pub to_ns: u64,
    /// e.g. `CPU went offline`.
    pub reason: String,
}

/// The profiler's own cost between the workload's start and end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Time in BPF programs.
    pub bpf_ns: u64,
    /// Time to enter and leave them: hits times a price calibrated on this run.
    pub probe_ns: u64,
    /// CPU time of the profiler's own threads.
    pub user_ns: u64,
    /// From the command's start to the workload's.
    pub setup_ns: u64,
    /// (bpf + probe + user) / (wall time x online CPUs).
    pub share: f64,
    /// How `bpf_ns` was measured, one phrase.
    pub bpf_source: String,
    /// Time in BPF programs by the kernel's own statistics, when those were on
    /// (`--bpf-stats`). They begin a little before the programs' clock does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bpf_stats_ns: Option<u64>,
    /// The prices behind `probe_ns` and how they are known, one phrase.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub probe_source: String,
    /// What the programs add to one switch and, with the ledger, the wake-up that
    /// led to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_switch_ns: Option<u64>,
}

/// Index into [`Recording::symbols`].
pub type SymbolId = u32;
/// Index into [`Recording::frames`].
pub type FrameId = u32;
/// Index into [`Recording::stacks`]; stack 0 is always the empty one.
pub type StackId = u32;

/// A symbol, kernel or user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Symbol {
    /// Its name as the kernel or the binary has it; `[unknown]` when none is
    /// known.
    pub name: String,
    /// Kernel module, `bpf`, or a binary's path; empty for the kernel itself.
    pub module: String,
}

/// One address of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The address.
    pub addr: u64,
    /// The symbol it lies in.
    pub symbol: SymbolId,
    /// Bytes past the symbol's start.
    pub offset: u32,
}

/// A stack: frames, innermost first. For kernel stacks the first is the
/// interrupted instruction, the others return addresses.
pub type Stack = Box<[FrameId]>;

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the run's start.
    pub time_ns: u64,
    /// The interrupted instruction pointer, kernel or user.
    pub ip: u64,
    /// cgroup v2 id of the task; 0 when unknown.
    pub cgroup_id: u64,
    /// The CPU.
    pub cpu: u32,
    /// Thread id, initial PID namespace.
    pub pid: u32,
    /// Process id, initial PID namespace.
    pub tgid: u32,
    /// Index into [`Recording::comms`].
    pub comm: u32,
    /// Kernel stack; 0 (empty) when user mode was interrupted.
    pub kernel_stack: StackId,
    /// User stack; 0 (empty) when not asked for or not readable.
    pub user_stack: StackId,
    /// Bits of [`SampleFlags`].
    pub flags: u32,
}

/// Bits of [`Sample::flags`].
pub struct SampleFlags;

impl SampleFlags {
    /// The task belongs to the target.
    pub const TARGET: u32 = 1 << 0;
    /// User mode was interrupted.
    pub const USER_MODE: u32 = 1 << 1;
    /// The kernel stack was deeper than what was kept.
    pub const KERNEL_TRUNCATED: u32 = 1 << 2;
    /// The user stack was deeper than what was kept.
    pub const USER_TRUNCATED: u32 = 1 << 3;
    /// The sample is one of the profiler's own threads.
    pub const PROFILER: u32 = 1 << 4;
}

impl Sample {
    /// Whether the task belongs to the target.
    pub const fn is_target(&self) -> bool {
        self.flags & SampleFlags::TARGET != 0
    }
}

/// Counters of one CPU at the end of one epoch. They only grow: the events of
/// an epoch are the difference to the CPU's previous record, so a lost record
/// loses no events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Epoch {
    /// The CPU.
    pub cpu: u32,
    /// When it was taken, nanoseconds since the run's start.
    pub time_ns: u64,
    /// Switches away from the target's tasks.
    pub switches: SwitchCounts,
    /// Switches away from all other tasks, idle left out.
    pub other_switches: SwitchCounts,
    /// Sampler hits, idle included.
    pub sampler_hits: u64,
    /// Sampler hits on an idle CPU.
    pub idle_samples: u64,
    /// Losses by reason.
    pub losses: BTreeMap<String, u64>,
}

/// One rcu_barrier call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RcuEvent {
    /// When it began, nanoseconds since the run's start.
    pub time_ns: u64,
    /// How long it took.
    pub duration_ns: u64,
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Index into [`Recording::comms`].
    pub comm: u32,
    /// Kernel stack at the call.
    pub kernel_stack: StackId,
    /// Whether the task belongs to the target.
    pub target: bool,
}
