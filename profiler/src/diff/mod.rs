//! Two kernels compared by the recordings made on them.

mod differences;
pub mod document;
mod explain;
pub mod flame;
mod metric;
mod side;
mod slice;

use std::collections::BTreeMap;

use anyhow::bail;

use crate::catalog::Catalog;
use crate::error::hinted;
use crate::model::points;
use crate::report::escape;
use crate::stats::discoveries;
pub use document::{Diff, SCHEMA};
use document::{LatencyDiff, PointDiff, RcuDiff, SwitchesDiff};
pub use side::Input;
use side::{Side, both};

/// The point of a recording without a sweep.
fn nowhere() -> BTreeMap<String, String> {
    BTreeMap::new()
}

/// Compares the recordings of two kernels. `unequal` compares what differs in
/// workload or machine all the same, with a warning.
///
/// # Errors
///
/// When a side has no recording or recordings of different kernels, when the
/// metrics differ, and, without `unequal`, when workloads or machines do.
pub fn compare(
    base: &[Input],
    new: &[Input],
    catalog: &Catalog,
    unequal: bool,
) -> anyhow::Result<Diff> {
    let all_points = |inputs: &[Input]| {
        let mut all: Vec<BTreeMap<String, String>> = Vec::new();
        for point in inputs
            .iter()
            .flat_map(|input| points(&input.recording.trailer))
        {
            if !all.contains(&point) {
                all.push(point);
            }
        }
        all
    };
    let (base_points, new_points) = (all_points(base), all_points(new));
    // Of a sweep of several points a metric over all means nothing.
    let sweep = base_points.len() > 1 || new_points.len() > 1;
    let only = match &base_points[..] {
        [only] if !sweep => only.clone(),
        _ => nowhere(),
    };
    let whole = |which: &str, inputs: &[Input]| {
        let inputs: Vec<&Input> = inputs.iter().collect();
        Side::of(which, &inputs, &only, catalog)
    };
    let (a, b) = (whole("BASE", base)?, whole("NEW", new)?);
    let differences = differences::find(&a, &b);
    let mut warnings = differences::check(&a, &b, &differences, unequal)?;
    warnings.extend(a.warnings.iter().chain(&b.warnings).cloned());

    let mut diff = one(&a, &b)?;
    diff.schema = SCHEMA.to_owned();
    diff.base = side(base, &a);
    diff.new = side(new, &b);
    if sweep {
        (diff.metric, diff.explained) = (None, None);
        for point in &base_points {
            if !new_points.contains(point) {
                warnings.push(format!("The point {} is in BASE alone.", name(point)));
                continue;
            }
            let (a, b) = (
                at(point, "BASE", base, catalog)?,
                at(point, "NEW", new, catalog)?,
            );
            let part = one(&a, &b)?;
            diff.points.push(PointDiff {
                point: point.clone(),
                metric: part.metric,
                explained: part.explained,
                options: part.options,
            });
        }
        for point in new_points
            .iter()
            .filter(|point| !base_points.contains(point))
        {
            warnings.push(format!("The point {} is in NEW alone.", name(point)));
        }
        together(&mut diff.points);
        if diff.points.is_empty() {
            return Err(hinted(
                "the sweeps have no point in common",
                ["record both sides with the same --sweep"],
            ));
        }
    } else {
        warnings.extend(doubts(&diff));
    }
    diff.differences = differences;
    diff.warnings = warnings;
    Ok(diff)
}

/// Judges the points of a sweep together: of many, one differs by chance.
fn together(points: &mut [PointDiff]) {
    let p = |point: &PointDiff| point.metric.as_ref()?.p;
    let tested: Vec<f64> = points.iter().filter_map(p).collect();
    let mut found = discoveries(&tested).into_iter();
    for point in points.iter_mut().filter(|point| p(point).is_some()) {
        let significant = found.next().unwrap_or(false);
        if let Some(metric) = &mut point.metric {
            metric.significant = significant;
            if metric.can_be_significant() && !significant {
                // There is nothing to explain.
                point.explained = None;
            }
        }
    }
}

/// A point's name: `groups=4, loops=10`.
pub fn name(point: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> = point
        .iter()
        .map(|(name, value)| format!("{}={}", escape(name), escape(value)))
        .collect();
    if parts.is_empty() {
        "without a sweep".to_owned()
    } else {
        parts.join(", ")
    }
}

/// One side at one point of the sweep.
fn at(
    point: &BTreeMap<String, String>,
    which: &str,
    inputs: &[Input],
    catalog: &Catalog,
) -> anyhow::Result<Side> {
    let parts: Vec<Input> = inputs
        .iter()
        .filter(|input| points(&input.recording.trailer).contains(point))
        .map(|input| Input {
            name: input.name.clone(),
            recording: slice::at_point(&input.recording, point),
        })
        .collect();
    let parts: Vec<&Input> = parts.iter().collect();
    Side::of(which, &parts, point, catalog)
}

fn side(inputs: &[Input], side: &Side) -> document::Side {
    document::Side {
        files: inputs.iter().map(|input| input.name.clone()).collect(),
        kernel: side.first.kernel.clone(),
        machine: side.first.machine.clone(),
        command: side.first.run.command.clone(),
        runs: side.runs,
        samples: side.samples,
        task_time_per_run_s: (side.samples > 0).then(|| side.task_time_per_run()),
    }
}

/// Everything that is compared at one point.
fn one(a: &Side, b: &Side) -> anyhow::Result<Diff> {
    let metric = match (&a.measurements, &b.measurements) {
        (Some(base), Some(new)) => {
            side::same_metric(base, new, "NEW", "it")?;
            metric::compare(base, new)
        }
        _ => None,
    };
    let options = explain::options(a, b);
    let explained = explain::explained(metric.as_ref(), &options, a, b);
    let switches = a.switches.zip(b.switches).map(|(base, new)| SwitchesDiff {
        voluntary: both(a.per_run(base.voluntary), b.per_run(new.voluntary)),
        preempted: both(a.per_run(base.preempted), b.per_run(new.preempted)),
    });
    let rcu = a.rcu.iter().filter_map(|(event, base)| {
        let new = b.rcu.get(event)?;
        Some(RcuDiff {
            event: event.clone(),
            count: both(a.per_run(base.0), b.per_run(new.0)),
            total_ns: both(a.per_run(base.1), b.per_run(new.1)),
            max_ns: both(base.2 as f64, new.2 as f64),
        })
    });
    let latency = a.latency.zip(b.latency).map(|(base, new)| LatencyDiff {
        count: both(a.per_run(base.count), b.per_run(new.count)),
        p50_ns: both(base.p50_ns as f64, new.p50_ns as f64),
        p99_ns: both(base.p99_ns as f64, new.p99_ns as f64),
        max_ns: both(base.max_ns as f64, new.max_ns as f64),
    });
    Ok(Diff {
        metric,
        explained,
        callers: explain::callers(a, b),
        options,
        switches,
        rcu: rcu.collect(),
        wakeup_latency: latency,
        ..Diff::default()
    })
}

/// What a reader must know of a metric before it is believed.
fn doubts(diff: &Diff) -> Vec<String> {
    let Some(metric) = &diff.metric else {
        return vec![
            "There is no metric to compare: nothing was started, or it took no time.".to_owned(),
        ];
    };
    let mut warnings = Vec::new();
    if !metric.can_be_significant() {
        warnings.push(format!(
            "With {} and {} runs no difference can be significant; -n 5 on both sides is enough.",
            metric.base_values.len(),
            metric.new_values.len()
        ));
    }
    for outlier in &metric.outliers {
        warnings.push(format!(
            "Run {} of {} is far from the others: {} {}. It counts all the same.",
            outlier.run,
            outlier.side.to_uppercase(),
            outlier.value,
            metric.unit
        ));
    }
    warnings
}

/// Whether the new side is worse than the base by more than `limit`, a fraction,
/// and by more than chance: at the end of a sweep, at any of its points. With too
/// few runs to tell chance apart, the means decide.
///
/// # Errors
///
/// When there is no metric.
pub fn fails(diff: &Diff, limit: f64) -> anyhow::Result<bool> {
    let metrics: Vec<_> = diff
        .metric
        .iter()
        .chain(diff.points.iter().filter_map(|point| point.metric.as_ref()))
        .collect();
    if metrics.is_empty() {
        bail!("--fail-above: there is no metric to compare");
    }
    Ok(metrics.iter().any(|metric| {
        -metric.improvement() > limit && (metric.significant || !metric.can_be_significant())
    }))
}
