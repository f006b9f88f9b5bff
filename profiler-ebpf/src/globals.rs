//! What the loader tells the programs before it loads them. The section is
//! frozen, so the verifier sees constants and prunes what is switched off.

use aya_ebpf::Global;
use profiler_ebpf::{UNKNOWN, target};

macro_rules! globals {
    ($($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            pub(crate) static $name: Global<$ty> = Global::new($value);
        )*
    };
}

globals! {
    /// Whose numbers are wanted: one of `target`.
    TARGET_MODE: u8 = target::MACHINE;
    /// With `target::CGROUP`: the cgroup v2 id.
    CGROUP_ID: u64 = 0;
    /// With `target::CGROUP`: its depth below the root.
    CGROUP_LEVEL: u32 = 0;
    /// Not 0 when the kernel has cgroups.
    HAS_CGROUPS: u8 = 0;
    /// Not 0 when targets are given by pids of a PID namespace that is not the
    /// initial one.
    ADOPT: u8 = 0;
    /// Device and inode of that namespace.
    PIDNS_DEV: u64 = 0;
    PIDNS_INO: u64 = 0;
    /// Length of an epoch, nanoseconds.
    EPOCH_NS: u64 = 100_000_000;
    /// Bytes waiting in the ring buffer above which its reader is woken; below,
    /// it comes by itself.
    WAKEUP_BYTES: u64 = 0;
    /// Not 0 when user stacks are wanted.
    USER_STACKS: u8 = 0;
    /// Frames the kernel gives at most (`kernel.perf_event_max_stack`).
    MAX_STACK: u32 = 127;
    /// The texts that an idle CPU waits in, `IDLE_TEXTS` of them; of the others 0.
    /// Where none is known, all of the idle task is idle.
    IDLE0_START: u64 = 0;
    IDLE0_END: u64 = 0;
    IDLE1_START: u64 = 0;
    IDLE1_END: u64 = 0;
    IDLE2_START: u64 = 0;
    IDLE2_END: u64 = 0;
    IDLE3_START: u64 = 0;
    IDLE3_END: u64 = 0;
    /// Which argument of sched_switch is prev_state: 3 (since 5.19), 1 (5.18) or
    /// `UNKNOWN` (before).
    PREV_STATE_ARG: u32 = UNKNOWN;
    /// Offset of `task_struct`'s `__state` (`state` before 5.14) and its size.
    TASK_STATE: u32 = UNKNOWN;
    TASK_STATE_SIZE: u32 = 4;
    /// Offset of `task_struct.pid`.
    TASK_PID: u32 = UNKNOWN;
    /// Offset of `task_struct.comm`.
    TASK_COMM: u32 = UNKNOWN;
    /// Offsets in the sched_switch tracepoint's record.
    SWITCH_PREV_STATE: u32 = UNKNOWN;
    SWITCH_NEXT_PID: u32 = UNKNOWN;
    /// Offset in the sched_process_fork tracepoint's record.
    FORK_CHILD: u32 = UNKNOWN;
    /// Offsets in the sched_process_free tracepoint's record.
    FREE_PID: u32 = UNKNOWN;
    FREE_COMM: u32 = UNKNOWN;
    /// Not 0 when the off-CPU leg watches blocking RCU calls.
    RCU_OFF_CPU: u8 = 0;
    /// The text of each of `RCU_WAITS` that it watches; of the others 0.
    RCU0_START: u64 = 0;
    RCU0_END: u64 = 0;
    RCU1_START: u64 = 0;
    RCU1_END: u64 = 0;
    RCU2_START: u64 = 0;
    RCU2_END: u64 = 0;
    RCU3_START: u64 = 0;
    RCU3_END: u64 = 0;
    RCU4_START: u64 = 0;
    RCU4_END: u64 = 0;
    RCU5_START: u64 = 0;
    RCU5_END: u64 = 0;
    RCU6_START: u64 = 0;
    RCU6_END: u64 = 0;
    /// Not 0 when the ledger is wanted: latencies, causes of switches, timers.
    WANT_LEDGER: u8 = 0;
    /// Not 0 under the lazy preemption model.
    LAZY_MODEL: u8 = 0;
    /// Offsets of `task_struct`'s `flags` and `prio`.
    TASK_FLAGS: u32 = UNKNOWN;
    TASK_PRIO: u32 = UNKNOWN;
    /// Offset of `next_comm` in the sched_switch tracepoint's record.
    SWITCH_NEXT_COMM: u32 = UNKNOWN;
    /// Offset of `pid` in the sched_waking and sched_wakeup_new tracepoints'
    /// records, which have the same layout.
    WAKE_PID: u32 = UNKNOWN;
    /// Offsets of `timer_list`'s `function` and `expires`.
    TIMER_FUNCTION: u32 = UNKNOWN;
    TIMER_EXPIRES: u32 = UNKNOWN;
    /// Offset of `process_timer.task`, whose first member is the timer.
    TIMER_TASK: u32 = UNKNOWN;
    /// The function `process_timeout`, by which timers wake tasks.
    PROCESS_TIMEOUT: u64 = 0;
    /// Offset of `hrtimer.function`.
    HRTIMER_FUNCTION: u32 = UNKNOWN;
    /// The function that is the tick.
    TICK_FUNCTION: u64 = 0;
}
