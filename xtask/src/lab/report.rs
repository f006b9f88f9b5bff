//! What `lab truth` and `lab score` print for people.

use super::score::{Score, WorkloadScore};
use super::stats::Estimate;
use super::text::{self, count, count_interval, percent, percent_interval, seconds_interval};
use super::truth::{FunctionDifference, Truth};

/// Lines of each list.
const LINES: usize = 12;

/// A truth as text.
pub(crate) fn truth(truth: &Truth) -> String {
    let mut out = format!(
        "{}: {} against {}, {} and {} runs of `{}`\n\n",
        truth.workload,
        truth.with.kernel,
        truth.without.kernel,
        truth.with.runs,
        truth.without.runs,
        truth.command
    );
    let mut table = text::table(&["per run", "with", "without", "saved"], 1);
    table.add_row([
        "guest time".to_owned(),
        seconds_interval(truth.with.guest_ns),
        seconds_interval(truth.without.guest_ns),
        percent_interval(truth.gain),
    ]);
    table.add_row([
        "instructions".to_owned(),
        count_interval(truth.with.instructions),
        count_interval(truth.without.instructions),
        percent_interval(truth.gain_instructions),
    ]);
    table.add_row([
        "at equal context switches".to_owned(),
        String::new(),
        String::new(),
        percent_interval(truth.gain_at_equal_switches),
    ]);
    for work in &truth.work {
        let verdict = match work.same {
            Some(true) => "same",
            Some(false) => "differs: not all of the gain is the option's own cost",
            None => "",
        };
        table.add_row([
            work.what.clone(),
            count_interval(work.with),
            count_interval(work.without),
            verdict.to_owned(),
        ]);
    }
    out.push_str(&format!("{}\n\n", text::lines(&table)));

    out.push_str(&format!(
        "the option's own functions: {} of all instructions\n",
        percent_interval(truth.share)
    ));
    let mut table = text::table(&["function", "calls", "instructions", "share"], 1);
    for function in truth.own_functions.iter().take(LINES) {
        let cost = function.with.unwrap_or_default();
        table.add_row([
            function.symbol.clone(),
            count(cost.calls),
            count(cost.instructions),
            percent(cost.instructions / truth.with.instructions.value),
        ]);
    }
    out.push_str(&format!(
        "{}\n\nother functions that differ most\n",
        text::lines(&table)
    ));
    let mut table = text::table(
        &[
            "function",
            "calls with",
            "without",
            "instructions more",
            "a call",
        ],
        1,
    );
    for function in truth.functions.iter().take(LINES) {
        table.add_row(function_row(function));
    }
    out.push_str(&format!(
        "{}\n\nmost frequent call sites\n",
        text::lines(&table)
    ));
    let mut table = text::table(&["target", "caller", "calls"], 2);
    for site in truth.sites.iter().take(LINES) {
        table.add_row([
            site.target.clone(),
            format!("{}+{:#x}", site.caller, site.offset),
            count(site.calls),
        ]);
    }
    out.push_str(&format!("{}\n", text::lines(&table)));
    out
}

fn function_row(function: &FunctionDifference) -> [String; 5] {
    let calls = |cost: Option<super::truth::Cost>| count(cost.map_or(0.0, |c| c.calls));
    [
        function.symbol.clone(),
        calls(function.with),
        calls(function.without),
        count(function.instructions_more),
        function
            .more_per_call
            .map_or_else(String::new, |more| format!("{more:+.2}")),
    ]
}

/// The score as text.
pub(crate) fn score(score: &Score) -> String {
    let mut out = format!(
        "{}: preemptprof on {}, truth from {}\n\n{}\n",
        score.option,
        score.with,
        score.without,
        text::lines(&score_table(score))
    );
    for workload in &score.workloads {
        let lists = [("function", &workload.calls), ("caller", &workload.callers)];
        for (title, calls) in lists {
            if calls.is_empty() {
                continue;
            }
            let mut table = text::table(&[title, "calls counted", "true", "error"], 1);
            for calls in calls {
                table.add_row([
                    calls.symbol.clone(),
                    count(calls.counted),
                    count(calls.truth),
                    calls.error.map_or_else(String::new, percent),
                ]);
            }
            out.push_str(&format!(
                "\n{}\n{}\n",
                workload.workload,
                text::lines(&table)
            ));
        }
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

/// One line for each workload.
fn score_table(score: &Score) -> comfy_table::Table {
    let mut table = text::table(&SCORE_TITLES, 1);
    for workload in &score.workloads {
        table.add_row(score_cells(workload));
    }
    table
}

/// The columns of a score.
pub(crate) const SCORE_TITLES: [&str; 8] = [
    "workload",
    "predicted gain",
    "true gain",
    "off by",
    "sampled share",
    "true share",
    "perf's share",
    "profiler adds",
];

/// One workload in these columns.
pub(crate) fn score_cells(score: &WorkloadScore) -> [String; 8] {
    let or_none = |estimate: Option<Estimate>| estimate.map_or("none".to_owned(), percent_interval);
    [
        score.workload.clone(),
        or_none(score.predicted_gain),
        percent_interval(score.true_gain),
        score
            .gain_error
            .map_or_else(String::new, |error| format!("{:+.2} pp", 100.0 * error)),
        or_none(score.sampled_share),
        percent(score.true_share),
        percent(score.perf_share),
        percent(score.added),
    ]
}
