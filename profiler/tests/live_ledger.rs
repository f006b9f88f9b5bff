//! The ledger of real runs.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use command::{PROGRAM, can_measure, measure};
use serde_json::Value;

fn number(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no {name} in {value}"))
}

#[test]
fn the_ledger_is_kept_on_request_only() {
    if !can_measure("the_ledger_is_kept_on_request_only") {
        return;
    }
    let (_, report) = measure(&[], &[PROGRAM, "bench", "pipe", "-l", "100"]);
    for part in ["ledger", "wakeup_latency", "timers"] {
        assert!(report.get(part).is_none(), "{part}");
    }
    let (finished, report) = measure(
        &["--ledger"],
        &[PROGRAM, "bench", "pipe", "--same-cpu", "-l", "500"],
    );
    finished.exits(0);
    let latency = &report["wakeup_latency"];
    assert_eq!(latency["evidence"], "counted");
    let count = number(latency, "count");
    assert!(count >= 500, "{latency}");
    let mut before = 0;
    for name in ["p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"] {
        let value = number(latency, name);
        assert!(value >= before, "{name}: {latency}");
        before = value;
    }
    let causes = latency["causes"].as_array().unwrap();
    let sum: u64 = causes.iter().map(|cause| number(cause, "count")).sum();
    assert_eq!(sum, count);

    let switches = &report["switches"];
    let causes = switches["by_cause"].as_array();
    let causes = causes.into_iter().flatten();
    let sum: u64 = causes.map(|cause| number(cause, "count")).sum();
    assert_eq!(sum, number(switches, "preempted"), "{switches}");
    assert!(number(&switches["handoff"], "count") > 0, "{switches}");
    assert!(!report["ledger"]["cost"].as_array().unwrap().is_empty());
    assert!(!report["ledger"]["benefit"].as_array().unwrap().is_empty());
}

#[test]
fn waits_for_jiffies_are_counted() {
    if !can_measure("waits_for_jiffies_are_counted") {
        return;
    }
    let workload = [
        PROGRAM,
        "bench",
        "timers",
        "--via",
        "socket",
        "--wait-ms",
        "1",
        "-n",
        "30",
    ];
    let (_, report) = measure(&["--ledger"], &workload);
    let probes = report["probes"].as_array().unwrap();
    let timer = probes.iter().find(|probe| probe["wanted"] == "timer");
    if timer.unwrap()["leg"] == "none" {
        assert!(report.get("timers").is_none());
        eprintln!("skipped: waits_for_jiffies_are_counted: {}", timer.unwrap());
        return;
    }
    let timers = &report["timers"];
    // A wait that a busy machine lets end before it begins has no timer.
    let waits = number(timers, "rounded_waits");
    assert!((25..=30).contains(&waits), "{timers}");
    assert!(number(timers, "lost_high_ns") > 0, "{timers}");
    assert!(number(timers, "lost_low_ns") <= number(timers, "lost_ns"));
    let by = timers["by"].as_array().unwrap();
    assert!(
        by[0]["stack"].as_str().unwrap().contains("unix_stream"),
        "{timers}"
    );
}
