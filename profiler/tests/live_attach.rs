//! Measuring what runs already: processes, cgroups, the whole machine.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use command::{
    Running, can_measure, finish, folder, has, preemptprof, run, skip, start, valid_report,
    wait_until,
};
use serde_json::Value;

/// A process that naps until it is killed.
fn napper() -> Running {
    let mut command = Command::new("perl");
    command.args(["-e", "select undef, undef, undef, 0.001 while 1"]);
    start(command)
}

/// Starts `preemptprof run` on something that runs.
fn attach(report: &Path, options: &[&str]) -> Running {
    let mut command = preemptprof(["run", "--format", "json", "--report"]);
    command.arg(report).args(options);
    start(command)
}

/// Waits until `preemptprof` samples: its perf events are open.
fn wait_for_samplers(measuring: &Running) {
    let folder = PathBuf::from(format!("/proc/{}/fd", measuring.pid()));
    wait_until("sampling", || {
        fs::read_dir(&folder).is_ok_and(|fds| {
            fds.flatten().any(|fd| {
                fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("anon_inode:[eventpoll]"))
            })
        })
    });
    thread::sleep(Duration::from_millis(200));
}

fn document(path: &Path) -> Value {
    valid_report(&fs::read(path).unwrap())
}

fn voluntary(report: &Value) -> u64 {
    report["switches"]["voluntary"].as_u64().unwrap()
}

#[test]
fn a_process_is_watched_for_a_time() {
    let test = "a_process_is_watched_for_a_time";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("report");
    let napper = napper();
    let pid = napper.pid().to_string();
    let begin = Instant::now();
    let finished = attach(&path, &["-p", &pid, "--duration", "700ms"]).finish();
    assert!(begin.elapsed() >= Duration::from_millis(700));
    let finished = finished.exits(0);
    assert!(finished.stdout.is_empty() && finished.stderr.is_empty());
    assert!(command::is_alive(napper.pid()));
    let report = document(&path);
    assert!(voluntary(&report) >= 20, "{}", report["switches"]);
    assert!(report["run"]["command"].as_array().unwrap().is_empty());
    assert!(report["run"].get("exit_code").is_none());
    assert!(report["run"]["wall_s"].as_f64().unwrap() >= 0.7);
}

#[test]
fn watching_ends_with_the_last_process() {
    let test = "watching_ends_with_the_last_process";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("report");
    let (mut first, mut second) = (napper(), napper());
    let pids = format!("{},{}", first.pid(), second.pid());
    let mut measuring = attach(&path, &["-p", &pids]);
    wait_for_samplers(&measuring);
    first.signal(libc::SIGKILL);
    first.wait();
    thread::sleep(Duration::from_millis(500));
    assert!(measuring.child.try_wait().unwrap().is_none(), "one is left");
    second.signal(libc::SIGKILL);
    second.wait();
    measuring.finish().exits(0);
    assert!(voluntary(&document(&path)) >= 20);
}

/// Children made before and after the start of the measurement.
#[test]
fn a_watched_process_has_its_children_with_it() {
    let test = "a_watched_process_has_its_children_with_it";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("report");
    let go = folder.path().join("go");
    let script = format!(
        "sub nap {{ select undef, undef, undef, 0.002 for 1..$_[0] }} \
         if (!fork) {{ nap 1 until -e '{0}'; nap 100; exit }} \
         sleep 1 until -e '{0}'; \
         if (!fork) {{ nap 200; exit }} \
         1 while wait > 0;",
        go.display()
    );
    let mut family = Command::new("perl");
    family.args(["-e", &script]);
    let family = start(family);
    let measuring = attach(&path, &["-p", &family.pid().to_string()]);
    wait_for_samplers(&measuring);
    fs::write(&go, "").unwrap();
    family.finish().exits(0);
    measuring.finish().exits(0);
    assert!(
        voluntary(&document(&path)) >= 300,
        "{}",
        document(&path)["switches"]
    );
}

#[test]
fn a_process_that_is_not_there_is_an_error() {
    if !can_measure("a_process_that_is_not_there_is_an_error") {
        return;
    }
    let mut gone = start(Command::new("true"));
    gone.wait();
    let pid = gone.pid().to_string();
    run(["run", "-p", &pid]).refuses_with_hint(125, &format!("no process {pid}"));
    run(["run", "-p", &format!("1,{pid}")]).refuses_with_hint(125, &format!("no process {pid}"));
}

#[test]
fn the_machine_is_watched_until_the_time_is_up() {
    if !can_measure("the_machine_is_watched_until_the_time_is_up") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("report");
    attach(&path, &["-a", "--duration", "1"]).finish().exits(0);
    let report = document(&path);
    assert!(report["switches"]["total"].as_u64().unwrap() > 0);
    // Two samplers at 997 Hz see idle or work: some hundred samples a CPU even
    // on a machine that is starved.
    let seen = report["sampling"]["samples"].as_u64().unwrap()
        + report["coverage"]["idle_samples"].as_u64().unwrap()
        + report["other"]["profiler_samples"].as_u64().unwrap();
    assert!(seen > 50, "{seen}");
}

#[test]
fn a_signal_ends_the_watching_of_the_machine_with_a_report() {
    if !can_measure("a_signal_ends_the_watching_of_the_machine_with_a_report") {
        return;
    }
    let folder = folder();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let path = folder.path().join(signal.to_string());
        let measuring = attach(&path, &["-a"]);
        wait_for_samplers(&measuring);
        measuring.signal(signal);
        measuring.finish().exits(0);
        document(&path);
    }
}

#[test]
fn only_the_chosen_cpu_is_covered() {
    if !can_measure("only_the_chosen_cpu_is_covered") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("report");
    attach(&path, &["-a", "-C", "0", "--duration", "300ms"])
        .finish()
        .exits(0);
    assert_eq!(document(&path)["coverage"]["cpus"], "0");
}

/// A cgroup of the test's own, removed with it.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        for path in [self.0.join("below"), self.0.clone()] {
            let _ = fs::remove_dir(path);
        }
    }
}

fn cgroup_mount(kind: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == kind).then(|| point.into())
    })
}

#[test]
fn a_cgroup_and_those_below_it_are_watched() {
    let test = "a_cgroup_and_those_below_it_are_watched";
    if !can_measure(test) || !has(test, "perl") {
        return;
    }
    let Some(mount) = cgroup_mount("cgroup2") else {
        skip(test, "cgroup2 is not mounted");
        return;
    };
    let name = format!("preemptprof-test-{}", std::process::id());
    let group = Cgroup(mount.join(&name));
    if let Err(error) = fs::create_dir_all(group.0.join("below")) {
        skip(test, &format!("no cgroup can be made: {error}"));
        return;
    }
    let (inside, below, outside) = (napper(), napper(), napper());
    fs::write(group.0.join("cgroup.procs"), inside.pid().to_string()).unwrap();
    fs::write(group.0.join("below/cgroup.procs"), below.pid().to_string()).unwrap();
    let folder = folder();
    let absolute = group.0.display().to_string();
    for path in [absolute.as_str(), &name] {
        let file = folder.path().join("a.pprec");
        let mut command = preemptprof([
            "record",
            "--force",
            "--duration",
            "600ms",
            "--cgroup",
            path,
            "-o",
        ]);
        command.arg(&file);
        finish(command).exits(0);
        let recording = profiler::recording::read(&file).unwrap();
        let counted = |pid: i32| {
            let pid = u32::try_from(pid).unwrap();
            recording
                .trailer
                .task_switches
                .iter()
                .find(|task| task.pid == pid)
                .map(|task| task.counts.voluntary)
        };
        assert!(counted(inside.pid()) > Some(10), "{path}");
        assert!(counted(below.pid()) > Some(10), "{path}");
        assert_eq!(counted(outside.pid()), None, "{path}");
        assert!(recording.trailer.other_switches.unwrap().voluntary > 10);
    }
    drop((inside, below, outside));
    drop(group);
}

#[test]
fn what_is_no_cgroup_of_version_2_is_refused() {
    let test = "what_is_no_cgroup_of_version_2_is_refused";
    if !can_measure(test) {
        return;
    }
    for path in ["/", "/etc", "no/such/cgroup", "/sys/fs/cgroup/no/such"] {
        run(["run", "--cgroup", path, "--duration", "1"]).refuses_with_hint(125, path);
    }
    let Some(version_1) = cgroup_mount("cgroup") else {
        skip(test, "no cgroup of version 1 is mounted");
        return;
    };
    let refused = run([
        "run".as_ref(),
        "--duration".as_ref(),
        "1".as_ref(),
        "--cgroup".as_ref(),
        version_1.as_os_str(),
    ])
    .refuses_with_hint(125, "--cgroup");
    assert!(refused.err().contains("version 1"), "{}", refused.err());
}
