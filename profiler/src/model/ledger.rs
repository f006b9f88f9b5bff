//! The ledger: what preemption cost a workload and what it bought.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::report::{Report, TaskSwitches};
use super::timers;
use crate::kernel::causes;
use crate::recording::{Evidence, Histogram, Latency, Ledger, Recording, Target};

/// How long woken tasks waited for a CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WakeupLatency {
    /// All of them.
    #[serde(flatten)]
    pub times: Times,
    /// The most by which a quantile can be off, as a fraction of it; `max_ns` is
    /// exact.
    pub relative_error: f64,
    /// How they are known.
    pub evidence: Evidence,
    /// The leg that saw the wake-ups; absent in a salvaged recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// Tasks that were woken before they had left their CPU: they did not wait,
    /// and are not in `count`.
    pub woken_running: u64,
    /// Waits left out, as they would have ended before they began: CPUs' clocks
    /// differ.
    pub clock_backwards: u64,
    /// Tasks that ended between wake-up and running.
    pub ended_waiting: u64,
    /// By the cause of the wait.
    pub causes: Vec<CauseTimes>,
    /// By task name, most wake-ups first.
    pub groups: Vec<GroupTimes>,
    /// The longest, with what had the CPU meanwhile.
    pub worst: Vec<Latency>,
}

/// A distribution of times. Quantiles of nothing are absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// Half are not longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// 90 % are not longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_ns: Option<u64>,
    /// 99 % are not longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// 99.9 % are not longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999_ns: Option<u64>,
    /// The longest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self {
            count: histogram.count,
            total_ns: histogram.total_ns,
            p50_ns: histogram.quantile(0.5),
            p90_ns: histogram.quantile(0.9),
            p99_ns: histogram.quantile(0.99),
            p999_ns: histogram.quantile(0.999),
            max_ns: (histogram.count > 0).then_some(histogram.max_ns),
        }
    }
}

/// Wake-up latencies of one cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CauseTimes {
    /// `busy`: another task had the CPU. `idle`: it was idle. `lazy`: another task
    /// had it and was asked to give it up lazily.
    pub cause: String,
    /// The latencies.
    #[serde(flatten)]
    pub times: Times,
    /// How the cause is known.
    pub evidence: Evidence,
}

/// Wake-up latencies of tasks of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupTimes {
    /// The name.
    pub comm: String,
    /// The latencies.
    #[serde(flatten)]
    pub times: Times,
}

/// Switches away from tasks that could have gone on, by cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchCause {
    /// One of [`causes`].
    pub cause: String,
    /// How many.
    pub count: u64,
    /// How the cause is known.
    pub evidence: Evidence,
}

/// Tasks of one name that took the CPU from tasks of another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreemptionBy {
    /// Who got the CPU.
    pub by: String,
    /// Who could have gone on.
    pub of: String,
    /// How often.
    pub count: u64,
    /// How long those waited to go on, together.
    pub wait_ns: u64,
    /// Whether it is a kernel thread that got the CPU.
    pub by_kernel_thread: bool,
}

/// A kernel thread that took the CPU from the workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelThread {
    /// Its name.
    pub name: String,
    /// How often.
    pub count: u64,
    /// How long the workload's tasks waited to go on, together.
    pub wait_ns: u64,
}

/// From a task's leaving a CPU to its return, when one other task of the workload
/// ran in between and both blocked: one hand-off of a pair on one CPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Handoff {
    /// The times, the profiler's own part included.
    #[serde(flatten)]
    pub times: Times,
    /// The median without the profiler's part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_p50_ns: Option<u64>,
    /// The profiler's part of each.
    pub own_ns: u64,
    /// How they are known.
    pub evidence: Evidence,
}

/// Both sides of the account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerReport {
    /// What preemption, the tick and the model cost.
    pub cost: Vec<LedgerRow>,
    /// What they bought, or what buying more would bring.
    pub benefit: Vec<LedgerRow>,
}

/// One line of the account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerRow {
    /// What it is.
    pub name: String,
    /// The number, in `unit`.
    pub value: f64,
    /// `ns`, `count` or `fraction`.
    pub unit: String,
    /// Lower bound, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// How it is known.
    pub evidence: Evidence,
    /// What it says, one sentence.
    pub sentence: String,
}

/// The relative error of a quantile: half a bucket.
const RELATIVE_ERROR: f64 = 0.032;
/// Pairs and groups kept in a report.
const KEPT: usize = 50;
/// Tasks kept in a report.
const TASKS_KEPT: usize = 200;

/// Adds the ledger to a report, where the recording has one.
pub(super) fn add(report: &mut Report, recording: &Recording) {
    let Some(ledger) = &recording.trailer.ledger else {
        return;
    };
    let leg = |wanted: &str| {
        let probe = report.probes.iter().find(|probe| probe.wanted == wanted);
        probe
            .map(|probe| probe.leg.clone())
            .filter(|leg| leg != "none")
    };
    let (wake, timer, tick) = (leg("wake"), leg("timer"), leg("tick"));
    if wake.is_some() && report.switches.is_some() {
        report.wakeup_latency = Some(latency(ledger, wake));
    }
    if let (Some(hz), true) = (report.kernel.hz.filter(|&hz| hz > 0), timer.is_some()) {
        report.timers = Some(timers::timers(ledger, hz, (timer, tick.is_some())));
    }
    let own_ns = recording.trailer.overhead.per_switch_ns.unwrap_or_default();
    if let Some(switches) = &mut report.switches {
        switches.exits = Some(ledger.exits);
        switches.by_cause = by_cause(ledger);
        let known: u64 = switches.by_cause.iter().map(|cause| cause.count).sum();
        // Of the idle task nothing is kept but the count.
        if report.run.target == Target::Machine
            && let idle @ 1.. = switches.preempted.saturating_sub(known)
        {
            switches.by_cause.push(SwitchCause {
                cause: causes::IDLE.to_owned(),
                count: idle,
                evidence: Evidence::Derived,
            });
        }
        switches.preemptions_by = preemptions_by(ledger);
        switches.by_task = (recording.trailer.task_switches.iter())
            .take(TASKS_KEPT)
            .map(|task| TaskSwitches {
                pid: task.pid,
                comm: task.comm.clone(),
                voluntary: task.counts.voluntary,
                preempted: task.counts.preempted,
            })
            .collect();
        switches.kernel_threads = kernel_threads(ledger);
        switches.handoff = Some(handoff(&ledger.handoffs, own_ns));
    }
    report.ledger = Some(super::account::account(report));
}

fn latency(ledger: &Ledger, leg: Option<String>) -> WakeupLatency {
    let mut all = Histogram::default();
    for histogram in ledger.latency.values() {
        all.merge(histogram);
    }
    WakeupLatency {
        times: Times::from(&all),
        relative_error: RELATIVE_ERROR,
        evidence: Evidence::Counted,
        leg,
        woken_running: ledger.woken_running,
        clock_backwards: ledger.clock_backwards,
        ended_waiting: ledger.ended_waiting,
        causes: ledger
            .latency
            .iter()
            .map(|(cause, histogram)| CauseTimes {
                cause: cause.clone(),
                times: Times::from(histogram),
                // That a reschedule was asked for lazily is concluded from the
                // model and from how the CPU was given up.
                evidence: if cause == "lazy" {
                    Evidence::Inferred
                } else {
                    Evidence::Counted
                },
            })
            .collect(),
        groups: ledger
            .groups
            .iter()
            .take(KEPT)
            .map(|group| GroupTimes {
                comm: group.comm.clone(),
                times: Times::from(&group.latency),
            })
            .collect(),
        worst: ledger.worst.clone(),
    }
}

fn by_cause(ledger: &Ledger) -> Vec<SwitchCause> {
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for pair in &ledger.preemptions {
        let sum = sums.entry(&pair.cause).or_default();
        *sum = sum.saturating_add(pair.count);
    }
    let mut causes: Vec<SwitchCause> = sums
        .into_iter()
        .map(|(cause, count)| SwitchCause {
            cause: cause.to_owned(),
            count,
            evidence: Evidence::Inferred,
        })
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
    causes
}

fn preemptions_by(ledger: &Ledger) -> Vec<PreemptionBy> {
    let mut sums: BTreeMap<(&str, &str, bool), (u64, u64)> = BTreeMap::new();
    for pair in &ledger.preemptions {
        if !causes::is_preemption(&pair.cause) {
            continue;
        }
        let sum = sums
            .entry((&pair.by, &pair.of, pair.by_kernel_thread))
            .or_default();
        sum.0 = sum.0.saturating_add(pair.count);
        sum.1 = sum.1.saturating_add(pair.wait_ns);
    }
    let mut pairs: Vec<PreemptionBy> = sums
        .into_iter()
        .map(
            |((by, of, by_kernel_thread), (count, wait_ns))| PreemptionBy {
                by: by.to_owned(),
                of: of.to_owned(),
                count,
                wait_ns,
                by_kernel_thread,
            },
        )
        .collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse((pair.count, pair.wait_ns)));
    pairs.truncate(KEPT);
    pairs
}

fn kernel_threads(ledger: &Ledger) -> Vec<KernelThread> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for pair in &ledger.preemptions {
        if pair.by_kernel_thread && causes::is_preemption(&pair.cause) {
            let sum = sums.entry(&pair.by).or_default();
            sum.0 = sum.0.saturating_add(pair.count);
            sum.1 = sum.1.saturating_add(pair.wait_ns);
        }
    }
    let mut threads: Vec<KernelThread> = sums
        .into_iter()
        .map(|(name, (count, wait_ns))| KernelThread {
            name: name.to_owned(),
            count,
            wait_ns,
        })
        .collect();
    threads.sort_by_key(|thread| std::cmp::Reverse((thread.wait_ns, thread.count)));
    threads.truncate(KEPT);
    threads
}

fn handoff(histogram: &Histogram, own_ns: u64) -> Handoff {
    let times = Times::from(histogram);
    Handoff {
        net_p50_ns: times.p50_ns.map(|ns| ns.saturating_sub(own_ns)),
        times,
        own_ns,
        evidence: Evidence::Derived,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Preemption;

    fn pair(of: &str, by: &str, thread: bool, cause: &str, count: u64, wait_ns: u64) -> Preemption {
        Preemption {
            of: of.to_owned(),
            by: by.to_owned(),
            by_kernel_thread: thread,
            cause: cause.to_owned(),
            count,
            waits: count,
            wait_ns,
        }
    }

    #[test]
    fn yields_preempt_nobody_and_sums_stay_whole() {
        let ledger = Ledger {
            preemptions: vec![
                pair("app", "app", false, causes::YIELD, 7, 70),
                pair("app", "kswapd0", true, causes::USER, 2, 900),
                pair("app", "kswapd0", true, causes::TIMER_INTERRUPT, 1, 100),
                pair("app", "ksoftirqd/0", true, causes::USER, 5, 10),
                pair("app", "other", false, causes::WAKING, 4, 40),
                pair("app", "other", false, causes::WOKEN_MEANWHILE, 3, 3),
            ],
            ..Ledger::default()
        };
        let causes = by_cause(&ledger);
        assert_eq!(causes.iter().map(|cause| cause.count).sum::<u64>(), 22);
        let pairs = preemptions_by(&ledger);
        assert_eq!(pairs.iter().map(|pair| pair.count).sum::<u64>(), 12);
        assert!(pairs.iter().all(|pair| pair.by != "app"));
        let threads = kernel_threads(&ledger);
        // Ranked by lost time, not by how often.
        assert_eq!(threads[0].name, "kswapd0");
        assert_eq!((threads[0].count, threads[0].wait_ns), (3, 1000));
        assert_eq!(threads[1].name, "ksoftirqd/0");
    }

    #[test]
    fn a_median_without_the_profiler_is_never_negative() {
        let mut histogram = Histogram::default();
        histogram.note(100);
        let found = handoff(&histogram, 5_000);
        assert_eq!(found.net_p50_ns, Some(0));
        assert_eq!(handoff(&Histogram::default(), 5).net_p50_ns, None);
    }
}
