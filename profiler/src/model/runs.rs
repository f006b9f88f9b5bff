//! What repeated runs say of the benchmark's own result.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::WALL_TIME;
use crate::recording::{Metric, RunRecord, Trailer};
use crate::stats;

/// The benchmark's own result, or else the time it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunMetric {
    /// e.g. `total time`; `wall time` is from the workload's start to its end.
    pub name: String,
    /// The value, of several profiled runs the arithmetic mean, in `unit`.
    pub value: f64,
    /// e.g. `s`.
    pub unit: String,
    /// `lower` or `higher`.
    pub better: String,
    /// Lower bound of the mean's 95 % interval, by Student's t; absent for one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Profiled runs behind it; absent for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<usize>,
}

/// What being profiled does to the metric, from runs in pairs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfilerEffect {
    /// (profiled - unprofiled) / unprofiled: the geometric mean over the pairs.
    pub change: f64,
    /// Lower bound of its 95 % interval, by Student's t over the pairs' logarithms;
    /// absent for one pair.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Pairs behind it.
    pub pairs: usize,
    /// Mean of the metric over the unprofiled runs, in its unit.
    pub unprofiled: f64,
}

/// The metric at one point of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointMetric {
    /// The values of its parameters.
    pub point: BTreeMap<String, String>,
    /// The metric of its runs.
    pub metric: RunMetric,
    /// What being profiled did to it; absent without unprofiled runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profiler_effect: Option<ProfilerEffect>,
}

/// The values of one metric over the runs of a recording.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements {
    /// The metric; its value is the mean of the profiled runs.
    pub metric: Metric,
    /// Of the profiled runs, in order.
    pub profiled: Vec<f64>,
    /// Of the unprofiled ones, in order.
    pub unprofiled: Vec<f64>,
}

/// The metric of the runs at one point of a sweep; of a recording without one,
/// the point without parameters. Failed runs are left out while others are not.
/// The wall time stands for a metric that not all runs have. `None` when nothing
/// was started, or no run was profiled.
pub fn measurements(trailer: &Trailer, point: &BTreeMap<String, String>) -> Option<Measurements> {
    let alone;
    let runs: &[RunRecord] = if trailer.runs.is_empty() {
        alone = [RunRecord {
            profiled: true,
            wall_s: trailer.run.wall_s,
            exit_code: trailer.run.exit_code?,
            metric: trailer.run.metric.clone(),
            ..RunRecord::default()
        }];
        &alone
    } else {
        &trailer.runs
    };
    let here: Vec<&RunRecord> = runs.iter().filter(|run| run.point == *point).collect();
    let sound = |run: &&RunRecord| run.exit_code == 0;
    let kept: Vec<&RunRecord> = if here.iter().any(|run| sound(run) && run.profiled) {
        here.into_iter().filter(sound).collect()
    } else {
        here
    };
    let first = kept.first()?.metric.as_ref();
    let same = |run: &&RunRecord| {
        run.metric.as_ref().is_some_and(|metric| {
            metric.value.is_finite()
                && first
                    .is_some_and(|first| (&first.name, &first.unit) == (&metric.name, &metric.unit))
        })
    };
    let by_clock = !kept.iter().all(same);
    let value = |run: &RunRecord| match &run.metric {
        Some(metric) if !by_clock => metric.value,
        _ => run.wall_s,
    };
    let values = |profiled: bool| -> Vec<f64> {
        kept.iter()
            .filter(|run| run.profiled == profiled)
            .map(|run| value(run))
            .collect()
    };
    let profiled = values(true);
    let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    if profiled.is_empty() || !finite(&profiled) || !finite(&values(false)) {
        return None;
    }
    let metric = match first {
        Some(metric) if !by_clock => metric.clone(),
        _ => Metric {
            name: WALL_TIME.to_owned(),
            unit: "s".to_owned(),
            better: "lower".to_owned(),
            ..Metric::default()
        },
    };
    Some(Measurements {
        metric: Metric {
            value: stats::mean(&profiled),
            ..metric
        },
        unprofiled: values(false),
        profiled,
    })
}

/// The points of a recording's sweep, in order; one without parameters when there
/// was no sweep.
pub fn points(trailer: &Trailer) -> Vec<BTreeMap<String, String>> {
    let mut points: Vec<BTreeMap<String, String>> = Vec::new();
    for run in &trailer.runs {
        if !points.contains(&run.point) {
            points.push(run.point.clone());
        }
    }
    if points.is_empty() {
        points.push(BTreeMap::new());
    }
    points
}

/// The metric at each point of a sweep; empty without one.
pub(super) fn point_metrics(trailer: &Trailer) -> Vec<PointMetric> {
    let points = points(trailer);
    let points = points.into_iter().filter(|point| !point.is_empty());
    points
        .filter_map(|point| {
            let measured = measurements(trailer, &point)?;
            Some(PointMetric {
                metric: measured.metric(),
                profiler_effect: profiler_effect(std::slice::from_ref(&measured)),
                point,
            })
        })
        .collect()
}

impl Measurements {
    /// As a report shows it.
    pub fn metric(&self) -> RunMetric {
        let Metric {
            name,
            value,
            unit,
            better,
        } = self.metric.clone();
        let interval = stats::mean_interval(&self.profiled);
        RunMetric {
            name,
            value,
            unit,
            better,
            low: interval.map(|interval| interval.0),
            high: interval.map(|interval| interval.1),
            runs: (self.profiled.len() > 1).then_some(self.profiled.len()),
        }
    }

    /// The logarithms of profiled / unprofiled, a pair each.
    fn ratios(&self) -> Vec<f64> {
        self.profiled
            .iter()
            .zip(&self.unprofiled)
            .filter(|(profiled, unprofiled)| **profiled > 0.0 && **unprofiled > 0.0)
            .map(|(profiled, unprofiled)| (profiled / unprofiled).ln())
            .collect()
    }
}

/// What being profiled does to the metric, over all points. `None` without pairs.
pub fn profiler_effect(all: &[Measurements]) -> Option<ProfilerEffect> {
    let ratios: Vec<f64> = all.iter().flat_map(Measurements::ratios).collect();
    if ratios.is_empty() {
        return None;
    }
    let unprofiled: Vec<f64> = all.iter().flat_map(|of| of.unprofiled.clone()).collect();
    let interval = stats::mean_interval(&ratios);
    Some(ProfilerEffect {
        change: stats::mean(&ratios).exp_m1(),
        low: interval.map(|interval| interval.0.exp_m1()),
        high: interval.map(|interval| interval.1.exp_m1()),
        pairs: ratios.len(),
        unprofiled: stats::mean(&unprofiled),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(profiled: bool, value: Option<f64>, exit_code: i32) -> RunRecord {
        RunRecord {
            profiled,
            wall_s: 9.0,
            exit_code,
            metric: value.map(|value| Metric {
                name: "tps".into(),
                value,
                unit: "1/s".into(),
                better: "higher".into(),
            }),
            ..RunRecord::default()
        }
    }

    fn of(runs: Vec<RunRecord>) -> Option<Measurements> {
        let trailer = Trailer {
            runs,
            ..Trailer::default()
        };
        measurements(&trailer, &BTreeMap::new())
    }

    #[test]
    fn the_metric_is_the_mean_of_the_profiled_runs() {
        let found = of(vec![
            run(false, Some(100.0), 0),
            run(true, Some(90.0), 0),
            run(true, Some(98.0), 0),
            run(false, Some(100.0), 0),
        ])
        .unwrap();
        let metric = found.metric();
        assert_eq!((metric.name.as_str(), metric.value), ("tps", 94.0));
        assert_eq!(metric.runs, Some(2));
        let (low, high) = (metric.low.unwrap(), metric.high.unwrap());
        assert!(low < 90.0 && 98.0 < high && (low + high - 188.0).abs() < 1e-9);
        let effect = profiler_effect(&[found]).unwrap();
        assert!((effect.change - ((0.9_f64 * 0.98).sqrt() - 1.0)).abs() < 1e-12);
        assert!(effect.low.unwrap() < effect.change && effect.change < effect.high.unwrap());
        assert_eq!((effect.pairs, effect.unprofiled), (2, 100.0));
    }

    #[test]
    fn the_clock_tells_when_not_all_runs_have_a_metric() {
        let found = of(vec![run(true, Some(1.0), 0), run(true, None, 0)]).unwrap();
        assert_eq!(found.metric().name, WALL_TIME);
        assert_eq!(found.profiled, [9.0, 9.0]);
        assert_eq!(profiler_effect(&[found]), None);
    }

    #[test]
    fn failed_runs_are_left_out_unless_all_are() {
        let found = of(vec![run(true, Some(1.0), 0), run(true, None, 1)]).unwrap();
        assert_eq!(found.profiled, [1.0]);
        let found = of(vec![run(true, Some(1.0), 124), run(true, Some(3.0), 124)]).unwrap();
        assert_eq!(found.metric().value, 2.0);
        assert_eq!(of(vec![run(false, Some(1.0), 0)]), None);
    }

    #[test]
    fn one_run_has_its_own_result() {
        let mut trailer = Trailer::default();
        assert_eq!(measurements(&trailer, &BTreeMap::new()), None);
        trailer.run.exit_code = Some(0);
        trailer.run.wall_s = 2.0;
        let metric = measurements(&trailer, &BTreeMap::new()).unwrap().metric();
        assert_eq!((metric.name.as_str(), metric.value), (WALL_TIME, 2.0));
        assert_eq!((metric.low, metric.runs), (None, None));
    }
}
