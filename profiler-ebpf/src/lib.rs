//! The ABI between the BPF programs and user space: record layouts, map values
//! and the names and meanings of the globals the loader sets.
//!
//! Everything here is `repr(C)` without padding (zerocopy's `IntoBytes` refuses
//! it at compile time: padding in a map key would make phantom keys), and free of
//! `bool`, enums and `Option`, whose bit patterns the other side cannot trust.
#![no_std]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub mod ledger;

/// Frames kept of one stack: the default of `kernel.perf_event_max_stack`.
pub const MAX_FRAMES: usize = 127;
/// Bytes set aside for one stack. A power of two, so that a mask bounds a length
/// for the verifier.
pub const STACK_BYTES: usize = 1024;
/// Frames kept of an rcu_barrier call.
pub const RCU_FRAMES: usize = 32;
/// `TASK_COMM_LEN`.
pub const COMM_LEN: usize = 16;

/// Bytes that one run of the program `peek` reads.
pub const PEEK_BYTES: usize = 16;

/// Clock readings that one run of the program `clock` times.
pub const CLOCK_READINGS: u32 = 64;

/// Calls of a helper that one run of a calibration program times.
pub const CALIBRATION_CALLS: u32 = 256;

/// Bytes that one step of the program `read_text` reads.
pub const TEXT_PAGE: usize = 4096;
/// Steps that one run of it makes at most. A run is not preemptible, so this
/// bounds how long it keeps the CPU: some 250 microseconds.
pub const TEXT_PAGES: u32 = 64;

/// Execution breakpoints a CPU has: debug registers of x86.
pub const BREAKPOINTS: usize = 4;

/// Where a hit of a breakpoint is counted: indexes into [`CheckSlots::hits`].
pub mod hit {
    /// The target's, with preemption disabled, or in an interrupt.
    pub const NESTED: usize = 0;
    /// The target's, preemptible but for interrupts, which are off.
    pub const IRQS_OFF: usize = 1;
    /// The target's, preemptible.
    pub const PREEMPTIBLE: usize = 2;
    /// Not the target's.
    pub const OTHER: usize = 3;
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// Tags in [`RecordHeader::kind`].
pub mod kind {
    /// A [`SampleRecord`](crate::SampleRecord) with its frames.
    pub const SAMPLE: u32 = 1;
    /// An [`EpochRecord`](crate::EpochRecord).
    pub const EPOCH: u32 = 2;
    /// An [`RcuRecord`](crate::RcuRecord).
    pub const RCU: u32 = 3;
    /// A [`TaskRecord`](crate::TaskRecord).
    pub const TASK: u32 = 4;
}

/// Bits of [`SampleRecord::flags`] and [`RcuRecord::flags`].
pub mod flags {
    /// The task belongs to the target.
    pub const TARGET: u32 = 1 << 0;
    /// User mode was interrupted.
    pub const USER_MODE: u32 = 1 << 1;
    /// The kernel stack was deeper than what is kept.
    pub const KERNEL_TRUNCATED: u32 = 1 << 2;
    /// The user stack was deeper than what is kept.
    pub const USER_TRUNCATED: u32 = 1 << 3;
    /// The record is of the off-CPU leg: one block, not one call.
    pub const OFF_CPU: u32 = 1 << 4;
    /// From here on, of an [`RcuRecord`](crate::RcuRecord): which of
    /// [`RCU_FUNCTIONS`](crate::RCU_FUNCTIONS) it is.
    pub const FUNCTION_SHIFT: u32 = 8;
}

/// Blocking RCU calls that are watched, `rcu_barrier` always and the others for
/// the ledger.
pub const RCU_FUNCTIONS: [&str; 5] = [
    "rcu_barrier",
    "synchronize_rcu",
    "synchronize_rcu_expedited",
    "synchronize_srcu",
    "synchronize_srcu_expedited",
];

/// Functions that stand on the stack of a task that blocks in one of
/// [`RCU_FUNCTIONS`], by its index there: for the off-CPU leg. Some are left by a
/// jump to what waits for them and are not on the stack themselves
/// (kernel/rcu/tree.c, kernel/rcu/srcutree.c); others the compiler has split. What
/// synchronize_srcu_expedited waits in is the same as for synchronize_srcu, and is
/// told as that.
pub const RCU_WAITS: [(&str, usize); 7] = [
    ("rcu_barrier", 0),
    ("synchronize_rcu", 1),
    ("synchronize_rcu_normal", 1),
    ("synchronize_rcu_normal.part.0", 1),
    ("synchronize_rcu_expedited", 2),
    ("__synchronize_srcu", 3),
    ("__synchronize_srcu.part.0", 3),
];

/// Bits of [`CpuState::watched`].
pub mod watch {
    /// The sampler runs.
    pub const SAMPLES: u64 = 1 << 0;
    /// Switches are counted.
    pub const SWITCHES: u64 = 1 << 1;
}

/// Values of the global `TARGET_MODE`.
pub mod target {
    /// Every task is the target.
    pub const MACHINE: u8 = 0;
    /// The tasks in the map `TASKS`, which forks extend.
    pub const TASKS: u8 = 1;
    /// The tasks in a cgroup and those below it.
    pub const CGROUP: u8 = 2;
}

/// Why a record was lost, as indexes into [`CpuState::losses`].
pub mod loss {
    /// The ring buffer had no room.
    pub const RING_FULL: usize = 0;
    /// The ring buffer's lock was held when an NMI wanted it.
    pub const RING_BUSY: usize = 1;
    /// The kernel stack could not be read; the sample has none.
    pub const STACK_UNREADABLE: usize = 2;
    /// A stack was deeper than what is kept; the record arrived cut short.
    pub const STACK_TRUNCATED: usize = 3;
    /// No room for a task in the map `TASKS`.
    pub const TASK_MAP_FULL: usize = 4;
    /// No room for an rcu_barrier call in the map `RCU_STARTS`.
    pub const RCU_MAP_FULL: usize = 5;
    /// How many reasons there are.
    pub const COUNT: usize = 6;
    /// Their names in reports.
    pub const NAMES: [&str; COUNT] = [
        "ring_full",
        "ring_busy",
        "stack_unreadable",
        "stack_truncated",
        "task_map_full",
        "rcu_map_full",
    ];
}

/// A global offset or argument index that is not known.
pub const UNKNOWN: u32 = u32::MAX;

/// The start of every record in the ring buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RecordHeader {
    /// One of [`kind`].
    pub kind: u32,
    /// The CPU it was made on.
    pub cpu: u32,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub time_ns: u64,
}

/// One sample; `kernel_bytes + user_bytes` bytes of frames follow, kernel first,
/// innermost first.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SampleRecord {
    /// Kind [`kind::SAMPLE`].
    pub header: RecordHeader,
    /// The interrupted instruction pointer.
    pub ip: u64,
    /// cgroup v2 id of the task.
    pub cgroup_id: u64,
    /// Thread id in the initial PID namespace.
    pub pid: u32,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Bytes of kernel frames that follow.
    pub kernel_bytes: u16,
    /// Bytes of user frames that follow them.
    pub user_bytes: u16,
    /// The task's name, NUL-padded.
    pub comm: [u8; COMM_LEN],
}

/// Counters of one CPU, which only grow.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counters {
    /// Sampler hits, idle included.
    pub sampler_hits: u64,
    /// Sampler hits on an idle CPU; no record is made of them.
    pub idle_samples: u64,
    /// Sampler hits while breakpoints were armed; no record is made of them.
    pub window_samples: u64,
    /// Nanoseconds in the sampler program, by its own clock readings.
    pub sampler_ns: u64,
    /// Runs of the switch program.
    pub switch_hits: u64,
    /// Runs of it that were timed.
    pub switch_timed_hits: u64,
    /// Nanoseconds in those.
    pub switch_timed_ns: u64,
    /// Switches away from the target's tasks that blocked or ended.
    pub target_voluntary: u64,
    /// Switches away from the target's tasks that could have gone on.
    pub target_preempted: u64,
    /// The same for all other tasks, idle left out.
    pub other_voluntary: u64,
    /// The same for all other tasks, idle left out.
    pub other_preempted: u64,
    /// Runs of the fork and free programs.
    pub task_hits: u64,
    /// Nanoseconds in them.
    pub task_ns: u64,
    /// Losses by reason, see [`loss`].
    pub losses: [u64; loss::COUNT],
}

/// The value of the per-CPU map `CPUS`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CpuState {
    /// The counters.
    pub counters: Counters,
    /// When the next epoch record is due, CLOCK_MONOTONIC nanoseconds.
    pub next_epoch_ns: u64,
    /// Bits of [`watch`]; 0 when this CPU is not watched (`-C`).
    pub watched: u64,
}

/// The counters of one CPU at the end of an epoch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpochRecord {
    /// Kind [`kind::EPOCH`].
    pub header: RecordHeader,
    /// The counters, from the start of the run.
    pub counters: Counters,
}

/// The value of the map `TASKS`, by thread id in the initial PID namespace.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TaskEntry {
    /// Switches in which the task blocked or ended.
    pub voluntary: u64,
    /// Switches in which it could have gone on.
    pub preempted: u64,
}

/// Slots of the map `TASK_SLOTS`.
pub const TASK_SLOTS: u32 = 1 << 14;

/// The value of the map `TASK_SLOTS`, by the low bits of the thread id: where a
/// task's switches are counted once it has the slot. An array costs a fraction of
/// a hash table's lookup, which would be most of a switch's price. A task that
/// finds its slot taken counts in `TASKS`; its switches are the sum of both.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TaskSlot {
    /// Thread id of the task that has the slot; 0 when nobody has.
    pub pid: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// Its switches since it has the slot.
    pub entry: TaskEntry,
}

/// A task of the target that is gone, with its switches.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TaskRecord {
    /// Kind [`kind::TASK`].
    pub header: RecordHeader,
    /// Its switches.
    pub entry: TaskEntry,
    /// Thread id in the initial PID namespace.
    pub pid: u32,
    /// Not used; 0.
    pub reserved: u32,
    /// The task's name, NUL-padded.
    pub comm: [u8; COMM_LEN],
}

/// One call of one of [`RCU_FUNCTIONS`], or with [`flags::OFF_CPU`] one block of it. Also the
/// value of the map `RCU_CALLS`, by thread id and function, while it is under way.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RcuRecord {
    /// Kind [`kind::RCU`]; its time is the end of the call.
    pub header: RecordHeader,
    /// When the call began, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// Thread id in the initial PID namespace.
    pub pid: u32,
    /// Process id in the initial PID namespace.
    pub tgid: u32,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Bytes of `frames` in use.
    pub stack_bytes: u32,
    /// The task's name, NUL-padded.
    pub comm: [u8; COMM_LEN],
    /// The kernel stack at the start, innermost first.
    pub frames: [u64; RCU_FRAMES],
}

/// The value of the map `CHECKS`, by CPU: what the CPU's breakpoints wait for,
/// and how often they were hit. User space maps it; it only changes `address`
/// and `preempt_count` while no breakpoint of the CPU is armed.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CheckSlots {
    /// Not 0 while breakpoints are armed: what is sampled meanwhile is slower
    /// than it would be, and left out.
    pub armed: u64,
    /// Address of the CPU's `preempt_count`; 0 when it is not known, and then
    /// every hit counts as nested.
    pub preempt_count: u64,
    /// Hits count from then on, CLOCK_MONOTONIC nanoseconds: when the thread that
    /// arms has given up the CPU.
    pub from_ns: u64,
    /// Until then: before the interrupt comes that ends its sleep. What it and
    /// the way to it execute would otherwise be taken for the workload's.
    pub until_ns: u64,
    /// Hits before and after.
    pub outside: u64,
    /// Switches away from the target while `armed`.
    pub switches: u64,
    /// What each breakpoint waits for.
    pub address: [u64; BREAKPOINTS],
    /// Hits of each breakpoint, see [`hit`].
    pub hits: [[u64; hit::COUNT]; BREAKPOINTS],
}

const _: () = {
    assert!(size_of::<CheckSlots>() == 8 * (6 + BREAKPOINTS + BREAKPOINTS * hit::COUNT));
    assert!(size_of::<SampleRecord>() == 64);
    assert!(size_of::<Counters>() == 8 * (13 + loss::COUNT));
    assert!(size_of::<EpochRecord>() == 16 + size_of::<Counters>());
    assert!(size_of::<TaskRecord>() == 56);
    assert!(size_of::<RcuRecord>() == 56 + 8 * RCU_FRAMES);
    assert!(MAX_FRAMES * 8 <= STACK_BYTES);
};
