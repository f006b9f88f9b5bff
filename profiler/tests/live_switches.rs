//! Context switches are counted, every one of them, and for the right tasks.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;

use command::{PROGRAM, can_measure, field, finish, folder, has, measure, preemptprof, start};
use profiler::recording::{SwitchCounts, read};
use serde_json::Value;

/// What a task may add to its counts while it ends, after it could last read
/// them: unmapping, closing and the last switch, each a place to be preempted.
const ENDING: u64 = 100;

fn counts(report: &Value) -> SwitchCounts {
    let switches = &report["switches"];
    let number = |name: &str| switches[name].as_u64().unwrap();
    let counts = SwitchCounts {
        voluntary: number("voluntary"),
        preempted: number("preempted"),
    };
    assert_eq!(number("total"), counts.voluntary + counts.preempted);
    assert_eq!(switches["evidence"], "counted");
    counts
}

#[track_caller]
fn assert_between(what: &str, low: u64, value: u64, high: u64) {
    assert!(
        (low..=high).contains(&value),
        "{what}: {value} is not from {low} to {high}"
    );
}

/// The kernel's own counts of one task, read by the task itself when it begins
/// and when it ends.
#[test]
fn counts_agree_with_the_kernel_s_for_a_task() {
    let test = "counts_agree_with_the_kernel_s_for_a_task";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let script = "sub status { open my $f, '<', '/proc/self/status' or die; print <$f>; print \"--\\n\" } \
                  status; select undef, undef, undef, 0.0005 for 1..400; status";
    let (finished, report) = measure(&[], &["perl", "-e", script]);
    let out = finished.exits(0).out();
    let (first, second) = out.split_once("--\n").unwrap();
    let counts = counts(&report);
    for (name, counted) in [
        ("voluntary_ctxt_switches:", counts.voluntary),
        ("nonvoluntary_ctxt_switches:", counts.preempted),
    ] {
        let (before, after) = (field(first, name), field(second, name));
        assert_between(name, after - before, counted, after + ENDING);
    }
    assert!(counts.voluntary >= 400);
}

/// A tree of processes, against what wait4 says of it.
#[test]
fn counts_agree_with_the_kernel_s_for_a_tree() {
    let test = "counts_agree_with_the_kernel_s_for_a_tree";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    // ru_nvcsw and ru_nivcsw are the last two of the 18 words of struct rusage.
    let script = format!(
        "sub usage {{ my $b = \"\\0\" x 144; syscall({}, $_[0], $b) == 0 or die; \
         print join(' ', (unpack 'q18', $b)[16, 17]), \"\\n\" }} \
         usage 0; system '{PROGRAM} bench pipe -l 500 & {PROGRAM} bench pipe -T -l 500 & wait'; \
         usage -1; usage 0",
        libc::SYS_getrusage
    );
    let (finished, report) = measure(&[], &["perl", "-e", &script]);
    let out = finished.exits(0).out();
    let usages: Vec<Vec<u64>> = out
        .lines()
        .filter_map(|line| line.split(' ').map(|word| word.parse().ok()).collect())
        .collect();
    let [first, tree, last] = &usages[..] else {
        panic!("{out}")
    };
    let counts = counts(&report);
    for (kind, counted) in [(0, counts.voluntary), (1, counts.preempted)] {
        let low = last[kind] - first[kind] + tree[kind];
        // The shell, two benchmarks, one child of one, two threads of the other.
        assert_between(
            "switches",
            low,
            counted,
            last[kind] + tree[kind] + 7 * ENDING,
        );
    }
}

/// Both ends on one CPU: a word cannot be passed without a switch.
#[test]
fn every_pass_of_a_pipe_on_one_cpu_is_a_switch() {
    if !can_measure("every_pass_of_a_pipe_on_one_cpu_is_a_switch") {
        return;
    }
    const TRIPS: u64 = 2000;
    let trips = TRIPS.to_string();
    for threads in [&["--same-cpu"][..], &["--same-cpu", "-T"]] {
        let mut workload = vec![PROGRAM, "bench", "pipe", "-l", &trips];
        workload.extend(threads);
        let (finished, report) = measure(&[], &workload);
        finished.exits(0);
        assert!(counts(&report).voluntary + counts(&report).preempted >= 2 * TRIPS - 1);
    }
}

/// Children and grandchildren are the workload, in whatever order they come;
/// a stranger is not.
#[test]
fn children_belong_to_the_workload_and_strangers_do_not() {
    let test = "children_belong_to_the_workload_and_strangers_do_not";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let naps = |seconds: &str| format!("select undef, undef, undef, {seconds} while 1");
    let mut stranger = std::process::Command::new("perl");
    stranger.args(["-e", &format!("$0 = 'stranger'; {}", naps("0.0005"))]);
    let stranger = start(stranger);
    let folder = folder();
    let recording = folder.path().join("a.pprec");
    let mut command = preemptprof(["record", "-o"]);
    let nap = "perl -e 'select undef, undef, undef, 0.002 for 1..200'";
    command.arg(&recording).args([
        "--",
        "sh",
        "-c",
        &format!(
            "{nap} & (sh -c \"{}\" &) ; {nap} & wait; sleep 0.3",
            nap.replace('\'', "\\\"")
        ),
    ]);
    let finished = finish(command);
    drop(stranger);
    finished.exits(0);
    let recording = read(&recording).unwrap();
    let target = recording.trailer.switches.unwrap();
    let other = recording.trailer.other_switches.unwrap();
    // Two nappers that are waited for, and one that is not: at least the two.
    assert!(target.voluntary >= 400, "{target:?}");
    let strangers = recording
        .trailer
        .task_switches
        .iter()
        .filter(|task| task.comm.contains("stranger"))
        .count();
    assert_eq!(strangers, 0);
    // It naps some hundred times meanwhile, even where a nap takes 10 ms.
    assert!(other.voluntary >= 20, "{other:?}");
    // Each task of the workload is told apart, and nothing is counted twice.
    let by_task: u64 = recording
        .trailer
        .task_switches
        .iter()
        .map(|task| task.counts.voluntary + task.counts.preempted)
        .sum();
    assert!(by_task <= target.voluntary + target.preempted + ENDING);
    let nappers = recording
        .trailer
        .task_switches
        .iter()
        .filter(|task| task.comm == "perl" && task.counts.voluntary >= 200)
        .count();
    assert!(nappers >= 2, "{:?}", recording.trailer.task_switches);
}

/// Records that find no room are lost, and said to be; the totals are not made
/// of them. The reader is stopped meanwhile, so that no machine is fast enough
/// to keep up.
#[test]
fn a_full_ring_loses_records_and_no_counts() {
    if !can_measure("a_full_ring_loses_records_and_no_counts") {
        return;
    }
    const TRIPS: u64 = 20_000;
    let trips = TRIPS.to_string();
    let rate = command::high_rate();
    let script = format!(
        "kill -STOP $PPID; {PROGRAM} bench pipe --same-cpu -l {trips}; status=$?; \
         kill -CONT $PPID; exit $status"
    );
    let arguments = ["--ring-size", "4K", "-F", &rate];
    let (finished, report) = measure(&arguments, &["sh", "-c", &script]);
    finished.exits(0);
    let lost = &report["loss"]["by_reason"]["ring_full"];
    assert!(lost.as_u64().unwrap_or(0) > 0, "{}", report["loss"]);
    assert!(report["loss"]["total"].as_u64() >= lost.as_u64());
    let counts = counts(&report);
    assert!(counts.voluntary + counts.preempted >= 2 * TRIPS - 1);
}

/// Sizes that are no power of two are rounded, not refused by the kernel.
#[test]
fn odd_ring_sizes_work() {
    if !can_measure("odd_ring_sizes_work") {
        return;
    }
    for size in ["4097", "5000", "300K", "3M"] {
        let (finished, report) = measure(&["--ring-size", size], &["true"]);
        finished.exits(0);
        assert!(counts(&report).voluntary > 0);
    }
}

/// Switches on CPUs that were not chosen are not counted.
#[test]
fn only_chosen_cpus_are_counted() {
    let test = "only_chosen_cpus_are_counted";
    if !can_measure(test) || !has(test, "taskset") {
        return;
    }
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if online.trim() == "0" {
        command::skip(test, "there is one CPU");
        return;
    }
    let bench = [PROGRAM, "bench", "pipe", "--same-cpu", "-l", "2000"];
    let on = |cpu: &str| {
        let mut workload = vec!["taskset", "-c", cpu];
        workload.extend(bench);
        let (finished, report) = measure(&["-C", "0"], &workload);
        finished.exits(0);
        assert_eq!(report["coverage"]["cpus"], "0");
        counts(&report)
    };
    let counted = on("0");
    assert!(counted.voluntary + counted.preempted >= 3999);
    // It begins where the kernel likes, so a few may be seen.
    let counted = on("1");
    assert!(counted.voluntary + counted.preempted < 1000, "{counted:?}");
}

/// A process that ends is told with its last name and all its switches even
/// when hundreds come and go.
#[test]
fn many_short_processes_are_all_counted() {
    if !can_measure("many_short_processes_are_all_counted") {
        return;
    }
    let workload = [
        "sh",
        "-c",
        "i=0; while [ $i -lt 300 ]; do /bin/true; i=$((i+1)); done",
    ];
    let (finished, report) = measure(&[], &workload);
    finished.exits(0);
    // Each ends with a switch, and the shell waits for it with another where
    // there is one CPU; with more it may find it ended.
    let counts = counts(&report);
    assert!(counts.voluntary + counts.preempted >= 300, "{counts:?}");
}
