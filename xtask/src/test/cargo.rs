//! Format, lints and tests, by cargo.
//!
//! A test that cannot run where it is run says so itself: it appends a line
//! `name: why` to the file named by [`SKIP_LOG`] and returns. libtest counts it as
//! passed; here it is moved to the skipped ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Selection, Tally};
use crate::host;

/// The environment variable that names the file for skipped tests.
const SKIP_LOG: &str = "PREEMPTPROF_SKIP_LOG";

/// The longest that cargo and what it starts may take, in seconds. Compiling from
/// nothing on two slow cores is in it.
const LIMIT: u64 = 1200;

/// `cargo fmt --check`.
pub(super) fn format(selection: &Selection, tally: &mut Tally) {
    let name = "fmt";
    if !selection.takes(name) {
        return;
    }
    if !has("fmt") {
        tally.skipped(name, "no rustfmt: `rustup component add rustfmt`");
        return;
    }
    let result = host::run(host::cargo().args(["fmt", "--all", "--check"]));
    tally.record(name, result);
}

/// Clippy, with warnings denied, and the warnings of the BPF programs, which
/// clippy cannot see.
pub(super) fn lint(selection: &Selection, tally: &mut Tally) {
    let name = "clippy";
    if !selection.takes(name) {
        return;
    }
    if !has("clippy") {
        tally.skipped(name, "no clippy: `rustup component add clippy`");
        return;
    }
    let mut command = limited();
    command
        .args([
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .stderr(Stdio::piped());
    tally.record(name, lint_result(&mut command));
}

fn lint_result(command: &mut Command) -> Result<()> {
    let shown = host::shown(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot run `{shown}`"))?;
    let stderr = child.stderr.take().context("the output of clippy")?;
    let mut bpf_warnings = 0;
    for line in BufReader::new(stderr).lines() {
        let line = line.context("the output of clippy")?;
        eprintln!("{line}");
        // Those of profiler/build.rs: cargo::warning lines.
        if line.starts_with("warning: profiler@") {
            bpf_warnings += 1;
        }
    }
    let status = child.wait().context("waiting for clippy")?;
    if !status.success() {
        bail!("`{shown}`: {status}");
    }
    if bpf_warnings > 0 {
        bail!("the BPF programs compile with warnings");
    }
    Ok(())
}

/// All of cargo's tests. Integration tests run as root where that can be had
/// without a password: those of a live kernel need it.
pub(super) fn tests(selection: &Selection, tally: &mut Tally) -> Result<()> {
    // No path of a Rust test has a slash: this means virtual machines only.
    if selection
        .filter
        .as_deref()
        .is_some_and(|filter| filter.contains('/'))
    {
        return Ok(());
    }
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let log = folder.path().join("skipped");
    fs::write(&log, "").with_context(|| format!("writing {}", log.display()))?;
    let mut counts = Counts::default();
    let rounds: [(&str, &[&str], bool); 3] = [
        ("unit tests", &["--lib", "--bins"], false),
        ("integration tests", &["--test", "*"], true),
        ("documentation tests", &["--doc"], false),
    ];
    for (name, arguments, as_root) in rounds {
        let mut command = limited();
        command
            .args(["test", "--workspace", "--no-fail-fast"])
            .args(arguments)
            .env(SKIP_LOG, &log);
        if as_root && !host::is_root() && passwordless_sudo() {
            let triple = format!(
                "{}_UNKNOWN_LINUX_GNU",
                std::env::consts::ARCH.to_uppercase()
            );
            command.env(format!("CARGO_TARGET_{triple}_RUNNER"), "sudo -n -E");
        }
        if let Some(filter) = &selection.filter {
            command.args(["--", filter]);
        }
        let before = counts.failed;
        let mut names = Vec::new();
        let status = stream(&mut command, |line| {
            counts.read(line);
            names.extend(failed_test(line));
        })?;
        for test in names {
            println!("FAILED {test}: see its output above");
        }
        // The build failed, or a test process died.
        if !status.success() && counts.failed == before {
            counts.failed += 1;
            println!("FAILED {name}: `{}`: {status}", host::shown(&command));
        }
    }
    let text = fs::read_to_string(&log).with_context(|| format!("reading {}", log.display()))?;
    let skipped = parse_skips(&text);
    for (name, why) in &skipped {
        println!("skipped {name}: {why}");
    }
    let said = skipped.len() as u64;
    tally.passed += counts.passed.saturating_sub(said);
    tally.failed += counts.failed;
    tally.skipped += said + counts.ignored;
    Ok(())
}

/// Runs a command and hands on each line of its standard output, after printing it.
fn stream(command: &mut Command, mut take: impl FnMut(&str)) -> Result<std::process::ExitStatus> {
    let shown = host::shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{shown}`"))?;
    let stdout = child.stdout.take().context("the output of a test")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("the output of a test")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        take(&line);
    }
    child
        .wait()
        .with_context(|| format!("waiting for `{shown}`"))
}

/// The name in `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    Some(name.to_owned())
}

/// What libtest's summaries add up to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Counts {
    /// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`, which may
    /// follow text that a test left without a line end.
    fn read(&mut self, line: &str) {
        let Some((_, summary)) = line.split_once("test result: ") else {
            return;
        };
        let Some((_, numbers)) = summary.split_once(". ") else {
            return;
        };
        for part in numbers.split(';') {
            let Some((number, what)) = part.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// Reads the log of skipped tests; one that says so twice is one.
fn parse_skips(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, why)| (name.trim().to_owned(), why.trim().to_owned()))
        .collect()
}

/// A cargo that is stopped, with all it started, when it takes too long.
fn limited() -> Command {
    let cargo = host::cargo();
    let mut command = Command::new("timeout");
    command
        .args(["--kill-after=10", &LIMIT.to_string()])
        .arg(cargo.get_program())
        .current_dir(host::root());
    command
}

/// Whether cargo has this subcommand's program.
fn has(subcommand: &str) -> bool {
    host::collect(host::cargo().args([subcommand, "--version"]))
        .is_ok_and(|output| output.status.success())
}

fn passwordless_sudo() -> bool {
    host::find("sudo").is_some_and(|sudo| {
        host::collect(Command::new(sudo).args(["-n", "true"]))
            .is_ok_and(|output| output.status.success())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_up_summaries() {
        let mut counts = Counts::default();
        for line in [
            "test a ... ok",
            "test result: ok. 24 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s",
            "stray output test result: FAILED. 2 passed; 3 failed; 0 ignored; 0 measured; 7 filtered out",
            "test result: nonsense",
        ] {
            counts.read(line);
        }
        let expected = Counts {
            passed: 26,
            failed: 3,
            ignored: 1,
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn names_failed_tests() {
        assert_eq!(failed_test("test a::b ... FAILED").as_deref(), Some("a::b"));
        assert_eq!(failed_test("test a::b ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn a_skip_said_twice_is_one() {
        let skips = parse_skips("live::a: not root\nlive::b: no BTF: none\nlive::a: not root\n\n");
        assert_eq!(skips.len(), 2);
        assert_eq!(skips["live::b"], "no BTF: none");
    }
}
