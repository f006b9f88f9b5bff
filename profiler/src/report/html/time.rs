//! The run over time and distributions of time, as inline SVG.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use profiler_ebpf::ledger::histogram as buckets;

use super::COLORS;
use super::parts::quote;
use crate::export::timeline::{Counts, Timeline, epochs_by_cpu};
use crate::model::{Attribution, is_workload};
use crate::recording::Recording;
use crate::report::number::seconds;
use crate::report::{count, nanoseconds};

/// Slots of the time line at most.
const SLOTS: u64 = 120;
/// Height of a graph in its own units; the page stretches it.
const HEIGHT: f64 = 100.0;

/// The section; empty when nothing has a time.
pub(super) fn section(recording: &Recording, attribution: &Attribution, costly: &[&str]) -> String {
    let samples = || recording.samples.iter().filter(|s| is_workload(s));
    let last = samples()
        .map(|sample| sample.time_ns)
        .chain(recording.epochs.iter().map(|epoch| epoch.time_ns))
        .max()
        .unwrap_or(0);
    if last == 0 {
        return String::new();
    }
    // Whole epochs, so that no slot has the switches of two and its neighbour none.
    let epoch = recording.header.epoch_ns.max(1);
    let slot_ns = if last / epoch < 10 {
        last / 10 + 1
    } else {
        (last / SLOTS / epoch + 1).saturating_mul(epoch)
    };
    let slots = last / slot_ns + 1;
    let mut html = String::from("<section id=\"time\">\n<h2>Over time</h2>\n");
    html.push_str(&shares(recording, attribution, costly, slot_ns, slots));
    html.push_str(&switches(recording, slot_ns, slots));
    let _ = write!(
        html,
        "<p class=\"axis\"><span>0</span><span>{}</span></p>\n</section>\n",
        quote(&seconds((slots.saturating_mul(slot_ns)) as f64 / 1e9))
    );
    html
}

/// A stacked bar of one slot: class, value and title of each part, from below.
fn stack(out: &mut String, slot: u64, slots: u64, top: u64, parts: &[(String, u64)], title: &str) {
    let width = 1000.0 / slots as f64;
    let x = width * slot as f64;
    let mut y = HEIGHT;
    let _ = write!(out, "<g><title>{}</title>", quote(title));
    for (class, value) in parts.iter().filter(|(_, value)| *value > 0) {
        let height = HEIGHT * *value as f64 / top.max(1) as f64;
        y -= height;
        let _ = write!(
            out,
            "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{:.2}\" height=\"{height:.2}\"/>",
            width * 0.92
        );
    }
    out.push_str("</g>\n");
}

fn in_slot(top: u64, slot_ns: u64) -> String {
    format!("{} in {}", count(top), nanoseconds(slot_ns))
}

fn svg(label: &str, top: &str, bars: &str) -> String {
    format!(
        "<figure><figcaption>{} <small>top: {}</small></figcaption>\n\
         <svg class=\"strip\" viewBox=\"0 0 1000 {HEIGHT}\" preserveAspectRatio=\"none\" \
         role=\"img\" aria-label=\"{}\">\n{bars}</svg></figure>\n",
        quote(label),
        quote(top),
        quote(label)
    )
}

fn shares(
    recording: &Recording,
    attribution: &Attribution,
    costly: &[&str],
    slot_ns: u64,
    slots: u64,
) -> String {
    let timeline = Timeline::new(recording, attribution, slot_ns);
    let all = |counts: &Counts| counts.kernel() + counts.user;
    let top = timeline.slots().map(|(_, c)| all(c)).max().unwrap_or(0);
    if top == 0 {
        return String::new();
    }
    let order: Vec<(usize, &str)> = costly
        .iter()
        .filter_map(|name| {
            let option = attribution.options().position(|option| option == *name)?;
            Some((option, *name))
        })
        .collect();
    let mut bars = String::new();
    for (slot, counts) in timeline.slots() {
        let mut parts = Vec::new();
        let mut title = seconds(timeline.start(slot) as f64 / 1e9);
        for (color, &(option, name)) in order.iter().enumerate() {
            let samples = counts.of(option);
            parts.push((format!("c{}", color % COLORS), samples));
            if samples > 0 {
                let _ = write!(title, ", {name} {}", count(samples));
            }
        }
        // Options without a share are not in the table.
        let shown: u64 = parts.iter().map(|(_, samples)| samples).sum();
        parts.push(("kernel".to_owned(), counts.kernel() - shown));
        parts.push(("user".to_owned(), counts.user));
        let _ = write!(
            title,
            ", other kernel {}, user {} samples",
            count(counts.kernel() - shown),
            count(counts.user)
        );
        stack(&mut bars, slot, slots, top, &parts, &title);
    }
    let mut html = svg("Samples", &in_slot(top, slot_ns), &bars);
    html.push_str("<p class=\"legend\">");
    for (color, (_, name)) in order.iter().enumerate() {
        let _ = write!(
            html,
            "<span><span class=\"key c{}\"></span>{}</span> ",
            color % COLORS,
            quote(super::short(name))
        );
    }
    html.push_str(
        "<span><span class=\"key kernel\"></span>other kernel</span> \
         <span><span class=\"key user\"></span>user mode</span></p>\n",
    );
    html
}

fn switches(recording: &Recording, slot_ns: u64, slots: u64) -> String {
    let mut by_slot: BTreeMap<u64, (u64, u64)> = Default::default();
    for epoch in epochs_by_cpu(recording).into_values().flatten() {
        let sum = by_slot.entry(epoch.from_ns / slot_ns).or_default();
        sum.0 = sum.0.saturating_add(epoch.voluntary);
        sum.1 = sum.1.saturating_add(epoch.preempted);
    }
    let top = by_slot
        .values()
        .map(|(voluntary, preempted)| voluntary.saturating_add(*preempted))
        .max()
        .unwrap_or(0);
    if top == 0 {
        return String::new();
    }
    let mut bars = String::new();
    for (slot, (voluntary, preempted)) in by_slot {
        let title = format!(
            "{}: {} voluntary, {} preempted",
            seconds(slot.saturating_mul(slot_ns) as f64 / 1e9),
            count(voluntary),
            count(preempted)
        );
        let parts = [
            ("preempted".to_owned(), preempted),
            ("voluntary".to_owned(), voluntary),
        ];
        stack(&mut bars, slot, slots, top, &parts, &title);
    }
    let mut html = svg("Context switches", &in_slot(top, slot_ns), &bars);
    html.push_str(
        "<p class=\"legend\"><span><span class=\"key preempted\"></span>preempted</span> \
         <span><span class=\"key voluntary\"></span>voluntary</span></p>\n",
    );
    html
}

/// A distribution of times by their powers of two; empty when nothing is in it.
pub(super) fn histogram(label: &str, counts: &BTreeMap<u16, u64>) -> String {
    // Each bucket of the recording is within one power of two.
    let mut octaves: BTreeMap<u32, u64> = BTreeMap::new();
    for (&bucket, &count) in counts {
        // A damaged recording may name a bucket that does not exist.
        let bucket = usize::from(bucket).min(buckets::BUCKETS - 1);
        let octave = buckets::least(bucket).max(1).ilog2();
        let sum = octaves.entry(octave).or_default();
        *sum = sum.saturating_add(count);
    }
    let (Some(&first), Some(&last)) = (
        octaves.first_key_value().map(|(octave, _)| octave),
        octaves.last_key_value().map(|(octave, _)| octave),
    ) else {
        return String::new();
    };
    let bars: Vec<(u64, u64, u64)> = (first..=last)
        .map(|octave| {
            let low = if octave == 0 { 0 } else { 1 << octave };
            let count = octaves.get(&octave).copied().unwrap_or(0);
            (low, 1 << (octave + 1), count)
        })
        .collect();
    bars_of(label, &bars)
}

fn bars_of(label: &str, buckets: &[(u64, u64, u64)]) -> String {
    let top = buckets.iter().map(|(_, _, n)| *n).max().unwrap_or(0);
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else {
        return String::new();
    };
    let mut bars = String::new();
    for (slot, (low, high, number)) in buckets.iter().enumerate() {
        let title = format!(
            "{} to {}: {}",
            nanoseconds(*low),
            nanoseconds(*high),
            count(*number)
        );
        let parts = [("c1".to_owned(), *number)];
        stack(
            &mut bars,
            slot as u64,
            buckets.len() as u64,
            top,
            &parts,
            &title,
        );
    }
    let mut html = svg(label, &count(top), &bars);
    let _ = writeln!(
        html,
        "<p class=\"axis\"><span>{}</span><span>{}</span></p>",
        quote(&nanoseconds(first.0)),
        quote(&nanoseconds(last.1))
    );
    html
}
