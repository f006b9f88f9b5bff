//! SIGKILL at any moment: nothing stays armed, and the workload either never
//! began or runs on to its own end.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use command::{Running, can_measure, folder, is_alive, preemptprof, start, wait_until};

/// Ids of the BPF programs and maps that a stopped process holds.
#[derive(Debug, Default)]
struct Held {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Held {
    fn by(pid: i32) -> Self {
        let mut held = Self::default();
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
            return held;
        };
        for descriptor in descriptors.flatten() {
            let info = fs::read_to_string(descriptor.path()).unwrap_or_default();
            for line in info.lines() {
                if let Some(id) = line.strip_prefix("prog_id:") {
                    held.programs.insert(id.trim().parse().unwrap());
                } else if let Some(id) = line.strip_prefix("map_id:") {
                    held.maps.insert(id.trim().parse().unwrap());
                }
            }
        }
        held
    }

    /// What of it the kernel still has.
    fn left(&self) -> Self {
        Self {
            programs: aya::programs::loaded_programs()
                .flatten()
                .map(|program| program.id())
                .filter(|id| self.programs.contains(id))
                .collect(),
            maps: aya::maps::loaded_maps()
                .flatten()
                .map(|map| map.id())
                .filter(|id| self.maps.contains(id))
                .collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.maps.is_empty()
    }
}

/// The children of a process.
fn children(pid: i32) -> Vec<i32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .map(|child| child.parse().unwrap())
        .collect()
}

/// Stops it, looks at what it has, and kills it. A program's id is its own for
/// good, so what others do meanwhile does not matter.
fn kill_and_look(measuring: &mut Running) -> (Held, Vec<i32>) {
    measuring.signal(libc::SIGSTOP);
    let pid = measuring.pid();
    wait_until("stopping", || {
        fs::read_to_string(format!("/proc/{pid}/stat"))
            .unwrap()
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.starts_with(" T") || rest.starts_with(" Z"))
    });
    let held = Held::by(pid);
    let children = children(pid);
    measuring.signal(libc::SIGKILL);
    measuring.wait();
    (held, children)
}

#[test]
fn killed_at_any_moment_nothing_stays() {
    if !can_measure("killed_at_any_moment_nothing_stays") {
        return;
    }
    let folder = folder();
    let (mut armed, mut at_the_gate, mut running) = (0, 0, 0);
    // Set-up takes some 100 ms on a quick machine and seconds on a busy one, so the
    // first round waits for what it is to meet.
    let moments = (0..12)
        .map(|step| step * 25)
        .chain((0..8).map(|step| 300 + step * 150));
    let rounds = std::iter::once(None).chain(moments.map(Some));
    for (round, milliseconds) in rounds.enumerate() {
        let began = folder.path().join(format!("began{round}"));
        let ended = folder.path().join(format!("ended{round}"));
        let mut command = preemptprof(["record", "-o"]);
        command
            .arg(folder.path().join(format!("{round}.pprec")))
            .args([
                "--",
                "sh",
                "-c",
                ": > \"$0\"; sleep 0.3; echo said; : > \"$1\"",
            ])
            .arg(&began)
            .arg(&ended);
        let mut measuring = start(command);
        match milliseconds {
            Some(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
            None => wait_until("the start of the workload", || began.exists()),
        }
        if measuring.child.try_wait().unwrap().is_some() {
            break;
        }
        let (held, children) = kill_and_look(&mut measuring);
        for &child in &children {
            wait_until("the end of the child", || !is_alive(child));
        }
        // What began ends; what did not begin by now never will.
        if began.exists() {
            wait_until("the end of the workload", || ended.exists());
            running += 1;
        } else {
            at_the_gate += children.len();
        }
        wait_until("the end of the programs", || held.left().is_empty());
        armed += held.programs.len();
        drop(measuring);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(began.exists(), ended.exists(), "after {milliseconds:?} ms");
    }
    // The moments did catch each stage.
    assert!(armed > 0, "nothing was ever attached");
    assert!(at_the_gate > 0, "never caught at the gate");
    assert!(running > 0, "never caught while running");
}

/// The output of a workload that lost its profiler goes on.
#[test]
fn a_workload_that_lost_its_profiler_is_undisturbed() {
    if !can_measure("a_workload_that_lost_its_profiler_is_undisturbed") {
        return;
    }
    let folder = folder();
    let ready = folder.path().join("ready");
    let script = ": > \"$0\"; sleep 0.5; echo to stdout; echo to stderr >&2; /bin/true && echo $?";
    let mut command = preemptprof(["run", "--", "sh", "-c", script]);
    command.arg(&ready);
    let mut measuring = start(command);
    wait_until("the workload", || ready.exists());
    let (held, _) = kill_and_look(&mut measuring);
    assert!(!held.programs.is_empty());
    wait_until("the end of the programs", || held.left().is_empty());
    // Ends when the workload has closed its output.
    let finished = measuring.finish();
    assert_eq!(finished.out(), "to stdout\n0\n");
    assert_eq!(finished.err(), "to stderr\n");
}
