//! Which option a function belongs to, on one kernel.

use std::collections::HashMap;

use super::schema::{Catalog, Takes};
use super::state::OptionState;
use crate::kernel::{Release, base_name};

/// The functions of the enabled options, each with one owner.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    by_name: HashMap<String, Owner>,
    /// Options that are off by the configuration although a function exists that
    /// only they create. They own nothing.
    pub contradictions: Vec<Contradiction>,
}

/// The option a function belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Position in the states the owners were made from.
    pub option_index: usize,
    /// Which samples the function takes.
    pub takes: Takes,
}

/// An option whose configuration and functions disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Position in the states the owners were made from.
    pub option_index: usize,
    /// What disagrees, one line.
    pub text: String,
}

impl Owners {
    /// Gives each function of `catalog` to one of the options that are on by
    /// `states`, as the module describes. `states` are those of
    /// [`Catalog::states`]; states read from a file are matched by name, so they
    /// may come from another catalogue: an option that this one does not know
    /// owns nothing. The index of an [`Owner`] is a position in `states`.
    pub fn new(catalog: &Catalog, states: &[OptionState], release: Release) -> Self {
        let mut exact = HashMap::new();
        let mut elsewhere = HashMap::new();
        let mut indexes = HashMap::new();
        for (at, state) in states.iter().enumerate() {
            indexes.entry(state.name.as_str()).or_insert(at);
        }
        for option in catalog.options() {
            let Some(&option_index) = indexes.get(option.name.as_str()) else {
                continue;
            };
            if !states[option_index].state.is_on() {
                continue;
            }
            for group in &option.symbols {
                let Some(takes) = group.takes else { continue };
                let names = if group.versions().contain(release) {
                    &mut exact
                } else {
                    &mut elsewhere
                };
                for name in &group.names {
                    names.entry(name.clone()).or_insert(Owner {
                        option_index,
                        takes,
                    });
                }
            }
        }
        for (name, owner) in elsewhere {
            exact.entry(name).or_insert(owner);
        }
        let contradictions = states
            .iter()
            .enumerate()
            .filter_map(|(option_index, state)| {
                state
                    .contradiction
                    .clone()
                    .map(|text| Contradiction { option_index, text })
            })
            .collect();
        Self {
            by_name: exact,
            contradictions,
        }
    }

    /// The owner of a function; compiler suffixes in `symbol` do not matter.
    pub fn owner(&self, symbol: &str) -> Option<Owner> {
        self.by_name.get(base_name(symbol)).copied()
    }

    /// Every owned function with its owner, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Owner)> {
        self.by_name
            .iter()
            .map(|(name, owner)| (name.as_str(), *owner))
    }
}
