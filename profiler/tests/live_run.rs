//! `preemptprof run` around a command.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;

use command::{PROGRAM, can_measure, finish, folder, has, measure, preemptprof, run, valid_report};

#[test]
fn the_workload_s_output_is_untouched() {
    if !can_measure("the_workload_s_output_is_untouched") {
        return;
    }
    let script = "printf 'to stdout\\0\\377'; printf 'to stderr\\n' >&2";
    let (finished, report) = measure(&[], &["sh", "-c", script]);
    let finished = finished.exits(0);
    assert_eq!(finished.stdout, b"to stdout\0\xff");
    assert_eq!(finished.stderr, b"to stderr\n");
    assert_eq!(report["run"]["command"][2], script);
    assert_eq!(report["run"]["exit_code"], 0);
    assert_eq!(report["run"]["complete"], true);
    assert_eq!(report["sampling"]["hz"], 997);

    // Without --report it comes after the workload's own words.
    let mixed = run(["run", "--", "sh", "-c", script]).exits(0);
    assert_eq!(mixed.stdout, b"to stdout\0\xff");
    let text = mixed.err();
    assert!(text.starts_with("to stderr\n"), "{text}");
    for line in [
        "\nkernel ",
        "\nworkload ",
        "\nswitches ",
        "\nlost ",
        "\nown cost ",
    ] {
        assert!(text.contains(line), "{line:?} is not in: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
}

#[test]
fn standard_input_and_the_environment_are_the_workload_s() {
    if !can_measure("standard_input_and_the_environment_are_the_workload_s") {
        return;
    }
    let folder = folder();
    let input = folder.path().join("input");
    fs::write(&input, "what was typed").unwrap();
    let report = folder.path().join("report");
    let workload = [
        "sh",
        "-c",
        "cat; printf '%s' \"$MARK\"; pwd; ls /proc/self/fd; ulimit -a",
    ];
    let here = |mut command: std::process::Command| {
        command
            .env("MARK", " and set ")
            .current_dir(folder.path())
            .stdin(fs::File::open(&input).unwrap());
        finish(command).exits(0).out()
    };
    let mut command = preemptprof(["run", "--report"]);
    command.arg(&report).arg("--").args(workload);
    let measured = here(command);
    let mut bare = std::process::Command::new(workload[0]);
    bare.args(&workload[1..]);
    assert_eq!(measured, here(bare));
    assert!(
        measured.starts_with("what was typed and set /"),
        "{measured}"
    );
    assert!(fs::read_to_string(&report).unwrap().contains("\nworkload "));
}

#[test]
fn signals_are_neither_blocked_nor_ignored_in_the_workload() {
    if !can_measure("signals_are_neither_blocked_nor_ignored_in_the_workload") {
        return;
    }
    let workload = ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"];
    let (finished, _) = measure(&[], &workload);
    let mut bare = std::process::Command::new(workload[0]);
    bare.args(&workload[1..]);
    assert_eq!(finished.exits(0).out(), finish(bare).exits(0).out());
}

#[test]
fn the_exit_status_is_the_workload_s() {
    if !can_measure("the_exit_status_is_the_workload_s") {
        return;
    }
    for (script, status) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("exit 255", 255),
        ("kill -KILL $$", 128 + 9),
        ("kill -SEGV $$", 128 + 11),
    ] {
        let (finished, report) = measure(&[], &["sh", "-c", script]);
        finished.exits(status);
        assert_eq!(report["run"]["exit_code"], status, "{script}");
    }
    let folder = folder();
    let recording = folder.path().join("a.pprec");
    let mut command = preemptprof(["record", "-o"]);
    command.arg(&recording).args(["--", "sh", "-c", "exit 7"]);
    finish(command).exits(7);
    assert!(recording.exists());
}

#[test]
fn a_script_without_its_interpreter_is_told_and_leaves_nothing() {
    if !can_measure("a_script_without_its_interpreter_is_told_and_leaves_nothing") {
        return;
    }
    let folder = folder();
    let script = folder.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    for options in [
        &["run"][..],
        &["run", "-o", "a.pprec"],
        &["record", "-o", "a.pprec"],
    ] {
        let mut command = preemptprof(options);
        command.arg("--").arg(&script).current_dir(folder.path());
        finish(command).refuses_with_hint(127, "script: cannot be executed");
    }
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["script"]);
}

#[test]
fn a_cpu_that_is_not_there_is_our_failure() {
    if !can_measure("a_cpu_that_is_not_there_is_our_failure") {
        return;
    }
    let folder = folder();
    let began = folder.path().join("began");
    for cpus in ["65535", "0-65535"] {
        let mut command = preemptprof(["run", "-C", cpus, "--", "touch"]);
        command.arg(&began);
        finish(command).refuses_with_hint(125, "is not online");
        assert!(!began.exists());
    }
}

#[test]
fn the_built_in_benchmark_can_be_the_workload() {
    if !can_measure("the_built_in_benchmark_can_be_the_workload") {
        return;
    }
    let (finished, report) = measure(&[], &[PROGRAM, "bench", "messaging", "-g", "1", "-l", "20"]);
    let out = finished.exits(0).out();
    assert!(out.contains("Total time:"), "{out}");
    assert!(report["switches"]["total"].as_u64().unwrap() >= 40);
}

/// Arguments and task names may hold anything but a NUL.
#[test]
fn names_cannot_write_to_the_terminal() {
    let test = "names_cannot_write_to_the_terminal";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let recording = folder.path().join("a.pprec");
    // A name with an escape sequence, and work enough to be sampled.
    let script = "open my $f, '>', '/proc/self/comm' or die; syswrite $f, \"\\e[2Jx;y\\x{7}\"; \
                  close $f; my $t = time + 1; 1 while time <= $t;";
    let mut command = preemptprof(["run", "-o"]);
    command
        .arg(&recording)
        .args(["--", "perl", "-e", script])
        .arg(std::ffi::OsStr::from_bytes(
            b"\x1b]0;title\x07\xff\n\xf0\x9f",
        ));
    let finished = finish(command).exits(0);
    assert!(
        !finished.err().contains(['\u{1b}', '\u{7}']),
        "{}",
        finished.err()
    );
    for arguments in [
        &["report"][..],
        &["report", "--format", "json"],
        &["export", "--format", "folded"],
        &["export", "--format", "svg"],
    ] {
        let mut command = preemptprof(arguments);
        command.arg(&recording);
        let saved = finish(command).exits(0);
        assert!(
            !saved.out().contains(['\u{1b}', '\u{7}']),
            "{}",
            saved.out()
        );
        if arguments.contains(&"json") {
            valid_report(&saved.stdout);
        }
        if arguments.contains(&"folded") {
            // `stack count` and nothing else on a line, with its task first.
            let mut found = false;
            for line in saved.out().lines() {
                let (stack, count) = line.rsplit_once(' ').unwrap();
                assert!(count.parse::<u64>().unwrap() > 0, "{line}");
                let comm = stack.split(';').next().unwrap();
                found |= comm.contains('x') && comm.contains("[2J") && comm.contains('y');
            }
            assert!(found, "{}", saved.out());
        }
    }
}
