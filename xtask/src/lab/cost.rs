//! What profiling costs: guest instructions between the marks of a workload
//! that is profiled, against those of bare runs beside it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::guest::{Done, Guest, Step};
use super::measure::Plan;
use super::oracle::{Tools, Window};
use super::stats::{self, Estimate};
use super::text::{self, count_interval, percent, percent_interval};
use super::truth::{self, source_name};
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
    /// What `preemptprof run` adds at equal numbers of context switches. The
    /// scheduler's choices make runs differ far more than profiling does; their
    /// effect is taken out with the slope of instructions over switches.
    preemptprof_at_equal_switches: Estimate,
    /// The same for perf.
    perf_at_equal_switches: Estimate,
    /// Where that goes, as fractions of a bare run: user space, kernel code
    /// without a symbol (BPF programs and trampolines), and the functions that
    /// grew most.
    parts: Vec<Part>,
}

/// What one place of execution adds.
#[derive(Clone, Debug, Serialize)]
struct Part {
    place: String,
    preemptprof: f64,
    perf: f64,
}

/// How many functions are listed.
const FUNCTIONS: usize = 15;

/// The kinds of runs in one round, in the order of even rounds.
const KINDS: [&str; 3] = ["bare", "preemptprof", "perf"];

/// Makes `pairs` rounds of a bare run, one under the profiler and one under
/// perf, spread over `boots` boots.
///
/// # Errors
///
/// When a guest fails.
pub(crate) fn run(kernel: &Kernel, tools: &Tools, workload: Workload, plan: Plan) -> Result<Cost> {
    let mut rounds: Vec<[Window; 3]> = Vec::new();
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
        let mut done = done.into_iter();
        for order in &orders {
            rounds.push(round(order, done.by_ref().take(KINDS.len()).collect())?);
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

/// The windows of one round by kind.
fn round(order: &[usize; 3], done: Vec<Done>) -> Result<[Window; 3]> {
    let mut windows: [Window; 3] = Default::default();
    for (kind, done) in order.iter().zip(done) {
        windows[*kind] = done.window.context("a run without a window")?;
    }
    Ok(windows)
}

fn summary(kernel: &Kernel, workload: Workload, rounds: &[[Window; 3]]) -> Option<Cost> {
    let total = |window: &Window| window.instructions.total as f64;
    let groups: Vec<Vec<(f64, f64)>> = (0..KINDS.len())
        .map(|kind| {
            let windows = rounds.iter().map(|round| &round[kind]);
            windows
                .map(|w| (truth::switches(w) as f64, total(w)))
                .collect()
        })
        .collect();
    let totals: Vec<Vec<f64>> = groups
        .iter()
        .map(|group| group.iter().map(|(_, y)| *y).collect())
        .collect();
    let of_bare: Vec<f64> = groups[0].iter().map(|(x, _)| *x).collect();
    let equal = stats::adjusted(&groups, stats::mean(&of_bare)?);
    let added = |values: &[Vec<f64>], kind: usize| {
        let pairs = values[0].iter().copied().zip(values[kind].iter().copied());
        stats::added_fraction(&pairs.collect::<Vec<_>>())
    };
    let bare = stats::mean_interval(&totals[0])?;
    Some(Cost {
        schema: SCHEMA,
        kernel: kernel.name.clone(),
        workload: workload.name.to_owned(),
        pairs: rounds.len(),
        bare,
        preemptprof: added(&totals, 1)?,
        perf: added(&totals, 2)?,
        preemptprof_at_equal_switches: added(&equal, 1)?,
        perf_at_equal_switches: added(&equal, 2)?,
        parts: parts(rounds, bare.value),
    })
}

/// Adds up where the instructions of each kind lie, and compares with the bare
/// runs.
fn parts(rounds: &[[Window; 3]], bare: f64) -> Vec<Part> {
    let mut places: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    for (kind, window) in rounds.iter().flat_map(|round| round.iter().enumerate()) {
        let fixed = [
            (USER, window.instructions.user),
            (UNNAMED, window.instructions.kernel_unnamed),
        ];
        let functions = window
            .functions
            .iter()
            .map(|f| (source_name(&f.symbol), f.instructions));
        for (place, instructions) in fixed.into_iter().chain(functions) {
            places.entry(place).or_default()[kind] += instructions as f64;
        }
    }
    let whole = bare * rounds.len() as f64;
    let part = |(place, by_kind): (&str, [f64; 3])| Part {
        place: place.to_owned(),
        preemptprof: (by_kind[1] - by_kind[0]) / whole,
        perf: (by_kind[2] - by_kind[0]) / whole,
    };
    let (fixed, mut functions): (Vec<Part>, Vec<Part>) = places
        .into_iter()
        .map(part)
        .partition(|part| [USER, UNNAMED].contains(&part.place.as_str()));
    functions.sort_by(|a, b| b.preemptprof.total_cmp(&a.preemptprof));
    functions.truncate(FUNCTIONS);
    fixed.into_iter().chain(functions).collect()
}

/// Places that are no function of the kernel.
const USER: &str = "(user space)";
const UNNAMED: &str = "(BPF and trampolines)";

/// The costs as text.
pub(crate) fn text(costs: &[Cost]) -> String {
    let mut out = String::new();
    for cost in costs {
        out.push_str(&format!(
            "{} on {}, {} rounds, a bare run is {} instructions\n\n",
            cost.workload,
            cost.kernel,
            cost.pairs,
            count_interval(cost.bare)
        ));
        let mut table = text::table(&["adds", "as measured", "at equal context switches"], 1);
        table.add_row([
            "preemptprof run".to_owned(),
            percent_interval(cost.preemptprof),
            percent_interval(cost.preemptprof_at_equal_switches),
        ]);
        table.add_row([
            "perf record".to_owned(),
            percent_interval(cost.perf),
            percent_interval(cost.perf_at_equal_switches),
        ]);
        out.push_str(&format!("{}\n", text::lines(&table)));
        let mut table = text::table(&["where it goes", "preemptprof", "perf"], 1);
        for part in &cost.parts {
            table.add_row([
                part.place.clone(),
                percent(part.preemptprof),
                percent(part.perf),
            ]);
        }
        out.push_str(&format!("\n{}\n", text::lines(&table)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::oracle::document::Function;
    use super::*;

    #[test]
    fn each_kind_comes_first_as_often_as_the_others() {
        for place in 0..3 {
            let mut kinds: Vec<usize> = (0..3).map(|round| order(round)[place]).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1, 2]);
        }
    }

    /// A window of which a tenth is user space and the rest one function.
    fn window(total: u64) -> Window {
        let mut window = Window::default();
        window.instructions.total = total;
        window.instructions.user = total / 10;
        window.functions.push(Function {
            symbol: "f.isra.0".to_owned(),
            instructions: total - total / 10,
            ..Function::default()
        });
        window
    }

    #[test]
    fn rounds_are_sorted_by_kind_and_compared_in_pairs() {
        let done = |total: u64| Done {
            stdout: String::new(),
            guest_ns: Some(total),
            window: Some(window(total)),
            file: None,
        };
        // The second round is perf, bare, preemptprof.
        let rounds = [
            round(&[0, 1, 2], vec![done(1000), done(1010), done(1030)]).unwrap(),
            round(&[2, 0, 1], vec![done(2060), done(2000), done(2020)]).unwrap(),
        ];
        let kernel = Kernel::from_image("k", "/k.bzImage");
        let cost = summary(&kernel, super::super::workloads::ALL[0], &rounds).unwrap();
        assert!((cost.preemptprof.value - 0.01).abs() < 1e-9);
        assert!((cost.perf.value - 0.03).abs() < 1e-9);
        assert!((cost.bare.value - 1500.0).abs() < 1e-9);
        let part = |place: &str| cost.parts.iter().find(|part| part.place == place).unwrap();
        assert!((part(USER).preemptprof - 0.001).abs() < 1e-9);
        assert!((part("f").perf - 0.027).abs() < 1e-9);
        assert!(part(UNNAMED).perf.abs() < 1e-9);
        assert!(summary(&kernel, super::super::workloads::ALL[0], &[]).is_none());
    }
}
