//! `top` in a real terminal: it shows what it says and gives the terminal back.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use command::{PROGRAM, can_measure, has, preemptprof};

/// A terminal of 80 columns and 24 rows with a shell in it.
struct Tmux(String);

impl Tmux {
    fn start(name: &str) -> Self {
        let this = Self(format!("preemptprof-{name}-{}", std::process::id()));
        this.run(&["new-session", "-d", "-x", "80", "-y", "24", "sh"]);
        this
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        let output = tmux
            .args(["-f", "/dev/null", "-L", &self.0])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn type_keys(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        self.run(&arguments);
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    /// Waits until the screen shows all of `texts`.
    #[track_caller]
    fn wait_for(&self, texts: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if texts.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(
                began.elapsed() < Duration::from_secs(120),
                "no {texts:?} on:\n{screen}"
            );
            sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[test]
fn the_terminal_is_given_back_on_every_exit() {
    let test = "the_terminal_is_given_back_on_every_exit";
    if !can_measure(test) || !has(test, "tmux") {
        return;
    }
    let tmux = Tmux::start("test");
    // What `stty` says differs while a program has the terminal.
    let top = format!("clear; {PROGRAM} top --window 4; echo status $?; stty -a");
    for end in ["q", "C-c", "TERM", "HUP"] {
        tmux.type_keys(&[&top, "Enter"]);
        let screen = tmux.wait_for(&["OPTION", "switches", "q quit", "the whole machine"]);
        assert!(screen.lines().all(|line| line.chars().count() <= 80));
        match end {
            "TERM" | "HUP" => {
                let pane = tmux.run(&["list-panes", "-F", "#{pane_pid}"]);
                let children = format!("/proc/{0}/task/{0}/children", pane.trim());
                let children = fs::read_to_string(children).unwrap();
                let pid: i32 = children.split_whitespace().next().unwrap().parse().unwrap();
                let signal = if end == "TERM" {
                    libc::SIGTERM
                } else {
                    libc::SIGHUP
                };
                // SAFETY: a signal to a process this test started.
                unsafe { libc::kill(pid, signal) };
            }
            key => {
                tmux.type_keys(&["Down", "p"]);
                tmux.wait_for(&["paused"]);
                tmux.type_keys(&[key]);
            }
        }
        let screen = tmux.wait_for(&["status 0", " icanon", " echo "]);
        assert!(!screen.contains("-icanon"), "{screen}");
        assert!(!screen.contains("q quit"), "{screen}");
    }
}

/// Nobody is left to press a key.
#[test]
fn a_closed_terminal_ends_it() {
    let test = "a_closed_terminal_ends_it";
    if !can_measure(test) || !has(test, "tmux") {
        return;
    }
    let tmux = Tmux::start("closed");
    // In the shell's place, and deaf to the signal that tells it.
    tmux.type_keys(&[&format!("trap '' HUP; exec {PROGRAM} top"), "Enter"]);
    tmux.wait_for(&["q quit", "the whole machine"]);
    let pid = tmux.run(&["list-panes", "-F", "#{pane_pid}"]);
    let process = format!("/proc/{}/exe", pid.trim());
    assert!(fs::read_link(&process).unwrap().ends_with("preemptprof"));
    tmux.run(&["kill-server"]);
    let began = Instant::now();
    while fs::read_link(&process).is_ok() {
        assert!(began.elapsed() < Duration::from_secs(60), "it goes on");
        sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_pipe_is_no_terminal() {
    let output = preemptprof(["top"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("top needs a terminal"), "{error}");
    assert!(error.contains("hint: "), "{error}");
}
