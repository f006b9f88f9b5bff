//! A comparison for a page on the web: Markdown tables.

use super::diff::{amean, first_result, how_sure, option_cells};
use super::escape::escape;
use super::number::percent;
use super::runs::signed;
use crate::diff::{Diff, name};

/// Callers shown.
const CALLERS: usize = 10;

/// The comparison as Markdown.
pub fn render(diff: &Diff) -> String {
    let mut out = format!("**{}**\n\n", text(&first_result(diff)));
    let sides = [
        row(&["", "base", "new"]),
        row(&["---", "---", "---"]),
        row(&[
            "kernel",
            &diff.base.kernel.release,
            &diff.new.kernel.release,
        ]),
        row(&[
            "preemption model",
            &diff.base.kernel.preempt_model.active.to_string(),
            &diff.new.kernel.preempt_model.active.to_string(),
        ]),
        row(&[
            "profiled runs",
            &diff.base.runs.to_string(),
            &diff.new.runs.to_string(),
        ]),
    ];
    out.extend(sides);
    let found = &diff.differences;
    for difference in found
        .kernel
        .iter()
        .chain(&found.config)
        .chain(&found.machine)
    {
        let shown = matches!(difference.what.as_str(), "release" | "preemption model");
        if !shown {
            out += &row(&[&difference.what, &difference.base, &difference.new]);
        }
    }
    out.push('\n');
    let measured = diff.metric.iter().map(|metric| (String::new(), metric));
    let points = diff.points.iter().filter_map(|point| {
        let metric = point.metric.as_ref()?;
        Some((name(&point.point), metric))
    });
    let rows: Vec<String> = measured
        .chain(points)
        .map(|(label, metric)| format!("{}\n    {}\n", amean(&label, metric), how_sure(metric)))
        .collect();
    if !rows.is_empty() {
        // Fenced, as they are aligned; a fence cannot end in a row of numbers.
        out += &format!("```\n{}```\n\n", rows.concat().replace('`', "'"));
    }
    if !diff.options.is_empty() {
        out += &row(&[
            "option",
            "state",
            "base %",
            "new %",
            "sampled change %",
            "predicted change %",
        ]);
        out += &row(&["---"; 6]);
        for option in &diff.options {
            let [states, base, new, observed, predicted] = option_cells(option);
            out += &row(&[&option.name, &states, &base, &new, &observed, &predicted]);
        }
        out.push('\n');
    }
    if !diff.callers.is_empty() {
        out += &row(&["caller", "group", "of", "base %", "new %", "change %"]);
        out += &row(&["---"; 6]);
        for caller in diff.callers.iter().take(CALLERS) {
            out += &row(&[
                &caller.symbol,
                caller.group.as_deref().unwrap_or_default(),
                &caller.option,
                &percent(caller.base_share),
                &percent(caller.new_share),
                &signed(caller.change),
            ]);
        }
        out.push('\n');
    }
    for warning in &diff.warnings {
        out += &format!("- warning: {}\n", text(warning));
    }
    out
}

fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| text(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// A name that must not become markup.
fn text(name: &str) -> String {
    let mut out = String::new();
    for c in escape(name).chars() {
        match c {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_not_markup() {
        assert_eq!(
            row(&["a|b", "<script>", "_x_\u{1b}[2J"]),
            "| a\\|b | &lt;script&gt; | \\_x\\_\\\\x1b\\[2J |\n"
        );
    }
}
