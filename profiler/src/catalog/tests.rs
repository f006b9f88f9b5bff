//! The catalogue against real kernels' configurations and symbols, and against
//! whatever else may be read.
//!
//! `6.1-plain` and `6.1-debug-preempt` are two builds of one source that differ
//! in `CONFIG_DEBUG_PREEMPT`, `6.18-none` is a running host, and the
//! `debian-cloud` ones are a distribution's configurations. All are cut down to
//! what the catalogue names.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::kernel::{Config, KernelFacts, Model, PreemptModel, Release};

fn config(text: &str) -> Config {
    Config(
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned()))
            .collect(),
    )
}

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
        config: config(config_text),
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

macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../../tests/fixtures/catalog/", $name))
    };
}

fn plain() -> KernelFacts {
    facts(
        "6.1.192",
        fixture!("6.1-plain.config"),
        fixture!("6.1-plain.System.map"),
    )
}

fn debug_preempt() -> KernelFacts {
    facts(
        "6.1.192",
        fixture!("6.1-debug-preempt.config"),
        fixture!("6.1-debug-preempt.System.map"),
    )
}

fn host() -> KernelFacts {
    facts(
        "6.18.44",
        fixture!("6.18-none.config"),
        fixture!("6.18-none.System.map"),
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

#[test]
fn builtin_has_every_promised_option() {
    let catalog = Catalog::builtin();
    for name in "DEBUG_PREEMPT PREEMPT_RCU PREEMPT_NONE PREEMPT_VOLUNTARY PREEMPT PREEMPT_LAZY \
        PREEMPT_RT PREEMPT_DYNAMIC PREEMPT_COUNT PREEMPT_TRACER TRACE_PREEMPT_TOGGLE \
        TRACE_IRQFLAGS IRQSOFF_TRACER PROVE_LOCKING LOCKDEP DEBUG_LOCK_ALLOC LOCK_STAT \
        DEBUG_SPINLOCK DEBUG_MUTEXES DEBUG_RT_MUTEXES DEBUG_RWSEMS DEBUG_ATOMIC_SLEEP DEBUG_LIST \
        LIST_HARDENED DEBUG_OBJECTS DEBUG_OBJECTS_TIMERS DEBUG_OBJECTS_WORK \
        DEBUG_OBJECTS_RCU_HEAD DEBUG_OBJECTS_FREE SLUB_DEBUG SLUB_DEBUG_ON KASAN KCSAN KMSAN \
        UBSAN KFENCE DEBUG_KMEMLEAK PAGE_POISONING DEBUG_PAGEALLOC DEBUG_VM HARDENED_USERCOPY \
        FORTIFY_SOURCE INIT_ON_ALLOC_DEFAULT_ON INIT_ON_FREE_DEFAULT_ON INIT_STACK_ALL_ZERO \
        KSTACK_ERASE RANDOMIZE_KSTACK_OFFSET_DEFAULT STACKPROTECTOR_STRONG SCHEDSTATS PSI MEMCG \
        TASK_DELAY_ACCT CONTEXT_TRACKING CONTEXT_TRACKING_USER VIRT_CPU_ACCOUNTING_GEN \
        IRQ_TIME_ACCOUNTING FUNCTION_TRACER NO_HZ_FULL HZ RCU_NOCB_CPU RCU_LAZY PROVE_RCU \
        RCU_EQS_DEBUG RCU_TRACE SCHED_DEBUG DEBUG_NOTIFIERS WQ_WATCHDOG MITIGATION_RETPOLINE \
        MITIGATION_RETHUNK MITIGATION_CALL_DEPTH_TRACKING MITIGATION_PAGE_TABLE_ISOLATION"
        .split_whitespace()
    {
        let name = format!("CONFIG_{name}");
        assert_eq!(catalog.option(&name).map(|o| &o.name), Some(&name));
    }
    assert_eq!(
        catalog.option("CONFIG_GCC_PLUGIN_STACKLEAK").unwrap().name,
        "CONFIG_KSTACK_ERASE"
    );
    assert!(catalog.symbols().contains("debug_smp_processor_id"));
    assert!(
        catalog
            .knob_paths()
            .contains(&"/proc/sys/kernel/sched_schedstats".to_owned())
    );
}

#[test]
fn shared_functions_are_claimed_by_known_pairs_only() {
    // A new pair needs a decision on who stands first; this is where it is noted.
    let mut claims: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for option in Catalog::builtin().options() {
        for group in option.symbols.iter().filter(|group| group.takes.is_some()) {
            for name in &group.names {
                claims.entry(name).or_default().insert(&option.name);
            }
        }
    }
    claims.retain(|_, options| options.len() > 1);
    let pairs: BTreeSet<Vec<&str>> = claims
        .into_values()
        .map(|options| options.into_iter().collect())
        .collect();
    assert_eq!(
        pairs,
        BTreeSet::from([
            vec!["CONFIG_DEBUG_ATOMIC_SLEEP", "CONFIG_PROVE_LOCKING"],
            vec!["CONFIG_DEBUG_PREEMPT", "CONFIG_TRACE_PREEMPT_TOGGLE"],
            vec!["CONFIG_IRQSOFF_TRACER", "CONFIG_PREEMPT_TRACER"],
            vec!["CONFIG_PREEMPT", "CONFIG_PREEMPT_LAZY"],
            vec!["CONFIG_PREEMPT_NONE", "CONFIG_PREEMPT_VOLUNTARY"],
        ])
    );
}

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
fn real_kernels_do_not_contradict_themselves() {
    for facts in [plain(), debug_preempt(), host()] {
        for state in states(&facts) {
            assert_eq!(
                state.contradiction, None,
                "{} on {}",
                state.name, facts.release
            );
        }
    }
}

#[test]
fn symbols_alone_tell_what_the_configuration_says() {
    for known in [plain(), debug_preempt(), host()] {
        let mut facts = known.clone();
        facts.config = Config::default();
        facts.config_source = "inferred from symbols".to_owned();
        let mut told = 0;
        for (with, without) in states(&known).into_iter().zip(states(&facts)) {
            assert_eq!(without.built, None);
            let entry = Catalog::builtin().option(&with.name).unwrap();
            if !entry.live.is_empty() || without.state == State::Unknown {
                continue;
            }
            assert_eq!(
                with.state, without.state,
                "{} on {}",
                with.name, known.release
            );
            told += 1;
        }
        assert!(told >= 15, "only {told} options can be told from symbols");
    }
}

#[test]
fn nothing_known_is_nothing_claimed() {
    let facts = KernelFacts {
        release: "6.1.0".to_owned(),
        ..KernelFacts::default()
    };
    for state in states(&facts) {
        assert_eq!(state.state, State::Unknown, "{}", state.name);
        assert_eq!(state.built, None);
        assert_eq!(state.value, None);
    }
    let none = states(&facts);
    assert_eq!(owners(&facts, &none).iter().count(), 0);
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

const PROVE_LOCKING: &str = "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PROVE_LOCKING=y\nCONFIG_LOCKDEP=y\n\
    CONFIG_DEBUG_LOCK_ALLOC=y\nCONFIG_DEBUG_SPINLOCK=y\nCONFIG_DEBUG_MUTEXES=y\n\
    CONFIG_DEBUG_RT_MUTEXES=y\nCONFIG_DEBUG_RWSEMS=y\nCONFIG_PREEMPT_COUNT=y\n\
    CONFIG_TRACE_IRQFLAGS=y\nCONFIG_PROVE_RCU=y\nCONFIG_HZ=250\n";

#[test]
fn prove_locking_takes_along_what_it_selects() {
    let mut facts = facts("6.1.0", PROVE_LOCKING, "");
    let all = states(&facts);
    let mut includes = state(&all, "CONFIG_PROVE_LOCKING").includes.clone();
    includes.sort();
    assert_eq!(
        includes,
        [
            "CONFIG_DEBUG_LOCK_ALLOC",
            "CONFIG_DEBUG_MUTEXES",
            "CONFIG_DEBUG_RT_MUTEXES",
            "CONFIG_DEBUG_RWSEMS",
            "CONFIG_DEBUG_SPINLOCK",
            "CONFIG_LOCKDEP",
            "CONFIG_PREEMPT_COUNT",
            "CONFIG_PROVE_RCU",
            "CONFIG_TRACE_IRQFLAGS",
        ]
    );
    // PROVE_LOCKING holds on to everything DEBUG_LOCK_ALLOC selects.
    assert_eq!(
        state(&all, "CONFIG_DEBUG_LOCK_ALLOC").includes,
        Vec::<String>::new()
    );

    let lockdep = owners(&facts, &all);
    assert_eq!(
        owner(&lockdep, &all, "lock_acquire"),
        Some("CONFIG_LOCKDEP")
    );
    assert_eq!(
        owner(&lockdep, &all, "validate_chain"),
        Some("CONFIG_PROVE_LOCKING")
    );
    assert_eq!(
        owner(&lockdep, &all, "__might_fault"),
        Some("CONFIG_PROVE_LOCKING")
    );
    assert_eq!(lockdep.owner("__might_fault").unwrap().takes, Takes::Itself);
    assert_eq!(lockdep.owner("lock_acquire").unwrap().takes, Takes::Callees);

    // Another option keeps some of them on.
    facts
        .config
        .0
        .insert("CONFIG_LOCK_STAT".to_owned(), "y".to_owned());
    facts
        .config
        .0
        .insert("CONFIG_DEBUG_ATOMIC_SLEEP".to_owned(), "y".to_owned());
    let all = states(&facts);
    let mut includes = state(&all, "CONFIG_PROVE_LOCKING").includes.clone();
    includes.sort();
    assert_eq!(
        includes,
        [
            "CONFIG_DEBUG_RWSEMS",
            "CONFIG_PROVE_RCU",
            "CONFIG_TRACE_IRQFLAGS"
        ]
    );
    assert_eq!(
        owner(&owners(&facts, &all), &all, "__might_fault"),
        Some("CONFIG_DEBUG_ATOMIC_SLEEP")
    );
}

#[test]
fn proofs_of_locking_can_be_stopped() {
    let mut facts = facts("6.1.0", PROVE_LOCKING, "");
    facts
        .knobs
        .insert("/proc/sys/kernel/prove_locking".to_owned(), "0".to_owned());
    let all = states(&facts);
    let entry = state(&all, "CONFIG_PROVE_LOCKING");
    assert_eq!((entry.state, entry.built.as_deref()), (State::N, Some("y")));
    assert_eq!(entry.state_source, "/proc/sys/kernel/prove_locking (0)");
    let owners = owners(&facts, &all);
    assert_eq!(owners.owner("validate_chain"), None);
    assert_eq!(owner(&owners, &all, "lock_acquire"), Some("CONFIG_LOCKDEP"));
}

#[test]
fn list_checks_change_names_and_owner() {
    let debian = fixture!("6.1-debian-cloud.config");
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
    let mut facts = facts("6.12.95", fixture!("6.12-debian-cloud.config"), map);
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
fn the_active_model_counts_not_the_built_one() {
    let mut facts = plain();
    facts.preempt_model = model(Model::Voluntary);
    facts.hz = Some(250);
    let all = states(&facts);
    let voluntary = state(&all, "CONFIG_PREEMPT_VOLUNTARY");
    assert_eq!(
        (voluntary.state, voluntary.built.as_deref()),
        (State::Y, Some("n"))
    );
    assert_eq!(voluntary.value.as_deref(), Some("voluntary"));
    assert_eq!(
        voluntary.state_source,
        "preemption model: preempt_dynamic_mode"
    );
    let full = state(&all, "CONFIG_PREEMPT");
    assert_eq!((full.state, full.built.as_deref()), (State::N, Some("y")));
    assert_eq!(full.value, None);
    assert_eq!(
        state(&all, "CONFIG_PREEMPT_DYNAMIC").value.as_deref(),
        Some("voluntary")
    );
    // CONFIG_PREEMPT=y would keep the kernel preemptible without PREEMPT_DYNAMIC.
    assert_eq!(
        state(&all, "CONFIG_PREEMPT_DYNAMIC").includes,
        Vec::<String>::new()
    );
    let hz = state(&all, "CONFIG_HZ");
    assert_eq!((hz.state, hz.value.as_deref()), (State::Y, Some("250")));
    let all_owners = owners(&facts, &all);
    assert_eq!(
        owner(&all_owners, &all, "__cond_resched"),
        Some("CONFIG_PREEMPT_VOLUNTARY")
    );
    assert_eq!(all_owners.owner("preempt_schedule_irq"), None);

    facts.preempt_model = model(Model::Unknown);
    assert_eq!(
        state(&states(&facts), "CONFIG_PREEMPT").state,
        State::Unknown
    );
    facts.config.0.remove("CONFIG_PREEMPT_DYNAMIC");
    assert_eq!(state(&states(&facts), "CONFIG_PREEMPT").state, State::Y);
}

#[test]
fn a_voluntary_dynamic_kernel_pays_for_being_preemptible() {
    let mut facts = facts("6.1.0", fixture!("6.1-debian-cloud.config"), "");
    facts.preempt_model = model(Model::Voluntary);
    let all = states(&facts);
    assert_eq!(
        state(&all, "CONFIG_PREEMPT_DYNAMIC").includes,
        [
            "CONFIG_PREEMPT_COUNT",
            "CONFIG_PREEMPT_RCU",
            "CONFIG_PREEMPTION"
        ]
    );
}

/// State and source of one option with a command line and knobs.
fn live(facts: &KernelFacts, name: &str, boot: &str, knobs: &[(&str, &str)]) -> (State, String) {
    let mut facts = facts.clone();
    facts.boot_parameters = boot.to_owned();
    facts.knobs = knobs
        .iter()
        .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
        .collect();
    let all = states(&facts);
    let state = state(&all, name);
    (state.state, state.state_source.clone())
}

#[test]
fn boot_parameters_and_knobs_decide_the_live_state() {
    let on = |source: &str| (State::Y, source.to_owned());
    let off = |source: &str| (State::N, source.to_owned());
    let built = "/proc/config.gz";
    let host = host();
    assert_eq!(
        live(&host, "CONFIG_PSI", "", &[]),
        off("/proc/config.gz (CONFIG_PSI_DEFAULT_DISABLED=y)")
    );
    assert_eq!(
        live(&host, "CONFIG_PSI", "quiet psi=1 -- psi=0", &[]),
        on("boot parameter psi=1")
    );
    assert_eq!(
        live(&host, "CONFIG_PSI", "psi=1 psi=off", &[]),
        off("boot parameter psi=off")
    );

    let plain = plain();
    assert_eq!(live(&plain, "CONFIG_SLUB_DEBUG_ON", "", &[]), off(built));
    assert_eq!(
        live(&plain, "CONFIG_SLUB_DEBUG_ON", "slub_debug=FZPU", &[]),
        on("boot parameter slub_debug=FZPU")
    );
    assert_eq!(
        live(&plain, "CONFIG_SLUB_DEBUG_ON", "slub_debug", &[]),
        on("boot parameter slub_debug")
    );
    assert_eq!(
        live(&plain, "CONFIG_SLUB_DEBUG_ON", "slub_debug=-", &[]),
        off("boot parameter slub_debug=-")
    );
    // The parameter's new name came after this release.
    assert_eq!(
        live(&plain, "CONFIG_SLUB_DEBUG_ON", "slab_debug=FZPU", &[]),
        off(built)
    );
    let mut without = plain.clone();
    without.config.0.remove("CONFIG_SLUB_DEBUG");
    assert_eq!(
        live(&without, "CONFIG_SLUB_DEBUG_ON", "slub_debug=FZPU", &[]),
        off(built)
    );

    let schedstats = "/proc/sys/kernel/sched_schedstats";
    assert_eq!(
        live(&plain, "CONFIG_SCHEDSTATS", "", &[]),
        off("off until switched on")
    );
    assert_eq!(
        live(
            &plain,
            "CONFIG_SCHEDSTATS",
            "schedstats=enable",
            &[(schedstats, "0")]
        ),
        off("/proc/sys/kernel/sched_schedstats (0)")
    );
    assert_eq!(
        live(&plain, "CONFIG_SCHEDSTATS", "", &[(schedstats, "1\n")]),
        on("/proc/sys/kernel/sched_schedstats (1)")
    );

    assert_eq!(
        live(
            &plain,
            "CONFIG_INIT_ON_ALLOC_DEFAULT_ON",
            "init_on_alloc=1",
            &[]
        ),
        on("boot parameter init_on_alloc=1")
    );
    assert_eq!(
        live(&plain, "CONFIG_MEMCG", "cgroup_disable=io,memory", &[]),
        off("boot parameter cgroup_disable=io,memory")
    );
    assert_eq!(
        live(&plain, "CONFIG_MEMCG", "cgroup_disable=io", &[]),
        on(built)
    );

    let debian = facts("6.12.95", fixture!("6.12-debian-cloud.config"), "");
    assert_eq!(
        live(&debian, "CONFIG_KFENCE", "", &[]),
        off("/proc/config.gz (CONFIG_KFENCE_SAMPLE_INTERVAL=0)")
    );
    assert_eq!(
        live(
            &debian,
            "CONFIG_KFENCE",
            "",
            &[("/sys/module/kfence/parameters/sample_interval", "100")]
        ),
        on("/sys/module/kfence/parameters/sample_interval (100)")
    );
    assert_eq!(
        live(&debian, "CONFIG_HARDENED_USERCOPY", "", &[]),
        on(built)
    );
    assert_eq!(
        live(
            &debian,
            "CONFIG_HARDENED_USERCOPY",
            "hardened-usercopy=off",
            &[]
        ),
        off("boot parameter hardened-usercopy=off")
    );
    assert_eq!(
        live(
            &debian,
            "CONFIG_MITIGATION_RETPOLINE",
            "",
            &[(
                "/sys/devices/system/cpu/vulnerabilities/spectre_v2",
                "Mitigation: Enhanced / Automatic IBRS; STIBP: disabled"
            )]
        )
        .0,
        State::N
    );
    assert_eq!(
        live(
            &debian,
            "CONFIG_MITIGATION_RETHUNK",
            "",
            &[
                (
                    "/sys/devices/system/cpu/vulnerabilities/retbleed",
                    "Not affected"
                ),
                (
                    "/sys/devices/system/cpu/vulnerabilities/spec_rstack_overflow",
                    "Vulnerable: Safe RET, no microcode"
                ),
            ]
        )
        .0,
        State::Y
    );
    // A renamed option is found by its former name, and says so.
    let old = facts("6.1.0", "CONFIG_RETPOLINE=y\n", "");
    assert_eq!(
        live(&old, "CONFIG_MITIGATION_RETPOLINE", "", &[]),
        on("/proc/config.gz (CONFIG_RETPOLINE)")
    );
    // Gone from Kconfig because it is always on.
    let new = facts("6.18.0", "CONFIG_HZ=250\n", "");
    assert_eq!(
        live(&new, "CONFIG_SCHED_DEBUG", "", &[]),
        on("always on after 6.14")
    );
    assert_eq!(live(&old, "CONFIG_SCHED_DEBUG", "", &[]), off(built));
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

#[test]
fn states_serialise_by_the_contract() {
    let all = states(&plain());
    let json = serde_json::to_value(state(&all, "CONFIG_DEBUG_PREEMPT")).unwrap();
    let keys: Vec<&str> = json
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys.into_iter().collect::<BTreeSet<_>>(),
        BTreeSet::from([
            "name",
            "state",
            "built",
            "state_source",
            "includes",
            "how_to_turn_off",
            "recommended",
            "source",
        ])
    );
    assert_eq!(json["state"], "n");
    let back: OptionState = serde_json::from_value(json).unwrap();
    assert_eq!(&back, state(&all, "CONFIG_DEBUG_PREEMPT"));
}

#[test]
fn broken_catalogues_are_refused() {
    let entry = |name: &str, more: &str| {
        format!(
            "[[option]]\nname = \"{name}\"\ngroup = \"rcu\"\nsummary = \"s\"\noff = []\n\
             how_to_turn_off = \"h\"\nrecommended = \"n\"\ninline_only = true\n\
             not_judgeable = \"j\"\nsources = [\"https://kernel.org\"]\n{more}\n"
        )
    };
    let refused = |body: &str, why: &str| {
        let error = Catalog::parse(&format!("schema = 1\n{body}")).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(why), "{text}");
    };
    Catalog::parse(&format!("schema = 1\n{}", entry("CONFIG_A", ""))).unwrap();
    refused(
        &(entry("CONFIG_A", "") + &entry("CONFIG_A", "")),
        "occurs twice",
    );
    refused(&entry("A", ""), "not a Kconfig symbol");
    refused(
        &entry("CONFIG_A", "selects = [\"CONFIG_B\"]"),
        "not catalogued",
    );
    refused(
        &(entry("CONFIG_A", "selects = [\"CONFIG_B\"]") + &entry("CONFIG_B", "")),
        "must stand before it",
    );
    refused(
        &entry(
            "CONFIG_A",
            "symbols = [{ names = [\"f\"], takes = \"self\" }]",
        ),
        "inline_only",
    );
    refused(
        &entry(
            "CONFIG_A",
            "symbols = [{ names = [\"f.cold\"], evidence = \"iff\" }]",
        ),
        "not a base name",
    );
    refused(
        &entry(
            "CONFIG_A",
            "symbols = [{ names = [\"f\"], evidence = \"iff\", since = \"6.2\", until = \"6.1\" }]",
        ),
        "range",
    );
    refused(
        &entry(
            "CONFIG_A",
            "symbols = [{ names = [\"f\"], evidence = \"iff\", since = \"6\" }]",
        ),
        "not MAJOR.MINOR",
    );
    refused(&entry("CONFIG_A", "misspelt = 1"), "unknown field");
    assert!(Catalog::parse("schema = 2\noption = []").is_err());
}

#[test]
fn callers_are_grouped_by_subsystem() {
    let groups = CallerGroups::builtin();
    for (symbol, group) in [
        ("mod_objcg_state", Some("memcg charging")),
        ("obj_cgroup_charge.part.0", Some("memcg charging")),
        ("refill_obj_stock", Some("memcg charging")),
        ("memcg_slab_post_alloc_hook", Some("memcg charging")),
        ("__kmem_cache_alloc_node", Some("slab")),
        ("kmem_cache_free", Some("slab")),
        ("unix_stream_read_generic", Some("networking")),
        ("sock_def_readable", Some("networking")),
        ("try_to_wake_up", Some("scheduler")),
        ("schedule", Some("scheduler")),
        ("schedule_timeout", Some("timers")),
        ("rcu_core", Some("RCU")),
        ("hrtimer_interrupt", Some("timers")),
        ("_raw_spin_lock", Some("locking")),
        ("pipe_write", Some("fs and pipe")),
        ("vfs_read", Some("fs and pipe")),
        ("handle_mm_fault", Some("mm")),
        ("", None),
        ("no_such_function", None),
    ] {
        assert_eq!(groups.group(symbol), group, "{symbol}");
    }
    assert!(groups.names().count() > 10);
}

#[test]
fn entry_frames_end_a_walk() {
    for entry in [
        "asm_sysvec_apic_timer_interrupt",
        "asm_exc_page_fault",
        "asm_common_interrupt",
        "common_interrupt",
        "error_entry",
        "ret_from_fork",
        "ret_from_fork_asm",
        "entry_SYSCALL_64",
        "entry_SYSCALL_64_after_hwframe",
        "sysvec_apic_timer_interrupt",
        "asm_call_sysvec_on_stack",
        "apic_timer_interrupt",
        "el1h_64_irq",
        "el1_irq",
        "el0t_64_sync",
    ] {
        assert!(is_entry_frame(entry), "{entry}");
    }
    for inside in [
        "asm_load_gs_index",
        "do_syscall_64",
        "irqentry_exit",
        "handle_irq_event",
        "el",
        "",
        "nmi_handle",
        "page_fault_oops",
        "do_el0_svc",
    ] {
        assert!(!is_entry_frame(inside), "{inside}");
    }
}

#[test]
fn compiler_suffixes_are_dropped() {
    for (name, base) in [
        ("ct_kernel_exit.constprop.0", "ct_kernel_exit"),
        (
            "rcu_nocb_rdp_deoffload.isra.0.cold",
            "rcu_nocb_rdp_deoffload",
        ),
        (".text", ".text"),
        ("", ""),
        (".", "."),
        ("é.cold", "é"),
        ("schedule", "schedule"),
    ] {
        assert_eq!(base_name(name), base);
    }
}

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
