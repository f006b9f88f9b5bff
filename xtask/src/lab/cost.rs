//! What profiling costs: guest instructions between the marks of a workload
//! that is profiled, against those of bare runs beside it.

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::guest::{Done, Guest, Step};
use super::measure::Plan;
use super::oracle::Tools;
use super::stats::{self, Estimate};
use super::text::{self, count_interval, percent_interval};
use super::workloads::Workload;
use crate::kernels::Kernel;

/// The value of [`Cost::schema`].
const SCHEMA: &str = "preemptprof/lab-cost/1";

/// The cost of profiling one workload.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cost {
    /// [`SCHEMA`].
    schema: &'static str,
    /// The kernel.
    kernel: String,
    /// The workload's name.
    workload: String,
    /// How many runs of each kind.
    pairs: usize,
    /// Instructions of a bare run.
    bare: Estimate,
    /// What `preemptprof run` at its defaults adds, as a fraction of a bare run.
    preemptprof: Estimate,
    /// What `perf record -F 997 -a -g` adds.
    perf: Estimate,
}

/// The kinds of runs in one round, in the order of even rounds.
const KINDS: [&str; 3] = ["bare", "preemptprof", "perf"];

/// Makes `pairs` rounds of a bare run, one under the profiler and one under
/// perf, spread over `boots` boots.
///
/// # Errors
///
/// When a guest fails.
pub(crate) fn run(kernel: &Kernel, tools: &Tools, workload: Workload, plan: Plan) -> Result<Cost> {
    let mut rounds: Vec<[f64; 3]> = Vec::new();
    for (boot, count) in plan.runs_of_boots().into_iter().enumerate() {
        eprintln!(
            "{}: boot {}, {count} rounds of {}",
            kernel.name,
            boot + 1,
            workload.name
        );
        let guest = Guest {
            kernel,
            tools,
            perf: true,
            seed: plan.seed + boot as u64,
        };
        let orders: Vec<[usize; 3]> = (0..count).map(order).collect();
        let steps: Vec<Step> = orders
            .iter()
            .enumerate()
            .flat_map(|(round, order)| order.map(|kind| step(workload, kind, round)))
            .collect();
        let done = guest.run(&steps)?;
        for (order, done) in orders.iter().zip(done.chunks(KINDS.len())) {
            rounds.push(round(order, done)?);
        }
    }
    summary(kernel, workload, &rounds).context("no round was made")
}

/// Rounds take turns in who comes first, so that a drift within a boot adds to
/// no kind more than to another.
fn order(round: u32) -> [usize; 3] {
    [[0, 1, 2], [1, 2, 0], [2, 0, 1]][round as usize % 3]
}

fn step(workload: Workload, kind: usize, round: usize) -> Step {
    let name = format!("{}-{round}", KINDS[kind]);
    let command = match kind {
        0 => format!("mark {}", workload.command),
        1 => format!(
            "preemptprof run --format json --report /tmp/{name}.json -- mark {}",
            workload.command
        ),
        _ => format!(
            "perf record -q -e cpu-clock -F 997 -a -g -o /tmp/{name}.data -- mark {}",
            workload.command
        ),
    };
    Step {
        name,
        command,
        marked: true,
        file: None,
    }
}

fn round(order: &[usize; 3], done: &[Done]) -> Result<[f64; 3]> {
    let mut instructions = [0.0; 3];
    for (kind, done) in order.iter().zip(done) {
        let window = done.window.as_ref().context("a run without a window")?;
        instructions[*kind] = window.instructions.total as f64;
    }
    Ok(instructions)
}

fn summary(kernel: &Kernel, workload: Workload, rounds: &[[f64; 3]]) -> Option<Cost> {
    let bare: Vec<f64> = rounds.iter().map(|round| round[0]).collect();
    let added = |kind: usize| {
        let pairs: Vec<(f64, f64)> = rounds.iter().map(|round| (round[0], round[kind])).collect();
        stats::added_fraction(&pairs)
    };
    Some(Cost {
        schema: SCHEMA,
        kernel: kernel.name.clone(),
        workload: workload.name.to_owned(),
        pairs: rounds.len(),
        bare: stats::mean_interval(&bare)?,
        preemptprof: added(1)?,
        perf: added(2)?,
    })
}

/// The costs as text.
pub(crate) fn text(costs: &[Cost]) -> String {
    let mut table = text::table(
        &[
            "workload",
            "kernel",
            "pairs",
            "bare instructions",
            "preemptprof adds",
            "perf adds",
        ],
        2,
    );
    for cost in costs {
        table.add_row([
            cost.workload.clone(),
            cost.kernel.clone(),
            cost.pairs.to_string(),
            count_interval(cost.bare),
            percent_interval(cost.preemptprof),
            percent_interval(cost.perf),
        ]);
    }
    format!("{}\n", text::lines(&table))
}

#[cfg(test)]
mod tests {
    use super::super::oracle::Window;
    use super::*;

    #[test]
    fn each_kind_comes_first_as_often_as_the_others() {
        for place in 0..3 {
            let mut kinds: Vec<usize> = (0..3).map(|round| order(round)[place]).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1, 2]);
        }
    }

    #[test]
    fn rounds_are_sorted_by_kind_and_compared_in_pairs() {
        let done = |total: u64| {
            let mut window = Window::default();
            window.instructions.total = total;
            Done {
                stdout: String::new(),
                guest_ns: Some(total),
                window: Some(window),
                file: None,
            }
        };
        // The second round is perf, bare, preemptprof.
        let rounds = [
            round(&[0, 1, 2], &[done(100), done(101), done(103)]).unwrap(),
            round(&[2, 0, 1], &[done(206), done(200), done(202)]).unwrap(),
        ];
        let kernel = Kernel::from_image("k", "/k.bzImage");
        let cost = summary(&kernel, super::super::workloads::ALL[0], &rounds).unwrap();
        assert!((cost.preemptprof.value - 0.01).abs() < 1e-9);
        assert!((cost.perf.value - 0.03).abs() < 1e-9);
        assert!((cost.bare.value - 150.0).abs() < 1e-9);
        assert!(summary(&kernel, super::super::workloads::ALL[0], &[]).is_none());
    }
}
