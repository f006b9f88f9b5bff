//! The trailer's way into JSON of limited length.

use anyhow::Result;

use super::Trailer;

/// JSON has no infinities; a number that is none is left out, or 0 where one
/// must be.
pub(super) fn make_finite(trailer: &mut Trailer) {
    let mut fixed = false;
    let mut required = |value: &mut f64| {
        if !value.is_finite() {
            *value = 0.0;
            fixed = true;
        }
    };
    required(&mut trailer.run.wall_s);
    required(&mut trailer.overhead.share);
    if trailer
        .run
        .metric
        .as_ref()
        .is_some_and(|metric| !metric.value.is_finite())
    {
        trailer.run.metric = None;
        fixed = true;
    }
    for run in &mut trailer.runs {
        if !run.wall_s.is_finite() {
            run.wall_s = 0.0;
            fixed = true;
        }
        let metric = run.metric.take_if(|metric| !metric.value.is_finite());
        fixed |= metric.is_some();
    }
    for share in [
        &mut trailer.machine.steal,
        &mut trailer.machine.cgroup_cpu_limit,
    ] {
        if share.is_some_and(|value| !value.is_finite()) {
            *share = None;
            fixed = true;
        }
    }
    if fixed {
        let warning = "A number that is not finite was left out of the recording.";
        trailer.warnings.push(warning.to_owned());
    }
}

/// `trailer` as JSON of at most `room` bytes, its lists cut short.
pub(super) fn shorten(mut trailer: Trailer, room: usize) -> Result<Vec<u8>> {
    let warning = "There was no space for the whole end of the recording: its lists are cut short.";
    trailer.warnings.insert(0, warning.to_owned());
    loop {
        let json = serde_json::to_vec(&trailer)?;
        if json.len() <= room {
            return Ok(json);
        }
        let Trailer {
            task_switches,
            ledger,
            gaps,
            warnings,
            losses,
            probes,
            machine,
            runs,
            ..
        } = &mut trailer;
        // The least needed first.
        if !task_switches.is_empty() {
            task_switches.truncate(task_switches.len() / 2);
        } else if ledger.is_some() {
            *ledger = None;
        } else if !gaps.is_empty() {
            gaps.truncate(gaps.len() / 2);
        } else if warnings.len() > 1 {
            warnings.truncate(warnings.len() / 2);
        } else if !losses.is_empty() {
            losses.truncate(losses.len() / 2);
        } else if !probes.is_empty() {
            probes.truncate(probes.len() / 2);
        } else if !runs.is_empty() {
            runs.truncate(runs.len() / 2);
        } else if *machine != Default::default() {
            *machine = Default::default();
        } else {
            return Ok(serde_json::to_vec(&Trailer::default())?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Loss, TaskSwitches};

    #[test]
    fn a_long_trailer_is_cut_to_the_room_there_is() {
        let trailer = Trailer {
            task_switches: vec![TaskSwitches::default(); 10_000],
            losses: vec![Loss {
                cpu: 1,
                reason: "ring_full".into(),
                count: 3,
            }],
            ..Trailer::default()
        };
        let json = shorten(trailer, 4096).unwrap();
        assert!(json.len() <= 4096);
        let back: Trailer = serde_json::from_slice(&json).unwrap();
        assert_eq!(back.losses.len(), 1);
        assert!(!back.task_switches.is_empty());
        assert!(back.warnings[0].contains("cut short"));
    }

    #[test]
    fn numbers_without_a_value_do_not_spoil_the_trailer() {
        let mut trailer = Trailer::default();
        trailer.run.wall_s = f64::NAN;
        trailer.machine.steal = Some(f64::INFINITY);
        make_finite(&mut trailer);
        let json = serde_json::to_vec(&trailer).unwrap();
        let back: Trailer = serde_json::from_slice(&json).unwrap();
        assert_eq!(back.run.wall_s, 0.0);
        assert_eq!(back, trailer);
        assert_eq!(back.warnings.len(), 1);
    }
}
