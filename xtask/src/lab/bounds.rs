//! How far the profiler may be from the truth before `lab score` fails.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The file of the repository, part of the program.
const FILE: &str = include_str!("../../accuracy-bounds.toml");

/// Largest allowed errors, all of them fractions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bounds {
    /// Predicted gain less the true one.
    pub(crate) gain: Option<f64>,
    /// Sampled share less the share of instructions in the same run.
    pub(crate) share: Option<f64>,
    /// Calls of a function less the true ones, of the true ones.
    pub(crate) calls: Option<f64>,
    /// Instructions that the profiler adds to a run, of a bare one.
    pub(crate) added: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Bounds,
    #[serde(default)]
    pairs: BTreeMap<String, BTreeMap<String, Bounds>>,
}

/// The bounds of a workload on a pair: its own where written, else the default.
///
/// # Errors
///
/// When the file is malformed.
pub(crate) fn of(pair: &str, workload: &str) -> Result<Bounds> {
    parse(FILE, pair, workload)
}

fn parse(text: &str, pair: &str, workload: &str) -> Result<Bounds> {
    let file: File = toml::from_str(text).context("xtask/accuracy-bounds.toml is malformed")?;
    let own = file
        .pairs
        .get(pair)
        .and_then(|workloads| workloads.get(workload))
        .copied()
        .unwrap_or_default();
    Ok(Bounds {
        gain: own.gain.or(file.default.gain),
        share: own.share.or(file.default.share),
        calls: own.calls.or(file.default.calls),
        added: own.added.or(file.default.added),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_bounds_come_before_the_default() {
        let text = "[default]\ngain = 0.03\nshare = 0.1\n\
                    [pairs.p.w]\ngain = 0.05\n";
        let bounds = parse(text, "p", "w").unwrap();
        assert_eq!((bounds.gain, bounds.share), (Some(0.05), Some(0.1)));
        assert_eq!(parse(text, "p", "x").unwrap().gain, Some(0.03));
        assert_eq!(bounds.calls, None);
    }

    #[test]
    fn the_file_is_sound() {
        let table = super::super::table::Table::load().unwrap();
        let file: File = toml::from_str(FILE).unwrap();
        for (pair, workloads) in &file.pairs {
            assert!(table.pair(pair).is_ok(), "{pair}");
            for workload in workloads.keys() {
                assert!(
                    super::super::workloads::named(workload).is_ok(),
                    "{workload}"
                );
            }
        }
        let bounds = of("debug-preempt", "messaging").unwrap();
        assert!(bounds.gain.is_some_and(|gain| gain > 0.0 && gain < 0.1));
    }
}
