//! Flags that make several runs of one, and the commands between them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use clap::Args;

use super::meter::Meter;
use crate::collect::workload::CannotStart;
use crate::collect::{Ended, Signals, Step, schedule};
use crate::error::hinted;

/// How often the command is run.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Repeats")]
pub struct RepeatArgs {
    /// Profile so many runs, each paired with an unprofiled one
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
    /// NAME[:lower|higher][:UNIT]=REGEX with the number in its first group
    #[arg(long, value_name = "METRIC")]
    pub metric: Option<String>,
    /// Run the command once, or -n times, for each of these values, put in place of
    /// {NAME} in it; repeatable, which makes every combination
    #[arg(long, value_name = "NAME=V1,V2,...", value_parser = parse_sweep)]
    pub sweep: Vec<Parameter>,
    /// Go on with the sweep that was interrupted
    #[arg(long, requires = "sweep")]
    pub resume: bool,
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
            || self.metric.is_some()
            || !self.sweep.is_empty();
        if repeats && !has_command {
            return Err(hinted(
                "-n, --warmup, --prepare, --between, --metric and --sweep need a command",
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
                if signals.came() {
                    return Ok(false);
                }
            }
        }
        // What came before the first run ended something else.
        Ok(first || !signals.came())
    }
}

/// A parameter of a sweep and the values it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

/// Reads `groups=1,4,7`.
fn parse_sweep(text: &str) -> Result<Parameter, String> {
    let form = || "not of the form NAME=V1,V2,..., such as groups=1,4,7".to_owned();
    let (name, values) = text.split_once('=').ok_or_else(form)?;
    let name = name.trim();
    let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let values: Vec<String> = values
        .split(',')
        .map(|value| value.trim().to_owned())
        .collect();
    if name.is_empty() || !name.chars().all(plain) || values.iter().any(String::is_empty) {
        return Err(form());
    }
    let mut seen = BTreeSet::new();
    match values.iter().find(|value| !seen.insert(value.as_str())) {
        Some(twice) => Err(format!("{twice} is given twice")),
        None => Ok(Parameter {
            name: name.to_owned(),
            values,
        }),
    }
}

/// What holds of all runs that one call of the program makes.
pub(super) struct Occasion {
    pub(super) signals: Signals,
    pub(super) meter: Meter,
    /// Points of the sweep; one without parameters when there is none.
    pub(super) points: Vec<BTreeMap<String, String>>,
    /// The one at hand.
    pub(super) point: BTreeMap<String, String>,
}

impl Occasion {
    /// Begins it: from now on signals are caught.
    pub(super) fn begin(repeat: &RepeatArgs) -> anyhow::Result<Self> {
        let points = points(&repeat.sweep)?;
        let steps = repeat.steps(true)?.len();
        Ok(Self {
            signals: Signals::block().context("catching signals")?,
            meter: Meter::new(points.len() * steps),
            point: BTreeMap::new(),
            points,
        })
    }

    pub(super) fn is_sweep(&self) -> bool {
        self.points.iter().any(|point| !point.is_empty())
    }

    /// The command at this point.
    pub(super) fn command(&self, template: &[OsString]) -> Vec<OsString> {
        template
            .iter()
            .map(|word| fill(word, &self.point))
            .collect()
    }
}

/// Every combination of the parameters' values, the last changing fastest.
fn points(parameters: &[Parameter]) -> anyhow::Result<Vec<BTreeMap<String, String>>> {
    const MOST: usize = 10_000;
    let mut points = vec![BTreeMap::new()];
    for parameter in parameters {
        if points[0].contains_key(&parameter.name) {
            return Err(hinted(
                format!("--sweep {} is given twice", parameter.name),
                ["give all its values at once, separated by commas"],
            ));
        }
        points = points
            .iter()
            .flat_map(|point| {
                parameter.values.iter().map(|value| {
                    let mut point = point.clone();
                    point.insert(parameter.name.clone(), value.clone());
                    point
                })
            })
            .take(MOST + 1)
            .collect();
    }
    if points.len() > MOST {
        return Err(hinted(
            format!("--sweep: more than {MOST} combinations"),
            ["sweep fewer parameters at a time"],
        ));
    }
    Ok(points)
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

/// Why there is no recording: the command did not get as far as a profiled run.
pub(super) fn nothing_profiled(ended: Ended) -> CannotStart {
    let (status, what) = match ended {
        Ended::CannotStart(refused) => return refused,
        Ended::Exited(exit) => (
            exit.status,
            format!("the command ended with status {}", exit.status),
        ),
        Ended::Stopped => (128 + libc::SIGINT, "a signal came".to_owned()),
    };
    CannotStart {
        status,
        error: hinted(
            format!("{what} before any run was profiled: nothing is recorded"),
            ["--ignore-failure goes on after a run that failed"],
        ),
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
    fn a_sweep_is_every_combination() {
        let parse = |text: &str| parse_sweep(text).unwrap();
        let two = points(&[parse("g=1,4"), parse("l = a, b")]).unwrap();
        let named: Vec<String> = two
            .iter()
            .map(|point| format!("{}{}", point["g"], point["l"]))
            .collect();
        assert_eq!(named, ["1a", "1b", "4a", "4b"]);
        assert_eq!(points(&[]).unwrap(), [BTreeMap::new()]);
        assert!(points(&[parse("g=1"), parse("g=2")]).is_err());
        let many: Vec<String> = (0..200).map(|value| value.to_string()).collect();
        let many = format!("x={}", many.join(","));
        let many = ["x", "y", "z"].map(|name| parse(&many.replacen('x', name, 1)));
        assert!(points(&many).is_err());
        for wrong in ["", "g", "g=", "=1", "g=1,,2", "g=1,1", "a b=1", "{g}=1"] {
            assert!(parse_sweep(wrong).is_err(), "{wrong}");
        }
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
