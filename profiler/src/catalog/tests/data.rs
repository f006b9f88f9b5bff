//! What the built-in data must have, and what no data may have.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

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
