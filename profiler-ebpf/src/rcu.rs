//! rcu_barrier and its kin: how long each call took and who made it.

use aya_ebpf::{
    cty::c_void,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_stack},
    macros::map,
    maps::{Array, HashMap, PerCpuArray},
};
use profiler_ebpf::{
    CpuState, RCU_FRAMES, RCU_FUNCTIONS, RCU_WAITS, RcuRecord, flags, kind, loss, watch,
};
use zerocopy::IntoBytes as _;

use crate::{cpu, globals, switch::Next, task};

/// Calls (with the off-CPU leg: blocks) under way, by function and thread id: one
/// may call another.
#[map]
static RCU_CALLS: HashMap<u64, RcuRecord> = HashMap::with_max_entries(1024, 0);

/// What a new entry of `RCU_CALLS` is copied from: a record is too large for
/// the stack of a program.
#[map]
static RCU_EMPTY: Array<RcuRecord> = Array::with_max_entries(1, 0);

/// How many entries `RCU_CALLS` has of the off-CPU leg, so that a switch need
/// not look while there are none.
#[map]
static RCU_BLOCKED: Array<u64> = Array::with_max_entries(1, 0);

/// A stack under inspection at a switch, where interrupts are off.
#[map]
static SWITCH_STACK: PerCpuArray<[u64; RCU_FRAMES]> = PerCpuArray::with_max_entries(1, 0);

const TASK_UNINTERRUPTIBLE: u64 = 0x2;
const TASK_NOLOAD: u64 = 0x400;
/// They wait a few frames below the switch: schedule, schedule_timeout,
/// wait_for_completion or mutex_lock.
const FRAMES_SEARCHED: usize = 16;
/// In place of a function in the key of a block: a task is in one at a time.
const BLOCKED: u32 = RCU_FUNCTIONS.len() as u32;

/// A call begins. One that began before the run is not the run's.
#[inline(always)]
pub(crate) fn on_enter(ctx: *mut c_void, function: u32) {
    if let Some(state) = cpu::watched_state(watch::SWITCHES) {
        let pid_tgid = bpf_get_current_pid_tgid();
        begin(ctx, state, pid_tgid, (0, function), function);
    }
}

/// The key of a call in `RCU_CALLS`.
#[inline(always)]
fn key(pid: u32, function: u32) -> u64 {
    u64::from(function) << 32 | u64::from(pid)
}

/// A call ends.
#[inline(always)]
pub(crate) fn on_exit(function: u32) {
    if let Some(state) = cpu::any_state() {
        finish(state, bpf_get_current_pid_tgid() as u32, function);
    }
}

/// Notes that the current task is in a function, and under which key; false when it
/// cannot be.
#[inline(always)]
fn begin(
    ctx: *mut c_void,
    state: &mut CpuState,
    pid_tgid: u64,
    (off_cpu, function): (u32, u32),
    kept_as: u32,
) -> bool {
    let pid = pid_tgid as u32;
    let Some(empty) = RCU_EMPTY.get(0) else {
        return false;
    };
    // A leftover of the same thread id is overwritten.
    let _ = RCU_CALLS.insert(key(pid, kept_as), empty, 0);
    let Some(call) = RCU_CALLS.get_ptr_mut(key(pid, kept_as)) else {
        cpu::lost(state, loss::RCU_MAP_FULL);
        return false;
    };
    // SAFETY: the map's value; only its own task begins or ends a call.
    let call = unsafe { &mut *call };
    let target = if task::is_target(pid_tgid, state) {
        flags::TARGET
    } else {
        0
    };
    call.start_ns = cpu::now();
    call.pid = pid;
    call.tgid = (pid_tgid >> 32) as u32;
    call.flags = target | off_cpu | function << flags::FUNCTION_SHIFT;
    call.comm = bpf_get_current_comm().unwrap_or_default();
    call.stack_bytes = stack(ctx, &mut call.frames);
    log!("rcu_barrier: task {} begins to wait", pid);
    true
}

/// Reads the kernel stack; returns its bytes.
#[inline(always)]
fn stack(ctx: *mut c_void, frames: &mut [u64; RCU_FRAMES]) -> u32 {
    // SAFETY: `frames` is writable and its size is given.
    let bytes =
        unsafe { bpf_get_stack(ctx, frames.as_mut_ptr().cast(), (RCU_FRAMES * 8) as u32, 0) };
    if bytes > 0 { bytes as u32 } else { 0 }
}

/// Sends the record of what `pid` began; false when it began nothing.
#[inline(always)]
fn finish(state: &mut CpuState, pid: u32, kept_as: u32) -> bool {
    let Some(call) = RCU_CALLS.get_ptr_mut(key(pid, kept_as)) else {
        return false;
    };
    // SAFETY: as in `begin`.
    let call = unsafe { &mut *call };
    call.header = cpu::header(kind::RCU, cpu::now());
    cpu::send(state, call.as_bytes());
    let _ = RCU_CALLS.remove(key(pid, kept_as));
    log!("rcu_barrier: task {} has waited", pid);
    true
}

/// The off-CPU leg, for kernels where the functions themselves cannot be probed: a
/// task that blocks uninterruptibly with one of them on its stack, until it runs
/// again. Other blocks cost a comparison.
#[inline(always)]
pub(crate) fn on_switch(
    ctx: *mut c_void,
    state: &mut CpuState,
    pid_tgid: u64,
    task_state: u64,
    next: &Next,
) {
    let Some(blocked) = RCU_BLOCKED.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: the map's value, which `add` changes whole.
    let blocked = unsafe { &mut *blocked };
    if *blocked != 0
        && let Some(next) = next.pid()
        && finish(state, next, BLOCKED)
    {
        cpu::add(blocked, u64::MAX);
    }
    // Idle kernel threads and workers are TASK_UNINTERRUPTIBLE | TASK_NOLOAD.
    if task_state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD) != TASK_UNINTERRUPTIBLE {
        return;
    }
    if let Some(function) = waits_in(ctx)
        && begin(ctx, state, pid_tgid, (flags::OFF_CPU, function), BLOCKED)
    {
        cpu::add(blocked, 1);
    }
}

/// The innermost of the watched functions on the current kernel stack.
#[inline(always)]
fn waits_in(ctx: *mut c_void) -> Option<u32> {
    let frames = SWITCH_STACK.get_ptr_mut(0)?;
    // SAFETY: the map's value for this CPU, used at switches only.
    let frames = unsafe { &mut *frames };
    let depth = stack(ctx, frames) / 8;
    for (index, frame) in frames[..FRAMES_SEARCHED].iter().enumerate() {
        if index as u32 >= depth {
            return None;
        }
        let found = function_of(*frame);
        if found != 0 {
            return Some(found as u32 - 1);
        }
    }
    None
}

/// The function an address is in, counted from 1; 0 when it is in none of them.
/// Without branches, of which the verifier would follow each.
#[inline(always)]
fn function_of(address: u64) -> u64 {
    let texts = [
        (globals::RCU0_START.load(), globals::RCU0_END.load()),
        (globals::RCU1_START.load(), globals::RCU1_END.load()),
        (globals::RCU2_START.load(), globals::RCU2_END.load()),
        (globals::RCU3_START.load(), globals::RCU3_END.load()),
        (globals::RCU4_START.load(), globals::RCU4_END.load()),
        (globals::RCU5_START.load(), globals::RCU5_END.load()),
        (globals::RCU6_START.load(), globals::RCU6_END.load()),
    ];
    let mut found = 0;
    for ((start, end), (_, function)) in texts.into_iter().zip(RCU_WAITS) {
        // Not before the start and before the end: signs of differences between
        // addresses of the kernel's text. The text of what is not watched ends at 0,
        // which is after no address.
        let inside = (!address.wrapping_sub(start) & address.wrapping_sub(end)) >> 63;
        found |= inside * (function as u64 + 1);
    }
    found
}
