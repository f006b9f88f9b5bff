//! Context switches.

use aya_ebpf::{
    cty::c_void,
    helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel},
    programs::TracePointContext,
};
use profiler_ebpf::{COMM_LEN, UNKNOWN, target, watch};

use crate::{check, cpu, globals, rcu, task, wake};

/// One switch in so many is timed: two clock readings each would cost as much
/// as the rest of the program.
const TIMED_ONE_IN: u64 = 64;
/// What the tracepoint's record says of a task that was preempted
/// (`TASK_REPORT_MAX`, include/linux/sched.h).
const TASK_REPORT_MAX: u64 = 0x100;

/// The task that is switched to.
pub(crate) enum Next {
    /// `struct task_struct *`.
    Task(*const u8),
    /// Its thread id.
    Pid(u32),
}

impl Next {
    /// Its thread id, where it can be known.
    #[inline(always)]
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Task(task) => task::pid_of(*task),
            Self::Pid(pid) => Some(*pid),
        }
    }

    /// Its name, where it can be known.
    #[inline(always)]
    pub(crate) fn comm(&self, ctx: *mut c_void) -> [u8; COMM_LEN] {
        match self {
            Self::Task(task) => task::comm_of(*task),
            Self::Pid(_) => {
                let offset = globals::SWITCH_NEXT_COMM.load();
                if offset == UNKNOWN {
                    return Default::default();
                }
                // SAFETY: the helper checks the offset against the record's bounds.
                unsafe { TracePointContext::new(ctx).read_at(offset as usize) }.unwrap_or_default()
            }
        }
    }
}

/// What an attachment says of a switch. The current task is still the one that
/// is switched from.
pub(crate) struct Args {
    /// It blocked or ended; else it could have gone on. The kernel's own rule
    /// for nvcsw and nivcsw (`__schedule`, kernel/sched/core.c).
    voluntary: bool,
    /// Its state.
    state: u64,
    /// The task that is switched to.
    next: Next,
}

impl Args {
    /// From the context of a raw or BTF tracepoint: the arguments in order.
    #[inline(always)]
    pub(crate) fn from_arguments(ctx: *mut c_void) -> Self {
        // Indexes that the kernel does not have would be refused; the loader's
        // choice leaves one branch.
        match globals::PREV_STATE_ARG.load() {
            3 => Self::new(argument::<0>(ctx), argument::<24>(ctx), argument::<16>(ctx)),
            1 => Self::new(argument::<0>(ctx), argument::<8>(ctx), argument::<24>(ctx)),
            _ => Self::new(
                argument::<0>(ctx),
                state_of(argument::<8>(ctx)),
                argument::<16>(ctx),
            ),
        }
    }

    #[inline(always)]
    pub(crate) fn from_tracepoint(ctx: &TracePointContext) -> Option<Self> {
        // SAFETY: the helper checks the offsets against the record's bounds.
        let (state, next) = unsafe {
            (
                ctx.read_at::<u64>(globals::SWITCH_PREV_STATE.load() as usize)
                    .ok()?,
                ctx.read_at::<u32>(globals::SWITCH_NEXT_PID.load() as usize)
                    .ok()?,
            )
        };
        Some(Self {
            voluntary: state != 0 && state != TASK_REPORT_MAX,
            state,
            next: Next::Pid(next),
        })
    }

    #[inline(always)]
    fn new(preempt: u64, state: u64, next: u64) -> Self {
        // `bool` and `unsigned int` arguments leave the upper bits undefined.
        let state = u64::from(state as u32);
        Self {
            voluntary: preempt as u8 == 0 && state != 0,
            state,
            next: Next::Task(next as *const u8),
        }
    }
}

/// The tracepoint argument at byte `OFFSET` of the context. The compiler would
/// merge the loads of several branches into one with a computed address, which
/// the verifier refuses.
#[inline(always)]
fn argument<const OFFSET: i16>(ctx: *mut c_void) -> u64 {
    let value;
    // SAFETY: a load from the context, whose bounds the verifier checks.
    unsafe {
        core::arch::asm!(
            "{value} = *(u64 *)({ctx} + {offset})",
            value = out(reg) value,
            ctx = in(reg) ctx,
            offset = const OFFSET,
            options(pure, readonly, nostack),
        );
    }
    value
}

/// `task->__state`. Read after the fact: a task that a signal kept from
/// blocking already looks runnable, which the kernel counts as voluntary.
#[inline(always)]
fn state_of(task: u64) -> u64 {
    let offset = globals::TASK_STATE.load();
    if offset == UNKNOWN {
        return 0;
    }
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel((task + u64::from(offset)) as *const u32) }.map_or(0, u64::from)
}

/// Counts a switch. The kernel is in `__schedule` with interrupts off, so plain
/// additions to this CPU's counters are whole.
#[inline(always)]
pub(crate) fn on_switch(ctx: *mut c_void, args: &Args) {
    let Some(state) = cpu::watched_state(watch::SWITCHES) else {
        return;
    };
    let hits = state.counters.switch_hits;
    state.counters.switch_hits = hits + 1;
    let timed = hits % TIMED_ONE_IN == 0;
    let begin = if timed { cpu::now() } else { 0 };

    let pid_tgid = bpf_get_current_pid_tgid();
    let mode = globals::TARGET_MODE.load();
    let (is_target, entry) = match mode {
        target::TASKS => {
            let entry = task::entry(pid_tgid, state);
            (entry.is_some(), entry)
        }
        target::CGROUP if task::in_cgroup() => (true, task::insert(pid_tgid as u32, state)),
        target::CGROUP => (false, None),
        _ => (true, task::insert(pid_tgid as u32, state)),
    };
    if let Some(entry) = entry {
        // SAFETY: the map's value; a task is switched from by one CPU at a time.
        let entry = unsafe { &mut *entry };
        if args.voluntary {
            entry.voluntary += 1;
        } else {
            entry.preempted += 1;
        }
    }
    if is_target {
        check::on_switch();
    }
    let counters = &mut state.counters;
    match (is_target, args.voluntary) {
        (true, true) => counters.target_voluntary += 1,
        (true, false) => counters.target_preempted += 1,
        (false, _) if pid_tgid as u32 == 0 => {}
        (false, true) => counters.other_voluntary += 1,
        (false, false) => counters.other_preempted += 1,
    }

    if globals::WANT_LEDGER.load() != 0 {
        wake::on_switch(&wake::Switch {
            ctx,
            pid: pid_tgid as u32,
            is_target,
            voluntary: args.voluntary,
            state: args.state,
            next: &args.next,
        });
    }
    if globals::RCU_OFF_CPU.load() != 0 {
        let blocked_as = if args.voluntary { args.state } else { 0 };
        rcu::on_switch(ctx, state, pid_tgid, blocked_as, &args.next);
    }
    if timed {
        state.counters.switch_timed_hits += 1;
        state.counters.switch_timed_ns += cpu::now() - begin;
    }
}
