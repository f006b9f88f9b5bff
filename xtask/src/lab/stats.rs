//! The few statistics the lab needs: means with intervals, and the fraction
//! that one mean lies below another.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// How sure every interval of the lab is.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// Resamples of a bootstrap; the ends of a 95 % interval then rest on 250
/// values each.
const RESAMPLES: usize = 10_000;

/// A value with its 95 % interval. One sample has no interval: `low` and
/// `high` are then absent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Estimate {
    /// The best guess.
    pub(crate) value: f64,
    /// Lower end of the interval.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) low: Option<f64>,
    /// Upper end of the interval.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) high: Option<f64>,
}

impl Estimate {
    fn point(value: f64) -> Self {
        Self {
            value,
            low: None,
            high: None,
        }
    }

    /// This estimate with all three numbers divided by `divisor`.
    pub(crate) fn scaled(self, divisor: f64) -> Self {
        Self {
            value: self.value / divisor,
            low: self.low.map(|x| x / divisor),
            high: self.high.map(|x| x / divisor),
        }
    }

    /// Whether `truth` lies in the interval; `None` without one.
    pub(crate) fn holds(self, truth: f64) -> Option<bool> {
        Some((self.low?..=self.high?).contains(&truth))
    }

    /// Half the width of the interval.
    pub(crate) fn margin(self) -> Option<f64> {
        Some((self.high? - self.low?) / 2.0)
    }
}

/// The arithmetic mean; `None` of nothing.
pub(crate) fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The unbiased variance; `None` of fewer than two samples.
fn variance(samples: &[f64]) -> Option<f64> {
    let mean = mean(samples)?;
    let n = samples.len() as f64;
    (samples.len() > 1).then(|| samples.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0))
}

/// The two-sided quantile of Student's distribution; `None` without a positive
/// number of degrees of freedom.
fn t_quantile(freedom: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(t.inverse_cdf(0.5 + CONFIDENCE / 2.0))
}

/// The mean with its t-interval; `None` of nothing.
pub(crate) fn mean_interval(samples: &[f64]) -> Option<Estimate> {
    let mean = mean(samples)?;
    let interval = || {
        let n = samples.len() as f64;
        let margin = t_quantile(n - 1.0)? * (variance(samples)? / n).sqrt();
        Some(Estimate {
            value: mean,
            low: Some(mean - margin),
            high: Some(mean + margin),
        })
    };
    Some(interval().unwrap_or(Estimate::point(mean)))
}

/// Whether two batches of the same measurement agree: Welch's test does not
/// tell their means apart. `None` when a batch is too small to say.
pub(crate) fn agree(a: &[f64], b: &[f64]) -> Option<bool> {
    let (mean_a, mean_b) = (mean(a)?, mean(b)?);
    let (per_a, per_b) = (variance(a)? / a.len() as f64, variance(b)? / b.len() as f64);
    let sum = per_a + per_b;
    if sum == 0.0 {
        return Some(mean_a == mean_b);
    }
    // Welch and Satterthwaite's degrees of freedom.
    let freedom = sum.powi(2)
        / (per_a.powi(2) / (a.len() as f64 - 1.0) + per_b.powi(2) / (b.len() as f64 - 1.0));
    Some((mean_a - mean_b).abs() <= t_quantile(freedom)? * sum.sqrt())
}

/// The fraction by which the mean of `without` lies below that of `with`,
/// `1 - mean(without) / mean(with)`, with a bootstrap interval.
///
/// The samples are independent runs, so each side is resampled by itself.
/// `None` when a side is empty or the mean of `with` is zero.
pub(crate) fn saved_fraction(with: &[f64], without: &[f64]) -> Option<Estimate> {
    let fraction = |a: &[f64], b: &[f64]| {
        let whole = mean(a)?;
        (whole != 0.0).then_some(1.0 - mean(b)? / whole)
    };
    let value = fraction(with, without)?;
    if with.len() < 2 || without.len() < 2 {
        return Some(Estimate::point(value));
    }
    Some(bootstrap(value, |random| {
        fraction(&resample(with, random), &resample(without, random))
    }))
}

/// The mean over pairs of `probed / bare - 1`, with its t-interval: what a
/// profiler added, as a fraction of the bare run. `None` of no pair, or when a
/// bare run counted nothing.
pub(crate) fn added_fraction(pairs: &[(f64, f64)]) -> Option<Estimate> {
    if pairs.iter().any(|(bare, _)| *bare == 0.0) {
        return None;
    }
    let ratios: Vec<f64> = pairs
        .iter()
        .map(|(bare, probed)| probed / bare - 1.0)
        .collect();
    mean_interval(&ratios)
}

/// Takes out of `y` what goes with `x`: each group of `(x, y)` is shifted along
/// the slope that the groups have in common to where `x` is `at`.
///
/// The slope is that within groups, so a difference between them stays. It is
/// zero when `x` does not vary within any.
pub(crate) fn adjusted(groups: &[Vec<(f64, f64)>], at: f64) -> Vec<Vec<f64>> {
    let (mut products, mut squares) = (0.0, 0.0);
    for group in groups {
        let xs: Vec<f64> = group.iter().map(|(x, _)| *x).collect();
        let ys: Vec<f64> = group.iter().map(|(_, y)| *y).collect();
        if let (Some(mean_x), Some(mean_y)) = (mean(&xs), mean(&ys)) {
            for (x, y) in group {
                products += (x - mean_x) * (y - mean_y);
                squares += (x - mean_x).powi(2);
            }
        }
    }
    let slope = if squares == 0.0 {
        0.0
    } else {
        products / squares
    };
    groups
        .iter()
        .map(|group| group.iter().map(|(x, y)| y - slope * (x - at)).collect())
        .collect()
}

fn bootstrap(value: f64, mut one: impl FnMut(&mut Random) -> Option<f64>) -> Estimate {
    // The same samples always give the same interval.
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut values: Vec<f64> = (0..RESAMPLES).filter_map(|_| one(&mut random)).collect();
    values.sort_by(f64::total_cmp);
    let at = |q: f64| {
        let last = values.len().checked_sub(1)?;
        values.get((q * last as f64).round() as usize).copied()
    };
    Estimate {
        value,
        low: at((1.0 - CONFIDENCE) / 2.0),
        high: at(0.5 + CONFIDENCE / 2.0),
    }
}

fn resample(samples: &[f64], random: &mut Random) -> Vec<f64> {
    (0..samples.len())
        .map(|_| samples[random.below(samples.len())])
        .collect()
}

/// Marsaglia's xorshift64: enough to draw indices, and the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn t_interval_of_a_textbook_sample() {
        // Mean 10, standard deviation 2, five samples: t(4) = 2.776.
        let samples = [8.0, 8.0, 10.0, 12.0, 12.0];
        let estimate = mean_interval(&samples).unwrap();
        assert!((estimate.value - 10.0).abs() < 1e-12);
        assert!((variance(&samples).unwrap() - 4.0).abs() < 1e-12);
        assert!((estimate.margin().unwrap() - 2.776 * 2.0 / 5f64.sqrt()).abs() < 1e-3);
    }

    #[test]
    fn one_sample_has_no_interval() {
        assert_eq!(mean_interval(&[3.0]), Some(Estimate::point(3.0)));
        assert_eq!(mean_interval(&[]), None);
        assert_eq!(
            serde_json::to_string(&Estimate::point(0.5)).unwrap(),
            r#"{"value":0.5}"#
        );
    }

    #[test]
    fn saved_fraction_of_constant_runs() {
        let estimate = saved_fraction(&[10.0; 4], &[9.0; 4]).unwrap();
        assert!((estimate.value - 0.1).abs() < 1e-12);
        assert!((estimate.low.unwrap() - 0.1).abs() < 1e-12);
        assert!((estimate.high.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(saved_fraction(&[0.0], &[1.0]), None);
    }

    #[test]
    fn bootstrap_agrees_with_the_delta_method() {
        let with: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i % 5)).collect();
        let without: Vec<f64> = (0..20).map(|i| 90.0 + f64::from(i % 4)).collect();
        let estimate = saved_fraction(&with, &without).unwrap();
        let (a, b) = (mean(&with).unwrap(), mean(&without).unwrap());
        let error = (b / a)
            * ((variance(&with).unwrap() / 20.0) / (a * a)
                + (variance(&without).unwrap() / 20.0) / (b * b))
                .sqrt();
        assert!((estimate.margin().unwrap() / (1.96 * error) - 1.0).abs() < 0.1);
    }

    #[test]
    fn batches_that_agree_and_that_do_not() {
        let a = [10.0, 11.0, 9.0, 10.5];
        assert_eq!(agree(&a, &[10.2, 9.8, 10.4, 9.9]), Some(true));
        assert_eq!(agree(&a, &[20.0, 21.0, 19.0]), Some(false));
        assert_eq!(agree(&a, &[10.0]), None);
        assert_eq!(agree(&[1.0, 1.0], &[1.0, 1.0]), Some(true));
    }

    #[test]
    fn added_fraction_is_over_pairs() {
        let estimate = added_fraction(&[(100.0, 101.0), (200.0, 206.0)]).unwrap();
        assert!((estimate.value - 0.02).abs() < 1e-12);
        assert_eq!(added_fraction(&[(0.0, 1.0)]), None);
        assert_eq!(added_fraction(&[]), None);
    }

    #[test]
    fn adjusting_takes_out_the_slope_and_leaves_the_difference() {
        // y = 1000 + 3 x in the first group and 20 more in the second, which also
        // has larger x.
        let group = |xs: [f64; 3], more: f64| xs.map(|x| (x, 1000.0 + 3.0 * x + more)).to_vec();
        let groups = [
            group([10.0, 20.0, 30.0], 0.0),
            group([40.0, 45.0, 80.0], 20.0),
        ];
        let adjusted = adjusted(&groups, 20.0);
        for (values, expected) in adjusted.iter().zip([1060.0, 1080.0]) {
            assert!(
                values.iter().all(|y| (y - expected).abs() < 1e-9),
                "{values:?}"
            );
        }
        let constant = super::adjusted(&[vec![(5.0, 1.0), (5.0, 2.0)]], 0.0);
        assert_eq!(constant, [[1.0, 2.0]]);
    }

    #[test]
    fn intervals_cover_the_truth_about_as_often_as_they_say() {
        // Sums of twelve uniform numbers are nearly normal, with mean 6.
        let mut random = Random(1);
        let mut normal = || {
            (0..12)
                .map(|_| random.below(1 << 20) as f64 / f64::from(1 << 20))
                .sum::<f64>()
        };
        let covered = (0..2000)
            .filter(|_| {
                let samples: Vec<f64> = (0..6).map(|_| normal()).collect();
                let estimate = mean_interval(&samples).unwrap();
                estimate.low.unwrap() <= 6.0 && 6.0 <= estimate.high.unwrap()
            })
            .count();
        assert!((1860..=1940).contains(&covered), "{covered} of 2000");
    }

    proptest! {
        #[test]
        fn the_value_lies_in_its_interval(
            with in proptest::collection::vec(1.0f64..1e9, 1..12),
            without in proptest::collection::vec(1.0f64..1e9, 1..12),
        ) {
            let mean = mean_interval(&with).unwrap();
            prop_assert!(mean.low.is_none_or(|low| low <= mean.value));
            prop_assert!(mean.high.is_none_or(|high| high >= mean.value));
            let saved = saved_fraction(&with, &without).unwrap();
            prop_assert!(saved.value < 1.0);
            if let (Some(low), Some(high)) = (saved.low, saved.high) {
                prop_assert!(low <= high);
            }
        }
    }
}
