//! The ledger's part of timers: tasks that wait for a timer of the timer wheel,
//! which counts jiffies, and the tick itself.

use aya_ebpf::{
    cty::c_void,
    helpers::{bpf_get_current_pid_tgid, bpf_jiffies64, bpf_probe_read_kernel},
    macros::map,
    maps::{Array, HashMap},
};
use profiler_ebpf::{
    UNKNOWN,
    ledger::{TimerCounts, TimerKey, TimerSlot, WAIT_SLOTS, entries, loss},
};

use crate::{cpu, globals, task, wake};

/// Tasks that wait for a timer.
#[map]
static TIMER_WAITS: Array<TimerSlot> = Array::with_max_entries(WAIT_SLOTS, 0);

/// Waits that ended by their timer, by task name, call site and length.
#[map]
static TIMER_SITES: HashMap<TimerKey, TimerCounts> =
    HashMap::with_max_entries(entries::TIMER_SITES, 0);

/// A word of kernel memory.
#[inline(always)]
fn word(base: u64, offset: u32) -> Option<u64> {
    if offset == UNKNOWN {
        return None;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(u64::from(offset)) as *const u64) }.ok()
}

/// Whether a timer wakes the task that waits in `schedule_timeout`
/// (kernel/time/timer.c). Others do work of their own.
#[inline(always)]
fn wakes_a_task(timer: u64) -> bool {
    word(timer, globals::TIMER_FUNCTION.load()) == Some(globals::PROCESS_TIMEOUT.load())
}

#[inline(always)]
fn slot(pid: u32) -> Option<&'static mut TimerSlot> {
    let slot = TIMER_WAITS.get_ptr_mut(pid & (WAIT_SLOTS - 1))?;
    // SAFETY: the map's value. Its task waits for one timer at a time.
    Some(unsafe { &mut *slot })
}

/// A timer is started, by the task that is to wait for it. The timer base's lock
/// is held and interrupts are off.
#[inline(always)]
pub(crate) fn on_start(ctx: *mut c_void, timer: u64) {
    wake::counted(|own| {
        if !wakes_a_task(timer) {
            return;
        }
        let Some(state) = cpu::any_state() else {
            return;
        };
        let pid_tgid = bpf_get_current_pid_tgid();
        let pid = pid_tgid as u32;
        if pid == 0 || !task::is_target(pid_tgid, state) {
            return;
        }
        let (Some(slot), Some(expires)) = (slot(pid), word(timer, globals::TIMER_EXPIRES.load()))
        else {
            return;
        };
        if slot.start_ns != 0 && slot.pid != pid {
            wake::lost(own, loss::TIMER_SLOT_TAKEN);
        }
        // SAFETY: the helper takes nothing and always succeeds.
        let jiffies = expires.wrapping_sub(unsafe { bpf_jiffies64() });
        slot.pid = pid;
        slot.jiffies = if jiffies < 1 << 31 { jiffies as u32 } else { 0 };
        slot.stack = wake::stack(own, ctx);
        slot.start_ns = cpu::now();
    });
}

/// A timer expires. What it woke may have been woken before, but then the timer
/// would have been deleted.
#[inline(always)]
pub(crate) fn on_expire(timer: u64) {
    wake::counted(|own| {
        if !wakes_a_task(timer) {
            return;
        }
        let Some(task) = word(timer, globals::TIMER_TASK.load()) else {
            return;
        };
        let task = task as *const u8;
        let Some(pid) = task::pid_of(task) else {
            return;
        };
        let Some(slot) = slot(pid) else {
            return;
        };
        if slot.pid != pid || slot.start_ns == 0 {
            return;
        }
        let now = cpu::now();
        let start_ns = slot.start_ns;
        slot.start_ns = 0;
        if now < start_ns {
            cpu::add(&mut own.clock_backwards, 1);
            return;
        }
        let key = TimerKey {
            comm: task::comm_of(task),
            stack: slot.stack,
            jiffies: slot.jiffies,
            reserved: 0,
        };
        if TIMER_SITES.get_ptr(&key).is_none() {
            let _ = TIMER_SITES.insert(&key, TimerCounts::default(), 1);
        }
        let Some(counts) = TIMER_SITES.get_ptr_mut(&key) else {
            wake::lost(own, loss::TIMER_MAP_FULL);
            return;
        };
        // SAFETY: the map's value, which is never removed; only `cpu::add` writes
        // it.
        let counts = unsafe { &mut *counts };
        cpu::add(&mut counts.count, 1);
        cpu::add(&mut counts.elapsed_ns, now - start_ns);
    });
}

/// A high-resolution timer's function begins; that of the tick is timed.
#[inline(always)]
pub(crate) fn on_hrtimer(timer: u64) {
    wake::counted(|own| {
        own.tick_begin_ns = 0;
        let function = word(timer, globals::HRTIMER_FUNCTION.load());
        if function == Some(globals::TICK_FUNCTION.load()) {
            own.tick_begin_ns = cpu::now();
        }
    });
}

/// A high-resolution timer's function has ended. Interrupts are off in between.
#[inline(always)]
pub(crate) fn on_hrtimer_end() {
    wake::counted(|own| {
        if own.tick_begin_ns == 0 {
            return;
        }
        let spent = cpu::now() - own.tick_begin_ns;
        own.tick_begin_ns = 0;
        if bpf_get_current_pid_tgid() as u32 == 0 {
            own.idle_ticks += 1;
            own.idle_tick_ns += spent;
        } else {
            own.busy_ticks += 1;
            own.busy_tick_ns += spent;
        }
    });
}
