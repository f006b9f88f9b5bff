//! The attach points. Each program here is a stub that reads what its kind of
//! attachment offers and calls the module of its subject; the twins of one
//! measurement differ in nothing else.
#![cfg_attr(target_arch = "bpf", no_std, no_main, feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        unstable_features,
        reason = "inline assembly for BPF is not stable; an atomic add has no other spelling"
    )
)]

#[cfg(target_arch = "bpf")]
#[macro_use]
mod log;

#[cfg(target_arch = "bpf")]
mod check;
#[cfg(target_arch = "bpf")]
mod clock;
#[cfg(target_arch = "bpf")]
mod cpu;
#[cfg(target_arch = "bpf")]
mod globals;
#[cfg(target_arch = "bpf")]
mod peek;
#[cfg(target_arch = "bpf")]
mod rcu;
#[cfg(target_arch = "bpf")]
mod sample;
#[cfg(target_arch = "bpf")]
mod switch;
#[cfg(target_arch = "bpf")]
mod task;
#[cfg(target_arch = "bpf")]
mod text;
#[cfg(target_arch = "bpf")]
mod timer;
#[cfg(target_arch = "bpf")]
mod wake;

#[cfg(target_arch = "bpf")]
mod stubs {
    use aya_ebpf::{
        EbpfContext as _,
        cty::c_void,
        macros::{
            btf_tracepoint, fentry, fexit, kprobe, kretprobe, perf_event, raw_tracepoint,
            tracepoint,
        },
        programs::{
            BtfTracePointContext, FEntryContext, FExitContext, PerfEventContext, ProbeContext,
            RawTracePointContext, RetProbeContext, TracePointContext,
        },
    };

    use profiler_ebpf::UNKNOWN;

    use crate::{check, clock, globals, peek, rcu, sample, switch, task, text, timer, wake};

    /// Samples: one run per CPU and period. Minimum kernel 5.8 (ring buffer).
    #[perf_event]
    fn sample(ctx: PerfEventContext) -> u32 {
        sample::on_sample(&ctx);
        // Not 0: the event would go on to its perf ring buffer, which only
        // carries throttling records.
        0
    }

    /// Hits of execution breakpoints. Minimum kernel 4.9.
    #[perf_event]
    fn check(ctx: PerfEventContext) -> u32 {
        check::on_hit(&ctx);
        0
    }

    /// Context switches. Minimum kernel 5.5.
    #[btf_tracepoint(function = "sched_switch")]
    fn switch_btf(ctx: BtfTracePointContext) -> i32 {
        switch::on_switch(ctx.as_ptr(), &switch::Args::from_arguments(ctx.as_ptr()));
        0
    }

    /// Context switches. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "sched_switch")]
    fn switch_raw(ctx: RawTracePointContext) -> i32 {
        switch::on_switch(ctx.as_ptr(), &switch::Args::from_arguments(ctx.as_ptr()));
        0
    }

    /// Context switches, by the offsets of the tracepoint's `format` file.
    #[tracepoint(category = "sched", name = "sched_switch")]
    fn switch_tp(ctx: TracePointContext) -> u32 {
        if let Some(args) = switch::Args::from_tracepoint(&ctx) {
            switch::on_switch(ctx.as_ptr(), &args);
        }
        0
    }

    /// New tasks. Minimum kernel 5.5.
    #[btf_tracepoint(function = "sched_process_fork")]
    fn fork_btf(ctx: BtfTracePointContext) -> i32 {
        task::on_fork(task::pid_of(ctx.arg(1)));
        0
    }

    /// New tasks. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "sched_process_fork")]
    fn fork_raw(ctx: RawTracePointContext) -> i32 {
        task::on_fork(task::pid_of(ctx.arg(1)));
        0
    }

    /// New tasks, by the offsets of the tracepoint's `format` file.
    #[tracepoint(category = "sched", name = "sched_process_fork")]
    fn fork_tp(ctx: TracePointContext) -> u32 {
        // SAFETY: the helper checks the offset against the record's bounds.
        task::on_fork(unsafe { ctx.read_at::<u32>(globals::FORK_CHILD.load() as usize) }.ok());
        0
    }

    /// Tasks that are gone for good. Minimum kernel 5.5.
    #[btf_tracepoint(function = "sched_process_free")]
    fn free_btf(ctx: BtfTracePointContext) -> i32 {
        task::on_free(task::pid_of(ctx.arg(0)), task::comm_of(ctx.arg(0)));
        0
    }

    /// Tasks that are gone for good. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "sched_process_free")]
    fn free_raw(ctx: RawTracePointContext) -> i32 {
        task::on_free(task::pid_of(ctx.arg(0)), task::comm_of(ctx.arg(0)));
        0
    }

    /// Tasks that are gone for good, by the offsets of the tracepoint's `format`
    /// file.
    #[tracepoint(category = "sched", name = "sched_process_free")]
    fn free_tp(ctx: TracePointContext) -> u32 {
        let (pid, comm) = (globals::FREE_PID.load(), globals::FREE_COMM.load());
        // SAFETY: the helper checks the offset against the record's bounds.
        let pid = unsafe { ctx.read_at::<u32>(pid as usize) };
        // Where the name has no fixed place there is nothing to read.
        let comm = if comm == UNKNOWN {
            Default::default()
        } else {
            // SAFETY: as above.
            unsafe { ctx.read_at(comm as usize) }.unwrap_or_default()
        };
        task::on_free(pid.ok(), comm);
        0
    }

    /// A task is about to be woken. Minimum kernel 5.5.
    #[btf_tracepoint(function = "sched_waking")]
    fn wake_btf(ctx: BtfTracePointContext) -> i32 {
        wake::on_wake(task::pid_of(ctx.arg(0)));
        0
    }

    /// A task is about to be woken. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "sched_waking")]
    fn wake_raw(ctx: RawTracePointContext) -> i32 {
        wake::on_wake(task::pid_of(ctx.arg(0)));
        0
    }

    /// A task is about to be woken, by the offsets of the tracepoint's `format`
    /// file.
    #[tracepoint(category = "sched", name = "sched_waking")]
    fn wake_tp(ctx: TracePointContext) -> u32 {
        wake::on_wake(wake::woken_by_record(&ctx));
        0
    }

    /// A new task is woken for the first time. Minimum kernel 5.5.
    #[btf_tracepoint(function = "sched_wakeup_new")]
    fn wake_new_btf(ctx: BtfTracePointContext) -> i32 {
        wake::on_wake(task::pid_of(ctx.arg(0)));
        0
    }

    /// A new task is woken for the first time. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "sched_wakeup_new")]
    fn wake_new_raw(ctx: RawTracePointContext) -> i32 {
        wake::on_wake(task::pid_of(ctx.arg(0)));
        0
    }

    /// A new task is woken for the first time, by the offsets of the tracepoint's
    /// `format` file.
    #[tracepoint(category = "sched", name = "sched_wakeup_new")]
    fn wake_new_tp(ctx: TracePointContext) -> u32 {
        wake::on_wake(wake::woken_by_record(&ctx));
        0
    }

    /// A timer of the timer wheel is started. Minimum kernel 5.5.
    #[btf_tracepoint(function = "timer_start")]
    fn timer_start_btf(ctx: BtfTracePointContext) -> i32 {
        timer::on_start(ctx.as_ptr(), ctx.arg::<*const c_void>(0) as u64);
        0
    }

    /// A timer of the timer wheel is started. Minimum kernel 5.5.
    #[raw_tracepoint(tracepoint = "timer_start")]
    fn timer_start_raw(ctx: RawTracePointContext) -> i32 {
        timer::on_start(ctx.as_ptr(), ctx.arg(0));
        0
    }

    /// A timer of the timer wheel expires. Minimum kernel 5.5.
    #[btf_tracepoint(function = "timer_expire_entry")]
    fn timer_expire_btf(ctx: BtfTracePointContext) -> i32 {
        timer::on_expire(ctx.arg::<*const c_void>(0) as u64);
        0
    }

    /// A timer of the timer wheel expires. Minimum kernel 5.5.
    #[raw_tracepoint(tracepoint = "timer_expire_entry")]
    fn timer_expire_raw(ctx: RawTracePointContext) -> i32 {
        timer::on_expire(ctx.arg(0));
        0
    }

    /// A high-resolution timer's function begins. Minimum kernel 5.5.
    #[btf_tracepoint(function = "hrtimer_expire_entry")]
    fn tick_btf(ctx: BtfTracePointContext) -> i32 {
        timer::on_hrtimer(ctx.arg::<*const c_void>(0) as u64);
        0
    }

    /// A high-resolution timer's function begins. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "hrtimer_expire_entry")]
    fn tick_raw(ctx: RawTracePointContext) -> i32 {
        timer::on_hrtimer(ctx.arg(0));
        0
    }

    /// A high-resolution timer's function has ended. Minimum kernel 5.5.
    #[btf_tracepoint(function = "hrtimer_expire_exit")]
    fn tick_end_btf(_ctx: BtfTracePointContext) -> i32 {
        timer::on_hrtimer_end();
        0
    }

    /// A high-resolution timer's function has ended. Minimum kernel 4.17.
    #[raw_tracepoint(tracepoint = "hrtimer_expire_exit")]
    fn tick_end_raw(_ctx: RawTracePointContext) -> i32 {
        timer::on_hrtimer_end();
        0
    }

    // The next ones are asked, so their result counts. aya's macro would have
    // them return 0 whatever they say, and so it is spelled out here.

    /// Not attached to anything: run by `BPF_PROG_TEST_RUN` with an address,
    /// reads kernel memory there. Minimum kernel 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn peek(ctx: *mut c_void) -> i32 {
        peek::on_peek(RawTracePointContext::new(ctx).arg(0))
    }

    /// Not attached to anything: run by `BPF_PROG_TEST_RUN` with an address and
    /// a number of pages, reads kernel memory there; how many could not be read.
    /// Minimum kernel 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn read_text(ctx: *mut c_void) -> i32 {
        let args = RawTracePointContext::new(ctx);
        text::on_read(args.arg(0), args.arg(1))
    }

    /// Not attached to anything: run by `BPF_PROG_TEST_RUN`, says how many
    /// nanoseconds `CALIBRATION_CALLS` calls of bpf_get_prandom_u32 take.
    /// Minimum kernel 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn time_prandom(_ctx: *mut c_void) -> i32 {
        clock::on_prandom()
    }

    /// The same loop without the call. Minimum kernel 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn time_nothing(_ctx: *mut c_void) -> i32 {
        clock::on_nothing()
    }

    /// Not attached to anything: run by `BPF_PROG_TEST_RUN`, says how many
    /// nanoseconds `CLOCK_READINGS` readings of the clock take. Minimum kernel
    /// 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn clock(_ctx: *mut c_void) -> i32 {
        clock::on_clock()
    }

    /// Not attached to anything: run by `BPF_PROG_TEST_RUN`, says which process
    /// of the initial PID namespace the caller is. Minimum kernel 5.10.
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "raw_tp")]
    extern "C" fn whoami(ctx: *mut c_void) -> i32 {
        RawTracePointContext::new(ctx).tgid() as i32
    }

    /// The start of an rcu_barrier call. Minimum kernel 5.5.
    #[fentry(function = "rcu_barrier")]
    fn rcu_enter_fentry(ctx: FEntryContext) -> i32 {
        rcu::on_enter(ctx.as_ptr(), 0);
        0
    }

    /// The end of an rcu_barrier call. Minimum kernel 5.5.
    #[fexit(function = "rcu_barrier")]
    fn rcu_exit_fexit(_ctx: FExitContext) -> i32 {
        rcu::on_exit(0);
        0
    }

    /// The start of an rcu_barrier call.
    #[kprobe(function = "rcu_barrier")]
    fn rcu_enter_kprobe(ctx: ProbeContext) -> u32 {
        rcu::on_enter(ctx.as_ptr(), 0);
        0
    }

    /// The end of an rcu_barrier call.
    #[kretprobe(function = "rcu_barrier")]
    fn rcu_exit_kretprobe(_ctx: RetProbeContext) -> u32 {
        rcu::on_exit(0);
        0
    }

    /// The programs of another blocking RCU call, by its index in
    /// `profiler_ebpf::RCU_FUNCTIONS`.
    macro_rules! rcu_programs {
        ($index:literal, $fentry:ident, $fexit:ident, $kprobe:ident, $kretprobe:ident) => {
            /// The start of a call. Minimum kernel 5.5.
            #[fentry]
            fn $fentry(ctx: FEntryContext) -> i32 {
                rcu::on_enter(ctx.as_ptr(), $index);
                0
            }

            /// The end of a call. Minimum kernel 5.5.
            #[fexit]
            fn $fexit(_ctx: FExitContext) -> i32 {
                rcu::on_exit($index);
                0
            }

            /// The start of a call.
            #[kprobe]
            fn $kprobe(ctx: ProbeContext) -> u32 {
                rcu::on_enter(ctx.as_ptr(), $index);
                0
            }

            /// The end of a call.
            #[kretprobe]
            fn $kretprobe(_ctx: RetProbeContext) -> u32 {
                rcu::on_exit($index);
                0
            }
        };
    }

    rcu_programs!(
        1,
        rcu1_enter_fentry,
        rcu1_exit_fexit,
        rcu1_enter_kprobe,
        rcu1_exit_kretprobe
    );
    rcu_programs!(
        2,
        rcu2_enter_fentry,
        rcu2_exit_fexit,
        rcu2_enter_kprobe,
        rcu2_exit_kretprobe
    );
    rcu_programs!(
        3,
        rcu3_enter_fentry,
        rcu3_exit_fexit,
        rcu3_enter_kprobe,
        rcu3_exit_kretprobe
    );
    rcu_programs!(
        4,
        rcu4_enter_fentry,
        rcu4_exit_fexit,
        rcu4_enter_kprobe,
        rcu4_exit_kretprobe
    );
}

/// GPL-only helpers (`bpf_probe_read_kernel`, `bpf_get_stack`) need it.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier refuses an endless loop, so a program that
    // kept a panic would not load.
    loop {}
}

#[cfg(not(target_arch = "bpf"))]
fn main() {}
