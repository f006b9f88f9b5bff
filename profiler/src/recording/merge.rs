//! Several runs as one recording.

use std::collections::BTreeMap;

use super::{Gap, Loss, Overhead, SwitchCounts, TaskSwitches, Trailer};
use crate::probes::ProbeStatus;

/// Tasks told apart over all runs; the rest is added up under [`OTHERS`].
const TASKS: usize = 1 << 16;
/// What tasks beyond the limit are added up under.
const OTHERS: &str = "[others]";
/// The leg of a measurement that has none.
const NO_LEG: &str = "none";

impl Trailer {
    /// This run as the first of several, having begun `start_ns` after the
    /// recording did.
    #[must_use]
    pub fn started_at(mut self, start_ns: u64) -> Self {
        self.gaps = shift(self.gaps, start_ns);
        self
    }

    /// Adds a later run, which began `start_ns` after the recording did. What was
    /// counted is summed; a total that one of the runs does not know is not known
    /// of them together. `run.exit_code` is the first that is not 0.
    pub fn append(&mut self, next: Self, start_ns: u64) {
        // Named one by one, so that a field that is added cannot be forgotten.
        let Self {
            run,
            probes,
            machine,
            switches,
            other_switches,
            task_switches,
            ledger,
            idle_samples,
            losses,
            gaps,
            overhead,
            counting,
            warnings,
            runs,
        } = next;
        let walls = (self.run.wall_s, run.wall_s);
        self.run.wall_s += run.wall_s;
        self.run.exit_code = match (self.run.exit_code, run.exit_code) {
            (Some(0) | None, next) => next,
            (before, _) => before,
        };
        self.run.metric = run.metric.or(self.run.metric.take());
        append_probes(&mut self.probes, probes);
        let steal = mean(self.machine.steal, machine.steal, walls);
        self.machine = machine;
        self.machine.steal = steal;
        self.switches = sum(self.switches, switches);
        self.other_switches = sum(self.other_switches, other_switches);
        append_tasks(&mut self.task_switches, task_switches);
        self.ledger = match (self.ledger.take(), ledger) {
            (Some(mut before), Some(next)) => {
                before.append(next, start_ns);
                Some(before)
            }
            // Of half of the runs it would be of nothing.
            _ => None,
        };
        self.idle_samples = self.idle_samples.saturating_add(idle_samples);
        append_losses(&mut self.losses, losses);
        self.gaps.extend(shift(gaps, start_ns));
        append_overhead(&mut self.overhead, overhead, walls);
        match (&mut self.counting, counting) {
            (Some(before), Some(next)) => before.append(next),
            (before @ None, next) => *before = next,
            _ => {}
        }
        for warning in warnings {
            if !self.warnings.contains(&warning) {
                self.warnings.push(warning);
            }
        }
        self.runs.extend(runs);
    }
}

fn shift(gaps: Vec<Gap>, by_ns: u64) -> Vec<Gap> {
    gaps.into_iter()
        .map(|gap| Gap {
            from_ns: gap.from_ns.saturating_add(by_ns),
            to_ns: gap.to_ns.saturating_add(by_ns),
            ..gap
        })
        .collect()
}

/// The mean of two fractions of time, weighted by that time.
fn mean(before: Option<f64>, next: Option<f64>, walls: (f64, f64)) -> Option<f64> {
    let total = walls.0 + walls.1;
    match (before, next) {
        (Some(before), Some(next)) if total > 0.0 => {
            Some((before * walls.0 + next * walls.1) / total)
        }
        (before, next) => next.or(before),
    }
}

fn sum(before: Option<SwitchCounts>, next: Option<SwitchCounts>) -> Option<SwitchCounts> {
    let (before, next) = before.zip(next)?;
    Some(SwitchCounts {
        voluntary: before.voluntary.saturating_add(next.voluntary),
        preempted: before.preempted.saturating_add(next.preempted),
    })
}

/// A measurement that was worse off in a later run is shown as it was there.
fn append_probes(before: &mut Vec<ProbeStatus>, next: Vec<ProbeStatus>) {
    for row in next {
        match before.iter_mut().find(|known| known.wanted == row.wanted) {
            Some(known) if row.leg == NO_LEG && known.leg != NO_LEG => *known = row,
            Some(_) => {}
            None => before.push(row),
        }
    }
}

fn append_tasks(before: &mut Vec<TaskSwitches>, next: Vec<TaskSwitches>) {
    let mut by_task: BTreeMap<(u32, String), SwitchCounts> = BTreeMap::new();
    for task in before.drain(..).chain(next) {
        let counts = by_task.entry((task.pid, task.comm)).or_default();
        counts.voluntary = counts.voluntary.saturating_add(task.counts.voluntary);
        counts.preempted = counts.preempted.saturating_add(task.counts.preempted);
    }
    let mut tasks: Vec<TaskSwitches> = by_task
        .into_iter()
        .map(|((pid, comm), counts)| TaskSwitches { pid, comm, counts })
        .collect();
    sort(&mut tasks);
    if tasks.len() > TASKS {
        let rest = tasks.split_off(TASKS - 1);
        let counts = rest
            .iter()
            .map(|task| Some(task.counts))
            .fold(Some(SwitchCounts::default()), sum);
        tasks.push(TaskSwitches {
            pid: 0,
            comm: OTHERS.to_owned(),
            counts: counts.unwrap_or_default(),
        });
        sort(&mut tasks);
    }
    *before = tasks;
}

/// Most switches first, as of one run.
fn sort(tasks: &mut [TaskSwitches]) {
    tasks.sort_by(|a, b| {
        let total =
            |task: &TaskSwitches| task.counts.voluntary.saturating_add(task.counts.preempted);
        total(b)
            .cmp(&total(a))
            .then_with(|| (a.pid, &a.comm).cmp(&(b.pid, &b.comm)))
    });
}

fn append_losses(before: &mut Vec<Loss>, next: Vec<Loss>) {
    for loss in next {
        let known = before
            .iter_mut()
            .find(|known| known.cpu == loss.cpu && known.reason == loss.reason);
        match known {
            Some(known) => known.count = known.count.saturating_add(loss.count),
            None => before.push(loss),
        }
    }
}

fn append_overhead(before: &mut Overhead, next: Overhead, walls: (f64, f64)) {
    let Overhead {
        bpf_ns,
        probe_ns,
        user_ns,
        setup_ns,
        share,
        bpf_source,
        bpf_stats_ns,
        probe_source,
        per_switch_ns,
    } = next;
    before.bpf_ns = before.bpf_ns.saturating_add(bpf_ns);
    before.probe_ns = before.probe_ns.saturating_add(probe_ns);
    before.user_ns = before.user_ns.saturating_add(user_ns);
    before.setup_ns = before.setup_ns.saturating_add(setup_ns);
    before.share = mean(Some(before.share), Some(share), walls).unwrap_or_default();
    before.bpf_stats_ns = before
        .bpf_stats_ns
        .zip(bpf_stats_ns)
        .map(|(before, next)| before.saturating_add(next));
    before.per_switch_ns =
        (before.per_switch_ns.zip(per_switch_ns)).map(|(before, next)| before.midpoint(next));
    for (before, next) in [
        (&mut before.bpf_source, bpf_source),
        (&mut before.probe_source, probe_source),
    ] {
        if before.is_empty() {
            *before = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recording::{RunInfo, RunRecord};

    fn run(wall_s: f64, exit_code: i32, voluntary: u64) -> Trailer {
        let counts = SwitchCounts {
            voluntary,
            preempted: 1,
        };
        Trailer {
            run: RunInfo {
                wall_s,
                exit_code: Some(exit_code),
                metric: None,
            },
            switches: Some(counts),
            task_switches: vec![TaskSwitches {
                pid: 7,
                comm: "a".into(),
                counts,
            }],
            idle_samples: 10,
            losses: vec![Loss {
                cpu: 0,
                reason: "ring_full".into(),
                count: 2,
            }],
            gaps: vec![Gap {
                cpu: 1,
                from_ns: 5,
                to_ns: 9,
                reason: "the CPU was offline".into(),
            }],
            overhead: Overhead {
                bpf_ns: 100,
                share: wall_s / 100.0,
                bpf_source: "clock".into(),
                ..Overhead::default()
            },
            warnings: vec!["Once is enough.".into()],
            runs: vec![RunRecord::default()],
            ..Trailer::default()
        }
    }

    #[test]
    fn runs_add_up() {
        let mut sum = run(1.0, 0, 5);
        sum.append(run(3.0, 4, 7), 1000);
        sum.append(run(0.0, 5, 0), 9000);
        assert_eq!(sum.run.wall_s, 4.0);
        assert_eq!(sum.run.exit_code, Some(4), "the first that failed");
        let counts = SwitchCounts {
            voluntary: 12,
            preempted: 3,
        };
        assert_eq!(sum.switches, Some(counts));
        assert_eq!(sum.task_switches.len(), 1);
        assert_eq!(sum.task_switches[0].counts, counts);
        assert_eq!(sum.idle_samples, 30);
        assert_eq!(sum.losses.len(), 1);
        assert_eq!(sum.losses[0].count, 6);
        let gaps: Vec<(u64, u64)> = sum
            .gaps
            .iter()
            .map(|gap| (gap.from_ns, gap.to_ns))
            .collect();
        assert_eq!(gaps, [(5, 9), (1005, 1009), (9005, 9009)]);
        assert_eq!(sum.overhead.bpf_ns, 300);
        assert!((sum.overhead.share - (0.01 + 3.0 * 0.03) / 4.0).abs() < 1e-12);
        assert_eq!(sum.warnings.len(), 1);
        assert_eq!(sum.runs.len(), 3);
    }

    #[test]
    fn what_one_run_does_not_know_is_not_known_of_all() {
        let mut sum = run(1.0, 0, 5);
        let mut blind = run(1.0, 0, 5);
        blind.switches = None;
        blind.probes = vec![ProbeStatus {
            wanted: "switch".into(),
            leg: "none".into(),
            ..ProbeStatus::default()
        }];
        sum.probes = vec![ProbeStatus {
            wanted: "switch".into(),
            leg: "tp_btf".into(),
            ..ProbeStatus::default()
        }];
        sum.append(blind, 0);
        assert_eq!(sum.switches, None);
        assert_eq!(sum.probes[0].leg, "none");
    }

    #[test]
    fn the_list_of_tasks_stays_bounded_and_whole() {
        let many = |first: u32| Trailer {
            task_switches: (first..first + 50_000)
                .map(|pid| TaskSwitches {
                    pid,
                    comm: "t".into(),
                    counts: SwitchCounts {
                        voluntary: 1,
                        preempted: 0,
                    },
                })
                .collect(),
            ..Trailer::default()
        };
        let mut sum = many(0);
        sum.append(many(50_000), 0);
        assert_eq!(sum.task_switches.len(), TASKS);
        let total: u64 = sum
            .task_switches
            .iter()
            .map(|task| task.counts.voluntary)
            .sum();
        assert_eq!(total, 100_000);
        assert_eq!(sum.task_switches[0].comm, OTHERS);
    }

    proptest! {
        /// The order of adding up does not matter.
        #[test]
        fn appending_is_associative(
            parts in proptest::array::uniform3((0.0..10.0_f64, 0..3_i32, 0..1000_u64)),
        ) {
            let [a, b, c] = parts.map(|(wall, exit, switches)| run(wall, exit, switches));
            let mut left = a.clone();
            left.append(b.clone(), 100);
            left.append(c.clone(), 300);
            let mut rest = b;
            rest.append(c, 200);
            let mut right = a;
            right.append(rest, 100);
            prop_assert!((left.overhead.share - right.overhead.share).abs() < 1e-9);
            right.overhead.share = left.overhead.share;
            prop_assert!((left.run.wall_s - right.run.wall_s).abs() < 1e-9);
            right.run.wall_s = left.run.wall_s;
            prop_assert_eq!(left, right);
        }
    }
}
