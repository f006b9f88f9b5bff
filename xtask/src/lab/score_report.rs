//! What `lab score` prints for people.

use super::calls::Calls;
use super::pooled::{Hits, Pooled};
use super::score::{Score, WorkloadScore};
use super::stats::Estimate;
use super::text::{self, count, percent, percent_interval};

/// Lines of each list.
const LINES: usize = 12;

/// The score as text.
pub(crate) fn score(score: &Score) -> String {
    let more = if score.run_args.is_empty() {
        String::new()
    } else {
        format!(" with {}", score.run_args.join(" "))
    };
    let mut out = format!(
        "{}: preemptprof on {}{more}, truth from {}\n\n{}\n",
        score.option,
        score.with,
        score.without,
        text::lines(&score_table(score))
    );
    for workload in &score.workloads {
        out.push_str(&counts(workload));
    }
    out.push_str(&format!(
        "\nwhat profiling adds, of a bare run\n{}\n",
        text::lines(&cost_table(score))
    ));
    let pooled = pooled_table(score);
    if !pooled.is_empty() {
        out.push_str(&format!(
            "\nhow often the interval holds the truth\n{}\n",
            text::lines(&pooled)
        ));
    }
    let exceeded: Vec<String> = score
        .workloads
        .iter()
        .flat_map(|w| {
            w.exceeded
                .iter()
                .map(move |e| format!("{}: {e}\n", w.workload))
        })
        .collect();
    if exceeded.is_empty() {
        out.push_str("\nwithin the bounds of xtask/accuracy-bounds.toml\n");
    } else {
        out.push_str("\nbeyond the bounds of xtask/accuracy-bounds.toml:\n");
        out.extend(exceeded);
    }
    out
}

/// The counts of a workload's first run.
fn counts(workload: &WorkloadScore) -> String {
    let Some(run) = workload.runs.first() else {
        return String::new();
    };
    let counts = &run.counts;
    let mut out = String::new();
    let total: Vec<Calls> = counts.total.iter().cloned().collect();
    let lists = [
        ("function", total.iter().chain(&counts.targets)),
        ("caller", counts.callers.iter().chain(&[])),
        ("call site", counts.sites.iter().chain(&[])),
    ];
    for (title, calls) in lists {
        let mut table = text::table(&[title, "calls counted", "true", "error"], 1);
        for calls in calls.take(LINES) {
            table.add_row([
                calls.symbol.clone(),
                count(calls.counted),
                count(calls.truth),
                calls.error.map_or_else(String::new, percent),
            ]);
        }
        if !table.is_empty() {
            out.push_str(&format!(
                "\n{}\n{}\n",
                workload.workload,
                text::lines(&table)
            ));
        }
    }
    if let Some(coverage) = counts.coverage {
        let said = counts.coverage_said.map_or_else(String::new, |said| {
            format!(", and the report says {}", percent(said))
        });
        let sites = counts.sites.len().max(counts.callers.len());
        out.push_str(&format!(
            "{}: {} of the true calls are made where the report has a count ({sites} places){said}\n",
            workload.workload,
            percent(coverage)
        ));
    }
    if let (Some(said), Some(truth)) = (run.ns_per_call, run.true_instructions_per_call) {
        out.push_str(&format!(
            "{}: {:.1} ns a call, and {truth:.1} instructions in the option's functions\n",
            workload.workload, said.value
        ));
    }
    out
}

/// What profiling costs, by the oracle and by the report.
fn cost_table(score: &Score) -> comfy_table::Table {
    let titles = [
        "workload",
        "in all",
        "BPF code",
        "probes and perf",
        "user space",
        "rest",
        "the report: in all",
        "BPF",
        "probes",
        "own threads",
    ];
    let mut table = text::table(&titles, 1);
    for workload in &score.workloads {
        let cost = |value: &dyn Fn(&super::own_cost::OwnCost) -> Option<f64>| {
            let mean = workload.mean(|run| value(&run.own_cost));
            mean.map_or_else(String::new, percent)
        };
        table.add_row([
            workload.workload.clone(),
            cost(&|c| Some(c.added)),
            cost(&|c| Some(c.programs)),
            cost(&|c| Some(c.probing)),
            cost(&|c| Some(c.user)),
            cost(&|c| Some(c.rest)),
            cost(&|c| Some(c.said?.sum())),
            cost(&|c| Some(c.said?.bpf)),
            cost(&|c| Some(c.said?.probe)),
            cost(&|c| Some(c.said?.user)),
        ]);
    }
    table
}

/// The columns of how often predictions hold.
pub(crate) const POOLED_TITLES: [&str; 7] = [
    "workload",
    "prediction",
    "runs",
    "true inside",
    "mean width",
    "mean error",
    "mean size of error",
];

/// How often predictions hold, by workload and in all, in these columns.
pub(crate) fn pooled_rows(score: &Score) -> Vec<[String; 7]> {
    let mut named: Vec<(&str, &Pooled)> = score
        .workloads
        .iter()
        .map(|w| (w.workload.as_str(), &w.pooled))
        .collect();
    if named.len() > 1 {
        named.push(("all", &score.pooled));
    }
    named
        .into_iter()
        .flat_map(|(name, pooled)| {
            [
                ("gain", pooled.gain),
                ("gain, at equal switches", pooled.gain_at_equal_switches),
                ("share", pooled.share),
                ("calls", pooled.calls),
            ]
            .into_iter()
            .filter_map(move |(what, hits)| Some(pooled_row(name, what, hits?)))
        })
        .collect()
}

fn pooled_row(workload: &str, what: &str, hits: Hits) -> [String; 7] {
    let points = |value: f64| format!("{:.2} pp", 100.0 * value);
    [
        workload.to_owned(),
        what.to_owned(),
        hits.runs.to_string(),
        hits.inside
            .map_or("no interval".to_owned(), |inside| inside.to_string()),
        hits.width.map_or_else(String::new, points),
        format!("{:+.2} pp", 100.0 * hits.error),
        points(hits.size_of_error),
    ]
}

fn pooled_table(score: &Score) -> comfy_table::Table {
    let mut table = text::table(&POOLED_TITLES, 2);
    for row in pooled_rows(score) {
        table.add_row(row);
    }
    table
}

/// One line for each workload.
fn score_table(score: &Score) -> comfy_table::Table {
    let mut table = text::table(&SCORE_TITLES, 1);
    for workload in &score.workloads {
        table.add_row(score_cells(workload));
    }
    table
}

/// The columns of a score.
pub(crate) const SCORE_TITLES: [&str; 9] = [
    "workload",
    "predicted gain",
    "true gain",
    "off by",
    "sampled share",
    "true share",
    "perf's share",
    "calls off by",
    "profiler adds",
];

/// One workload in these columns: means of its runs.
pub(crate) fn score_cells(score: &WorkloadScore) -> [String; 9] {
    let or_none = |estimate: Option<Estimate>| estimate.map_or("none".to_owned(), percent_interval);
    let mean = |value: Option<f64>| value.map_or_else(String::new, percent);
    [
        score.workload.clone(),
        or_none(score.mean_estimate(|run| run.predicted_gain)),
        percent_interval(score.true_gain),
        score
            .mean(|run| run.gain_error)
            .map_or_else(String::new, |error| format!("{:+.2} pp", 100.0 * error)),
        or_none(score.mean_estimate(|run| run.sampled_share)),
        mean(score.mean(|run| Some(run.true_share))),
        percent(score.perf_share),
        score
            .mean(|run| run.counts.total.as_ref()?.error)
            .map_or("none".to_owned(), |error| {
                format!("{:+.2} %", 100.0 * error)
            }),
        mean(score.mean(|run| Some(run.own_cost.added))),
    ]
}
