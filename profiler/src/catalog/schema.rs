//! What `options.toml` may say, and the checks it has to pass.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Deserializer};

use super::live::Live;
use crate::kernel::{Model, Release, base_name};

/// The catalogue of kernel options.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalog {
    /// Version of the file's layout.
    schema: u32,
    /// The options; the order decides who owns a shared function.
    #[serde(rename = "option")]
    options: Vec<KernelOption>,
}

/// One Kconfig symbol.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelOption {
    /// The Kconfig symbol with its `CONFIG_` prefix, as current kernels call it.
    pub name: String,
    /// Older names of the same option, newest first.
    #[serde(default)]
    pub former: Vec<String>,
    /// The part of the kernel it belongs to.
    pub group: Group,
    /// One sentence: what code it adds.
    pub summary: String,
    /// The catalogued options it selects (`select`, or a `def_bool` that follows
    /// it).
    #[serde(default)]
    pub selects: Vec<String>,
    /// The catalogued options without which it cannot be set.
    #[serde(default)]
    pub depends: Vec<String>,
    /// Kconfig symbols outside the catalogue that select it.
    #[serde(default)]
    pub kept_by: Vec<String>,
    /// Its functions.
    #[serde(default)]
    pub symbols: Vec<SymbolGroup>,
    /// Tracepoints that count its work exactly, as `subsystem:event`.
    #[serde(default)]
    pub tracepoints: Vec<String>,
    /// No function of its own: the code is compiled into its users.
    #[serde(default)]
    pub inline_only: bool,
    /// Why its cost cannot be judged by function; set when `inline_only` is.
    pub not_judgeable: Option<String>,
    /// The ways to turn it off.
    pub off: Vec<Toggle>,
    /// The same for people, one line.
    pub how_to_turn_off: String,
    /// The recommended value for a production kernel.
    pub recommended: String,
    /// Since when, and what the defaults are.
    pub recommended_note: Option<String>,
    /// Where it is documented or was decided, the most telling first.
    pub sources: Vec<String>,
    /// What changes its state after the build.
    #[serde(default)]
    pub live: Live,
    /// The preemption model this option stands for.
    pub model: Option<Model>,
    /// What the option's `value` is, where it is more than y or n.
    pub value: Option<ValueOf>,
    /// The last release that has the option; its code is unconditional after it.
    #[serde(default, deserialize_with = "release")]
    pub unconditional_after: Option<Release>,
}

/// The part of the kernel an option belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Preemption model, RCU flavour, tick.
    Preemption,
    /// Checks of preemption and of interrupt state.
    PreemptionDebug,
    /// Lock checks.
    LockDebug,
    /// Checks of data structures and of memory.
    MemoryDebug,
    /// Hardening against attacks.
    Hardening,
    /// Accounting and statistics.
    Accounting,
    /// Tracing.
    Tracing,
    /// RCU.
    Rcu,
    /// Mitigations of CPU faults.
    Mitigation,
}

/// Which fact an option's value is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ValueOf {
    /// `CONFIG_HZ`.
    Hz,
    /// The active preemption model.
    Model,
}

/// Functions of one option that share their attributes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SymbolGroup {
    /// Function names, compiler suffixes removed.
    pub names: Vec<String>,
    /// Which samples they take; absent when they only prove the option.
    pub takes: Option<Takes>,
    /// What their presence says about the option.
    pub evidence: Option<Evidence>,
    /// Whether calls of them are worth counting: the option costs per call.
    #[serde(default)]
    pub hook: bool,
    /// Whether each is a short check that passes, so that what a call costs can
    /// be told from its code.
    #[serde(default)]
    pub check: bool,
    /// Instructions that stand in place of such a call where the option is off.
    #[serde(default)]
    pub inlined: u32,
    /// First release with these names.
    #[serde(default, deserialize_with = "release")]
    pub since: Option<Release>,
    /// Last release with these names.
    #[serde(default, deserialize_with = "release")]
    pub until: Option<Release>,
}

impl SymbolGroup {
    /// The releases that have these names.
    pub fn versions(&self) -> Versions {
        Versions {
            since: self.since,
            until: self.until,
        }
    }
}

/// A function whose calls are counted, as what they cost follows from their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// Its name.
    pub symbol: &'a str,
    /// Instructions that stand in place of a call where the option is off.
    pub inlined: u32,
}

/// Which samples a function takes for its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Takes {
    /// Only those that interrupted the function itself: it may call large
    /// unrelated code or sleep.
    #[serde(rename = "self")]
    Itself,
    /// As [`Itself`](Self::Itself), when the sampler is an NMI. A timer that came
    /// due in an interrupt handler strikes where the way back from it turns
    /// interrupts on: in this function, whatever that costs itself.
    #[serde(rename = "self-nmi")]
    ItselfByNmi,
    /// Also those in what it calls.
    Callees,
}

/// What the presence of a function says about its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// It exists exactly when the option is set.
    Iff,
    /// It exists only when the option is set, and may be inlined away then.
    OnlyIf,
}

/// One way to turn an option off.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Toggle {
    /// Where it is set.
    pub by: ToggleBy,
    /// The assignment for a config, the words for a boot parameter, the value for
    /// a knob.
    pub set: String,
    /// The file to write to; for a knob only.
    pub path: Option<String>,
    /// First release where this works.
    #[serde(default, deserialize_with = "release")]
    pub since: Option<Release>,
    /// Last release where this works.
    #[serde(default, deserialize_with = "release")]
    pub until: Option<Release>,
}

impl Toggle {
    /// The releases where this works.
    pub fn versions(&self) -> Versions {
        Versions {
            since: self.since,
            until: self.until,
        }
    }
}

/// Where an option is turned off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToggleBy {
    /// The configuration: build another kernel.
    Config,
    /// The kernel command line: boot again.
    Boot,
    /// A file: takes effect when written.
    Knob,
}

/// A range of releases, both ends included; an open end has no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The first release.
    pub since: Option<Release>,
    /// The last release.
    pub until: Option<Release>,
}

impl Versions {
    /// Whether `release` lies in the range.
    pub fn contain(&self, release: Release) -> bool {
        self.since.is_none_or(|since| since <= release)
            && self.until.is_none_or(|until| release <= until)
    }

    /// Whether a release can lie in the range at all.
    fn is_sane(&self) -> bool {
        match (self.since, self.until) {
            (Some(since), Some(until)) => since <= until,
            _ => true,
        }
    }
}

/// Reads `"MAJOR.MINOR"`.
pub(super) fn release<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Release>, D::Error> {
    let text = String::deserialize(from)?;
    let release = Release::parse(&text)
        .filter(|release| format!("{}.{}", release.major, release.minor) == text)
        .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not MAJOR.MINOR")))?;
    Ok(Some(release))
}

static BUILTIN: LazyLock<Catalog> = LazyLock::new(|| {
    Catalog::parse(include_str!("options.toml"))
        .unwrap_or_else(|error| panic!("the built-in catalogue: {error:#}"))
});

impl Catalog {
    /// The catalogue this program was built with.
    ///
    /// # Panics
    ///
    /// When the file it was built with is broken, which a test rules out.
    pub fn builtin() -> &'static Self {
        &BUILTIN
    }

    /// Reads and checks a catalogue.
    ///
    /// # Errors
    ///
    /// When `text` is not a catalogue, or contradicts itself.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let catalog: Self = toml::from_str(text).context("cannot read the catalogue")?;
        ensure!(
            catalog.schema == 1,
            "catalogue schema {}: only 1 is known",
            catalog.schema
        );
        let mut before = BTreeSet::new();
        let all: BTreeSet<&str> = catalog.options.iter().map(|o| o.name.as_str()).collect();
        for option in &catalog.options {
            option
                .check(&before, &all)
                .with_context(|| format!("option {}", option.name))?;
            for name in option.former.iter().chain([&option.name]) {
                ensure!(before.insert(name.as_str()), "option {name} occurs twice");
            }
        }
        Ok(catalog)
    }

    /// The options, in the order that decides who owns a shared function.
    pub fn options(&self) -> &[KernelOption] {
        &self.options
    }

    /// The option called `name` now or formerly.
    pub fn option(&self, name: &str) -> Option<&KernelOption> {
        self.options
            .iter()
            .find(|o| o.name == name || o.former.iter().any(|former| former == name))
    }

    /// Every symbol worth looking up in `/proc/kallsyms`: base names.
    pub fn symbols(&self) -> BTreeSet<String> {
        self.options
            .iter()
            .flat_map(|o| &o.symbols)
            .flat_map(|group| group.names.iter().cloned())
            .collect()
    }

    /// The run-time knobs that change an option's state, sorted, each once.
    pub fn knob_paths(&self) -> Vec<String> {
        let paths: BTreeSet<&String> = self
            .options
            .iter()
            .flat_map(|o| o.live.knob_paths())
            .collect();
        paths.into_iter().cloned().collect()
    }

    /// Position of every option by its current name.
    pub(super) fn positions(&self) -> BTreeMap<&str, usize> {
        self.options
            .iter()
            .enumerate()
            .map(|(at, o)| (o.name.as_str(), at))
            .collect()
    }
}

impl KernelOption {
    /// The functions whose calls are worth counting on `release`.
    pub fn call_targets(&self, release: Release) -> Vec<&str> {
        self.symbols
            .iter()
            .filter(|group| group.hook && group.versions().contain(release))
            .flat_map(|group| group.names.iter().map(String::as_str))
            .collect()
    }

    /// The functions whose calls say what the option costs on `release`.
    pub fn checks(&self, release: Release) -> impl Iterator<Item = Check<'_>> {
        self.symbols
            .iter()
            .filter(move |group| group.check && group.versions().contain(release))
            .flat_map(|group| {
                let inlined = group.inlined;
                let names = group.names.iter();
                names.map(move |symbol| Check { symbol, inlined })
            })
    }

    fn check(&self, before: &BTreeSet<&str>, all: &BTreeSet<&str>) -> anyhow::Result<()> {
        for name in self.former.iter().chain([&self.name]).chain(&self.kept_by) {
            ensure!(is_kconfig(name), "{name:?} is not a Kconfig symbol");
        }
        for text in [
            &self.summary,
            &self.how_to_turn_off,
            &self.recommended,
            self.recommended_note.as_ref().unwrap_or(&self.summary),
            self.not_judgeable.as_ref().unwrap_or(&self.summary),
        ] {
            ensure!(
                !text.trim().is_empty() && !text.contains('\n'),
                "{text:?} is not one line of text"
            );
        }
        for other in self.selects.iter().chain(&self.depends) {
            ensure!(all.contains(other.as_str()), "{other} is not catalogued");
            ensure!(
                before.contains(other.as_str()),
                "{other} must stand before it"
            );
        }
        ensure!(!self.sources.is_empty(), "no source");
        for source in &self.sources {
            ensure!(source.starts_with("https://"), "{source:?} is not a link");
        }
        for tracepoint in &self.tracepoints {
            ensure!(
                tracepoint.split_once(':').is_some(),
                "tracepoint {tracepoint:?} names no subsystem"
            );
        }
        let owns = self.symbols.iter().any(|group| group.takes.is_some());
        ensure!(
            self.inline_only != owns,
            "inline_only and the symbols it owns disagree"
        );
        ensure!(
            self.inline_only == self.not_judgeable.is_some(),
            "inline_only and not_judgeable go together"
        );
        self.check_symbols()?;
        self.check_toggles()?;
        self.live.check()
    }

    fn check_symbols(&self) -> anyhow::Result<()> {
        let mut names = BTreeSet::new();
        for group in &self.symbols {
            ensure!(group.versions().is_sane(), "range of {:?}", group.names);
            ensure!(!group.names.is_empty(), "an empty group of symbols");
            ensure!(
                !group.check || (group.hook && group.takes == Some(Takes::Callees)),
                "{:?} is a check and no hook, or does not take what it calls",
                group.names
            );
            ensure!(
                group.check || group.inlined == 0,
                "{:?} replaces instructions and is no check",
                group.names
            );
            ensure!(
                group.takes.is_some() || (group.evidence.is_some() && !group.hook),
                "{:?} neither take samples nor prove anything",
                group.names
            );
            for name in &group.names {
                ensure!(
                    !name.is_empty() && base_name(name) == name,
                    "{name:?} is not a base name"
                );
                ensure!(names.insert(name), "symbol {name} occurs twice");
            }
        }
        Ok(())
    }

    fn check_toggles(&self) -> anyhow::Result<()> {
        for toggle in &self.off {
            ensure!(toggle.versions().is_sane(), "range of {:?}", toggle.set);
            match (toggle.by, &toggle.path) {
                (ToggleBy::Config, None) => ensure!(
                    toggle
                        .set
                        .split_once('=')
                        .is_some_and(|(name, _)| is_kconfig(name)),
                    "{:?} is not a config assignment",
                    toggle.set
                ),
                (ToggleBy::Boot, None) => ensure!(!toggle.set.is_empty(), "no boot parameter"),
                (ToggleBy::Knob, Some(path)) => {
                    ensure!(path.starts_with('/'), "knob path {path:?}");
                }
                _ => bail!("a knob has a path, nothing else has"),
            }
        }
        Ok(())
    }
}

fn is_kconfig(name: &str) -> bool {
    name.strip_prefix("CONFIG_").is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .bytes()
                .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
    })
}
