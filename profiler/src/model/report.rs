//! The report as data: the document `preemptprof/report/1`.
//!
//! Fractions, not percentages; nanoseconds unless the name ends in `_s`. A field
//! that is absent was not measured, and `probes` says why; an event that was
//! watched and did not occur has count 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ledger::{
    Handoff, KernelThread, LedgerReport, PreemptionBy, SwitchCause, WakeupLatency,
};
use super::runs::{PointMetric, ProfilerEffect, RunMetric};
use super::timers::Timers;
use super::waits::Waits;
use crate::catalog::OptionState;
use crate::kernel::{
    KernelFacts, Lockdown, MachineFacts, PreemptModel, RcuFacts, TickFacts, how_to_change_model,
};
use crate::probes::ProbeStatus;
use crate::recording::{CountedSite, Counting, Evidence, Gap, Measured, RunRecord, Target};

/// The value of [`Report::schema`].
pub const SCHEMA: &str = "preemptprof/report/1";

/// What one recording says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The kernel that was measured.
    pub kernel: Kernel,
    /// The machine it ran on.
    pub machine: MachineFacts,
    /// What was wanted and what it got.
    pub probes: Vec<ProbeStatus>,
    /// The run.
    pub run: Run,
    /// How samples were taken and how many there are.
    pub sampling: SamplingReport,
    /// The whole catalogue: options with samples first, most first, then the
    /// others in the catalogue's order.
    pub options: Vec<OptionReport>,
    /// Everything that ran and was not the target.
    pub other: Other,
    /// Context switches of the target; absent when no leg watched them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switches: Option<Switches>,
    /// Blocking RCU calls of the target; absent when no leg watched them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rcu: Option<Vec<Rcu>>,
    /// How long woken tasks of the target waited for a CPU; absent without a
    /// ledger, or when no leg watched wake-ups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup_latency: Option<WakeupLatency>,
    /// Waits of the target that jiffies rounded up; absent without a ledger, or
    /// when no leg watched timers or HZ is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timers: Option<Timers>,
    /// Both sides of the account; absent without a ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ledger: Option<LedgerReport>,
    /// What the samples cover and what they do not.
    pub coverage: Coverage,
    /// Records that were lost.
    pub loss: LossReport,
    /// The profiler's own cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead: Option<OverheadReport>,
    /// How calls were counted; absent when they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counting: Option<CountingReport>,
    /// Warnings for the reader, whole sentences.
    pub warnings: Vec<String>,
}

/// The kernel, as reports show it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// `uname -r`.
    pub release: String,
    /// `uname -m`.
    pub arch: String,
    /// GNU build id of vmlinux, lower-case hex; empty when it has none.
    pub build_id: String,
    /// The preemption model in force and how that is known.
    pub preempt_model: PreemptModel,
    /// `CONFIG_HZ`; absent when it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hz: Option<u32>,
    /// Where the configuration was read.
    pub config_source: String,
    /// The current clocksource.
    pub clock: String,
    /// The lockdown state.
    pub lockdown: Lockdown,
    /// Why kernel symbols could not be read; absent when they could.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symbols_hidden: Option<String>,
    /// How the preemption model can be changed, one phrase.
    #[serde(default)]
    pub how_to_change_model: String,
    /// Its tick.
    #[serde(default)]
    pub tick: TickFacts,
    /// Its RCU.
    #[serde(default)]
    pub rcu: RcuFacts,
}

impl From<&KernelFacts> for Kernel {
    fn from(facts: &KernelFacts) -> Self {
        Self {
            release: facts.release.clone(),
            arch: facts.arch.clone(),
            build_id: facts.build_id.clone(),
            preempt_model: facts.preempt_model.clone(),
            hz: facts.hz,
            config_source: facts.config_source.clone(),
            clock: facts.clock.clone(),
            lockdown: facts.lockdown.clone(),
            symbols_hidden: facts.symbols_hidden.clone(),
            how_to_change_model: how_to_change_model(facts),
            tick: TickFacts::from(facts),
            rcu: RcuFacts::from(facts),
        }
    }
}

/// The run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The command and its arguments; empty when nothing was started.
    pub command: Vec<String>,
    /// Whose numbers these are.
    pub target: Target,
    /// From the workload's start to its end.
    pub wall_s: f64,
    /// The workload's exit status; absent when nothing was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The benchmark's own result, or else the wall time; absent when nothing was
    /// started, and of a sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metric: Option<RunMetric>,
    /// What being profiled did to the metric; absent without unprofiled runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler_effect: Option<ProfilerEffect>,
    /// The runs, in the order they were made, when there was more than one. All
    /// other numbers are of the profiled ones together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunRecord>,
    /// The points of a sweep, in order; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointMetric>,
    /// What of the run's time is waiting; absent when it is next to nothing, or not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// Whether the recording was finished and not cut short.
    pub complete: bool,
    /// Where the samples come from when another tool took them; absent when
    /// preemptprof did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<String>,
}

/// How samples were taken and how many there are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingReport {
    /// `cycles` or `cpu-clock`.
    pub event: String,
    /// `sampled-nmi` or `sampled-timer`.
    pub evidence: Evidence,
    /// Samples per second and CPU asked for.
    pub hz: u64,
    /// Samples of the target, user mode included, idle not.
    pub samples: u64,
    /// Of these, samples that interrupted user mode.
    pub user_samples: u64,
    /// CPU time of the target: samples / hz.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task_time_s: Option<f64>,
}

/// A number that was measured as a sample of something: its value, the bounds
/// of its 95 % interval and how it came to be known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best single value.
    pub value: f64,
    /// Lower bound of the 95 % interval.
    pub low: f64,
    /// Upper bound of the 95 % interval.
    pub high: f64,
    /// How it is known.
    pub evidence: Evidence,
}

/// One option of the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptionReport {
    /// The option and its live state.
    #[serde(flatten)]
    pub option: OptionState,
    /// Share of the target's samples whose innermost owned frame belongs to this
    /// option. Shares of different options do not overlap. Absent when the
    /// option is off or unknown, or when samples cannot see it
    /// ([`OptionState::not_judgeable`] says why).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_share: Option<Estimate>,
    /// Calls of the option's checks. Absent when they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Calls>,
    /// What a call takes, in the check and in its caller, less what the code
    /// would do without the option, nanoseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ns_per_call: Option<Estimate>,
    /// The fraction of the run's time that a kernel without this option, and
    /// without what goes off with it, would save: of the time on the wall, which
    /// waits are part of ([`Run::waits`]). Where no command's run was measured, of
    /// CPU time. Absent when that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gain_if_off: Option<Estimate>,
    /// The fraction of the target's CPU time that it would save: what calls times
    /// their price come to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_gain: Option<Estimate>,
    /// Why that is not known of an option that has a share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_gain: Option<String>,
    /// Functions of the option, most samples first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<FunctionShare>,
    /// Call sites that led into the option, most samples first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<CallerShare>,
}

/// One function of an option.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionShare {
    /// Its name, compiler suffixes removed.
    pub symbol: String,
    /// Share of the target's samples.
    pub share: f64,
    /// The samples themselves.
    pub samples: u64,
    /// Calls of it; absent when they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<f64>,
}

/// How often something was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// The best single value.
    pub value: f64,
    /// Lower bound of the 95 % interval.
    pub low: f64,
    /// Upper bound of the 95 % interval.
    pub high: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// The part that was counted; the rest is estimated from places that are like
    /// those counted.
    pub coverage: f64,
}

/// One call site that led into an option.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerShare {
    /// The calling function, compiler suffixes removed.
    pub symbol: String,
    /// The call instruction, `symbol+0xoff`; absent when the return address does
    /// not follow a call inside the symbol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The function called; absent when only samples tell of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Calls from there; absent when they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<f64>,
    /// Share of the target's time: by calls where those were counted, else by
    /// samples.
    pub share: f64,
    /// Samples that show it.
    pub samples: u64,
    /// The subsystem of the caller, e.g. `memcg`; absent when it is in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Everything that ran and was not the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// Samples of tasks outside the target, the profiler's own left out.
    pub samples: u64,
    /// Samples of the profiler's own threads.
    pub profiler_samples: u64,
    /// `samples` as a share of the machine's non-idle samples; absent when there
    /// are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

/// Context switches away from the target's tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Switches {
    /// All of them.
    pub total: u64,
    /// The task blocked or ended.
    pub voluntary: u64,
    /// The task could have gone on.
    pub preempted: u64,
    /// How they are known.
    pub evidence: Evidence,
    /// The leg that counted them; absent in a salvaged recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// Of the voluntary ones, those of tasks that ended; absent without a ledger,
    /// as what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exits: Option<u64>,
    /// The preempted ones by cause, most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_cause: Vec<SwitchCause>,
    /// Who took the CPU from whom, most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preemptions_by: Vec<PreemptionBy>,
    /// Kernel threads that did, by the time lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_threads: Vec<KernelThread>,
    /// By task, most switches first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_task: Vec<TaskSwitches>,
    /// One hand-off between two tasks on one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handoff: Option<Handoff>,
}

/// Context switches away from one task, while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSwitches {
    /// Thread id in the initial PID namespace.
    pub pid: u32,
    /// The task's last name.
    pub comm: String,
    /// It blocked or ended: `voluntary_ctxt_switches` of `/proc/PID/status`.
    pub voluntary: u64,
    /// It could have gone on: `nonvoluntary_ctxt_switches`.
    pub preempted: u64,
}

/// One kind of blocking RCU call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rcu {
    /// `rcu_barrier`, `synchronize_rcu`, ...
    pub event: String,
    /// Calls by the target.
    pub count: u64,
    /// Time they blocked, together.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How they are known.
    pub evidence: Evidence,
    /// The leg that saw them; absent in a salvaged recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// By task name and stack, longest total first.
    pub by: Vec<RcuBy>,
}

/// The calls of one task name from one stack.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RcuBy {
    /// The task's name.
    pub comm: String,
    /// What the kernel was asked to do, e.g. `veth delete`; absent when the stack
    /// has none of the functions that tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The kernel stack at the call, outermost first, joined by `;`.
    pub stack: String,
    /// Calls.
    pub count: u64,
    /// Time they blocked, together.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What the samples cover and what they do not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// CPUs sampled, as a kernel CPU list.
    pub cpus: String,
    /// Samples dropped in the kernel because the CPU was idle.
    pub idle_samples: u64,
    /// Kernel-mode samples of the target that came without a kernel stack.
    pub stackless_samples: u64,
    /// Samples of the target whose kernel stack was deeper than what was kept.
    pub truncated_stacks: u64,
    /// Kernel-mode samples of the target whose innermost frame has no symbol.
    pub unknown_samples: u64,
    /// Times in which a CPU was not watched.
    pub gaps: Vec<Gap>,
}

/// Records that were lost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    /// Lost records of all reasons; cut stacks are not lost and not counted.
    pub total: u64,
    /// By reason, `stack_truncated` included.
    pub by_reason: BTreeMap<String, u64>,
}

/// The profiler's own cost between the workload's start and end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverheadReport {
    /// Time in BPF programs.
    pub bpf_ns: u64,
    /// Hits times the calibrated price of entering a probe.
    pub probe_ns: u64,
    /// CPU time of the profiler's own threads.
    pub user_ns: u64,
    /// From the command's start to the workload's.
    pub setup_ns: u64,
    /// (bpf + probe + user) / (wall time x online CPUs).
    pub share: f64,
    /// How `bpf_ns` was measured.
    pub bpf_source: String,
    /// Time in BPF programs by the kernel's own statistics; absent when those
    /// were off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bpf_stats_ns: Option<u64>,
    /// The prices behind `probe_ns`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub probe_source: String,
}

/// How calls were counted, and what that took. Its cost is part of
/// [`OverheadReport`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountingReport {
    /// How hits were counted.
    pub leg: String,
    /// Windows in which something was armed.
    pub windows: u64,
    /// Their length together, of one CPU.
    pub armed_ns: u64,
    /// Hits in them, the target's and others'.
    pub hits: u64,
    /// What a hit costs, nanoseconds.
    pub hit_ns: Measured,
    /// CPU time of the counting thread.
    pub thread_ns: u64,
    /// What hits and thread took, of the time of all CPUs that were watched.
    pub share: f64,
    /// The pace of the code that is counted, nanoseconds per instruction.
    pub ns_per_instruction: Measured,
    /// How that was measured.
    pub pace_source: String,
    /// Call sites and entries in the kernel's text.
    pub places: u64,
    /// Of these, those that were looked at.
    pub looked_at: u64,
    /// Of these, those that were hit.
    pub hit: u64,
}

impl From<&Counting> for CountingReport {
    fn from(counting: &Counting) -> Self {
        let looked_at = |site: &&CountedSite| !site.seen.is_empty();
        let took = counting.hits as f64 * counting.hit_price.value + counting.thread_ns as f64;
        let capacity = counting.wall_ns as f64 * f64::from(counting.cpus);
        Self {
            leg: counting.leg.clone(),
            windows: counting.windows,
            armed_ns: counting.armed_ns,
            hits: counting.hits,
            hit_ns: counting.hit_price,
            thread_ns: counting.thread_ns,
            share: if capacity > 0.0 { took / capacity } else { 0.0 },
            ns_per_instruction: counting.pace,
            pace_source: counting.pace_source.clone(),
            places: counting.sites.len() as u64,
            looked_at: counting.sites.iter().filter(looked_at).count() as u64,
            hit: counting.sites.iter().filter(|site| site.is_hit()).count() as u64,
        }
    }
}
