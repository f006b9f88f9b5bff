//! Intervals of shares.

use super::report::Estimate;
use crate::recording::Evidence;

/// The normal quantile of a two-sided 95 % interval.
const Z95: f64 = 1.959_963_984_540_054;

/// The share `hits / total` with its Wilson score interval at 95 %, which stays
/// inside 0..=1 and is not empty for 0 hits. Absent when nothing was sampled.
pub fn wilson(hits: u64, total: u64, evidence: Evidence) -> Option<Estimate> {
    if total == 0 {
        return None;
    }
    let n = total as f64;
    let value = (hits.min(total)) as f64 / n;
    let z2 = Z95 * Z95;
    let centre = value + z2 / (2.0 * n);
    let spread = Z95 * (value * (1.0 - value) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    Some(Estimate {
        value,
        // Rounding may push a bound past the value at 0 and 1.
        low: ((centre - spread) / scale).clamp(0.0, value),
        high: ((centre + spread) / scale).clamp(value, 1.0),
        evidence,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_intervals() {
        // Worked by hand from the score formula; the first is a textbook case.
        let e = wilson(10, 100, Evidence::SampledTimer).unwrap();
        assert!((e.low - 0.055_229).abs() < 1e-5, "{e:?}");
        assert!((e.high - 0.174_366).abs() < 1e-5, "{e:?}");
        let none = wilson(0, 1000, Evidence::SampledNmi).unwrap();
        assert_eq!((none.value, none.low), (0.0, 0.0));
        assert!((none.high - 0.003_826_9).abs() < 1e-6, "{none:?}");
        let all = wilson(1000, 1000, Evidence::SampledNmi).unwrap();
        assert_eq!((all.value, all.high), (1.0, 1.0));
        assert_eq!(wilson(0, 0, Evidence::Counted), None);
    }

    proptest! {
        #[test]
        fn ordered_and_inside(total in 1_u64.., part in 0.0..=1.0_f64) {
            let hits = ((total as f64 * part) as u64).min(total);
            let e = wilson(hits, total, Evidence::SampledTimer).unwrap();
            prop_assert!(0.0 <= e.low && e.low <= e.value);
            prop_assert!(e.value <= e.high && e.high <= 1.0);
        }
    }
}
