//! Why a task that could have gone on left its CPU: concluded from its kernel
//! stack at the switch.

/// The task called sched_yield, or the kernel yielded for it.
pub const YIELD: &str = "yield";
/// A preemption point: `cond_resched` and its kin.
pub const PREEMPTION_POINT: &str = "preemption point";
/// The task itself woke another one, and was preempted when it allowed it.
pub const WAKING: &str = "while waking";
/// A lock was dropped or preemption allowed, after something else had asked for
/// the CPU.
pub const PREEMPT_ENABLE: &str = "preemption allowed";
/// The return of a timer interrupt to the kernel: the tick, or a timer that woke
/// somebody.
pub const TIMER_INTERRUPT: &str = "timer interrupt";
/// The return of the interrupt by which another CPU woke somebody.
pub const WAKE_INTERRUPT: &str = "wake-up by another CPU";
/// The return of any other interrupt to the kernel.
pub const INTERRUPT: &str = "interrupt";
/// On the way to user mode, out of a timer interrupt.
pub const USER_TIMER: &str = "return to user mode, timer interrupt";
/// On the way to user mode, out of the interrupt by which another CPU woke
/// somebody.
pub const USER_WAKE: &str = "return to user mode, wake-up by another CPU";
/// On the way to user mode, out of a system call, an exception or any other
/// interrupt.
pub const USER: &str = "return to user mode";
/// It went to sleep and was woken before it had: nobody took the CPU from it.
pub const WOKEN_MEANWHILE: &str = "woken while going to sleep";
/// With the whole machine as the target: the idle task gave way.
pub const IDLE: &str = "the idle task gave way";
/// The stack does not say.
pub const UNKNOWN: &str = "unknown";

/// Whether a cause is somebody's taking the CPU away.
pub fn is_preemption(cause: &str) -> bool {
    !matches!(cause, YIELD | WOKEN_MEANWHILE | IDLE)
}

/// The cause, from the names on the stack, innermost first.
pub fn cause<'a>(names: impl IntoIterator<Item = &'a str>) -> &'static str {
    let names: Vec<&str> = names.into_iter().collect();
    // What stands before `__schedule` belongs to the tracer.
    let from = names
        .iter()
        .position(|name| base(name) == "__schedule")
        .map_or(0, |position| position + 1);
    let stack = &names[from..];
    let has = |what: &[&str]| stack.iter().any(|name| what.contains(&base(name)));
    let begins = |what: &str| stack.iter().any(|name| base(name).starts_with(what));
    let timer = || {
        begins("asm_sysvec_apic_timer")
            || begins("asm_sysvec_hyperv_stimer")
            || begins("asm_sysvec_xen_hvm")
            || begins("arch_timer_handler")
    };
    let reschedule = || {
        begins("asm_sysvec_reschedule_ipi")
            || begins("scheduler_ipi")
            || begins("asm_sysvec_call_function")
    };
    if begins("do_sched_yield") || begins("__do_sys_sched_yield") || has(&["yield", "yield_to"]) {
        return YIELD;
    }
    if begins("__cond_resched") || begins("dynamic_cond_resched") || has(&["_cond_resched"]) {
        return PREEMPTION_POINT;
    }
    // The first of these on the way out decides: an interrupted task may itself
    // be on its way to user mode.
    for (at, name) in stack.iter().enumerate() {
        let name = base(name);
        if name == "preempt_schedule_irq"
            || name == "irqentry_exit_cond_resched"
            || name == "raw_irqentry_exit_cond_resched"
            || name == "arm64_preempt_schedule_irq"
        {
            return if timer() {
                TIMER_INTERRUPT
            } else if reschedule() {
                WAKE_INTERRUPT
            } else {
                INTERRUPT
            };
        }
        if name.starts_with("exit_to_user_mode")
            || name.starts_with("prepare_exit_to_usermode")
            || name.starts_with("irqentry_exit")
            || name.starts_with("syscall_exit_to_user_mode")
            || name.starts_with("do_notify_resume")
        {
            return if timer() {
                USER_TIMER
            } else if reschedule() {
                USER_WAKE
            } else {
                USER
            };
        }
        if name.starts_with("preempt_schedule") {
            let waking = stack[at..].iter().any(|name| {
                let name = base(name);
                name.contains("wake_up") || name == "try_to_wake_up" || name == "wake_q_add"
            });
            return if waking { WAKING } else { PREEMPT_ENABLE };
        }
        if name == "schedule"
            || name == "schedule_rtlock"
            || name == "schedule_idle"
            || name == "schedule_preempt_disabled"
        {
            // Its caller decides; it is a way to sleep when it is none of those
            // above.
            match stack.get(at + 1).map(|next| base(next)) {
                Some(next)
                    if next.starts_with("exit_to_user_mode")
                        || next.starts_with("irqentry_exit")
                        || next.starts_with("syscall_exit")
                        || next.starts_with("prepare_exit")
                        || next.starts_with("do_notify_resume")
                        || next.starts_with("preempt_schedule") => {}
                // Inlined into the entry code.
                Some(
                    "do_syscall_64"
                    | "ret_from_fork"
                    | "entry_SYSCALL_64_after_hwframe"
                    | "el0_svc"
                    | "do_syscall_x64",
                ) => return USER,
                Some(next) if next.starts_with("asm_") || next.starts_with("sysvec_") => {
                    return if timer() {
                        USER_TIMER
                    } else if reschedule() {
                        USER_WAKE
                    } else {
                        USER
                    };
                }
                Some(_) => return WOKEN_MEANWHILE,
                None => return UNKNOWN,
            }
        }
    }
    UNKNOWN
}

/// A symbol without what the compiler added.
fn base(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn stacks_of_real_kernels_name_their_cause() {
        for (stack, expected) in [
            // 6.1, what stands before __schedule is the tracer's.
            (
                "bpf_prog_x bpf_trace_run4 __traceiter_sched_switch __schedule schedule \
              exit_to_user_mode_prepare irqentry_exit_to_user_mode asm_sysvec_apic_timer_interrupt",
                USER_TIMER,
            ),
            (
                "__schedule schedule exit_to_user_mode_prepare syscall_exit_to_user_mode do_syscall_64",
                USER,
            ),
            (
                "__schedule preempt_schedule_irq irqentry_exit asm_sysvec_reschedule_ipi copy_page",
                WAKE_INTERRUPT,
            ),
            (
                "__schedule preempt_schedule_irq raw_irqentry_exit_cond_resched irqentry_exit \
              asm_sysvec_apic_timer_interrupt clear_page_erms",
                TIMER_INTERRUPT,
            ),
            (
                "__schedule preempt_schedule_common __cond_resched mutex_lock",
                PREEMPTION_POINT,
            ),
            (
                "__schedule __cond_resched.part.0 vfs_write",
                PREEMPTION_POINT,
            ),
            (
                "__schedule preempt_schedule preempt_schedule_thunk __wake_up_sync_key pipe_write",
                WAKING,
            ),
            (
                "__schedule preempt_schedule preempt_schedule_thunk _raw_spin_unlock vfs_read",
                PREEMPT_ENABLE,
            ),
            (
                "__schedule schedule do_sched_yield __x64_sys_sched_yield do_syscall_64",
                YIELD,
            ),
            ("__schedule schedule pipe_read vfs_read", WOKEN_MEANWHILE),
            (
                "__schedule schedule schedule_timeout unix_stream_read",
                WOKEN_MEANWHILE,
            ),
            // 7.3 has all of it in one function.
            (
                "__traceiter_sched_switch __schedule schedule irqentry_exit asm_exc_page_fault",
                USER,
            ),
            ("__schedule schedule", UNKNOWN),
            ("", UNKNOWN),
        ] {
            assert_eq!(cause(stack.split_whitespace()), expected, "{stack}");
        }
        assert!(is_preemption(USER) && !is_preemption(YIELD));
    }

    proptest! {
        #[test]
        fn any_stack_has_a_cause(names in proptest::collection::vec("\\PC{0,20}", 0..20)) {
            prop_assert!(!cause(names.iter().map(String::as_str)).is_empty());
        }
    }
}
