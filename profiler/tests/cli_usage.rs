//! Bad usage and hostile files, which need no privileges to be refused.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;

use command::{PROGRAM, as_nobody, finish, folder, is_root, preemptprof, program_for_all, run};

const COMMANDS: [&[&str]; 17] = [
    &["run"],
    &["record"],
    &["report"],
    &["diff"],
    &["export"],
    &["import"],
    &["top"],
    &["completions"],
    &["man"],
    &["doctor"],
    &["options"],
    &["bench"],
    &["bench", "messaging"],
    &["bench", "pipe"],
    &["bench", "spawn"],
    &["bench", "timers"],
    &["bench", "veth"],
];

#[test]
fn help_is_complete_and_fits_100_columns() {
    for command in [&[][..]].iter().chain(&COMMANDS) {
        for flag in ["--help", "-h"] {
            let mut arguments = command.to_vec();
            arguments.push(flag);
            let help = run(&arguments).exits(0);
            assert!(help.stderr.is_empty());
            let text = help.out();
            assert!(text.contains("Usage: preemptprof"), "{text}");
            assert!(!text.contains('\u{1b}'), "{text}");
            for line in text.lines() {
                assert!(line.chars().count() <= 100, "{arguments:?}: {line}");
            }
            // A screen of a laptop.
            assert!(text.lines().count() <= 50, "{arguments:?}: {text}");
            // A benchmark's own flags are those of the tool it is like.
            if command.len() < 2 {
                assert!(text.contains("\nExamples:\n"), "{arguments:?}: {text}");
            }
            // What is the same everywhere comes last.
            let last = |flag: &str| text.find(flag).unwrap();
            assert!(last("  -v, --verbose") < last("  -h, --help"), "{text}");
        }
    }
    let version = run(["--version"]).exits(0);
    assert_eq!(
        version.out(),
        format!("preemptprof {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn bad_usage_has_the_status_of_its_command() {
    for arguments in [
        &["run", "--no-such"][..],
        &["-v", "run", "--no-such"],
        &["run", "true"],
        &["run", "-a", "-p", "1"],
        &["run", "-p", "1", "--cgroup", "x"],
        &["run", "--format", "xml"],
        &["run", "--callers", "-1"],
        &["record", "--", "true"],
        &["record", "-o"],
    ] {
        run(arguments).refuses_with_hint(125, "");
    }
    for arguments in [
        &["report"][..],
        &["report", "a", "b"],
        &["report", "--format", "folded", "a"],
        &["export", "--format", "png", "a"],
        &["doctor", "x"],
        &["options", "--format"],
        &["bench", "no-such"],
        &["no-such"],
        &["--no-such"],
    ] {
        run(arguments).refuses_with_hint(2, "");
    }
    // No command at all: the help, as a refusal.
    let help = run::<[&str; 0]>([]).exits(2);
    assert!(help.stdout.is_empty() && help.err().contains("Usage:"));
}

#[test]
fn absurd_values_are_refused_before_anything_starts() {
    let folder = folder();
    let began = folder.path().join("began");
    for (option, value, why) in [
        ("-F", "0", "nothing would be sampled"),
        ("-F", "1000000000", "samples a second"),
        ("-F", "18446744073709551615", "samples a second"),
        ("-F", "18446744073709551616", "--freq"),
        ("-F", "-1", "error"),
        ("-F", "fast", "fast"),
        ("-F", "", "--freq"),
        ("--ring-size", "0", "not a size"),
        ("--ring-size", "4095", "not a size"),
        ("--ring-size", "2G", "not a size"),
        ("--ring-size", "4X", "not a size"),
        ("--ring-size", "-4K", "ring-size"),
        ("--ring-size", "99999999999999999999K", "not a size"),
        ("--duration", "0", "not a time"),
        ("--duration", "-1", "duration"),
        ("--duration", "1e99", "not a time"),
        ("--duration", "nan", "not a time"),
        ("--duration", "forever", "not a time"),
        ("-C", "", "CPU number"),
        ("-C", "0-4294967295", "CPU number"),
        ("-C", "0-18446744073709551616", "CPU number"),
        ("-C", "3-1", "3-1"),
        ("-C", "a", "CPU number"),
        ("-C", "0,,1", "CPU number"),
        ("-p", "x", "--pid"),
        ("-p", "-1", "error"),
        ("-p", "4294967296", "--pid"),
        ("-p", "4294967295", "no process 4294967295"),
        ("-p", "0", "no process 0"),
        ("--cgroup", "/no/such/cgroup", "cgroup"),
        ("--cgroup", "", "cgroup"),
    ] {
        let mut command = preemptprof(["run", &format!("{option}={value}")]);
        if !option.starts_with("--") {
            command = preemptprof(["run", option, value]);
        }
        command.arg("--").arg("touch").arg(&began);
        finish(command).refuses(125, why);
        assert!(!began.exists(), "{option} {value}");
    }
}

#[test]
fn a_command_that_cannot_be_started_is_told_as_the_shell_does() {
    let folder = folder();
    let plain = folder.path().join("plain");
    fs::write(&plain, "text").unwrap();
    for (name, status, why) in [
        (
            OsStr::new("no-such-command-at-all"),
            127,
            "command not found",
        ),
        (OsStr::new("/no/such/file"), 127, "/no/such/file"),
        (OsStr::new(""), 127, "command not found"),
        (plain.as_os_str(), 126, "cannot be executed"),
        (folder.path().as_os_str(), 126, "cannot be executed"),
        (
            OsStr::from_bytes(b"\x1b]0;x\x07\xff"),
            127,
            "command not found",
        ),
    ] {
        for first in [&["run", "--"][..], &["record", "-o", "never", "--"]] {
            let mut command = preemptprof(first);
            command.arg(name).current_dir(folder.path());
            let refused = finish(command).refuses_with_hint(status, why);
            assert!(
                !refused.err().contains(['\u{1b}', '\u{7}']),
                "{}",
                refused.err()
            );
            assert!(!folder.path().join("never").exists());
            assert!(!folder.path().join("never.partial").exists());
        }
    }
}

#[test]
fn without_privileges_the_missing_ones_are_named_and_nothing_starts() {
    let folder = folder();
    let began = folder.path().join("began");
    let mut command = preemptprof::<[&str; 0]>([]);
    if is_root() {
        command = std::process::Command::new(program_for_all(folder.path()));
        as_nobody(&mut command);
    }
    command
        .args(["run", "--", "touch"])
        .arg(&began)
        .stdin(Stdio::null());
    let refused = finish(command).refuses_with_hint(125, "CAP_BPF and CAP_PERFMON missing");
    assert!(
        refused.err().contains("sudo preemptprof"),
        "{}",
        refused.err()
    );
    assert!(!began.exists());

    let mut command = preemptprof::<[&str; 0]>([]);
    if is_root() {
        command = std::process::Command::new(program_for_all(folder.path()));
        as_nobody(&mut command);
    }
    let doctor = finish({
        command.arg("doctor").stdin(Stdio::null());
        command
    })
    .exits(1);
    assert!(doctor.out().contains("CAP_BPF"), "{}", doctor.out());
}

/// A recording is refused in a moment, whatever it is, without the memory that
/// it may claim.
#[test]
fn hostile_files_are_refused_in_bounded_time_and_memory() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("empty"), "").unwrap();
    fs::write(path("text"), "no recording\n".repeat(1000)).unwrap();
    fs::write(path("zeros"), vec![0; 1 << 20]).unwrap();
    let mut noise = vec![0; 1 << 20];
    fs::File::open("/dev/urandom")
        .unwrap()
        .read_exact(&mut noise)
        .unwrap();
    fs::write(path("noise"), &noise).unwrap();
    // One that begins well.
    let mut headed = b"PREEMPTP".to_vec();
    headed.extend(&noise);
    fs::write(path("headed"), &headed).unwrap();
    // A hole of 1 TiB.
    fs::File::create(path("hole"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let fifo = CString::new(path("fifo").as_os_str().as_bytes()).unwrap();
    // SAFETY: a valid string.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);

    let mut names: Vec<OsString> = [
        "empty",
        "text",
        "zeros",
        "noise",
        "headed",
        "hole",
        "fifo",
        "absent",
        "absent\u{1b}[31m",
    ]
    .iter()
    .map(|name| path(name).into())
    .collect();
    names.extend(
        [
            "/dev/zero",
            "/dev/null",
            "/proc/self/mem",
            "/proc/kmsg",
            "-",
        ]
        .map(Into::into),
    );
    names.push(folder.path().into());
    names.push(OsStr::from_bytes(b"/\xff\n\x1b[2J").into());
    for name in names {
        for arguments in [
            &["report"][..],
            &["report", "--salvage"],
            &["export", "--format", "folded"],
            &["export", "--format", "svg", "--salvage"],
        ] {
            let mut command = preemptprof(arguments);
            command.arg(&name);
            // SAFETY: setrlimit is async-signal-safe.
            unsafe {
                command.pre_exec(|| limit(libc::RLIMIT_AS, 256 << 20));
                command.pre_exec(|| limit(libc::RLIMIT_CPU, 20));
            }
            let refused = finish(command).refuses_with_hint(1, "");
            assert!(refused.stdout.is_empty(), "{}", name.display());
            assert!(!refused.err().contains('\u{1b}'), "{}", refused.err());
        }
    }
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) -> std::io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: a valid structure.
    match unsafe { libc::setrlimit(resource, &raw const limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn what_is_piped_has_no_escape_sequences() {
    for arguments in [
        &["options"][..],
        &["doctor"],
        &["options", "--format", "json"],
    ] {
        let mut command = preemptprof(arguments);
        command
            .env("CLICOLOR_FORCE", "1")
            .env("TERM", "xterm-256color");
        let listed = finish(command);
        assert!(!listed.stdout.is_empty());
        assert!(!listed.out().contains('\u{1b}'), "{}", listed.out());
    }
}

/// `preemptprof options | head -1` is no failure worth a message.
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut ends = [0; 2];
    // SAFETY: room for both descriptors; they are owned by the `File`s below.
    let (out, into) = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        use std::os::fd::FromRawFd as _;
        (
            fs::File::from_raw_fd(ends[0]),
            fs::File::from_raw_fd(ends[1]),
        )
    };
    drop(out);
    let mut child = preemptprof(["options"])
        .stdout(into)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    let status = child.wait().unwrap();
    assert_eq!(said, "", "{status}");
    assert_eq!(command::signal_of(status), Some(libc::SIGPIPE));
}

#[test]
fn outputs_are_refused_before_the_command_runs() {
    let folder = folder();
    let began = folder.path().join("began");
    let exists = folder.path().join("exists");
    fs::write(&exists, "precious").unwrap();
    let inside = |name: &str| folder.path().join(name).into_os_string();
    let both = inside("both");
    let cases: [(Vec<OsString>, &str); 9] = [
        (
            vec!["run".into(), "-o".into(), inside("exists")],
            "already exists",
        ),
        (
            vec!["run".into(), "--report".into(), inside("exists")],
            "already exists",
        ),
        (
            vec!["record".into(), "-o".into(), inside("exists")],
            "already exists",
        ),
        (
            vec!["run".into(), "--report".into(), inside("no/such/folder")],
            "cannot create",
        ),
        (
            vec!["run".into(), "--report".into(), folder.path().into()],
            "it is a directory",
        ),
        (
            vec![
                "run".into(),
                "--force".into(),
                "--report".into(),
                folder.path().into(),
            ],
            "it is a directory",
        ),
        (
            vec!["record".into(), "-o".into(), inside("no/such/folder")],
            "cannot create",
        ),
        (
            vec![
                "record".into(),
                "--force".into(),
                "-o".into(),
                "/dev/null".into(),
            ],
            "not a regular file",
        ),
        (
            vec![
                "run".into(),
                "-o".into(),
                both.clone(),
                "--report".into(),
                both,
            ],
            "same file",
        ),
    ];
    for (arguments, why) in cases {
        let mut command = preemptprof(&arguments);
        command.arg("--").arg("touch").arg(&began);
        finish(command).refuses_with_hint(125, why);
        assert!(!began.exists(), "{arguments:?}");
    }
    assert_eq!(fs::read(&exists).unwrap(), b"precious");
    assert!(Path::new(PROGRAM).exists());
}
