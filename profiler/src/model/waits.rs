//! What saved CPU time is worth on the wall: a run that waits is not made shorter by
//! all of it.
//!
//! Time in which nothing of the workload runs passes as it did. And a wait that ends
//! at a tick, not so long after it began, takes up what was saved before it: grace
//! periods of RCU and timers of the timer wheel end when the tick finds them due.

use serde::{Deserialize, Serialize};

use super::report::{Estimate, Report};
use crate::kernel::CpuList;
use crate::recording::{Evidence, Recording, Target};

/// What is neither run nor saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// The fraction of the wall time in which nothing of the workload ran, or could
    /// have, had there been a CPU.
    pub share: f64,
    /// Of that, the fraction that ended at ticks: blocked for RCU, or by timers of
    /// the timer wheel (the latter are known to `--ledger` only).
    pub to_ticks: f64,
}

/// Less is not told from the start and the end of a run.
const LEAST: f64 = 0.02;
/// The jiffy where HZ is not known: of HZ=250.
const JIFFY_NS: f64 = 4e6;

/// The part of saved CPU time from which on ticks take up most of it.
const MOSTLY: f64 = 0.8;

/// What becomes of saved CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Passed {
    waits: Waits,
    /// The part of saved CPU time that ticks take up.
    absorbed: f64,
}

/// Turns gains of CPU time into gains of the run's time.
pub(super) fn apply(report: &mut Report, recording: &Recording) {
    let passed = passed(report, recording);
    for option in &mut report.options {
        option.cpu_gain = option.gain_if_off;
        let Some(passed) = passed else { continue };
        let gain = match (option.gain_if_off, option.cpu_share) {
            (Some(gain), _) => Some(gain),
            // Where ticks take up what is saved it hardly matters how much that is.
            (None, Some(share)) if option.calls.is_some() && passed.absorbed > MOSTLY => {
                option.no_gain = None;
                Some(at_most(&share))
            }
            _ => None,
        };
        option.gain_if_off = gain.map(|gain| passed.on_the_wall(&gain));
    }
    report.run.waits = passed.map(|passed| passed.waits);
}

/// What an option takes by its samples alone, which see half of it at the least where
/// a timer takes them.
fn at_most(share: &Estimate) -> Estimate {
    Estimate {
        low: 0.0,
        high: (2.0 * share.high).min(1.0),
        ..*share
    }
}

impl Passed {
    fn on_the_wall(self, gain: &Estimate) -> Estimate {
        let ran = 1.0 - self.waits.share;
        let kept = ran * (1.0 - self.absorbed);
        Estimate {
            value: gain.value * kept,
            // What else the waits depend on is not known: as much may be taken up as
            // there are of them.
            low: gain.low * kept * ran,
            high: gain.high * ran,
            evidence: Evidence::Derived,
        }
    }
}

/// `None` where it is not a command's run that was measured, all of it and whole.
fn passed(report: &Report, recording: &Recording) -> Option<Passed> {
    if recording.header.target != Target::Command || !recording.complete {
        return None;
    }
    let cpus = report.sampling_cpus()?;
    let kept = recording.samples.len() as f64;
    let idle = recording.trailer.idle_samples as f64;
    let target = report.sampling.samples as f64;
    let scale = cpus / (kept + idle);
    if !scale.is_finite() || target == 0.0 {
        return None;
    }
    // In CPUs. Others keep the workload from running where no CPU is idle.
    let others = (kept - target) * scale;
    let none_idle = (1.0 - idle * scale).max(0.0);
    let share = (1.0 - target * scale - others * none_idle).max(0.0);
    if share < LEAST {
        return None;
    }
    let wall_ns = report.run.wall_s * 1e9;
    let (mut count, mut blocked_ns) = (0.0, 0.0);
    for event in report.rcu.iter().flatten() {
        count += event.count as f64;
        blocked_ns += event.total_ns as f64;
    }
    if let Some(timers) = &report.timers {
        count += timers.rounded_waits as f64;
        blocked_ns += timers.waited_ns as f64;
    }
    let to_ticks = (blocked_ns / (share * wall_ns)).clamp(0.0, 1.0);
    let jiffy = report.kernel.hz.map_or(JIFFY_NS, |hz| 1e9 / f64::from(hz));
    // What runs from one such wait to the next. When that is longer than a jiffy, its
    // end meets the ticks anywhere, and what is saved is saved on average.
    let between = (1.0 - share) * wall_ns / count;
    let absorbed = if count > 0.0 {
        to_ticks * (jiffy / between).min(1.0)
    } else {
        0.0
    };
    Some(Passed {
        waits: Waits { share, to_ticks },
        absorbed,
    })
}

impl Report {
    /// How many CPUs were watched, when that was all of them.
    fn sampling_cpus(&self) -> Option<f64> {
        let watched = self.coverage.cpus.parse::<CpuList>().ok()?.len();
        (watched as u64 >= u64::from(self.machine.online_cpus)).then_some(watched as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::report::Rcu;
    use crate::recording::{Sample, Trailer};

    /// A second on one CPU with so many samples of the target, of others and of nobody.
    fn run(target: u64, others: u64, idle: u64) -> (Report, Recording) {
        let mut report = Report::default();
        report.run.wall_s = 1.0;
        report.sampling.samples = target;
        report.coverage.cpus = "0".to_owned();
        report.machine.online_cpus = 1;
        report.kernel.hz = Some(250);
        let recording = Recording {
            complete: true,
            samples: (0..target + others).map(|_| Sample::default()).collect(),
            trailer: Trailer {
                idle_samples: idle,
                ..Trailer::default()
            },
            ..Recording::default()
        };
        (report, recording)
    }

    const GAIN: Estimate = Estimate {
        value: 0.1,
        low: 0.08,
        high: 0.12,
        evidence: Evidence::Derived,
    };

    #[test]
    fn a_run_that_never_waits_saves_what_it_saves_of_cpu_time() {
        for (target, others) in [(1_000, 0), (995, 0), (400, 600)] {
            let (report, recording) = run(target, others, 1_000 - target - others);
            assert_eq!(passed(&report, &recording), None, "{target} {others}");
        }
        // What is measured beside a command is no run.
        let (report, mut recording) = run(100, 0, 900);
        recording.header.target = Target::Machine;
        assert_eq!(passed(&report, &recording), None);
    }

    #[test]
    fn waiting_is_not_made_shorter() {
        let (mut report, recording) = run(250, 50, 700);
        report.options = vec![crate::model::report::OptionReport {
            gain_if_off: Some(GAIN),
            ..Default::default()
        }];
        apply(&mut report, &recording);
        let waits = report.run.waits.unwrap();
        // Others held the CPU for 50 ms, and for 30 % of that none was idle.
        assert!((waits.share - 0.735).abs() < 1e-9, "{waits:?}");
        let option = &report.options[0];
        assert_eq!(option.cpu_gain, Some(GAIN));
        let gain = option.gain_if_off.unwrap();
        assert!((gain.value - 0.0265).abs() < 1e-9, "{gain:?}");
        assert!(gain.low < gain.value && (gain.high - 0.0318).abs() < 1e-9);
    }

    #[test]
    fn where_ticks_take_up_what_is_saved_samples_are_enough() {
        let (mut report, recording) = run(100, 0, 900);
        let option = crate::model::report::OptionReport {
            cpu_share: Some(GAIN),
            calls: Some(Default::default()),
            no_gain: Some("too few".to_owned()),
            ..Default::default()
        };
        report.options = vec![option.clone()];
        apply(&mut report, &recording);
        assert_eq!(report.options[0], option);
        report.rcu = Some(vec![Rcu {
            count: 100,
            total_ns: 900_000_000,
            ..Rcu::default()
        }]);
        apply(&mut report, &recording);
        let option = &report.options[0];
        let gain = option.gain_if_off.unwrap();
        assert_eq!((gain.value, gain.low), (0.0, 0.0));
        assert!((gain.high - 0.024).abs() < 1e-9, "{gain:?}");
        assert_eq!((&option.cpu_gain, &option.no_gain), (&None, &None));
    }

    #[test]
    fn waits_that_end_at_ticks_take_up_what_is_saved() {
        let blocked = |count| Rcu {
            count,
            total_ns: 900_000_000,
            ..Rcu::default()
        };
        let (mut report, recording) = run(100, 0, 900);
        // 1 ms of work before each of them.
        report.rcu = Some(vec![blocked(100)]);
        let many = passed(&report, &recording).unwrap();
        assert!((many.absorbed - 1.0).abs() < 1e-9, "{many:?}");
        assert_eq!(many.on_the_wall(&GAIN).value, 0.0);
        assert!(many.on_the_wall(&GAIN).high > 0.0);
        // 50 ms before each.
        report.rcu = Some(vec![blocked(2)]);
        let few = passed(&report, &recording).unwrap();
        assert!((few.absorbed - 0.08).abs() < 1e-9, "{few:?}");
    }
}
