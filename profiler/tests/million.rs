//! What a million samples take in each format: `cargo test --release -p profiler
//! --test million -- --ignored --nocapture` prints it.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use profiler::recording::{Recording, save};

/// The bounds of one export, reading the recording included.
const TIME: Duration = Duration::from_secs(3);
const MEMORY_KIB: i64 = 512 << 10;

const FORMATS: [&str; 11] = [
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
];

#[test]
#[ignore = "takes a release build and a quiet machine"]
fn each_format_takes_little_time_and_memory() {
    let exceeded = measure(&common::million::million());
    assert!(exceeded.is_empty(), "beyond the bounds: {exceeded:?}");
}

#[test]
#[ignore = "takes a release build and a quiet machine"]
fn what_it_takes_when_hardly_two_stacks_are_the_same() {
    // A gigabyte of text takes its time, and a Firefox profile holds each stack.
    let exceeded = measure(&common::million::hard());
    println!("beyond the bounds: {exceeded:?}");
    assert!(
        !exceeded.contains(&"a.html"),
        "beyond the bounds: {exceeded:?}"
    );
}

/// Prints what each format takes; those that take more than they may.
fn measure(recording: &Recording) -> Vec<&'static str> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pprec");
    save(recording, &path, false).unwrap();
    let mut exceeded = Vec::new();
    for name in FORMATS {
        let out = dir.path().join(name);
        let began = Instant::now();
        let mut command = Command::new(env!("CARGO_BIN_EXE_preemptprof"));
        command.arg("export").arg(&path).arg("-o").arg(&out);
        let (memory, cpu) = most_memory(&mut command);
        let took = began.elapsed();
        let size = fs::metadata(&out).unwrap().len();
        println!(
            "{name:<20} {took:>8.2?} (CPU {cpu:.2?}) {:>6} MiB {size:>12} bytes",
            memory >> 10
        );
        fs::remove_file(&out).unwrap();
        if took > TIME || memory > MEMORY_KIB {
            exceeded.push(name);
        }
    }
    if cfg!(debug_assertions) {
        exceeded.clear();
    }
    exceeded
}

/// Runs a command to its end; the most memory it had, in KiB, and its CPU time.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
fn most_memory(command: &mut Command) -> (i64, Duration) {
    let child = command.spawn().unwrap();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both are writable; the child is not waited for elsewhere.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    assert_eq!(waited, pid);
    assert_eq!(status, 0);
    let time = |of: libc::timeval| {
        Duration::from_secs(of.tv_sec as u64) + Duration::from_micros(of.tv_usec as u64)
    };
    (usage.ru_maxrss, time(usage.ru_utime) + time(usage.ru_stime))
}
