//! `preemptprof run -n`: several runs in one recording.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use command::{PROGRAM, can_measure, finish, folder, has, measure, preemptprof, run};
use profiler::recording::{self, SwitchCounts};

/// A workload that writes a line per run to `log`: how many BPF programs, links
/// and perf events its parent, the profiler, holds open meanwhile.
fn looks_at_the_profiler(log: &Path) -> String {
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
    assert!(!attached[0]);
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
    assert!(report["run"].get("profiler_effect").is_none());
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

/// A benchmark by name: a shell script called `hackbench`.
fn benchmark(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("hackbench");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn a_known_benchmark_s_result_is_taken_and_its_output_untouched() {
    if !can_measure("a_known_benchmark_s_result_is_taken_and_its_output_untouched") {
        return;
    }
    let folder = folder();
    let script = "printf 'a\\0\\377\\r\\nTime: 1.5\\nend'; printf 'to stderr' >&2";
    let path = benchmark(folder.path(), script);
    let path = path.to_str().unwrap();
    let (finished, report) = measure(&[], &[path]);
    let finished = finished.exits(0);
    assert_eq!(finished.stdout, b"a\0\xff\r\nTime: 1.5\nend");
    assert_eq!(finished.stderr, b"to stderr");
    let metric = &report["run"]["metric"];
    assert_eq!(
        (&metric["name"], &metric["value"]),
        (&"time".into(), &1.5.into())
    );
    assert!(metric.get("low").is_none(), "one run has no interval");

    let own = [
        "-n",
        "2",
        "--no-baseline",
        "--metric",
        "x:higher:B=(?s:to stde(.))",
    ];
    let (_, report) = measure(&own, &[path]);
    let said = report["warnings"].to_string();
    assert!(said.contains("no result that --metric x finds"), "{said}");
    assert_eq!(report["run"]["metric"]["name"], "wall time");
    let own = [
        "-n",
        "2",
        "--no-baseline",
        "--metric",
        "x:higher:B=end\\s*to stderr|: ([0-9]).5",
    ];
    let (_, report) = measure(&own, &[path]);
    assert_eq!(report["run"]["metric"]["value"], 1.0);
    assert_eq!(report["run"]["metric"]["better"], "higher");
    let refused = run(["run", "--metric", "tps=tps = [0-9]+", "--", "true"]);
    refused.refuses_with_hint(125, "no group");
}

#[test]
fn the_built_in_benchmark_s_result_is_compared_with_and_without_the_profiler() {
    if !can_measure("the_built_in_benchmark_s_result_is_compared_with_and_without_the_profiler") {
        return;
    }
    let (finished, report) = measure(&["-n", "3"], &[PROGRAM, "bench", "pipe", "-l", "2000"]);
    let out = finished.exits(0).out();
    assert_eq!(out.matches("usecs/op").count(), 6, "{out}");
    let run = &report["run"];
    let metric = &run["metric"];
    assert_eq!(
        (&metric["name"], &metric["runs"]),
        (&"time per operation".into(), &3.into())
    );
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert!(number(&metric["low"]) <= number(&metric["value"]));
    let effect = &run["profiler_effect"];
    assert_eq!(effect["pairs"], 3);
    assert!(number(&effect["low"]) <= number(&effect["change"]));
    assert!(number(&effect["unprofiled"]) > 0.0);
    assert_eq!(run["runs"].as_array().unwrap().len(), 6);
}

#[test]
fn a_terminal_stays_a_terminal_and_one_stream_keeps_its_order() {
    let name = "a_terminal_stays_a_terminal_and_one_stream_keeps_its_order";
    if !can_measure(name) || !has(name, "script") {
        return;
    }
    let folder = folder();
    let report = folder.path().join("report");
    let path = benchmark(
        folder.path(),
        "test -t 1 && test -t 2 && echo terminals; stty size <&1; printf 'a\\nb\\n'",
    );
    let line = format!(
        "stty rows 33 cols 77; {PROGRAM} run --force --report {} -- {}",
        report.display(),
        path.display()
    );
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]);
    let finished = finish(command).exits(0);
    // The real terminal turned each newline into two characters, once.
    assert_eq!(finished.out(), "terminals\r\n33 77\r\na\r\nb\r\n");

    let path = benchmark(
        folder.path(),
        "for i in 1 2 3 4 5 6; do echo $i; echo $i >&2; done",
    );
    let file = folder.path().join("both");
    let line = format!(
        "{PROGRAM} run --force --report {} -- {} > {} 2>&1",
        report.display(),
        path.display(),
        file.display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]);
    finish(command).exits(0);
    let both = fs::read_to_string(&file).unwrap();
    assert_eq!(both, "1\n1\n2\n2\n3\n3\n4\n4\n5\n5\n6\n6\n");
}

#[test]
fn what_outlives_the_benchmark_does_not_hold_it_up() {
    if !can_measure("what_outlives_the_benchmark_does_not_hold_it_up") {
        return;
    }
    let folder = folder();
    let path = benchmark(folder.path(), "sleep 100 & echo $!; echo Time: 2");
    let began = Instant::now();
    let report = folder.path().join("report");
    let mut command = preemptprof(["run", "--report"]);
    command.arg(&report).arg("--").arg(&path);
    let printed = finish(command).exits(0).out();
    assert!(began.elapsed().as_secs() < 90, "{:?}", began.elapsed());
    assert!(printed.ends_with("Time: 2\n"), "{printed}");
    let pid: i32 = printed.lines().next().unwrap().parse().unwrap();
    command::kill(pid, libc::SIGKILL);
}

#[test]
fn a_sweep_that_was_interrupted_goes_on_and_equals_one_that_was_not() {
    let name = "a_sweep_that_was_interrupted_goes_on_and_equals_one_that_was_not";
    if !can_measure(name) {
        return;
    }
    let folder = folder();
    let log = folder.path().join("log");
    let stop = folder.path().join("stop");
    // Its result is its parameter; at the second point it waits while it may.
    let script = format!(
        "echo $1 >> '{}'; test $1 != 4 || while test -e '{}'; do sleep 0.1; done; echo Time: $1",
        log.display(),
        stop.display()
    );
    let path = benchmark(folder.path(), &script);
    let sweep = |file: &Path, more: &[&str]| {
        let mut command = preemptprof(["record", "--sweep", "g=1,4,7", "-n", "2", "-o"]);
        command.arg(file).args(more).arg("--").arg(&path).arg("{g}");
        command
    };
    let whole = folder.path().join("whole.pprec");
    finish(sweep(&whole, &[])).exits(0);
    assert!(!folder.path().join("whole.pprec.points").exists());

    fs::write(&stop, "").unwrap();
    fs::write(&log, "").unwrap();
    let parts = folder.path().join("parts.pprec");
    let running = command::start(sweep(&parts, &[]));
    command::wait_until("the second point begins", || {
        fs::read_to_string(&log).unwrap().contains('4')
    });
    running.signal(libc::SIGTERM);
    let stopped = running.finish();
    assert_eq!(
        stopped.status.code(),
        Some(128 + libc::SIGTERM),
        "{}",
        stopped.err()
    );
    assert!(
        stopped.err().contains("recorded 1 of 3 points"),
        "{}",
        stopped.err()
    );
    assert!(!parts.exists());
    // Killed outright it goes on as well.
    let running = command::start(sweep(&parts, &["--resume"]));
    command::wait_until("the second point begins again", || {
        fs::read_to_string(&log).unwrap().matches('4').count() > 1
    });
    running.signal(libc::SIGKILL);
    running.finish();
    fs::remove_file(&stop).unwrap();

    finish(sweep(&parts, &[])).refuses_with_hint(125, "a sweep that was interrupted");
    let mut other = preemptprof(["record", "--sweep", "g=1,4", "--resume", "-o"]);
    other.arg(&parts).arg("--").arg(&path).arg("{g}");
    finish(other).refuses_with_hint(125, "of another sweep");
    finish(sweep(&parts, &["--resume"])).exits(0);
    assert!(!folder.path().join("parts.pprec.points").exists());
    let ran = fs::read_to_string(&log).unwrap();
    assert_eq!(
        ran.matches('1').count(),
        4,
        "the first point was not made again: {ran}"
    );

    // Value, point and kind of each run, in order.
    let runs = |file: &Path| -> Vec<(f64, String, bool)> {
        let recording = recording::read(file).unwrap();
        assert!(recording.complete);
        let runs = recording.trailer.runs.iter();
        runs.map(|run| {
            let value = run.metric.as_ref().unwrap().value;
            (value, run.point["g"].clone(), run.profiled)
        })
        .collect()
    };
    let expected: Vec<(f64, String, bool)> = [1.0, 4.0, 7.0]
        .iter()
        .flat_map(|&value| {
            [false, true, true, false].map(|profiled| (value, value.to_string(), profiled))
        })
        .collect();
    assert_eq!(runs(&whole), expected);
    assert_eq!(runs(&parts), expected);
    let whole = whole.to_str().unwrap();
    let diff = run(["diff", whole, "--vs", parts.to_str().unwrap()])
        .exits(0)
        .out();
    assert_eq!(diff.matches("Amean").count(), 3, "{diff}");
    assert!(
        diff.contains("Amean 4      4.0000 (0.00%)  4.0000 (  0.00%)"),
        "{diff}"
    );
}

#[test]
fn a_sweep_must_sweep_something() {
    run(["run", "--sweep", "g=", "--", "true"]).refuses(125, "NAME=V1,V2");
    run(["run", "--resume", "--", "true"]).refuses(125, "--sweep");
    if !can_measure("a_sweep_must_sweep_something") {
        return;
    }
    run(["run", "--sweep", "g=1,2", "--", "true"]).refuses_with_hint(125, "does not contain {g}");
    let (finished, report) = measure(&["--sweep", "g=1,2"], &["echo", "{g}"]);
    assert_eq!(finished.exits(0).out(), "1\n2\n");
    assert!(
        report["run"].get("metric").is_none(),
        "two points have no mean"
    );
    let runs = report["run"]["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &runs[1]["point"]["g"]), (2, &"2".into()));
}
