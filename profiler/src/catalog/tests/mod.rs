//! The catalogue against real kernels' configurations and symbols, and against
//! whatever else may be read.
//!
//! `6.1-plain` and `6.1-debug-preempt` are two builds of one source that differ
//! in `CONFIG_DEBUG_PREEMPT`, `6.18-none` is a running host, and the
//! `debian-cloud` ones are a distribution's configurations. All are cut down to
//! what the catalogue names.

use std::collections::BTreeSet;

use super::*;
use crate::kernel::{Config, INFERRED, KernelFacts, Model, PreemptModel, Release, base_name};

mod data;
mod owning;
mod random;
mod states;

fn symbols(map: &str) -> BTreeSet<String> {
    map.lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(|name| base_name(name).to_owned())
        .collect()
}

fn facts(release: &str, config_text: &str, map: &str) -> KernelFacts {
    KernelFacts {
        release: release.to_owned(),
        config_source: "/proc/config.gz".to_owned(),
        config: Config::parse(config_text),
        present_symbols: symbols(map),
        ..KernelFacts::default()
    }
}

fn model(active: Model) -> PreemptModel {
    PreemptModel {
        active,
        source: "preempt_dynamic_mode".to_owned(),
        ..PreemptModel::default()
    }
}

const DEBIAN_6_1: &str = include_str!("../../../tests/fixtures/catalog/6.1-debian-cloud.config");
const DEBIAN_6_12: &str = include_str!("../../../tests/fixtures/catalog/6.12-debian-cloud.config");

fn plain() -> KernelFacts {
    facts(
        "6.1.192",
        include_str!("../../../tests/fixtures/catalog/6.1-plain.config"),
        include_str!("../../../tests/fixtures/catalog/6.1-plain.System.map"),
    )
}

fn debug_preempt() -> KernelFacts {
    facts(
        "6.1.192",
        include_str!("../../../tests/fixtures/catalog/6.1-debug-preempt.config"),
        include_str!("../../../tests/fixtures/catalog/6.1-debug-preempt.System.map"),
    )
}

fn host() -> KernelFacts {
    facts(
        "6.18.44",
        include_str!("../../../tests/fixtures/catalog/6.18-none.config"),
        include_str!("../../../tests/fixtures/catalog/6.18-none.System.map"),
    )
}

fn state<'a>(states: &'a [OptionState], name: &str) -> &'a OptionState {
    states
        .iter()
        .find(|state| state.name == name)
        .unwrap_or_else(|| panic!("{name} is not catalogued"))
}

fn states(facts: &KernelFacts) -> Vec<OptionState> {
    Catalog::builtin().states(facts)
}

fn owners(facts: &KernelFacts, states: &[OptionState]) -> Owners {
    Owners::new(
        Catalog::builtin(),
        states,
        Release::parse(&facts.release).unwrap(),
    )
}

/// Name of the option that owns `symbol`.
fn owner<'a>(owners: &Owners, states: &'a [OptionState], symbol: &str) -> Option<&'a str> {
    owners
        .owner(symbol)
        .map(|owner| states[owner.option_index].name.as_str())
}
