//! Blocking RCU calls: which leg watches which.

use aya::Ebpf;
use profiler_ebpf::{RCU_FUNCTIONS, RCU_WAITS};

use super::ProbeStatus;
use super::legs::{self, Surroundings};
use super::object::Settings;
use super::offsets::Offsets;
use crate::kernel::Kallsyms;

/// Attaches to the functions that are wanted: rcu_barrier, and for a ledger the
/// others. One row each, by their index in `RCU_FUNCTIONS`; `none` means that the
/// off-CPU leg is left.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    settings: &Settings,
    refusals: &mut Vec<String>,
) -> Vec<ProbeStatus> {
    let wanted = match settings.ledger {
        Some(_) => RCU_FUNCTIONS.len(),
        None => 1,
    };
    (0..wanted)
        .map(|index| legs::attach_rcu(ebpf, around, refusals, index))
        .collect()
}

/// Attaches anew to what was attached in an object that is no more.
pub(super) fn attach_again(rows: &mut [ProbeStatus], ebpf: &mut Ebpf, around: &Surroundings<'_>) {
    for (index, row) in rows.iter_mut().enumerate() {
        if row.leg != "none" {
            // What was refused has been told the first time.
            *row = legs::attach_rcu(ebpf, around, &mut Vec::new(), index);
        }
    }
}

/// The text of each of `RCU_WAITS` that no better leg watches.
pub(super) fn texts(
    rows: &[ProbeStatus],
    kallsyms: &Kallsyms,
) -> [Option<(u64, u64)>; RCU_WAITS.len()] {
    RCU_WAITS.map(|(name, function)| {
        rows.get(function).filter(|row| row.leg == "none")?;
        let text = kallsyms.range(name)?;
        Some((text.start, text.end))
    })
}

/// Fills in the rows of what cannot be attached to.
pub(super) fn off_cpu_legs(
    rows: &mut [ProbeStatus],
    settings: &Settings,
    switch: &ProbeStatus,
    offsets: &Offsets,
) {
    let next_pid = match switch.leg.as_str() {
        "tp_btf" | "raw_tp" => offsets.task_pid,
        "tracepoint" => offsets.switch_next_pid,
        _ => None,
    };
    for (index, row) in rows.iter_mut().enumerate() {
        if row.leg != "none" {
            continue;
        }
        let mut texts = (RCU_WAITS.iter().zip(&settings.rcu_texts))
            .filter(|((_, function), _)| *function == index)
            .map(|(_, text)| text)
            .peekable();
        let why = if texts.peek().is_none() {
            "off-cpu: what it waits in is told as synchronize_srcu".to_owned()
        } else if texts.all(Option::is_none) {
            format!("off-cpu: the address of {} is not known", row.wanted)
        } else if switch.leg == "none" {
            "off-cpu: switches cannot be watched".to_owned()
        } else if next_pid.is_none() {
            "off-cpu: the task that is switched to cannot be told".to_owned()
        } else {
            row.leg = "off-cpu".to_owned();
            continue;
        };
        if !row.why_not_better.is_empty() {
            row.why_not_better.push_str("; ");
        }
        row.why_not_better.push_str(&why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(legs: [&str; RCU_FUNCTIONS.len()]) -> Vec<ProbeStatus> {
        let row = |(wanted, leg): (&str, &str)| ProbeStatus {
            wanted: wanted.to_owned(),
            leg: leg.to_owned(),
            ..ProbeStatus::default()
        };
        RCU_FUNCTIONS.into_iter().zip(legs).map(row).collect()
    }

    fn kallsyms() -> Kallsyms {
        Kallsyms::parse(
            "ffffffff81000000 T rcu_barrier\nffffffff81000100 T synchronize_rcu\n\
             ffffffff81000200 T synchronize_rcu_expedited\n\
             ffffffff81000300 T __synchronize_srcu.part.0\nffffffff81000400 T end\n"
                .as_bytes(),
        )
    }

    #[test]
    fn only_what_no_better_leg_watches_is_watched_off_cpu() {
        let mut rows = rows(["fentry", "none", "none", "none", "none"]);
        let texts = texts(&rows, &kallsyms());
        let text = |start: u64| Some((start, start + 0x100));
        assert_eq!(
            texts,
            [
                None,
                text(0xffff_ffff_8100_0100),
                None,
                None,
                text(0xffff_ffff_8100_0200),
                None,
                text(0xffff_ffff_8100_0300)
            ]
        );
        let settings = Settings {
            rcu_texts: texts,
            ..Settings::smallest()
        };
        let offsets = Offsets {
            task_pid: Some(8),
            ..Offsets::default()
        };
        let switch = ProbeStatus {
            leg: "raw_tp".to_owned(),
            ..ProbeStatus::default()
        };
        let mut unwatched = rows.clone();
        off_cpu_legs(&mut rows, &settings, &switch, &offsets);
        let legs: Vec<&str> = rows.iter().map(|row| row.leg.as_str()).collect();
        assert_eq!(legs, ["fentry", "off-cpu", "off-cpu", "off-cpu", "none"]);
        assert!(rows[4].why_not_better.contains("synchronize_srcu"));

        off_cpu_legs(&mut unwatched, &settings, &switch, &Offsets::default());
        assert_eq!(unwatched[1].leg, "none");
        assert!(unwatched[1].why_not_better.contains("cannot be told"));
    }

    #[test]
    fn without_a_ledger_the_others_are_nobody_s_business() {
        let mut rows = rows(["none"; RCU_FUNCTIONS.len()]);
        rows.truncate(1);
        let texts = texts(&rows, &kallsyms());
        assert!(texts[0].is_some());
        assert!(texts[1..].iter().all(Option::is_none));
    }
}
