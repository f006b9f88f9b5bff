//! Counts of calls beside the oracle's counts of the same run.

use std::collections::BTreeMap;

use serde::Serialize;

use super::oracle::Window;
use super::profile::OptionReport;
use super::truth::{Truth, source_name};

/// A count of the profiler beside the true one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Calls {
    /// The function called, the caller, or the call instruction as `caller+0xoffset`.
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
    pub(crate) fn new(symbol: &str, counted: f64, truth: f64) -> Self {
        Self {
            symbol: symbol.to_owned(),
            counted,
            truth,
            error: (truth > 0.0).then(|| counted / truth - 1.0),
        }
    }
}

/// All counts of one run; empty where the report has none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Counts {
    /// All calls of the functions that are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) total: Option<Calls>,
    /// By the function called.
    pub(crate) targets: Vec<Calls>,
    /// By the calling function.
    pub(crate) callers: Vec<Calls>,
    /// By the call instruction.
    pub(crate) sites: Vec<Calls>,
    /// The call instructions with most calls that have no count in the report.
    pub(crate) missed: Vec<Calls>,
    /// The fraction of the true calls that were made at call instructions, or where
    /// the report names none by functions, which have a count in the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) coverage: Option<f64>,
    /// What the report says that fraction is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) coverage_said: Option<f64>,
}

/// How many call instructions without a count are named.
const MISSED: usize = 20;

impl Counts {
    /// Compares what the report has of `option`.
    pub(crate) fn new(option: &OptionReport, seen: &TrueCalls) -> Self {
        let (mut by_caller, mut by_site) = (BTreeMap::new(), BTreeMap::new());
        for caller in &option.callers {
            let Some(calls) = caller.calls else {
                continue;
            };
            *by_caller.entry(caller.symbol.as_str()).or_insert(0.0) += calls;
            if let Some(site) = caller.site.as_deref().and_then(parse_site) {
                *by_site.entry(site).or_insert(0.0) += calls;
            }
        }
        let mut sites: Vec<Calls> = by_site
            .iter()
            .map(|((caller, offset), counted)| {
                let name = format!("{caller}+{offset:#x}");
                Calls::new(&name, *counted, seen.of_site(caller, *offset))
            })
            .collect();
        let mut callers: Vec<Calls> = by_caller
            .iter()
            .map(|(caller, counted)| Calls::new(caller, *counted, seen.of_caller(caller)))
            .collect();
        let mut missed: Vec<Calls> = seen
            .sites
            .iter()
            .filter(|((caller, offset), _)| !by_site.contains_key(&(caller.as_str(), *offset)))
            .map(|((caller, offset), calls)| {
                Calls::new(&format!("{caller}+{offset:#x}"), 0.0, *calls)
            })
            .collect();
        for list in [&mut sites, &mut callers, &mut missed] {
            list.sort_by(|a, b| b.truth.total_cmp(&a.truth));
        }
        // A report without counts of sites misses none.
        missed.truncate(if sites.is_empty() { 0 } else { MISSED });
        let covered = if sites.is_empty() { &callers } else { &sites };
        let total = seen.total(option);
        let coverage = (!covered.is_empty() && total > 0.0)
            .then(|| covered.iter().map(|calls| calls.truth).sum::<f64>() / total);
        Self {
            total: option
                .calls
                .as_ref()
                .map(|calls| Calls::new("all", calls.estimate().value, total)),
            targets: option
                .functions
                .iter()
                .filter_map(|f| Some(Calls::new(&f.symbol, f.calls?, seen.of_target(&f.symbol))))
                .collect(),
            callers,
            sites,
            missed,
            coverage,
            coverage_said: option.calls.as_ref().and_then(|calls| calls.coverage),
        }
    }
}

/// Takes `caller+0xoffset` apart; the caller as the source names it.
fn parse_site(text: &str) -> Option<(&str, u64)> {
    let (caller, offset) = text.rsplit_once('+')?;
    let offset = match offset.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => offset.parse().ok()?,
    };
    Some((source_name(caller), offset))
}

/// The calls of the option's functions in one run, without those made by the
/// code that profiles.
pub(crate) struct TrueCalls {
    targets: BTreeMap<String, f64>,
    callers: BTreeMap<String, f64>,
    sites: BTreeMap<(String, u64), f64>,
}

impl TrueCalls {
    pub(crate) fn new(truth: &Truth, window: &Window) -> Self {
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
            sites: BTreeMap::new(),
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
            let count = site.calls as f64;
            *calls.targets.entry(target.to_owned()).or_default() += count;
            // A tail call inside the option is not a caller of it.
            if !own(caller) {
                *calls.callers.entry(caller.to_owned()).or_default() += count;
                let key = (caller.to_owned(), site.offset);
                *calls.sites.entry(key).or_default() += count;
            }
        }
        calls
    }

    /// Calls of the functions that the report counts; of those it counts none of,
    /// calls into the option.
    pub(crate) fn total(&self, option: &OptionReport) -> f64 {
        let mut counted = option
            .functions
            .iter()
            .filter(|f| f.calls.is_some())
            .map(|f| self.of_target(&f.symbol))
            .peekable();
        if counted.peek().is_some() {
            counted.sum()
        } else {
            self.callers.values().sum()
        }
    }

    fn of_target(&self, symbol: &str) -> f64 {
        self.targets.get(symbol).copied().unwrap_or(0.0)
    }

    fn of_caller(&self, symbol: &str) -> f64 {
        self.callers.get(symbol).copied().unwrap_or(0.0)
    }

    fn of_site(&self, caller: &str, offset: u64) -> f64 {
        let key = (caller.to_owned(), offset);
        self.sites.get(&key).copied().unwrap_or(0.0)
    }
}

/// Whether a function belongs to the kernel's probes, perf, ftrace or BPF, by
/// its name.
pub(crate) fn profiles(symbol: &str) -> bool {
    const WITHIN: [&str; 2] = ["kprobe", "ftrace"];
    const BEGINNINGS: [&str; 13] = [
        "perf_",
        "bpf_",
        "trace_event",
        "tracing_",
        "ring_buffer_",
        "rb_",
        "hw_breakpoint",
        "htab_",
        "array_map_",
        "percpu_array_",
        "unwind_",
        "ct_nmi_",
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
    use super::super::oracle::document::Site;
    use super::super::profile::Report;
    use super::super::{truth, workloads};
    use super::*;

    fn site(address: u64, caller: &str, target: Option<&str>, calls: u64) -> Site {
        Site {
            address,
            caller: caller.to_owned(),
            offset: address,
            target: target.map(str::to_owned),
            calls,
        }
    }

    fn window(sites: Vec<Site>) -> Window {
        let mut window = Window {
            sites,
            ..Window::default()
        };
        window.instructions.total = 100;
        window
    }

    fn the_truth() -> Truth {
        let mut bare = window(vec![site(0x10, "caller.isra.0", Some("check"), 5000)]);
        bare.functions
            .push(super::super::oracle::document::Function {
                symbol: "check".to_owned(),
                instructions: 10,
                calls: 5000,
                ..Default::default()
            });
        let run = |window| truth::Run {
            guest_ns: 100,
            window,
        };
        truth::compare(
            workloads::ALL[0],
            &["check".to_owned()],
            ("w", &[run(bare)]),
            ("o", &[run(window(Vec::new()))]),
        )
        .unwrap()
    }

    fn seen() -> TrueCalls {
        let window = window(vec![
            site(0x10, "caller.isra.0", Some("check"), 2000),
            site(0x10, "caller.isra.0", None, 3000),
            site(0x18, "caller.isra.0", Some("check"), 1000),
            site(0x20, "kprobe_int3_handler", Some("check"), 700),
            site(0x30, "somewhere", None, 9),
            site(0x40, "other", Some("check"), 2000),
            site(0x50, "check", Some("check"), 50),
        ]);
        TrueCalls::new(&the_truth(), &window)
    }

    #[test]
    fn probed_sites_count_and_the_probes_own_calls_do_not() {
        let calls = seen();
        assert!((calls.of_target("check") - 8050.0).abs() < 1e-9);
        assert!((calls.of_caller("caller") - 6000.0).abs() < 1e-9);
        assert!(calls.of_caller("kprobe_int3_handler").abs() < 1e-9);
        assert!((calls.total(&OptionReport::default()) - 8000.0).abs() < 1e-9);
    }

    #[test]
    fn sites_and_coverage() {
        let report = Report::parse(
            r#"{"schema":"preemptprof/report/1","options":[{"name":"CONFIG_X","state":"y",
                "calls":{"value":7600,"evidence":"counted","coverage":0.8},
                "functions":[{"symbol":"check","calls":7600},{"symbol":"seen","share":0.1}],
                "callers":[
                    {"symbol":"caller","site":"caller.isra.0+0x10","calls":5500},
                    {"symbol":"caller","site":"caller+0x18","calls":1000},
                    {"symbol":"other","site":"other+0x40","share":0.1}]}]}"#,
        )
        .unwrap();
        let counts = Counts::new(report.option("CONFIG_X").unwrap(), &seen());
        assert_eq!(counts.total, Some(Calls::new("all", 7600.0, 8050.0)));
        assert_eq!(counts.targets, [Calls::new("check", 7600.0, 8050.0)]);
        assert_eq!(counts.callers, [Calls::new("caller", 6500.0, 6000.0)]);
        assert_eq!(
            counts.sites,
            [
                Calls::new("caller+0x10", 5500.0, 5000.0),
                Calls::new("caller+0x18", 1000.0, 1000.0)
            ]
        );
        assert_eq!(counts.missed, [Calls::new("other+0x40", 0.0, 2000.0)]);
        assert!((counts.coverage.unwrap() - 6000.0 / 8050.0).abs() < 1e-9);
        assert_eq!(counts.coverage_said, Some(0.8));
        let nothing = Counts::new(&OptionReport::default(), &seen());
        assert_eq!(nothing, Counts::default());
    }

    #[test]
    fn sites_as_text() {
        assert_eq!(parse_site("f.isra.0+0x1f"), Some(("f", 31)));
        assert_eq!(parse_site("f+31"), Some(("f", 31)));
        for bad in ["f", "f+", "f+0x", "f+zz", ""] {
            assert_eq!(parse_site(bad), None, "{bad}");
        }
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
