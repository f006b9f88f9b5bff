//! The preempt-check family, as rows of the status table. Nothing is attached
//! to it: the check functions take no probe on any kernel in use, and probing
//! preempt_count_add would slow the workload more than all else here. Where their
//! calls are counted, `collect::counting` puts its row in place of these.

use super::ProbeStatus;
use crate::kernel::Kallsyms;

/// What a CONFIG_DEBUG_PREEMPT kernel checks with; noinstr since 5.8
/// (126f21f0e8d4), notrace before.
const CHECKS: [&str; 3] = [
    "__this_cpu_preempt_check",
    "debug_smp_processor_id",
    "check_preemption_disabled",
];

/// The rows `check` and `preempt_count`.
pub(super) fn rows(kallsyms: &Kallsyms) -> [ProbeStatus; 2] {
    let has = |name: &str| kallsyms.contains(name);
    // Names are listed even where addresses are hidden, but then no sample can
    // be told to be in them.
    if kallsyms.is_empty() || kallsyms.hidden() {
        return ["check", "preempt_count"].map(|wanted| ProbeStatus {
            wanted: wanted.to_owned(),
            leg: "none".to_owned(),
            why_not_better: "kernel symbols are hidden".to_owned(),
            fix: "sudo, or sysctl kernel.kptr_restrict=0".to_owned(),
            ..ProbeStatus::default()
        });
    }
    [
        row(
            "check",
            CHECKS.into_iter().any(has),
            "noinstr: takes no probe, and its calls are not counted",
            "CONFIG_DEBUG_PREEMPT is off: there are no checks",
        ),
        row(
            "preempt_count",
            has("preempt_count_add"),
            "too hot for a probe, and its calls are not counted",
            "CONFIG_DEBUG_PREEMPT and CONFIG_TRACE_PREEMPT_TOGGLE are off: preempt_count_add is inlined",
        ),
    ]
}

fn row(wanted: &str, present: bool, sampled: &str, absent: &str) -> ProbeStatus {
    let (leg, why) = if present {
        ("sampled", sampled)
    } else {
        ("none", absent)
    };
    ProbeStatus {
        wanted: wanted.to_owned(),
        leg: leg.to_owned(),
        why_not_better: why.to_owned(),
        fix: String::new(),
        absent: !present,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows_of(symbols: &str) -> [ProbeStatus; 2] {
        rows(&Kallsyms::parse(symbols.as_bytes()))
    }

    #[test]
    fn what_is_there_is_sampled() {
        let [check, count] = rows_of(
            "ffffffff81000000 T schedule\n\
             ffffffff81000100 T debug_smp_processor_id\n\
             ffffffff81000200 T preempt_count_add\n",
        );
        assert_eq!((check.leg.as_str(), check.absent), ("sampled", false));
        assert!(check.why_not_better.starts_with("noinstr: "));
        assert_eq!((count.leg.as_str(), count.absent), ("sampled", false));
        assert!(count.why_not_better.contains("not counted"));
    }

    #[test]
    fn what_is_not_there_is_absent_and_nothing_is_claimed_of_hidden_symbols() {
        for row in rows_of("ffffffff81000000 T schedule\n") {
            assert_eq!((row.leg.as_str(), row.absent), ("none", true));
            assert!(row.why_not_better.starts_with("CONFIG_DEBUG_PREEMPT"));
        }
        for row in rows_of("0000000000000000 T schedule\n") {
            assert_eq!((row.leg.as_str(), row.absent), ("none", false));
            assert_eq!(row.why_not_better, "kernel symbols are hidden");
        }
    }
}
