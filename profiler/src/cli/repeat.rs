//! Flags that make several runs of one, and the commands between them.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use clap::Args;

use crate::collect::{Ended, Signals, Step, schedule};
use crate::error::hinted;

/// How often the command is run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Repeats")]
pub struct RepeatArgs {
    /// Profile so many runs, each paired with one that nothing is attached to
    #[arg(short = 'n', long = "runs", value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub runs: Option<u32>,
    /// Profiled runs only
    #[arg(long)]
    pub no_baseline: bool,
    /// First run the command so many times unmeasured
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub warmup: u32,
    /// Shell command to run before each run, warm-ups too
    #[arg(long, value_name = "CMD")]
    pub prepare: Option<OsString>,
    /// Shell command to run between two runs
    #[arg(long, value_name = "CMD")]
    pub between: Option<OsString>,
    /// What to compare runs by: wall, a benchmark's name, or
    /// NAME[:lower|higher][:UNIT]=REGEX with the number in the first group; by
    /// default what a known benchmark prints, else the wall time
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Go on when a run ends with a status other than 0
    #[arg(short, long)]
    pub ignore_failure: bool,
}

impl RepeatArgs {
    /// The runs to make.
    ///
    /// # Errors
    ///
    /// When there is no command that could be run more than once.
    pub(super) fn steps(&self, has_command: bool) -> anyhow::Result<Vec<Step>> {
        let repeats = self.runs.is_some()
            || self.warmup > 0
            || self.prepare.is_some()
            || self.between.is_some()
            || self.metric.is_some();
        if repeats && !has_command {
            return Err(hinted(
                "-n, --warmup, --prepare, --between and --metric need a command",
                ["what runs already cannot be run again; give a command after --"],
            ));
        }
        // A command that is run once is run exactly once.
        let baseline = self.runs.is_some() && !self.no_baseline;
        Ok(schedule(1, self.runs.unwrap_or(1), self.warmup, baseline))
    }

    /// Runs what comes before a run; `first` of all or not. False when a signal
    /// came meanwhile: no further run is to be made.
    ///
    /// # Errors
    ///
    /// When such a command fails.
    pub(super) fn before(
        &self,
        first: bool,
        point: &BTreeMap<String, String>,
        signals: &Signals,
    ) -> anyhow::Result<bool> {
        let between = self.between.as_ref().filter(|_| !first);
        for (flag, command) in [("--between", between), ("--prepare", self.prepare.as_ref())] {
            if let Some(command) = command {
                shell(flag, command, point, signals)?;
            }
            if signals.came() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Runs a shell command. Its stdout goes to stderr: stdout is the workload's.
fn shell(
    flag: &str,
    command: &OsStr,
    point: &BTreeMap<String, String>,
    signals: &Signals,
) -> anyhow::Result<()> {
    let command = fill(command, point);
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg(&command)
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .status()
        .with_context(|| format!("{flag}: starting /bin/sh"))?;
    // Ctrl-C ends it too, and is no failure of its own.
    if status.success() || signals.came() {
        return Ok(());
    }
    Err(hinted(
        format!("{flag} failed ({status}): {}", command.display()),
        ["append `|| true` to the command if that does not matter"],
    ))
}

/// How a series of runs goes.
pub(super) struct Progress {
    ignore_failure: bool,
    of: usize,
    made: usize,
    failures: usize,
    /// The first that was not well.
    failed: Option<Ended>,
    last: Ended,
    /// Tasks of the target for which there was no room.
    refused: usize,
    warnings: Vec<String>,
}

impl Progress {
    pub(super) fn new(ignore_failure: bool, of: usize) -> Self {
        Self {
            ignore_failure,
            of,
            made: 0,
            failures: 0,
            failed: None,
            last: Ended::Stopped,
            refused: 0,
            warnings: Vec::new(),
        }
    }

    /// Notes how many tasks of the target there was no room for in a run.
    pub(super) fn refused(&mut self, tasks: usize) {
        self.refused += tasks;
    }

    /// Notes that a signal ended the series between two runs.
    pub(super) fn interrupted(&mut self) {
        self.warnings.push(format!(
            "A signal ended the series after {} of {} runs.",
            self.made, self.of
        ));
    }

    /// Notes how a run ended; whether there is to be another.
    pub(super) fn go_on(&mut self, ended: Ended) -> bool {
        self.made += 1;
        let what = match &ended {
            Ended::Exited(exit) if exit.status != 0 => format!("ended with status {}", exit.status),
            Ended::CannotStart(refused) => format!("could not begin: {:#}", refused.error),
            Ended::Exited(_) | Ended::Stopped => {
                self.last = ended;
                return true;
            }
        };
        let goes_on = self.ignore_failure && matches!(ended, Ended::Exited(_));
        self.failures += 1;
        self.failed.get_or_insert(ended);
        if !goes_on && self.made < self.of {
            self.warnings.push(format!(
                "Run {} of {} {what}: no further run was made. --ignore-failure goes on.",
                self.made, self.of
            ));
        }
        goes_on
    }

    /// How the command ended, the first time that was not well, else the last;
    /// and what there is to say.
    pub(super) fn finish(mut self) -> (Ended, Vec<String>) {
        if self.refused > 0 {
            self.warnings.push(format!(
                "{} tasks of the target are counted as others: there was no room for them.",
                self.refused
            ));
        }
        if self.ignore_failure && self.of > 1 && self.failures > 0 {
            self.warnings.push(format!(
                "{} of {} runs ended with a status other than 0.",
                self.failures, self.made
            ));
        }
        (self.failed.unwrap_or(self.last), self.warnings)
    }
}

/// The text with `{name}` replaced by the value of a sweep's parameter.
pub(super) fn fill(text: &OsStr, point: &BTreeMap<String, String>) -> OsString {
    // What is not UTF-8 has no parameters.
    let Some(plain) = text.to_str().filter(|_| !point.is_empty()) else {
        return text.to_owned();
    };
    let mut out = String::with_capacity(plain.len());
    let mut rest = plain;
    // Left to right and once: a value may itself look like a parameter.
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let known = rest.find('}').and_then(|close| {
            let value = point.get(&rest[1..close])?;
            Some((value, close))
        });
        let Some((value, close)) = known else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        out.push_str(value);
        rest = &rest[close + 1..];
    }
    out.push_str(rest);
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::workload::Exit;

    fn exited(status: i32) -> Ended {
        Ended::Exited(Exit { status })
    }

    #[test]
    fn a_failure_ends_the_series_unless_it_is_to_be_ignored() {
        let mut strict = Progress::new(false, 5);
        assert!(strict.go_on(exited(0)));
        assert!(!strict.go_on(exited(3)));
        let (ended, warnings) = strict.finish();
        assert!(matches!(ended, Ended::Exited(Exit { status: 3 })));
        assert!(warnings[0].starts_with("Run 2 of 5 ended with status 3"));

        let mut lax = Progress::new(true, 3);
        assert!(lax.go_on(exited(4)) && lax.go_on(exited(5)) && lax.go_on(exited(0)));
        let (ended, warnings) = lax.finish();
        assert!(matches!(ended, Ended::Exited(Exit { status: 4 })));
        assert_eq!(warnings, ["2 of 3 runs ended with a status other than 0."]);

        let mut once = Progress::new(false, 1);
        assert!(!once.go_on(exited(7)));
        assert_eq!(once.finish().1, Vec::<String>::new());
    }

    #[test]
    fn parameters_are_filled_in_once() {
        let point = BTreeMap::from([
            ("groups".to_owned(), "{n}".to_owned()),
            ("n".to_owned(), "4".to_owned()),
        ]);
        for (text, filled) in [
            ("-g{groups}", "-g{n}"),
            ("{n}{n}", "44"),
            ("{{n}}", "{4}"),
            ("{x}{", "{x}{"),
            ("{}", "{}"),
            ("", ""),
        ] {
            assert_eq!(fill(OsStr::new(text), &point), filled, "{text}");
        }
    }
}
