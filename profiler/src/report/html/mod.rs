//! The report as one page that needs no network: what the text report has, the
//! flame graph, and the run over time.
//!
//! Without scripts everything but the flame graph is there. The page forbids
//! itself every connection (Content-Security-Policy), and names are escaped twice:
//! for the reader's eyes as in all reports, and for HTML.

mod flame;
mod options;
mod parts;
mod quality;
mod time;

use std::fmt::Write as _;
use std::io::Write;

use self::parts::{Html, row};
use super::ledger::number;
use super::text::{by_leg, costly, first_result, is_blind, kernel_line};
use super::text::{waits_line, workload_line};
use super::{command_line, count, nanoseconds, percent};
use crate::model::Attribution;
use crate::model::ledger::Times;
use crate::model::report::Report;
use crate::recording::Recording;
use crate::report::number::seconds;

/// A name without `CONFIG_`.
fn short(name: &str) -> &str {
    name.strip_prefix("CONFIG_").unwrap_or(name)
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Paths into rcu_barrier shown.
const RCU_PATHS: usize = 20;

/// Colours of the options that cost, the most costly first, by class name.
const COLORS: usize = 8;

/// Writes the page.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    report: &Report,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    // The order of the table decides about colours, here and in the graphs.
    let costly: Vec<&str> = costly(report)
        .map(|(option, _)| option.option.name.as_str())
        .collect();
    let mut html = Html::default();
    head(&mut html, report);
    headline(&mut html, report);
    options::section(&mut html, report);
    html.raw(&flame::section(recording, attribution, &costly)?);
    html.raw(&time::section(recording, attribution, &costly));
    events(&mut html, report);
    ledger(&mut html, recording, report);
    quality::section(&mut html, report);
    html.raw("</main>\n<script>\n");
    html.raw(SCRIPT);
    html.raw("</script>\n</body>\n</html>\n");
    out.write_all(html.0.as_bytes())?;
    Ok(())
}

fn head(html: &mut Html, report: &Report) {
    let title = if report.run.command.is_empty() {
        format!("kernel {}", report.kernel.release)
    } else {
        command_line(&report.run.command)
    };
    html.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.raw(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>preemptprof: ",
    );
    html.text(&title);
    html.raw("</title>\n<style>\n");
    html.raw(STYLE);
    html.raw("</style>\n</head>\n<body>\n<main>\n");
}

fn headline(html: &mut Html, report: &Report) {
    html.raw("<header>\n<h1>");
    html.text(&first_result(report));
    html.raw("</h1>\n<dl>\n");
    let sampling = &report.sampling;
    let mut samples = format!(
        "{} of {} at {} Hz ({})",
        count(sampling.samples),
        sampling.event,
        sampling.hz,
        sampling.evidence.as_str()
    );
    if let Some(time) = sampling.task_time_s {
        samples += &format!(", {} of CPU time", seconds(time));
    }
    if sampling.samples > 0 {
        let user = sampling.user_samples as f64 / sampling.samples as f64;
        samples += &format!(", {} % of it in user mode", percent(user));
    }
    if is_blind(report) && sampling.samples > 0 {
        samples += "; at least the share: timer sampling is blind with interrupts off";
    }
    html.item("Kernel", &kernel_line(&report.kernel));
    html.item("Workload", &workload_line(report));
    if let Some(waits) = &report.run.waits {
        html.item("Waits", &waits_line(waits));
    }
    html.item("Samples", &samples);
    let machine = &report.machine;
    if !machine.cpu_model.is_empty() {
        let online = format!("{}, {} CPUs online", machine.cpu_model, machine.online_cpus);
        html.item("Machine", &online);
    }
    html.raw("</dl>\n");
    for warning in &report.warnings {
        html.raw("<p class=\"warning\">");
        html.text(warning);
        html.raw("</p>\n");
    }
    html.raw("</header>\n");
}

fn events(html: &mut Html, report: &Report) {
    html.raw("<section id=\"events\">\n<h2>Switches and RCU</h2>\n<dl>\n");
    let switches = match &report.switches {
        Some(switches) => format!(
            "{}: {} voluntary, {} preempted{}",
            count(switches.total),
            count(switches.voluntary),
            count(switches.preempted),
            by_leg(switches.evidence, switches.leg.as_deref())
        ),
        None => "not counted".to_owned(),
    };
    html.item("Context switches", &switches);
    if report.rcu.is_none() {
        html.item("rcu_barrier", "not watched");
    }
    for event in report.rcu.iter().flatten() {
        let leg = by_leg(event.evidence, event.leg.as_deref());
        let text = match event.count {
            0 => format!("no calls{leg}"),
            calls => format!(
                "{} calls blocked for {} in all, longest {}{leg}",
                count(calls),
                nanoseconds(event.total_ns),
                nanoseconds(event.max_ns)
            ),
        };
        html.item(&event.event, &text);
    }
    html.raw("</dl>\n");
    for event in report.rcu.iter().flatten().filter(|e| !e.by.is_empty()) {
        html.raw("<details><summary>");
        html.text(&format!("Paths into {}: {}", event.event, event.by.len()));
        html.raw("</summary>\n<table><thead><tr><th>Task<th>Path, innermost last");
        html.raw("<th class=\"num\">Calls<th class=\"num\">Blocked</tr></thead><tbody>\n");
        for by in event.by.iter().take(RCU_PATHS) {
            html.raw(&row(&[
                ("", &by.comm),
                ("", &by.stack.replace(';', " > ")),
                ("num", &count(by.count)),
                ("num", &nanoseconds(by.total_ns)),
            ]));
        }
        html.raw("</tbody></table></details>\n");
    }
    html.raw("</section>\n");
}

/// What preemption cost and bought, and wake-up latency, when they were asked for.
fn ledger(html: &mut Html, recording: &Recording, report: &Report) {
    if let Some(ledger) = &report.ledger {
        html.raw("<section id=\"ledger\">\n<h2>What preemption costs and buys</h2>\n");
        for (title, rows) in [("Cost", &ledger.cost), ("Benefit", &ledger.benefit)] {
            if rows.is_empty() {
                continue;
            }
            let _ = writeln!(
                html.0,
                "<table class=\"facts\"><caption>{title}</caption><thead><tr><th>What<th \
                 class=\"num\">Value<th>Evidence<th>What it \
                 says</tr></thead><tbody>"
            );
            for entry in rows {
                html.raw(&row(&[
                    ("", &entry.name),
                    ("num", &number(entry)),
                    ("", entry.evidence.as_str()),
                    ("", &entry.sentence),
                ]));
            }
            html.raw("</tbody></table>\n");
        }
        html.raw("</section>\n");
    }
    let Some(latency) = &report.wakeup_latency else {
        return;
    };
    html.raw("<section id=\"latency\">\n<h2>Wake-up latency</h2>\n");
    html.raw("<table><thead><tr><th>Cause of the wait");
    for head in ["Wake-ups", "Median", "90 %", "99 %", "99.9 %", "Longest"] {
        let _ = write!(html.0, "<th class=\"num\">{head}");
    }
    html.raw("</tr></thead><tbody>\n");
    times(html, "all", &latency.times);
    for cause in &latency.causes {
        let name = format!("{} ({})", cause.cause, cause.evidence.as_str());
        times(html, &name, &cause.times);
    }
    html.raw("</tbody></table>\n");
    if let Some(kept) = &recording.trailer.ledger {
        for (cause, histogram) in &kept.latency {
            html.raw(&time::histogram(cause, &histogram.buckets));
        }
    }
    if !latency.worst.is_empty() {
        html.raw("<details><summary>The longest</summary>\n<table><thead><tr><th>Task");
        html.raw("<th class=\"num\">Waited<th>Had the CPU<th>Cause</tr></thead><tbody>\n");
        for worst in &latency.worst {
            html.raw(&row(&[
                ("", &worst.comm),
                ("num", &nanoseconds(worst.wait_ns)),
                ("", &worst.culprit),
                ("", &worst.cause),
            ]));
        }
        html.raw("</tbody></table></details>\n");
    }
    html.raw("</section>\n");
}

fn times(html: &mut Html, name: &str, times: &Times) {
    let ns = |value: Option<u64>| value.map(nanoseconds).unwrap_or_default();
    html.raw(&row(&[
        ("", name),
        ("num", &count(times.count)),
        ("num", &ns(times.p50_ns)),
        ("num", &ns(times.p90_ns)),
        ("num", &ns(times.p99_ns)),
        ("num", &ns(times.p999_ns)),
        ("num", &ns(times.max_ns)),
    ]));
}
