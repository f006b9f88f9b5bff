//! The ledger of real runs.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use command::{PROGRAM, can_measure, has, measure};
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

/// membarrier(2) waits for a grace period each time (`sys_membarrier`,
/// kernel/sched/membarrier.c), whichever leg sees it.
#[test]
fn each_wait_for_a_grace_period_is_seen() {
    let test = "each_wait_for_a_grace_period_is_seen";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    const CALLS: u64 = 20;
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if online.trim() == "0" {
        command::skip(test, "with one CPU membarrier has nothing to wait for");
        return;
    }
    // MEMBARRIER_CMD_GLOBAL.
    let script = format!(
        "syscall({}, 1, 0, 0) == 0 or exit 7 for 1..{CALLS}",
        libc::SYS_membarrier
    );
    let (finished, report) = measure(&["--ledger"], &["perl", "-e", &script]);
    if finished.status.code() == Some(7) {
        command::skip(test, "membarrier is refused");
        return;
    }
    finished.exits(0);
    let events = report["rcu"].as_array().unwrap();
    // With rcupdate.rcu_expedited a call goes on in its expedited kin.
    let of = |name: &str| events.iter().find(|event| event["event"] == name);
    let seen: Vec<&Value> = ["synchronize_rcu", "synchronize_rcu_expedited"]
        .into_iter()
        .filter_map(of)
        .filter(|event| number(event, "count") > 0)
        .collect();
    let [event, ..] = seen[..] else {
        panic!("no call was seen: {events:?}");
    };
    let off_cpu = event["leg"] == "off-cpu";
    // Preempted on its way to sleep, a task may find the grace period over.
    let least = if off_cpu { CALLS / 2 } else { CALLS };
    let count = number(event, "count");
    assert!((least..=CALLS).contains(&count), "{event}");
    assert!(number(event, "total_ns") >= number(event, "max_ns"));
    assert!(number(event, "max_ns") > 0 && number(event, "max_ns") < 60_000_000_000);
    let evidence = if off_cpu { "inferred" } else { "counted" };
    assert_eq!(event["evidence"], evidence, "{event}");
    let by = event["by"].as_array().unwrap();
    assert!(
        by.iter()
            .any(|by| by["comm"] == "perl" && by["operation"] == "membarrier"),
        "{event}"
    );
}

/// Tasks are told apart, and their switches are those of the whole.
#[test]
fn switches_by_task_add_up() {
    if !can_measure("switches_by_task_add_up") {
        return;
    }
    let workload = [PROGRAM, "bench", "pipe", "--same-cpu", "-l", "500"];
    let (finished, report) = measure(&["--ledger"], &workload);
    finished.exits(0);
    let switches = &report["switches"];
    let tasks = switches["by_task"].as_array().unwrap();
    let sum = |name: &str| tasks.iter().map(|task| number(task, name)).sum::<u64>();
    assert_eq!(
        sum("voluntary"),
        number(switches, "voluntary"),
        "{switches}"
    );
    assert_eq!(
        sum("preempted"),
        number(switches, "preempted"),
        "{switches}"
    );
    assert!(tasks.len() >= 2, "{switches}");
}

/// What a task may add to its counts while it ends, after its parent was told of
/// them or it could last read them.
const ENDING: u64 = 100;

/// Two CPUs that switch as fast as they can: the ledger's totals are the kernel's,
/// and what it could not keep apart is a loss that is told.
#[test]
fn two_cpus_that_only_switch_lose_nothing_unseen() {
    let test = "two_cpus_that_only_switch_lose_nothing_unseen";
    if !can_measure(test) || !has(test, "perl") || !has(test, "taskset") {
        return;
    }
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if online.trim() == "0" {
        command::skip(test, "there is one CPU");
        return;
    }
    const TRIPS: u64 = 50_000;
    // ru_nvcsw and ru_nivcsw are the last two of the 18 words of struct rusage.
    let bench = format!("{PROGRAM} bench pipe --same-cpu -l {TRIPS}");
    let script = format!(
        "sub usage {{ my $b = \"\\0\" x 144; syscall({}, $_[0], $b) == 0 or die; \
         print 'usage ', join(' ', (unpack 'q18', $b)[16, 17]), \"\\n\" }} $| = 1; \
         usage 0; system 'taskset -c 0 {bench} & taskset -c 1 {bench} & wait'; \
         usage -1; usage 0",
        libc::SYS_getrusage
    );
    let (finished, report) = measure(&["--ledger"], &["perl", "-e", &script]);
    let out = finished.exits(0).out();
    let usages: Vec<[u64; 2]> = out
        .lines()
        .filter_map(|line| line.strip_prefix("usage "))
        .map(|line| {
            let (voluntary, preempted) = line.split_once(' ').unwrap();
            [voluntary.parse().unwrap(), preempted.parse().unwrap()]
        })
        .collect();
    let [first, tree, last] = usages[..] else {
        panic!("{out}")
    };
    let switches = &report["switches"];
    for (kind, name) in ["voluntary", "preempted"].into_iter().enumerate() {
        let low = last[kind] - first[kind] + tree[kind];
        let counted = number(switches, name);
        // Perl, the shell, two benchmarks and their children.
        let high = last[kind] + tree[kind] + 6 * ENDING;
        assert!((low..=high).contains(&counted), "{name}: {low} {switches}");
    }
    assert!(number(switches, "total") >= 4 * TRIPS);

    let reasons = report["loss"]["by_reason"].as_object().unwrap();
    let lost = |reason: &str| reasons.get(reason).and_then(Value::as_u64).unwrap_or(0);
    let causes = switches["by_cause"].as_array().into_iter().flatten();
    let sum: u64 = causes.map(|cause| number(cause, "count")).sum();
    assert_eq!(
        sum + lost("preemption_map_full"),
        number(switches, "preempted"),
        "{switches} {reasons:?}"
    );
    // Each block ends by a wake-up, but for a task's last; some wake-ups find the
    // task still running.
    let latency = &report["wakeup_latency"];
    let woken = number(latency, "count")
        + number(latency, "woken_running")
        + number(latency, "clock_backwards")
        + lost("wait_slot_taken");
    let voluntary = number(switches, "voluntary");
    assert!(
        woken + 10 >= voluntary && number(latency, "count") <= voluntary + 10,
        "{woken} wake-ups, {voluntary} blocks: {reasons:?}"
    );
    let seconds = report["run"]["wall_s"].as_f64().unwrap();
    eprintln!(
        "{:.0} switches/s",
        number(switches, "total") as f64 / seconds
    );
}
