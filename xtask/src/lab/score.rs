//! The score: what the profiler says of a run, beside what the oracle saw of
//! the very same run and what a rebuild would gain.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::bounds::Bounds;
use super::guest::{Done, Guest, Step};
use super::measure::PairOfKernels;
use super::oracle::{Tools, Window};
use super::profile::{self, OptionReport, Report};
use super::stats::{self, Estimate};
use super::truth::{self, Truth, source_name};
use super::workloads::Workload;

/// The value of [`Score::schema`].
const SCHEMA: &str = "preemptprof/lab-score/1";

/// How often perf samples for the comparison: ten times what is usual, so that
/// a second of guest time gives a share to a quarter of a percentage point.
const PERF_HZ: u32 = 10_000;

/// Below so many calls a count is not judged: one stray caller would decide.
const FEW_CALLS: f64 = 1000.0;

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
    /// One for each workload.
    pub(crate) workloads: Vec<WorkloadScore>,
    /// No bound was exceeded.
    pub(crate) passed: bool,
}

/// The score on one workload. Gains and shares are fractions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct WorkloadScore {
    /// The workload's name.
    pub(crate) workload: String,
    /// What the profiler predicts; absent when it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted_gain: Option<Estimate>,
    /// What the other kernel saves.
    pub(crate) true_gain: Estimate,
    /// The same of instructions, at equal numbers of context switches.
    pub(crate) true_gain_at_equal_switches: Estimate,
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
    /// The share that `perf record -e cpu-clock` shows, in a run of its own.
    pub(crate) perf_share: f64,
    /// Calls that the profiler counted.
    pub(crate) calls: Vec<Calls>,
    /// Calls by caller that the profiler counted.
    pub(crate) callers: Vec<Calls>,
    /// Instructions of the profiled run.
    pub(crate) instructions: u64,
    /// That less the mean of bare runs at as many context switches, as a fraction
    /// of it.
    pub(crate) added: f64,
    /// Each bound that was exceeded, as a sentence.
    pub(crate) exceeded: Vec<String>,
}

/// A count of the profiler beside the true one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Calls {
    /// The function called, or the caller.
    pub(crate) symbol: String,
    /// What the profiler counted.
    pub(crate) counted: f64,
    /// What the oracle counted, without calls from the code that profiles.
    #[serde(rename = "true")]
    pub(crate) truth: f64,
    /// The difference, of the true count; absent when that is zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<f64>,
}

impl Calls {
    fn new(symbol: &str, counted: f64, truth: f64) -> Self {
        Self {
            symbol: symbol.to_owned(),
            counted,
            truth,
            error: (truth > 0.0).then(|| counted / truth - 1.0),
        }
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
    seed: u64,
    bounds: impl Fn(&str) -> Result<Bounds>,
) -> Result<Score> {
    let guest = Guest {
        kernel: &pair.with,
        tools,
        perf: true,
        seed,
    };
    let steps: Vec<Step> = workloads.iter().flat_map(|w| steps(*w)).collect();
    eprintln!(
        "{}: profiling {} workloads",
        pair.with.name,
        workloads.len()
    );
    let done = guest.run(&steps)?;
    let mut scores = Vec::new();
    for (workload, done) in workloads.iter().zip(done.chunks(STEPS)) {
        let truth = truths
            .get(workload.name)
            .with_context(|| format!("{}: no truth to score against", workload.name))?;
        scores.push(one(&pair.option, truth, done, bounds(workload.name)?)?);
    }
    Ok(Score {
        schema: SCHEMA,
        pair: pair.name.clone(),
        option: pair.option.clone(),
        with: pair.with.name.clone(),
        without: pair.without.name.clone(),
        passed: scores.iter().all(|score| score.exceeded.is_empty()),
        workloads: scores,
    })
}

/// How many steps each workload takes.
const STEPS: usize = 3;

fn steps(workload: Workload) -> [Step; STEPS] {
    let name = workload.name;
    let data = format!("/tmp/{name}.perf");
    [
        Step {
            name: format!("{name}-preemptprof"),
            command: format!(
                "preemptprof run --format json --report {name}.json -- mark {}",
                workload.command
            ),
            marked: true,
            file: Some(format!("{name}.json")),
        },
        Step {
            name: format!("{name}-perf"),
            command: format!(
                "perf record -q -e cpu-clock -F {PERF_HZ} -a -o {data} -- mark {}",
                workload.command
            ),
            marked: true,
            file: None,
        },
        Step {
            name: format!("{name}-perf-report"),
            command: format!("perf report -i {data} --stdio --no-children --sort symbol"),
            marked: false,
            file: None,
        },
    ]
}

fn one(option: &str, truth: &Truth, done: &[Done], bounds: Bounds) -> Result<WorkloadScore> {
    let [profiled, _, perf] = done else {
        anyhow::bail!("{} steps instead of {STEPS}", done.len());
    };
    let text = profiled
        .file
        .as_deref()
        .context("the profiler wrote no report")?;
    let report = Report::parse(text)?;
    let window = profiled
        .window
        .as_ref()
        .context("the profiled run has no window")?;
    let owns: Vec<&str> = truth
        .own_functions
        .iter()
        .map(|f| f.symbol.as_str())
        .collect();
    let perf_share =
        profile::perf_share(&perf.stdout, |symbol| owns.contains(&source_name(symbol)))?;
    Ok(judge(
        truth,
        report.option(option)?,
        window,
        perf_share,
        bounds,
    ))
}

/// Puts everything side by side and applies the bounds.
fn judge(
    truth: &Truth,
    option: &OptionReport,
    window: &Window,
    perf_share: f64,
    bounds: Bounds,
) -> WorkloadScore {
    let owns = |symbol: &str| truth.own_functions.iter().any(|f| f.symbol == symbol);
    let seen = TrueCalls::new(truth, window);
    let predicted_gain = option.gain_if_off.as_ref().map(|v| v.estimate());
    let mut score = WorkloadScore {
        workload: truth.workload.clone(),
        predicted_gain,
        true_gain: truth.gain,
        true_gain_at_equal_switches: truth.gain_at_equal_switches,
        gain_error: predicted_gain.map(|gain| gain.value - truth.gain.value),
        sampled_share: option.cpu_share.as_ref().map(|v| v.estimate()),
        evidence: option.cpu_share.as_ref().map(|v| v.evidence.clone()),
        true_share: truth::share(window, owns),
        perf_share,
        calls: option
            .functions
            .iter()
            .filter_map(|f| Some(Calls::new(&f.symbol, f.calls?, seen.of_target(&f.symbol))))
            .collect(),
        callers: option
            .callers
            .iter()
            .filter_map(|c| Some(Calls::new(&c.symbol, c.calls?, seen.of_caller(&c.symbol))))
            .collect(),
        instructions: window.instructions.total,
        added: added(truth, window),
        exceeded: Vec::new(),
    };
    if option.state != "y" {
        score.exceeded.push(format!(
            "the report has the option as {}, and this kernel has it",
            option.state
        ));
    }
    let mut check = |what: &str, error: Option<f64>, bound: Option<f64>| {
        if let (Some(error), Some(bound)) = (error, bound)
            && error.abs() > bound
        {
            score.exceeded.push(format!(
                "{what} is off by {:+.2} points, and the bound is {:.2}",
                100.0 * error,
                100.0 * bound
            ));
        }
    };
    check("the predicted gain", score.gain_error, bounds.gain);
    check(
        "the sampled share",
        score
            .sampled_share
            .map(|share| share.value - score.true_share),
        bounds.share,
    );
    check("the profiled run", Some(score.added), bounds.added);
    for calls in score.calls.iter().filter(|c| c.truth >= FEW_CALLS) {
        check(
            &format!("the count of {}", calls.symbol),
            calls.error,
            bounds.calls,
        );
    }
    score
}

/// What a run has more than bare ones with as many context switches would have,
/// as a fraction.
fn added(truth: &Truth, window: &Window) -> f64 {
    let (x, y) = (
        truth::switches(window) as f64,
        window.instructions.total as f64,
    );
    let bare = stats::adjusted(&[truth.with.switches_and_instructions()], x);
    // A truth has at least one run.
    y / stats::mean(&bare[0]).unwrap_or(y) - 1.0
}

/// The calls of the option's functions in one run, without those made by the
/// code that profiles.
struct TrueCalls {
    targets: BTreeMap<String, f64>,
    callers: BTreeMap<String, f64>,
}

impl TrueCalls {
    fn new(truth: &Truth, window: &Window) -> Self {
        // A probe replaces a call by an `int3`; bare runs of the same kernel
        // know what was there.
        let probed: BTreeMap<u64, &str> = truth
            .sites
            .iter()
            .map(|site| (site.address, site.target.as_str()))
            .collect();
        let mut calls = Self {
            targets: BTreeMap::new(),
            callers: BTreeMap::new(),
        };
        for site in &window.sites {
            let target = match &site.target {
                Some(target) => source_name(target),
                None => match probed.get(&site.address) {
                    Some(target) => target,
                    None => continue,
                },
            };
            let caller = source_name(&site.caller);
            let own = |symbol: &str| truth.own_functions.iter().any(|f| f.symbol == symbol);
            if !own(target) || profiles(caller) {
                continue;
            }
            *calls.targets.entry(target.to_owned()).or_default() += site.calls as f64;
            // A tail call inside the option is not a caller of it.
            if !own(caller) {
                *calls.callers.entry(caller.to_owned()).or_default() += site.calls as f64;
            }
        }
        calls
    }

    fn of_target(&self, symbol: &str) -> f64 {
        self.targets.get(symbol).copied().unwrap_or(0.0)
    }

    fn of_caller(&self, symbol: &str) -> f64 {
        self.callers.get(symbol).copied().unwrap_or(0.0)
    }
}

/// Whether a function belongs to the kernel's probes, perf, ftrace or BPF, by
/// its name.
fn profiles(symbol: &str) -> bool {
    const WITHIN: [&str; 2] = ["kprobe", "ftrace"];
    const BEGINNINGS: [&str; 10] = [
        "perf_",
        "bpf_",
        "trace_event",
        "tracing_",
        "ring_buffer_",
        "rb_",
        "hw_breakpoint",
        "htab_",
        "array_map_",
        "irq_work_",
    ];
    const NAMES: [&str; 5] = [
        "exc_int3",
        "do_int3",
        "optimized_callback",
        "cpu_clock_event_read",
        "get_perf_callchain",
    ];
    let plain = symbol.trim_start_matches('_');
    NAMES.contains(&symbol)
        || WITHIN.iter().any(|part| symbol.contains(part))
        || BEGINNINGS.iter().any(|part| plain.starts_with(part))
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
        judge(&the_truth(), option, window, 0.05, bounds)
    }

    #[test]
    fn a_good_model_passes() {
        let window = window(1_010_000, vec![site(0x10, "caller", Some("check"), 5000)]);
        let score = judged(&report(0.105, 4950.0), &window);
        assert_eq!(score.exceeded, [""; 0]);
        assert!((score.gain_error.unwrap() + 0.005).abs() < 1e-9);
        assert!((score.calls[0].error.unwrap() + 0.01).abs() < 1e-9);
        assert!((score.added - 0.01).abs() < 1e-9);
        assert!((score.true_share - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_wrong_model_fails() {
        let window = window(1_000_000, vec![site(0x10, "caller", Some("check"), 5000)]);
        // Twice the gain, half of it, and a count that lost a tenth.
        for (gain, calls, word) in [
            (0.22, 5000.0, "predicted gain"),
            (0.055, 5000.0, "predicted gain"),
            (0.11, 4500.0, "count of check"),
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
    fn probed_sites_count_and_the_probes_own_calls_do_not() {
        let window = window(
            1_000_000,
            vec![
                site(0x10, "caller", Some("check"), 2000),
                site(0x10, "caller", None, 3000),
                site(0x20, "kprobe_int3_handler", Some("check"), 700),
                site(0x30, "somewhere", None, 9),
            ],
        );
        let calls = TrueCalls::new(&the_truth(), &window);
        assert!((calls.of_target("check") - 5000.0).abs() < 1e-9);
        assert!((calls.of_caller("caller") - 5000.0).abs() < 1e-9);
        assert!(calls.of_caller("kprobe_int3_handler").abs() < 1e-9);
    }

    #[test]
    fn names_of_the_code_that_profiles() {
        for symbol in [
            "__perf_event_overflow",
            "bpf_prog_run",
            "kprobe_int3_handler",
            "exc_int3",
            "trace_event_buffer_commit",
            "__htab_map_lookup_elem",
        ] {
            assert!(profiles(symbol), "{symbol}");
        }
        for symbol in [
            "try_to_wake_up",
            "_raw_spin_lock",
            "unix_stream_read_generic",
            "orb_x",
        ] {
            assert!(!profiles(symbol), "{symbol}");
        }
    }
}
