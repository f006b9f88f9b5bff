//! The state of the options on real and made-up kernels.

use std::collections::BTreeSet;

use super::*;

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
        facts.config_source = INFERRED.to_owned();
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
fn an_inferred_configuration_says_nothing_about_what_it_leaves_out() {
    let facts = KernelFacts {
        release: "6.1.0".to_owned(),
        config: Config::parse("CONFIG_DEBUG_PREEMPT=y\nCONFIG_PREEMPTION=y\n"),
        config_source: INFERRED.to_owned(),
        ..KernelFacts::default()
    };
    let all = states(&facts);
    let known = state(&all, "CONFIG_DEBUG_PREEMPT");
    assert_eq!((known.state, known.built.as_deref()), (State::Y, None));
    assert_eq!(known.state_source, INFERRED);
    let left_out = state(&all, "CONFIG_DEBUG_LIST");
    assert_eq!(
        (left_out.state, left_out.built.as_deref()),
        (State::Unknown, None)
    );
    assert_eq!(left_out.contradiction, None);
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
    let mut facts = facts("6.1.0", DEBIAN_6_1, "");
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

    let debian = facts("6.12.95", DEBIAN_6_12, "");
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
    // A list of CPUs is not a boolean: this is CPU 0.
    assert_eq!(
        live(&debian, "CONFIG_RCU_NOCB_CPU", "rcu_nocbs=0", &[]),
        on("boot parameter rcu_nocbs=0")
    );
    assert_eq!(
        live(&debian, "CONFIG_RCU_NOCB_CPU", "", &[]),
        off("off until switched on")
    );
    let nohz_full = "/sys/devices/system/cpu/nohz_full";
    for (content, state) in [("(null)", State::N), ("", State::N), ("1-3", State::Y)] {
        for name in [
            "CONFIG_NO_HZ_FULL",
            "CONFIG_CONTEXT_TRACKING_USER",
            "CONFIG_VIRT_CPU_ACCOUNTING_GEN",
        ] {
            assert_eq!(
                live(&debian, name, "", &[(nohz_full, content)]).0,
                state,
                "{name} {content:?}"
            );
        }
    }
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
fn what_depends_on_an_option_goes_off_with_it() {
    let mut facts = facts(
        "6.1.0",
        "CONFIG_DEBUG_OBJECTS=y\nCONFIG_DEBUG_OBJECTS_ENABLE_DEFAULT=1\n\
         CONFIG_DEBUG_OBJECTS_TIMERS=y\nCONFIG_DEBUG_OBJECTS_WORK=y\n",
        "",
    );
    let all = states(&facts);
    assert_eq!(
        state(&all, "CONFIG_DEBUG_OBJECTS").includes,
        ["CONFIG_DEBUG_OBJECTS_TIMERS", "CONFIG_DEBUG_OBJECTS_WORK"]
    );
    // What is off by its live state is no part of the gain.
    facts.boot_parameters = "no_debug_objects".to_owned();
    let all = states(&facts);
    assert_eq!(state(&all, "CONFIG_DEBUG_OBJECTS").state, State::N);
    assert_eq!(state(&all, "CONFIG_DEBUG_OBJECTS_WORK").state, State::N);
    assert_eq!(
        state(&all, "CONFIG_DEBUG_OBJECTS").includes,
        Vec::<String>::new()
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
