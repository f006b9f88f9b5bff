//! What a report says of its own quality: what was seen and lost, what it cost,
//! and what was in the way.

use anstyle::Style;

use super::escape::escape;
use super::number::{count, nanoseconds, percent};
use super::page::{Cell, Page, STRONG, WARNING};
use super::text::COLUMN;
use crate::model::report::Report;
use crate::probes::ProbeStatus;
use crate::recording::Gap;

/// Gaps shown before they are only counted.
const GAPS: usize = 3;

pub(super) fn coverage(page: &mut Page, report: &Report) {
    let coverage = &report.coverage;
    let mut parts = Vec::new();
    if !coverage.cpus.is_empty() {
        parts.push(format!("CPUs {}", escape(&coverage.cpus)));
    }
    let gaps = coverage.gaps.iter().take(GAPS).map(gap);
    let more = coverage.gaps.len().saturating_sub(GAPS);
    parts.extend(gaps);
    if more > 0 {
        parts.push(format!("{more} more gaps"));
    }
    if coverage.gaps.is_empty() {
        parts.push("no gaps".to_owned());
    }
    let mut some = |samples: u64, what: &str| {
        if samples > 0 {
            parts.push(format!("{} samples {what}", count(samples)));
        }
    };
    some(coverage.truncated_stacks, "with a stack cut short");
    some(coverage.stackless_samples, "without a kernel stack");
    some(coverage.unknown_samples, "in code without a symbol");
    page.labelled(COLUMN, "coverage", &parts.join("; "), Style::new());
}

pub(super) fn loss(page: &mut Page, report: &Report) {
    let loss = &report.loss;
    let lost: Vec<String> = loss
        .by_reason
        .iter()
        .filter(|(reason, _)| reason.as_str() != "stack_truncated")
        .map(|(reason, lost)| format!("{} {}", escape(reason), count(*lost)))
        .collect();
    if loss.total == 0 {
        let until = if report.run.complete {
            ""
        } else {
            " up to the last epoch that was recorded"
        };
        page.labelled(COLUMN, "lost", &format!("nothing{until}"), Style::new());
    } else {
        let text = format!("{} records: {}", count(loss.total), lost.join(", "));
        page.labelled(COLUMN, "lost", &text, WARNING);
    }
}

pub(super) fn overhead(page: &mut Page, report: &Report) {
    let Some(overhead) = &report.overhead else {
        let text = "not known: it is written when a run ends";
        page.labelled(COLUMN, "own cost", text, WARNING);
        return;
    };
    let mut text = format!(
        "{} % of the machine: BPF programs {}",
        percent(overhead.share),
        nanoseconds(overhead.bpf_ns),
    );
    if !overhead.bpf_source.is_empty() {
        text += &format!(" ({})", escape(&overhead.bpf_source));
    }
    if let Some(ns) = overhead.bpf_stats_ns {
        text += &format!(", or {} by the kernel's statistics", nanoseconds(ns));
    }
    text += &format!(", entering them {}", nanoseconds(overhead.probe_ns));
    if !overhead.probe_source.is_empty() {
        text += &format!(" ({})", escape(&overhead.probe_source));
    }
    text += &format!(
        ", own threads {}; set-up {}",
        nanoseconds(overhead.user_ns),
        nanoseconds(overhead.setup_ns)
    );
    page.labelled(COLUMN, "own cost", &text, Style::new());
    if let Some(counting) = &report.counting {
        let text = format!(
            "{} % of the machine, part of it: {} windows, {} hits at {:.0} ns, thread {}; {} of {} \
             places looked at, {} hit",
            percent(counting.share),
            count(counting.windows),
            count(counting.hits),
            counting.hit_ns.value,
            nanoseconds(counting.thread_ns),
            count(counting.looked_at),
            count(counting.places),
            count(counting.hit),
        );
        page.labelled(COLUMN, "counting", &text, Style::new());
    }
}

/// Rows of the status table that are not at their best.
pub(super) fn probes(page: &mut Page, probes: &[ProbeStatus]) {
    let degraded: Vec<&ProbeStatus> = probes
        .iter()
        .filter(|probe| !probe.absent)
        .filter(|probe| probe.leg == "none" || !probe.why_not_better.is_empty())
        .collect();
    if degraded.is_empty() {
        return;
    }
    page.blank();
    let rows: Vec<Vec<Cell>> = degraded.into_iter().map(probe_row).collect();
    page.table(
        &["DEGRADED", "LEG", "WHY NOT BETTER, AND THE FIX"],
        &rows,
        |_, _| {},
    );
}

/// A row of the status table: wanted, leg, why not better and the fix.
pub(super) fn probe_row(probe: &ProbeStatus) -> Vec<Cell> {
    let mut why = escape(&probe.why_not_better).into_owned();
    if !probe.fix.is_empty() {
        if !why.is_empty() {
            why.push_str("; ");
        }
        why += &format!("fix: {}", escape(&probe.fix));
    }
    let style = if probe.leg == "none" && !probe.absent {
        WARNING
    } else {
        Style::new()
    };
    vec![
        Cell::new(escape(&probe.wanted), STRONG),
        Cell::new(escape(&probe.leg), style),
        Cell::plain(why),
    ]
}

pub(super) fn warnings(page: &mut Page, report: &Report) {
    if !report.warnings.is_empty() {
        page.blank();
    }
    for warning in &report.warnings {
        page.line(0, &format!("warning: {}", escape(warning)), WARNING);
    }
}

fn gap(gap: &Gap) -> String {
    format!(
        "CPU {} not watched from {} to {} ({})",
        gap.cpu,
        nanoseconds(gap.from_ns),
        nanoseconds(gap.to_ns),
        escape(&gap.reason)
    )
}
