//! Hits of execution breakpoints at calls that nothing can be attached to.
//!
//! The processor's debug exception comes before the instruction, on kernel text
//! that no kprobe may touch, and with breakpoints off until it is handled: what
//! this program executes itself is not counted.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_probe_read_kernel},
    macros::map,
    maps::Array,
    programs::PerfEventContext,
};
use profiler_ebpf::{BREAKPOINTS, CheckSlots, hit};

use crate::{cpu, sample, task};

/// `BPF_F_MMAPABLE`: the counting thread reads and sets it without system calls.
const MMAPABLE: u32 = 1 << 10;

/// Breakpoints by CPU. The loader sets its size.
#[map]
static CHECKS: Array<CheckSlots> = Array::with_max_entries(1, MMAPABLE);

/// The bits of preempt_count that say "preemption disabled, or in an interrupt":
/// all but `PREEMPT_NEED_RESCHED` (include/linux/preempt.h).
const COUNT_MASK: u32 = 0x7fff_ffff;
/// What the debug exception adds while it is handled: NMI_OFFSET +
/// HARDIRQ_OFFSET (include/linux/hardirq.h, `__nmi_enter`, since 5.8).
const IN_EXCEPTION: u32 = (1 << 20) + (1 << 16);
/// `X86_EFLAGS_IF`.
#[cfg(bpf_target_arch = "x86_64")]
const INTERRUPT_FLAG: u64 = 1 << 9;
/// `PSR_I_BIT`.
#[cfg(bpf_target_arch = "aarch64")]
const INTERRUPT_FLAG: u64 = 1 << 7;

/// Whether breakpoints of this CPU are armed.
#[inline(always)]
pub(crate) fn is_armed() -> bool {
    // SAFETY: the helper takes nothing and always succeeds; the map's value is
    // only read.
    unsafe {
        CHECKS
            .get_ptr(bpf_get_smp_processor_id())
            .is_some_and(|slots| (*slots).armed != 0)
    }
}

/// Takes note of a switch away from the target while breakpoints are armed: it was at
/// work then.
#[inline(always)]
pub(crate) fn on_switch() {
    // SAFETY: the helper takes nothing and always succeeds.
    if let Some(slots) = CHECKS.get_ptr_mut(unsafe { bpf_get_smp_processor_id() }) {
        // SAFETY: the map's value of this CPU; user space reads the count.
        unsafe {
            if (*slots).armed != 0 {
                (*slots).switches += 1;
            }
        }
    }
}

/// Counts a hit. Nothing interrupts it on its CPU but an NMI, which hits no
/// breakpoint meanwhile.
#[inline(always)]
pub(crate) fn on_hit(ctx: &PerfEventContext) {
    // SAFETY: the helper takes nothing and always succeeds.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(slots) = CHECKS.get_ptr_mut(cpu) else {
        return;
    };
    // SAFETY: the map's value of this CPU; user space only reads what is written
    // here.
    let slots = unsafe { &mut *slots };
    let Some(state) = cpu::any_state() else {
        return;
    };
    // Asked first, so that each hit costs the same.
    let condition = condition(ctx, slots.preempt_count);
    let kind = if task::is_target(bpf_get_current_pid_tgid(), state) {
        condition
    } else {
        hit::OTHER
    };
    let now = cpu::now();
    if now < slots.from_ns || now >= slots.until_ns {
        slots.outside += 1;
        return;
    }
    let ip = sample::instruction_pointer(ctx);
    // Without a loop: a computed index would need bounds for the verifier.
    if ip == slots.address[0] {
        slots.hits[0][kind & (hit::COUNT - 1)] += 1;
    } else if ip == slots.address[1] {
        slots.hits[1][kind & (hit::COUNT - 1)] += 1;
    } else if ip == slots.address[2] {
        slots.hits[2][kind & (hit::COUNT - 1)] += 1;
    } else if ip == slots.address[BREAKPOINTS - 1] {
        slots.hits[BREAKPOINTS - 1][kind & (hit::COUNT - 1)] += 1;
    }
}

/// Whether the code that was hit could be preempted.
#[inline(always)]
fn condition(ctx: &PerfEventContext, preempt_count: u64) -> usize {
    if preempt_count == 0 {
        return hit::NESTED;
    }
    // SAFETY: the helper checks the address.
    let count = match unsafe { bpf_probe_read_kernel(preempt_count as *const u32) } {
        Ok(count) => (count & COUNT_MASK).wrapping_sub(IN_EXCEPTION),
        Err(_) => return hit::NESTED,
    };
    if count != 0 {
        return hit::NESTED;
    }
    if sample::interrupts_on(ctx, INTERRUPT_FLAG) {
        hit::PREEMPTIBLE
    } else {
        hit::IRQS_OFF
    }
}
