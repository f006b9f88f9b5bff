//! The ledger's part of wake-ups and switches: how long woken tasks wait for a
//! CPU, and who takes the CPU from whom.
//!
//! Everything here runs with interrupts off, under the run queue's lock or the
//! woken task's: this CPU's values have one writer.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    cty::c_void,
    helpers::{bpf_get_current_comm, bpf_get_stack, bpf_probe_read_kernel},
    macros::map,
    maps::{Array, HashMap, PerCpuArray, PerCpuHashMap},
    programs::TracePointContext,
};
use profiler_ebpf::{
    COMM_LEN, UNKNOWN,
    ledger::{
        GROUP_CAUSE, Histogram, LEDGER_FRAMES, LatencyRecord, LedgerCpu, PreemptionCounts,
        PreemptionKey, WAIT_SLOTS, WORST_SLOTS, WaitSlot, cause, entries, histogram, loss, wait,
    },
    target, watch,
};

use crate::{cpu, globals, switch::Next, task};

/// Counters and state of each CPU.
#[map]
static LEDGER: PerCpuArray<LedgerCpu> = PerCpuArray::with_max_entries(1, 0);

/// Tasks that wait for a CPU. An array, as `task::SLOTS` and for its reason.
#[map]
static WAITS: Array<WaitSlot> = Array::with_max_entries(WAIT_SLOTS, 0);

/// Wake-up latencies by the cause of the wait, of task names that `WAKE_GROUPS`
/// has no room for, and hand-offs.
#[map]
static WAKE_CAUSES: PerCpuArray<Histogram> = PerCpuArray::with_max_entries(cause::COUNT, 0);

/// Wake-up latencies by the task's name and, in place of the NUL behind it, the
/// cause of the wait: one histogram for each wake-up.
#[map]
static WAKE_GROUPS: PerCpuHashMap<[u8; COMM_LEN], Histogram> =
    PerCpuHashMap::with_max_entries(entries::WAKE_GROUPS, 0);

/// What a new entry of `WAKE_GROUPS` is copied from.
#[map]
static EMPTY_HISTOGRAM: Array<Histogram> = Array::with_max_entries(1, 0);

/// Who took the CPU from whom, and from where.
#[map]
static PREEMPTIONS: HashMap<PreemptionKey, PreemptionCounts> =
    HashMap::with_max_entries(entries::PREEMPTIONS, 0);

/// Stacks, by a hash of them.
#[map]
static LEDGER_STACKS: HashMap<u64, [u64; LEDGER_FRAMES]> =
    HashMap::with_max_entries(entries::STACKS, 0);

/// A stack under construction.
#[map]
static LEDGER_SCRATCH: PerCpuArray<[u64; LEDGER_FRAMES]> = PerCpuArray::with_max_entries(1, 0);

/// The longest latencies: first those that were the longest when they came, the
/// newest of them, then the newest of those near it. Not through the ring buffer:
/// its lock may sleep on a realtime kernel (before 6.14), and the run queue's is
/// held here.
#[map]
static WORST: PerCpuArray<LatencyRecord> = PerCpuArray::with_max_entries(2 * WORST_SLOTS, 0);

/// One run in so many is timed.
const TIMED_ONE_IN: u64 = 64;
/// `TASK_DEAD`, and what the tracepoint's record has instead (`EXIT_DEAD`,
/// `EXIT_ZOMBIE`, include/linux/sched.h).
const TASK_ENDS: u64 = 0x80 | 0x30;
/// `PF_KTHREAD`, include/linux/sched.h.
const PF_KTHREAD: u32 = 0x0020_0000;
/// Priorities from here on are of the fair class (`MAX_RT_PRIO`).
const FAIR_PRIO: u32 = 100;
/// Latencies below this are nobody's fault.
const WORTH_A_RECORD_NS: u64 = 10_000;

/// This CPU's part of the ledger.
#[inline(always)]
pub(crate) fn own() -> Option<&'static mut LedgerCpu> {
    let own = LEDGER.get_ptr_mut(0)?;
    // SAFETY: the map's value for this CPU. Programs that can interrupt one
    // another write different fields of it, or use `cpu::add`.
    Some(unsafe { &mut *own })
}

/// Counts something that is missing.
#[inline(always)]
pub(crate) fn lost(own: &mut LedgerCpu, reason: usize) {
    cpu::add(&mut own.losses[reason], 1);
}

/// Notes a run of one of the ledger's programs and runs it, timed now and then.
#[inline(always)]
pub(crate) fn counted(body: impl FnOnce(&mut LedgerCpu)) {
    if cpu::watched_state(watch::SWITCHES).is_none() {
        return;
    }
    let Some(own) = own() else {
        return;
    };
    let hits = own.hits;
    cpu::add(&mut own.hits, 1);
    if hits % TIMED_ONE_IN != 0 {
        return body(own);
    }
    let begin = cpu::now();
    body(own);
    cpu::add(&mut own.timed_hits, 1);
    cpu::add(&mut own.timed_ns, cpu::now() - begin);
}

/// The slot that `pid` may have; the idle task has none.
#[inline(always)]
fn slot(pid: u32) -> Option<&'static mut WaitSlot> {
    if pid == 0 {
        return None;
    }
    let slot = WAITS.get_ptr_mut(pid & (WAIT_SLOTS - 1))?;
    // SAFETY: the map's value. It is written where the task is woken, under its
    // lock, and where it is switched to or from.
    Some(unsafe { &mut *slot })
}

/// `pid` begins to wait. False when the slot is another task's.
#[inline(always)]
fn begin(slot: &mut WaitSlot, pid: u32, state: u32, now: u64) -> bool {
    if slot.state != wait::NONE && slot.pid != pid {
        return false;
    }
    slot.pid = pid;
    slot.since_ns = now;
    slot.state = state;
    true
}

/// The thread id of a wake-up tracepoint's record.
#[inline(always)]
pub(crate) fn woken_by_record(ctx: &TracePointContext) -> Option<u32> {
    // SAFETY: the helper checks the offset against the record's bounds.
    unsafe { ctx.read_at::<u32>(globals::WAKE_PID.load() as usize) }.ok()
}

/// A task was woken, by whoever runs here.
#[inline(always)]
pub(crate) fn on_wake(pid: Option<u32>) {
    counted(|own| {
        let Some(pid) = pid else {
            return;
        };
        if globals::TARGET_MODE.load() != target::MACHINE && !task::is_known(pid) {
            return;
        }
        let Some(slot) = slot(pid) else {
            return;
        };
        if slot.pid == pid && slot.state != wait::NONE {
            // Woken once more, or preempted on its way to sleep: it waits already.
            return;
        }
        own.wakeups += 1;
        if !begin(slot, pid, wait::WOKEN, cpu::now()) {
            lost(own, loss::WAIT_SLOT_TAKEN);
        }
    });
}

/// A task is gone. Its id may come back.
#[inline(always)]
pub(crate) fn on_free(pid: u32) {
    if let Some(slot) = slot(pid)
        && slot.pid == pid
        && slot.state != wait::NONE
    {
        if slot.state == wait::WOKEN
            && let Some(own) = own()
        {
            cpu::add(&mut own.ended_waiting, 1);
        }
        slot.state = wait::NONE;
    }
}

/// What the ledger wants to know of a switch.
pub(crate) struct Switch<'a> {
    pub(crate) ctx: *mut c_void,
    /// The thread that leaves the CPU.
    pub(crate) pid: u32,
    pub(crate) is_target: bool,
    pub(crate) voluntary: bool,
    pub(crate) state: u64,
    pub(crate) next: &'a Next,
}

/// A task leaves the CPU, another gets it.
#[inline(always)]
pub(crate) fn on_switch(switch: &Switch<'_>) {
    let (Some(own), Some(next)) = (own(), switch.next.pid()) else {
        return;
    };
    let now = cpu::now();
    let pid = switch.pid;
    if switch.is_target && pid != 0 {
        leaves(own, switch, next, now);
    }
    if next != 0 {
        arrives(own, switch, next, now);
    }
    let blocked = u32::from(switch.is_target && switch.voluntary && pid != 0);
    if blocked != 0 && own.last_blocked != 0 && own.last_pid == next && next != pid {
        note_cause(cause::HANDOFF, now.saturating_sub(own.last_ns));
    }
    own.last_ns = now;
    own.last_pid = pid;
    own.last_blocked = blocked;
}

/// The current task, one of the target, leaves the CPU.
#[inline(always)]
fn leaves(own: &mut LedgerCpu, switch: &Switch<'_>, next: u32, now: u64) {
    let pid = switch.pid;
    let Some(slot) = slot(pid) else {
        return;
    };
    if slot.pid == pid && slot.state == wait::WOKEN {
        // Woken while it was still running: there was nothing to wait for.
        slot.state = wait::NONE;
        own.woken_running += 1;
    }
    if switch.voluntary {
        if switch.state & TASK_ENDS != 0 {
            own.exits += 1;
        }
        return;
    }
    let free = begin(slot, pid, wait::PREEMPTED, now);
    let key = PreemptionKey {
        of: bpf_get_current_comm().unwrap_or_default(),
        by: switch.next.comm(switch.ctx),
        stack: stack(own, switch.ctx),
        by_kernel_thread: u32::from(next != 0 && is_kernel_thread(switch.next)),
        by_idle: u32::from(next == 0),
    };
    match preemption(&key) {
        Some(counts) => cpu::add(&mut counts.count, 1),
        None => lost(own, loss::PREEMPTION_MAP_FULL),
    }
    if free {
        slot.key = key;
    } else {
        lost(own, loss::WAIT_SLOT_TAKEN);
    }
}

/// The counts of `key`, made when there are none.
#[inline(always)]
fn preemption(key: &PreemptionKey) -> Option<&'static mut PreemptionCounts> {
    let mut counts = PREEMPTIONS.get_ptr_mut(key);
    if counts.is_none() {
        // Another CPU may make it at the same time, or there may be no room.
        let _ = PREEMPTIONS.insert(key, PreemptionCounts::default(), u64::from(BPF_NOEXIST));
        counts = PREEMPTIONS.get_ptr_mut(key);
    }
    // SAFETY: the map's value, which is never removed; only `cpu::add` writes it.
    counts.map(|counts| unsafe { &mut *counts })
}

/// `next` gets the CPU from the current task.
#[inline(always)]
fn arrives(own: &mut LedgerCpu, switch: &Switch<'_>, next: u32, now: u64) {
    let Some(slot) = slot(next) else {
        return;
    };
    let state = slot.state;
    if slot.pid != next || state == wait::NONE {
        return;
    }
    slot.state = wait::NONE;
    if now < slot.since_ns {
        own.clock_backwards += 1;
        return;
    }
    let waited = now - slot.since_ns;
    if state == wait::PREEMPTED {
        if let Some(counts) = PREEMPTIONS.get_ptr_mut(&slot.key) {
            // SAFETY: as in `preemption`.
            let counts = unsafe { &mut *counts };
            cpu::add(&mut counts.wait_ns, waited);
            cpu::add(&mut counts.waits, 1);
        }
        return;
    }
    let why = cause_of(switch);
    let comm = switch.next.comm(switch.ctx);
    match group(&comm, why) {
        Some(histogram) => note(histogram, waited),
        None => {
            lost(own, loss::GROUP_MAP_FULL);
            note_cause(why, waited);
        }
    }
    if waited > own.worst_ns / 2 && waited > WORTH_A_RECORD_NS {
        worst(own, switch, next, waited, now, (why, comm));
    }
}

/// Why the task that is switched to had to wait.
#[inline(always)]
fn cause_of(switch: &Switch<'_>) -> u32 {
    if switch.pid == 0 {
        return cause::IDLE;
    }
    let lazily = globals::LAZY_MODEL.load() != 0
        && !switch.voluntary
        && read_of(switch.next, globals::TASK_PRIO.load()).is_some_and(|prio| prio >= FAIR_PRIO);
    if lazily { cause::LAZY } else { cause::BUSY }
}

/// A 32-bit member of a task.
#[inline(always)]
fn read_of(next: &Next, offset: u32) -> Option<u32> {
    let Next::Task(task) = next else {
        return None;
    };
    if offset == UNKNOWN {
        return None;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(task.wrapping_add(offset as usize).cast::<u32>()) }.ok()
}

#[inline(always)]
fn is_kernel_thread(next: &Next) -> bool {
    read_of(next, globals::TASK_FLAGS.load()).is_some_and(|flags| flags & PF_KTHREAD != 0)
}

/// Adds a time to the histogram of a cause.
#[inline(always)]
fn note_cause(cause: u32, ns: u64) {
    if let Some(histogram) = WAKE_CAUSES.get_ptr_mut(cause) {
        // SAFETY: this CPU's value, see the module.
        note(unsafe { &mut *histogram }, ns);
    }
}

/// This CPU's histogram of a task name and a cause, made when there is none.
#[inline(always)]
fn group(comm: &[u8; COMM_LEN], cause: u32) -> Option<&'static mut Histogram> {
    let mut key = *comm;
    key[GROUP_CAUSE] = cause as u8;
    let mut found = WAKE_GROUPS.get_ptr_mut(key);
    if found.is_none() {
        let _ = WAKE_GROUPS.insert(key, EMPTY_HISTOGRAM.get(0)?, u64::from(BPF_NOEXIST));
        found = WAKE_GROUPS.get_ptr_mut(key);
    }
    // SAFETY: as in `note_cause`; entries are never removed.
    found.map(|histogram| unsafe { &mut *histogram })
}

#[inline(always)]
fn note(into: &mut Histogram, ns: u64) {
    into.count += 1;
    into.total_ns += ns;
    if ns > into.max_ns {
        into.max_ns = ns;
    }
    let mut bucket = histogram::bucket(ns);
    // The compiler knows the bound and would leave out the check that the
    // verifier needs to see. (An empty instruction would do, but for the line
    // information, which must not name an instruction twice.)
    // SAFETY: changes one register, and its value only where it is out of bounds.
    unsafe {
        core::arch::asm!("{0} &= 1023", inout(reg) bucket, options(nomem, nostack));
    }
    if let Some(count) = into.buckets.get_mut(bucket) {
        *count += 1;
    }
}

/// Keeps one of the longest latencies: each that is the longest so far, and some
/// others.
#[inline(always)]
fn worst(
    own: &mut LedgerCpu,
    switch: &Switch<'_>,
    next: u32,
    waited: u64,
    now: u64,
    (cause, comm): (u32, [u8; COMM_LEN]),
) {
    let slots = WORST_SLOTS as u64;
    let slot = if waited > own.worst_ns {
        own.worst_ns = waited;
        own.worst_kept += 1;
        own.worst_kept % slots
    } else {
        own.near_kept += 1;
        slots + own.near_kept % slots
    };
    let Some(record) = WORST.get_ptr_mut(slot as u32) else {
        return;
    };
    // SAFETY: this CPU's value, see the module.
    let record = unsafe { &mut *record };
    record.header = cpu::header(0, now);
    record.wait_ns = waited;
    record.pid = next;
    record.cause = cause;
    record.culprit_pid = switch.pid;
    record.comm = comm;
    record.culprit = bpf_get_current_comm().unwrap_or_default();
    record.stack_bytes = read_stack(switch.ctx, &mut record.frames);
}

/// Reads the kernel stack; returns its bytes.
#[inline(always)]
fn read_stack(ctx: *mut c_void, frames: &mut [u64; LEDGER_FRAMES]) -> u32 {
    // SAFETY: `frames` is writable and its size is given.
    let bytes = unsafe {
        bpf_get_stack(
            ctx,
            frames.as_mut_ptr().cast(),
            (LEDGER_FRAMES * 8) as u32,
            0,
        )
    };
    if bytes > 0 { bytes as u32 } else { 0 }
}

/// The key of the kernel stack in `LEDGER_STACKS`; 0 when there is none or no
/// room for it. Interrupts are off.
#[inline(always)]
pub(crate) fn stack(own: &mut LedgerCpu, ctx: *mut c_void) -> u64 {
    let Some(scratch) = LEDGER_SCRATCH.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this CPU's value; interrupts are off.
    let frames = unsafe { &mut *scratch };
    let depth = (read_stack(ctx, frames) / 8) as usize;
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for (index, frame) in frames.iter_mut().enumerate() {
        if index >= depth {
            *frame = 0;
        }
        hash = (hash ^ *frame).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    if LEDGER_STACKS.get_ptr(hash).is_none() && LEDGER_STACKS.insert(hash, &*frames, 0).is_err() {
        lost(own, loss::STACK_MAP_FULL);
        return 0;
    }
    hash
}
