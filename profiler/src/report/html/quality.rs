//! What the page says of its own quality: loss, coverage, own cost by part, and
//! how calls were counted.

use super::parts::{Html, row};
use crate::model::report::{CountingReport, OverheadReport, Report};
use crate::recording::{Gap, Measured};
use crate::report::{count, nanoseconds, percent};

/// Gaps shown; the page says how many more there are.
const GAPS: usize = 20;

pub(super) fn section(html: &mut Html, report: &Report) {
    html.raw("<section id=\"quality\">\n<h2>Loss and own cost</h2>\n<dl>\n");
    html.item("Lost", &lost(report));
    html.item("Coverage", &covered(report));
    let own = match &report.overhead {
        Some(own) => format!("{} % of the machine", percent(own.share)),
        None => "not known: it is written when a run ends".to_owned(),
    };
    html.item("Own cost", &own);
    if let Some(counting) = &report.counting {
        html.item("Counting", &counted(counting));
    }
    html.raw("</dl>\n");
    if report.loss.total > 0 {
        reasons(html, report);
    }
    if let Some(own) = &report.overhead {
        cost(html, own, report.counting.as_ref());
    }
    gaps(html, &report.coverage.gaps);
    probes(html, report);
    html.raw("</section>\n<footer><p>preemptprof ");
    html.text(env!("CARGO_PKG_VERSION"));
    html.raw(". Shares are of the workload's samples and do not overlap; intervals are of 95 %.");
    html.raw("</p></footer>\n");
}

fn lost(report: &Report) -> String {
    let until = match report.run.complete {
        true => "",
        false => " up to the last epoch that was recorded",
    };
    match (report.loss.total, &report.run.imported) {
        (0, Some(_)) => "nothing that the import shows".to_owned(),
        (0, None) => format!("nothing{until}"),
        (1, _) => format!("1 record{until}"),
        (total, _) => format!("{} records{until}", count(total)),
    }
}

fn reasons(html: &mut Html, report: &Report) {
    html.raw(
        "<table class=\"fit\"><thead><tr><th>Lost because of<th class=\"num\">Records</tr></thead>",
    );
    html.raw("<tbody>\n");
    for (reason, lost) in &report.loss.by_reason {
        // Cut stacks are not lost.
        if reason != "stack_truncated" {
            html.raw(&row(&[("", reason), ("num", &count(*lost))]));
        }
    }
    html.raw("</tbody></table>\n");
}

fn covered(report: &Report) -> String {
    let coverage = &report.coverage;
    let mut seen = format!(
        "CPUs {}; idle samples {}",
        if coverage.cpus.is_empty() {
            "not known"
        } else {
            &coverage.cpus
        },
        count(coverage.idle_samples)
    );
    for (number, what) in [
        (coverage.stackless_samples, "samples without a kernel stack"),
        (coverage.truncated_stacks, "stacks cut short"),
        (coverage.unknown_samples, "samples without a symbol"),
    ] {
        if number > 0 {
            seen += &format!("; {} {what}", count(number));
        }
    }
    match coverage.gaps.len() {
        0 => {}
        1 => seen += "; once a CPU was not watched",
        gaps => seen += &format!("; {} times a CPU was not watched", count(gaps as u64)),
    }
    seen
}

fn counted(counting: &CountingReport) -> String {
    format!(
        "by {}: {} windows, {} together; {} hits; {} of {} places looked at, {} hit",
        counting.leg,
        count(counting.windows),
        nanoseconds(counting.armed_ns),
        count(counting.hits),
        count(counting.looked_at),
        count(counting.places),
        count(counting.hit),
    )
}

/// The profiler's own cost, part by part.
fn cost(html: &mut Html, own: &OverheadReport, counting: Option<&CountingReport>) {
    html.raw("<table class=\"facts\"><thead><tr><th>Part of the own cost<th class=\"num\">Takes");
    html.raw("<th>How that is known</tr></thead><tbody>\n");
    let mut part = |name: &str, takes: &str, how: &str| {
        html.raw(&row(&[("", name), ("num", takes), ("", how)]));
    };
    part("BPF programs", &nanoseconds(own.bpf_ns), &own.bpf_source);
    if let Some(ns) = own.bpf_stats_ns {
        let how = "the kernel's own statistics; not added";
        part("BPF programs, once more", &nanoseconds(ns), how);
    }
    let entering = nanoseconds(own.probe_ns);
    part("Entering them", &entering, &own.probe_source);
    let threads = nanoseconds(own.user_ns);
    part("Own threads", &threads, "their CPU time");
    if let Some(counting) = counting {
        let takes = format!("{} %", percent(counting.share));
        let how = format!(
            "of the machine, in the parts above: {} hits at {} ns, the counting thread {}",
            count(counting.hits),
            measured(&counting.hit_ns, 0),
            nanoseconds(counting.thread_ns)
        );
        part("Counting calls", &takes, &how);
        let pace = format!("{} ns", measured(&counting.ns_per_instruction, 3));
        let how = format!(
            "{}; what costs of calls are made from",
            counting.pace_source
        );
        part("An instruction of what is counted", &pace, &how);
    }
    let setup = nanoseconds(own.setup_ns);
    part("Set-up", &setup, "before the workload began; not added");
    html.raw("</tbody></table>\n");
}

/// A number with its bounds.
fn measured(number: &Measured, digits: usize) -> String {
    let Measured { value, low, high } = number;
    format!("{value:.digits$} ({low:.digits$}-{high:.digits$})")
}

fn gaps(html: &mut Html, gaps: &[Gap]) {
    if gaps.is_empty() {
        return;
    }
    html.raw("<details><summary>Times in which a CPU was not watched</summary>\n");
    html.raw("<table><thead><tr><th>CPU<th class=\"num\">From<th class=\"num\">To<th>Why");
    html.raw("</tr></thead><tbody>\n");
    for gap in gaps.iter().take(GAPS) {
        html.raw(&row(&[
            ("", &gap.cpu.to_string()),
            ("num", &nanoseconds(gap.from_ns)),
            ("num", &nanoseconds(gap.to_ns)),
            ("", &gap.reason),
        ]));
    }
    html.raw("</tbody></table>\n");
    let hidden = gaps.len().saturating_sub(GAPS);
    if hidden > 0 {
        html.raw(&format!("<p>and {} more</p>\n", count(hidden as u64)));
    }
    html.raw("</details>\n");
}

fn probes(html: &mut Html, report: &Report) {
    if report.probes.is_empty() {
        return;
    }
    html.raw("<details><summary>What was attached</summary>\n<table><thead><tr>");
    html.raw("<th>Wanted<th>Leg<th>Why not a better one<th>Fix</tr></thead><tbody>\n");
    for probe in &report.probes {
        html.raw(&row(&[
            ("", &probe.wanted),
            ("", &probe.leg),
            ("", &probe.why_not_better),
            ("", &probe.fix),
        ]));
    }
    html.raw("</tbody></table></details>\n");
}
