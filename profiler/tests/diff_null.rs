//! One kernel compared with itself: a hundred times, from runs and samples drawn
//! anew by fixed seeds.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use std::collections::BTreeMap;

use profiler::diff::document::Diff;
use profiler::diff::{self, Input};
use profiler::recording::{Metric, Recording, RunRecord, Sample};
use profiler::report::diff as text;
use profiler::report::text::TextOptions;

/// Comparisons, and how many of them may find something.
const COMPARISONS: u64 = 100;
const WRONG: usize = 10;
/// Samples of each side, drawn from those of the recording.
const SAMPLES: usize = 1_000;

/// xorshift64*: the same numbers for ever.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// 0..1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A benchmark's time: skewed, and now and then far off.
    fn run(&mut self) -> f64 {
        let noise: f64 = (0..6).map(|_| self.fraction()).sum::<f64>() / 6.0;
        let far_off = if self.fraction() < 0.05 { 1.3 } else { 1.0 };
        3.0 * (1.0 + 0.05 * noise * noise) * far_off
    }
}

/// A recording of the same kernel and workload, with as many runs at each point.
fn drawn(from: &Recording, noise: &mut Noise, points: u64, runs: u64) -> Vec<Input> {
    let mut recording = from.clone();
    let length = 1_000_000_000;
    let all = points * runs;
    recording.samples = (0..SAMPLES)
        .map(|at| Sample {
            time_ns: at as u64 * (all * length / SAMPLES as u64),
            ..from.samples[(noise.next() % from.samples.len() as u64) as usize]
        })
        .collect();
    recording.trailer.runs = (0..all)
        .map(|run| RunRecord {
            profiled: true,
            start_ns: run * length,
            end_ns: (run + 1) * length,
            metric: Some(Metric {
                name: "total time".into(),
                value: noise.run(),
                unit: "s".into(),
                better: "lower".into(),
            }),
            point: match points {
                1 => BTreeMap::new(),
                _ => [("groups".to_owned(), (run / runs).to_string())].into(),
            },
            ..RunRecord::default()
        })
        .collect();
    vec![Input {
        name: "drawn".to_owned(),
        recording,
    }]
}

/// Compares that often; how many times something counts as found, by what.
fn found<const N: usize>(points: u64, runs: u64, counts: [fn(&Diff) -> bool; N]) -> [usize; N] {
    let from = common::messaging();
    let mut noise = Noise(20 + points + runs);
    let mut found = [0; N];
    for _ in 0..COMPARISONS {
        let base = drawn(&from, &mut noise, points, runs);
        let new = drawn(&from, &mut noise, points, runs);
        let diff = diff::compare(&base, &new, &common::catalog(), false).unwrap();
        for (sum, counts) in found.iter_mut().zip(counts) {
            *sum += usize::from(counts(&diff));
        }
    }
    println!("{points} points of {runs} runs: {found:?} of {COMPARISONS}");
    found
}

fn is_marked(diff: &Diff) -> bool {
    let text = text::render(diff, &TextOptions::default());
    let starred = text.lines().any(|line| line.ends_with('*'));
    let points = diff.points.iter().filter_map(|point| point.metric.as_ref());
    let significant = diff.metric.iter().chain(points).any(|m| m.significant);
    assert_eq!(starred, significant, "{text}");
    significant
}

/// Whether a point by itself would have been marked.
fn has_small_p(diff: &Diff) -> bool {
    let points = diff.points.iter().filter_map(|point| point.metric.as_ref());
    points.filter_map(|metric| metric.p).any(|p| p < 0.05)
}

fn is_explained(diff: &Diff) -> bool {
    diff.explained.is_some() || diff.points.iter().any(|point| point.explained.is_some())
}

/// Whether the interval of some option's sampled change leaves 0 out.
fn has_changed_option(diff: &Diff) -> bool {
    let observed = diff.options.iter().filter_map(|option| option.observed);
    observed
        .into_iter()
        .any(|change| change.low > 0.0 || change.high < 0.0)
}

#[test]
fn the_metric_is_seldom_marked() {
    for runs in [4, 5, 10] {
        let [marked, explained, options] =
            found(1, runs, [is_marked, is_explained, has_changed_option]);
        assert!(marked <= WRONG, "{marked} with {runs} runs");
        assert_eq!(explained, 0, "no option differs");
        // Nothing is marked; but of four intervals of 95 % each, one leaves out what
        // is true in no more than 19 of 100.
        assert!(options <= 19, "{options} with {runs} runs");
    }
}

#[test]
fn a_sweep_of_many_points_is_seldom_marked() {
    let [marked, alone, explained] = found(9, 5, [is_marked, has_small_p, is_explained]);
    assert!(marked <= WRONG, "{marked}");
    assert_eq!(explained, 0, "no option differs");
    // Else nothing was to be corrected.
    assert!(alone > 2 * WRONG, "{alone}");
}
