//! Statistics of a few repeated measurements.

use statrs::distribution::{ContinuousCDF as _, StudentsT};
use statrs::stats_tests::Alternative;
use statrs::stats_tests::mannwhitneyu::{MannWhitneyUMethod, mannwhitneyu};

/// The chance of calling nothing something that is taken, and 1 minus the level
/// of every interval.
pub const ALPHA: f64 = 0.05;
/// Up to so many values of both samples together the test is exact.
const EXACT: usize = 60;
/// Modified z-scores above this are outliers, after Iglewicz and Hoaglin (1993).
const OUTLIER: f64 = 3.5;

/// The arithmetic mean; 0 of nothing.
pub fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.iter().sum::<f64>() / values.len() as f64
}

/// The sample variance; 0 of fewer than two values.
pub fn variance(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    squares / (values.len() - 1) as f64
}

/// The quantile of Student's t that bounds a two-sided interval.
fn t_quantile(freedom: f64) -> Option<f64> {
    let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
    Some(t.inverse_cdf(1.0 - ALPHA / 2.0)).filter(|t| t.is_finite())
}

/// The interval of the mean by Student's t. `None` of fewer than two values.
pub fn mean_interval(values: &[f64]) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let t = t_quantile((values.len() - 1) as f64)?;
    let spread = t * (variance(values) / values.len() as f64).sqrt();
    let mean = mean(values);
    Some((mean - spread, mean + spread))
}

/// Which of several tests made together are significant, after Benjamini and
/// Hochberg (1995): of those that are, a fraction of [`ALPHA`] is so by chance on
/// average, and where nothing differs, so is any at all.
pub fn discoveries(p: &[f64]) -> Vec<bool> {
    let mut sorted = p.to_vec();
    sorted.sort_by(f64::total_cmp);
    let tests = p.len() as f64;
    let bound = sorted
        .iter()
        .enumerate()
        .filter(|(rank, p)| **p <= ALPHA * (rank + 1) as f64 / tests)
        .map(|(_, p)| *p)
        .next_back();
    p.iter()
        .map(|p| bound.is_some_and(|bound| *p <= bound))
        .collect()
}

/// Two samples compared by Welch's method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Welch {
    /// Degrees of freedom, by Welch and Satterthwaite.
    pub freedom: f64,
    /// Two-sided probability of means so far apart by chance.
    pub p: f64,
    /// Interval of (mean of the second - mean of the first) / mean of the first,
    /// to first order in the uncertainty of the first.
    pub change: (f64, f64),
}

/// Welch's comparison. `None` when one of the samples has fewer than two values,
/// the first has mean 0, or neither varies.
pub fn welch(base: &[f64], new: &[f64]) -> Option<Welch> {
    if base.len() < 2 || new.len() < 2 {
        return None;
    }
    let (a, b) = (mean(base), mean(new));
    let (va, vb) = (
        variance(base) / base.len() as f64,
        variance(new) / new.len() as f64,
    );
    if a == 0.0 || va + vb <= 0.0 {
        return None;
    }
    let freedom = |va: f64, vb: f64| {
        (va + vb).powi(2)
            / (va.powi(2) / (base.len() - 1) as f64 + vb.powi(2) / (new.len() - 1) as f64)
    };
    let of_means = freedom(va, vb);
    let t = (b - a) / (va + vb).sqrt();
    let distribution = StudentsT::new(0.0, 1.0, of_means).ok()?;
    let p = 2.0 * distribution.cdf(-t.abs());
    // The ratio b / a varies by vb / a^2 and by va (b / a)^2 / a^2.
    let (ra, rb) = (va * (b / a).powi(2) / a.powi(2), vb / a.powi(2));
    let spread = t_quantile(freedom(ra, rb))? * (ra + rb).sqrt();
    let change = (b - a) / a;
    Some(Welch {
        freedom: of_means,
        p,
        change: (change - spread, change + spread),
    })
}

/// The two-sided probability of a Mann-Whitney U so far from its mean by chance.
/// Exact for small samples, equal values included; the normal approximation with
/// correction for continuity and ties for large ones. `None` of nothing and of
/// what has no order.
pub fn mann_whitney(base: &[f64], new: &[f64]) -> Option<f64> {
    let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
    if base.is_empty() || new.is_empty() || !finite(base) || !finite(new) {
        return None;
    }
    if base.len() + new.len() > EXACT {
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        let (_, p) = mannwhitneyu(base, new, method, Alternative::TwoSided).ok()?;
        // All values equal: no variance.
        return Some(if p.is_finite() { p } else { 1.0 });
    }
    let ranks = doubled_ranks(base, new);
    let ours: usize = ranks[..base.len()].iter().sum();
    // Under the null hypothesis each choice of ranks for the first sample is as
    // likely: ways[n][s] is how many choices of n of them have the sum s.
    let total: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0_f64; total + 1]; base.len() + 1];
    ways[0][0] = 1.0;
    for (taken, &rank) in ranks.iter().enumerate() {
        for n in (1..=base.len().min(taken + 1)).rev() {
            for sum in (rank..=total).rev() {
                let more = ways[n - 1][sum - rank];
                ways[n][sum] += more;
            }
        }
    }
    // The distribution is symmetric about its mean, total * n / N.
    let count = ranks.len();
    let distance = |sum: usize| (sum * count).abs_diff(total * base.len());
    let all: f64 = ways[base.len()].iter().sum();
    let as_far: f64 = ways[base.len()]
        .iter()
        .enumerate()
        .filter(|(sum, _)| distance(*sum) >= distance(ours))
        .map(|(_, ways)| ways)
        .sum();
    Some((as_far / all).min(1.0))
}

/// Twice the rank of each value in both samples together, so that the mean rank
/// of equal ones is whole.
fn doubled_ranks(base: &[f64], new: &[f64]) -> Vec<usize> {
    let all: Vec<f64> = base.iter().chain(new).copied().collect();
    all.iter()
        .map(|value| {
            let below = all.iter().filter(|other| *other < value).count();
            let equal = all.iter().filter(|other| *other == value).count();
            2 * below + equal + 1
        })
        .collect()
}

/// Whether samples of these sizes can be told apart at all: with the smallest
/// ones even the greatest difference occurs too often by chance.
pub fn can_differ(base: usize, new: usize) -> bool {
    // 1 / choose(base + new, base) twice.
    let mut least = 2.0;
    for i in 0..base {
        least *= (base - i) as f64 / (base + new - i) as f64;
    }
    base > 0 && new > 0 && least < ALPHA
}

/// The positions of values far from the others, by the median absolute deviation.
/// None of fewer than four values, or when more than half are equal.
pub fn outliers(values: &[f64]) -> Vec<usize> {
    if values.len() < 4 {
        return Vec::new();
    }
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let deviation = median(&distances);
    if deviation <= 0.0 {
        return Vec::new();
    }
    (0..values.len())
        .filter(|&at| 0.6745 * distances[at] / deviation > OUTLIER)
        .collect()
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        length if length % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-4 * b.abs().max(1e-3)
    }

    #[test]
    fn several_tests_together_claim_no_more_than_one() {
        // The example of Benjamini and Hochberg's paper: four of fifteen.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let found = discoveries(&p);
        assert!(found[..4].iter().all(|found| *found));
        assert!(!found[4..].iter().any(|found| *found));
        // One of nine alone, and all nine together.
        assert_eq!(discoveries(&[0.008; 9]), [true; 9]);
        let mut one = [0.5; 9];
        one[3] = 0.008;
        assert_eq!(discoveries(&one), [false; 9]);
        assert_eq!(discoveries(&[0.04]), [true]);
        assert!(discoveries(&[]).is_empty());
    }

    #[test]
    fn intervals_are_the_textbook_s() {
        let values = [9.0, 10.0, 11.0, 12.0, 13.0];
        assert_eq!((mean(&values), variance(&values)), (11.0, 2.5));
        // t(0.975, 4) = 2.776445.
        let (low, high) = mean_interval(&values).unwrap();
        assert!(near(high - 11.0, 2.776_445 * (0.5_f64).sqrt()), "{high}");
        assert!(near(11.0 - low, high - 11.0));
        assert_eq!(mean_interval(&[1.0]), None);
    }

    #[test]
    fn welch_agrees_with_worked_examples() {
        let a = [9.0, 10.0, 11.0, 12.0, 13.0];
        // Means 1 apart, both variances 2.5: t = 1 with 8 degrees of freedom.
        let equal = welch(&a, &[10.0, 11.0, 12.0, 13.0, 14.0]).unwrap();
        assert!(
            near(equal.freedom, 8.0) && near(equal.p, 0.346_594),
            "{equal:?}"
        );
        assert!(near((equal.change.0 + equal.change.1) / 2.0, 1.0 / 11.0));
        // Variances of the means 0.5 and 100 / 3.
        let unequal = welch(&a, &[10.0, 20.0, 30.0]).unwrap();
        assert!(near(unequal.freedom, 2.060_20), "{unequal:?}");
        assert_eq!(welch(&a, &[1.0]), None);
        assert_eq!(welch(&[1.0, 1.0], &[2.0, 2.0]), None);
        assert_eq!(welch(&[-1.0, 1.0], &[2.0, 3.0]), None);
    }

    #[test]
    fn mann_whitney_is_exact_for_small_samples() {
        let p = |a: &[f64], b: &[f64]| mann_whitney(a, b).unwrap();
        // 2 of choose(6, 3), of choose(8, 4), of choose(10, 5).
        assert!(near(p(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]), 0.1));
        assert!(near(
            p(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0]),
            2.0 / 70.0
        ));
        let (low, high) = ([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]);
        assert!(near(p(&high, &low), 2.0 / 252.0));
        // The documented example of scipy.stats.mannwhitneyu: U = 17, p = 0.1111.
        let male = [19.0, 22.0, 16.0, 29.0, 24.0];
        let female = [20.0, 11.0, 17.0, 12.0];
        assert!((p(&male, &female) - 0.1111).abs() < 1e-4);
        assert_eq!(p(&[1.0, 1.0], &[1.0, 1.0]), 1.0);
        assert_eq!(mann_whitney(&[], &[1.0]), None);
        assert_eq!(mann_whitney(&[f64::NAN], &[1.0]), None);
    }

    #[test]
    fn the_exact_test_and_the_approximation_meet() {
        let base: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 30)).collect();
        let new: Vec<f64> = (0..30).map(|i| f64::from(i * 11 % 30) + 4.3).collect();
        let exact = mann_whitney(&base, &new).unwrap();
        let method = MannWhitneyUMethod::AsymptoticInclContinuityCorrection;
        let (_, approximate) = mannwhitneyu(&base, &new, method, Alternative::TwoSided).unwrap();
        assert!((exact - approximate).abs() < 0.003, "{exact} {approximate}");
    }

    #[test]
    fn what_can_differ_at_all() {
        for (base, new, can) in [
            (1, 1, false),
            (3, 3, false),
            (3, 5, true),
            (4, 4, true),
            (2, 8, true),
            (2, 7, false),
            (0, 9, false),
        ] {
            assert_eq!(can_differ(base, new), can, "{base} {new}");
            let low: Vec<f64> = (0..base).map(|i| i as f64).collect();
            let high: Vec<f64> = (0..new).map(|i| 100.0 + i as f64).collect();
            let p = mann_whitney(&low, &high).unwrap_or(1.0);
            assert_eq!(p < ALPHA, can, "{base} {new} {p}");
        }
    }

    #[test]
    fn what_is_far_off_is_named() {
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.05, 9.0]), [4]);
        assert!(outliers(&[1.0, 1.1, 0.9, 1.05]).is_empty());
        assert!(outliers(&[1.0, 1.0, 9.0]).is_empty());
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
    }

    proptest! {
        #[test]
        fn chances_are_chances_and_the_test_has_no_sides(
            base in proptest::collection::vec(0..20_u8, 1..12),
            new in proptest::collection::vec(0..20_u8, 1..12),
        ) {
            let base: Vec<f64> = base.into_iter().map(f64::from).collect();
            let new: Vec<f64> = new.into_iter().map(f64::from).collect();
            let p = mann_whitney(&base, &new).unwrap();
            prop_assert!(0.0 < p && p <= 1.0);
            prop_assert!((p - mann_whitney(&new, &base).unwrap()).abs() < 1e-9);
        }
    }
}
