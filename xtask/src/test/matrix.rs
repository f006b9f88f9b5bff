//! The kernels of the matrix, one boot each, and the lab kernels where there are
//! any; two at a time, as a guest seldom uses both of its CPUs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::checks::{self, Check, Section, Subject};
use super::{Selection, Tally, recording, runs};
use crate::dist;
use crate::host;
use crate::kernels::{self, Kernel};
use crate::vm::{Failure, GuestFile, Outcome, Vm};

/// Lab kernels that take part where they are found.
const LAB: [&str; 2] = ["6.1-plain", "6.1-debug-preempt"];

/// The kernel that is also booted with a model on its command line, and the model.
const BOOTED_MODEL: (&str, &str) = ("6.12", "full");

/// The longest a boot with all its checks may take. It takes a tenth of that on an
/// idle machine.
const LIMIT: Duration = Duration::from_secs(400);

/// How many guests run at once, of two CPUs each.
const GUESTS: usize = 2;

/// The CPU of the guests. With `rep movsb` and `rep stosb` said to be fast the kernel
/// clears and copies memory a byte at a time, each an instruction to an emulator: a
/// third of all the time. Vectors and a fifth level of page tables are dear as well.
const CPU: &str = "max,-erms,-fsrm,-la57,-avx,-avx2";

/// What no check is about and takes a second or two of a boot.
const APPEND: &str = "cryptomgr.notests tsc=reliable";

/// Lines that part the checks of a boot in its output.
const BEGIN: &str = "@@check ";
const END: &str = "@@status ";

/// Boots every kernel and runs the checks whose names are selected.
pub(super) fn run(selection: &Selection, tally: &mut Tally) -> Result<()> {
    let table = kernels::table()?;
    let mut subjects: Vec<(Subject, Option<Kernel>)> = Vec::new();
    for entry in &table {
        let mut subject = Subject {
            name: format!("vm/{}", entry.name),
            release: format!("{}.", entry.name.trim_end_matches("-rt")),
            models: entry.models.clone(),
            booted_model: None,
        };
        subjects.push((subject.clone(), None));
        if entry.name == BOOTED_MODEL.0 {
            subject.name = format!("vm/{} preempt={}", entry.name, BOOTED_MODEL.1);
            subject.booted_model = Some(BOOTED_MODEL.1.to_owned());
            subjects.push((subject, None));
        }
    }
    for name in LAB {
        let subject = Subject {
            name: format!("vm/{name}"),
            release: "6.1.".to_owned(),
            models: ["full", "none", "voluntary"].map(str::to_owned).to_vec(),
            booted_model: None,
        };
        match kernels::lab(name) {
            Some(kernel) => subjects.push((subject, Some(kernel))),
            None if selected(&subject, selection).is_empty() => {}
            None => tally.skipped(&subject.name, "no lab kernels"),
        }
    }
    subjects.retain(|(subject, _)| {
        !selected(subject, selection).is_empty() || selection.takes(&name(subject, recording::NAME))
    });
    if subjects.is_empty() {
        return Ok(());
    }

    let programs = match Programs::build() {
        Ok(programs) => {
            tally.ok("dist");
            programs
        }
        Err(error) => {
            tally.failed_with("dist", &error);
            return Ok(());
        }
    };
    let queue = Mutex::new(subjects.into_iter());
    let tally = Mutex::new(tally);
    thread::scope(|scope| {
        for _ in 0..GUESTS {
            scope.spawn(|| {
                loop {
                    // A poisoned lock still holds what it guards.
                    let next = queue.lock().unwrap_or_else(|e| e.into_inner()).next();
                    let Some((subject, kernel)) = next else {
                        return;
                    };
                    let lines = judge(&subject, kernel, &programs, selection);
                    let mut tally = tally.lock().unwrap_or_else(|e| e.into_inner());
                    for (name, verdict) in lines {
                        match verdict {
                            Verdict::Ran(result) => tally.record(&name, result),
                            Verdict::Skipped(why) => tally.skipped(&name, &why),
                        }
                    }
                }
            });
        }
    });
    Ok(())
}

/// What the checks need.
struct Programs {
    /// `preemptprof`, static: it runs in guests and here.
    preemptprof: PathBuf,
    /// `preemptprof-epochs`.
    epochs: PathBuf,
}

impl Programs {
    fn build() -> Result<Self> {
        let epochs = ["build", "--quiet", "--package", "preemptprof-epochs"];
        Ok(Self {
            preemptprof: dist::dist()?.binary,
            epochs: host::cargo_build(host::cargo().args(epochs))?,
        })
    }
}

/// What came of a check.
enum Verdict {
    Ran(Result<()>),
    Skipped(String),
}

/// Names of results and what they are.
type Lines = Vec<(String, Verdict)>;

/// The checks of a kernel that the filter leaves.
fn selected(subject: &Subject, selection: &Selection) -> Vec<&'static Check> {
    checks::all()
        .filter(|check| selection.takes(&name(subject, check.name)))
        .collect()
}

fn name(subject: &Subject, check: &str) -> String {
    format!("{} {check}", subject.name)
}

/// Runs the checks on one kernel and judges those that are selected.
fn judge(
    subject: &Subject,
    kernel: Option<Kernel>,
    programs: &Programs,
    selection: &Selection,
) -> Lines {
    let whole = |result| vec![(subject.name.clone(), Verdict::Ran(result))];
    let kernel = match kernel {
        Some(kernel) => Ok(kernel),
        None => {
            let name = subject.name.trim_start_matches("vm/");
            kernels::resolve(name.split(' ').next().unwrap_or(name))
        }
    };
    let share = match tempfile::tempdir().context("a temporary folder") {
        Ok(share) => share,
        Err(error) => return whole(Err(error)),
    };
    let judged = selected(subject, selection);
    let recorded = selection.takes(&name(subject, recording::NAME));
    // These are about what the others did.
    let all = recorded || checks::last().any(|last| judged.iter().any(|c| c.name == last.name));
    let run: Vec<&Check> = checks::all()
        .filter(|check| runs::source(check.name) == check.name)
        .filter(|check| all || judged.iter().any(|c| runs::source(c.name) == check.name))
        .filter(|check| (check.skip)(subject).is_none())
        .collect();
    let booted = kernel.and_then(|kernel| boot(subject, kernel, programs, &run, share.path()));
    let (sections, console) = match booted {
        Ok(booted) => booted,
        Err(error) => return whole(Err(error)),
    };

    let mut lines = Lines::new();
    for check in judged {
        let verdict = match (check.skip)(subject) {
            Some(why) => Verdict::Skipped(why),
            None => Verdict::Ran(
                sections
                    .get(runs::source(check.name))
                    .with_context(|| "the guest did not get to the end of it")
                    .and_then(|section| (check.verify)(subject, section)),
            ),
        };
        lines.push((name(subject, check.name), verdict));
    }
    if recorded {
        let result = recording::verify(
            subject,
            &programs.preemptprof,
            &programs.epochs,
            share.path(),
        );
        lines.push((name(subject, recording::NAME), Verdict::Ran(result)));
    }
    lines.push((name(subject, "console"), Verdict::Ran(console)));
    lines
}

/// Runs checks in one boot: what each printed, and whether the console is clean.
///
/// # Errors
///
/// When there was no boot at all.
fn boot(
    subject: &Subject,
    kernel: Kernel,
    programs: &Programs,
    checks: &[&Check],
    share: &Path,
) -> Result<(BTreeMap<String, Section>, Result<()>)> {
    let mut vm = Vm::new(kernel);
    vm.cpu = CPU.to_owned();
    vm.timeout = LIMIT;
    vm.root = Some(share.to_owned());
    vm.files
        .push(GuestFile::at(&programs.preemptprof, "/usr/bin/preemptprof"));
    vm.append = APPEND.to_owned();
    if let Some(model) = &subject.booted_model {
        vm.append.push_str(&format!(" preempt={model}"));
    }
    let mut files = Vec::new();
    let script = scripts(subject, checks, &mut files)?;
    vm.files.extend(
        files
            .iter()
            .map(|(file, path)| GuestFile::at(file.path(), path)),
    );
    let (output, console) = match vm.run(&script) {
        Ok(outcome) => {
            let complaints = outcome.complaints.join("; ");
            let console = if complaints.is_empty() {
                Ok(())
            } else {
                Err(anyhow::anyhow!("the kernel complains: {complaints}"))
            };
            eprintln!("{}: {}", subject.name, times(&outcome));
            (outcome.output, console)
        }
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) => (failure.output.clone(), Err(error)),
            None => return Err(error),
        },
    };
    Ok((parse(&output), console))
}

/// How many of the checks that took longest are told.
const DEAREST: usize = 4;

/// Where the time of a boot went.
fn times(outcome: &Outcome) -> String {
    let mut spent = durations(&outcome.output, &outcome.arrivals);
    spent.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    let dearest: Vec<String> = spent
        .iter()
        .take(DEAREST)
        .map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64()))
        .collect();
    format!(
        "booted in {:.1} s, {:.1} s in all, {:.1} s of CPU; dearest: {}",
        outcome.boot.as_secs_f64(),
        outcome.total.as_secs_f64(),
        outcome.cpu_time.as_secs_f64(),
        dearest.join(", ")
    )
}

/// How long each check took that came to its end, by when its lines arrived.
fn durations<'a>(output: &'a str, arrivals: &[(usize, Duration)]) -> Vec<(&'a str, Duration)> {
    let arrived = |at: usize| {
        let upto = arrivals.partition_point(|(from, _)| *from <= at);
        arrivals[..upto]
            .last()
            .map_or_else(Duration::default, |a| a.1)
    };
    let mut spent = Vec::new();
    let mut open = None;
    let mut at = 0;
    for line in output.split_inclusive('\n') {
        if let Some(name) = line.strip_prefix(BEGIN) {
            open = Some((name.trim_end(), arrived(at)));
        } else if line.starts_with(END)
            && let Some((name, began)) = open.take()
        {
            spent.push((name, arrived(at).saturating_sub(began)));
        }
        at += line.len();
    }
    spent
}

/// The script of a boot. Each check's own part is a file, so that one with broken
/// syntax or an `exit` does not end the others.
fn scripts(
    subject: &Subject,
    checks: &[&Check],
    files: &mut Vec<(tempfile::NamedTempFile, String)>,
) -> Result<String> {
    let mut script = String::new();
    for check in checks {
        let file = tempfile::NamedTempFile::new().context("a temporary file")?;
        let text = format!("{}{}\n", runs::prelude(subject), (check.script)(subject));
        std::fs::write(file.path(), text).context("a check's script")?;
        let path = format!("/vm/checks/{}", check.name);
        script.push_str(&format!(
            "echo '{BEGIN}{name}'; sh {path}; status=$?; echo; echo \"{END}$status\"\n",
            name = check.name
        ));
        files.push((file, path));
    }
    for (path, text) in runs::FILES {
        let file = tempfile::NamedTempFile::new().context("a temporary file")?;
        std::fs::write(file.path(), text).context("a workload's script")?;
        files.push((file, path.to_owned()));
    }
    Ok(script)
}

/// Parts the output of a boot into its checks; one that did not end is left out.
fn parse(output: &str) -> BTreeMap<String, Section> {
    let mut sections = BTreeMap::new();
    let mut open: Option<(String, String)> = None;
    for line in output.lines() {
        if let Some(name) = line.strip_prefix(BEGIN) {
            open = Some((name.to_owned(), String::new()));
        } else if let Some(status) = line.strip_prefix(END) {
            if let (Some((name, mut output)), Ok(status)) = (open.take(), status.parse()) {
                // The line end that was put before the status.
                if output.ends_with("\n\n") || output == "\n" {
                    output.pop();
                }
                sections.insert(name, Section { status, output });
            }
        } else if let Some((_, text)) = &mut open {
            text.push_str(line);
            text.push('\n');
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_the_output_of_a_boot() {
        let output = "noise\n@@check a\none\ntwo\n\n@@status 0\n@@check b\nno end\n@@status 3\n\
            @@check c\n\n@@status 0\n@@check d\ncut off";
        let sections = parse(output);
        let section = |status, output: &str| Section {
            status,
            output: output.to_owned(),
        };
        assert_eq!(sections["a"], section(0, "one\ntwo\n"));
        assert_eq!(sections["b"], section(3, "no end\n"));
        assert_eq!(sections["c"], section(0, ""));
        assert!(!sections.contains_key("d"));
    }

    #[test]
    fn says_how_long_checks_took() {
        let output = "noise\n@@check a\none\n\n@@status 0\n@@check b\n\n@@status 1\n@@check c\n";
        let second = Duration::from_secs;
        let at = |text: &str| output.find(text).unwrap();
        let arrivals = [
            (0, second(4)),
            (at("one"), second(5)),
            (at("@@status 0"), second(7)),
            (at("@@status 1"), second(12)),
        ];
        let spent = durations(output, &arrivals);
        assert_eq!(spent, [("a", second(3)), ("b", second(5))]);
        assert_eq!(durations(output, &[])[0], ("a", Duration::ZERO));
    }

    #[test]
    fn a_filter_names_kernels_and_checks() {
        let subject = Subject {
            name: "vm/6.1".to_owned(),
            release: "6.1.".to_owned(),
            models: Vec::new(),
            booted_model: None,
        };
        let count = |filter: &str| {
            let selection = Selection {
                no_vm: false,
                filter: Some(filter.to_owned()),
            };
            selected(&subject, &selection).len()
        };
        assert_eq!(count("vm/6.1 "), checks::all().count());
        assert_eq!(count("btf"), 1);
        assert_eq!(count("6.12"), 0);
    }
}
