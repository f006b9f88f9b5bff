//! The report as one page that needs no network: what the text report has, the
//! flame graph, and the run over time.
//!
//! Without scripts everything but the flame graph is there. The page forbids
//! itself every connection (Content-Security-Policy), and names are escaped twice:
//! for the reader's eyes as in all reports, and for HTML.

mod flame;
mod parts;
mod time;

use std::fmt::Write as _;
use std::io::Write;

use self::parts::{Html, cell, row};
use super::ledger::number;
use super::text::workload_line;
use super::text::{by_leg, costly, first_result, interval, is_blind, kernel_line, state};
use super::{command_line, count, nanoseconds, percent};
use crate::model::Attribution;
use crate::model::ledger::Times;
use crate::model::report::{OptionReport, Report};
use crate::recording::Recording;
use crate::report::number::seconds;

/// A name without `CONFIG_`.
fn short(name: &str) -> &str {
    name.strip_prefix("CONFIG_").unwrap_or(name)
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Call sites shown of an option; the page says how many more there are.
const CALLERS: usize = 30;
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
    options(&mut html, report);
    html.raw(&flame::section(recording, attribution, &costly)?);
    html.raw(&time::section(recording, attribution, &costly));
    events(&mut html, report);
    ledger(&mut html, recording, report);
    quality(&mut html, report);
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

fn options(html: &mut Html, report: &Report) {
    html.raw("<section id=\"options\">\n<h2>Options</h2>\n");
    let costly: Vec<_> = costly(report).collect();
    if costly.is_empty() {
        html.raw("<p>No option that is on took a sample.</p>\n");
    } else {
        let widest = costly
            .iter()
            .map(|(_, s)| s.high)
            .fold(f64::MIN_POSITIVE, f64::max);
        let gains = report
            .options
            .iter()
            .any(|option| option.gain_if_off.is_some());
        html.raw("<table class=\"options\">\n<thead><tr><th>Option<th>State");
        html.raw("<th class=\"num\">Share<th>95 % interval");
        if gains {
            html.raw("<th class=\"num\">Gain if off");
        }
        html.raw("<th>How to turn it off</tr></thead>\n<tbody>\n");
        for (index, (option, share)) in costly.iter().enumerate() {
            let name = &option.option.name;
            html.raw("<tr><th scope=\"row\">");
            let _ = write!(html.0, "<span class=\"key c{}\"></span>", index % COLORS);
            html.text(short(name));
            html.raw(&cell("State", "", &state(&option.option)));
            html.raw(&cell(
                "Share",
                "num",
                &format!("{} %", percent(share.value)),
            ));
            let at = |value: f64| (value / widest * 100.0).clamp(0.0, 100.0);
            let _ = write!(
                html.0,
                "<td data-label=\"95 %\"><span class=\"bar\" title=\"{interval} %\">\
                 <span class=\"c{}\" style=\"width:{:.2}%\"></span>\
                 <i style=\"left:{:.2}%;width:{:.2}%\"></i></span> <small>{interval} %</small></td>",
                index % COLORS,
                at(share.value),
                at(share.low),
                at(share.high) - at(share.low),
                interval = interval(share),
            );
            if gains {
                let gain = option.gain_if_off.map_or_else(
                    || "not known".to_owned(),
                    |gain| format!("{} % ({})", percent(gain.value), interval(&gain)),
                );
                html.raw(&cell("Gain if off", "num", &gain));
            }
            html.raw(&cell(
                "How to turn it off",
                "how",
                &option.option.how_to_turn_off,
            ));
            html.raw("</tr>\n");
        }
        html.raw("</tbody>\n</table>\n");
        for (option, _) in &costly {
            details(html, option);
        }
    }
    summaries(html, report);
    html.raw("</section>\n");
}

fn details(html: &mut Html, option: &OptionReport) {
    html.raw("<details><summary>");
    html.text(short(&option.option.name));
    let _ = write!(
        html.0,
        ": {}, {}</summary>\n<div class=\"two\">\n",
        plural(option.functions.len(), "function"),
        plural(option.callers.len(), "call site")
    );
    let head = "<table><thead><tr><th>Function<th class=\"num\">Samples<th class=\"num\">Share";
    html.raw(head);
    html.raw("</tr></thead><tbody>\n");
    for function in &option.functions {
        html.raw(&row(&[
            ("", &function.symbol),
            ("num", &count(function.samples)),
            ("num", &format!("{} %", percent(function.share))),
        ]));
    }
    html.raw("</tbody></table>\n<table><thead><tr><th>Called from<th>Group");
    html.raw("<th class=\"num\">Samples<th class=\"num\">Share</tr></thead><tbody>\n");
    for caller in option.callers.iter().take(CALLERS) {
        html.raw(&row(&[
            ("", caller.site.as_deref().unwrap_or(&caller.symbol)),
            ("", caller.group.as_deref().unwrap_or("")),
            ("num", &count(caller.samples)),
            ("num", &format!("{} %", percent(caller.share))),
        ]));
    }
    html.raw("</tbody></table>\n</div>\n");
    let hidden = option.callers.len().saturating_sub(CALLERS);
    if hidden > 0 {
        let _ = writeln!(html.0, "<p>and {hidden} more call sites</p>");
    }
    html.raw("</details>\n");
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Options that have no row, by why.
fn summaries(html: &mut Html, report: &Report) {
    let mut say = |label: &str, keep: &dyn Fn(&OptionReport) -> bool| {
        let names: Vec<String> = report
            .options
            .iter()
            .filter(|option| keep(option))
            .map(|option| match &option.option.value {
                Some(value) => format!("{}={value}", short(&option.option.name)),
                None => short(&option.option.name).to_owned(),
            })
            .collect();
        if names.is_empty() {
            return;
        }
        let _ = write!(
            html.0,
            "<details><summary>{label}: {}</summary><p>",
            names.len()
        );
        html.text(&names.join(", "));
        html.raw("</p></details>\n");
    };
    let on = |option: &OptionReport| option.option.state.is_on();
    say("On, without a sample", &|option| {
        option.cpu_share.is_some_and(|share| share.value <= 0.0)
    });
    say("On, not measured", &|option| {
        on(option) && option.cpu_share.is_none() && option.option.not_judgeable.is_none()
    });
    say("On, no sample can tell", &|option| {
        on(option) && option.option.not_judgeable.is_some()
    });
    say("Not known", &|option| {
        option.option.state.as_str() == "unknown"
    });
    say("Off", &|option| option.option.state.as_str() == "n");
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
                "<table><thead><tr><th>{title}<th class=\"num\">Value<th>Evidence<th>What it \
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

fn quality(html: &mut Html, report: &Report) {
    html.raw("<section id=\"quality\">\n<h2>Loss and own cost</h2>\n<dl>\n");
    let loss = &report.loss;
    let reasons: Vec<String> = loss
        .by_reason
        .iter()
        .map(|(reason, lost)| format!("{reason} {}", count(*lost)))
        .collect();
    let mut text = match (loss.total, &report.run.imported) {
        (0, Some(_)) => "nothing that the import shows".to_owned(),
        (0, None) => "nothing".to_owned(),
        (total, _) => format!("{} records", count(total)),
    };
    if !reasons.is_empty() {
        text += &format!(" ({})", reasons.join(", "));
    }
    html.item("Lost", &text);
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
        (
            coverage.gaps.len() as u64,
            "times in which a CPU was not watched",
        ),
    ] {
        if number > 0 {
            seen += &format!("; {} {what}", count(number));
        }
    }
    html.item("Coverage", &seen);
    let own = match &report.overhead {
        Some(own) => format!(
            "{} % of the machine: BPF programs {}, entering them {}, own threads {}; set-up {}",
            percent(own.share),
            nanoseconds(own.bpf_ns),
            nanoseconds(own.probe_ns),
            nanoseconds(own.user_ns),
            nanoseconds(own.setup_ns)
        ),
        None => "not known".to_owned(),
    };
    html.item("Own cost", &own);
    html.raw("</dl>\n");
    if !report.probes.is_empty() {
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
    html.raw("</section>\n<footer><p>preemptprof ");
    html.text(env!("CARGO_PKG_VERSION"));
    html.raw(". Shares are of the workload's samples and do not overlap; intervals are of 95 %.");
    html.raw("</p></footer>\n");
}
