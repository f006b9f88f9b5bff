//! What `lab truth` prints for people.

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
