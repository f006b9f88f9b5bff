//! Blocking RCU calls: how long, by whom, and in which operation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use profiler_ebpf::RCU_FUNCTIONS;

use super::analyse::probe;
use super::attribution::{comm, frame_name, frames};
use super::report::{Rcu, RcuBy};
use crate::kernel::base_name;
use crate::probes::ProbeStatus;
use crate::recording::{Evidence, RcuEvent, Recording};

/// What makes the kernel wait for RCU: an operation, and functions that stand on
/// the stack while it is under way. The first that fits, from the top of the
/// table, names it.
const OPERATIONS: [(&str, &[&str]); 14] = [
    (
        "network namespace exit",
        &["cleanup_net", "copy_net_ns", "setup_net", "ops_undo_list"],
    ),
    ("veth delete", &["veth_dellink"]),
    (
        "network device delete",
        &[
            "rtnl_dellink",
            "rtnl_delete_link",
            "unregister_netdevice_many",
            "unregister_netdevice_many_notify",
            "unregister_netdevice_queue",
            "unregister_netdev",
            "netdev_run_todo",
        ],
    ),
    (
        "network device down or change",
        &[
            "dev_close_many",
            "dev_close",
            "__dev_change_flags",
            "dev_deactivate_many",
            "rtnl_newlink",
        ],
    ),
    (
        "module unload",
        &[
            "free_module",
            "delete_module",
            "__do_sys_delete_module",
            "__x64_sys_delete_module",
        ],
    ),
    ("module load", &["do_init_module", "load_module"]),
    (
        "unmount",
        &[
            "cleanup_mnt",
            "deactivate_super",
            "deactivate_locked_super",
            "kill_block_super",
            "kern_unmount",
            "namespace_unlock",
            "path_umount",
        ],
    ),
    (
        "slab cache destroy",
        &["kmem_cache_destroy", "shutdown_cache"],
    ),
    (
        "cgroup change",
        &[
            "cgroup_migrate",
            "cgroup_attach_task",
            "cgroup_apply_control",
            "css_free_rwork_fn",
        ],
    ),
    (
        "tracing or BPF change",
        &[
            "bpf_prog_test_run",
            "bpf_link_release",
            "bpf_link_free",
            "bpf_trampoline_unlink_prog",
            "bpf_trampoline_update",
            "tracepoint_probe_unregister",
            "unregister_ftrace_function",
            "perf_event_release_kernel",
            "perf_trace_event_unreg",
            "unregister_kprobes",
        ],
    ),
    (
        "packet filter change",
        &[
            "nf_tables_commit",
            "nf_unregister_net_hook",
            "xt_replace_table",
            "nf_hook_entries_free",
        ],
    ),
    (
        "socket close",
        &["packet_release", "sock_close", "netlink_release"],
    ),
    ("memory notifier", &["mmu_notifier_unregister", "exit_mmap"]),
    (
        "membarrier",
        &["__do_sys_membarrier", "__x64_sys_membarrier"],
    ),
];

/// The operation whose stack this is.
fn operation<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Option<&'static str> {
    OPERATIONS
        .iter()
        .find(|(_, functions)| (names.clone()).any(|name| functions.contains(&base_name(name))))
        .map(|(operation, _)| *operation)
}

/// The function an event is of: the innermost frame of its stack.
pub(crate) fn rcu_function<'r>(recording: &'r Recording, event: &RcuEvent) -> &'r str {
    frames(recording, event.kernel_stack)
        .first()
        .map(|&frame| base_name(frame_name(recording, frame)))
        .filter(|name| RCU_FUNCTIONS.contains(name))
        // A stack that could not be read; other calls are of the ledger.
        .unwrap_or(RCU_FUNCTIONS[0])
}

/// The calls of the target by function; `None` when no leg watched any.
pub(super) fn calls(recording: &Recording, salvaged: bool) -> Option<Vec<Rcu>> {
    let events: Vec<Rcu> = RCU_FUNCTIONS
        .iter()
        .filter_map(|name| calls_of(recording, salvaged, name))
        .collect();
    (!events.is_empty()).then_some(events)
}

fn calls_of(recording: &Recording, salvaged: bool, name: &str) -> Option<Rcu> {
    let probe = probe(recording, name);
    let mut events = recording
        .rcu
        .iter()
        .filter(|event| rcu_function(recording, event) == name)
        .peekable();
    // A salvaged recording has no probe table, but its events were seen.
    if probe.is_none() && (!salvaged || events.peek().is_none()) {
        return None;
    }
    let mut total = Rcu {
        event: name.to_owned(),
        evidence: rcu_evidence(probe),
        leg: probe.map(|probe| probe.leg.clone()),
        ..Rcu::default()
    };
    let mut by: HashMap<(&str, u32), RcuBy> = HashMap::new();
    for event in events.filter(|event| event.target) {
        total.count += 1;
        total.total_ns = total.total_ns.saturating_add(event.duration_ns);
        total.max_ns = total.max_ns.max(event.duration_ns);
        let group = by
            .entry((comm(recording, event.comm), event.kernel_stack))
            .or_default();
        group.count += 1;
        group.total_ns = group.total_ns.saturating_add(event.duration_ns);
        group.max_ns = group.max_ns.max(event.duration_ns);
    }
    // Stacks that differ only in addresses read the same.
    let mut named: BTreeMap<(String, String), RcuBy> = BTreeMap::new();
    for ((comm, stack), group) in by {
        let names = frames(recording, stack).iter().rev();
        let names = names.map(|&frame| frame_name(recording, frame));
        let operation = operation(names.clone()).map(str::to_owned);
        let stack = names.collect::<Vec<_>>().join(";");
        let entry = named.entry((comm.to_owned(), stack)).or_default();
        entry.operation = operation;
        entry.count += group.count;
        entry.total_ns = entry.total_ns.saturating_add(group.total_ns);
        entry.max_ns = entry.max_ns.max(group.max_ns);
    }
    total.by = named
        .into_iter()
        .map(|((comm, stack), group)| RcuBy {
            comm,
            stack,
            ..group
        })
        .collect();
    total.by.sort_by_key(|group| Reverse(group.total_ns));
    Some(total)
}

/// A leg on the function sees each call. Any other sees a task that blocks with
/// the function on its stack, and concludes.
fn rcu_evidence(probe: Option<&ProbeStatus>) -> Evidence {
    let on_function = |leg: &str| leg.starts_with("fentry") || leg.starts_with("kprobe");
    match probe {
        Some(probe) if !on_function(&probe.leg) => Evidence::Inferred,
        _ => Evidence::Counted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_told_by_their_functions() {
        let of = |stack: &str| operation(stack.split(';'));
        assert_eq!(
            of("do_syscall_64;rtnl_dellink;rtnl_delete_link;netdev_run_todo.isra.0;rcu_barrier"),
            Some("network device delete")
        );
        assert_eq!(
            of("worker_thread;process_one_work;cleanup_net;netdev_run_todo;rcu_barrier"),
            Some("network namespace exit")
        );
        assert_eq!(of("vfs_read;rcu_barrier"), None);
        assert_eq!(of(""), None);
    }
}
