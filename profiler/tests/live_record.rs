//! Recordings: made as root, read by anyone, whole or said not to be.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{
    PROGRAM, as_nobody, can_measure, finish, folder, has, preemptprof, program_for_all, skip,
    start, valid_report, wait_until,
};

const BENCH: [&str; 7] = [PROGRAM, "bench", "messaging", "-g", "1", "-l", "200"];

/// Records a short benchmark.
fn record(folder: &Path) -> PathBuf {
    let path = folder.join("a.pprec");
    let mut command = preemptprof(["record", "-o"]);
    command.arg(&path).arg("--").args(BENCH);
    let finished = finish(command).exits(0);
    assert!(finished.out().contains("Total time:"), "{}", finished.out());
    assert_eq!(finished.err(), format!("recorded: {}\n", path.display()));
    path
}

#[test]
fn anyone_reads_a_recording_they_are_given() {
    let test = "anyone_reads_a_recording_they_are_given";
    if !can_measure(test) {
        return;
    }
    let folder = folder();
    let path = record(folder.path());
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let program = program_for_all(folder.path());
    let as_anyone = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        as_nobody(command.args(arguments).arg(&path));
        finish(command)
    };
    as_anyone(&["report"]).refuses_with_hint(1, "Permission denied");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();

    let text = as_anyone(&["report"]).exits(0).out();
    assert!(text.contains("\nworkload "), "{text}");
    let report = valid_report(&as_anyone(&["report", "--format", "json"]).exits(0).stdout);
    assert_eq!(report["run"]["complete"], true);
    assert!(report["switches"]["total"].as_u64().unwrap() > 0);
    let folded = as_anyone(&["export", "--format", "folded"]).exits(0).out();
    assert!(
        folded
            .lines()
            .all(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok())
    );
    let svg = as_anyone(&["export", "--format", "svg"]).exits(0).out();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    // What is measured from a file is what was measured at the end of the run.
    assert_eq!(
        folded
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum::<u64>(),
        report["sampling"]["samples"].as_u64().unwrap()
    );
}

#[test]
fn exports_do_not_replace_files_unasked() {
    if !can_measure("exports_do_not_replace_files_unasked") {
        return;
    }
    let folder = folder();
    let path = record(folder.path());
    for name in ["a.svg", "a.folded"] {
        let output = folder.path().join(name);
        fs::write(&output, "precious").unwrap();
        let export = |options: &[&str]| {
            let mut command = preemptprof(["export", "-o"]);
            command.arg(&output).args(options).arg(&path);
            finish(command)
        };
        export(&[]).refuses_with_hint(1, "already exists");
        assert_eq!(fs::read(&output).unwrap(), b"precious");
        export(&["--force"]).exits(0);
        assert!(fs::read(&output).unwrap() != b"precious");
    }
}

#[test]
fn files_made_under_sudo_belong_to_its_caller() {
    if !can_measure("files_made_under_sudo_belong_to_its_caller") {
        return;
    }
    let folder = folder();
    let (recording, report) = (folder.path().join("a.pprec"), folder.path().join("report"));
    let mut command = preemptprof(["run", "-o"]);
    command
        .arg(&recording)
        .arg("--report")
        .arg(&report)
        .args(["--", "true"])
        .env("SUDO_UID", "12345")
        .env("SUDO_GID", "54321");
    finish(command).exits(0);
    for path in [recording, report] {
        let metadata = path.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (12345, 54321));
    }
}

#[test]
fn damaged_recordings_are_refused_and_salvaged() {
    if !can_measure("damaged_recordings_are_refused_and_salvaged") {
        return;
    }
    let folder = folder();
    let whole = fs::read(record(folder.path())).unwrap();
    let damaged = folder.path().join("damaged");
    let report = |options: &[&str]| {
        let mut command = preemptprof(["report", "--format", "json"]);
        command.args(options).arg(&damaged);
        finish(command)
    };
    let mut flipped = whole.clone();
    // Behind the header, which carries the kernel's configuration and is most of a
    // short recording.
    let late = flipped.len() * 5 / 6;
    flipped[late] ^= 0x40;
    for bytes in [&whole[..whole.len() - 1], &whole[..late], &flipped] {
        fs::write(&damaged, bytes).unwrap();
        let refused = report(&[]).refuses_with_hint(1, "cannot read");
        assert!(refused.err().contains("--salvage"), "{}", refused.err());
        let salvaged = report(&["--salvage"]).exits(0);
        assert!(salvaged.err().contains("salvaged"), "{}", salvaged.err());
        assert_eq!(valid_report(&salvaged.stdout)["run"]["complete"], false);
    }
    fs::write(&damaged, &whole[..10]).unwrap();
    report(&[]).refuses_with_hint(1, "not a preemptprof recording");
    report(&["--salvage"]).refuses_with_hint(1, "not a preemptprof recording");
}

/// Killed while it records, a run leaves FILE.partial, which can be salvaged.
#[test]
fn a_killed_recording_can_be_salvaged() {
    let test = "a_killed_recording_can_be_salvaged";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("a.pprec");
    let partial = folder.path().join("a.pprec.partial");
    let mut command = preemptprof(["record", "-o"]);
    // It runs for as long as it is measured.
    command.arg(&path).args([
        "--",
        "perl",
        "-e",
        "my ($p, $t) = (getppid, time + 120); 1 while getppid == $p && time < $t",
    ]);
    let mut measuring = start(command);
    wait_until("samples in the file", || {
        let mut command = preemptprof(["report", "--format", "json", "--salvage"]);
        command.arg(&partial);
        serde_json::from_slice::<serde_json::Value>(&finish(command).stdout)
            .is_ok_and(|report| report["sampling"]["samples"].as_u64() > Some(0))
    });
    measuring.signal(libc::SIGKILL);
    measuring.wait();
    assert!(!path.exists());

    let mut command = preemptprof(["report"]);
    let refused = finish({
        command.arg(&path);
        command
    })
    .refuses_with_hint(1, "a.pprec");
    assert!(refused.err().contains("--salvage"), "{}", refused.err());
    let mut command = preemptprof(["report"]);
    command.arg(&partial);
    finish(command).refuses_with_hint(1, "a.pprec.partial");
    let mut command = preemptprof(["report", "--salvage"]);
    command.arg(&partial);
    let salvaged = finish(command).exits(0);
    assert!(
        salvaged.out().contains("The recording has no end"),
        "{}",
        salvaged.out()
    );
    let mut command = preemptprof(["report", "--format", "json", "--salvage"]);
    command.arg(&partial);
    let report = valid_report(&finish(command).exits(0).stdout);
    assert_eq!(report["run"]["complete"], false);
    assert!(report["sampling"]["samples"].as_u64().unwrap() > 0);

    // The next run does not write over it unasked.
    let mut command = preemptprof(["record", "-o"]);
    command.arg(&path).args(["--", "true"]);
    finish(command).refuses_with_hint(125, "a.pprec.partial already exists");
    let mut command = preemptprof(["record", "--force", "-o"]);
    command.arg(&path).args(["--", "true"]);
    finish(command).exits(0);
    assert!(path.exists() && !partial.exists());
}

/// On a disk that fills up the workload runs on, and what was recorded is a
/// recording that says what it lacks.
#[test]
fn a_full_disk_ends_the_recording_and_not_the_workload() {
    let test = "a_full_disk_ends_the_recording_and_not_the_workload";
    if !can_measure(test) {
        return;
    }
    let folder = folder();
    let (disk, kept) = (folder.path().join("disk"), folder.path().join("kept"));
    fs::create_dir(&disk).unwrap();
    fs::create_dir(&kept).unwrap();
    let mut probe = Command::new("true");
    private_disk(&mut probe, &disk, "64k");
    if let Err(error) = probe.status() {
        skip(test, &format!("no private mount namespace: {error}"));
        return;
    }
    let record = |size: &str, script: &str| {
        // The disk is seen only in a mount namespace of its own, so the workload
        // also carries out what is left on it.
        let mut command = preemptprof(["record", "-F", &command::high_rate(), "-o"]);
        command
            .arg(disk.join("a.pprec"))
            .args(["--", "sh", "-c", script]);
        private_disk(&mut command, &disk, size);
        finish(command)
    };
    // An end that comes after the workload's is watched for by a grandchild.
    let script = format!(
        "(while kill -0 $PPID 2>/dev/null; do sleep 0.05; done; cp -r {0}/. {1}) </dev/null >/dev/null 2>&1 & \
         {PROGRAM} bench messaging -g 1 -l 6000 >/dev/null; echo done",
        disk.display(),
        kept.display()
    );
    let finished = record("640k", &script).exits(0);
    assert_eq!(finished.out(), "done\n");
    assert!(
        finished.err().contains("(incomplete)"),
        "{}",
        finished.err()
    );
    let saved = kept.join("a.pprec");
    wait_until("the copy", || saved.exists());
    wait_until("the whole copy", || {
        let mut command = preemptprof(["report"]);
        command.arg(&saved);
        finish(command).status.success()
    });
    let mut command = preemptprof(["report", "--format", "json"]);
    command.arg(&saved);
    let report = valid_report(&finish(command).exits(0).stdout);
    assert_eq!(report["run"]["complete"], false);
    assert_eq!(report["run"]["exit_code"], 0);
    assert!(report["sampling"]["samples"].as_u64().unwrap() > 0);
    assert!(
        report["loss"]["total"].as_u64().unwrap() > 0,
        "{}",
        report["loss"]
    );
    let mut command = preemptprof(["report"]);
    command.arg(&saved);
    let text = finish(command).exits(0).out();
    assert!(text.contains("incomplete"), "{text}");

    // No room for even the beginning: refused before the command starts.
    record("4k", "touch began").refuses_with_hint(125, "a.pprec");
}

/// Gives the command a small disk of its own at `place`.
fn private_disk(command: &mut Command, place: &Path, size: &str) {
    let place = CString::new(place.as_os_str().as_bytes()).unwrap();
    let options = CString::new(format!("size={size}")).unwrap();
    let mount = move || {
        // SAFETY: system calls on strings that live as long as the closure.
        let done = unsafe {
            libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    c"/".as_ptr(),
                    std::ptr::null(),
                    libc::MS_REC | libc::MS_PRIVATE,
                    std::ptr::null(),
                ) == 0
                && libc::mount(
                    c"none".as_ptr(),
                    place.as_ptr(),
                    c"tmpfs".as_ptr(),
                    0,
                    options.as_ptr().cast(),
                ) == 0
        };
        if done {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(mount) };
}
