//! What a million samples take in each format: `cargo test --release -p profiler
//! --test million -- --ignored --nocapture` prints it.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use profiler::recording::save;

/// The bounds of one export, reading the recording included.
const TIME: Duration = Duration::from_secs(3);
const MEMORY_KIB: i64 = 512 << 10;

#[test]
#[ignore = "takes a release build and a quiet machine"]
fn each_format_takes_little_time_and_memory() {
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("a.pprec");
    save(&common::million::million(), &recording, false).unwrap();
    let mut exceeded = Vec::new();
    for name in [
        "a.folded",
        "a.svg",
        "a.html",
        "a.pb.gz",
        "a.firefox.json",
        "a.firefox.json.gz",
        "a.speedscope.json",
        "a.trace.json",
        "a.csv",
        "a.callers.csv",
        "a.prom",
    ] {
        let out = dir.path().join(name);
        let began = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_preemptprof"));
        command.arg("export").arg(&recording).arg("-o").arg(&out);
        let memory = most_memory(&mut command);
        let took = began.elapsed();
        let size = fs::metadata(&out).unwrap().len();
        println!(
            "{name:<20} {took:>8.2?} {:>6} MiB {size:>12} bytes",
            memory >> 10
        );
        if took > TIME || memory > MEMORY_KIB {
            exceeded.push(name);
        }
    }
    if cfg!(debug_assertions) {
        return;
    }
    assert!(exceeded.is_empty(), "beyond the bounds: {exceeded:?}");
}

/// Runs a command to its end; the most memory it had, in KiB.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn most_memory(command: &mut Command) -> i64 {
    let child = command.spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are writable; the child is not waited for elsewhere.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!(waited, pid);
    assert_eq!(status, 0);
    usage.ru_maxrss
}
