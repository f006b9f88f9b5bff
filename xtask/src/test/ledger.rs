//! What the ledger must say on every kernel of the matrix, compared with what the
//! kernel itself counts.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::checks::Check;
use super::product::parts;
use super::runs::{self, ROUND_TRIPS, WAITS, traced};

/// Switches that are counted in one place and not yet, or no more, in another.
const SLACK: u64 = 40;

/// The checks. They judge what [`runs::watched`] and [`runs::machine`] printed.
pub(super) const LEDGER: &[Check] = &[
    Check {
        name: "ledger",
        skip: |_| None,
        script: runs::as_before,
        verify: |_, section| verify_ledger(&parts(section)?.0),
    },
    Check {
        name: "switches-by-task",
        skip: |_| None,
        script: runs::as_before,
        verify: |_, section| {
            let (report, kernel) = parts(section)?;
            verify_tasks(&report, kernel)
        },
    },
    Check {
        name: "ledger-timers",
        skip: |_| None,
        script: runs::as_before,
        verify: |_, section| verify_timers(&parts(section)?.0),
    },
    Check {
        name: "synchronize_rcu",
        skip: |_| None,
        script: runs::as_before,
        verify: |_, section| {
            let (report, trace) = parts(section)?;
            verify_calls(&report, &traced(trace, "synchronize_rcu_expedited"))
        },
    },
];

/// The number behind a name in a JSON object.
fn number(value: &Value, name: &str) -> Result<u64> {
    value[name]
        .as_u64()
        .with_context(|| format!("no {name}: {value}"))
}

/// Losses that are not the kernel's throttling of the sampler.
pub(super) fn lost(report: &Value) -> u64 {
    let reasons = report["loss"]["by_reason"].as_object();
    reasons
        .into_iter()
        .flatten()
        .filter(|(reason, _)| reason.as_str() != "sampler_throttled")
        .filter_map(|(_, count)| count.as_u64())
        .sum()
}

fn verify_ledger(report: &Value) -> Result<()> {
    for (wanted, leg) in [
        ("wake", "tp_btf"),
        ("wake_new", "tp_btf"),
        ("timer", "tp_btf"),
        ("tick", "tp_btf"),
        ("synchronize_rcu", "fentry"),
        ("synchronize_rcu_expedited", "fentry"),
        ("synchronize_srcu", "fentry"),
        ("synchronize_srcu_expedited", "fentry"),
    ] {
        let rows = report["probes"].as_array().context("no probes")?;
        let row = rows.iter().find(|row| row["wanted"] == wanted);
        let row = row.with_context(|| format!("no row {wanted}"))?;
        ensure!(row["leg"] == leg, "{row}");
    }
    ensure!(lost(report) == 0, "lost: {}", report["loss"]);

    let switches = &report["switches"];
    let causes = switches["by_cause"].as_array().into_iter().flatten();
    let sum: u64 = causes.filter_map(|cause| cause["count"].as_u64()).sum();
    ensure!(
        sum == number(switches, "preempted")?,
        "causes add up to {sum}: {switches}"
    );
    // The four benchmarks and what they started, at least.
    let exits = number(switches, "exits")?;
    ensure!((6..10_000).contains(&exits), "{exits} exits: {switches}");

    let latency = &report["wakeup_latency"];
    let count = number(latency, "count")?;
    ensure!(count > 0, "no latency: {latency}");
    // Each voluntary switch ends with a wake-up, but for the last ones, and each
    // task begins with one.
    let voluntary = number(switches, "voluntary")?;
    ensure!(
        count + number(latency, "woken_running")? + SLACK >= voluntary / 2
            && count <= voluntary + exits + SLACK,
        "{voluntary} voluntary switches: {latency}"
    );
    let mut before = 0;
    for name in ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"] {
        let value = number(latency, name)?;
        ensure!(value >= before, "{name} is {value}, after {before}");
        before = value;
    }
    ensure!(before < 60_000_000_000, "absurd: {latency}");
    let by_cause = latency["causes"].as_array().into_iter().flatten();
    let sum: u64 = by_cause.filter_map(|cause| cause["count"].as_u64()).sum();
    ensure!(sum == count, "causes add up to {sum}: {latency}");
    for column in ["cost", "benefit"] {
        let rows = report["ledger"][column].as_array().context("no ledger")?;
        ensure!(!rows.is_empty(), "{column} is empty");
    }
    Ok(())
}

/// Each task's switches are those of its `/proc/PID/status`, to the last count, and
/// together the tasks have made all there were.
fn verify_tasks(report: &Value, kernel: &str) -> Result<()> {
    ensure!(lost(report) == 0, "lost: {}", report["loss"]);
    let tasks = report["switches"]["by_task"].as_array();
    let tasks = tasks.context("no switches by task")?;
    let mut compared = 0;
    let mut sum = 0;
    for status in kernel.split("Name:").skip(1) {
        let field = |name: &str| -> Result<u64> {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            let value = value.with_context(|| format!("no {name} {status}"))?;
            value.trim().parse().with_context(|| value.to_owned())
        };
        let (pid, voluntary, preempted) = (
            field("Pid:")?,
            field("voluntary_ctxt_switches:")?,
            field("nonvoluntary_ctxt_switches:")?,
        );
        let task = tasks.iter().find(|task| task["pid"] == pid);
        // What has ended before is nobody's of this run.
        let Some(task) = task else {
            continue;
        };
        ensure!(
            number(task, "voluntary")? == voluntary && number(task, "preempted")? == preempted,
            "the kernel counted {voluntary} voluntary and {preempted} other switches: {task}"
        );
        compared += 1;
        sum += voluntary + preempted;
    }
    // The benchmarks and the last of the pipeline, which the shell forked itself.
    ensure!(compared >= 4, "{compared} tasks were compared: {kernel}");
    ensure!(sum > ROUND_TRIPS, "the workload made {sum} switches");
    let mut all = 0;
    for task in tasks {
        all += number(task, "voluntary")? + number(task, "preempted")?;
    }
    let total = number(&report["switches"], "total")?;
    ensure!(
        all <= total && total <= all + SLACK,
        "the tasks made {all} switches, all together {total}"
    );
    Ok(())
}

fn verify_timers(report: &Value) -> Result<()> {
    let timers = &report["timers"];
    let waits = number(timers, "rounded_waits")?;
    ensure!(waits == WAITS, "{WAITS} waits were made: {timers}");
    let (low, lost, high) = (
        number(timers, "lost_low_ns")?,
        number(timers, "lost_ns")?,
        number(timers, "lost_high_ns")?,
    );
    ensure!(low <= lost && lost <= high && high > 0, "{timers}");
    ensure!(number(&timers["ticks"], "busy")? > 0, "no tick: {timers}");
    Ok(())
}

fn verify_calls(report: &Value, traced: &RangeInclusive<u64>) -> Result<()> {
    ensure!(*traced.start() > 0, "the guest made no call");
    let events = report["rcu"].as_array().context("no rcu")?;
    let event = events
        .iter()
        .find(|event| event["event"] == "synchronize_rcu_expedited")
        .context("no synchronize_rcu_expedited")?;
    ensure!(
        event["count"]
            .as_u64()
            .is_some_and(|count| traced.contains(&count)),
        "{traced:?} calls were made: {event}"
    );
    let by = event["by"].as_array().context("no callers")?;
    ensure!(
        by.iter()
            .any(|by| by["operation"] == "network namespace exit"),
        "no operation: {event}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Value {
        let probes: Vec<Value> = ["wake", "wake_new", "timer", "tick"]
            .map(|wanted| json!({"wanted": wanted, "leg": "tp_btf"}))
            .into_iter()
            .chain(
                [
                    "synchronize_rcu",
                    "synchronize_rcu_expedited",
                    "synchronize_srcu",
                    "synchronize_srcu_expedited",
                ]
                .map(|wanted| json!({"wanted": wanted, "leg": "fentry"})),
            )
            .collect();
        json!({
            "probes": probes,
            "loss": {"total": 3, "by_reason": {"sampler_throttled": 3}},
            "switches": {
                "total": 705, "voluntary": 603, "preempted": 102, "exits": 8,
                "by_cause": [{"cause": "yield", "count": 100}, {"cause": "unknown", "count": 2}],
            },
            "wakeup_latency": {
                "count": 590, "woken_running": 9, "p50_ns": 10, "p90_ns": 10, "p99_ns": 20,
                "p999_ns": 30, "max_ns": 31,
                "causes": [{"cause": "busy", "count": 589}, {"cause": "idle", "count": 1}],
            },
            "ledger": {"cost": [{}], "benefit": [{}]},
        })
    }

    #[test]
    fn the_ledger_can_fail() {
        verify_ledger(&report()).unwrap();
        for (pointer, value) in [
            ("/probes/0/leg", json!("none")),
            ("/probes/5/leg", json!("kprobe")),
            ("/loss/by_reason/sampler_throttled", json!(null)),
            ("/switches/voluntary", json!(500)),
            ("/switches/voluntary", json!(1400)),
            ("/switches/preempted", json!(103)),
            ("/switches/exits", json!(0)),
            ("/wakeup_latency/count", json!(0)),
            ("/wakeup_latency/p90_ns", json!(21)),
            ("/wakeup_latency/max_ns", json!(u64::MAX)),
            ("/wakeup_latency/causes/0/count", json!(588)),
            ("/ledger/benefit", json!([])),
        ] {
            let mut report = report();
            *report.pointer_mut(pointer).unwrap() = value;
            if pointer.starts_with("/loss") {
                report["loss"]["by_reason"]["wait_slot_taken"] = json!(1);
            }
            assert!(verify_ledger(&report).is_err(), "{pointer}");
        }
    }

    #[test]
    fn switches_by_task_can_fail() {
        let status = |pid: u64, voluntary: u64| {
            format!(
                "Name:\ttask\nState:\tZ (zombie)\nPid:\t{pid}\nPPid:\t1\n\
                 voluntary_ctxt_switches:\t{voluntary}\nnonvoluntary_ctxt_switches:\t5\n"
            )
        };
        let task = |pid: u64| json!({"pid": pid, "voluntary": 200, "preempted": 5});
        let report = |tasks: &[Value], lost: u64| {
            json!({
                "loss": {"by_reason": {"task_map_full": lost}},
                "switches": {"by_task": tasks, "total": 205 * tasks.len()},
            })
        };
        let right = report(&[task(6), task(7), task(8), task(9)], 0);
        let mut more = right.clone();
        more["switches"]["total"] = json!(205 * 4 + SLACK + 1);
        let kernel: String = [(6, 200), (7, 200), (8, 200), (9, 200), (3, 1)]
            .map(|(pid, voluntary)| status(pid, voluntary))
            .concat();
        verify_tasks(&right, &kernel).unwrap();
        for (report, kernel) in [
            (
                &report(&[task(6), task(7), task(8), task(9)], 1),
                kernel.as_str(),
            ),
            (&report(&[task(6), task(7), task(8)], 0), kernel.as_str()),
            (&more, kernel.as_str()),
            (&right, &kernel.replace("200", "199")),
            (&right, &kernel.replace(":\t5", ":\t4")),
            (&right, &kernel.replace("Pid:\t8", "Pid:\t80")),
            (&right, ""),
        ] {
            assert!(verify_tasks(report, kernel).is_err(), "{report} {kernel}");
        }
    }

    #[test]
    fn timers_and_calls_can_fail() {
        let timers = |waits: u64, lost: u64| {
            json!({"timers": {
                "rounded_waits": waits, "lost_low_ns": 1, "lost_ns": lost, "lost_high_ns": 3,
                "ticks": {"busy": 4},
            }})
        };
        verify_timers(&timers(WAITS, 2)).unwrap();
        assert!(verify_timers(&timers(WAITS - 1, 2)).is_err());
        assert!(verify_timers(&timers(WAITS, 4)).is_err());

        let calls = |count: u64, operation: &str| {
            json!({"rcu": [{
                "event": "synchronize_rcu_expedited", "count": count,
                "by": [{"operation": operation}],
            }]})
        };
        let exit = "network namespace exit";
        verify_calls(&calls(3, exit), &(3..=3)).unwrap();
        assert!(verify_calls(&calls(2, exit), &(3..=3)).is_err());
        assert!(verify_calls(&calls(0, exit), &(0..=0)).is_err());
        assert!(verify_calls(&calls(3, "unmount"), &(3..=3)).is_err());
        assert_eq!(LEDGER.len(), 4, "a check without its test");
    }
}
