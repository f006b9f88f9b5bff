//! What is checked on every kernel of the matrix.
//!
//! A check is a piece of shell that runs in the guest and a function that judges
//! what it printed. All checks of a kernel run in one boot, in the order of
//! [`all`]. Durations are never judged: guests share a machine with other work.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};

use super::ledger::LEDGER;
use super::product::PRODUCT;

/// The kernel under test, and what is expected of it.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The name of its line in the results.
    pub name: String,
    /// What `uname -r` begins with.
    pub release: String,
    /// The preemption models it offers at run time, sorted; empty if the model is
    /// fixed.
    pub models: Vec<String>,
    /// The model asked for by `preempt=` at boot.
    pub booted_model: Option<String>,
}

/// What a check printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The exit status of its script.
    pub status: i32,
    /// Its standard output and error.
    pub output: String,
}

/// A check.
pub struct Check {
    /// Its name in the results.
    pub name: &'static str,
    /// Why it cannot run on this kernel, if it cannot.
    pub skip: fn(&Subject) -> Option<String>,
    /// The shell that runs in the guest, by busybox's `sh`, in a process of its own.
    pub script: fn(&Subject) -> String,
    /// Judges the outcome.
    pub verify: fn(&Subject, &Section) -> Result<()>,
}

/// The file that lists and sets the preemption model.
const MODEL_FILE: &str = "/sys/kernel/debug/sched/preempt";

/// All checks, in the order in which they run.
pub(super) fn all() -> impl Iterator<Item = &'static Check> {
    CHECKS.iter().chain(PRODUCT).chain(LEDGER).chain(LAST)
}

/// Those of [`all`] that are about what the others did.
pub(super) fn last() -> impl Iterator<Item = &'static Check> {
    LAST.iter()
}

/// What preemptprof depends on.
const CHECKS: &[Check] = &[
    Check {
        name: "release",
        skip: |_| None,
        script: |_| "uname -r".to_owned(),
        verify: |subject, section| {
            succeeded(section)?;
            ensure!(
                section.output.starts_with(&subject.release),
                "booted {}, not {}",
                section.output.trim(),
                subject.release
            );
            Ok(())
        },
    },
    Check {
        name: "btf",
        skip: |_| None,
        script: |_| "wc -c </sys/kernel/btf/vmlinux".to_owned(),
        verify: |_, section| {
            succeeded(section)?;
            let size: u64 = section.output.trim().parse()?;
            ensure!(size > 100_000, "BTF of {size} bytes");
            Ok(())
        },
    },
    Check {
        name: "models",
        skip: |_| None,
        script: |_| format!("[ ! -e {MODEL_FILE} ] || cat {MODEL_FILE}"),
        verify: |subject, section| {
            succeeded(section)?;
            let (models, active) = parse_models(&section.output);
            ensure!(
                models == subject.models,
                "offers {models:?}, and the table says {:?}",
                subject.models
            );
            if let Some(asked) = &subject.booted_model {
                ensure!(
                    active.as_ref() == Some(asked),
                    "booted with preempt={asked}, and {active:?} is active"
                );
            }
            Ok(())
        },
    },
    Check {
        name: "binary",
        skip: |_| None,
        script: |_| "/usr/bin/preemptprof --version".to_owned(),
        verify: |_, section| {
            succeeded(section)?;
            ensure!(
                section.output.starts_with("preemptprof "),
                "--version says {:?}",
                section.output
            );
            Ok(())
        },
    },
];

/// What the others did on the way, and what they may have left behind.
const LAST: &[Check] = &[SWITCH_MODEL, MODEL_FROM_MEMORY, NOTHING_LEFT];

/// Where the model is fixed, nothing was taken down.
const SWITCH_MODEL: Check = Check {
    name: "switch-model",
    skip: |_| None,
    script: |_| "[ ! -e /tmp/switched ] || cat /tmp/switched".to_owned(),
    verify: |subject, section| {
        succeeded(section)?;
        let mut seen = BTreeSet::new();
        for line in section.output.lines() {
            let Some((model, list)) = line.split_once(": ") else {
                continue;
            };
            let (_, active) = parse_models(list);
            ensure!(
                active.as_deref() == Some(model),
                "asked for {model}: {list}"
            );
            seen.insert(model.to_owned());
        }
        ensure!(seen.iter().eq(&subject.models), "switched to {seen:?} only");
        Ok(())
    },
};

const MODEL_FROM_MEMORY: Check = Check {
    name: "model-from-memory",
    skip: |_| None,
    script: |_| "[ ! -e /tmp/said ] || cat /tmp/said".to_owned(),
    verify: |subject, section| {
        succeeded(section)?;
        let mut seen = BTreeSet::new();
        for line in section.output.lines() {
            let Some((model, said)) = line.split_once(' ') else {
                continue;
            };
            // A realtime kernel is one whatever debugfs offers.
            let expected = if subject.name.ends_with("-rt") {
                "rt"
            } else {
                model
            };
            let right = said.contains(&format!("\"active\":\"{expected}\""));
            ensure!(right, "the model is {model}, and preemptprof says {said}");
            seen.insert(model.to_owned());
        }
        ensure!(seen.iter().eq(&subject.models), "compared {seen:?} only");
        Ok(())
    },
};

const NOTHING_LEFT: Check = Check {
    name: "nothing-left",
    skip: |_| None,
    script: |_| {
        "cat /sys/kernel/tracing/kprobe_events /sys/kernel/tracing/uprobe_events \
             /sys/kernel/tracing/enabled_functions 2>/dev/null\n\
             cat /proc/[0-9]*/fdinfo/* 2>/dev/null | grep -E '^(prog|link|map)_type'\n\
             true"
            .to_owned()
    },
    verify: |_, section| {
        succeeded(section)?;
        ensure!(
            section.output.trim().is_empty(),
            "still attached or loaded: {}",
            section.output.trim()
        );
        Ok(())
    },
};

/// Fails unless the script's status is 0.
///
/// # Errors
///
/// With the status and what was printed.
pub(super) fn succeeded(section: &Section) -> Result<()> {
    ensure!(
        section.status == 0,
        "status {}: {}",
        section.status,
        section.output.trim()
    );
    Ok(())
}

/// Reads the list of models, with the active one in parentheses: all, sorted, and
/// the active one.
fn parse_models(text: &str) -> (Vec<String>, Option<String>) {
    let mut active = None;
    let mut models: Vec<String> = text
        .split_whitespace()
        .map(|word| {
            let model = word.trim_matches(['(', ')']).to_owned();
            if word.starts_with('(') {
                active = Some(model.clone());
            }
            model
        })
        .collect();
    models.sort();
    (models, active)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(status: i32, output: &str) -> Section {
        Section {
            status,
            output: output.to_owned(),
        }
    }

    fn subject() -> Subject {
        Subject {
            name: "6.1".to_owned(),
            release: "6.1.".to_owned(),
            models: ["full", "none", "voluntary"].map(str::to_owned).to_vec(),
            booted_model: None,
        }
    }

    fn verify(name: &str, subject: &Subject, section: &Section) -> Result<()> {
        let check = all().find(|check| check.name == name).unwrap();
        (check.verify)(subject, section)
    }

    #[test]
    fn each_check_can_fail() {
        let subject = subject();
        for (name, good, bad) in [
            ("release", "6.1.0-50-cloud-amd64\n", "6.12.1\n"),
            ("btf", "4111222\n", "12\n"),
            ("models", "none (voluntary) full \n", "full (lazy)\n"),
            (
                "switch-model",
                "none: (none) voluntary full\nvoluntary: none (voluntary) full\nfull: none voluntary (full)\n",
                "none: (none) voluntary full\nvoluntary: (none) voluntary full\nfull: none voluntary (full)\n",
            ),
            ("binary", "preemptprof 0.1.0\n", "\n"),
            (
                "model-from-memory",
                "none \"active\":\"none\"\nvoluntary \"active\":\"voluntary\"\nfull \"active\":\"full\"\n",
                "none \"active\":\"full\"\n",
            ),
            ("nothing-left", "\n", "prog_type:\t5\n"),
        ] {
            verify(name, &subject, &section(0, good)).unwrap();
            assert!(verify(name, &subject, &section(0, bad)).is_err(), "{name}");
            assert!(verify(name, &subject, &section(1, good)).is_err(), "{name}");
        }
        assert_eq!(CHECKS.len() + LAST.len(), 7, "a check without its test");
    }

    #[test]
    fn the_model_is_told_right() {
        let mut subject = subject();
        subject.models.retain(|model| model != "voluntary");
        let right = section(0, "none \"active\":\"none\"\nfull \"active\":\"full\"\n");
        let realtime = section(0, "none \"active\":\"rt\"\nfull \"active\":\"rt\"\n");
        verify("model-from-memory", &subject, &right).unwrap();
        assert!(verify("model-from-memory", &subject, &realtime).is_err());
        // One model was left out.
        assert!(verify("model-from-memory", &subject, &section(0, "")).is_err());
        subject.name = "7.3-rt".to_owned();
        verify("model-from-memory", &subject, &realtime).unwrap();
        assert!(verify("model-from-memory", &subject, &right).is_err());
    }

    #[test]
    fn a_model_asked_for_at_boot_must_be_active() {
        let mut subject = subject();
        subject.booted_model = Some("full".to_owned());
        let good = section(0, "none voluntary (full)");
        verify("models", &subject, &good).unwrap();
        let bad = section(0, "none (voluntary) full");
        assert!(verify("models", &subject, &bad).is_err());
    }

    #[test]
    fn a_fixed_model_is_expected_or_not() {
        let mut subject = subject();
        assert!(verify("switch-model", &subject, &section(0, "")).is_err());
        subject.models.clear();
        verify("switch-model", &subject, &section(0, "")).unwrap();
        verify("models", &subject, &section(0, "")).unwrap();
    }
}
