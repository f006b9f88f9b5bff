//! The report for people: the first result in one line, then the table, then
//! everything needed to judge it.

use anstyle::Style;

use super::escape::escape;
use super::ledger;
use super::number::{count, nanoseconds, percent, percent_up, seconds};
use super::page::{COST, Cell, FAINT, Page, STRONG, WARNING};
use super::quality;
use crate::catalog::{OptionState, State};
use crate::metric::WALL_TIME;
use crate::model::report::{Estimate, OptionReport, Rcu, Report};
use crate::model::waits::Waits;
use crate::recording::{Evidence, Target};

/// How to lay the text out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Columns of the terminal; absent means no wrapping, as for a pipe.
    pub width: Option<usize>,
    /// Whether to use colours.
    pub color: bool,
    /// Call sites to show under each option.
    pub callers: usize,
}

/// Samples below which no first result is given: one sample more or less would
/// change it by a per cent and more.
const ENOUGH: u64 = 100;
/// Column in which what follows a label begins.
pub(super) const COLUMN: usize = 13;
/// rcu_barrier stacks shown.
const RCU_STACKS: usize = 3;
/// Frames of one shown, innermost ones.
const RCU_FRAMES: usize = 5;
/// Column of the table with the gain.
const GAIN_COLUMN: usize = 3;

/// The report as text.
pub fn render(report: &Report, options: &TextOptions) -> String {
    let mut page = Page::new(options.width, options.color);
    headline(&mut page, report);
    page.blank();
    table(&mut page, report, options.callers);
    page.blank();
    switches(&mut page, report);
    rcu(&mut page, report);
    other(&mut page, report);
    quality::coverage(&mut page, report);
    quality::loss(&mut page, report);
    quality::overhead(&mut page, report);
    ledger::render(&mut page, report);
    quality::probes(&mut page, &report.probes);
    quality::warnings(&mut page, report);
    page.finish()
}

/// The option without `CONFIG_`, as people call it.
pub(super) fn short(name: &str) -> String {
    escape(name.strip_prefix("CONFIG_").unwrap_or(name)).into_owned()
}

pub(super) fn is_blind(report: &Report) -> bool {
    report.sampling.evidence == Evidence::SampledTimer
}

/// Options with samples, most costly first.
pub(super) fn costly(report: &Report) -> impl Iterator<Item = (&OptionReport, Estimate)> {
    report
        .options
        .iter()
        .filter_map(|option| Some((option, option.cpu_share.filter(|share| share.value > 0.0)?)))
}

fn headline(page: &mut Page, report: &Report) {
    page.line(0, &first_result(report), STRONG);
    let kernel = &report.kernel;
    page.labelled(COLUMN, "kernel", &kernel_line(kernel), Style::new());
    page.labelled(COLUMN, "workload", &workload_line(report), Style::new());
    if let Some(waits) = &report.run.waits {
        page.labelled(COLUMN, "waits", &waits_line(waits), Style::new());
    }
    super::runs::lines(page, report);
    let sampling = &report.sampling;
    let mut samples = format!(
        "{} of {} at {} Hz ({})",
        count(sampling.samples),
        escape(&sampling.event),
        sampling.hz,
        sampling.evidence.as_str()
    );
    if let Some(task_time) = sampling.task_time_s {
        samples += &format!(", {} of CPU time", seconds(task_time));
    }
    if sampling.samples > 0 {
        let user = sampling.user_samples as f64 / sampling.samples as f64;
        samples += &format!(", {} % of it in user mode", percent(user));
    }
    page.labelled(COLUMN, "samples", &samples, Style::new());
    if is_blind(report) && sampling.samples > 0 {
        page.labelled(
            COLUMN,
            "",
            "at least the share: timer sampling is blind with interrupts off",
            WARNING,
        );
    }
}

pub(super) fn first_result(report: &Report) -> String {
    if report.sampling.samples == 0 {
        return "No share can be given: no sample hit the workload.".to_owned();
    }
    if let Some(why) = &report.kernel.symbols_hidden {
        return format!(
            "No share can be given: kernel symbols are hidden ({}).",
            escape(why)
        );
    }
    if report.sampling.samples < ENOUGH {
        return format!(
            "Only {} of the workload: too few to name a cost.",
            match report.sampling.samples {
                1 => "1 sample".to_owned(),
                samples => format!("{samples} samples"),
            }
        );
    }
    if let Some((option, gain)) = largest_gain(report) {
        let others = costly(report).filter(|(other, _)| other.option.name != option.option.name);
        return format!(
            "Without {} this workload would take {} % less time (95 % interval {}){}",
            escape(&option.option.name),
            percent(gain.value),
            interval(&gain),
            and_more(others.count()),
        );
    }
    let mut costly = costly(report);
    let Some((option, share)) = costly.next() else {
        return "No option that is on took a sample of this workload.".to_owned();
    };
    let more = and_more(costly.count());
    format!(
        "{} takes {}{} % of {} CPU time (95 % interval {}){more}",
        escape(&option.option.name),
        if is_blind(report) { "at least " } else { "" },
        percent(share.value),
        match report.run.target {
            Target::Machine => "the machine's busy",
            _ => "this workload's",
        },
        interval(&share),
    )
}

fn and_more(options: usize) -> String {
    match options {
        0 => String::new(),
        1 => "; 1 more option below".to_owned(),
        more => format!("; {more} more options below"),
    }
}

/// The option that is known to gain most, when no other one's share is larger.
fn largest_gain(report: &Report) -> Option<(&OptionReport, Estimate)> {
    let gains = report
        .options
        .iter()
        .filter_map(|option| Some((option, option.gain_if_off?)));
    let (option, gain) = gains.max_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let share = costly(report)
        .map(|(_, share)| share.value)
        .fold(0.0, f64::max);
    (gain.value >= share && gain.low > 0.0).then_some((option, gain))
}

/// The bounds, in per cent: `5.2-6.3`.
pub(super) fn interval(share: &Estimate) -> String {
    format!("{}-{}", percent(share.low), percent(share.high))
}

/// One line about the kernel.
pub(super) fn kernel_line(kernel: &crate::model::report::Kernel) -> String {
    let model = &kernel.preempt_model;
    let mut line = format!("{}, preempt {}", escape(&kernel.release), model.active);
    if !model.source.is_empty() {
        line += &format!(" ({})", escape(&model.source));
    }
    match kernel.hz {
        Some(hz) => line += &format!(", HZ {hz}"),
        None => line += ", HZ unknown",
    }
    if !kernel.clock.is_empty() {
        line += &format!(", clock {}", escape(&kernel.clock));
    }
    line
}

pub(super) fn workload_line(report: &Report) -> String {
    let run = &report.run;
    let mut line = match &run.target {
        Target::Machine => "the whole machine".to_owned(),
        Target::Pids { pids } => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("processes {}", pids.join(", "))
        }
        Target::Cgroup { path } => format!("cgroup {}", escape(path)),
        Target::Command => String::new(),
    };
    if !run.command.is_empty() {
        let command = command_line(&run.command);
        line = if line.is_empty() {
            command
        } else {
            format!("{line} while {command} ran")
        };
    }
    if line.is_empty() {
        line.push_str("not known");
    }
    if let Some(source) = &run.imported {
        line += &format!(", imported from {}", escape(source));
    }
    if run.wall_s > 0.0 {
        line += &format!(", {} wall", seconds(run.wall_s));
    }
    if let Some(code) = run.exit_code {
        line += &format!(", exit status {code}");
    }
    if let Some(metric) = run
        .metric
        .as_ref()
        .filter(|metric| metric.runs.is_none() && metric.name != WALL_TIME)
    {
        line += &format!(
            ", {} {} {}",
            escape(&metric.name),
            metric.value,
            escape(&metric.unit)
        );
    }
    line
}

/// What of a run is waiting, and what that means for its gains.
pub(super) fn waits_line(waits: &Waits) -> String {
    let share = percent(waits.share);
    let ticks = if waits.to_ticks > 0.0 {
        format!(
            ", {} % of that until a tick ended it (RCU, timers), which takes up what is saved before",
            percent(waits.to_ticks)
        )
    } else {
        String::new()
    };
    format!(
        "{share} % of the run, which no option makes shorter{ticks}: a gain is of the run's time"
    )
}

/// The command as a shell would take it, escaped for a terminal.
pub(crate) fn command_line(command: &[String]) -> String {
    let words: Vec<String> = command
        .iter()
        .map(|word| {
            let safe = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
            let escaped = escape(word);
            if !word.is_empty() && word.chars().all(safe) {
                escaped.into_owned()
            } else {
                format!("'{}'", escaped.replace('\'', "'\\''"))
            }
        })
        .collect();
    words.join(" ")
}

fn table(page: &mut Page, report: &Report, callers: usize) {
    let costly: Vec<(&OptionReport, Estimate)> = costly(report).collect();
    if !costly.is_empty() {
        let mut rows: Vec<Vec<Cell>> = costly
            .iter()
            .map(|(option, share)| {
                vec![
                    Cell::new(short(&option.option.name), STRONG),
                    Cell::plain(state(&option.option)),
                    Cell::new(
                        format!("{} % ({})", percent(share.value), interval(share)),
                        if share.low >= 0.01 {
                            COST
                        } else {
                            Style::new()
                        },
                    ),
                    Cell::new(gain(option), STRONG),
                    Cell::plain(escape(&option.option.how_to_turn_off)),
                ]
            })
            .collect();
        let mut headings = vec![
            "OPTION",
            "STATE",
            "SHARE (95 %)",
            "GAIN IF OFF (95 %)",
            "HOW TO TURN IT OFF",
        ];
        // Where no gain is known there is no column for it.
        if costly
            .iter()
            .all(|(option, _)| option.gain_if_off.is_none())
        {
            headings.remove(GAIN_COLUMN);
            for row in &mut rows {
                row.remove(GAIN_COLUMN);
            }
        }
        page.table(&headings, &rows, |page, row| {
            if let Some((option, _)) = costly.get(row) {
                details(page, option, callers);
            }
        });
        page.blank();
    }
    summaries(page, report);
}

/// What turning the option off would save, where that is known.
fn gain(option: &OptionReport) -> String {
    option.gain_if_off.map_or_else(String::new, |gain| {
        format!("{} % ({})", percent(gain.value), interval(&gain))
    })
}

/// The state, with the value of an option that has one.
pub(super) fn state(option: &OptionState) -> String {
    let state = match option.state {
        State::Y => "y",
        State::N => "n",
        State::M => "m",
        State::Unknown => "unknown",
    };
    match &option.value {
        Some(value) => format!("{state} ({})", escape(value)),
        None => state.to_owned(),
    }
}

fn details(page: &mut Page, option: &OptionReport, callers: usize) {
    let functions: Vec<String> = option
        .functions
        .iter()
        .map(|function| format!("{} {} %", escape(&function.symbol), percent(function.share)))
        .collect();
    page.line(4, &functions.join(", "), FAINT);
    if let Some(calls) = &option.calls {
        let mut line = format!("{} calls", count(calls.value.round() as u64));
        if let Some(ns) = &option.ns_per_call {
            line += &format!(" at {:.1} ns ({:.1}-{:.1})", ns.value, ns.low, ns.high);
        }
        if let Some(gain) = option
            .cpu_gain
            .filter(|_| option.cpu_gain != option.gain_if_off)
        {
            let of = (percent(gain.value), interval(&gain));
            line += &format!(", {} % ({}) of CPU time", of.0, of.1);
        }
        if calls.coverage < 0.9995 {
            line += &format!(
                ", {} % of them counted, the rest estimated",
                percent(calls.coverage)
            );
        }
        page.line(4, &line, FAINT);
    }
    for caller in option.callers.iter().take(callers) {
        let name = caller.site.as_ref().unwrap_or(&caller.symbol);
        let group = caller
            .group
            .as_ref()
            .map(|group| format!("  [{}]", escape(group)))
            .unwrap_or_default();
        let line = format!(
            "{:>6} %  from {}{group}",
            percent(caller.share),
            escape(name)
        );
        page.line(4, &line, Style::new());
    }
    let hidden = option.callers.len().saturating_sub(callers);
    if callers > 0 && hidden > 0 {
        page.line(4, &format!("         and {hidden} more call sites"), FAINT);
    }
}

/// Options that have no row, by why.
fn summaries(page: &mut Page, report: &Report) {
    let names = |keep: &dyn Fn(&OptionReport) -> bool| -> Vec<String> {
        report
            .options
            .iter()
            .filter(|option| keep(option))
            .map(|option| match &option.option.value {
                Some(value) => format!("{}={}", short(&option.option.name), escape(value)),
                None => short(&option.option.name),
            })
            .collect()
    };
    // Of options with a row, why it has no gain; each reason once.
    let mut reasons: Vec<&str> = report
        .options
        .iter()
        .filter(|option| option.cpu_share.is_some_and(|share| share.value > 0.0))
        .filter_map(|option| option.no_gain.as_deref())
        .collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let of_this = |option: &OptionReport| {
            option.no_gain.as_deref() == Some(reason)
                && option.cpu_share.is_some_and(|share| share.value > 0.0)
        };
        let of = names(&of_this).join(", ");
        page.line(
            0,
            &format!("gain not known of {of}: {}", escape(reason)),
            FAINT,
        );
    }
    let mut say = |label: &str, names: Vec<String>, style| {
        if !names.is_empty() {
            page.line(0, &format!("{label}: {}", names.join(", ")), style);
        }
    };
    let on = |option: &OptionReport| option.option.state.is_on();
    let unsampled =
        |option: &OptionReport| option.cpu_share.is_some_and(|share| share.value <= 0.0);
    let bound = report
        .options
        .iter()
        .filter_map(|option| option.cpu_share.filter(|share| share.value <= 0.0))
        .map(|share| share.high)
        .fold(0.0, f64::max);
    say(
        &format!("on, no samples (each below {} %)", percent_up(bound)),
        names(&unsampled),
        Style::new(),
    );
    say(
        "on, not measured",
        names(&|option| {
            on(option) && option.cpu_share.is_none() && option.option.not_judgeable.is_none()
        }),
        Style::new(),
    );
    say(
        "on, no sample can tell",
        names(&|option| on(option) && option.option.not_judgeable.is_some()),
        Style::new(),
    );
    let state = |state| names(&move |option: &OptionReport| option.option.state == state);
    say("not known", state(State::Unknown), Style::new());
    say("off", state(State::N), FAINT);
}

fn switches(page: &mut Page, report: &Report) {
    let text = match &report.switches {
        Some(switches) => format!(
            "{}: {} voluntary, {} preempted{}",
            count(switches.total),
            count(switches.voluntary),
            count(switches.preempted),
            by_leg(switches.evidence, switches.leg.as_deref())
        ),
        None => "not counted".to_owned(),
    };
    page.labelled(COLUMN, "switches", &text, Style::new());
}

pub(super) fn by_leg(evidence: Evidence, leg: Option<&str>) -> String {
    match leg {
        Some(leg) => format!(" ({} by {})", evidence.as_str(), escape(leg)),
        None => format!(" ({})", evidence.as_str()),
    }
}

fn rcu(page: &mut Page, report: &Report) {
    let Some(events) = &report.rcu else {
        page.labelled(COLUMN, "rcu_barrier", "not watched", Style::new());
        return;
    };
    // Of those that were watched and not called, rcu_barrier stands for all.
    for event in events
        .iter()
        .filter(|event| event.count > 0 || event.event == "rcu_barrier")
    {
        let leg = by_leg(event.evidence, event.leg.as_deref());
        let text = if event.count == 0 {
            format!("no calls{leg}")
        } else {
            format!(
                "{} blocked for {} in all, longest {}{leg}",
                calls(event.count),
                nanoseconds(event.total_ns),
                nanoseconds(event.max_ns)
            )
        };
        page.labelled(COLUMN, &escape(&event.event), &text, Style::new());
        rcu_stacks(page, event);
    }
}

fn calls(calls: u64) -> String {
    match calls {
        1 => "1 call".to_owned(),
        calls => format!("{} calls", count(calls)),
    }
}

fn rcu_stacks(page: &mut Page, event: &Rcu) {
    for by in event.by.iter().take(RCU_STACKS) {
        let frames: Vec<&str> = by.stack.split(';').collect();
        let shown = &frames[frames.len().saturating_sub(RCU_FRAMES)..];
        let mut stack = shown.join(" > ");
        if shown.len() < frames.len() {
            stack.insert_str(0, ".. > ");
        }
        let text = format!(
            "{} in {} by {}{}: {}",
            nanoseconds(by.total_ns),
            calls(by.count),
            escape(&by.comm),
            by.operation
                .as_ref()
                .map(|operation| format!(" ({})", escape(operation)))
                .unwrap_or_default(),
            escape(&stack)
        );
        page.labelled(COLUMN, "", &text, Style::new());
    }
    let hidden = event.by.len().saturating_sub(RCU_STACKS);
    if hidden > 0 {
        page.labelled(COLUMN, "", &format!("and {hidden} more paths"), FAINT);
    }
}

fn other(page: &mut Page, report: &Report) {
    if report.run.target == Target::Machine {
        return;
    }
    if let Some(share) = report.other.share {
        let text = format!(
            "{} % of the machine's non-idle samples, kept apart",
            percent(share)
        );
        page.labelled(COLUMN, "other tasks", &text, Style::new());
    }
}
