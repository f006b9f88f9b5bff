//! What changes an option's state after the build: start values, boot parameters
//! and run-time knobs, applied in this order.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde::Deserialize;

use super::schema::{Versions, release};
use crate::kernel::{BootParameters, Config, Release};

/// The rules for one option's live state.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// The configuration under which the code exists; absent: the option itself.
    /// An empty list: always.
    needs: Option<Vec<String>>,
    /// What the state is before any parameter, where that is not the built value.
    #[serde(default)]
    start: Vec<Start>,
    /// Boot parameters.
    #[serde(default)]
    boot: Vec<Boot>,
    /// Run-time knobs.
    #[serde(default)]
    knob: Vec<Knob>,
}

/// A start value.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    /// Whether the option starts on.
    on: bool,
    /// Only with this assignment in the configuration.
    when: Option<String>,
    #[serde(default, deserialize_with = "release")]
    since: Option<Release>,
    #[serde(default, deserialize_with = "release")]
    until: Option<Release>,
}

/// A boot parameter.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Boot {
    parameter: String,
    /// Whether the value is a comma-separated list of which one item matters.
    #[serde(default)]
    list: bool,
    /// Only with this assignment in the configuration.
    when: Option<String>,
    /// Which values mean what.
    #[serde(default)]
    values: Values,
    #[serde(default, deserialize_with = "release")]
    since: Option<Release>,
    #[serde(default, deserialize_with = "release")]
    until: Option<Release>,
}

/// A run-time knob: a file that says what is in force.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Knob {
    path: String,
    /// Texts of which one occurs in the file when the option is in force, and
    /// none when it is not.
    #[serde(default)]
    contains: Vec<String>,
    /// Which values mean what.
    #[serde(default)]
    values: Values,
}

/// Which values mean on and off. None given: what the kernel's `kstrtobool` takes
/// for a boolean.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Values {
    #[serde(default)]
    on: Vec<String>,
    #[serde(default)]
    off: Vec<String>,
    /// What any other value means; absent: nothing.
    other: Option<bool>,
}

impl Values {
    fn read(&self, value: &str) -> Option<bool> {
        let is = |list: &[String]| list.iter().any(|known| known == value);
        if is(&self.on) {
            return Some(true);
        }
        if is(&self.off) {
            return Some(false);
        }
        match self.other {
            None if self.on.is_empty() && self.off.is_empty() => kstrtobool(value),
            other => other,
        }
    }
}

/// A boolean as `kstrtobool` in `lib/kstrtox.c` reads it: by the first letter.
fn kstrtobool(value: &str) -> Option<bool> {
    match *value.as_bytes() {
        [b'y' | b'Y' | b't' | b'T' | b'1', ..] => Some(true),
        [b'n' | b'N' | b'f' | b'F' | b'0', ..] => Some(false),
        [b'o' | b'O', b'n' | b'N', ..] => Some(true),
        [b'o' | b'O', b'f' | b'F', ..] => Some(false),
        _ => None,
    }
}

/// A state that a rule decided, and which one it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decided {
    /// Whether the option is in force.
    pub(super) on: bool,
    /// What says so.
    pub(super) source: String,
}

/// The facts the rules read.
pub(super) struct Facts<'a> {
    pub(super) config: &'a Config,
    /// Whether a name that `config` does not hold is off; else it is unknown.
    pub(super) complete: bool,
    pub(super) config_source: &'a str,
    pub(super) boot: &'a BootParameters,
    pub(super) knobs: &'a BTreeMap<String, String>,
    /// Absent when `uname -r` has no version.
    pub(super) release: Option<Release>,
}

impl Facts<'_> {
    fn in_range(&self, since: Option<Release>, until: Option<Release>) -> bool {
        self.release
            .is_none_or(|release| Versions { since, until }.contain(release))
    }

    /// Whether the configuration has `assignment`; `=n` is `not set`. `None` when
    /// it is not known.
    fn has(&self, assignment: &str) -> Option<bool> {
        let (name, wanted) = assignment.split_once('=').unwrap_or((assignment, "y"));
        match self.config.get(name) {
            Some(value) => Some(value == wanted),
            None => self.complete.then_some(wanted == "n"),
        }
    }
}

impl Live {
    pub(super) fn knob_paths(&self) -> impl Iterator<Item = &String> {
        self.knob.iter().map(|knob| &knob.path)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start.is_empty() && self.boot.is_empty() && self.knob.is_empty()
    }

    /// Whether the code that can be switched is in the kernel, given whether the
    /// option itself is built; `None`: not known.
    pub(super) fn exists(&self, built: Option<bool>, facts: &Facts<'_>) -> Option<bool> {
        match &self.needs {
            None => built,
            Some(needs) => needs
                .iter()
                .map(|name| facts.has(name))
                .try_fold(true, |all, one| one.map(|one| all && one)),
        }
    }

    /// The start value, where a rule has one. `None` when no rule speaks; an
    /// inner `None` when the configuration that decides is not known.
    pub(super) fn start(&self, facts: &Facts<'_>) -> Option<Option<Decided>> {
        for start in &self.start {
            if !facts.in_range(start.since, start.until) {
                continue;
            }
            let source = match &start.when {
                None => format!(
                    "{} until switched {}",
                    if start.on { "on" } else { "off" },
                    if start.on { "off" } else { "on" }
                ),
                Some(when) => match facts.has(when) {
                    None => return Some(None),
                    Some(false) => continue,
                    Some(true) => format!("{} ({when})", facts.config_source),
                },
            };
            return Some(Some(Decided {
                on: start.on,
                source,
            }));
        }
        None
    }

    /// What the command line says. The last word counts.
    pub(super) fn boot(&self, facts: &Facts<'_>) -> Option<Decided> {
        let rules: Vec<&Boot> = self
            .boot
            .iter()
            .filter(|rule| facts.in_range(rule.since, rule.until))
            .filter(|rule| {
                rule.when
                    .as_ref()
                    .is_none_or(|when| facts.has(when) != Some(false))
            })
            .collect();
        let mut decided = None;
        for (name, value) in facts.boot.iter() {
            let value = value.unwrap_or_default();
            for rule in rules
                .iter()
                .filter(|rule| same_parameter(&rule.parameter, name))
            {
                let read = if rule.list {
                    value.split(',').find_map(|item| rule.values.read(item))
                } else {
                    rule.values.read(value)
                };
                if let Some(on) = read {
                    let text = if value.is_empty() {
                        name.to_owned()
                    } else {
                        format!("{name}={value}")
                    };
                    decided = Some(Decided {
                        on,
                        source: format!("boot parameter {text}"),
                    });
                }
            }
        }
        decided
    }

    /// What the run-time knobs say. The first one that says on, else the last.
    pub(super) fn knobs(&self, facts: &Facts<'_>) -> Option<Decided> {
        let mut decided: Option<Decided> = None;
        for knob in &self.knob {
            let Some(content) = facts.knobs.get(&knob.path) else {
                continue;
            };
            let content = content.trim();
            let on = if knob.contains.is_empty() {
                knob.values.read(content)
            } else {
                Some(
                    knob.contains
                        .iter()
                        .any(|text| content.contains(text.as_str())),
                )
            };
            if let Some(on) = on
                && !decided.as_ref().is_some_and(|d| d.on)
            {
                decided = Some(Decided {
                    on,
                    source: format!("{} ({content})", knob.path),
                });
            }
        }
        decided
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        for start in &self.start {
            ensure!(
                start.since.zip(start.until).is_none_or(|(a, b)| a <= b),
                "range of a start value"
            );
        }
        for boot in &self.boot {
            ensure!(
                !boot.parameter.is_empty() && !boot.parameter.contains(['=', ' ']),
                "boot parameter {:?}",
                boot.parameter
            );
            ensure!(
                boot.since.zip(boot.until).is_none_or(|(a, b)| a <= b),
                "range of boot parameter {}",
                boot.parameter
            );
        }
        for knob in &self.knob {
            ensure!(
                knob.path.starts_with("/proc/sys/") || knob.path.starts_with("/sys/"),
                "knob path {:?}",
                knob.path
            );
        }
        Ok(())
    }
}

/// Parameter names are the same with `-` for `_`, as in `kernel/params.c`.
fn same_parameter(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes()
            .zip(b.bytes())
            .all(|(a, b)| a == b || (matches!(a, b'-' | b'_') && matches!(b, b'-' | b'_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn booleans_are_read_as_the_kernel_does() {
        for (text, value) in [
            ("1", Some(true)),
            ("y", Some(true)),
            ("Yes", Some(true)),
            ("true", Some(true)),
            ("on", Some(true)),
            ("0", Some(false)),
            ("no", Some(false)),
            ("False", Some(false)),
            ("off", Some(false)),
            ("o", None),
            ("", None),
            ("2", None),
        ] {
            assert_eq!(kstrtobool(text), value, "{text:?}");
        }
    }

    #[test]
    fn dashes_and_underscores_are_the_same() {
        assert!(same_parameter("init_on_alloc", "init-on-alloc"));
        assert!(!same_parameter("init_on_alloc", "init_on_free"));
    }
}
