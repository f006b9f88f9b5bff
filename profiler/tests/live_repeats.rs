//! `preemptprof run -n`: several runs in one recording.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;

use command::{can_measure, finish, folder, measure, preemptprof, run};
use profiler::recording::{self, SwitchCounts};

/// A workload that writes a line per run to `log`: how many BPF programs, links
/// and perf events its parent, the profiler, holds open meanwhile.
fn looks_at_the_profiler(log: &std::path::Path) -> String {
    format!(
        "ls -l /proc/$PPID/fd | grep -c -e bpf-prog -e bpf_link -e perf_event >> '{}'; true",
        log.display()
    )
}

#[test]
fn runs_are_paired_in_alternating_order_and_nothing_is_attached_to_the_others() {
    if !can_measure("runs_are_paired_in_alternating_order_and_nothing_is_attached_to_the_others") {
        return;
    }
    let folder = folder();
    let log = folder.path().join("log");
    let file = folder.path().join("a.pprec");
    let script = looks_at_the_profiler(&log);
    let mut command = preemptprof(["record", "-n", "3", "--warmup", "1", "-o"]);
    command.arg(&file).args(["--", "sh", "-c", &script]);
    finish(command).exits(0);
    let attached: Vec<bool> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| line != "0")
        .collect();
    // The warm-up, then the pairs.
    let profiled = [false, true, true, false, false, true];
    assert_eq!(attached[0], false);
    assert_eq!(attached[1..], profiled);
    let recording = recording::read(&file).unwrap();
    let runs = &recording.trailer.runs;
    assert_eq!(
        runs.iter().map(|run| run.profiled).collect::<Vec<_>>(),
        profiled
    );
    assert!(
        runs.windows(2)
            .all(|pair| pair[0].end_ns <= pair[1].start_ns),
        "{runs:?}"
    );
    assert!(
        runs.iter()
            .all(|run| run.end_ns > run.start_ns && run.wall_s > 0.0)
    );
    assert!(
        runs.iter()
            .all(|run| run.switches.is_some() == run.profiled)
    );

    // What the runs counted is what the recording says of them together.
    let sum =
        runs.iter()
            .filter_map(|run| run.switches)
            .fold(SwitchCounts::default(), |sum, counts| SwitchCounts {
                voluntary: sum.voluntary + counts.voluntary,
                preempted: sum.preempted + counts.preempted,
            });
    assert_eq!(recording.trailer.switches, Some(sum));
    assert!(sum.voluntary > 0);
    let wall: f64 = runs
        .iter()
        .filter(|run| run.profiled)
        .map(|run| run.wall_s)
        .sum();
    assert!((recording.trailer.run.wall_s - wall).abs() < 1e-9);
    // Records lie in the runs, and counters only grow.
    for sample in recording.samples.iter().filter(|sample| sample.is_target()) {
        let inside = |run: &&recording::RunRecord| {
            run.profiled && (run.start_ns..=run.end_ns + 100_000_000).contains(&sample.time_ns)
        };
        assert!(runs.iter().any(|run| inside(&run)), "{sample:?} {runs:?}");
    }
    let mut last = std::collections::BTreeMap::new();
    for epoch in &recording.epochs {
        if let Some(before) = last.insert(epoch.cpu, epoch.sampler_hits) {
            assert!(epoch.sampler_hits >= before, "{epoch:?}");
        }
    }
}

#[test]
fn commands_run_before_and_between_and_stdout_is_the_workload_s() {
    if !can_measure("commands_run_before_and_between_and_stdout_is_the_workload_s") {
        return;
    }
    let options = [
        "-n",
        "2",
        "--no-baseline",
        "--prepare",
        "echo p",
        "--between",
        "echo b",
    ];
    let (finished, report) = measure(&options, &["echo", "w"]);
    let finished = finished.exits(0);
    assert_eq!(finished.out(), "w\nw\n");
    assert_eq!(finished.err(), "p\nb\np\n");
    assert_eq!(report["run"]["exit_code"], 0);
    let failing = run(["run", "-n", "2", "--prepare", "exit 3", "--", "echo", "w"]);
    let failing = failing.refuses_with_hint(125, "--prepare failed");
    assert_eq!(failing.out(), "");
}

#[test]
fn a_failing_run_ends_the_series() {
    if !can_measure("a_failing_run_ends_the_series") {
        return;
    }
    let folder = folder();
    let count = folder.path().join("count");
    let script = format!(
        "echo x >> '{0}'; test $(wc -l < '{0}') != 2 || exit 7",
        count.display()
    );
    let workload = ["sh", "-c", script.as_str()];
    let (finished, report) = measure(&["-n", "4", "--no-baseline"], &workload);
    finished.exits(7);
    assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 2);
    assert_eq!(report["run"]["exit_code"], 7);
    let said = report["warnings"].to_string();
    assert!(said.contains("Run 2 of 4 ended with status 7"), "{said}");

    fs::remove_file(&count).unwrap();
    let (finished, report) = measure(&["-n", "4", "--no-baseline", "-i"], &workload);
    finished.exits(7);
    assert_eq!(fs::read_to_string(&count).unwrap().lines().count(), 4);
    let said = report["warnings"].to_string();
    assert!(
        said.contains("1 of 4 runs ended with a status other than 0"),
        "{said}"
    );

    // Before anything was profiled there is nothing to report.
    let nothing = run(["run", "-n", "2", "--", "sh", "-c", "exit 5"]);
    nothing.refuses_with_hint(5, "before any run was profiled");
}

#[test]
fn a_series_needs_a_command() {
    run(["run", "-n", "0", "--", "true"]).refuses(125, "0 is not in 1..");
    if !can_measure("a_series_needs_a_command") {
        return;
    }
    run(["run", "-a", "-n", "2"]).refuses_with_hint(125, "need a command");
}
