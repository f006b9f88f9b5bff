//! Numbers and tables for people.

use comfy_table::{CellAlignment, Table, presets};

use super::stats::Estimate;

/// A table with a line of titles; all columns but the first `left` are numbers.
pub(crate) fn table(titles: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(titles.iter().map(|title| (*title).to_owned()));
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if index >= left {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The lines of a table, without the blanks at their ends.
pub(crate) fn lines(table: &Table) -> String {
    let lines: Vec<String> = table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.join("\n")
}

/// A fraction as percent.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.2} %", 100.0 * fraction)
}

/// A fraction with its interval, as percent.
pub(crate) fn percent_interval(estimate: Estimate) -> String {
    match (estimate.low, estimate.high) {
        (Some(low), Some(high)) => format!(
            "{:.2} % ({:.2} to {:.2})",
            100.0 * estimate.value,
            100.0 * low,
            100.0 * high
        ),
        _ => percent(estimate.value),
    }
}

/// A count with a unit prefix.
pub(crate) fn count(value: f64) -> String {
    let size = value.abs();
    if size >= 1e9 {
        format!("{:.3} G", value / 1e9)
    } else if size >= 1e6 {
        format!("{:.2} M", value / 1e6)
    } else if size >= 1e4 {
        format!("{:.1} k", value / 1e3)
    } else if size >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// A count with half its interval.
pub(crate) fn count_interval(estimate: Estimate) -> String {
    match estimate.margin() {
        Some(margin) => format!("{} ± {}", count(estimate.value), count(margin)),
        None => count(estimate.value),
    }
}

/// Nanoseconds with half their interval, in seconds.
pub(crate) fn seconds_interval(ns: Estimate) -> String {
    let seconds = ns.scaled(1e9);
    match seconds.margin() {
        Some(margin) => format!("{:.4} s ± {margin:.4}", seconds.value),
        None => format!("{:.4} s", seconds.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let cases = [
            (514_500_000.0, "514.50 M"),
            (705_109.0, "705.1 k"),
            (1609.0, "1609"),
            (2.7, "2.7"),
            (0.0, "0"),
            (-3_200_000.0, "-3.20 M"),
            (5.1e9, "5.100 G"),
        ];
        for (value, text) in cases {
            assert_eq!(count(value), text);
        }
        let estimate = Estimate {
            value: 0.113,
            low: Some(0.109),
            high: Some(0.118),
        };
        assert_eq!(percent_interval(estimate), "11.30 % (10.90 to 11.80)");
    }
}
