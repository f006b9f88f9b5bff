//! Per-CPU state, the ring buffer and what is said through it.

use aya_ebpf::{
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::map,
    maps::{PerCpuArray, RingBuf},
};
use profiler_ebpf::{CpuState, EpochRecord, RecordHeader, kind, loss};
use zerocopy::IntoBytes as _;

use crate::globals;

/// Counters of each CPU.
#[map]
static CPUS: PerCpuArray<CpuState> = PerCpuArray::with_max_entries(1, 0);

/// Everything that leaves the kernel. The loader sets its size.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

const BPF_RB_NO_WAKEUP: u64 = 1;
const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;
const BPF_RB_RING_SIZE: u64 = 1;
/// `BPF_RINGBUF_HDR_SZ`.
const RECORD_OVERHEAD: u64 = 8;

/// This CPU's state.
#[inline(always)]
pub(crate) fn any_state() -> Option<&'static mut CpuState> {
    let state = CPUS.get_ptr_mut(0)?;
    // SAFETY: the map's value for this CPU. Programs that can interrupt one
    // another write different fields of it, or use `add`.
    Some(unsafe { &mut *state })
}

/// This CPU's state, if `what`, a bit of `watch`, is wanted of the CPU.
#[inline(always)]
pub(crate) fn watched_state(what: u64) -> Option<&'static mut CpuState> {
    any_state().filter(|state| state.watched & what != 0)
}

/// Adds to a counter that programs which preempt one another share. A plain
/// `+=` would lose updates: programs are preemptible since 5.11.
#[inline(always)]
pub(crate) fn add(counter: &mut u64, value: u64) {
    let counter: *mut u64 = counter;
    // SAFETY: `counter` is a live, aligned u64 by its type.
    unsafe {
        core::arch::asm!(
            "lock *(u64 *)({counter} + 0) += {value}",
            counter = in(reg) counter,
            value = in(reg) value,
            options(nostack),
        );
    }
}

/// Counts a lost record.
#[inline(always)]
pub(crate) fn lost(state: &mut CpuState, reason: usize) {
    add(&mut state.counters.losses[reason], 1);
}

/// CLOCK_MONOTONIC, nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes nothing and always succeeds.
    unsafe { bpf_ktime_get_ns() }
}

/// The header of a record made here and now.
#[inline(always)]
pub(crate) fn header(kind: u32, time_ns: u64) -> RecordHeader {
    RecordHeader {
        kind,
        // SAFETY: the helper takes nothing and always succeeds.
        cpu: unsafe { bpf_get_smp_processor_id() },
        time_ns,
    }
}

/// Sends a record. A wake-up costs an interrupt in the middle of what is being
/// measured, so the reader is woken only when the buffer fills up.
#[inline(always)]
pub(crate) fn send(state: &mut CpuState, record: &[u8]) {
    let waiting = EVENTS.query(BPF_RB_AVAIL_DATA);
    let flags = if waiting > globals::WAKEUP_BYTES.load() {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if EVENTS.output::<[u8]>(record, flags).is_err() {
        let room = EVENTS
            .query(BPF_RB_RING_SIZE)
            .wrapping_sub(EVENTS.query(BPF_RB_AVAIL_DATA));
        // An NMI that finds the lock taken gives up though there is room.
        let reason = if room > record.len() as u64 + 2 * RECORD_OVERHEAD {
            loss::RING_BUSY
        } else {
            loss::RING_FULL
        };
        lost(state, reason);
        log!(
            "lost a record of {} bytes, {} free in the ring buffer",
            record.len(),
            room
        );
    }
}

/// Sends this CPU's counters when an epoch has ended. Called by the sampler,
/// which runs on every watched CPU and which nothing here interrupts.
#[inline(always)]
pub(crate) fn end_epoch(state: &mut CpuState, time_ns: u64) {
    if time_ns < state.next_epoch_ns {
        return;
    }
    let length = globals::EPOCH_NS.load();
    let due = state.next_epoch_ns + length;
    // The first epoch begins now; and one that ends late, on a CPU that slept,
    // is not followed by empty ones.
    state.next_epoch_ns = if due > time_ns { due } else { time_ns + length };
    let record = EpochRecord {
        header: header(kind::EPOCH, time_ns),
        counters: state.counters,
    };
    send(state, record.as_bytes());
}
