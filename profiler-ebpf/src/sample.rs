//! The sampler.

use aya_ebpf::{
    EbpfContext as _, Global,
    bindings::BPF_F_USER_STACK,
    helpers::{
        bpf_get_current_cgroup_id, bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_stack,
    },
    macros::map,
    maps::PerCpuArray,
    programs::PerfEventContext,
};
use profiler_ebpf::{CpuState, STACK_BYTES, SampleRecord, flags, kind, loss, watch};

use crate::{check, cpu, globals, task};

/// A record under construction. Per CPU and without a guard: the kernel runs
/// one perf_event program at a time on a CPU (`bpf_prog_active`), in interrupt
/// or NMI context.
#[repr(C)]
struct Scratch {
    record: SampleRecord,
    /// Kernel frames, and right behind the last of them the user frames.
    frames: [u8; 2 * STACK_BYTES],
}

#[map]
static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(1, 0);

/// Whether the interrupted code had interrupts on, by the bit of the flags that
/// says so.
#[inline(always)]
pub(crate) fn interrupts_on(ctx: &PerfEventContext, bit: u64) -> bool {
    // SAFETY: the context of a perf_event program begins with the registers.
    let regs = unsafe { &(*ctx.ctx).regs };
    #[cfg(bpf_target_arch = "x86_64")]
    {
        regs.eflags & bit != 0
    }
    #[cfg(bpf_target_arch = "aarch64")]
    {
        // Masked is what the bit says there.
        regs.pstate & bit == 0
    }
}

/// The interrupted instruction pointer.
#[inline(always)]
pub(crate) fn instruction_pointer(ctx: &PerfEventContext) -> u64 {
    // SAFETY: the context of a perf_event program begins with the registers.
    let regs = unsafe { &(*ctx.ctx).regs };
    #[cfg(bpf_target_arch = "x86_64")]
    {
        regs.rip
    }
    #[cfg(bpf_target_arch = "aarch64")]
    {
        regs.pc
    }
}

/// Takes one sample.
#[inline(always)]
pub(crate) fn on_sample(ctx: &PerfEventContext) {
    let Some(state) = cpu::watched_state(watch::SAMPLES) else {
        return;
    };
    let begin = cpu::now();
    state.counters.sampler_hits += 1;
    let pid_tgid = bpf_get_current_pid_tgid();
    let ip = instruction_pointer(ctx);
    if pid_tgid as u32 == 0 && is_idle(ip) {
        state.counters.idle_samples += 1;
    } else if check::is_armed() {
        state.counters.window_samples += 1;
    } else {
        record(ctx, state, begin, pid_tgid, ip);
    }
    cpu::end_epoch(state, begin);
    state.counters.sampler_ns += cpu::now() - begin;
}

/// Whether the idle task was interrupted in the instructions that wait. Outside
/// of them it does work: interrupts, softirqs, the idle loop itself.
#[inline(always)]
fn is_idle(ip: u64) -> bool {
    use globals::{
        IDLE0_END, IDLE0_START, IDLE1_END, IDLE1_START, IDLE2_END, IDLE2_START, IDLE3_END,
        IDLE3_START,
    };
    let within = |start: &Global<u64>, end: &Global<u64>| ip >= start.load() && ip < end.load();
    IDLE0_START.load() == 0
        || within(&IDLE0_START, &IDLE0_END)
        || within(&IDLE1_START, &IDLE1_END)
        || within(&IDLE2_START, &IDLE2_END)
        || within(&IDLE3_START, &IDLE3_END)
}

#[inline(always)]
fn record(ctx: &PerfEventContext, state: &mut CpuState, time_ns: u64, pid_tgid: u64, ip: u64) {
    let Some(scratch) = SCRATCH.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: the map's value for this CPU, see `Scratch`.
    let scratch = unsafe { &mut *scratch };

    let mut bits = 0;
    if task::is_target(pid_tgid, state) {
        bits |= flags::TARGET;
    }
    // Kernel addresses are in the upper half on every architecture we build for.
    let user_mode = (ip as i64) >= 0;
    if user_mode {
        bits |= flags::USER_MODE;
    }

    let mut kernel_bytes = 0;
    if !user_mode {
        kernel_bytes = stack(ctx, state, &mut scratch.frames, 0, 0);
        if is_cut(state, kernel_bytes) {
            bits |= flags::KERNEL_TRUNCATED;
        }
    }
    let mut user_bytes = 0;
    if globals::USER_STACKS.load() != 0 && bits & flags::TARGET != 0 && (pid_tgid >> 32) != 0 {
        user_bytes = stack(
            ctx,
            state,
            &mut scratch.frames,
            kernel_bytes,
            u64::from(BPF_F_USER_STACK),
        );
        if is_cut(state, user_bytes) {
            bits |= flags::USER_TRUNCATED;
        }
    }

    scratch.record = SampleRecord {
        header: cpu::header(kind::SAMPLE, time_ns),
        ip,
        cgroup_id: if globals::HAS_CGROUPS.load() != 0 {
            // SAFETY: the helper takes nothing and always succeeds.
            unsafe { bpf_get_current_cgroup_id() }
        } else {
            0
        },
        pid: pid_tgid as u32,
        tgid: (pid_tgid >> 32) as u32,
        flags: bits,
        kernel_bytes: kernel_bytes as u16,
        user_bytes: user_bytes as u16,
        comm: bpf_get_current_comm().unwrap_or_default(),
    };
    let length = size_of::<SampleRecord>()
        + (kernel_bytes & (STACK_BYTES - 1))
        + (user_bytes & (STACK_BYTES - 1));
    // SAFETY: the length is within `scratch`: 64 + 2 x 1023 at most.
    let bytes = unsafe { core::slice::from_raw_parts((&raw const *scratch).cast::<u8>(), length) };
    cpu::send(state, bytes);
}

/// Reads one stack to `frames[at..]`; returns its bytes.
#[inline(always)]
fn stack(
    ctx: &PerfEventContext,
    state: &mut CpuState,
    frames: &mut [u8; 2 * STACK_BYTES],
    at: usize,
    which: u64,
) -> usize {
    // The mask tells the verifier the bounds.
    let at = at & (STACK_BYTES - 1);
    // SAFETY: `at` is below STACK_BYTES, and STACK_BYTES - 8 bytes follow it.
    let bytes = unsafe {
        bpf_get_stack(
            ctx.as_ptr(),
            frames.as_mut_ptr().add(at).cast(),
            (STACK_BYTES - 8) as u32,
            which,
        )
    };
    if bytes < 0 {
        // Without a mapped stack (a kernel thread, an exiting task) there is
        // nothing to lose.
        if which == 0 {
            cpu::lost(state, loss::STACK_UNREADABLE);
        }
        return 0;
    }
    bytes as usize & (STACK_BYTES - 1)
}

/// Whether a stack is as deep as a stack can get here, and so may go on.
#[inline(always)]
fn is_cut(state: &mut CpuState, bytes: usize) -> bool {
    let cut = bytes as u32 >= globals::MAX_STACK.load() * 8;
    if cut {
        cpu::lost(state, loss::STACK_TRUNCATED);
    }
    cut
}
