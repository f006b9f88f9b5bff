//! The score: what the profiler says of a run, beside what the oracle saw of
//! the very same run and what a rebuild would gain.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::bounds::Bounds;
use super::calls::{Calls, Counts, TrueCalls};
use super::guest::{Done, Guest, Step};
use super::measure::PairOfKernels;
use super::oracle::{Tools, Window};
use super::own_cost::OwnCost;
use super::pooled::{self, Pooled};
use super::profile::{self, OptionReport, Report};
use super::stats::{self, Estimate};
use super::truth::{self, Truth, source_name};
use super::workloads::Workload;

/// The value of [`Score::schema`].
const SCHEMA: &str = "preemptprof/lab-score/2";

/// How often perf samples for the comparison: ten times what is usual, so that
/// a second of guest time gives a share to a quarter of a percentage point.
const PERF_HZ: u32 = 10_000;

/// Below this share of all calls a function's count is not judged: a few places
/// that are hit in bursts would decide.
const FEW_CALLS: f64 = 0.1;

/// What is done to score.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Profiled runs of each workload.
    pub(crate) runs: u32,
    /// What the guest draws its random numbers from.
    pub(crate) seed: u64,
    /// More arguments of `preemptprof run`.
    pub(crate) run_args: Vec<String>,
    /// How often the workload runs within one profiled run: calls are counted in
    /// windows, which need some seconds.
    pub(crate) times: u32,
}

/// All scores of one pair.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Score {
    /// [`SCHEMA`].
    pub(crate) schema: &'static str,
    /// The pair's name.
    pub(crate) pair: String,
    /// The option.
    pub(crate) option: String,
    /// The kernel that was profiled.
    pub(crate) with: String,
    /// The kernel without the option.
    pub(crate) without: String,
    /// More arguments of `preemptprof run`.
    pub(crate) run_args: Vec<String>,
    /// One for each workload.
    pub(crate) workloads: Vec<WorkloadScore>,
    /// How often predictions hold, over all workloads.
    pub(crate) pooled: Pooled,
    /// No bound was exceeded.
    pub(crate) passed: bool,
}

/// The score on one workload. Gains and shares are fractions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WorkloadScore {
    /// The workload's name.
    pub(crate) workload: String,
    /// What the other kernel saves.
    pub(crate) true_gain: Estimate,
    /// The same of instructions, at equal numbers of context switches.
    pub(crate) true_gain_at_equal_switches: Estimate,
    /// The share that `perf record -e cpu-clock` shows, in a run of its own.
    pub(crate) perf_share: f64,
    /// The profiled runs.
    pub(crate) runs: Vec<RunScore>,
    /// How often predictions hold.
    pub(crate) pooled: Pooled,
    /// Each bound that was exceeded, as a sentence.
    pub(crate) exceeded: Vec<String>,
}

/// The score of one profiled run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct RunScore {
    /// `y`, `n`, `m` or `unknown`, in the report.
    pub(crate) state: String,
    /// What the profiler predicts; absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_gain: Option<Estimate>,
    /// Predicted less true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gain_error: Option<f64>,
    /// The share that the profiler sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampled_share: Option<Estimate>,
    /// How it sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) evidence: Option<String>,
    /// The share of instructions in the option's functions, in the same run.
    pub(crate) true_share: f64,
    /// What the report has as the number of calls into the option.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) calls: Option<Estimate>,
    /// What the report has as the price of a call, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ns_per_call: Option<Estimate>,
    /// Instructions in the option's functions for each call that is counted; what the
    /// caller executes for a call is not in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) true_instructions_per_call: Option<f64>,
    /// Counts beside true counts.
    pub(crate) counts: Counts,
    /// Instructions of the run.
    pub(crate) instructions: u64,
    /// What profiling cost.
    pub(crate) own_cost: OwnCost,
}

impl WorkloadScore {
    /// The mean over the runs of a value that they all have.
    pub(crate) fn mean(&self, value: impl Fn(&RunScore) -> Option<f64>) -> Option<f64> {
        let values: Option<Vec<f64>> = self.runs.iter().map(value).collect();
        stats::mean(&values?)
    }

    /// The mean over the runs of an estimate and of the ends of its interval.
    pub(crate) fn mean_estimate(
        &self,
        estimate: impl Fn(&RunScore) -> Option<Estimate>,
    ) -> Option<Estimate> {
        Some(Estimate {
            value: self.mean(|run| Some(estimate(run)?.value))?,
            low: self.mean(|run| estimate(run)?.low),
            high: self.mean(|run| estimate(run)?.high),
        })
    }

    /// What was counted in all runs together, by target.
    pub(crate) fn targets(&self) -> Vec<Calls> {
        let mut sums: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for calls in self.runs.iter().flat_map(|run| &run.counts.targets) {
            let sum = sums.entry(&calls.symbol).or_default();
            sum.0 += calls.counted;
            sum.1 += calls.truth;
        }
        sums.iter()
            .map(|(symbol, (counted, truth))| Calls::new(symbol, *counted, *truth))
            .collect()
    }
}

/// Runs the profiler on the kernel with the option, and perf after it, and
/// scores both against `truths`.
///
/// # Errors
///
/// When the guest, the profiler in it or perf fails, or a truth is missing.
pub(crate) fn run(
    pair: &PairOfKernels,
    tools: &Tools,
    workloads: &[Workload],
    truths: &BTreeMap<&'static str, Truth>,
    request: &Request,
    bounds: impl Fn(&str) -> Result<Bounds>,
) -> Result<Score> {
    let guest = Guest {
        kernel: &pair.with,
        tools,
        perf: true,
        seed: request.seed,
    };
    let steps: Vec<Step> = workloads.iter().flat_map(|w| steps(*w, request)).collect();
    eprintln!(
        "{}: profiling {} workloads, {} runs each",
        pair.with.name,
        workloads.len(),
        request.runs
    );
    let done = guest.run(&steps)?;
    let mut scores = Vec::new();
    for (workload, done) in workloads
        .iter()
        .zip(done.chunks(steps.len() / workloads.len().max(1)))
    {
        let truth = truths
            .get(workload.name)
            .with_context(|| format!("{}: no truth to score against", workload.name))?;
        scores.push(one(
            &pair.option,
            truth,
            request.times,
            done,
            bounds(workload.name)?,
        )?);
    }
    Ok(Score {
        schema: SCHEMA,
        pair: pair.name.clone(),
        option: pair.option.clone(),
        with: pair.with.name.clone(),
        without: pair.without.name.clone(),
        run_args: request.run_args.clone(),
        passed: scores.iter().all(|score| score.exceeded.is_empty()),
        pooled: pooled::all(scores.iter()),
        workloads: scores,
    })
}

/// The profiled runs of a workload, one under perf, and perf's report.
fn steps(workload: Workload, request: &Request) -> Vec<Step> {
    let name = workload.name;
    let data = format!("/tmp/{name}.perf");
    let more: String = request
        .run_args
        .iter()
        .map(|argument| format!(" '{}'", argument.replace('\'', "'\\''")))
        .collect();
    let turns: Vec<String> = (1..=request.times).map(|turn| turn.to_string()).collect();
    let command = if request.times == 1 {
        workload.command.to_owned()
    } else {
        format!(
            "sh -c \"for turn in {}; do {} || exit; done\"",
            turns.join(" "),
            workload.command
        )
    };
    let mut steps: Vec<Step> = (0..request.runs)
        .map(|run| Step {
            name: format!("{name}-preemptprof-{run}"),
            // All call sites, so that each can be compared.
            command: format!(
                "preemptprof run --format json --callers 100000 --report {name}-{run}.json{more} \
                 -- mark {command}"
            ),
            marked: true,
            file: Some(format!("{name}-{run}.json")),
        })
        .collect();
    steps.push(Step {
        name: format!("{name}-perf"),
        command: format!(
            "perf record -q -e cpu-clock -F {PERF_HZ} -a -o {data} -- mark {}",
            workload.command
        ),
        marked: true,
        file: None,
    });
    steps.push(Step {
        name: format!("{name}-perf-report"),
        command: format!("perf report -i {data} --stdio --no-children --sort symbol"),
        marked: false,
        file: None,
    });
    steps
}

fn one(
    option: &str,
    truth: &Truth,
    times: u32,
    done: &[Done],
    bounds: Bounds,
) -> Result<WorkloadScore> {
    let [profiled @ .., _, perf] = done else {
        anyhow::bail!("{}: {} steps only", truth.workload, done.len());
    };
    let runs: Vec<RunScore> = profiled
        .iter()
        .map(|done| {
            let text = done
                .file
                .as_deref()
                .context("the profiler wrote no report")?;
            let report = Report::parse(text)?;
            let window = done
                .window
                .as_ref()
                .context("the profiled run has no window")?;
            Ok(compare(
                truth,
                times,
                &report,
                report.option(option)?,
                window,
            ))
        })
        .collect::<Result<_>>()?;
    let owns = |symbol: &str| truth.own_functions.iter().any(|f| f.symbol == symbol);
    let perf_share = profile::perf_share(&perf.stdout, |symbol| owns(source_name(symbol)))?;
    Ok(judge(truth, runs, perf_share, bounds))
}

/// Puts what the report says of one run beside what the oracle saw of it.
fn compare(
    truth: &Truth,
    times: u32,
    report: &Report,
    option: &OptionReport,
    window: &Window,
) -> RunScore {
    let owns = |symbol: &str| truth.own_functions.iter().any(|f| f.symbol == symbol);
    let seen = TrueCalls::new(truth, window);
    let predicted_gain = option.gain_if_off.as_ref().map(|v| v.estimate());
    let true_share = truth::share(window, owns);
    let entries = seen.total(option);
    RunScore {
        state: option.state.clone(),
        predicted_gain,
        gain_error: predicted_gain.map(|gain| gain.value - truth.gain.value),
        sampled_share: option.cpu_share.as_ref().map(|v| v.estimate()),
        evidence: option.cpu_share.as_ref().map(|v| v.evidence.clone()),
        true_share,
        calls: option.calls.as_ref().map(|v| v.estimate()),
        ns_per_call: option.ns_per_call.as_ref().map(|v| v.estimate()),
        true_instructions_per_call: (entries > 0.0)
            .then(|| true_share * window.instructions.total as f64 / entries),
        counts: Counts::new(option, &seen),
        instructions: window.instructions.total,
        own_cost: OwnCost::new(truth, times, window, report),
    }
}

/// Applies the bounds to the means of the runs.
fn judge(truth: &Truth, runs: Vec<RunScore>, perf_share: f64, bounds: Bounds) -> WorkloadScore {
    let mut score = WorkloadScore {
        workload: truth.workload.clone(),
        true_gain: truth.gain,
        true_gain_at_equal_switches: truth.gain_at_equal_switches,
        perf_share,
        pooled: Pooled::default(),
        runs,
        exceeded: Vec::new(),
    };
    score.pooled = pooled::all([&score]);
    let mut exceeded = Vec::new();
    if let Some(run) = score.runs.iter().find(|run| run.state != "y") {
        exceeded.push(format!(
            "the report has the option as {}, and this kernel has it",
            run.state
        ));
    }
    let mut check = |what: &str, error: Option<f64>, bound: Option<f64>| {
        if let (Some(error), Some(bound)) = (error, bound)
            && error.abs() > bound
        {
            exceeded.push(format!(
                "{what} is off by {:+.2} points, and the bound is {:.2}",
                100.0 * error,
                100.0 * bound
            ));
        }
    };
    check(
        "the predicted gain",
        score.mean(|run| run.gain_error),
        bounds.gain,
    );
    check(
        "the sampled share",
        score.mean(|run| Some(run.sampled_share?.value - run.true_share)),
        bounds.share,
    );
    check(
        "the profiled run",
        score.mean(|run| Some(run.own_cost.added)),
        bounds.added,
    );
    let targets = score.targets();
    let all: f64 = targets.iter().map(|calls| calls.truth).sum();
    for calls in targets.iter().filter(|c| c.truth >= FEW_CALLS * all) {
        check(
            &format!("the count of {}", calls.symbol),
            calls.error,
            bounds.calls,
        );
    }
    score.exceeded = exceeded;
    score
}

#[cfg(test)]
mod tests {
    use super::super::oracle::document::{Function, Instructions, Site};
    use super::super::workloads;
    use super::*;

    fn site(address: u64, caller: &str, target: Option<&str>, calls: u64) -> Site {
        Site {
            address,
            caller: caller.to_owned(),
            offset: 1,
            target: target.map(str::to_owned),
            calls,
        }
    }

    fn window(total: u64, sites: Vec<Site>) -> Window {
        Window {
            instructions: Instructions {
                total,
                user: 0,
                kernel: total,
                kernel_unnamed: 0,
            },
            functions: vec![Function {
                symbol: "check".to_owned(),
                address: 1,
                instructions: total / 10,
                calls: 5000,
            }],
            sites,
        }
    }

    /// With the option a run takes 1000 k, without it 890 k: a true gain of 11 %.
    fn the_truth() -> Truth {
        let run = |total, window: Window| truth::Run {
            guest_ns: total,
            window,
        };
        let with = run(
            1_000_000,
            window(1_000_000, vec![site(0x10, "caller", Some("check"), 5000)]),
        );
        let mut without = run(890_000, window(890_000, Vec::new()));
        without.window.functions.clear();
        truth::compare(
            workloads::ALL[0],
            &["check".to_owned()],
            ("w", &[with]),
            ("o", &[without]),
        )
        .unwrap()
    }

    fn report(gain: f64, calls: f64) -> Report {
        Report::parse(&format!(
            r#"{{"schema":"preemptprof/report/1","options":[{{"name":"CONFIG_X","state":"y",
                "cpu_share":{{"value":0.06,"evidence":"sampled-timer"}},
                "gain_if_off":{{"value":{gain},"evidence":"derived"}},
                "functions":[{{"symbol":"check","calls":{calls}}}]}}]}}"#
        ))
        .unwrap()
    }

    fn judged(report: &Report, window: &Window) -> WorkloadScore {
        let bounds = super::super::bounds::of("debug-preempt", "messaging").unwrap();
        let option = report.option("CONFIG_X").unwrap();
        let truth = the_truth();
        let run = compare(&truth, 1, report, option, window);
        judge(&truth, vec![run], 0.05, bounds)
    }

    #[test]
    fn a_good_model_passes() {
        let window = window(1_010_000, vec![site(0x10, "caller", Some("check"), 5000)]);
        let score = judged(&report(0.105, 4950.0), &window);
        assert_eq!(score.exceeded, [""; 0]);
        assert!((score.runs[0].gain_error.unwrap() + 0.005).abs() < 1e-9);
        assert!((score.targets()[0].error.unwrap() + 0.01).abs() < 1e-9);
        assert!((score.runs[0].own_cost.added - 0.01).abs() < 1e-9);
        assert!((score.runs[0].true_share - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_model_fails() {
        let window = window(1_000_000, vec![site(0x10, "caller", Some("check"), 5000)]);
        // Twice the gain, half of it, and a count that lost the half.
        for (gain, calls, word) in [
            (0.22, 5000.0, "predicted gain"),
            (0.055, 5000.0, "predicted gain"),
            (0.11, 2500.0, "count of check"),
        ] {
            let score = judged(&report(gain, calls), &window);
            assert_eq!(score.exceeded.len(), 1, "{:?}", score.exceeded);
            assert!(score.exceeded[0].contains(word), "{:?}", score.exceeded);
        }
    }

    #[test]
    fn an_option_that_is_not_seen_fails() {
        let window = window(1_000_000, Vec::new());
        let text =
            r#"{"schema":"preemptprof/report/1","options":[{"name":"CONFIG_X","state":"n"}]}"#;
        let score = judged(&Report::parse(text).unwrap(), &window);
        assert!(score.exceeded[0].contains("as n"), "{:?}", score.exceeded);
    }

    #[test]
    fn an_expensive_profiler_fails() {
        let score = judged(
            &report(0.11, 5000.0),
            &window(1_200_000, vec![site(0x10, "caller", Some("check"), 5000)]),
        );
        assert_eq!(score.exceeded.len(), 1, "{:?}", score.exceeded);
        assert!(score.exceeded[0].contains("profiled run"));
    }

    #[test]
    fn runs_are_judged_together() {
        let window = window(1_000_000, vec![site(0x10, "caller", Some("check"), 5000)]);
        let truth = the_truth();
        let runs = [0.09, 0.13].map(|gain| {
            let report = report(gain, 5000.0);
            compare(
                &truth,
                1,
                &report,
                report.option("CONFIG_X").unwrap(),
                &window,
            )
        });
        let bounds = Bounds {
            gain: Some(0.01),
            ..Bounds::default()
        };
        let score = judge(&truth, runs.to_vec(), 0.05, bounds);
        assert_eq!(score.exceeded, [""; 0]);
        assert!(score.mean(|run| run.gain_error).unwrap().abs() < 1e-9);
        let score = judge(&truth, runs[1..].to_vec(), 0.05, bounds);
        assert_eq!(score.exceeded.len(), 1);
    }

    #[test]
    fn more_arguments_reach_the_profiler_as_they_are() {
        let request = Request {
            runs: 2,
            seed: 1,
            run_args: vec!["--max-overhead=5".to_owned(), "it's".to_owned()],
            times: 1,
        };
        let steps = steps(workloads::ALL[0], &request);
        assert_eq!(steps.len(), 4);
        let command = &steps[1].command;
        assert!(
            command.contains(r"'--max-overhead=5' 'it'\''s' -- mark"),
            "{command}"
        );
        assert!(command.contains("--report messaging-1.json"), "{command}");
    }
}
