//! The table of options, with what samples and counted calls say of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::parts::{Html, cell, row};
use super::{COLORS, short};
use crate::model::report::{Estimate, OptionReport, Report};
use crate::report::text::{costly, interval, state};
use crate::report::{count, percent};

/// Call sites shown of an option; the page says how many more there are.
const CALLERS: usize = 30;

/// Which columns there are: none without a number in it.
struct Columns {
    calls: bool,
    gains: bool,
}

pub(super) fn section(html: &mut Html, report: &Report) {
    html.raw("<section id=\"options\">\n<h2>Options</h2>\n");
    let costly: Vec<(&OptionReport, Option<Estimate>)> = costly(report)
        .map(|(option, share)| (option, Some(share)))
        .collect();
    // Calls can be counted where no sample fell.
    let unsampled = report
        .options
        .iter()
        .filter(|option| option.cpu_share.is_none_or(|share| share.value <= 0.0))
        .filter(|option| option.gain_if_off.is_some() || counted(option))
        .map(|option| (option, None));
    let colored = costly.len();
    let rows: Vec<_> = costly.into_iter().chain(unsampled).collect();
    if rows.is_empty() {
        html.raw("<p>No option that is on took a sample.</p>\n");
    } else {
        table(html, &rows, colored);
        for (option, _) in &rows {
            details(html, option);
        }
    }
    withheld(html, &rows);
    summaries(html, report);
    html.raw("</section>\n");
}

/// Whether calls of the option were counted, and there were any.
fn counted(option: &OptionReport) -> bool {
    option.calls.is_some_and(|calls| calls.value > 0.0)
}

fn table(html: &mut Html, rows: &[(&OptionReport, Option<Estimate>)], colored: usize) {
    let columns = Columns {
        calls: rows.iter().any(|(option, _)| option.calls.is_some()),
        gains: rows.iter().any(|(option, _)| option.gain_if_off.is_some()),
    };
    let widest = rows
        .iter()
        .filter_map(|(_, share)| Some(share.as_ref()?.high))
        .fold(f64::MIN_POSITIVE, f64::max);
    html.raw("<table class=\"options\">\n<thead><tr><th>Option<th>State");
    html.raw("<th class=\"num\">Share<th>95 % interval");
    if columns.calls {
        html.raw("<th class=\"num\">Calls<th class=\"num\">ns per call");
    }
    if columns.gains {
        html.raw("<th class=\"num\">Gain if off");
    }
    html.raw("<th>How to turn it off</tr></thead>\n<tbody>\n");
    for (index, (option, share)) in rows.iter().enumerate() {
        html.raw("<tr><th scope=\"row\">");
        // The others are in no graph.
        if index < colored {
            let _ = write!(html.0, "<span class=\"key c{}\"></span>", index % COLORS);
        }
        html.text(short(&option.option.name));
        html.raw("</th>");
        html.raw(&cell("State", "", &state(&option.option)));
        match share {
            Some(share) => sampled(html, share, index, widest),
            None => {
                html.raw(&cell("Share", "num", "no sample"));
                html.raw("<td class=\"none\"></td>");
            }
        }
        if columns.calls {
            calls(html, option);
        }
        if columns.gains {
            let gain = option.gain_if_off.map_or_else(
                || ("not known".to_owned(), String::new()),
                |gain| {
                    let value = format!("{} %", percent(gain.value));
                    (value, format!("{} %", interval(&gain)))
                },
            );
            estimate(html, "Gain if off", &gain.0, &gain.1);
        }
        let how = &option.option.how_to_turn_off;
        html.raw(&cell("How to turn it off", "how", how));
        html.raw("</tr>\n");
    }
    html.raw("</tbody>\n</table>\n");
}

fn sampled(html: &mut Html, share: &Estimate, index: usize, widest: f64) {
    let value = format!("{} %", percent(share.value));
    html.raw(&cell("Share", "num", &value));
    let at = |value: f64| (value / widest * 100.0).clamp(0.0, 100.0);
    let _ = write!(
        html.0,
        "<td data-label=\"95 %\" class=\"interval\"><span class=\"bar\" title=\"{interval} %\">\
         <span class=\"c{}\" style=\"width:{:.2}%\"></span>\
         <i style=\"left:{:.2}%;width:{:.2}%\"></i></span> <small>{interval} %</small></td>",
        index % COLORS,
        at(share.value),
        at(share.low),
        at(share.high) - at(share.low),
        interval = interval(share),
    );
}

/// The cells with the calls and what one of them takes.
fn calls(html: &mut Html, option: &OptionReport) {
    let (value, bounds) = option.calls.map_or_else(
        || ("not counted".to_owned(), String::new()),
        |calls| {
            let bounds = format!("{}-{}", rounded(calls.low), rounded(calls.high));
            (rounded(calls.value), bounds)
        },
    );
    estimate(html, "Calls", &value, &bounds);
    let (value, bounds) = option.ns_per_call.map_or_else(Default::default, |ns| {
        let bounds = format!("{:.1}-{:.1}", ns.low, ns.high);
        (format!("{:.1}", ns.value), bounds)
    });
    estimate(html, "ns per call", &value, &bounds);
}

/// A cell with a number and its interval below it.
fn estimate(html: &mut Html, label: &str, value: &str, bounds: &str) {
    if value.is_empty() {
        return html.raw("<td class=\"none\"></td>");
    }
    let _ = write!(html.0, "<td data-label=\"{label}\" class=\"num\"><span>");
    html.text(value);
    if !bounds.is_empty() {
        html.raw("<small class=\"bounds\">");
        html.text(bounds);
        html.raw("</small>");
    }
    html.raw("</span></td>");
}

/// A number of calls, which may be an estimate.
fn rounded(calls: f64) -> String {
    // The cast saturates.
    count(calls.round() as u64)
}

fn details(html: &mut Html, option: &OptionReport) {
    html.raw("<details><summary>");
    html.text(short(&option.option.name));
    let _ = writeln!(
        html.0,
        ": {}, {}</summary>",
        plural(option.functions.len(), "function"),
        plural(option.callers.len(), "call site")
    );
    if let Some(calls) = &option.calls {
        let text = format!(
            "Calls: {}, {} % of them within reach of counting.",
            calls.evidence.as_str(),
            percent(calls.coverage)
        );
        html.raw("<p>");
        html.text(&text);
        html.raw("</p>\n");
    }
    html.raw("<div class=\"two\">\n");
    functions(html, option);
    callers(html, option);
    html.raw("</div>\n");
    let hidden = option.callers.len().saturating_sub(CALLERS);
    if hidden > 0 {
        let _ = writeln!(html.0, "<p>and {hidden} more call sites</p>");
    }
    html.raw("</details>\n");
}

fn functions(html: &mut Html, option: &OptionReport) {
    if option.functions.is_empty() {
        return;
    }
    let counted = option.functions.iter().any(|f| f.calls.is_some());
    html.raw("<table><thead><tr><th>Function");
    if counted {
        html.raw("<th class=\"num\">Calls");
    }
    html.raw("<th class=\"num\">Samples<th class=\"num\">Share</tr></thead><tbody>\n");
    for function in &option.functions {
        let calls = function.calls.map(rounded).unwrap_or_default();
        let samples = count(function.samples);
        let share = format!("{} %", percent(function.share));
        let mut cells = vec![("", function.symbol.as_str())];
        if counted {
            cells.push(("num", &calls));
        }
        cells.extend([("num", samples.as_str()), ("num", &share)]);
        html.raw(&row(&cells));
    }
    html.raw("</tbody></table>\n");
}

fn callers(html: &mut Html, option: &OptionReport) {
    if option.callers.is_empty() {
        return;
    }
    let counted = option.callers.iter().any(|c| c.calls.is_some());
    html.raw("<table><thead><tr><th>Called from");
    if counted {
        html.raw("<th>Calls what");
    }
    html.raw("<th>Group");
    if counted {
        html.raw("<th class=\"num\">Calls");
    }
    html.raw("<th class=\"num\">Samples<th class=\"num\">Share</tr></thead><tbody>\n");
    for caller in option.callers.iter().take(CALLERS) {
        let calls = caller.calls.map(rounded).unwrap_or_default();
        let samples = count(caller.samples);
        let share = format!("{} %", percent(caller.share));
        let mut cells = vec![("", caller.site.as_deref().unwrap_or(&caller.symbol))];
        if counted {
            cells.push(("", caller.target.as_deref().unwrap_or("")));
        }
        cells.push(("", caller.group.as_deref().unwrap_or("")));
        if counted {
            cells.push(("num", &calls));
        }
        cells.extend([("num", samples.as_str()), ("num", &share)]);
        html.raw(&row(&cells));
    }
    html.raw("</tbody></table>\n");
}

fn plural(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Of options with a row, why no gain is given; each reason once.
fn withheld(html: &mut Html, rows: &[(&OptionReport, Option<Estimate>)]) {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (option, _) in rows {
        if let (None, Some(reason)) = (option.gain_if_off, option.no_gain.as_deref()) {
            let name = short(&option.option.name);
            by_reason.entry(reason).or_default().push(name);
        }
    }
    for (reason, names) in by_reason {
        html.raw("<p class=\"withheld\">Gain not known of ");
        html.text(&names.join(", "));
        html.raw(": ");
        html.text(reason);
        html.raw("</p>\n");
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
            && option.gain_if_off.is_none()
            && !counted(option)
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
