//! A comparison as data: the document `preemptprof/diff/1`.
//!
//! Fractions, not percentages. A change is (new - base) / base: negative when the
//! value falls. A field that is absent is not known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kernel::MachineFacts;
use crate::model::report::{Estimate, Kernel};
use crate::recording::Evidence;

/// The value of [`Diff::schema`].
pub const SCHEMA: &str = "preemptprof/diff/1";

/// Two kernels, or two times the same, compared by what was recorded on them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// What is compared against.
    pub base: Side,
    /// What is compared.
    pub new: Side,
    /// In what the kernels and machines differ.
    pub differences: Differences,
    /// The benchmark's own result; absent of a sweep of several points, and when
    /// one of the sides has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricDiff>,
    /// How much of the metric's change the options that differ explain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Explained>,
    /// Options that differ or took time, those that differ first.
    pub options: Vec<OptionDiff>,
    /// Callers of the options' functions, the greatest change first.
    pub callers: Vec<CallerDiff>,
    /// Context switches; absent when one of the sides did not watch them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<SwitchesDiff>,
    /// Blocking RCU calls, by event; only events that both sides watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rcu: Vec<RcuDiff>,
    /// Wake-up latency; absent when one of the sides did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wakeup_latency: Option<LatencyDiff>,
    /// The points of a sweep, in the base's order; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<PointDiff>,
    /// Warnings for the reader, whole sentences.
    pub warnings: Vec<String>,
}

/// One side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// The recordings.
    pub files: Vec<String>,
    /// The kernel.
    pub kernel: Kernel,
    /// The machine.
    pub machine: MachineFacts,
    /// The command and its arguments.
    pub command: Vec<String>,
    /// Profiled runs.
    pub runs: usize,
    /// Samples of the workload in them.
    pub samples: u64,
    /// CPU time of the workload, a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_time_per_run_s: Option<f64>,
}

/// In what the sides differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Differences {
    /// Release, preemption model, HZ, clock source, boot parameters.
    pub kernel: Vec<Difference>,
    /// The configuration, only where both are known.
    pub config: Vec<Difference>,
    /// CPU model, CPUs, mitigations, governor, SMT, hypervisor.
    pub machine: Vec<Difference>,
}

/// One thing that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What.
    pub what: String,
    /// In the base; empty when it has none.
    pub base: String,
    /// In the new.
    pub new: String,
}

/// The benchmark's own result on both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricDiff {
    /// e.g. `total time`.
    pub name: String,
    /// e.g. `s`.
    pub unit: String,
    /// Arithmetic mean of the base.
    pub base: f64,
    /// Arithmetic mean of the new.
    pub new: f64,
    /// (new - base) / base.
    pub change: f64,
    /// `lower` or `higher`.
    pub better: String,
    /// Lower bound of the change's 95 % interval, by Welch's method; absent when
    /// a side has one run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// Upper bound of the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Whether chance alone makes so great a difference in less than 1 of 20
    /// comparisons, by `test`.
    /// In a sweep all points are judged together, by their false discovery rate.
    pub significant: bool,
    /// `mann-whitney`, or `none` when a side has fewer than two runs.
    pub test: String,
    /// The probability by `test`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// The probability by Welch's t-test, for comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub welch_p: Option<f64>,
    /// `unprofiled` when both sides have runs that nothing was attached to, which
    /// are then compared; else `profiled`.
    pub runs: String,
    /// The base's values, in the order of its runs.
    pub base_values: Vec<f64>,
    /// The new's.
    pub new_values: Vec<f64>,
    /// Values far from the others of their side. They count all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outliers: Vec<Outlier>,
}

/// A value far from the others of its side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outlier {
    /// `base` or `new`.
    pub side: String,
    /// Which of its values, from 1.
    pub run: usize,
    /// The value.
    pub value: f64,
}

/// How much of a change is explained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explained {
    /// The change that the options predict, of the change that was measured.
    pub fraction: f64,
    /// Lower bound of its 95 % interval.
    pub low: f64,
    /// Upper bound of its 95 % interval.
    pub high: f64,
    /// Whether the prediction is a lower bound of what the options cost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

/// One option on both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OptionDiff {
    /// With `CONFIG_`.
    pub name: String,
    /// Its state, or its value, in the base.
    pub base: String,
    /// In the new.
    pub new: String,
    /// Whether these differ.
    pub differs: bool,
    /// Share of the workload's CPU time in the base.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_share: Option<Estimate>,
    /// In the new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_share: Option<Estimate>,
    /// The change of a run's time that the side with the option on predicts, as a
    /// fraction of the base's; of an option that was switched, only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    /// The change of CPU time sampled in the option, a unit of work (a run, or
    /// what a rate counts), as a fraction of all the base's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed: Option<Estimate>,
}

/// A change that is predicted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The change: negative for an option that was switched off.
    pub value: f64,
    /// Lower bound of its 95 % interval.
    pub low: f64,
    /// Upper bound of its 95 % interval.
    pub high: f64,
    /// How it is known.
    pub evidence: Evidence,
    /// `gain_if_off`, or `cpu_share` where there is no better.
    pub from: String,
    /// Whether the option costs at least so much.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub at_least: bool,
}

/// One caller of an option's functions on both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CallerDiff {
    /// The option, with `CONFIG_`.
    pub option: String,
    /// The calling function.
    pub symbol: String,
    /// Its subsystem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Share of the workload's CPU time in the base.
    pub base_share: f64,
    /// In the new.
    pub new_share: f64,
    /// The change of CPU time, a unit of work, as a fraction of all the base's.
    pub change: f64,
    /// Its call sites, the greatest change first. A site that moved by a byte is
    /// another one.
    pub sites: Vec<SiteDiff>,
}

/// One call site on both sides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SiteDiff {
    /// `symbol+0xoff`.
    pub site: String,
    /// Share of the workload's CPU time in the base.
    pub base_share: f64,
    /// In the new.
    pub new_share: f64,
    /// As of the caller.
    pub change: f64,
}

/// A number on both sides, a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PerRun {
    /// In the base.
    pub base: f64,
    /// In the new.
    pub new: f64,
}

/// Context switches away from the workload's tasks, a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchesDiff {
    /// The task blocked or ended.
    pub voluntary: PerRun,
    /// The task could have gone on.
    pub preempted: PerRun,
}

/// One kind of blocking RCU call, a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RcuDiff {
    /// `rcu_barrier`.
    pub event: String,
    /// Calls.
    pub count: PerRun,
    /// Nanoseconds blocked, together.
    pub total_ns: PerRun,
    /// The longest of all runs.
    pub max_ns: PerRun,
}

/// Wake-up latency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyDiff {
    /// Wake-ups, a run.
    pub count: PerRun,
    /// Half of them took longer.
    pub p50_ns: PerRun,
    /// One in a hundred took longer.
    pub p99_ns: PerRun,
    /// The longest.
    pub max_ns: PerRun,
}

/// One point of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PointDiff {
    /// The values of its parameters.
    pub point: BTreeMap<String, String>,
    /// As of a comparison without a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricDiff>,
    /// As of a comparison without a sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<Explained>,
    /// As of a comparison without a sweep.
    pub options: Vec<OptionDiff>,
}
