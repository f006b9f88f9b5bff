//! A comparison for people: what differs, what it did, and what explains it.

use anstyle::Style;

use super::escape::escape;
use super::number::{count, nanoseconds, percent};
use super::page::{COST, Cell, FAINT, Page, STRONG, WARNING};
use super::runs::{number, signed};
use super::text::{COLUMN, TextOptions, kernel_line, short};
use crate::diff::document::{Difference, Explained, MetricDiff, OptionDiff, PerRun};
use crate::diff::{Diff, name};
use crate::model::report::Estimate;

/// Differences of a kind that are shown before they are only counted.
const SHOWN: usize = 20;

/// The comparison as text.
pub fn render(diff: &Diff, options: &TextOptions) -> String {
    let mut page = Page::new(options.width, options.color);
    page.line(0, &first_result(diff), STRONG);
    for (label, side) in [("base", &diff.base), ("new", &diff.new)] {
        let runs = match side.runs {
            1 => "1 profiled run".to_owned(),
            runs => format!("{runs} profiled runs"),
        };
        let text = format!(
            "{} ({runs}, {} samples)",
            kernel_line(&side.kernel),
            count(side.samples)
        );
        page.labelled(COLUMN, label, &text, Style::new());
    }
    page.labelled(
        COLUMN,
        "workload",
        &super::command_line(&diff.base.command),
        Style::new(),
    );
    page.blank();
    differences(&mut page, diff);
    metrics(&mut page, diff);
    option_table(&mut page, &diff.options);
    callers(&mut page, diff, options.callers);
    rest(&mut page, diff);
    if !diff.warnings.is_empty() {
        page.blank();
    }
    for warning in &diff.warnings {
        page.line(0, &format!("warning: {}", escape(warning)), WARNING);
    }
    page.finish()
}

/// The comparison in one sentence.
pub(super) fn first_result(diff: &Diff) -> String {
    let Some(metric) = &diff.metric else {
        let significant = diff.points.iter().filter_map(|point| point.metric.as_ref());
        let significant = significant.filter(|metric| metric.significant).count();
        return match diff.points.len() {
            0 => "There is no metric to compare.".to_owned(),
            points => format!("{significant} of {points} points differ significantly."),
        };
    };
    let improvement = metric.improvement();
    let verdict = if improvement >= 0.0 {
        "better"
    } else {
        "worse"
    };
    let mark = if metric.significant {
        ", significant"
    } else if metric.can_be_significant() {
        ", not significant"
    } else {
        ", too few runs to tell from chance"
    };
    let explained = diff
        .explained
        .map(|explained| format!("; {}", explains(&explained, metric)))
        .unwrap_or_default();
    format!(
        "{} {}{} -> {}{}: {:.2} % {verdict}{mark}{explained}",
        escape(&metric.name),
        number(metric.base),
        unit(metric),
        number(metric.new),
        unit(metric),
        100.0 * improvement.abs(),
    )
}

/// `the options explain 10.1 of the 10.9 % difference`.
fn explains(explained: &Explained, metric: &MetricDiff) -> String {
    let change = 100.0 * metric.time_change();
    format!(
        "the options that differ explain {}{:.1} of the {:.1} % difference in time ({:.0} %, 95 % interval {:.0} to {:.0})",
        if explained.at_least { "at least " } else { "" },
        change.abs() * explained.fraction,
        change.abs(),
        100.0 * explained.fraction,
        100.0 * explained.low,
        100.0 * explained.high
    )
}

fn unit(metric: &MetricDiff) -> String {
    match metric.unit.as_str() {
        "" => String::new(),
        unit => format!(" {}", escape(unit)),
    }
}

fn differences(page: &mut Page, diff: &Diff) {
    let found = &diff.differences;
    let all = [&found.kernel, &found.config, &found.machine];
    if all.iter().all(|found| found.is_empty()) {
        page.line(0, "The kernels and machines are the same.", Style::new());
        page.blank();
        return;
    }
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut hidden = 0;
    for found in all {
        rows.extend(found.iter().take(SHOWN).map(difference_row));
        hidden += found.len().saturating_sub(SHOWN);
    }
    page.table(&["DIFFERENCE", "BASE", "NEW"], &rows, |_, _| {});
    if hidden > 0 {
        page.line(
            0,
            &format!("and {hidden} more, all of them with --format json"),
            FAINT,
        );
    }
    page.blank();
}

fn difference_row(difference: &Difference) -> Vec<Cell> {
    let text = |value: &str| match value {
        "" => "-".to_owned(),
        value => escape(value).into_owned(),
    };
    vec![
        Cell::new(escape(&difference.what), STRONG),
        Cell::plain(text(&difference.base)),
        Cell::plain(text(&difference.new)),
    ]
}

fn metrics(page: &mut Page, diff: &Diff) {
    let mut first = true;
    let mut head = |page: &mut Page, metric: &MetricDiff| {
        if std::mem::take(&mut first) {
            let text = format!(
                "{}{}, {} is better; * is significant at 0.05{}",
                escape(&metric.name),
                match metric.unit.as_str() {
                    "" => String::new(),
                    unit => format!(" in {}", escape(unit)),
                },
                escape(&metric.better),
                if diff.points.is_empty() {
                    ""
                } else {
                    ", all points taken together"
                }
            );
            page.line(0, &text, Style::new());
        }
    };
    if let Some(metric) = &diff.metric {
        head(page, metric);
        page.line(0, &amean("", metric), row_style(metric));
        page.line(4, &how_sure(metric), Style::new());
        page.blank();
    }
    for point in &diff.points {
        let Some(metric) = &point.metric else {
            continue;
        };
        head(page, metric);
        // One parameter needs no name in each row.
        let label = match point.point.len() {
            1 => point.point.values().map(|value| escape(value)).collect(),
            _ => name(&point.point),
        };
        page.line(0, &amean(&label, metric), row_style(metric));
    }
    if !diff.points.is_empty() {
        page.blank();
        for point in &diff.points {
            let (Some(metric), Some(explained)) = (&point.metric, &point.explained) else {
                continue;
            };
            let text = format!("{}: {}", name(&point.point), explains(explained, metric));
            page.line(0, &text, Style::new());
        }
        page.blank();
    }
}

/// How a row of the metric is shown.
fn row_style(metric: &MetricDiff) -> Style {
    match metric.significant {
        true if metric.improvement() < 0.0 => COST,
        true => STRONG,
        false => Style::new(),
    }
}

/// A row in the layout of MMTests: a positive percentage is better.
pub(super) fn amean(label: &str, metric: &MetricDiff) -> String {
    let percent = 100.0 * metric.improvement();
    let (open, close) = if metric.significant {
        ('*', '*')
    } else {
        ('(', ')')
    };
    let label = if label.is_empty() {
        String::new()
    } else {
        format!(" {label:<5}")
    };
    format!(
        "Amean{label}  {:.4} (0.00%)  {:.4} {open}{percent:>6.2}%{close}",
        metric.base, metric.new
    )
}

/// Interval, tests, and how many runs there are.
pub(super) fn how_sure(metric: &MetricDiff) -> String {
    let mut text = format!("change {} %", signed(metric.change));
    if let (Some(low), Some(high)) = (metric.low, metric.high) {
        text += &format!(" (95 % interval {} to {})", signed(low), signed(high));
    }
    if let Some(p) = metric.p {
        text += &format!(", Mann-Whitney p {}", probability(p));
    }
    if let Some(p) = metric.welch_p {
        text += &format!(", Welch p {}", probability(p));
    }
    let (base, new) = (metric.base_values.len(), metric.new_values.len());
    text += &format!("; {base} and {new} {} runs", escape(&metric.runs));
    text
}

fn probability(p: f64) -> String {
    if p < 0.001 {
        "< 0.001".to_owned()
    } else {
        format!("{p:.3}")
    }
}

/// Options as rows: name, states, shares, prediction, observation.
pub(super) fn option_cells(option: &OptionDiff) -> [String; 5] {
    let states = if option.differs {
        format!("{} -> {}", escape(&option.base), escape(&option.new))
    } else {
        escape(&option.base).into_owned()
    };
    let share = |share: &Option<Estimate>| match share {
        Some(share) => percent(share.value),
        None => "-".to_owned(),
    };
    let predicted = option.predicted.as_ref().map_or_else(
        || "-".to_owned(),
        |predicted| {
            format!(
                "{}{} ({} to {}) by {}",
                if predicted.at_least { "at least " } else { "" },
                signed(predicted.value),
                signed(predicted.low),
                signed(predicted.high),
                escape(&predicted.from)
            )
        },
    );
    let observed = option.observed.as_ref().map_or_else(
        || "-".to_owned(),
        |observed| {
            format!(
                "{} ({} to {})",
                signed(observed.value),
                signed(observed.low),
                signed(observed.high)
            )
        },
    );
    [
        states,
        share(&option.base_share),
        share(&option.new_share),
        observed,
        predicted,
    ]
}

fn option_table(page: &mut Page, options: &[OptionDiff]) {
    if options.is_empty() {
        return;
    }
    let rows: Vec<Vec<Cell>> = options
        .iter()
        .map(|option| {
            let style = if option.differs { STRONG } else { Style::new() };
            let mut row = vec![Cell::new(short(&option.name), style)];
            row.extend(option_cells(option).map(Cell::plain));
            row
        })
        .collect();
    let headings = [
        "OPTION",
        "STATE",
        "BASE %",
        "NEW %",
        "SAMPLED CHANGE %",
        "PREDICTED CHANGE %",
    ];
    page.table(&headings, &rows, |_, _| {});
    page.blank();
}

fn callers(page: &mut Page, diff: &Diff, shown: usize) {
    if diff.callers.is_empty() || shown == 0 {
        return;
    }
    let rows: Vec<Vec<Cell>> = diff
        .callers
        .iter()
        .take(shown)
        .map(|caller| {
            let group = caller
                .group
                .as_ref()
                .map(|group| format!("[{}]", escape(group)))
                .unwrap_or_default();
            let sites = caller
                .sites
                .iter()
                .take(2)
                .map(|site| format!("{} {}", escape(&site.site), signed(site.change)));
            vec![
                Cell::new(escape(&caller.symbol), STRONG),
                Cell::plain(group),
                Cell::plain(percent(caller.base_share)),
                Cell::plain(percent(caller.new_share)),
                Cell::plain(signed(caller.change)),
                Cell::plain(short(&caller.option)),
                Cell::plain(sites.collect::<Vec<_>>().join(", ")),
            ]
        })
        .collect();
    let headings = ["CALLER", "", "BASE %", "NEW %", "CHANGE %", "OF", "SITES"];
    page.table(&headings, &rows, |_, _| {});
    let hidden = diff.callers.len().saturating_sub(shown);
    if hidden > 0 {
        page.line(0, &format!("and {hidden} more callers"), FAINT);
    }
    page.blank();
}

fn rest(page: &mut Page, diff: &Diff) {
    let counts = |of: &PerRun| {
        let change = if of.base > 0.0 {
            format!(" ({} %)", signed(of.new / of.base - 1.0))
        } else {
            String::new()
        };
        format!("{} -> {}{change}", number(of.base), number(of.new))
    };
    let times = |of: &PerRun| {
        let text = |ns: f64| nanoseconds(ns as u64);
        format!("{} -> {}", text(of.base), text(of.new))
    };
    if let Some(switches) = &diff.switches {
        let text = format!(
            "a run: voluntary {}, preempted {}",
            counts(&switches.voluntary),
            counts(&switches.preempted)
        );
        page.labelled(COLUMN, "switches", &text, Style::new());
    }
    for event in &diff.rcu {
        let text = format!(
            "a run: {} calls, blocked {}; longest {}",
            counts(&event.count),
            times(&event.total_ns),
            times(&event.max_ns)
        );
        page.labelled(COLUMN, &escape(&event.event), &text, Style::new());
    }
    if let Some(latency) = &diff.wakeup_latency {
        let text = format!(
            "median {}, 99th percentile {}, longest {}",
            times(&latency.p50_ns),
            times(&latency.p99_ns),
            times(&latency.max_ns)
        );
        page.labelled(COLUMN, "wake-up", &text, Style::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_laid_out_as_mmtests_does() {
        let mut metric = MetricDiff {
            base: 1.4191,
            new: 1.2650,
            change: 1.2650 / 1.4191 - 1.0,
            better: "lower".into(),
            significant: true,
            ..MetricDiff::default()
        };
        assert_eq!(
            amean("4", &metric),
            "Amean 4      1.4191 (0.00%)  1.2650 * 10.86%*"
        );
        metric.significant = false;
        metric.better = "higher".into();
        assert_eq!(
            amean("", &metric),
            "Amean  1.4191 (0.00%)  1.2650 (-10.86%)"
        );
    }
}
