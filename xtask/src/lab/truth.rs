//! The truth about a pair of kernels: the difference between them, from bare
//! runs that the oracle watched.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::oracle::Window;
use super::stats::{self, Estimate};

/// The value of [`Truth::schema`].
pub(crate) const SCHEMA: &str = "preemptprof/lab-truth/1";

/// Functions whose number of calls is work and not cost: when the kernels
/// differ in it, something else than the price of the option differs too.
const WORK: [(&str, &str); 4] = [
    ("context switches", "__schedule"),
    ("wake-ups", "try_to_wake_up"),
    ("preemptions by an interrupt", "preempt_schedule_irq"),
    ("page faults", "handle_mm_fault"),
];

/// One bare run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Nanoseconds between the marks by the guest's own clock, idle included.
    pub(crate) guest_ns: u64,
    /// What the oracle counted.
    pub(crate) window: Window,
}

/// Instructions and calls of one function or of several copies of it, means
/// per run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Executed instructions.
    pub(crate) instructions: f64,
    /// Calls.
    pub(crate) calls: f64,
}

/// One side of the pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// The kernel.
    pub(crate) kernel: String,
    /// How many runs.
    pub(crate) runs: usize,
    /// Guest time of a run in nanoseconds.
    pub(crate) guest_ns: Estimate,
    /// Executed instructions of a run.
    pub(crate) instructions: Estimate,
    /// Those in the kernel.
    pub(crate) kernel_instructions: Estimate,
    /// The instructions of each run, in the order in which they ran.
    pub(crate) instructions_of_runs: Vec<u64>,
    /// The context switches of each run.
    pub(crate) switches_of_runs: Vec<u64>,
}

impl Side {
    /// Context switches and instructions of each run.
    pub(crate) fn switches_and_instructions(&self) -> Vec<(f64, f64)> {
        let switches = self.switches_of_runs.iter().map(|x| *x as f64);
        let instructions = self.instructions_of_runs.iter().map(|y| *y as f64);
        switches.zip(instructions).collect()
    }
}

/// Context switches in a window.
pub(crate) fn switches(window: &Window) -> u64 {
    calls_in(window, "__schedule")
}

/// Calls of the function of that name in the source.
fn calls_in(window: &Window, symbol: &str) -> u64 {
    window
        .functions
        .iter()
        .filter(|f| is_entry(&f.symbol) && source_name(&f.symbol) == symbol)
        .map(|f| f.calls)
        .sum()
}

/// A difference in work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// What it is.
    pub(crate) what: String,
    /// The function whose calls were counted.
    pub(crate) symbol: String,
    /// Calls of a run with the option.
    pub(crate) with: Estimate,
    /// Calls of a run without it.
    pub(crate) without: Estimate,
    /// The means cannot be told apart; absent with fewer than two runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) same: Option<bool>,
}

/// A function in both kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct FunctionDifference {
    /// Its name without the suffixes that the compiler gave copies of it.
    pub(crate) symbol: String,
    /// With the option; absent when it executed nothing there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) with: Option<Cost>,
    /// Without the option.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) without: Option<Cost>,
    /// Instructions more with the option, in a run.
    pub(crate) instructions_more: f64,
    /// The part of that which one call costs more, at the calls without.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) more_per_call: Option<f64>,
}

/// A call site of one of the option's own functions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SiteCount {
    /// The function that is called.
    pub(crate) target: String,
    /// The function that calls.
    pub(crate) caller: String,
    /// Where in it, in bytes.
    pub(crate) offset: u64,
    /// The address.
    pub(crate) address: u64,
    /// Calls of a run.
    pub(crate) calls: f64,
}

/// All that `cargo xtask lab truth` finds out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Truth {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// The workload's name.
    pub(crate) workload: String,
    /// Its command.
    pub(crate) command: String,
    /// The kernel with the option.
    pub(crate) with: Side,
    /// The kernel without it.
    pub(crate) without: Side,
    /// The fraction of guest time that the kernel without saves.
    pub(crate) gain: Estimate,
    /// The same of executed instructions.
    pub(crate) gain_instructions: Estimate,
    /// The same at equal numbers of context switches: without the scatter that the
    /// scheduler's choices bring, and without what they truly cost.
    pub(crate) gain_at_equal_switches: Estimate,
    /// The fraction of the instructions of a run with the option that lie in
    /// the option's own functions: what a sampler that sees everything would show.
    pub(crate) share: Estimate,
    /// Those functions.
    pub(crate) own_functions: Vec<FunctionDifference>,
    /// The others, by how much they differ.
    pub(crate) functions: Vec<FunctionDifference>,
    /// Call sites of the option's own functions, by calls.
    pub(crate) sites: Vec<SiteCount>,
    /// Differences in work.
    pub(crate) work: Vec<Work>,
}

/// The fraction of the instructions of `window` that lie in the functions, by
/// their name in the source, that `own` accepts.
pub(crate) fn share(window: &Window, own: impl Fn(&str) -> bool) -> f64 {
    let instructions: u64 = window
        .functions
        .iter()
        .filter(|f| own(source_name(&f.symbol)))
        .map(|f| f.instructions)
        .sum();
    instructions as f64 / window.instructions.total as f64
}

/// The name a function has in the source: without `.isra.0`, `.cold` and such.
pub(crate) fn source_name(symbol: &str) -> &str {
    match symbol.split_once('.') {
        Some((name, _)) if !name.is_empty() => name,
        _ => symbol,
    }
}

/// Whether executing the first instruction of `symbol` is a call of the
/// function: not so for the parts the compiler split off.
fn is_entry(symbol: &str) -> bool {
    !symbol.contains(".cold") && !symbol.contains(".part.")
}

/// Means per run by source name.
fn costs(runs: &[Run]) -> BTreeMap<String, Cost> {
    let mut costs: BTreeMap<String, Cost> = BTreeMap::new();
    for function in runs.iter().flat_map(|run| &run.window.functions) {
        let cost = costs
            .entry(source_name(&function.symbol).to_owned())
            .or_default();
        cost.instructions += function.instructions as f64 / runs.len() as f64;
        if is_entry(&function.symbol) {
            cost.calls += function.calls as f64 / runs.len() as f64;
        }
    }
    costs
}

fn samples(runs: &[Run], value: impl Fn(&Run) -> u64) -> Vec<f64> {
    runs.iter().map(|run| value(run) as f64).collect()
}

fn side(kernel: &str, runs: &[Run]) -> Option<Side> {
    let estimate = |value: fn(&Run) -> u64| stats::mean_interval(&samples(runs, value));
    Some(Side {
        kernel: kernel.to_owned(),
        runs: runs.len(),
        guest_ns: estimate(|run| run.guest_ns)?,
        instructions: estimate(|run| run.window.instructions.total)?,
        kernel_instructions: estimate(|run| run.window.instructions.kernel)?,
        instructions_of_runs: runs
            .iter()
            .map(|run| run.window.instructions.total)
            .collect(),
        switches_of_runs: runs.iter().map(|run| switches(&run.window)).collect(),
    })
}

/// Compares runs of both kernels; `None` when a side has no run, or a run
/// executed nothing.
///
/// The option's own functions are `owns`, or when that is empty those that every
/// run with the option executed and no run without.
pub(crate) fn compare(
    workload: super::workloads::Workload,
    owns: &[String],
    (with_kernel, with): (&str, &[Run]),
    (without_kernel, without): (&str, &[Run]),
) -> Option<Truth> {
    let (with_costs, without_costs) = (costs(with), costs(without));
    let names: BTreeSet<&String> = with_costs.keys().chain(without_costs.keys()).collect();
    let (mut own, mut functions): (Vec<_>, Vec<_>) = names
        .into_iter()
        .map(|symbol| difference(symbol, with_costs.get(symbol), without_costs.get(symbol)))
        .partition(|f| {
            if owns.is_empty() {
                f.without.is_none() && in_every_run(with, &f.symbol)
            } else {
                owns.contains(&f.symbol)
            }
        });
    let own_names: BTreeSet<String> = own.iter().map(|f| f.symbol.clone()).collect();
    let shares: Vec<f64> = with
        .iter()
        .map(|run| share(&run.window, |symbol| own_names.contains(symbol)))
        .collect();
    for list in [&mut own, &mut functions] {
        list.sort_by(|a, b| {
            b.instructions_more
                .abs()
                .total_cmp(&a.instructions_more.abs())
        });
    }
    let total = |run: &Run| run.window.instructions.total;
    let time = |run: &Run| run.guest_ns;
    let work = WORK
        .iter()
        .filter_map(|(what, symbol)| {
            let calls = |runs| samples(runs, |run| calls_in(&run.window, symbol));
            let (a, b) = (calls(with), calls(without));
            Some(Work {
                what: (*what).to_owned(),
                symbol: (*symbol).to_owned(),
                with: stats::mean_interval(&a)?,
                without: stats::mean_interval(&b)?,
                same: stats::agree(&a, &b),
            })
        })
        .collect();
    let (with_side, without_side) = (side(with_kernel, with)?, side(without_kernel, without)?);
    let groups = [
        with_side.switches_and_instructions(),
        without_side.switches_and_instructions(),
    ];
    let all: Vec<f64> = groups.iter().flatten().map(|(x, _)| *x).collect();
    let equal = stats::adjusted(&groups, stats::mean(&all)?);
    Some(Truth {
        schema: SCHEMA.to_owned(),
        workload: workload.name.to_owned(),
        command: workload.command.to_owned(),
        with: with_side,
        without: without_side,
        gain: stats::saved_fraction(&samples(with, time), &samples(without, time))?,
        gain_instructions: stats::saved_fraction(&samples(with, total), &samples(without, total))?,
        gain_at_equal_switches: stats::saved_fraction(&equal[0], &equal[1])?,
        share: stats::mean_interval(&shares)?,
        sites: sites(with, &own_names),
        own_functions: own,
        functions,
        work,
    })
}

fn in_every_run(runs: &[Run], symbol: &str) -> bool {
    runs.iter().all(|run| {
        run.window
            .functions
            .iter()
            .any(|f| source_name(&f.symbol) == symbol)
    })
}

fn difference(symbol: &str, with: Option<&Cost>, without: Option<&Cost>) -> FunctionDifference {
    let instructions = |cost: Option<&Cost>| cost.map_or(0.0, |c| c.instructions);
    let per_call = |cost: Option<&Cost>| {
        let cost = cost?;
        (cost.calls > 0.0).then(|| cost.instructions / cost.calls)
    };
    FunctionDifference {
        symbol: symbol.to_owned(),
        with: with.copied(),
        without: without.copied(),
        instructions_more: instructions(with) - instructions(without),
        more_per_call: per_call(with).zip(per_call(without)).map(|(a, b)| a - b),
    }
}

fn sites(runs: &[Run], targets: &BTreeSet<String>) -> Vec<SiteCount> {
    let mut calls: BTreeMap<(u64, String), SiteCount> = BTreeMap::new();
    for site in runs.iter().flat_map(|run| &run.window.sites) {
        let Some(target) = site.target.as_deref().map(source_name) else {
            continue;
        };
        if !targets.contains(target) {
            continue;
        }
        calls
            .entry((site.address, target.to_owned()))
            .or_insert_with(|| SiteCount {
                target: target.to_owned(),
                caller: site.caller.clone(),
                offset: site.offset,
                address: site.address,
                calls: 0.0,
            })
            .calls += site.calls as f64 / runs.len() as f64;
    }
    let mut sites: Vec<SiteCount> = calls.into_values().collect();
    sites.sort_by(|a, b| b.calls.total_cmp(&a.calls));
    sites
}

#[cfg(test)]
mod tests {
    use super::super::oracle::document::{Function, Instructions, Site};
    use super::*;

    /// A run that executed these `(symbol, instructions, calls)`.
    fn run(functions: &[(&str, u64, u64)]) -> Run {
        let total = functions
            .iter()
            .map(|(_, instructions, _)| instructions)
            .sum();
        Run {
            guest_ns: total,
            window: Window {
                instructions: Instructions {
                    total,
                    user: 0,
                    kernel: total,
                    kernel_unnamed: 0,
                },
                functions: functions
                    .iter()
                    .enumerate()
                    .map(|(i, (symbol, instructions, calls))| Function {
                        symbol: (*symbol).to_owned(),
                        address: i as u64,
                        instructions: *instructions,
                        calls: *calls,
                    })
                    .collect(),
                sites: vec![Site {
                    address: 0x10,
                    caller: "caller".to_owned(),
                    offset: 4,
                    target: Some("check".to_owned()),
                    calls: 7,
                }],
            },
        }
    }

    fn truth(with: &[Run], without: &[Run]) -> Truth {
        let workload = super::super::workloads::ALL[0];
        compare(workload, &[], ("w", with), ("o", without)).unwrap()
    }

    #[test]
    fn gain_share_and_own_functions() {
        let with = [
            run(&[("check", 10, 5), ("caller.isra.0", 60, 10), ("rest", 30, 1)]),
            run(&[
                ("check", 10, 5),
                ("caller", 60, 10),
                ("rest", 30, 1),
                ("rare", 0, 0),
            ]),
        ];
        let without = vec![run(&[("caller", 50, 10), ("rest", 30, 1)]); 2];
        let truth = truth(&with, &without);
        assert!((truth.gain.value - 0.2).abs() < 1e-12);
        assert!((truth.gain_instructions.value - 0.2).abs() < 1e-12);
        assert!((truth.share.value - 0.1).abs() < 1e-12);
        assert_eq!(truth.own_functions.len(), 1);
        assert_eq!(truth.own_functions[0].symbol, "check");
        assert_eq!(truth.functions[0].symbol, "caller");
        assert!((truth.functions[0].instructions_more - 10.0).abs() < 1e-12);
        assert!((truth.functions[0].more_per_call.unwrap() - 1.0).abs() < 1e-12);
        assert!((truth.sites[0].calls - 7.0).abs() < 1e-12);
        assert_eq!(truth.with.instructions_of_runs, [100, 100]);
    }

    #[test]
    fn a_difference_in_work_is_flagged() {
        let side = |switches: u64| -> Vec<Run> {
            (0..4)
                .map(|i| {
                    run(&[
                        ("__schedule", 100, switches + i % 2),
                        ("try_to_wake_up", 10, 50),
                    ])
                })
                .collect()
        };
        let truth = truth(&side(100), &side(130));
        let find = |what: &str| truth.work.iter().find(|w| w.what == what).unwrap();
        assert_eq!(find("context switches").same, Some(false));
        assert_eq!(find("wake-ups").same, Some(true));
    }

    #[test]
    fn names_of_the_source() {
        assert_eq!(source_name("f.constprop.0.isra.1"), "f");
        assert_eq!(source_name("f.cold"), "f");
        assert_eq!(source_name(".local"), ".local");
        assert!(is_entry("f.isra.0"));
        assert!(!is_entry("f.cold"));
        assert!(!is_entry("f.part.0"));
    }

    #[test]
    fn named_own_functions() {
        let with = [run(&[
            ("check", 10, 5),
            ("wrapper", 10, 1),
            ("rest", 80, 1),
        ])];
        let without = [run(&[("rest", 80, 1)])];
        let workload = super::super::workloads::ALL[0];
        let owns = ["check".to_owned()];
        let truth = compare(workload, &owns, ("w", &with), ("o", &without)).unwrap();
        assert!((truth.share.value - 0.1).abs() < 1e-12);
        assert_eq!(truth.own_functions.len(), 1);
        assert_eq!(truth.functions[0].symbol, "wrapper");
    }

    #[test]
    fn nothing_to_compare() {
        let workload = super::super::workloads::ALL[0];
        assert!(compare(workload, &[], ("w", &[]), ("o", &[run(&[("a", 1, 1)])])).is_none());
    }
}
