//! The part of a recording that belongs to one point of its sweep.

use std::collections::BTreeMap;

use crate::recording::{Recording, SwitchCounts};

/// A recording of the runs at `point` alone. What is only known of all runs
/// together, losses and own cost, stays as it is.
pub(super) fn at_point(recording: &Recording, point: &BTreeMap<String, String>) -> Recording {
    let mut part = recording.clone();
    let trailer = &mut part.trailer;
    trailer.runs.retain(|run| run.point == *point);
    let spans: Vec<(u64, u64)> = trailer
        .runs
        .iter()
        .filter(|run| run.profiled)
        .map(|run| (run.start_ns, run.end_ns))
        .collect();
    // Calls are counted over all points together.
    trailer.counting = None;
    let inside = |time_ns: u64| {
        spans
            .iter()
            .any(|(start, end)| (*start..=*end).contains(&time_ns))
    };
    trailer.run.wall_s = profiled(recording, point).map(|run| run.wall_s).sum();
    trailer.run.exit_code = trailer
        .runs
        .iter()
        .map(|run| run.exit_code)
        .find(|status| *status != 0)
        .or(trailer.runs.first().map(|run| run.exit_code));
    trailer.switches = profiled(recording, point).map(|run| run.switches).try_fold(
        SwitchCounts::default(),
        |sum, counts| {
            let counts = counts?;
            Some(SwitchCounts {
                voluntary: sum.voluntary.saturating_add(counts.voluntary),
                preempted: sum.preempted.saturating_add(counts.preempted),
            })
        },
    );
    part.samples.retain(|sample| inside(sample.time_ns));
    part.rcu.retain(|event| inside(event.time_ns));
    part.epochs.clear();
    part
}

fn profiled<'r>(
    recording: &'r Recording,
    point: &'r BTreeMap<String, String>,
) -> impl Iterator<Item = &'r crate::recording::RunRecord> {
    let runs = recording.trailer.runs.iter();
    runs.filter(move |run| run.profiled && run.point == *point)
}
