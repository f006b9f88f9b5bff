//! Which option owns a function.

use super::*;

#[test]
fn debug_preempt_pair_is_told_apart() {
    let on = debug_preempt();
    let on_states = states(&on);
    let on_owners = owners(&on, &on_states);
    let entry = state(&on_states, "CONFIG_DEBUG_PREEMPT");
    assert_eq!(entry.state, State::Y);
    assert_eq!(entry.built.as_deref(), Some("y"));
    assert_eq!(entry.state_source, "/proc/config.gz");
    assert_eq!(entry.includes, Vec::<String>::new());
    assert_eq!(entry.contradiction, None);
    assert!(entry.recommended.contains("cc6003916ed4"));
    for symbol in [
        "check_preemption_disabled",
        "debug_smp_processor_id",
        "__this_cpu_preempt_check",
        "preempt_count_add",
        "preempt_count_sub",
        "in_lock_functions",
    ] {
        assert_eq!(
            owner(&on_owners, &on_states, symbol),
            Some("CONFIG_DEBUG_PREEMPT"),
            "{symbol}"
        );
    }

    let off = plain();
    let off_states = states(&off);
    let off_owners = owners(&off, &off_states);
    let entry = state(&off_states, "CONFIG_DEBUG_PREEMPT");
    assert_eq!(entry.state, State::N);
    assert_eq!(entry.built.as_deref(), Some("n"));
    // in_lock_functions exists in both builds: it proves nothing, and is nobody's.
    assert!(off.present_symbols.contains("in_lock_functions"));
    assert_eq!(entry.contradiction, None);
    assert_eq!(off_owners.owner("in_lock_functions"), None);
    assert_eq!(off_owners.owner("preempt_count_add"), None);
    assert_eq!(off_owners.contradictions, []);
}

#[test]
fn contradictions_are_reported_and_own_nothing() {
    let mut facts = debug_preempt();
    facts.config.0.remove("CONFIG_DEBUG_PREEMPT");
    let states = states(&facts);
    let owners = owners(&facts, &states);
    let entry = state(&states, "CONFIG_DEBUG_PREEMPT");
    assert_eq!(entry.state, State::N);
    let text = entry.contradiction.as_ref().unwrap();
    assert!(
        text.contains("/proc/config.gz says CONFIG_DEBUG_PREEMPT is not set"),
        "{text}"
    );
    assert!(text.contains("__this_cpu_preempt_check"), "{text}");
    assert_eq!(owners.owner("__this_cpu_preempt_check"), None);
    assert_eq!(owners.contradictions.len(), 1);
    assert_eq!(
        states[owners.contradictions[0].option_index].name,
        "CONFIG_DEBUG_PREEMPT"
    );
}

#[test]
fn list_checks_change_names_and_owner() {
    let debian = DEBIAN_6_1;
    for release in ["5.10.0", "6.1.0"] {
        let facts = facts(
            release,
            debian,
            "0 T __list_add_valid\n0 T __list_del_entry_valid\n",
        );
        let all = states(&facts);
        let owners = owners(&facts, &all);
        assert_eq!(state(&all, "CONFIG_DEBUG_LIST").state, State::Y);
        assert_eq!(state(&all, "CONFIG_LIST_HARDENED").state, State::N);
        assert_eq!(
            owner(&owners, &all, "__list_add_valid"),
            Some("CONFIG_DEBUG_LIST")
        );
    }

    let map = "0 T __list_add_valid_or_report\n0 T __list_del_entry_valid_or_report\n";
    let mut facts = facts("6.12.95", DEBIAN_6_12, map);
    let all = states(&facts);
    assert_eq!(state(&all, "CONFIG_DEBUG_LIST").state, State::Y);
    assert_eq!(state(&all, "CONFIG_LIST_HARDENED").state, State::Y);
    assert_eq!(state(&all, "CONFIG_LIST_HARDENED").contradiction, None);
    assert_eq!(
        owner(
            &owners(&facts, &all),
            &all,
            "__list_add_valid_or_report.cold"
        ),
        Some("CONFIG_DEBUG_LIST")
    );

    // Hardened only: the function exists for the failure, the tests are inline.
    facts.config.0.remove("CONFIG_DEBUG_LIST");
    let all = states(&facts);
    let hardened = state(&all, "CONFIG_LIST_HARDENED");
    assert_eq!(hardened.state, State::Y);
    assert!(hardened.not_judgeable.is_some());
    assert_eq!(state(&all, "CONFIG_DEBUG_LIST").contradiction, None);
    assert_eq!(
        owners(&facts, &all).owner("__list_add_valid_or_report"),
        None
    );

    facts.config.0.remove("CONFIG_LIST_HARDENED");
    let all = states(&facts);
    assert!(state(&all, "CONFIG_LIST_HARDENED").contradiction.is_some());
}

#[test]
fn names_of_later_releases_are_owned_where_nobody_else_claims_them() {
    // A vendor's 5.14 with the list checks of 6.6.
    let facts = facts(
        "5.14.0-427.el9",
        "CONFIG_DEBUG_LIST=y\n",
        "0 T __list_add_valid_or_report",
    );
    let all = states(&facts);
    assert_eq!(
        owner(&owners(&facts, &all), &all, "__list_add_valid_or_report"),
        Some("CONFIG_DEBUG_LIST")
    );
    assert_eq!(state(&all, "CONFIG_LIST_HARDENED").contradiction, None);
}

#[test]
fn toggle_functions_belong_to_the_more_basic_option() {
    let mut facts = facts(
        "6.1.0",
        "CONFIG_PREEMPTION=y\nCONFIG_DEBUG_PREEMPT=y\nCONFIG_TRACE_PREEMPT_TOGGLE=y\n\
         CONFIG_PREEMPT_TRACER=y\n",
        "",
    );
    let all = states(&facts);
    let both = owners(&facts, &all);
    assert_eq!(
        owner(&both, &all, "preempt_count_add"),
        Some("CONFIG_DEBUG_PREEMPT")
    );
    assert_eq!(
        owner(&both, &all, "trace_preempt_on"),
        Some("CONFIG_TRACE_PREEMPT_TOGGLE")
    );
    assert_eq!(
        state(&all, "CONFIG_PREEMPT_TRACER").includes,
        ["CONFIG_TRACE_PREEMPT_TOGGLE"]
    );
    facts.config.0.remove("CONFIG_DEBUG_PREEMPT");
    let all = states(&facts);
    assert_eq!(
        owner(&owners(&facts, &all), &all, "preempt_count_add"),
        Some("CONFIG_TRACE_PREEMPT_TOGGLE")
    );
}

#[test]
fn takes_follow_what_a_function_can_reach() {
    let mut facts = debug_preempt();
    facts.preempt_model = model(Model::None);
    let all = states(&facts);
    let owners = owners(&facts, &all);
    assert_eq!(
        owners.owner("check_preemption_disabled").unwrap().takes,
        Takes::Callees
    );
    assert_eq!(owners.owner("__cond_resched").unwrap().takes, Takes::Itself);
    assert_eq!(
        owners.owner("try_charge_memcg").unwrap().takes,
        Takes::Itself
    );
    assert_eq!(
        owners.owner("mod_objcg_state.part.0").unwrap().takes,
        Takes::Callees
    );
    assert_eq!(
        Catalog::builtin()
            .option("CONFIG_DEBUG_PREEMPT")
            .unwrap()
            .call_targets(Release::new(6, 1)),
        [
            "__this_cpu_preempt_check",
            "debug_smp_processor_id",
            "in_lock_functions",
            "preempt_count_add",
            "preempt_count_sub",
        ]
    );
}
