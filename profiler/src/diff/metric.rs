//! The metric of both sides: means, interval, significance.

use super::document::{MetricDiff, Outlier};
use crate::model::Measurements;
use crate::stats::{self, ALPHA};

/// What decides whether a difference is significant.
const TEST: &str = "mann-whitney";

/// Compares the metric of two sides. `None` when the base's mean is 0.
pub(super) fn compare(base: &Measurements, new: &Measurements) -> Option<MetricDiff> {
    let clean = !base.unprofiled.is_empty() && !new.unprofiled.is_empty();
    let (base_values, new_values) = if clean {
        (&base.unprofiled, &new.unprofiled)
    } else {
        (&base.profiled, &new.profiled)
    };
    let means = (stats::mean(base_values), stats::mean(new_values));
    let change = (means.1 - means.0) / means.0;
    if !change.is_finite() {
        return None;
    }
    let repeated = base_values.len() > 1 && new_values.len() > 1;
    let p = repeated
        .then(|| stats::mann_whitney(base_values, new_values))
        .flatten();
    let welch = stats::welch(base_values, new_values);
    let interval = match welch {
        Some(welch) => Some(welch.change),
        // Neither side varies at all.
        None => repeated.then_some((change, change)),
    };
    Some(MetricDiff {
        name: base.metric.name.clone(),
        unit: base.metric.unit.clone(),
        base: means.0,
        new: means.1,
        change,
        better: base.metric.better.clone(),
        low: interval.map(|interval| interval.0),
        high: interval.map(|interval| interval.1),
        significant: p.is_some_and(|p| p < ALPHA),
        test: if p.is_some() { TEST } else { "none" }.to_owned(),
        p,
        welch_p: welch.map(|welch| welch.p),
        runs: if clean { "unprofiled" } else { "profiled" }.to_owned(),
        outliers: outliers("base", base_values)
            .chain(outliers("new", new_values))
            .collect(),
        base_values: base_values.clone(),
        new_values: new_values.clone(),
    })
}

fn outliers<'v>(side: &'v str, values: &'v [f64]) -> impl Iterator<Item = Outlier> + 'v {
    stats::outliers(values).into_iter().map(move |at| Outlier {
        side: side.to_owned(),
        run: at + 1,
        value: values[at],
    })
}

impl MetricDiff {
    /// The change of the time that a unit of work takes: of a rate, where more is
    /// better, the inverse.
    pub fn time_change(&self) -> f64 {
        self.time_of(self.change)
    }

    /// The interval of the same.
    pub fn time_interval(&self) -> Option<(f64, f64)> {
        let (low, high) = self.low.zip(self.high)?;
        let (a, b) = (self.time_of(low), self.time_of(high));
        Some((a.min(b), a.max(b)))
    }

    fn time_of(&self, change: f64) -> f64 {
        if self.better == "higher" {
            // A rate cannot fall by all of itself or more.
            1.0 / (1.0 + change.max(-0.999_999)) - 1.0
        } else {
            change
        }
    }

    /// By how much the new side is better, as a fraction of the base: negative
    /// when it is worse.
    pub fn improvement(&self) -> f64 {
        let sign = if self.better == "higher" { 1.0 } else { -1.0 };
        // Not -0.
        sign * self.change + 0.0
    }

    /// Whether there are runs enough for any difference to be significant.
    pub fn can_be_significant(&self) -> bool {
        stats::can_differ(self.base_values.len(), self.new_values.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Metric;

    pub(super) fn values(better: &str, values: &[f64]) -> Measurements {
        Measurements {
            metric: Metric {
                name: "time".into(),
                value: stats::mean(values),
                unit: "s".into(),
                better: better.into(),
            },
            profiled: values.to_vec(),
            unprofiled: Vec::new(),
        }
    }

    #[test]
    fn a_difference_has_its_sign_its_interval_and_its_mark() {
        let base = values("lower", &[10.0, 10.1, 9.9, 10.05, 9.95]);
        let new = values("lower", &[9.0, 9.1, 8.9, 9.05, 8.95]);
        let diff = compare(&base, &new).unwrap();
        assert!((diff.change + 0.1).abs() < 1e-9 && (diff.improvement() - 0.1).abs() < 1e-9);
        assert!(diff.low.unwrap() < -0.1 && -0.1 < diff.high.unwrap() && diff.high.unwrap() < 0.0);
        assert!(diff.significant && diff.p.unwrap() < 0.01 && diff.welch_p.unwrap() < 0.001);
        assert_eq!(
            (diff.test.as_str(), diff.runs.as_str()),
            ("mann-whitney", "profiled")
        );
        let rate = compare(&values("higher", &[100.0]), &values("higher", &[125.0])).unwrap();
        assert!((rate.time_change() + 0.2).abs() < 1e-9, "{rate:?}");
        assert!((rate.improvement() - 0.25).abs() < 1e-9);
    }

    #[test]
    fn one_run_claims_nothing() {
        for (base, new) in [(1, 1), (1, 9), (9, 1)] {
            let base: Vec<f64> = (0..base).map(|i| 10.0 + f64::from(i) / 100.0).collect();
            let new: Vec<f64> = (0..new).map(|i| 5.0 + f64::from(i) / 100.0).collect();
            let diff = compare(&values("lower", &base), &values("lower", &new)).unwrap();
            assert!(!diff.significant && diff.test == "none", "{diff:?}");
            assert_eq!((diff.low, diff.high, diff.p), (None, None, None));
        }
        assert_eq!(
            compare(&values("lower", &[0.0]), &values("lower", &[1.0])),
            None
        );
    }

    #[test]
    fn runs_that_nothing_was_attached_to_are_compared_where_both_have_them() {
        let mut base = values("lower", &[11.0, 11.0]);
        let mut new = values("lower", &[12.0, 12.0]);
        base.unprofiled = vec![10.0, 10.0];
        assert_eq!(compare(&base, &new).unwrap().base, 11.0);
        new.unprofiled = vec![10.0, 10.0];
        let diff = compare(&base, &new).unwrap();
        assert_eq!(
            (diff.base, diff.change, diff.runs.as_str()),
            (10.0, 0.0, "unprofiled")
        );
        assert_eq!((diff.low, diff.high), (Some(0.0), Some(0.0)));
        assert!(!diff.significant);
    }

    #[test]
    fn what_is_far_off_is_named_and_counts() {
        let base = values("lower", &[10.0, 10.1, 9.9, 10.05, 30.0]);
        let diff = compare(&base, &base).unwrap();
        let named: Vec<(&str, usize)> = diff
            .outliers
            .iter()
            .map(|outlier| (outlier.side.as_str(), outlier.run))
            .collect();
        assert_eq!(named, [("base", 5), ("new", 5)]);
        assert!(diff.base > 13.0);
    }

    /// A generator of our own, so that the numbers are the same for ever.
    struct Noise(u64);

    impl Noise {
        /// xorshift64*, 0..1.
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// A benchmark's time: skewed, now and then far off.
        fn run(&mut self) -> f64 {
            let noise: f64 = (0..6).map(|_| self.next()).sum::<f64>() / 6.0;
            let far_off = if self.next() < 0.05 { 1.3 } else { 1.0 };
            3.0 * (1.0 + 0.05 * noise * noise) * far_off
        }
    }

    /// Two halves of the runs of one kernel, drawn anew a hundred times.
    #[test]
    fn the_same_kernel_twice_is_seldom_found_to_differ() {
        for (seed, runs) in [(1, 4), (2, 5), (3, 10), (4, 40)] {
            let mut noise = Noise(seed);
            let wrong = (0..100)
                .filter(|_| {
                    let mut draw = || (0..runs).map(|_| noise.run()).collect::<Vec<f64>>();
                    let (base, new) = (values("lower", &draw()), values("lower", &draw()));
                    compare(&base, &new).unwrap().significant
                })
                .count();
            assert!(wrong <= 10, "{wrong} of 100 with {runs} runs");
        }
    }

    #[test]
    fn a_real_difference_is_found() {
        let mut noise = Noise(7);
        let found = (0..100)
            .filter(|_| {
                let mut draw =
                    |factor: f64| (0..8).map(|_| factor * noise.run()).collect::<Vec<f64>>();
                let (base, new) = (values("lower", &draw(1.0)), values("lower", &draw(0.9)));
                compare(&base, &new).unwrap().significant
            })
            .count();
        assert!(found >= 80, "{found} of 100");
    }
}
