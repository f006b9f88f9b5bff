//! The report as metrics, in the text format of
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
//!
//! All of them are gauges: they are the results of one run, and the next run's
//! may be lower.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::Value;

use super::csv::samples;
use crate::model::report::Report;
use crate::report::{command_line, escape};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes the metrics.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Text::default();
    text.run(report);
    text.options(report);
    text.events(report);
    text.0.push_str("# EOF\n");
    out.write_all(text.0.as_bytes())
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// A metric with its samples: labels and value. Without samples it is left
    /// out: what was not measured is absent. `unit` is the name's last word.
    fn gauge(&mut self, name: &str, unit: &str, help: &str, samples: &[(Labels<'_>, f64)]) {
        let samples: Vec<_> = samples.iter().filter(|(_, v)| v.is_finite()).collect();
        if samples.is_empty() {
            return;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# TYPE preemptprof_{name} gauge");
        if !unit.is_empty() {
            let _ = writeln!(self.0, "# UNIT preemptprof_{name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP preemptprof_{name} {help}");
        for (labels, value) in samples {
            let labels: Vec<String> = labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", label(value)))
                .collect();
            let braces = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            let _ = writeln!(self.0, "preemptprof_{name}{braces} {value}");
        }
    }

    fn run(&mut self, report: &Report) {
        let kernel = &report.kernel;
        let model = kernel.preempt_model.active.to_string();
        let command = command_line(&report.run.command);
        let sampling = &report.sampling;
        let labels = vec![
            ("release", kernel.release.as_str()),
            ("preempt", &model),
            ("command", &command),
            ("event", &sampling.event),
            ("evidence", sampling.evidence.as_str()),
        ];
        let help = "The run that these metrics are of.";
        self.gauge("run_info", "", help, &[(labels, 1.0)]);
        if let Some(hz) = kernel.hz {
            let help = "Timer interrupts a second.";
            self.gauge("kernel_hz", "", help, &[(vec![], f64::from(hz))]);
        }
        if report.run.wall_s > 0.0 {
            let help = "From the workload's start to its end.";
            self.gauge(
                "wall_seconds",
                "seconds",
                help,
                &[(vec![], report.run.wall_s)],
            );
        }
        if let Some(time) = sampling.task_time_s {
            let help = "CPU time of the workload by samples.";
            self.gauge("task_time_seconds", "seconds", help, &[(vec![], time)]);
        }
        if let Some(metric) = &report.run.metric {
            let labels = vec![
                ("name", metric.name.as_str()),
                ("unit", &metric.unit),
                ("better", &metric.better),
            ];
            let help = "The benchmark's own result.";
            self.gauge("benchmark_result", "", help, &[(labels, metric.value)]);
        }
    }

    fn options(&mut self, report: &Report) {
        let sampling = &report.sampling;
        let on: Vec<_> = report
            .options
            .iter()
            .map(|option| {
                let state = &option.option;
                let labels = vec![
                    ("option", state.name.as_str()),
                    ("state", state.state.as_str()),
                ];
                (labels, f64::from(u8::from(state.state.is_on())))
            })
            .collect();
        let help = "Whether the option's code runs.";
        self.gauge("option_enabled", "", help, &on);

        let mut owned = 0;
        let mut counts: Vec<(Labels<'_>, f64)> = Vec::new();
        for option in report.options.iter().filter(|o| o.cpu_share.is_some()) {
            let samples = samples(option);
            owned += samples;
            counts.push((vec![("owner", &option.option.name)], samples as f64));
        }
        let unowned = sampling
            .samples
            .saturating_sub(sampling.user_samples)
            .saturating_sub(owned);
        counts.push((vec![("owner", "(no option)")], unowned as f64));
        counts.push((vec![("owner", "(user mode)")], sampling.user_samples as f64));
        let help = "Samples of the workload by the option that owns them; they add up to all.";
        self.gauge("samples", "", help, &counts);

        // By the published document: estimates it has beside the share, too.
        let Ok(document) = serde_json::to_value(&report.options) else {
            return;
        };
        for (field, name, unit, scale, help) in ESTIMATES {
            for (bound, suffix, which) in BOUNDS {
                let values: Vec<(Labels<'_>, f64)> = document
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(|option| {
                        let estimate = option.get(field)?;
                        let labels = vec![
                            ("option", text(option, "name")),
                            ("evidence", text(estimate, "evidence")),
                        ];
                        Some((labels, estimate.get(bound)?.as_f64()? * scale))
                    })
                    .collect();
                let unit_suffix = match unit {
                    "" => String::new(),
                    unit => format!("_{unit}"),
                };
                let name = format!("option_{name}{suffix}{unit_suffix}");
                self.gauge(&name, unit, &format!("{help}{which}."), &values);
            }
        }
    }

    fn events(&mut self, report: &Report) {
        if let Some(switches) = &report.switches {
            let help = "Context switches away from the workload's tasks.";
            self.gauge(
                "context_switches",
                "",
                help,
                &[
                    (vec![("kind", "voluntary")], switches.voluntary as f64),
                    (vec![("kind", "preempted")], switches.preempted as f64),
                ],
            );
        }
        let rcu = || report.rcu.iter().flatten();
        let by = |value: fn(&crate::model::report::Rcu) -> f64| -> Vec<(Labels<'_>, f64)> {
            rcu()
                .map(|event| (vec![("event", event.event.as_str())], value(event)))
                .collect()
        };
        let help = "Blocking RCU calls of the workload.";
        self.gauge("rcu_calls", "", help, &by(|event| event.count as f64));
        let help = "Time the workload was blocked in them.";
        let blocked = by(|event| event.total_ns as f64 / 1e9);
        self.gauge("rcu_blocked_seconds", "seconds", help, &blocked);
        let help = "The longest of them.";
        let longest = by(|event| event.max_ns as f64 / 1e9);
        self.gauge("rcu_longest_seconds", "seconds", help, &longest);

        let help = "Records that were lost; 0 when none were.";
        self.gauge(
            "lost_records",
            "",
            help,
            &[(vec![], report.loss.total as f64)],
        );
        let reasons: Vec<_> = report
            .loss
            .by_reason
            .iter()
            .map(|(reason, &count)| (vec![("reason", reason.as_str())], count as f64))
            .collect();
        let help = "Records that were lost or cut short, by reason.";
        self.gauge("impaired_records", "", help, &reasons);
        if let Some(own) = &report.overhead {
            let parts = [
                (vec![("part", "bpf")], own.bpf_ns as f64 / 1e9),
                (vec![("part", "probe")], own.probe_ns as f64 / 1e9),
                (vec![("part", "user")], own.user_ns as f64 / 1e9),
            ];
            let help = "CPU time the profiler took while the workload ran.";
            self.gauge("profiler_seconds", "seconds", help, &parts);
            let help = "That time as a share of the machine.";
            self.gauge("profiler_ratio", "ratio", help, &[(vec![], own.share)]);
        }
    }
}

/// Estimates of an option that the report may have: member, metric, unit, what to
/// multiply with, and what it is.
const ESTIMATES: [(&str, &str, &str, f64, &str); 4] = [
    (
        "cpu_share",
        "cpu_share",
        "ratio",
        1.0,
        "Share of the workload's samples that the option owns",
    ),
    (
        "gain_if_off",
        "gain_if_off",
        "ratio",
        1.0,
        "Fraction of the run's time saved without the option",
    ),
    ("calls", "calls", "", 1.0, "Calls of the option's functions"),
    (
        "ns_per_call",
        "call",
        "seconds",
        1e-9,
        "Cost of one call of the option's functions",
    ),
];

/// An estimate's value and the bounds of its interval.
const BOUNDS: [(&str, &str, &str); 3] = [
    ("value", "", ""),
    ("low", "_low", ", lower bound of the 95 per cent interval"),
    ("high", "_high", ", upper bound of the 95 per cent interval"),
];

type Labels<'a> = Vec<(&'static str, &'a str)>;

fn text<'v>(value: &'v Value, member: &str) -> &'v str {
    value
        .get(member)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A label's value: the format escapes backslash, quote and line feed; everything
/// else that could steer a terminal was escaped before.
fn label(value: &str) -> String {
    escape(value).replace('\\', "\\\\").replace('"', "\\\"")
}
