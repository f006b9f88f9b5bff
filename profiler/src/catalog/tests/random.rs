//! Arbitrary facts and names.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// Facts made of names the catalogue knows, set at random, and of noise.
fn any_facts() -> impl Strategy<Value = KernelFacts> {
    let catalog = Catalog::builtin();
    let options: Vec<String> = catalog.options().iter().map(|o| o.name.clone()).collect();
    let symbols: Vec<String> = catalog.symbols().into_iter().collect();
    let knobs = catalog.knob_paths();
    let value = prop_oneof![
        Just("y".to_owned()),
        Just("m".to_owned()),
        Just("n".to_owned()),
        Just("0".to_owned()),
        ".{0,8}"
    ];
    let active = prop_oneof![
        Just(Model::None),
        Just(Model::Voluntary),
        Just(Model::Full),
        Just(Model::Lazy),
        Just(Model::Rt),
        Just(Model::Unknown)
    ];
    (
        prop_oneof!["[0-9]{1,2}\\.[0-9]{1,2}\\.[0-9]", ".{0,12}"],
        prop::collection::btree_map(prop::sample::select(options), value.clone(), 0..60),
        prop::collection::btree_set(prop::sample::select(symbols), 0..80),
        prop::collection::btree_map(prop::sample::select(knobs), value, 0..8),
        prop_oneof![
            "(psi|slub_debug|nohz_full|mitigations|pti)=[a-z0-9,-]{0,4}",
            ".{0,64}"
        ],
        active,
        prop::option::of(any::<u32>()),
    )
        .prop_map(
            |(release, config, present_symbols, knobs, boot_parameters, active, hz)| KernelFacts {
                release,
                config: Config(config),
                present_symbols,
                knobs,
                boot_parameters,
                preempt_model: model(active),
                hz,
                config_source: "/boot/config".to_owned(),
                ..KernelFacts::default()
            },
        )
}

proptest! {
    #[test]
    fn owners_are_enabled_options_and_never_overlap(facts in any_facts()) {
        let catalog = Catalog::builtin();
        let all = states(&facts);
        prop_assert_eq!(all.len(), catalog.options().len());
        let release = Release::parse(&facts.release).unwrap_or(Release::new(6, 1));
        let owners = Owners::new(catalog, &all, release);
        let mut seen = BTreeSet::new();
        for (name, owner) in owners.iter() {
            prop_assert!(seen.insert(name.to_owned()), "{} has two owners", name);
            prop_assert!(all[owner.option_index].state.is_on());
            prop_assert_eq!(owners.owner(name), Some(owner));
            // Nobody that stands before it and is on has the name for this release
            // unless the owner has it too and stands first.
            let claims: Vec<usize> = catalog
                .options()
                .iter()
                .enumerate()
                .filter(|(at, _)| all[*at].state.is_on())
                .filter(|(_, option)| option.symbols.iter().any(|group| {
                    group.takes.is_some()
                        && group.versions().contain(release)
                        && group.names.iter().any(|known| known == name)
                }))
                .map(|(at, _)| at)
                .collect();
            if let Some(first) = claims.first() {
                prop_assert_eq!(*first, owner.option_index);
            }
        }
        for state in &all {
            prop_assert!(!state.includes.contains(&state.name));
            prop_assert!(!state.state_source.is_empty());
            prop_assert_eq!(state.built.is_none(), facts.config.is_empty());
            if state.contradiction.is_some() {
                prop_assert_eq!(state.built.as_deref(), Some("n"));
            }
        }
    }

    #[test]
    fn any_text_is_looked_up(text in ".{0,40}") {
        let all = states(&plain());
        let owners = owners(&plain(), &all);
        let _ = owners.owner(&text);
        let _ = is_entry_frame(&text);
        let _ = CallerGroups::builtin().group(&text);
    }

    #[test]
    fn any_catalogue_is_read_or_refused(text in ".{0,200}") {
        let _ = Catalog::parse(&text);
    }
}
