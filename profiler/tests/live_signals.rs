//! Signals reach the workload, once, and a report is still written.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use command::{can_measure, folder, has, preemptprof, signal_of, start, valid_report, wait_until};

/// Counts the signals it gets in a file, and ends at the first with 42, a while
/// later, so that a second would be counted.
const COUNTER: &str = "my $n = 0; \
    $SIG{$_} = sub { $n++; open my $f, '>>', $ARGV[0]; print $f \"$_[0]\\n\"; close $f } \
        for qw(INT TERM HUP QUIT USR1); \
    open my $f, '>', \"$ARGV[0].ready\"; close $f; \
    select undef, undef, undef, 0.02 while !$n; \
    select undef, undef, undef, 0.02 for 1..25; exit 42";

#[test]
fn signals_to_preemptprof_reach_the_workload() {
    let test = "signals_to_preemptprof_reach_the_workload";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    for (signal, name) in [
        (libc::SIGINT, "INT"),
        (libc::SIGTERM, "TERM"),
        (libc::SIGHUP, "HUP"),
        (libc::SIGQUIT, "QUIT"),
    ] {
        let got = folder.path().join(name);
        let report = folder.path().join(format!("{name}.json"));
        let mut command = preemptprof(["run", "--format", "json", "--report"]);
        command
            .arg(&report)
            .args(["--", "perl", "-e", COUNTER])
            .arg(&got);
        let measuring = start(command);
        let ready = folder.path().join(format!("{name}.ready"));
        wait_until("the workload", || ready.exists());
        measuring.signal(signal);
        measuring.finish().exits(42);
        assert_eq!(fs::read_to_string(&got).unwrap(), format!("{name}\n"));
        let report = valid_report(&fs::read(&report).unwrap());
        assert_eq!(report["run"]["exit_code"], 42);
        assert_eq!(report["run"]["complete"], true);
    }
}

/// A workload that a signal ends: status 128+N, and a report.
#[test]
fn a_workload_that_is_ended_is_reported() {
    if !can_measure("a_workload_that_is_ended_is_reported") {
        return;
    }
    let folder = folder();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let report = folder.path().join(signal.to_string());
        let ready = folder.path().join("ready");
        let mut command = preemptprof(["run", "--report"]);
        command
            .arg(&report)
            .args(["--", "sh", "-c", ": > \"$0\"; exec sleep 1000"])
            .arg(&ready);
        let measuring = start(command);
        wait_until("the workload", || ready.exists());
        measuring.signal(signal);
        measuring.finish().exits(128 + signal);
        let text = fs::read_to_string(&report).unwrap();
        assert!(text.contains("\nworkload "), "{text}");
        fs::remove_file(&ready).unwrap();
    }
}

/// While everything is being attached the workload waits at its gate; a signal
/// in that time ends it as it would have ended the command.
#[test]
fn a_signal_during_set_up_is_not_lost() {
    if !can_measure("a_signal_during_set_up_is_not_lost") {
        return;
    }
    for milliseconds in [1, 20, 60, 150, 300] {
        let measuring = start(preemptprof(["run", "--", "sleep", "1000"]));
        thread::sleep(Duration::from_millis(milliseconds));
        measuring.signal(libc::SIGTERM);
        let status = measuring.finish().status;
        // Before it catches signals they end preemptprof itself.
        assert!(
            status.code() == Some(128 + libc::SIGTERM) || signal_of(status) == Some(libc::SIGTERM),
            "after {milliseconds} ms: {status}"
        );
    }
}

/// The measurement ends by the clock, the workload does not, and its signals
/// still reach it.
#[test]
fn signals_reach_a_workload_that_outlives_the_measurement() {
    let test = "signals_reach_a_workload_that_outlives_the_measurement";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let got = folder.path().join("got");
    let report = folder.path().join("report");
    let mut command = preemptprof(["run", "--duration", "100ms", "--format", "json", "--report"]);
    command
        .arg(&report)
        .args(["--", "perl", "-e", COUNTER])
        .arg(&got);
    let measuring = start(command);
    let ready = folder.path().join("got.ready");
    wait_until("the workload", || ready.exists());
    thread::sleep(Duration::from_millis(1500));
    measuring.signal(libc::SIGTERM);
    measuring.finish().exits(42);
    assert_eq!(fs::read_to_string(&got).unwrap(), "TERM\n");
    let report = valid_report(&fs::read(&report).unwrap());
    let wall = report["run"]["wall_s"].as_f64().unwrap();
    assert!((0.1..1.5).contains(&wall), "{wall}");
}

/// Control-C in a terminal goes to every process in the foreground: the
/// workload has it from there and must not get it again.
#[test]
fn control_c_is_delivered_once() {
    let test = "control_c_is_delivered_once";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let got = folder.path().join("got");
    let report = folder.path().join("report");
    let (mut terminal, side) = terminal();
    let mut command = preemptprof(["run", "--report"]);
    command
        .arg(&report)
        .args(["--", "perl", "-e", COUNTER])
        .arg(&got)
        .stdin(Stdio::from(side.try_clone().unwrap()))
        .stdout(Stdio::from(side.try_clone().unwrap()))
        .stderr(Stdio::from(side));
    // SAFETY: both are async-signal-safe; standard input is the terminal.
    unsafe {
        command.pre_exec(|| {
            if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap();
    drop(command);
    let ready = folder.path().join("got.ready");
    wait_until("the workload", || ready.exists());
    terminal.write_all(&[3]).unwrap();
    wait_until("the end", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().code(), Some(42));
    assert_eq!(fs::read_to_string(&got).unwrap(), "INT\n");
    assert!(Path::new(&report).exists());
    let mut screen = vec![0; 4096];
    let length = terminal.read(&mut screen).unwrap_or(0);
    let screen = String::from_utf8_lossy(&screen[..length]).into_owned();
    assert!(!screen.contains("error"), "{screen}");
}

/// A new terminal: the side of its screen and keys, and the side of programs.
fn terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (0, 0);
    // SAFETY: both numbers are written; the optional arguments are left out.
    unsafe {
        let status = libc::openpty(
            &raw mut master,
            &raw mut slave,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        );
        assert_eq!(status, 0);
        libc::fcntl(master, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(slave, libc::F_SETFD, libc::FD_CLOEXEC);
        (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave))
    }
}
