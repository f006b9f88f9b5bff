//! What the profiler says that it cost, beside what it cost.

use serde::Serialize;

use super::calls::profiles;
use super::oracle::Window;
use super::profile::Report;
use super::stats;
use super::truth::{self, Truth, source_name};

/// The cost of profiling one run, all as fractions of the instructions that a bare
/// run with as many context switches executes. Guest time is instructions, so the
/// report's nanoseconds compare with them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct OwnCost {
    /// All that the profiled run has more.
    pub(crate) added: f64,
    /// Code without a symbol: BPF programs and trampolines. A bare run of a lab
    /// kernel executes none.
    pub(crate) programs: f64,
    /// The kernel's functions for perf, probes, ftrace and BPF.
    pub(crate) probing: f64,
    /// User space.
    pub(crate) user: f64,
    /// The rest: what else the kernel does for it.
    pub(crate) rest: f64,
    /// What the report has of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) said: Option<Said>,
}

/// The report's split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Said {
    /// Time in BPF programs, with the helpers they call.
    pub(crate) bpf: f64,
    /// Time of entering probes.
    pub(crate) probe: f64,
    /// The profiler's own threads.
    pub(crate) user: f64,
}

impl Said {
    /// All of it.
    pub(crate) fn sum(self) -> f64 {
        self.bpf + self.probe + self.user
    }
}

impl OwnCost {
    /// Compares a profiled run, in which the workload ran so many times, with the
    /// bare runs of `truth`.
    pub(crate) fn new(truth: &Truth, times: u32, window: &Window, report: &Report) -> Self {
        let times = f64::from(times);
        let total = window.instructions.total as f64 / times;
        let switches = truth::switches(window) as f64 / times;
        let runs = truth.with.switches_and_instructions();
        // A truth has at least one run.
        let bare = stats::mean(&stats::adjusted(&[runs], switches)[0]).unwrap_or(total);
        let functions = |window: &Window| -> f64 {
            let of = window.functions.iter();
            of.filter(|f| profiles(source_name(&f.symbol)))
                .map(|f| f.instructions as f64)
                .sum()
        };
        let functions_of_bare: f64 = truth
            .functions
            .iter()
            .filter(|f| profiles(&f.symbol))
            .filter_map(|f| Some(f.with?.instructions))
            .sum();
        let user_of_bare = truth.with.instructions.value - truth.with.kernel_instructions.value;
        let added = total / bare - 1.0;
        let programs = window.instructions.kernel_unnamed as f64 / times / bare;
        let probing = (functions(window) / times - functions_of_bare) / bare;
        let user = (window.instructions.user as f64 / times - user_of_bare) / bare;
        Self {
            added,
            programs,
            probing,
            user,
            rest: added - programs - probing - user,
            said: report.overhead.as_ref().map(|said| Said {
                bpf: said.bpf_ns / times / bare,
                probe: said.probe_ns / times / bare,
                user: said.user_ns / times / bare,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::document::Function;
    use super::super::workloads;
    use super::*;

    fn window(user: u64, unnamed: u64, functions: &[(&str, u64)]) -> Window {
        let mut window = Window::default();
        for (symbol, instructions) in functions {
            window.functions.push(Function {
                symbol: (*symbol).to_owned(),
                instructions: *instructions,
                calls: 1,
                ..Function::default()
            });
        }
        let named: u64 = functions.iter().map(|(_, n)| n).sum();
        window.instructions.user = user;
        window.instructions.kernel_unnamed = unnamed;
        window.instructions.kernel = named + unnamed;
        window.instructions.total = user + named + unnamed;
        window
    }

    #[test]
    fn the_parts_add_up() {
        let run = |window: Window| truth::Run {
            guest_ns: window.instructions.total,
            window,
        };
        let bare = window(100, 0, &[("vfs_read", 890), ("perf_event_task_tick", 10)]);
        let without = window(100, 0, &[("vfs_read", 790), ("perf_event_task_tick", 10)]);
        let truth = truth::compare(
            workloads::ALL[0],
            &[],
            ("w", &[run(bare)]),
            ("o", &[run(without)]),
        )
        .unwrap();
        let profiled = window(
            110,
            30,
            &[
                ("vfs_read", 895),
                ("perf_event_task_tick", 10),
                ("bpf_x", 40),
            ],
        );
        let report = Report::parse(
            r#"{"schema":"preemptprof/report/1",
                "overhead":{"bpf_ns":60,"probe_ns":5,"user_ns":10,"share":0.03}}"#,
        )
        .unwrap();
        let cost = OwnCost::new(&truth, 1, &profiled, &report);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(cost.added, 0.085);
        close(cost.programs, 0.03);
        close(cost.user, 0.01);
        close(cost.probing, 0.04);
        close(cost.rest, 0.005);
        close(cost.said.unwrap().sum(), 0.075);
    }
}
