//! What the profiler and perf say of a run, as far as the lab compares it.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::stats::Estimate;

/// The part of a `preemptprof/report/1` document that is scored.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Report {
    schema: String,
    #[serde(default)]
    options: Vec<OptionReport>,
    /// What profiling cost, by the report.
    #[serde(default)]
    pub(crate) overhead: Option<OverheadReport>,
}

/// The profiler's own cost, in nanoseconds.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct OverheadReport {
    /// In BPF programs.
    #[serde(default)]
    pub(crate) bpf_ns: f64,
    /// Entering probes.
    #[serde(default)]
    pub(crate) probe_ns: f64,
    /// In its own threads.
    #[serde(default)]
    pub(crate) user_ns: f64,
}

/// What the report says of one option.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct OptionReport {
    name: String,
    /// `y`, `n`, `m` or `unknown`.
    pub(crate) state: String,
    /// Sampled share of the workload's time.
    #[serde(default)]
    pub(crate) cpu_share: Option<Value>,
    /// Predicted fraction of time saved with the option off.
    #[serde(default)]
    pub(crate) gain_if_off: Option<Value>,
    /// Calls into the option.
    #[serde(default)]
    pub(crate) calls: Option<Value>,
    /// The price of a call, in nanoseconds.
    #[serde(default)]
    pub(crate) ns_per_call: Option<Value>,
    /// By function.
    #[serde(default)]
    pub(crate) functions: Vec<FunctionReport>,
    /// By caller.
    #[serde(default)]
    pub(crate) callers: Vec<CallerReport>,
}

/// A number of the report with its interval and its evidence.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct Value {
    value: f64,
    #[serde(default)]
    low: Option<f64>,
    #[serde(default)]
    high: Option<f64>,
    #[serde(default)]
    pub(crate) evidence: String,
    /// Of calls: the fraction that is counted.
    #[serde(default)]
    pub(crate) coverage: Option<f64>,
}

impl Value {
    /// Without the evidence.
    pub(crate) fn estimate(&self) -> Estimate {
        Estimate {
            value: self.value,
            low: self.low,
            high: self.high,
        }
    }
}

/// Calls of one function.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct FunctionReport {
    /// Its name.
    pub(crate) symbol: String,
    /// Absent when only sampled.
    #[serde(default)]
    pub(crate) calls: Option<f64>,
}

/// Calls out of one function.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct CallerReport {
    /// The caller.
    pub(crate) symbol: String,
    /// The call instruction, as `caller+0xoffset`.
    #[serde(default)]
    pub(crate) site: Option<String>,
    /// Absent when only sampled.
    #[serde(default)]
    pub(crate) calls: Option<f64>,
}

impl Report {
    /// Reads a report.
    ///
    /// # Errors
    ///
    /// When it is not JSON of that schema.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let report: Self = serde_json::from_str(text).context("the profiler's report")?;
        if !report.schema.starts_with("preemptprof/report/") {
            bail!("the profiler's report has schema {}", report.schema);
        }
        Ok(report)
    }

    /// What it says of an option of that name.
    ///
    /// # Errors
    ///
    /// When it does not list the option.
    pub(crate) fn option(&self, name: &str) -> Result<&OptionReport> {
        self.options
            .iter()
            .find(|option| option.name == name)
            .with_context(|| format!("the profiler's report does not list {name}"))
    }
}

/// Adds up the percentages of the symbols that `own` accepts, in what
/// `perf report --stdio --no-children --sort symbol` prints; as a fraction.
///
/// # Errors
///
/// When there is no line with a percentage at all.
pub(crate) fn perf_share(text: &str, own: impl Fn(&str) -> bool) -> Result<f64> {
    let mut lines = 0;
    let mut percent = 0.0;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let Some(value) = words
            .next()
            .and_then(|word| word.strip_suffix('%'))
            .and_then(|word| word.parse::<f64>().ok())
        else {
            continue;
        };
        lines += 1;
        // `[k]` before a symbol of the kernel.
        if words.next() == Some("[k]") && words.next().is_some_and(&own) {
            percent += value;
        }
    }
    if lines == 0 {
        bail!("perf report printed no percentage");
    }
    Ok(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_parts_that_are_scored() {
        let report = Report::parse(
            r#"{"schema":"preemptprof/report/1","kernel":{},"options":[
                {"name":"CONFIG_DEBUG_PREEMPT","state":"y",
                 "cpu_share":{"value":0.05,"low":0.04,"high":0.06,"evidence":"sampled-timer"},
                 "functions":[{"symbol":"preempt_count_add","calls":7,"share":0.02},{"symbol":"x","share":0.1}]}]}"#,
        )
        .unwrap();
        let option = report.option("CONFIG_DEBUG_PREEMPT").unwrap();
        assert_eq!(option.state, "y");
        assert!(option.gain_if_off.is_none());
        assert_eq!(option.functions[0].calls, Some(7.0));
        assert_eq!(option.functions[1].calls, None);
        assert!(report.option("CONFIG_HZ").is_err());
    }

    #[test]
    fn other_documents_are_refused() {
        assert!(Report::parse(r#"{"schema":"preemptprof/doctor/1"}"#).is_err());
        assert!(Report::parse("{}").is_err());
        assert!(Report::parse("no").is_err());
    }

    #[test]
    fn perf_lines() {
        let text = "\
# Samples: 4K of event 'cpu-clock'
#
     2.61%  [k] preempt_count_sub
     2.54%  [k] preempt_count_add
    10.00%  [k] _raw_spin_unlock_irqrestore
     1.00%  [.] preempt_count_sub
     0.05%  [k] preempt_count_sub.part.0
";
        let share = perf_share(text, |symbol| symbol.starts_with("preempt_count_")).unwrap();
        assert!((share - 0.0520).abs() < 1e-12, "{share}");
        assert!(perf_share("# nothing\n", |_| true).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_an_error_or_a_share(text in "\\PC*") {
            if let Ok(share) = perf_share(&text, |_| true) {
                prop_assert!(!share.is_nan());
            }
            let _ = Report::parse(&text);
        }
    }
}
