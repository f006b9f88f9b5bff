//! The built-in benchmarks that fork, one at a time: they wait for any child.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod skip;

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use profiler::workloads::{messaging, pipe, spawn};
use skip::skip;

fn alone() -> MutexGuard<'static, ()> {
    static FORKING: Mutex<()> = Mutex::new(());
    FORKING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_children_left() {
    // SAFETY: no memory is passed.
    let pid = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(pid, -1);
    assert_eq!(
        io::Error::last_os_error().raw_os_error(),
        Some(libc::ECHILD)
    );
}

#[test]
fn messaging_delivers_every_message() {
    let _alone = alone();
    // `run` itself compares the messages sent and received.
    for (pipe, thread) in [(false, false), (true, false), (false, true), (true, true)] {
        let args = messaging::Args {
            group: 2,
            loops: 5,
            pipe,
            thread,
        };
        let metric = messaging::run(&args).unwrap();
        assert!(metric.value > 0.0 && metric.value < 60.0, "{metric:?}");
        assert_eq!(metric.name, "total time");
        no_children_left();
    }
}

#[test]
fn messaging_with_many_threads_raises_the_limit_of_files() {
    let _alone = alone();
    let args = messaging::Args {
        group: 30,
        loops: 1,
        pipe: true,
        thread: true,
    };
    messaging::run(&args).unwrap();
}

#[test]
fn pipe_counts_every_round_trip() {
    let _alone = alone();
    for (threaded, same_cpu) in [(false, false), (true, false), (false, true), (true, true)] {
        let args = pipe::Args {
            loops: 2_000,
            threaded,
            same_cpu,
            cpu: None,
        };
        let metric = pipe::run(&args).unwrap();
        assert!(metric.value > 0.0 && metric.value < 1e5, "{metric:?}");
        no_children_left();
    }
    // SAFETY: an all-zero set, filled in by the kernel.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set);
        libc::CPU_COUNT(&set)
    };
    let parallel = std::thread::available_parallelism().unwrap();
    assert!(
        allowed as usize >= parallel.get(),
        "the affinity is restored"
    );
}

#[test]
fn spawn_notices_a_program_that_fails() {
    let _alone = alone();
    spawn::run(&spawn::Args {
        count: 5,
        program: None,
    })
    .unwrap();
    let program = Some(PathBuf::from("/bin/false"));
    let error = spawn::run(&spawn::Args { count: 5, program }).unwrap_err();
    assert!(
        format!("{error:#}").contains("/bin/false does not exit"),
        "{error:#}"
    );
    no_children_left();
}

/// Runs this test binary again with `role` set, and gives its process back.
fn again(test: &str, role: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env("PREEMPTPROF_TEST_ROLE", role);
    command
}

#[test]
fn too_many_processes_are_a_clear_error() {
    let _alone = alone();
    if std::env::var_os("PREEMPTPROF_TEST_ROLE").is_none() {
        let output = again("too_many_processes_are_a_clear_error", "limited")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        return;
    }
    let lower = |resource, to| {
        let limit = libc::rlimit {
            rlim_cur: to,
            rlim_max: to,
        };
        // SAFETY: `limit` outlives the call.
        assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
    };
    lower(libc::RLIMIT_NOFILE, 100);
    let args = messaging::Args {
        group: 3,
        loops: 1,
        pipe: true,
        thread: true,
    };
    let error = messaging::run(&args).unwrap_err();
    assert!(error.to_string().contains("open files"), "{error}");
    lower(libc::RLIMIT_NOFILE, 20);
    let args = messaging::Args {
        group: 3,
        loops: 1,
        pipe: true,
        thread: false,
    };
    let error = messaging::run(&args).unwrap_err();
    assert!(
        error.to_string().contains("cannot open another pipe"),
        "{error}"
    );
    no_children_left();
    lower(libc::RLIMIT_NOFILE, 15);
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        // Limits on processes do not bind root: become nobody.
        // SAFETY: no memory is passed.
        if unsafe { libc::setuid(65_534) } != 0 {
            skip(
                "too_many_processes_are_a_clear_error",
                "cannot become another user",
            );
            return;
        }
    }
    lower(libc::RLIMIT_NPROC, 0);
    let error = pipe::run(&pipe::Args {
        loops: 1,
        threaded: false,
        same_cpu: false,
        cpu: None,
    })
    .unwrap_err();
    assert!(
        error.to_string().contains("cannot start another process"),
        "{error}"
    );
    assert!(profiler::error::hints(&error)[0].contains("ulimit -u"));
}

#[test]
fn children_die_with_their_parent() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    let test = "children_die_with_their_parent";
    if std::env::var_os("PREEMPTPROF_TEST_ROLE").is_some() {
        let args = messaging::Args {
            group: 1,
            loops: 100_000_000,
            pipe: false,
            thread: false,
        };
        let _ = messaging::run(&args);
        return;
    }
    // A process group of its own, to look for survivors.
    let mut parent = again(test, "parent")
        .process_group(0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let group = parent.id().cast_signed();
    let in_group = || {
        std::fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("stat")).ok())
            .filter(|stat| {
                let fields: Vec<_> = stat
                    .rsplit(')')
                    .next()
                    .unwrap()
                    .split_whitespace()
                    .collect();
                fields[0] != "Z" && fields[2] == group.to_string()
            })
            .count()
    };
    let eventually = |holds: &dyn Fn() -> bool| {
        (0..400).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            holds()
        })
    };
    assert!(eventually(&|| in_group() > 40), "{}", in_group());
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(eventually(&|| in_group() == 0), "{}", in_group());
}

#[test]
fn a_worker_that_is_killed_ends_the_benchmark() {
    use std::os::unix::process::CommandExt;
    let _alone = alone();
    let test = "a_worker_that_is_killed_ends_the_benchmark";
    if std::env::var_os("PREEMPTPROF_TEST_ROLE").is_some() {
        let args = messaging::Args {
            group: 1,
            loops: 100_000_000,
            pipe: false,
            thread: false,
        };
        let error = messaging::run(&args).unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
        no_children_left();
        return;
    }
    let mut parent = again(test, "parent")
        .process_group(0)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task", parent.id());
    let worker = (0..400).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        let tasks = std::fs::read_dir(&children).ok()?;
        let all: String = tasks
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
            .collect();
        let pids: Vec<i32> = all
            .split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect();
        (pids.len() == 40).then(|| pids[7])
    });
    // SAFETY: no memory is passed; the process is a child of our child.
    unsafe { libc::kill(worker.unwrap(), libc::SIGKILL) };
    assert!(parent.wait().unwrap().success());
}
