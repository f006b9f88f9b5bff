//! From a recording to a report.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::attribution::{Attribution, frame_name};
use super::cost::{Cost, Costs};
use super::interval::wilson;
use super::knowledge::Knowledge;
use super::ledger;
use super::rcu;
use super::report::{
    CallerShare, CountingReport, Coverage, Estimate, FunctionShare, Kernel, LossReport,
    OptionReport, Other, OverheadReport, Report, Run, SCHEMA, SamplingReport, Switches,
};
use super::runs::{measurements, point_metrics, points, profiler_effect};
use super::tally::{OptionTally, Tally};
use super::waits;
use crate::catalog::Catalog;
use crate::kernel::base_name;
use crate::probes::ProbeStatus;
use crate::recording::{
    Epoch, Evidence, FrameId, Loss, Recording, SwitchCounts, SymbolId, Trailer,
};

/// The status row of the context-switch counter.
const SWITCH: &str = "switch";
/// The leg of a row that has none left.
const NO_LEG: &str = "none";
/// The reason that is not a loss: the record arrived, its stack cut short.
const STACK_TRUNCATED: &str = "stack_truncated";

/// What to leave out of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnalyseOptions {
    /// Call sites kept for each option; absent keeps all.
    pub callers: Option<usize>,
}

/// Analyses a recording.
pub fn analyse(recording: &Recording, catalog: &Catalog, options: &AnalyseOptions) -> Report {
    let knowledge = Knowledge::new(catalog, &recording.header.kernel);
    let attribution = Attribution::new(recording, &knowledge);
    analyse_with(recording, &knowledge, &attribution, options)
}

/// Analyses a recording whose stacks were attributed before.
pub fn analyse_with(
    recording: &Recording,
    knowledge: &Knowledge,
    attribution: &Attribution,
    options: &AnalyseOptions,
) -> Report {
    let tally = Tally::new(recording, attribution);
    let header = &recording.header;
    let trailer = &recording.trailer;
    let salvaged = salvaged(recording);
    let points = points(trailer);
    let measured: Vec<_> = points
        .iter()
        .filter_map(|point| measurements(trailer, point))
        .collect();
    let evidence = header.sampling.evidence;
    let mut warnings = trailer.warnings.clone();
    if salvaged {
        warnings.push(
            "The recording has no end: what is known only when a run ends (its wall time, exit \
             status, probe table and own cost) is missing."
                .to_owned(),
        );
    } else if !recording.complete {
        warnings.push("The recording is marked incomplete: its end was not written.".to_owned());
    }
    warnings.extend(bias(recording, salvaged));
    warnings.extend(knowledge.contradictions().map(str::to_owned));

    let mut report = Report {
        schema: SCHEMA.to_owned(),
        kernel: Kernel::from(&header.kernel),
        machine: if salvaged {
            header.machine.clone()
        } else {
            trailer.machine.clone()
        },
        probes: trailer.probes.clone(),
        run: Run {
            command: header.command.clone(),
            target: header.target.clone(),
            wall_s: finite(trailer.run.wall_s),
            exit_code: trailer.run.exit_code,
            metric: match &measured[..] {
                [only] => Some(only.metric()),
                _ => None,
            },
            profiler_effect: profiler_effect(&measured),
            points: point_metrics(trailer),
            waits: None,
            runs: trailer.runs.clone(),
            complete: recording.complete,
            imported: header.imported.clone(),
        },
        sampling: SamplingReport {
            event: header.sampling.event.clone(),
            evidence,
            hz: header.sampling.hz,
            samples: tally.target,
            user_samples: tally.user,
            task_time_s: (header.sampling.hz > 0)
                .then(|| tally.target as f64 / header.sampling.hz as f64),
        },
        options: option_reports(recording, knowledge, &tally, options),
        other: other(&tally),
        switches: switches(recording, salvaged),
        rcu: rcu::calls(recording, salvaged),
        coverage: Coverage {
            cpus: header.sampling.cpus.clone(),
            idle_samples: if salvaged {
                last_epochs(recording)
                    .map(|epoch| epoch.idle_samples)
                    .fold(0, u64::saturating_add)
            } else {
                trailer.idle_samples
            },
            stackless_samples: tally.stackless,
            truncated_stacks: tally.truncated,
            unknown_samples: tally.unknown,
            gaps: trailer.gaps.clone(),
        },
        loss: loss(recording, salvaged),
        counting: trailer.counting.as_ref().map(CountingReport::from),
        // What another tool cost is not known.
        overhead: (!salvaged && header.imported.is_none()).then(|| OverheadReport {
            bpf_ns: trailer.overhead.bpf_ns,
            probe_ns: trailer.overhead.probe_ns,
            user_ns: trailer.overhead.user_ns,
            setup_ns: trailer.overhead.setup_ns,
            share: finite(trailer.overhead.share),
            bpf_source: trailer.overhead.bpf_source.clone(),
            bpf_stats_ns: trailer.overhead.bpf_stats_ns,
            probe_source: trailer.overhead.probe_source.clone(),
        }),
        warnings,
        ..Report::default()
    };
    ledger::add(&mut report, recording);
    waits::apply(&mut report, recording);
    report
}

/// Whether the recording was cut off before its trailer.
fn salvaged(recording: &Recording) -> bool {
    !recording.complete && recording.trailer == Trailer::default()
}

/// The share of records that may be lost, and the share of the machine that the
/// profiler may take, before a reader must know that the numbers lean.
const TOLERABLE: (f64, f64) = (0.01, 0.05);

/// The share of the CPUs' time that a hypervisor may take before it is named.
const STEAL: f64 = 0.01;

/// What bends the numbers of a run: records that are missing, which is seldom by
/// chance, and a profiler that is a load of its own.
fn bias(recording: &Recording, salvaged: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    let lost = loss(recording, salvaged).total as f64;
    let kept = recording.samples.len() as f64;
    let share = lost / (lost + kept);
    if share > TOLERABLE.0 {
        warnings.push(format!(
            "{:.1} % of the records were lost, and seldom by chance: shares and times are off. A \
             larger --ring-size or a lower -F keeps them.",
            100.0 * share
        ));
    }
    if let Some(steal) = recording.trailer.machine.steal
        && steal > STEAL
    {
        warnings.push(format!(
            "The hypervisor took {:.1} % of the CPUs' time meanwhile: times on the wall are longer \
             than the work, and two runs may differ by that alone.",
            100.0 * steal
        ));
    }
    let cost = recording.trailer.overhead.share;
    if cost > TOLERABLE.1 {
        warnings.push(format!(
            "The profiler took {:.0} % of the machine, which changes what it measures. A lower -F \
             takes less.",
            100.0 * cost
        ));
    }
    warnings
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

fn share(hits: u64, total: u64) -> f64 {
    if total == 0 {
        0.0
    } else {
        hits as f64 / total as f64
    }
}

fn option_reports(
    recording: &Recording,
    knowledge: &Knowledge,
    tally: &Tally,
    options: &AnalyseOptions,
) -> Vec<OptionReport> {
    let hidden = recording.header.kernel.symbols_hidden.is_some();
    let none = OptionTally::default();
    let costs = Costs::new(recording, tally.target);
    let mut reports: Vec<(u64, OptionReport)> = knowledge
        .states()
        .iter()
        .enumerate()
        .map(|(index, option)| {
            let mut report = OptionReport {
                option: option.clone(),
                ..OptionReport::default()
            };
            let own = tally.options.get(&index).unwrap_or(&none);
            // Without symbols no sample can be attributed: 0 would be a claim.
            if option.state.is_on() && option.not_judgeable.is_none() && !hidden {
                report.cpu_share = wilson(
                    own.samples,
                    tally.target,
                    recording.header.sampling.evidence,
                );
                report.functions = functions(recording, own, tally.target);
                report.callers = callers(recording, knowledge, own, tally.target, options);
                let checks = knowledge.checks(index);
                if let Some(cost) = costs.as_ref().and_then(|costs| costs.of(checks)) {
                    counted(&mut report, cost, knowledge, options);
                }
                if let (Some(gain), Some(share)) = (report.gain_if_off, report.cpu_share)
                    && contradict(&gain, &share)
                {
                    // One of them is wrong: no number is better than that.
                    report.gain_if_off = None;
                    report.no_gain = Some(TOO_FEW_CALLS.to_owned());
                }
                if report.gain_if_off.is_none() && report.no_gain.is_none() {
                    report.no_gain = Some(no_gain(recording, checks, report.calls.is_some()));
                }
            }
            (own.samples, report)
        })
        .collect();
    reports.sort_by_key(|(samples, _)| Reverse(*samples));
    reports.into_iter().map(|(_, report)| report).collect()
}

fn functions(recording: &Recording, own: &OptionTally, total: u64) -> Vec<FunctionShare> {
    let mut by_name: BTreeMap<&str, u64> = BTreeMap::new();
    for (&symbol, &samples) in &own.functions {
        *by_name
            .entry(base_name(symbol_name(recording, symbol)))
            .or_default() += samples;
    }
    let mut functions: Vec<FunctionShare> = by_name
        .into_iter()
        .map(|(symbol, samples)| FunctionShare {
            symbol: symbol.to_owned(),
            share: share(samples, total),
            samples,
            calls: None,
        })
        .collect();
    functions.sort_by_key(|function| Reverse(function.samples));
    functions
}

/// Why a gain is not given that is smaller than the share.
const TOO_FEW_CALLS: &str = "fewer calls were counted than the samples show: too few windows met \
                             the workload at work";

/// Whether counted calls come to less than what samples saw of them. Samples miss
/// what is done with interrupts off, and see nothing that is not there.
fn contradict(gain: &Estimate, share: &Estimate) -> bool {
    gain.high < share.low
}

/// Why it is not known what an option's checks cost.
fn no_gain(recording: &Recording, checks: &[String], are_counted: bool) -> String {
    if checks.is_empty() {
        return "its code is not made of short checks, whose calls would say what they cost"
            .to_owned();
    }
    if are_counted {
        return "the code of its checks is not understood".to_owned();
    }
    // What is absent says nothing of other options' checks.
    let row = |probe: &&ProbeStatus| {
        probe.wanted == "check" && !probe.absent && !probe.why_not_better.is_empty()
    };
    match recording.trailer.probes.iter().find(row) {
        Some(probe) => format!("calls are not counted: {}", probe.why_not_better),
        None => "calls were not counted".to_owned(),
    }
}

/// Adds what was counted to what was sampled.
fn counted(report: &mut OptionReport, cost: Cost, knowledge: &Knowledge, options: &AnalyseOptions) {
    report.calls = Some(cost.calls);
    report.ns_per_call = cost.ns_per_call;
    report.gain_if_off = cost.gain;
    for (symbol, calls) in cost.functions {
        match report
            .functions
            .iter_mut()
            .find(|known| known.symbol == symbol)
        {
            Some(known) => known.calls = Some(calls),
            None => report.functions.push(FunctionShare {
                symbol,
                calls: Some(calls),
                ..FunctionShare::default()
            }),
        }
    }
    if cost.callers.is_empty() {
        return;
    }
    // Counts see what samples cannot; what only samples saw comes after it.
    let sampled = std::mem::take(&mut report.callers);
    let mut callers = cost.callers;
    for caller in &mut callers {
        caller.group = knowledge.group(&caller.symbol).map(str::to_owned);
    }
    for sample in sampled {
        match callers.iter_mut().find(|caller| caller.site == sample.site) {
            Some(caller) => caller.samples += sample.samples,
            None => callers.push(sample),
        }
    }
    callers.truncate(options.callers.unwrap_or(usize::MAX));
    report.callers = callers;
}

fn symbol_name(recording: &Recording, symbol: SymbolId) -> &str {
    recording
        .symbols
        .get(symbol as usize)
        .map_or("", |symbol| symbol.name.as_str())
}

fn callers(
    recording: &Recording,
    knowledge: &Knowledge,
    own: &OptionTally,
    total: u64,
    options: &AnalyseOptions,
) -> Vec<CallerShare> {
    // Two frames can be one site: a symbol that was loaded at two addresses.
    let mut by_site: BTreeMap<(&str, Option<String>), u64> = BTreeMap::new();
    for (&frame, &samples) in &own.callers {
        let name = frame_name(recording, frame);
        *by_site.entry((name, site(recording, frame))).or_default() += samples;
    }
    let mut callers: Vec<CallerShare> = by_site
        .into_iter()
        .map(|((name, site), samples)| CallerShare {
            symbol: base_name(name).to_owned(),
            site,
            target: None,
            calls: None,
            share: share(samples, total),
            samples,
            group: knowledge.group(name).map(str::to_owned),
        })
        .collect();
    callers.sort_by_key(|caller| Reverse(caller.samples));
    callers.truncate(options.callers.unwrap_or(usize::MAX));
    callers
}

/// The call instruction before a return address. The wrappers are called
/// directly: 5 bytes on x86-64, 4 on arm64 and riscv64.
fn site(recording: &Recording, frame: FrameId) -> Option<String> {
    let call = match recording.header.kernel.arch.as_str() {
        "x86_64" => 5,
        "aarch64" | "riscv64" => 4,
        _ => return None,
    };
    let name = frame_name(recording, frame);
    let offset = recording.frames.get(frame as usize)?.offset;
    Some(format!("{name}+{:#x}", offset.checked_sub(call)?))
}

fn other(tally: &Tally) -> Other {
    let machine = tally.target + tally.other + tally.profiler;
    Other {
        samples: tally.other,
        profiler_samples: tally.profiler,
        share: (machine > 0).then(|| share(tally.other, machine)),
    }
}

pub(super) fn probe<'r>(recording: &'r Recording, wanted: &str) -> Option<&'r ProbeStatus> {
    recording
        .trailer
        .probes
        .iter()
        .find(|probe| probe.wanted == wanted && probe.leg != NO_LEG)
}

fn switches(recording: &Recording, salvaged: bool) -> Option<Switches> {
    let counts = if salvaged && !recording.epochs.is_empty() {
        let sum = last_epochs(recording).fold(SwitchCounts::default(), |sum, epoch| SwitchCounts {
            voluntary: sum.voluntary.saturating_add(epoch.switches.voluntary),
            preempted: sum.preempted.saturating_add(epoch.switches.preempted),
        });
        // Without a probe table 0 may mean that nothing watched.
        (sum != SwitchCounts::default()).then_some(sum)?
    } else {
        recording.trailer.switches?
    };
    Some(Switches {
        total: counts.voluntary.saturating_add(counts.preempted),
        voluntary: counts.voluntary,
        preempted: counts.preempted,
        evidence: Evidence::Counted,
        leg: probe(recording, SWITCH).map(|probe| probe.leg.clone()),
        ..Switches::default()
    })
}

/// The newest record of each CPU: its counters hold the whole run so far.
fn last_epochs(recording: &Recording) -> impl Iterator<Item = &Epoch> {
    let mut last: BTreeMap<u32, &Epoch> = BTreeMap::new();
    for epoch in &recording.epochs {
        let newest = last.entry(epoch.cpu).or_insert(epoch);
        if epoch.time_ns >= newest.time_ns {
            *newest = epoch;
        }
    }
    last.into_values()
}

fn loss(recording: &Recording, salvaged: bool) -> LossReport {
    let mut report = LossReport::default();
    let mut add = |reason: &str, count: u64| {
        if count == 0 {
            return;
        }
        let sum = report.by_reason.entry(reason.to_owned()).or_default();
        *sum = sum.saturating_add(count);
        if reason != STACK_TRUNCATED {
            report.total = report.total.saturating_add(count);
        }
    };
    if salvaged {
        for (reason, &count) in last_epochs(recording).flat_map(|epoch| &epoch.losses) {
            add(reason, count);
        }
    } else {
        for Loss { reason, count, .. } in &recording.trailer.losses {
            add(reason, *count);
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_that_say_less_than_samples_are_no_gain() {
        let between = |low: f64, high: f64| Estimate {
            value: (low + high) / 2.0,
            low,
            high,
            ..Estimate::default()
        };
        // Twice the share is usual, and overlapping intervals agree.
        assert!(!contradict(&between(0.10, 0.13), &between(0.05, 0.07)));
        assert!(!contradict(&between(0.006, 0.009), &between(0.007, 0.012)));
        assert!(contradict(&between(0.013, 0.034), &between(0.12, 0.18)));
    }
}
