//! A flame graph of the difference: the new side's stacks, red where they became
//! dearer, blue where cheaper. What the new side never does has no width in it:
//! the sides swapped, it is what became dearer.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;

use anyhow::Context as _;
use inferno::flamegraph::{self, Options, TextTruncateDirection};

use super::Input;
use crate::catalog::Catalog;
use crate::error::hinted;
use crate::export::{By, folded};
use crate::model::{Attribution, Knowledge, measurements, points};
use crate::report::{command_line, escape};

/// Weights are nanoseconds of a unit of work; runs of a second have 10^9.
const UNIT: f64 = 1e9;

/// Draws it. Each side's weights are divided by its work: by its profiled runs,
/// and where the metric is a rate, by what was done at that rate.
///
/// # Errors
///
/// When there is nothing to draw, or whatever `out` fails with.
pub fn write(
    base: &[Input],
    new: &[Input],
    catalog: &Catalog,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (before, rate) = weights(base, catalog)?;
    let (after, _) = weights(new, catalog)?;
    let lines = merge(&before, &after);
    if lines.is_empty() {
        return Err(hinted(
            "nothing to draw: no sample hit the workload",
            ["the workload may have been too short for the sampling rate: raise it with -F"],
        ));
    }
    let command = base
        .first()
        .map(|input| &input.recording.header.command[..]);
    let release = |inputs: &[Input]| {
        let first = inputs.first();
        let release = first.map(|input| input.recording.header.kernel.release.as_str());
        escape(release.unwrap_or_default()).into_owned()
    };
    let mut options = Options::default();
    options.title = format!("{} -> {}", release(base), release(new));
    options.subtitle = Some(format!(
        "{}: CPU time {}; red became dearer, blue cheaper; the widths are the new kernel's",
        command_line(command.unwrap_or_default()),
        if rate { "a unit of work" } else { "a run" }
    ));
    options.count_name = "ns".to_owned();
    options.text_truncate_direction = TextTruncateDirection::Right;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)
        .context("cannot draw the flame graph")?;
    out.write_all(&svg)?;
    Ok(())
}

/// Nanoseconds of CPU time by stack, a unit of work; and whether that is of a
/// rate.
fn weights(inputs: &[Input], catalog: &Catalog) -> anyhow::Result<(BTreeMap<String, f64>, bool)> {
    let mut sum: BTreeMap<String, f64> = BTreeMap::new();
    let mut work = 0.0;
    let mut rate = false;
    for input in inputs {
        let recording = &input.recording;
        let trailer = &recording.trailer;
        let runs = trailer
            .runs
            .iter()
            .filter(|run| run.profiled)
            .count()
            .max(1) as f64;
        let measured = match &points(trailer)[..] {
            [only] => measurements(trailer, only),
            _ => None,
        };
        let per_run = measured
            .map(|measured| measured.metric)
            .filter(|metric| metric.better == "higher" && metric.value > 0.0);
        rate |= per_run.is_some();
        work += runs * per_run.map_or(1.0, |metric| metric.value);
        let knowledge = Knowledge::new(catalog, &recording.header.kernel);
        let attribution = Attribution::new(recording, &knowledge);
        let mut text = Vec::new();
        folded::write(recording, &attribution, By::Time, &mut text)?;
        let sample_ns = UNIT / recording.header.sampling.hz.max(1) as f64;
        for line in String::from_utf8_lossy(&text).lines() {
            if let Some((stack, samples)) = line.rsplit_once(' ')
                && let Ok(samples) = samples.parse::<u64>()
            {
                *sum.entry(stack.to_owned()).or_default() += samples as f64 * sample_ns;
            }
        }
    }
    sum.values_mut().for_each(|weight| *weight /= work);
    Ok((sum, rate))
}

/// Lines of `stack before after`, scaled so that they are whole numbers.
fn merge(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Vec<String> {
    let total: f64 = before.values().chain(after.values()).sum();
    // A rate of millions makes weights below one.
    let scale = if total > 0.0 && total < 1e6 {
        1e6 / total
    } else {
        1.0
    };
    let whole = |of: &BTreeMap<String, f64>, stack: &String| {
        of.get(stack)
            .map_or(0, |weight| (weight * scale).round() as u64)
    };
    let mut stacks: Vec<&String> = before.keys().chain(after.keys()).collect();
    stacks.sort_unstable();
    stacks.dedup();
    stacks
        .into_iter()
        .map(|stack| {
            let mut line = String::new();
            // Writing to a string cannot fail.
            let _ = write!(
                line,
                "{stack} {} {}",
                whole(before, stack),
                whole(after, stack)
            );
            line
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_of_either_side_are_there_once() {
        let of = |parts: &[(&str, f64)]| -> BTreeMap<String, f64> {
            parts
                .iter()
                .map(|(stack, weight)| ((*stack).to_owned(), *weight))
                .collect()
        };
        let lines = merge(
            &of(&[("a;b", 2e6), ("a c", 1e6)]),
            &of(&[("a;b", 3e6), ("d", 4.4)]),
        );
        assert_eq!(lines, ["a c 1000000 0", "a;b 2000000 3000000", "d 0 4"]);
        assert_eq!(
            merge(&of(&[("a", 0.25)]), &of(&[("a", 0.75)])),
            ["a 250000 750000"]
        );
        assert!(merge(&of(&[]), &of(&[])).is_empty());
    }
}
