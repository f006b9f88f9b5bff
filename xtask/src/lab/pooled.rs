//! How often predictions hold, over several profiled runs.

use serde::Serialize;

use super::score::{RunScore, WorkloadScore};
use super::stats::{self, Estimate};

/// Predictions of several runs beside the truth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pooled {
    /// The gain, beside what the other kernel saves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gain: Option<Hits>,
    /// The gain, beside what it saves at equal context switches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gain_at_equal_switches: Option<Hits>,
    /// The sampled share, beside the share of instructions in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<Hits>,
    /// All calls into the option, beside those of the same run; errors are relative.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<Hits>,
}

/// How one kind of prediction holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Hits {
    /// Runs with such a prediction.
    pub(crate) runs: usize,
    /// Those whose interval holds the true value; absent when one has no interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inside: Option<usize>,
    /// Mean width of the intervals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) width: Option<f64>,
    /// Mean of predicted less true.
    pub(crate) error: f64,
    /// Mean of the size of that.
    pub(crate) size_of_error: f64,
}

/// Takes a prediction and the true value from a run.
type Prediction<'a> = &'a dyn Fn(&WorkloadScore, &RunScore) -> Option<(Estimate, f64)>;

/// Pools the runs of several workloads.
pub(crate) fn all<'a>(scores: impl IntoIterator<Item = &'a WorkloadScore>) -> Pooled {
    let runs: Vec<(&WorkloadScore, &RunScore)> = scores
        .into_iter()
        .flat_map(|score| score.runs.iter().map(move |run| (score, run)))
        .collect();
    let of = |pair: Prediction| {
        let pairs: Vec<(Estimate, f64)> = runs.iter().filter_map(|(w, r)| pair(w, r)).collect();
        hits(&pairs)
    };
    Pooled {
        gain: of(&|w, r| Some((r.predicted_gain?, w.true_gain.value))),
        gain_at_equal_switches: of(&|w, r| {
            Some((r.predicted_gain?, w.true_gain_at_equal_switches.value))
        }),
        share: of(&|_, r| Some((r.sampled_share?, r.true_share))),
        calls: of(&|_, r| {
            let total = r.counts.total.as_ref()?;
            (total.truth > 0.0).then_some((r.calls?.scaled(total.truth), 1.0))
        }),
    }
}

/// Compares estimates with true values; `None` of nothing.
fn hits(pairs: &[(Estimate, f64)]) -> Option<Hits> {
    let errors: Vec<f64> = pairs.iter().map(|(e, truth)| e.value - truth).collect();
    let sizes: Vec<f64> = errors.iter().map(|error| error.abs()).collect();
    let inside: Option<Vec<bool>> = pairs.iter().map(|(e, truth)| e.holds(*truth)).collect();
    let margins: Option<Vec<f64>> = pairs.iter().map(|(e, _)| e.margin()).collect();
    Some(Hits {
        runs: pairs.len(),
        inside: inside.map(|inside| inside.iter().filter(|hit| **hit).count()),
        width: margins.and_then(|margins| Some(2.0 * stats::mean(&margins)?)),
        error: stats::mean(&errors)?,
        size_of_error: stats::mean(&sizes)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_width_and_error() {
        let estimate = |value: f64, half: f64| Estimate {
            value,
            low: Some(value - half),
            high: Some(value + half),
        };
        let hits = hits(&[(estimate(0.10, 0.02), 0.11), (estimate(0.14, 0.01), 0.11)]).unwrap();
        assert_eq!((hits.runs, hits.inside), (2, Some(1)));
        assert!((hits.width.unwrap() - 0.03).abs() < 1e-12);
        assert!((hits.error - 0.01).abs() < 1e-12);
        assert!((hits.size_of_error - 0.02).abs() < 1e-12);

        let bare = Estimate {
            value: 0.1,
            low: None,
            high: None,
        };
        let unsure = super::hits(&[(bare, 0.1)]).unwrap();
        assert_eq!((unsure.inside, unsure.width), (None, None));
        assert_eq!(super::hits(&[]), None);
    }
}
