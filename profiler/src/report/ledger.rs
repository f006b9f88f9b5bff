//! The ledger as text: two columns, cost and benefit, and what stands behind
//! them.

use anstyle::Style;

use super::escape::escape;
use super::number::{count, nanoseconds, percent};
use super::page::{Cell, FAINT, Page, STRONG};
use crate::model::ledger::{LedgerRow, Times, WakeupLatency};
use crate::model::report::{Report, Switches};

/// Pairs, groups and long latencies shown.
const SHOWN: usize = 5;
/// Column in which what follows a label begins.
const COLUMN: usize = 13;
/// Frames of a stack shown, innermost ones.
const FRAMES: usize = 4;

/// The ledger, where the report has one.
pub(super) fn render(page: &mut Page, report: &Report) {
    let Some(ledger) = &report.ledger else {
        return;
    };
    page.blank();
    for (title, rows) in [("COST", &ledger.cost), ("BENEFIT", &ledger.benefit)] {
        if !rows.is_empty() {
            let cells: Vec<Vec<Cell>> = rows.iter().map(cells).collect();
            page.table(
                &[title, "NUMBER", "KNOWN", "WHAT IT SAYS"],
                &cells,
                |_, _| {},
            );
            page.blank();
        }
    }
    let kernel = &report.kernel;
    page.labelled(
        COLUMN,
        "model",
        &escape(&kernel.how_to_change_model),
        Style::new(),
    );
    page.labelled(COLUMN, "tick", &tick(report), Style::new());
    page.labelled(COLUMN, "RCU", &rcu(report), Style::new());
    if let Some(switches) = &report.switches {
        by_cause(page, switches);
    }
    if let Some(latency) = &report.wakeup_latency {
        latencies(page, latency);
    }
    timers(page, report);
}

fn cells(row: &LedgerRow) -> Vec<Cell> {
    vec![
        Cell::new(escape(&row.name), STRONG),
        Cell::plain(number(row)),
        Cell::new(row.evidence.as_str(), FAINT),
        Cell::plain(escape(&row.sentence)),
    ]
}

pub(super) fn number(row: &LedgerRow) -> String {
    let value = |value: f64| match row.unit.as_str() {
        "ns" if value < 0.0 => format!("-{}", nanoseconds(-value as u64)),
        "ns" => nanoseconds(value as u64),
        "fraction" => format!("{} %", percent(value)),
        _ => count(value as u64),
    };
    value(row.value)
}

fn known(value: Option<bool>, name: &str, off: &str) -> Option<String> {
    value.map(|on| if on { name.to_owned() } else { off.to_owned() })
}

fn tick(report: &Report) -> String {
    let tick = &report.kernel.tick;
    let hz = report.kernel.hz.map(|hz| format!("HZ {hz}"));
    let parts: Vec<String> = [
        hz,
        tick.mode.clone(),
        known(
            tick.high_res,
            "high-resolution timers",
            "no high-resolution timers",
        ),
    ]
    .into_iter()
    .flatten()
    .chain(tick.boot.iter().cloned())
    .map(|part| escape(&part).into_owned())
    .collect();
    if parts.is_empty() {
        "not known".to_owned()
    } else {
        parts.join(", ")
    }
}

fn rcu(report: &Report) -> String {
    let rcu = &report.kernel.rcu;
    let parts: Vec<String> = [
        known(rcu.preempt, "PREEMPT_RCU", "readers not preemptible"),
        known(rcu.nocb, "NOCB", "no NOCB"),
        known(rcu.lazy, "lazy callbacks", "no lazy callbacks"),
    ]
    .into_iter()
    .flatten()
    .chain(rcu.boot.iter().cloned())
    .map(|part| escape(&part).into_owned())
    .collect();
    if parts.is_empty() {
        "not known".to_owned()
    } else {
        parts.join(", ")
    }
}

fn by_cause(page: &mut Page, switches: &Switches) {
    let causes: Vec<String> = switches
        .by_cause
        .iter()
        .map(|cause| format!("{} {}", count(cause.count), escape(&cause.cause)))
        .collect();
    if !causes.is_empty() {
        let text = format!("{} (inferred from stacks)", causes.join(", "));
        page.labelled(COLUMN, "preempted", &text, Style::new());
    }
    for pair in switches.preemptions_by.iter().take(SHOWN) {
        let kind = if pair.by_kernel_thread {
            "kernel thread "
        } else {
            ""
        };
        let text = format!(
            "{kind}{} took the CPU from {} {} times, which waited {} in all",
            escape(&pair.by),
            escape(&pair.of),
            count(pair.count),
            nanoseconds(pair.wait_ns)
        );
        page.labelled(COLUMN, "", &text, Style::new());
    }
    more(page, switches.preemptions_by.len(), "pairs");
}

fn more(page: &mut Page, all: usize, what: &str) {
    if all > SHOWN {
        page.labelled(
            COLUMN,
            "",
            &format!("and {} more {what}", all - SHOWN),
            FAINT,
        );
    }
}

/// `50 % 12 us, 90 % ...`.
fn times(times: &Times) -> String {
    let quantiles = [
        ("50 %", times.p50_ns),
        ("90 %", times.p90_ns),
        ("99 %", times.p99_ns),
        ("99.9 %", times.p999_ns),
        ("longest", times.max_ns),
    ];
    let parts: Vec<String> = quantiles
        .into_iter()
        .filter_map(|(name, ns)| Some(format!("{name} {}", nanoseconds(ns?))))
        .collect();
    parts.join(", ")
}

fn latencies(page: &mut Page, latency: &WakeupLatency) {
    let text = if latency.times.count == 0 {
        "no task waited".to_owned()
    } else {
        format!(
            "{} waits: {} (each within {:.1} %)",
            count(latency.times.count),
            times(&latency.times),
            100.0 * latency.relative_error
        )
    };
    page.labelled(COLUMN, "wake-ups", &text, Style::new());
    let mut left_out = Vec::new();
    for (number, what) in [
        (latency.woken_running, "woken while still running"),
        (latency.ended_waiting, "ended before they ran"),
        (latency.clock_backwards, "left out, as clocks differ"),
    ] {
        if number > 0 {
            left_out.push(format!("{} {what}", count(number)));
        }
    }
    if !left_out.is_empty() {
        page.labelled(COLUMN, "", &left_out.join(", "), FAINT);
    }
    for group in latency.groups.iter().take(SHOWN) {
        let text = format!(
            "{}: {} waits, {}",
            escape(&group.comm),
            count(group.times.count),
            times(&group.times)
        );
        page.labelled(COLUMN, "", &text, Style::new());
    }
    more(page, latency.groups.len(), "task names");
    for worst in latency.worst.iter().take(SHOWN) {
        let mut text = format!(
            "{} waited {} on CPU {}",
            escape(&worst.comm),
            nanoseconds(worst.wait_ns),
            worst.cpu
        );
        if worst.culprit_pid == 0 {
            text.push_str(", which was idle");
        } else {
            text += &format!(
                " while {} had it, until {}",
                escape(&worst.culprit),
                escape(&innermost(&worst.stack))
            );
        }
        page.labelled(COLUMN, "longest", &text, Style::new());
    }
}

fn innermost(stack: &str) -> String {
    let frames: Vec<&str> = stack.split(';').collect();
    frames[frames.len().saturating_sub(FRAMES)..].join(" > ")
}

fn timers(page: &mut Page, report: &Report) {
    let Some(timers) = &report.timers else {
        return;
    };
    if timers.rounded_waits == 0 {
        page.labelled(
            COLUMN,
            "timers",
            "no wait was ended by a jiffy timer",
            Style::new(),
        );
    }
    for by in timers.by.iter().take(SHOWN) {
        let text = format!(
            "{} waits of {} took {}, {} of it by rounding: {}",
            count(by.count),
            escape(&by.comm),
            nanoseconds(by.waited_ns),
            nanoseconds(by.lost_ns),
            escape(&innermost(&by.stack))
        );
        page.labelled(COLUMN, "timers", &text, Style::new());
    }
    more(page, timers.by.len(), "call sites");
}
