//! The ABI of the ledger: what `--ledger` counts beside switches.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{COMM_LEN, RecordHeader};

/// Log-linear buckets: one for each value up to 15, then 16 for each power of
/// two. A bucket is at most a sixteenth of its values wide, so its middle is
/// within 3.2 % of each of them.
pub mod histogram {
    /// The buckets of one power of two are 2 to this.
    pub const SUB_BITS: u32 = 4;
    /// Values from here on, 18 minutes in nanoseconds, share the last bucket.
    pub const LIMIT: u64 = 1 << 40;
    /// Buckets in use.
    pub const BUCKETS: usize = bucket(LIMIT - 1) + 1;

    /// The bucket of a value.
    #[inline(always)]
    pub const fn bucket(value: u64) -> usize {
        let value = if value < LIMIT { value } else { LIMIT - 1 };
        if value < 1 << SUB_BITS {
            return value as usize;
        }
        let octave = 63 - value.leading_zeros();
        // The bits behind the leading one, and before them how many octaves are
        // below.
        let sub = (value >> (octave - SUB_BITS)) - (1 << SUB_BITS);
        (((octave - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize
    }

    /// The least value of a bucket.
    pub const fn least(bucket: usize) -> u64 {
        if bucket < 1 << SUB_BITS {
            return bucket as u64;
        }
        let octave = (bucket >> SUB_BITS) as u32 + SUB_BITS - 1;
        let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
        ((1 << SUB_BITS) + sub) << (octave - SUB_BITS)
    }

    /// The middle of a bucket's values.
    pub const fn middle(bucket: usize) -> u64 {
        let least = least(bucket);
        least + (least_above(bucket) - least) / 2
    }

    const fn least_above(bucket: usize) -> u64 {
        least(bucket + 1)
    }
}

/// A distribution of times, nanoseconds.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Histogram {
    /// How many times.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// How many in each bucket, see [`histogram`].
    pub buckets: [u64; histogram::BUCKETS],
}

/// The byte of a key of the map `WAKE_GROUPS` that is one of [`cause`]. The others
/// are the task's name, whose last byte is always NUL.
pub const GROUP_CAUSE: usize = COMM_LEN - 1;

/// Why a woken task waited: indexes of the map `WAKE_CAUSES`.
pub mod cause {
    /// Another task had the CPU.
    pub const BUSY: u32 = 0;
    /// The CPU was idle and had to wake up.
    pub const IDLE: u32 = 1;
    /// Another task of the fair class had the CPU and was not made to give it up
    /// before the tick or its return to user mode: the lazy model.
    pub const LAZY: u32 = 2;
    /// Not of a wake-up: a task left a CPU to another and got it back from the
    /// same one, both by blocking.
    pub const HANDOFF: u32 = 3;
    /// How many there are.
    pub const COUNT: u32 = 4;
}

/// Why something is missing, as indexes into [`LedgerCpu::losses`].
pub mod loss {
    /// A woken or preempted task's slot of the map `WAITS` was another task's.
    pub const WAIT_SLOT_TAKEN: usize = 0;
    /// No room for another group in the map `WAKE_GROUPS`; the wake-up is in the
    /// totals.
    pub const GROUP_MAP_FULL: usize = 1;
    /// No room in the map `PREEMPTIONS`.
    pub const PREEMPTION_MAP_FULL: usize = 2;
    /// No room for another stack in the map `LEDGER_STACKS`.
    pub const STACK_MAP_FULL: usize = 3;
    /// A timer's slot of the map `TIMER_WAITS` was another task's.
    pub const TIMER_SLOT_TAKEN: usize = 4;
    /// No room in the map `TIMER_SITES`.
    pub const TIMER_MAP_FULL: usize = 5;
    /// How many reasons there are.
    pub const COUNT: usize = 6;
    /// Their names in reports.
    pub const NAMES: [&str; COUNT] = [
        "wait_slot_taken",
        "latency_group_map_full",
        "preemption_map_full",
        "ledger_stack_map_full",
        "timer_slot_taken",
        "timer_map_full",
    ];
}

/// The value of the per-CPU map `LEDGER`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LedgerCpu {
    /// Runs of the ledger's own programs.
    pub hits: u64,
    /// Runs of them that were timed.
    pub timed_hits: u64,
    /// Nanoseconds in those.
    pub timed_ns: u64,
    /// Wake-ups of the target that were seen.
    pub wakeups: u64,
    /// Of these, tasks that were woken before they had left their CPU: they did
    /// not wait.
    pub woken_running: u64,
    /// Waits that would have ended before they began, as CPUs' clocks differ.
    pub clock_backwards: u64,
    /// Tasks that ended between wake-up and running.
    pub ended_waiting: u64,
    /// Switches away from tasks of the target that ended.
    pub exits: u64,
    /// Ticks while a task ran.
    pub busy_ticks: u64,
    /// Nanoseconds in their handler.
    pub busy_tick_ns: u64,
    /// Ticks of an idle CPU.
    pub idle_ticks: u64,
    /// Nanoseconds in their handler.
    pub idle_tick_ns: u64,
    /// Losses by reason, see [`loss`].
    pub losses: [u64; loss::COUNT],
    /// The longest wake-up latency so far.
    pub worst_ns: u64,
    /// How many were kept that were the longest when they came.
    pub worst_kept: u64,
    /// How many were kept that were near it.
    pub near_kept: u64,
    /// When the last switch was.
    pub last_ns: u64,
    /// When the tick under way began; 0 when there is none.
    pub tick_begin_ns: u64,
    /// The task that left the CPU then.
    pub last_pid: u32,
    /// Not 0 when it blocked, and is of the target.
    pub last_blocked: u32,
}

/// Values of [`WaitSlot::state`].
pub mod wait {
    /// Nothing.
    pub const NONE: u32 = 0;
    /// The task was woken and has not run yet.
    pub const WOKEN: u32 = 1;
    /// The task was preempted and has not run since.
    pub const PREEMPTED: u32 = 2;
}

/// Slots of the maps `WAITS` and `TIMER_WAITS`, by the low bits of the thread id.
pub const WAIT_SLOTS: u32 = 1 << 14;

/// Entries of the maps that take next to no memory without a ledger.
pub mod entries {
    use super::{WAIT_SLOTS, cause};

    /// `PREEMPTIONS`.
    pub const PREEMPTIONS: u32 = 4096;
    /// `LEDGER_STACKS`.
    pub const STACKS: u32 = 4096;
    /// `TIMER_SITES`.
    pub const TIMER_SITES: u32 = 2048;
    /// `WAKE_GROUPS`.
    pub const WAKE_GROUPS: u32 = 128;

    /// All of them, by the map's name.
    pub const ALL: [(&str, u32); 7] = [
        ("WAITS", WAIT_SLOTS),
        ("TIMER_WAITS", WAIT_SLOTS),
        ("PREEMPTIONS", PREEMPTIONS),
        ("LEDGER_STACKS", STACKS),
        ("TIMER_SITES", TIMER_SITES),
        ("WAKE_GROUPS", WAKE_GROUPS),
        ("WAKE_CAUSES", cause::COUNT),
    ];
}

/// The value of the map `WAITS`: a task that waits for a CPU.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WaitSlot {
    /// Thread id of the task.
    pub pid: u32,
    /// One of [`wait`].
    pub state: u32,
    /// Since when, CLOCK_MONOTONIC nanoseconds.
    pub since_ns: u64,
    /// With [`wait::PREEMPTED`]: where it is counted.
    pub key: PreemptionKey,
}

/// Which preemptions are counted together: the key of the map `PREEMPTIONS`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PreemptionKey {
    /// Name of the task that could have gone on.
    pub of: [u8; COMM_LEN],
    /// Name of the task that got the CPU.
    pub by: [u8; COMM_LEN],
    /// The key of its stack in the map `LEDGER_STACKS`; 0 for none.
    pub stack: u64,
    /// Not 0 when the task that got the CPU is a kernel thread.
    pub by_kernel_thread: u32,
    /// Not 0 when it is the idle task: the other one gave the CPU up by itself.
    pub by_idle: u32,
}

/// The value of the map `PREEMPTIONS`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PreemptionCounts {
    /// How many.
    pub count: u64,
    /// How long the tasks waited for a CPU, together.
    pub wait_ns: u64,
    /// Of how many the wait is known.
    pub waits: u64,
}

/// Frames kept of a stack in the map `LEDGER_STACKS`.
pub const LEDGER_FRAMES: usize = 14;

/// The value of the map `TIMER_WAITS`: a task that waits for a timer of the
/// timer wheel.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TimerSlot {
    /// Thread id of the task.
    pub pid: u32,
    /// Jiffies from the start to the expiry it asked for.
    pub jiffies: u32,
    /// When it began to wait, CLOCK_MONOTONIC nanoseconds; 0 when nobody waits.
    pub start_ns: u64,
    /// The key of its stack in the map `LEDGER_STACKS`.
    pub stack: u64,
}

/// Which waits are counted together: the key of the map `TIMER_SITES`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct TimerKey {
    /// Name of the task.
    pub comm: [u8; COMM_LEN],
    /// The key of its stack in the map `LEDGER_STACKS`.
    pub stack: u64,
    /// Jiffies from the start to the expiry it asked for.
    pub jiffies: u32,
    /// Not used; 0.
    pub reserved: u32,
}

/// The value of the map `TIMER_SITES`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TimerCounts {
    /// Waits that ended by their timer.
    pub count: u64,
    /// How long they took, together, up to the timer's expiry.
    pub elapsed_ns: u64,
}

/// Slots of the per-CPU map `WORST` for latencies that were the longest, and as
/// many again for others.
pub const WORST_SLOTS: u32 = 4;

/// One of the longest wake-up latencies: the value of the map `WORST`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LatencyRecord {
    /// Of no kind, as it is not sent; its time is the switch to the task.
    pub header: RecordHeader,
    /// How long it waited; 0 in a slot that nobody has.
    pub wait_ns: u64,
    /// Its thread id.
    pub pid: u32,
    /// One of [`cause`].
    pub cause: u32,
    /// Thread id of the task that had the CPU until then.
    pub culprit_pid: u32,
    /// Bytes of `frames` in use.
    pub stack_bytes: u32,
    /// The task's name.
    pub comm: [u8; COMM_LEN],
    /// The name of the task that had the CPU.
    pub culprit: [u8; COMM_LEN],
    /// The kernel stack on which that task left the CPU, innermost first.
    pub frames: [u64; LEDGER_FRAMES],
}

const _: () = {
    assert!(histogram::BUCKETS == 592);
    assert!(size_of::<Histogram>() == 24 + 8 * 592);
    assert!(size_of::<PreemptionKey>() == 48);
    assert!(size_of::<WaitSlot>() == 64);
    assert!(size_of::<TimerKey>() == 32);
    assert!(size_of::<LatencyRecord>() == 72 + 8 * LEDGER_FRAMES);
};

#[cfg(test)]
mod tests {
    use super::histogram::*;

    #[test]
    fn buckets_follow_one_another_without_a_gap() {
        assert_eq!(bucket(0), 0);
        for index in 0..BUCKETS {
            let least = least(index);
            assert_eq!(bucket(least), index);
            if index > 0 {
                assert_eq!(bucket(least - 1), index - 1);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket(LIMIT), BUCKETS - 1);
    }

    #[test]
    fn a_middle_is_within_the_stated_bound() {
        for shift in 0..40 {
            for part in 0..37 {
                let value = (1_u64 << shift) + ((1_u64 << shift) * part) / 37;
                let middle = middle(bucket(value)) as f64;
                let error = (middle - value as f64).abs() / value as f64;
                assert!(error <= 0.032, "{value}: {middle}");
            }
        }
    }
}
