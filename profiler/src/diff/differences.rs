//! In what two kernels and machines differ, and what cannot be compared.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Difference, Differences};
use super::side::Side;
use crate::error::hinted;
use crate::kernel::KernelFacts;
use crate::model::Report;
use crate::report::command_line;

/// Finds them.
pub(super) fn find(base: &Side, new: &Side) -> Differences {
    Differences {
        kernel: kernel(&base.facts, &new.facts),
        config: config(&base.facts, &new.facts),
        machine: machine(&base.first, &new.first),
    }
}

/// The entry when two texts differ.
fn differ(what: impl Into<String>, base: &str, new: &str) -> Option<Difference> {
    (base != new).then(|| Difference {
        what: what.into(),
        base: base.to_owned(),
        new: new.to_owned(),
    })
}

fn kernel(base: &KernelFacts, new: &KernelFacts) -> Vec<Difference> {
    let model = |facts: &KernelFacts| facts.preempt_model.active.to_string();
    let hz = |facts: &KernelFacts| {
        facts
            .hz
            .map_or_else(|| "unknown".to_owned(), |hz| hz.to_string())
    };
    let mut found: Vec<Difference> = [
        differ("release", &base.release, &new.release),
        differ("version", &base.version, &new.version),
        differ("architecture", &base.arch, &new.arch),
        differ("preemption model", &model(base), &model(new)),
        differ("HZ", &hz(base), &hz(new)),
        differ("clock source", &base.clock, &new.clock),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.extend(boot_parameters(&base.boot_parameters, &new.boot_parameters));
    found
}

/// Boot parameters by name; one that is given more than once is all its values.
fn boot_parameters(base: &str, new: &str) -> Vec<Difference> {
    let parse = |line: &str| -> BTreeMap<String, String> {
        let mut parameters: BTreeMap<String, String> = BTreeMap::new();
        for word in line.split_whitespace() {
            let name = word.split('=').next().unwrap_or(word);
            let entry = parameters.entry(name.to_owned()).or_default();
            if !entry.is_empty() {
                entry.push(' ');
            }
            entry.push_str(word);
        }
        parameters
    };
    by_name(&parse(base), &parse(new), "boot parameter ")
}

fn by_name(
    base: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
    prefix: &str,
) -> Vec<Difference> {
    let names: BTreeSet<&String> = base.keys().chain(new.keys()).collect();
    let text =
        |of: &BTreeMap<String, String>, name: &str| of.get(name).cloned().unwrap_or_default();
    names
        .into_iter()
        .filter_map(|name| {
            differ(
                format!("{prefix}{name}"),
                &text(base, name),
                &text(new, name),
            )
        })
        .collect()
}

/// Options that are set differently; what is not set is `n`.
fn config(base: &KernelFacts, new: &KernelFacts) -> Vec<Difference> {
    if base.config.is_empty() || new.config.is_empty() {
        return Vec::new();
    }
    let mut found = by_name(&base.config.0, &new.config.0, "");
    for difference in &mut found {
        for value in [&mut difference.base, &mut difference.new] {
            if value.is_empty() {
                "n".clone_into(value);
            }
        }
    }
    found
}

fn machine(base: &Report, new: &Report) -> Vec<Difference> {
    let (a, b) = (&base.machine, &new.machine);
    let mut found: Vec<Difference> = [
        differ("CPU model", &a.cpu_model, &b.cpu_model),
        differ(
            "online CPUs",
            &a.online_cpus.to_string(),
            &b.online_cpus.to_string(),
        ),
        differ("hypervisor", &a.hypervisor, &b.hypervisor),
        differ("governor", &a.governor, &b.governor),
        differ("SMT", &a.smt, &b.smt),
        differ("CPUs sampled", &base.coverage.cpus, &new.coverage.cpus),
    ]
    .into_iter()
    .flatten()
    .collect();
    found.extend(by_name(&a.mitigations, &b.mitigations, "mitigation "));
    found
}

/// Refuses workloads that are not the same, unless that is wanted; names what
/// makes the comparison lean.
pub(super) fn check(
    base: &Side,
    new: &Side,
    differences: &Differences,
    unequal: bool,
) -> anyhow::Result<Vec<String>> {
    let mut warnings = Vec::new();
    let mut refuse = |what: String| {
        if unequal {
            warnings.push(format!("{what}."));
            return Ok(());
        }
        Err(hinted(
            what,
            ["--unequal compares them all the same, and says so in the result"],
        ))
    };
    let (a, b) = (&base.first.run, &new.first.run);
    // The same program may lie elsewhere.
    let command = |words: &[String]| {
        let mut words = words.to_vec();
        if let Some(program) = words.first_mut() {
            *program = program.rsplit('/').next().unwrap_or_default().to_owned();
        }
        command_line(&words)
    };
    let commands = (command(&a.command), command(&b.command));
    if commands.0 != commands.1 {
        refuse(format!(
            "the workloads differ: {} and {}",
            commands.0, commands.1
        ))?;
    }
    if a.target != b.target {
        refuse("the recordings are not of the same part of the machine".to_owned())?;
    }
    if base.facts.arch != new.facts.arch {
        refuse(format!(
            "the architectures differ: {} and {}",
            base.facts.arch, new.facts.arch
        ))?;
    }
    for what in ["CPU model", "online CPUs"] {
        if let Some(found) = differences.machine.iter().find(|found| found.what == what) {
            refuse(format!(
                "the machines differ: {what} {:?} and {:?}",
                found.base, found.new
            ))?;
        }
    }
    let leaning = differences
        .machine
        .iter()
        .filter(|found| !matches!(found.what.as_str(), "CPU model" | "online CPUs"))
        .chain(
            differences
                .kernel
                .iter()
                .filter(|found| found.what == "clock source"),
        );
    for found in leaning {
        warnings.push(format!(
            "The machines differ in more than the kernel's options: {} is {:?} and {:?}.",
            found.what, found.base, found.new
        ));
    }
    let (a, b) = (&base.first.sampling, &new.first.sampling);
    if a.evidence != b.evidence {
        warnings.push(format!(
            "The sides were sampled differently, {} and {}: their shares do not see the same.",
            a.evidence.as_str(),
            b.evidence.as_str()
        ));
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Config;

    #[test]
    fn what_differs_is_named_and_what_does_not_is_not() {
        let mut base = KernelFacts {
            release: "6.1.1-a".into(),
            hz: Some(250),
            boot_parameters: "quiet preempt=full console=tty0 console=ttyS0".into(),
            config: Config(BTreeMap::from([
                ("CONFIG_DEBUG_PREEMPT".into(), "y".into()),
                ("CONFIG_HZ".into(), "250".into()),
            ])),
            ..KernelFacts::default()
        };
        assert_eq!(kernel(&base, &base), []);
        assert_eq!(config(&base, &base), []);
        let mut new = base.clone();
        new.release = "6.1.1-b".into();
        new.hz = None;
        new.boot_parameters = "preempt=none console=tty0 console=ttyS0".into();
        new.config.0.remove("CONFIG_DEBUG_PREEMPT");
        let found = kernel(&base, &new);
        let found: Vec<(&str, &str, &str)> = found
            .iter()
            .map(|found| (found.what.as_str(), found.base.as_str(), found.new.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("release", "6.1.1-a", "6.1.1-b"),
                ("HZ", "250", "unknown"),
                ("boot parameter preempt", "preempt=full", "preempt=none"),
                ("boot parameter quiet", "quiet", ""),
            ]
        );
        let found = config(&base, &new);
        assert_eq!(
            (found.len(), found[0].base.as_str(), found[0].new.as_str()),
            (1, "y", "n")
        );
        base.config = Config::default();
        assert_eq!(config(&base, &new), [], "nothing is known of one of them");
    }
}
