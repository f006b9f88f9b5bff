//! The kernels of the matrix, one boot each, and the lab kernels where there are
//! any.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::checks::{self, Check, Section, Subject};
use super::{Selection, Tally};
use crate::dist;
use crate::kernels::{self, Kernel};
use crate::vm::{Failure, GuestFile, Vm};

/// Lab kernels that take part where they are found.
const LAB: [&str; 2] = ["6.1-plain", "6.1-debug-preempt"];

/// The kernel that is also booted with a model on its command line, and the model.
const BOOTED_MODEL: (&str, &str) = ("6.12", "full");

/// The longest a boot with all its checks may take. It takes a tenth of that on an
/// idle machine.
const LIMIT: Duration = Duration::from_secs(180);

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
    subjects.retain(|(subject, _)| !selected(subject, selection).is_empty());
    if subjects.is_empty() {
        return Ok(());
    }

    let binary = match dist::dist() {
        Ok(dist) => {
            tally.ok("dist");
            GuestFile::at(dist.binary, "/usr/bin/preemptprof")
        }
        Err(error) => {
            tally.failed_with("dist", &error);
            return Ok(());
        }
    };
    for (subject, kernel) in subjects {
        let kernel = match kernel {
            Some(kernel) => Ok(kernel),
            None => {
                let name = subject.name.trim_start_matches("vm/");
                kernels::resolve(name.split(' ').next().unwrap_or(name))
            }
        };
        let checks = selected(&subject, selection);
        match kernel {
            Ok(kernel) => boot(&subject, kernel, &binary, &checks, tally),
            Err(error) => tally.failed_with(&subject.name, &error),
        }
    }
    Ok(())
}

/// The checks of a kernel that the filter leaves.
fn selected(subject: &Subject, selection: &Selection) -> Vec<&'static Check> {
    checks::all()
        .filter(|check| selection.takes(&name(subject, check.name)))
        .collect()
}

fn name(subject: &Subject, check: &str) -> String {
    format!("{} {check}", subject.name)
}

/// Runs the checks on one kernel.
fn boot(
    subject: &Subject,
    kernel: Kernel,
    binary: &GuestFile,
    checks: &[&Check],
    tally: &mut Tally,
) {
    let mut runnable = Vec::new();
    for check in checks {
        match (check.skip)(subject) {
            Some(why) => tally.skipped(&name(subject, check.name), &why),
            None => runnable.push(*check),
        }
    }
    let mut vm = Vm::new(kernel);
    vm.timeout = LIMIT;
    vm.files.push(binary.clone());
    if let Some(model) = &subject.booted_model {
        vm.append = format!("preempt={model}");
    }
    let mut files = Vec::new();
    let script = match scripts(subject, &runnable, &mut files) {
        Ok(script) => script,
        Err(error) => return tally.failed_with(&subject.name, &error),
    };
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
            eprintln!(
                "{}: booted in {:.1} s, {:.1} s in all",
                subject.name,
                outcome.boot.as_secs_f64(),
                outcome.total.as_secs_f64()
            );
            (outcome.output, console)
        }
        Err(error) => match error.downcast_ref::<Failure>() {
            Some(failure) => (failure.output.clone(), Err(error)),
            None => return tally.failed_with(&subject.name, &error),
        },
    };
    let sections = parse(&output);
    for check in runnable {
        let result = sections
            .get(check.name)
            .with_context(|| "the guest did not get to the end of it")
            .and_then(|section| (check.verify)(subject, section));
        tally.record(&name(subject, check.name), result);
    }
    tally.record(&name(subject, "console"), console);
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
        std::fs::write(file.path(), (check.script)(subject) + "\n").context("a check's script")?;
        let path = format!("/vm/checks/{}", check.name);
        script.push_str(&format!(
            "echo '{BEGIN}{name}'; sh {path}; status=$?; echo; echo \"{END}$status\"\n",
            name = check.name
        ));
        files.push((file, path));
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
