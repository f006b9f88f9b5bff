//! What the catalogue knows about the kernel that was measured.

use std::collections::HashSet;

use crate::catalog::{CallerGroups, Catalog, OptionState, Owner, Owners, is_entry_frame};
use crate::kernel::{KernelFacts, Release};

/// The catalogue, matched against the facts of one kernel.
#[derive(Clone, Debug)]
pub struct Knowledge {
    states: Vec<OptionState>,
    owners: Owners,
    /// For each option the functions whose calls say what it costs.
    checks: Vec<Vec<String>>,
}

impl Knowledge {
    /// Matches `catalog` against a recording's facts.
    pub fn new(catalog: &Catalog, facts: &KernelFacts) -> Self {
        let mut states = catalog.states(facts);
        // A release that cannot be read is newer than this program rather than
        // older than the catalogue.
        let release = Release::parse(&facts.release).unwrap_or(Release::new(u32::MAX, u32::MAX));
        let owners = Owners::new(catalog, &states, release);
        // Positions of options with a function that this kernel has.
        let visible: HashSet<usize> = owners
            .iter()
            .filter(|(name, _)| {
                facts.present_symbols.is_empty() || facts.present_symbols.contains(*name)
            })
            .map(|(_, owner)| owner.option_index)
            .collect();
        for (at, state) in states.iter_mut().enumerate() {
            if state.state.is_on() && !visible.contains(&at) && state.not_judgeable.is_none() {
                state.not_judgeable =
                    Some("its code is inside other functions of this kernel".to_owned());
            }
        }
        let checks = catalog
            .options()
            .iter()
            .map(|option| {
                let checks = option.checks(release);
                checks.map(|check| check.symbol.to_owned()).collect()
            })
            .collect();
        Self {
            states,
            owners,
            checks,
        }
    }

    /// The whole catalogue with the live state, in its own order.
    pub fn states(&self) -> &[OptionState] {
        &self.states
    }

    /// The functions whose calls say what an option costs, by its position.
    pub(super) fn checks(&self, option: usize) -> &[String] {
        self.checks.get(option).map_or(&[], Vec::as_slice)
    }

    /// The enabled option that owns the symbol.
    pub(super) fn owner(&self, symbol: &str) -> Option<Owner> {
        self.owners.owner(symbol)
    }

    /// Whether the symbol is an interrupt or exception entry.
    pub(super) fn is_entry_frame(&self, symbol: &str) -> bool {
        is_entry_frame(symbol)
    }

    /// The subsystem a calling function belongs to.
    pub(super) fn group(&self, symbol: &str) -> Option<&str> {
        CallerGroups::builtin().group(symbol)
    }

    /// Sentences about options whose state and symbols disagree.
    pub(super) fn contradictions(&self) -> impl Iterator<Item = &str> {
        self.owners
            .contradictions
            .iter()
            .map(|contradiction| contradiction.text.as_str())
    }
}
