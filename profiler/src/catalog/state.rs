//! The state of every catalogued option on one kernel.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::live::{Decided, Facts};
use super::schema::{Catalog, Evidence, KernelOption, ValueOf};
use crate::kernel::{BootParameters, INFERRED, KernelFacts, Model, Release};

/// Whether an option is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// On.
    Y,
    /// Off.
    N,
    /// On, as a module.
    M,
    /// Could not be found out.
    #[default]
    Unknown,
}

impl State {
    /// Whether the option's code runs.
    pub fn is_on(self) -> bool {
        matches!(self, Self::Y | Self::M)
    }

    /// The name used in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Y => "y",
            Self::N => "n",
            Self::M => "m",
            Self::Unknown => "unknown",
        }
    }
}

impl From<bool> for State {
    fn from(on: bool) -> Self {
        if on { Self::Y } else { Self::N }
    }
}

/// One option as a report shows it: an element of `options` in
/// `preemptprof/report/1`, without what was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptionState {
    /// The Kconfig symbol, e.g. `CONFIG_DEBUG_PREEMPT`.
    pub name: String,
    /// Whether it is in force: the configuration, boot parameters and run-time
    /// knobs applied.
    pub state: State,
    /// The configuration's value, `n` when it is not set there; absent when no
    /// configuration was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<String>,
    /// `CONFIG_HZ`, or the active preemption model; absent for other options.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// How `state` is known.
    pub state_source: String,
    /// The options that are on and go off together with this one.
    pub includes: Vec<String>,
    /// What speaks against the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contradiction: Option<String>,
    /// Why no cost can be given for it function by function; absent when it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judgeable: Option<String>,
    /// How to turn it off, one line.
    pub how_to_turn_off: String,
    /// The recommended value and since when.
    pub recommended: String,
    /// Link to where that is documented or was decided.
    pub source: String,
}

impl Catalog {
    /// The state of every option on the kernel that `facts` describe, in the
    /// order of [`Catalog::options`].
    pub fn states(&self, facts: &KernelFacts) -> Vec<OptionState> {
        let boot = BootParameters::parse(&facts.boot_parameters);
        let kernel = Kernel {
            facts,
            live: Facts {
                config: &facts.config,
                complete: !facts.config.is_empty() && facts.config_source != INFERRED,
                config_source: &facts.config_source,
                boot: &boot,
                knobs: &facts.knobs,
                release: Release::parse(&facts.release),
            },
        };
        let mut states: Vec<OptionState> = self
            .options()
            .iter()
            .map(|option| kernel.state(option))
            .collect();
        let includes = self.includes(&states, facts);
        for (state, includes) in states.iter_mut().zip(includes) {
            state.includes = includes;
        }
        states
    }

    /// For each option the others that go off with it.
    fn includes(&self, states: &[OptionState], facts: &KernelFacts) -> Vec<Vec<String>> {
        let at = self.positions();
        let index = |names: &[String]| -> Vec<usize> {
            names
                .iter()
                .filter_map(|name| at.get(name.as_str()).copied())
                .collect()
        };
        let selects: Vec<Vec<usize>> = self.options().iter().map(|o| index(&o.selects)).collect();
        let depends: Vec<Vec<usize>> = self.options().iter().map(|o| index(&o.depends)).collect();
        // What Kconfig decided counts here, not what was switched since.
        let built: Vec<bool> = states.iter().map(OptionState::is_built).collect();
        let kept: Vec<bool> = self
            .options()
            .iter()
            .map(|o| o.kept_by.iter().any(|by| facts.config.get(by).is_some()))
            .collect();

        (0..states.len())
            .map(|root| {
                if !built[root] {
                    return Vec::new();
                }
                let mut off = BTreeSet::from([root]);
                // Each round adds something or is the last.
                loop {
                    let more: Vec<usize> = (0..states.len())
                        .filter(|other| built[*other] && !off.contains(other))
                        .filter(|&other| {
                            let mut selectors = (0..states.len())
                                .filter(|by| built[*by] && selects[*by].contains(&other))
                                .peekable();
                            let unselected = !kept[other]
                                && selectors.peek().is_some()
                                && selectors.all(|by| off.contains(&by));
                            unselected || depends[other].iter().any(|on| off.contains(on))
                        })
                        .collect();
                    if more.is_empty() {
                        break;
                    }
                    off.extend(more);
                }
                off.remove(&root);
                off.into_iter()
                    .filter(|&other| states[other].state.is_on())
                    .map(|other| states[other].name.clone())
                    .collect()
            })
            .collect()
    }
}

impl OptionState {
    fn is_built(&self) -> bool {
        match &self.built {
            Some(built) => built != "n",
            None => self.state.is_on(),
        }
    }
}

/// One kernel's facts, ready for the rules.
struct Kernel<'a> {
    facts: &'a KernelFacts,
    live: Facts<'a>,
}

impl Kernel<'_> {
    fn state(&self, option: &KernelOption) -> OptionState {
        let built = self.built(option);
        let (state, state_source) = match (option.model, option.value) {
            (Some(model), _) => self.model_state(model, built.as_ref()),
            (None, Some(ValueOf::Hz)) => self.hz_state(built.as_ref()),
            _ => self.live_state(option, built.as_ref()),
        };
        let value = state.is_on().then(|| self.value(option)).flatten();
        OptionState {
            name: option.name.clone(),
            state,
            contradiction: self.contradiction(option, built.as_ref()),
            built: built.map(|built| built.value),
            value,
            state_source,
            includes: Vec::new(),
            not_judgeable: option.not_judgeable.clone(),
            how_to_turn_off: option.how_to_turn_off.clone(),
            recommended: match &option.recommended_note {
                Some(note) => format!("{} ({note})", option.recommended),
                None => option.recommended.clone(),
            },
            source: option.sources.first().cloned().unwrap_or_default(),
        }
    }

    /// The configuration's value; `None` without a configuration that was read.
    fn built(&self, option: &KernelOption) -> Option<Built> {
        let config = &self.facts.config;
        if !self.live.complete {
            return None;
        }
        let source = &self.facts.config_source;
        for (at, name) in [&option.name].into_iter().chain(&option.former).enumerate() {
            if let Some(value) = config.get(name) {
                return Some(Built {
                    value: value.to_owned(),
                    source: if at == 0 {
                        source.clone()
                    } else {
                        format!("{source} ({name})")
                    },
                });
            }
        }
        if let Some(source) = self.unconditional(option) {
            return Some(Built {
                value: "y".to_owned(),
                source,
            });
        }
        Some(Built {
            value: "n".to_owned(),
            source: source.clone(),
        })
    }

    /// Whether the option is gone because it is always on: since when.
    fn unconditional(&self, option: &KernelOption) -> Option<String> {
        let last = option.unconditional_after?;
        (self.live.release? > last)
            .then(|| format!("always on after {}.{}", last.major, last.minor))
    }

    fn value(&self, option: &KernelOption) -> Option<String> {
        let model = self.facts.preempt_model.active;
        match option.value {
            Some(ValueOf::Hz) => self
                .facts
                .hz
                .map(|hz| hz.to_string())
                .or_else(|| self.facts.config.get(&option.name).map(str::to_owned)),
            Some(ValueOf::Model) if model != Model::Unknown => Some(model.to_string()),
            _ => None,
        }
    }

    fn hz_state(&self, built: Option<&Built>) -> (State, String) {
        match built {
            Some(built) if built.value != "n" => (State::Y, built.source.clone()),
            _ if self.facts.hz.is_some() => (State::Y, "measured or inferred".to_owned()),
            _ => (State::Unknown, "no configuration was read".to_owned()),
        }
    }

    /// The options of the preemption model are in force by the live model, not by
    /// what was built: `PREEMPT_DYNAMIC` changes it at boot and at run time.
    fn model_state(&self, model: Model, built: Option<&Built>) -> (State, String) {
        let active = self.facts.preempt_model.active;
        let source = || format!("preemption model: {}", self.facts.preempt_model.source);
        match built {
            // Since 6.13 PREEMPT_RT stands beside the model, before it was one.
            Some(built) if model == Model::Rt => (built.state(), built.source.clone()),
            _ if active == model => (State::Y, source()),
            Some(built) if active == Model::Rt => (built.state(), built.source.clone()),
            _ if active != Model::Unknown => (State::N, source()),
            Some(built) if self.facts.config.get("CONFIG_PREEMPT_DYNAMIC").is_none() => {
                (built.state(), built.source.clone())
            }
            _ => (
                State::Unknown,
                "the active preemption model is not known".to_owned(),
            ),
        }
    }

    fn live_state(&self, option: &KernelOption, built: Option<&Built>) -> (State, String) {
        let (mut state, mut source) = match built {
            Some(built) => (built.state(), built.source.clone()),
            None => self.inferred(option),
        };
        let rules = &option.live;
        if rules.is_empty() {
            return (state, source);
        }
        let known = match state {
            State::Unknown => None,
            known => Some(known.is_on()),
        };
        let exists = rules.exists(known, &self.live);
        if exists == Some(false) {
            return (State::N, source);
        }
        match rules.start(&self.live) {
            Some(Some(decided)) if exists.is_some() && decided.on != state.is_on() => {
                (state, source) = (decided.on.into(), decided.source);
            }
            Some(None) => {
                state = State::Unknown;
                "no configuration was read: the default is not known".clone_into(&mut source);
            }
            _ => {}
        }
        // A boot parameter of code that may not be there proves nothing; a knob
        // exists only with its code.
        let boot = rules
            .boot(&self.live)
            .filter(|decided| exists.is_some() || !decided.on);
        for Decided { on, source: from } in boot.into_iter().chain(rules.knobs(&self.live)) {
            // A module that is in force stays `m`.
            if on != state.is_on() {
                state = on.into();
            }
            source = from;
        }
        (state, source)
    }

    /// What the symbols say, for a kernel without a configuration.
    fn inferred(&self, option: &KernelOption) -> (State, String) {
        if let Some(source) = self.unconditional(option) {
            return (State::Y, source);
        }
        if let Some(symbol) = self.proof(option) {
            let source = format!("inferred from symbols: {symbol} exists only with this option");
            return (State::Y, source);
        }
        let names = option.former.iter().chain([&option.name]);
        if names.into_iter().any(|name| self.facts.config.is_set(name)) {
            return (State::Y, INFERRED.to_owned());
        }
        let absent = self
            .evidence(option)
            .find(|(_, evidence)| *evidence == Evidence::Iff);
        match absent {
            Some((symbol, _)) if !self.facts.present_symbols.is_empty() => (
                State::N,
                format!("inferred from symbols: {symbol} does not exist"),
            ),
            _ => (
                State::Unknown,
                "no configuration was read, and no symbol tells".to_owned(),
            ),
        }
    }

    /// A function of this kernel that exists only with the option.
    fn proof<'o>(&self, option: &'o KernelOption) -> Option<&'o str> {
        self.evidence(option)
            .map(|(symbol, _)| symbol)
            .find(|symbol| self.facts.present_symbols.contains(*symbol))
    }

    /// The symbols that say something about the option on this release. Without a
    /// release those that say it on every release.
    fn evidence<'o>(
        &self,
        option: &'o KernelOption,
    ) -> impl Iterator<Item = (&'o str, Evidence)> + use<'o> {
        let release = self.live.release;
        option
            .symbols
            .iter()
            .filter(move |group| match release {
                Some(release) => group.versions().contain(release),
                None => group.since.is_none() && group.until.is_none(),
            })
            .filter_map(|group| Some((group, group.evidence?)))
            .flat_map(|(group, evidence)| {
                group
                    .names
                    .iter()
                    .map(move |name| (name.as_str(), evidence))
            })
    }

    fn contradiction(&self, option: &KernelOption, built: Option<&Built>) -> Option<String> {
        if built?.value != "n" {
            return None;
        }
        self.proof(option).map(|symbol| {
            format!(
                "{} says {} is not set, but {symbol}, which only this option creates, exists",
                self.facts.config_source, option.name
            )
        })
    }
}

/// What the configuration says about an option.
struct Built {
    value: String,
    source: String,
}

impl Built {
    fn state(&self) -> State {
        match self.value.as_str() {
            "n" => State::N,
            "m" => State::M,
            _ => State::Y,
        }
    }
}
