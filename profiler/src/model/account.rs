//! The two columns of the ledger, from the numbers of a report.

use super::ledger::{LedgerReport, LedgerRow};
use super::report::{Rcu, Report};
use crate::kernel::Model;
use crate::recording::Evidence;
use crate::report::{count, nanoseconds, percent};

/// Options that preemption itself is made of; those of debugging are not.
const MACHINERY: [&str; 6] = [
    "CONFIG_PREEMPT_RCU",
    "CONFIG_PREEMPT_COUNT",
    "CONFIG_PREEMPTION",
    "CONFIG_PREEMPT_DYNAMIC",
    "CONFIG_PREEMPT_LAZY",
    "CONFIG_PREEMPT_RT",
];
/// Kernel threads that get a line.
const THREADS: usize = 3;

fn row(name: &str, value: f64, unit: &str, evidence: Evidence, sentence: String) -> LedgerRow {
    LedgerRow {
        name: name.to_owned(),
        value,
        unit: unit.to_owned(),
        low: None,
        high: None,
        evidence,
        sentence,
    }
}

/// `once`, `7 times`.
fn times(number: u64) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{} times", count(number)),
    }
}

/// Draws up the account.
pub(super) fn account(report: &Report) -> LedgerReport {
    let mut cost = Vec::new();
    let mut benefit = Vec::new();
    switches(report, &mut cost);
    machinery(report, &mut cost);
    rcu(report, &mut cost);
    timers(report, &mut cost, &mut benefit);
    latencies(report, &mut benefit);
    LedgerReport { cost, benefit }
}

fn switches(report: &Report, cost: &mut Vec<LedgerRow>) {
    let Some(switches) = &report.switches else {
        return;
    };
    let taken: u64 = switches.preemptions_by.iter().map(|by| by.count).sum();
    let waited: u64 = switches.preemptions_by.iter().map(|by| by.wait_ns).sum();
    cost.push(row(
        "preemptions",
        taken as f64,
        "count",
        Evidence::Inferred,
        format!(
            "Tasks that could have gone on lost their CPU to others {}, in {} switches.",
            times(taken),
            count(switches.total)
        ),
    ));
    cost.push(row(
        "waiting after preemption",
        waited as f64,
        "ns",
        Evidence::Counted,
        format!(
            "They waited {} in all until they could go on.",
            nanoseconds(waited)
        ),
    ));
    for thread in switches.kernel_threads.iter().take(THREADS) {
        cost.push(row(
            &format!("kernel thread {}", thread.name),
            thread.wait_ns as f64,
            "ns",
            Evidence::Counted,
            format!(
                "{} took the CPU {}, and the tasks waited {} until they could go on.",
                thread.name,
                times(thread.count),
                nanoseconds(thread.wait_ns)
            ),
        ));
    }
    if let Some(handoff) = &switches.handoff
        && let Some(net) = handoff.net_p50_ns
    {
        cost.push(row(
            "one hand-off on one CPU",
            net as f64,
            "ns",
            handoff.evidence,
            format!(
                "From one task's leaving a CPU to its return, with one other in between: half \
                 of {} took no more than {}, the profiler's {} taken off.",
                count(handoff.times.count),
                nanoseconds(net),
                nanoseconds(handoff.own_ns)
            ),
        ));
    }
}

fn machinery(report: &Report, cost: &mut Vec<LedgerRow>) {
    for option in &report.options {
        let name = option.option.name.as_str();
        let Some(share) = option.cpu_share.filter(|_| MACHINERY.contains(&name)) else {
            continue;
        };
        cost.push(LedgerRow {
            low: Some(share.low),
            high: Some(share.high),
            ..row(
                name,
                share.value,
                "fraction",
                share.evidence,
                format!(
                    "{name} takes {} % of the workload's CPU time.",
                    percent(share.value)
                ),
            )
        });
    }
}

fn rcu(report: &Report, cost: &mut Vec<LedgerRow>) {
    // Of those that were watched and not called, rcu_barrier stands for all.
    let called = |event: &&Rcu| event.count > 0 || event.event == "rcu_barrier";
    for event in report.rcu.iter().flatten().filter(called) {
        cost.push(row(
            &event.event,
            event.total_ns as f64,
            "ns",
            event.evidence,
            if event.count == 0 {
                format!("{} was not called.", event.event)
            } else {
                format!(
                    "{} blocked the workload for {} in {} calls, {} at the longest.",
                    event.event,
                    nanoseconds(event.total_ns),
                    count(event.count),
                    nanoseconds(event.max_ns)
                )
            },
        ));
    }
}

fn timers(report: &Report, cost: &mut Vec<LedgerRow>, benefit: &mut Vec<LedgerRow>) {
    let Some(timers) = &report.timers else {
        return;
    };
    cost.push(LedgerRow {
        low: Some(timers.lost_low_ns as f64),
        high: Some(timers.lost_high_ns as f64),
        ..row(
            "rounding to jiffies",
            timers.lost_ns as f64,
            "ns",
            timers.evidence,
            format!(
                "{} waits took {}; rounding them to jiffies of {} made up {} of it ({} to {}).",
                count(timers.rounded_waits),
                nanoseconds(timers.waited_ns),
                nanoseconds(timers.jiffy_ns),
                nanoseconds(timers.lost_ns),
                nanoseconds(timers.lost_low_ns),
                nanoseconds(timers.lost_high_ns)
            ),
        )
    });
    if let Some(ticks) = &timers.ticks {
        cost.push(row(
            "ticks on busy CPUs",
            ticks.busy_ns as f64,
            "ns",
            ticks.evidence,
            format!(
                "{} ticks interrupted tasks and took {} in their handler; {} more came on idle CPUs.",
                count(ticks.busy),
                nanoseconds(ticks.busy_ns),
                count(ticks.idle)
            ),
        ));
    }
    for at in &timers.at_hz {
        let more = at.saved_ns < 0;
        let mut sentence = format!(
            "HZ={} would make the same waits {} {} ({} to {} ms)",
            at.hz,
            nanoseconds(at.saved_ns.unsigned_abs()),
            if more { "longer" } else { "shorter" },
            at.saved_low_ns / 1_000_000,
            at.saved_high_ns / 1_000_000
        );
        if let Some(tick_ns) = at.tick_ns {
            sentence += &format!(", with {} in ticks", nanoseconds(tick_ns));
        }
        benefit.push(LedgerRow {
            low: Some(at.saved_low_ns as f64),
            high: Some(at.saved_high_ns as f64),
            ..row(
                &format!("waits at HZ={}", at.hz),
                at.saved_ns as f64,
                "ns",
                timers.evidence,
                sentence + ".",
            )
        });
    }
}

fn latencies(report: &Report, benefit: &mut Vec<LedgerRow>) {
    let Some(latency) = &report.wakeup_latency else {
        return;
    };
    let model = match report.kernel.preempt_model.active {
        Model::Unknown => "this kernel".to_owned(),
        model => format!("preemption model {model}"),
    };
    for (name, what, value) in [
        ("wake-up latency, median", "half", latency.times.p50_ns),
        ("wake-up latency, 99 %", "99 %", latency.times.p99_ns),
        ("wake-up latency, 99.9 %", "99.9 %", latency.times.p999_ns),
    ] {
        if let Some(ns) = value {
            benefit.push(row(
                name,
                ns as f64,
                "ns",
                latency.evidence,
                format!(
                    "With {model}, {what} of {} woken tasks ran within {}.",
                    count(latency.times.count),
                    nanoseconds(ns)
                ),
            ));
        }
    }
    if let Some(ns) = latency.times.max_ns {
        let culprit = match latency.worst.first() {
            Some(worst) if worst.culprit_pid != 0 && worst.wait_ns == ns => {
                format!(", while {} had the CPU", worst.culprit)
            }
            _ => String::new(),
        };
        benefit.push(row(
            "wake-up latency, longest",
            ns as f64,
            "ns",
            latency.evidence,
            format!(
                "The longest wait of a woken task was {}{culprit}.",
                nanoseconds(ns)
            ),
        ));
    }
    for cause in &latency.causes {
        let what = match cause.cause.as_str() {
            "idle" => "an idle CPU to wake up",
            "lazy" => "a task to be rescheduled lazily",
            _ => "another task to give up the CPU",
        };
        benefit.push(row(
            &format!("waiting, {}", cause.cause),
            cause.times.total_ns as f64,
            "ns",
            cause.evidence,
            format!(
                "{} woken tasks waited {} in all for {what}.",
                count(cause.times.count),
                nanoseconds(cause.times.total_ns)
            ),
        ));
    }
}
