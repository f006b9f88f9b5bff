//! Which tasks are the target, and what becomes of them.

use aya_ebpf::{
    bindings::{BPF_NOEXIST, bpf_pidns_info},
    helpers::{
        bpf_get_current_ancestor_cgroup_id, bpf_get_current_pid_tgid, bpf_get_ns_current_pid_tgid,
        bpf_probe_read_kernel,
    },
    macros::map,
    maps::{Array, HashMap},
};
use profiler_ebpf::{
    COMM_LEN, CpuState, TASK_SLOTS, TaskEntry, TaskRecord, TaskSlot, UNKNOWN, kind, loss, target,
};
use zerocopy::IntoBytes as _;

use crate::{cpu, globals, wake};

/// The target's tasks (with `target::MACHINE` and `target::CGROUP`: those that
/// were switched from), by thread id. Preallocated: it is written from
/// interrupts. The loader sets its size.
#[map]
static TASKS: HashMap<u32, TaskEntry> = HashMap::with_max_entries(1 << 15, 0);

/// Where the switches of most of them are counted.
#[map]
static SLOTS: Array<TaskSlot> = Array::with_max_entries(TASK_SLOTS, 0);

/// Process ids of the target in the PID namespace of `globals::PIDNS_INO`.
#[map]
static NS_TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(1 << 12, 0);

/// Whether the current task is the target.
#[inline(always)]
pub(crate) fn is_target(pid_tgid: u64, state: &mut CpuState) -> bool {
    match globals::TARGET_MODE.load() {
        target::MACHINE => true,
        target::CGROUP => in_cgroup(),
        _ => entry(pid_tgid, state).is_some(),
    }
}

/// Whether the current task is in the target's cgroup. Minimum kernel 5.6.
#[inline(always)]
pub(crate) fn in_cgroup() -> bool {
    // SAFETY: the helper reads the current task and returns 0 for "none".
    let id = unsafe { bpf_get_current_ancestor_cgroup_id(globals::CGROUP_LEVEL.load() as i32) };
    id == globals::CGROUP_ID.load()
}

/// The current task's entry in `TASKS` with `target::TASKS`, made when the task
/// turns out to belong to the target.
#[inline(always)]
pub(crate) fn entry(pid_tgid: u64, state: &mut CpuState) -> Option<*mut TaskEntry> {
    let pid = pid_tgid as u32;
    let tgid = (pid_tgid >> 32) as u32;
    if let Some(entry) = find(pid) {
        return Some(entry);
    }
    // Some threads (io_uring's workers) begin without sched_process_fork.
    let mut found = pid != tgid && TASKS.get_ptr(tgid).is_some();
    if !found && globals::ADOPT.load() != 0 {
        found = ns_tgid().is_some_and(|tgid| NS_TARGETS.get_ptr(tgid).is_some());
    }
    if found { insert(pid, state) } else { None }
}

/// The slot that `pid` may have. The idle task's id means an empty one.
#[inline(always)]
fn slot(pid: u32) -> Option<&'static mut TaskSlot> {
    if pid == 0 {
        return None;
    }
    let slot = SLOTS.get_ptr_mut(pid & (TASK_SLOTS - 1))?;
    // SAFETY: the map's value. Its counts are written by the task that has it,
    // which runs on one CPU at a time.
    Some(unsafe { &mut *slot })
}

/// Where the switches of `pid` are counted, if it is known.
#[inline(always)]
fn find(pid: u32) -> Option<*mut TaskEntry> {
    let slot = slot(pid);
    if let Some(slot) = &slot
        && slot.pid == pid
    {
        return Some((&raw const slot.entry).cast_mut());
    }
    let entry = TASKS.get_ptr_mut(pid)?;
    if let Some(slot) = slot
        && slot.pid == 0
    {
        // Counted there from the next time on. Of two tasks that take it at the
        // same time the last has it; the other finds its entry in the table.
        slot.pid = pid;
    }
    Some(entry)
}

/// Whether `pid` is one of the target's tasks that were met before.
#[inline(always)]
pub(crate) fn is_known(pid: u32) -> bool {
    find(pid).is_some()
}

/// Forgets `pid`; returns its switches if it was known.
#[inline(always)]
fn forget(pid: u32) -> Option<TaskEntry> {
    let entry = TASKS.get_ptr(pid)?;
    // SAFETY: the map's value; nobody switches from a task that is gone.
    let mut counts = unsafe { *entry };
    if let Some(slot) = slot(pid)
        && slot.pid == pid
    {
        counts.voluntary += slot.entry.voluntary;
        counts.preempted += slot.entry.preempted;
        slot.entry = TaskEntry::default();
        slot.pid = 0;
    }
    let _ = TASKS.remove(pid);
    Some(counts)
}

/// The entry of `pid`, made when there is none.
#[inline(always)]
pub(crate) fn insert(pid: u32, state: &mut CpuState) -> Option<*mut TaskEntry> {
    if let Some(entry) = find(pid) {
        return Some(entry);
    }
    // An error other than "exists" shows below as a missing entry.
    let _ = TASKS.insert(pid, TaskEntry::default(), u64::from(BPF_NOEXIST));
    let entry = TASKS.get_ptr_mut(pid);
    if entry.is_none() {
        cpu::lost(state, loss::TASK_MAP_FULL);
    }
    entry
}

/// The current process id in the profiler's PID namespace. Minimum kernel 5.7.
#[inline(always)]
fn ns_tgid() -> Option<u32> {
    let mut info = bpf_pidns_info { pid: 0, tgid: 0 };
    // SAFETY: `info` is writable and its size is given.
    let status = unsafe {
        bpf_get_ns_current_pid_tgid(
            globals::PIDNS_DEV.load(),
            globals::PIDNS_INO.load(),
            &raw mut info,
            size_of::<bpf_pidns_info>() as u32,
        )
    };
    (status == 0).then_some(info.tgid)
}

/// `task->pid`.
#[inline(always)]
pub(crate) fn pid_of(task: *const u8) -> Option<u32> {
    let offset = globals::TASK_PID.load();
    if offset == UNKNOWN {
        return None;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(task.add(offset as usize).cast::<u32>()) }.ok()
}

/// `task->comm`.
#[inline(always)]
pub(crate) fn comm_of(task: *const u8) -> [u8; COMM_LEN] {
    let offset = globals::TASK_COMM.load();
    if offset == UNKNOWN {
        return Default::default();
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(task.add(offset as usize).cast()) }.unwrap_or_default()
}

/// A task was made by the current one.
#[inline(always)]
pub(crate) fn on_fork(child: Option<u32>) {
    let (Some(state), Some(child)) = (cpu::any_state(), child) else {
        return;
    };
    let begin = cpu::now();
    let parent = bpf_get_current_pid_tgid();
    if entry(parent, state).is_some() {
        insert(child, state);
        log!("task {} is of the target, as {} is", child, parent as u32);
    } else {
        // The id of a task whose end was missed may come back for a stranger.
        let _ = forget(child);
    }
    account(state, begin);
}

/// Notes a run of a program here; these programs can be preempted.
#[inline(always)]
fn account(state: &mut CpuState, begin: u64) {
    cpu::add(&mut state.counters.task_hits, 1);
    cpu::add(&mut state.counters.task_ns, cpu::now() - begin);
}

/// A task is gone: nothing of it can be sampled or switched any more.
#[inline(always)]
pub(crate) fn on_free(pid: Option<u32>, comm: [u8; COMM_LEN]) {
    let (Some(state), Some(pid)) = (cpu::any_state(), pid) else {
        return;
    };
    let begin = cpu::now();
    if globals::WANT_LEDGER.load() != 0 {
        wake::on_free(pid);
    }
    if let Some(entry) = forget(pid) {
        let record = TaskRecord {
            header: cpu::header(kind::TASK, cpu::now()),
            entry,
            pid,
            reserved: 0,
            comm,
        };
        cpu::send(state, record.as_bytes());
        log!("task {} of the target is gone", pid);
    }
    account(state, begin);
}
