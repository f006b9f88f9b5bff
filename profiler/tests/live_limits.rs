//! Limits of the process and of the machine.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use command::{can_measure, finish, folder, measure, preemptprof};

/// Sets a limit of the command about to run, as `ulimit` does.
fn limit(command: &mut Command, resource: libc::__rlimit_resource_t, most: u64) {
    let set = move || {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: a valid structure.
        match unsafe { libc::setrlimit(resource, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: setrlimit is async-signal-safe.
    unsafe { command.pre_exec(set) };
}

/// However many descriptors are missing, and wherever they run out.
#[test]
fn too_few_descriptors_are_named() {
    if !can_measure("too_few_descriptors_are_named") {
        return;
    }
    let folder = folder();
    let mut enough = 0;
    for most in [4, 8, 12, 16, 20, 24, 64] {
        let began = folder.path().join(most.to_string());
        let mut command = preemptprof(["run", "--", "touch"]);
        command.arg(&began);
        limit(&mut command, libc::RLIMIT_NOFILE, most);
        let finished = finish(command);
        if finished.status.success() {
            assert!(began.exists());
            enough += 1;
            continue;
        }
        let refused = finished.refuses_with_hint(125, "Too many open files");
        assert!(
            refused.err().contains("ulimit -n"),
            "{most}: {}",
            refused.err()
        );
        assert!(!began.exists(), "{most}");
    }
    assert!((1..7).contains(&enough), "{enough} limits sufficed");
}

/// The limits that preemptprof raises for itself are not the workload's.
#[test]
fn the_workload_keeps_its_own_limits() {
    if !can_measure("the_workload_keeps_its_own_limits") {
        return;
    }
    let (finished, _) = measure(&[], &["cat", "/proc/self/limits"]);
    let mut bare = Command::new("cat");
    bare.arg("/proc/self/limits");
    assert_eq!(finished.exits(0).out(), finish(bare).exits(0).out());
}

/// A workload that is nothing but a file-size limit away from a full disk.
#[test]
fn a_file_size_limit_ends_the_recording_and_not_the_workload() {
    if !can_measure("a_file_size_limit_ends_the_recording_and_not_the_workload") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("a.pprec");
    let mut command = preemptprof(["record", "-F", &command::high_rate(), "-o"]);
    command.arg(&path).args([
        "--",
        command::PROGRAM,
        "bench",
        "messaging",
        "-g",
        "1",
        "-l",
        "6000",
    ]);
    limit(&mut command, libc::RLIMIT_FSIZE, 600 << 10);
    let finished = finish(command).exits(0);
    assert!(finished.out().contains("Total time:"), "{}", finished.out());
    assert!(
        finished.err().contains("(incomplete)"),
        "{}",
        finished.err()
    );
    let recording = profiler::recording::read(&path).unwrap();
    assert!(!recording.complete);
    assert!(!recording.samples.is_empty());
}

/// A limit on CPU time is the workload's affair.
#[test]
fn a_cpu_time_limit_ends_the_workload_with_a_report() {
    if !can_measure("a_cpu_time_limit_ends_the_workload_with_a_report") {
        return;
    }
    let script = "ulimit -t 1; while :; do :; done";
    let (finished, report) = measure(&[], &["sh", "-c", script]);
    let status = finished.status.code().unwrap();
    assert!(
        [128 + libc::SIGXCPU, 128 + libc::SIGKILL].contains(&status),
        "{status}"
    );
    assert_eq!(report["run"]["exit_code"], status);
    assert!(report["sampling"]["samples"].as_u64().unwrap() > 100);
}

/// Records that come faster than they can be taken do not hide the end of the
/// workload.
#[test]
fn a_flood_of_records_has_an_end() {
    if !can_measure("a_flood_of_records_has_an_end") {
        return;
    }
    let rate = command::high_rate();
    let workload = [
        command::PROGRAM,
        "bench",
        "messaging",
        "-g",
        "2",
        "-l",
        "300",
    ];
    let (finished, report) = measure(&["--user-stacks", "-F", &rate], &workload);
    finished.exits(0);
    assert!(report["sampling"]["samples"].as_u64().unwrap() > 0);
}
