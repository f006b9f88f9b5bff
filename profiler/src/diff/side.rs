//! One side of a comparison: the recordings of one kernel, added up.

use std::collections::BTreeMap;

use anyhow::bail;
use serde::de::DeserializeOwned;

use super::document::PerRun;
use crate::catalog::{Catalog, OptionState};
use crate::error::hinted;
use crate::kernel::KernelFacts;
use crate::model::report::{Estimate, Report};
use crate::model::{AnalyseOptions, Measurements, analyse, measurements, wilson};
use crate::recording::{Recording, SwitchCounts};

/// A recording and where it comes from.
#[derive(Debug)]
pub struct Input {
    /// The file.
    pub name: String,
    /// What is in it.
    pub recording: Recording,
}

/// What the recordings of one side say together.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) facts: KernelFacts,
    /// The first recording's report: kernel, machine and command are those of all.
    pub(super) first: Report,
    /// Profiled runs.
    pub(super) runs: usize,
    pub(super) samples: u64,
    /// CPU time of the workload, seconds, all runs.
    pub(super) task_time_s: f64,
    pub(super) measurements: Option<Measurements>,
    /// By name.
    pub(super) options: BTreeMap<String, Owned>,
    pub(super) switches: Option<SwitchCounts>,
    /// By event: calls, nanoseconds together, longest.
    pub(super) rcu: BTreeMap<String, (u64, u64, u64)>,
    pub(super) latency: Option<Latency>,
    pub(super) warnings: Vec<String>,
}

/// One option of one side.
#[derive(Clone, Debug, Default)]
pub(super) struct Owned {
    pub(super) state: OptionState,
    pub(super) samples: u64,
    pub(super) share: Option<Estimate>,
    pub(super) gain: Option<Estimate>,
    /// By function.
    pub(super) callers: BTreeMap<String, Caller>,
}

/// One calling function.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller {
    /// CPU time, seconds, all runs: by calls where those were counted.
    pub(super) time_s: f64,
    pub(super) group: Option<String>,
    pub(super) sites: BTreeMap<String, f64>,
}

/// Wake-up latency, as a report has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) count: u64,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) max_ns: u64,
}

/// A part that a report may have, by its name in the document.
fn optional<T: DeserializeOwned>(part: &impl serde::Serialize, field: &str) -> Option<T> {
    let mut value = serde_json::to_value(part).ok()?;
    serde_json::from_value(value.get_mut(field)?.take()).ok()
}

impl Side {
    /// Adds up the recordings at one point of their sweeps.
    ///
    /// # Errors
    ///
    /// When there is none, or they are of different kernels or metrics.
    pub(super) fn of(
        which: &str,
        inputs: &[&Input],
        point: &BTreeMap<String, String>,
        catalog: &Catalog,
    ) -> anyhow::Result<Self> {
        let mut side: Option<Self> = None;
        for input in inputs {
            let next = Self::one(input, point, catalog);
            match &mut side {
                None => side = Some(next),
                Some(side) => side.add(next, which, &input.name)?,
            }
        }
        let Some(mut side) = side else {
            bail!("{which}: no recording");
        };
        let evidence = side.first.sampling.evidence;
        for option in side.options.values_mut() {
            if option.share.is_some() {
                option.share = wilson(option.samples, side.samples, evidence);
            }
        }
        Ok(side)
    }

    fn one(input: &Input, point: &BTreeMap<String, String>, catalog: &Catalog) -> Self {
        let report = analyse(&input.recording, catalog, &AnalyseOptions::default());
        let trailer = &input.recording.trailer;
        let mut warnings = Vec::new();
        let mut warn = |what: String| warnings.push(format!("{}: {what}", input.name));
        if !report.run.complete {
            warn("the recording is incomplete.".to_owned());
        }
        let failed = trailer.runs.iter().filter(|run| run.exit_code != 0).count();
        match (failed, trailer.run.exit_code) {
            (0, Some(status @ 1..)) => warn(format!("the workload ended with status {status}.")),
            (1.., _) => warn(format!(
                "{failed} of {} runs of the workload ended with a status other than 0.",
                trailer.runs.len()
            )),
            _ => {}
        }
        if report.sampling.samples == 0 {
            warn("no sample hit the workload.".to_owned());
        }
        if report.loss.total > 0 {
            warn(format!("{} records were lost.", report.loss.total));
        }
        let profiled = trailer.runs.iter().filter(|run| run.profiled).count();
        let task_time_s = report.sampling.task_time_s.unwrap_or_default();
        let options = report.options.iter().map(|option| {
            let samples = option
                .functions
                .iter()
                .map(|function| function.samples)
                .sum();
            let mut callers: BTreeMap<String, Caller> = BTreeMap::new();
            for caller in &option.callers {
                let entry = callers.entry(caller.symbol.clone()).or_default();
                let time_s = caller.share * task_time_s;
                entry.time_s += time_s;
                entry.group.clone_from(&caller.group);
                if let Some(site) = &caller.site {
                    *entry.sites.entry(site.clone()).or_default() += time_s;
                }
            }
            let owned = Owned {
                state: option.option.clone(),
                samples,
                share: option.cpu_share,
                gain: option.gain_if_off,
                callers,
            };
            (option.option.name.clone(), owned)
        });
        let rcu = report.rcu.iter().flatten().map(|event| {
            let numbers = (event.count, event.total_ns, event.max_ns);
            (event.event.clone(), numbers)
        });
        Self {
            facts: input.recording.header.kernel.clone(),
            runs: profiled.max(1),
            samples: report.sampling.samples,
            task_time_s,
            measurements: measurements(trailer, point),
            options: options.collect(),
            switches: trailer.switches,
            rcu: rcu.collect(),
            latency: optional(&report, "wakeup_latency"),
            warnings,
            first: report,
        }
    }

    fn add(&mut self, next: Self, which: &str, name: &str) -> anyhow::Result<()> {
        let kernels = |what: &str, a: &str, b: &str| {
            hinted(
                format!("{which}: {name} is of another kernel: {what} {b}, not {a}"),
                ["each side takes recordings of one kernel, booted with the same options"],
            )
        };
        let (a, b) = (&self.facts, &next.facts);
        for (what, a, b) in [
            ("release", &a.release, &b.release),
            ("build id", &a.build_id, &b.build_id),
            ("boot parameters", &a.boot_parameters, &b.boot_parameters),
        ] {
            if a != b {
                return Err(kernels(what, a, b));
            }
        }
        if a.config != b.config {
            return Err(kernels("configuration", "the same", "another one"));
        }
        let model = |facts: &KernelFacts| facts.preempt_model.active.to_string();
        if model(a) != model(b) {
            return Err(kernels("preemption model", &model(a), &model(b)));
        }
        self.measurements = match (self.measurements.take(), next.measurements) {
            (Some(mut before), Some(next)) => {
                same_metric(&before, &next, which, name)?;
                before.profiled.extend(next.profiled);
                before.unprofiled.extend(next.unprofiled);
                before.metric.value = crate::stats::mean(&before.profiled);
                Some(before)
            }
            (before, next) => before.or(next),
        };
        let weights = (self.samples as f64, next.samples as f64);
        self.runs += next.runs;
        self.samples += next.samples;
        self.task_time_s += next.task_time_s;
        for (name, option) in next.options {
            let known = self.options.entry(name).or_default();
            known.samples += option.samples;
            known.share = known.share.or(option.share);
            known.gain = pool(known.gain, option.gain, weights);
            for (symbol, caller) in option.callers {
                let entry = known.callers.entry(symbol).or_default();
                entry.time_s += caller.time_s;
                entry.group = entry.group.take().or(caller.group);
                for (site, time_s) in caller.sites {
                    *entry.sites.entry(site).or_default() += time_s;
                }
            }
        }
        self.switches = self.switches.zip(next.switches).map(|(a, b)| SwitchCounts {
            voluntary: a.voluntary + b.voluntary,
            preempted: a.preempted + b.preempted,
        });
        self.rcu.retain(|event, _| next.rcu.contains_key(event));
        for (event, numbers) in next.rcu {
            if let Some(sum) = self.rcu.get_mut(&event) {
                *sum = (
                    sum.0 + numbers.0,
                    sum.1.saturating_add(numbers.1),
                    sum.2.max(numbers.2),
                );
            }
        }
        // Percentiles do not add up.
        self.latency = None;
        self.warnings.extend(next.warnings);
        Ok(())
    }

    /// A count, a run.
    pub(super) fn per_run(&self, total: u64) -> f64 {
        total as f64 / self.runs as f64
    }

    /// CPU time of the workload, seconds, a run.
    pub(super) fn task_time_per_run(&self) -> f64 {
        self.task_time_s / self.runs as f64
    }

    /// The work done in all runs, in units of which each takes so much time: runs,
    /// or where the metric is a rate, what was done at that rate in runs that are
    /// as long as each other.
    pub(super) fn work(&self) -> f64 {
        let rate = self.measurements.as_ref().map(|measured| &measured.metric);
        let rate = rate.filter(|metric| metric.better == "higher" && metric.value > 0.0);
        self.runs as f64 * rate.map_or(1.0, |metric| metric.value)
    }

    /// CPU time of the workload, seconds, a unit of work.
    pub(super) fn time_of_work(&self) -> f64 {
        self.task_time_s / self.work()
    }

    /// A part of the CPU time as a share of all of it.
    pub(super) fn share(&self, time_s: f64) -> f64 {
        if self.task_time_s <= 0.0 {
            return 0.0;
        }
        (time_s / self.task_time_s).clamp(0.0, 1.0)
    }
}

/// Refuses metrics that cannot be compared.
pub(super) fn same_metric(
    a: &Measurements,
    b: &Measurements,
    which: &str,
    name: &str,
) -> anyhow::Result<()> {
    let (a, b) = (&a.metric, &b.metric);
    if (&a.name, &a.unit, &a.better) == (&b.name, &b.unit, &b.better) {
        return Ok(());
    }
    let text = |metric: &crate::recording::Metric| match metric.unit.as_str() {
        "" => metric.name.clone(),
        unit => format!("{} in {unit}", metric.name),
    };
    Err(hinted(
        format!(
            "{which}: {name} measured another metric: {}, not {}",
            text(b),
            text(a)
        ),
        ["record both sides with the same --metric; --metric wall is always there"],
    ))
}

/// Two estimates of the same, weighted by their samples. The interval is as wide
/// as theirs on average: they may err in the same direction.
fn pool(a: Option<Estimate>, b: Option<Estimate>, weights: (f64, f64)) -> Option<Estimate> {
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    let total = weights.0 + weights.1;
    if total <= 0.0 {
        return Some(a);
    }
    let mean = |a: f64, b: f64| (a * weights.0 + b * weights.1) / total;
    Some(Estimate {
        value: mean(a.value, b.value),
        low: mean(a.low, b.low),
        high: mean(a.high, b.high),
        evidence: a.evidence,
    })
}

/// A number of both sides.
pub(super) fn both(base: f64, new: f64) -> PerRun {
    PerRun { base, new }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::recording::Evidence;

    #[test]
    fn parts_that_a_report_may_have() {
        assert_eq!(
            optional::<Latency>(&json!({"other": 1}), "wakeup_latency"),
            None
        );
        let report = json!({
            "wakeup_latency": {"count": 3, "p50_ns": 5, "max_ns": 9, "evidence": "counted", "more": []}
        });
        let latency: Latency = optional(&report, "wakeup_latency").unwrap();
        assert_eq!((latency.count, latency.p99_ns, latency.max_ns), (3, 0, 9));
    }

    #[test]
    fn estimates_are_pooled_by_their_samples() {
        let estimate = |value: f64| Estimate {
            value,
            low: value - 0.01,
            high: value + 0.01,
            evidence: Evidence::Counted,
        };
        let pooled = pool(Some(estimate(0.1)), Some(estimate(0.2)), (3.0, 1.0)).unwrap();
        assert!((pooled.value - 0.125).abs() < 1e-12, "{pooled:?}");
        assert!(
            (pooled.high - pooled.low - 0.02).abs() < 1e-12,
            "{pooled:?}"
        );
        assert_eq!(
            pool(None, Some(estimate(0.2)), (0.0, 1.0)),
            Some(estimate(0.2))
        );
    }
}
