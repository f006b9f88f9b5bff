//! A flame graph as an SVG: frames that an option owns in the option's colour,
//! all others muted, and a legend with each option's share.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::Context;
use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, TextTruncateDirection};

use super::By;
use super::folded::fold;
use super::group;
use super::tree::Limits;
use crate::error::hinted;
use crate::fast_map::FastMap;
use crate::model::Attribution;
use crate::model::report::Report;
use crate::recording::{Evidence, Recording};
use crate::report::{command_line, count, escape, nanoseconds, percent};

/// Pixels. The title, the subtitle and the legend are laid out for it.
const WIDTH: usize = 1200;
/// Pixels a character of the 12-pixel monospace font takes, rounded up.
const CHAR: usize = 8;
/// Characters of the 17-pixel title that fit between the two buttons.
const TITLE_CHARS: usize = 94;
/// Characters of the subtitle that fit.
const SUBTITLE_CHARS: usize = 150;
/// Pixels between two lines of the legend.
const LEGEND_ROW: usize = 20;
/// Pixels left and right, as the flame graph has them.
const MARGIN: usize = 10;

/// Colours of options, the most costly first: far apart from each other and
/// from the muted frames also for colour-blind readers, and light enough for
/// black text. They repeat after the last.
const PALETTE: [(u8, u8, u8); 10] = [
    (255, 107, 87),
    (86, 180, 233),
    (247, 208, 56),
    (64, 196, 140),
    (214, 140, 204),
    (255, 160, 60),
    (150, 160, 255),
    (165, 215, 90),
    (240, 140, 160),
    (77, 208, 200),
];

/// A frame with less of the whole is narrower than a tenth of a pixel: not drawn.
const SMALLEST: f64 = 1.0 / 10_000.0;

/// Marks a name that an option owns. The flame graph takes it for one of its
/// annotations and does not show it.
const MARK: &str = "_[i]";

/// Writes the flame graph of the workload.
///
/// # Errors
///
/// When there is nothing to draw, or whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    report: &Report,
    by: By,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut lines: Vec<String> = Vec::new();
    let limits = Limits {
        smallest: SMALLEST * group::total(recording, by) as f64,
        ..Limits::NONE
    };
    let mark = |_| MARK;
    fold(recording, attribution, by, limits, mark, |stack, weight| {
        lines.push(format!("{stack} {weight}"));
        Ok(())
    })?;
    // As the flame graph wants them: by characters, separators included.
    lines.sort_unstable();
    if lines.is_empty() {
        return Err(nothing_to_draw(by));
    }
    let legend = legend(report, by);
    let rest = match by {
        By::Time => "no option",
        By::Rcu => "what called it",
    };
    let mut palette = palette(recording, attribution, &legend, &lines, by);
    let mut options = flamegraph::Options::default();
    options.title = fit(&title(report, by), TITLE_CHARS);
    options.subtitle = Some(fit(&subtitle(report, by), SUBTITLE_CHARS));
    options.image_width = Some(WIDTH);
    options.bgcolors = Some(BackgroundColor::Flat(rgb((255, 255, 255))));
    options.count_name = match by {
        By::Time => "samples",
        By::Rcu => "ns",
    }
    .to_owned();
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.palette_map = Some(&mut palette);
    options.no_sort = true;
    // Smaller frames are not in the lines.
    options.min_width = 100.0 * SMALLEST;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .context("cannot draw the flame graph")?;
    let svg = String::from_utf8(svg).context("the flame graph is not UTF-8")?;
    let svg =
        with_legend(&svg, &legend, rest).context("cannot add the legend to the flame graph")?;
    out.write_all(svg.as_bytes())?;
    Ok(())
}

fn nothing_to_draw(by: By) -> anyhow::Error {
    match by {
        By::Time => hinted(
            "nothing to draw: no sample hit the workload",
            ["the workload may have been too short for the sampling rate: raise it with -F"],
        ),
        By::Rcu => hinted(
            "nothing to draw: the workload was never blocked in rcu_barrier",
            ["the report's probe table says whether it was watched"],
        ),
    }
}

fn rgb((r, g, b): (u8, u8, u8)) -> Color {
    Color { r, g, b }
}

/// One entry of the legend.
struct Entry {
    /// The option, with `CONFIG_`; `rcu_barrier` in a graph of blocked time.
    name: String,
    text: String,
    color: (u8, u8, u8),
}

fn legend(report: &Report, by: By) -> Vec<Entry> {
    let palette = PALETTE.iter().cycle();
    match by {
        By::Time => report
            .options
            .iter()
            .filter_map(|option| Some((option, option.cpu_share.filter(|s| s.value > 0.0)?)))
            .zip(palette)
            .map(|((option, share), &color)| Entry {
                name: option.option.name.clone(),
                text: format!(
                    "{} {} % ({}-{})",
                    short(&option.option.name),
                    percent(share.value),
                    percent(share.low),
                    percent(share.high)
                ),
                color,
            })
            .collect(),
        By::Rcu => report
            .rcu
            .iter()
            .flatten()
            .zip(palette)
            .map(|(event, &color)| Entry {
                name: event.event.clone(),
                text: format!("{} {}", event.event, nanoseconds(event.total_ns)),
                color,
            })
            .collect(),
    }
}

fn short(name: &str) -> &str {
    name.strip_prefix("CONFIG_").unwrap_or(name)
}

fn title(report: &Report, by: By) -> String {
    let command = if report.run.command.is_empty() {
        "preemptprof".to_owned()
    } else {
        command_line(&report.run.command)
    };
    let result = match by {
        By::Time => {
            let shares: Vec<String> = report
                .options
                .iter()
                .filter_map(|option| Some((option, option.cpu_share.filter(|s| s.value > 0.0)?)))
                .take(2)
                .map(|(option, share)| {
                    format!("{} {} %", short(&option.option.name), percent(share.value))
                })
                .collect();
            if shares.is_empty() {
                "no option took a sample".to_owned()
            } else {
                shares.join(", ")
            }
        }
        By::Rcu => {
            let (count, total) =
                report
                    .rcu
                    .iter()
                    .flatten()
                    .fold((0_u64, 0_u64), |(count, total), event| {
                        (
                            count.saturating_add(event.count),
                            total.saturating_add(event.total_ns),
                        )
                    });
            format!("blocked {} in rcu_barrier ({count}x)", nanoseconds(total))
        }
    };
    // The result stays whole, a long command gives way.
    let room = TITLE_CHARS.saturating_sub(result.chars().count() + 2);
    format!("{}: {result}", fit(&command, room))
}

fn subtitle(report: &Report, by: By) -> String {
    let kernel = &report.kernel;
    let seen = match by {
        By::Time => {
            let sampling = &report.sampling;
            let blind = if sampling.evidence == Evidence::SampledTimer {
                ", blind with interrupts off"
            } else {
                ""
            };
            format!(
                "{} samples of {} at {} Hz ({}{blind})",
                count(sampling.samples),
                escape(&sampling.event),
                sampling.hz,
                sampling.evidence.as_str()
            )
        }
        By::Rcu => {
            let evidence = report.rcu.iter().flatten().map(|event| event.evidence);
            let evidence: Vec<&str> = evidence.map(Evidence::as_str).collect();
            format!("time blocked ({})", evidence.join(", "))
        }
    };
    format!(
        "kernel {}, preempt {}; {seen}",
        escape(&kernel.release),
        kernel.preempt_model.active
    )
}

/// `text` cut to `chars` characters.
fn fit(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(chars.saturating_sub(2)).collect();
    cut.push_str("..");
    cut
}

/// A colour for each frame that occurs.
fn palette(
    recording: &Recording,
    attribution: &Attribution,
    legend: &[Entry],
    lines: &[String],
    by: By,
) -> PaletteMap {
    let colors: BTreeMap<&str, (u8, u8, u8)> = legend
        .iter()
        .map(|entry| (entry.name.as_str(), entry.color))
        .collect();
    let mut palette = PaletteMap::default();
    // Few names, in many lines.
    let mut seen: FastMap<&str, ()> = FastMap::default();
    for name in lines.iter().flat_map(|line| {
        line.rsplit_once(' ')
            .map_or(line.as_str(), |(stack, _)| stack)
            .split(';')
    }) {
        if seen.insert(name, ()).is_some() {
            continue;
        }
        let color = match by {
            By::Rcu => colors.get(name).copied(),
            By::Time => None,
        };
        palette.insert(name, rgb(color.unwrap_or_else(|| muted(name))));
    }
    // The frame above all others has an empty name.
    palette.insert("", rgb(muted("")));
    if by == By::Rcu {
        return palette;
    }
    // One symbol has one owner, so a marked name has one colour.
    for (stack, owned) in attribution.owned_stacks() {
        let option = attribution.option(owned.option);
        let Some(&color) = colors.get(option) else {
            continue;
        };
        for name in attribution.owned_names(recording, stack) {
            palette.insert(format!("{}{MARK}", super::folded::frame(name)), rgb(color));
        }
        let leaf = format!("[{}]{MARK}", super::folded::frame(option));
        palette.insert(leaf, rgb(color));
    }
    palette
}

/// A pale warm grey, a little different for each name so that neighbours can be
/// told apart.
fn muted(name: &str) -> (u8, u8, u8) {
    // FNV-1a; any hash that is the same on every run would do.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let step = (hash >> 16) as u8 % 24;
    (232 - step, 227 - step, 216 - step)
}

/// Moves the graph down and puts the legend between subtitle and graph.
///
/// # Errors
///
/// When the graph is not laid out as expected.
fn with_legend(svg: &str, legend: &[Entry], rest: &str) -> anyhow::Result<String> {
    let height: usize = between(svg, " height=\"", "\"")
        .and_then(|height| height.parse().ok())
        .context("no height")?;
    let (rows, bottom) = legend_rows(legend, rest);
    let taller = height + bottom;
    let mut svg = svg.to_owned();
    let mut replace = |from: String, to: String| {
        let at = svg.find(&from).with_context(|| format!("no {from}"))?;
        svg.replace_range(at..at + from.len(), &to);
        anyhow::Ok(())
    };
    replace(
        format!(" height=\"{height}\""),
        format!(" height=\"{taller}\""),
    )?;
    replace(
        format!("viewBox=\"0 0 {WIDTH} {height}\""),
        format!("viewBox=\"0 0 {WIDTH} {taller}\""),
    )?;
    replace(
        format!("width=\"100%\" height=\"{height}\""),
        format!("width=\"100%\" height=\"{taller}\""),
    )?;
    replace(
        format!("<svg id=\"frames\" x=\"{MARGIN}\""),
        format!("{rows}<svg id=\"frames\" x=\"{MARGIN}\" y=\"{bottom}\""),
    )?;
    // The lines below the graph: what the pointer is on, what a search matched.
    for id in ["details", "matched"] {
        let start = svg
            .find(&format!("<text id=\"{id}\""))
            .with_context(|| format!("no {id}"))?;
        let (head, tail) = svg.split_at(start);
        let y: f64 = between(tail, " y=\"", "\"")
            .and_then(|y| y.parse().ok())
            .with_context(|| format!("no y of {id}"))?;
        let tail = tail.replacen(
            &format!(" y=\"{y:.2}\""),
            &format!(" y=\"{:.2}\"", y + bottom as f64),
            1,
        );
        svg = format!("{head}{tail}");
    }
    Ok(svg)
}

fn between<'s>(text: &'s str, start: &str, end: &str) -> Option<&'s str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}

/// The legend as SVG, and the pixels it needs.
fn legend_rows(legend: &[Entry], rest: &str) -> (String, usize) {
    // Below the subtitle, whose baseline is at 48.
    const FIRST: usize = 72;
    let mut out = String::new();
    let (mut x, mut row) = (MARGIN, 0);
    let rest = Entry {
        name: String::new(),
        text: rest.to_owned(),
        color: muted(""),
    };
    for entry in legend.iter().chain([&rest]) {
        let text = escape(&entry.text);
        let width = 18 + text.chars().count() * CHAR + 14;
        if x > MARGIN && x + width > WIDTH - MARGIN {
            x = MARGIN;
            row += 1;
        }
        let y = FIRST + row * LEGEND_ROW;
        let (r, g, b) = entry.color;
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"rgb({r},{g},{b})\"/>\
             <text x=\"{}\" y=\"{y}\">{}</text>",
            y - 10,
            x + 18,
            xml(&text)
        );
        x += width;
    }
    (
        format!("<g id=\"legend\">{out}</g>"),
        (row + 1) * LEGEND_ROW,
    )
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
