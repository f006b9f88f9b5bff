//! The runs of a series, in two lines.

use anstyle::Style;

use super::escape::escape;
use super::page::Page;
use super::text::COLUMN;
use crate::model::Report;

/// What repeated runs came to; nothing when there was one.
pub(super) fn lines(page: &mut Page, report: &Report) {
    let run = &report.run;
    if run.runs.is_empty() {
        return;
    }
    let profiled = run.runs.iter().filter(|run| run.profiled).count();
    let mut text = format!("{profiled} profiled");
    match run.runs.len() - profiled {
        0 => {}
        others => text += &format!(", {others} with nothing attached"),
    }
    if let Some(metric) = &run.metric {
        let unit = if metric.unit.is_empty() {
            String::new()
        } else {
            format!(" {}", escape(&metric.unit))
        };
        text += &format!("; {} {}{unit}", escape(&metric.name), number(metric.value));
        if let (Some(low), Some(high)) = (metric.low, metric.high) {
            text += &format!(" ({} to {})", number(low), number(high));
        }
        if let Some(effect) = &run.profiler_effect {
            text += &format!(" profiled, {}{unit} not", number(effect.unprofiled));
        }
        text += &format!(" ({} is better)", escape(&metric.better));
    }
    page.labelled(COLUMN, "runs", &text, Style::new());
    if let Some(effect) = &run.profiler_effect {
        let interval = match (effect.low, effect.high) {
            (Some(low), Some(high)) => {
                format!(" (95 % interval {} to {})", signed(low), signed(high))
            }
            _ => ", from one pair".to_owned(),
        };
        let text = format!(
            "being profiled changes it by {} %{interval}",
            signed(effect.change)
        );
        page.labelled(COLUMN, "", &text, Style::new());
    }
    points(page, report);
}

/// The metric at each point of a sweep.
fn points(page: &mut Page, report: &Report) {
    for point in &report.run.points {
        let metric = &point.metric;
        let mut text = format!(
            "{}: {} {}",
            crate::diff::name(&point.point),
            escape(&metric.name),
            number(metric.value)
        );
        if !metric.unit.is_empty() {
            text += &format!(" {}", escape(&metric.unit));
        }
        if let (Some(low), Some(high)) = (metric.low, metric.high) {
            text += &format!(" ({} to {})", number(low), number(high));
        }
        page.labelled(COLUMN, "", &text, Style::new());
    }
}

/// A change in per cent, with its sign.
pub(crate) fn signed(fraction: f64) -> String {
    format!("{:+.2}", 100.0 * fraction)
}

/// A result with five digits.
pub(crate) fn number(value: f64) -> String {
    let digits = if value == 0.0 {
        0
    } else {
        (4 - value.abs().log10().floor() as i64).clamp(0, 9)
    };
    format!("{value:.*}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_five_digits() {
        for (value, text) in [
            (1.4191, "1.4191"),
            (3.285, "3.2850"),
            (46_612.4, "46612"),
            (1_205.274_518, "1205.3"),
            (0.000_123_456, "0.00012346"),
            (0.0, "0"),
            (1e12, "1000000000000"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(signed(-0.0123), "-1.23");
        assert_eq!(signed(0.5), "+50.00");
    }
}
