//! The lab: kernels whose true difference is known, and how close the profiler
//! comes to it.
//!
//! Guests run under `-icount`, where time is the number of executed
//! instructions, and a QEMU plugin, the oracle, counts what the kernel executes.
//! Neither the load of this machine nor the watching changes a result.

mod accuracy;
mod bounds;
mod build;
mod calls;
mod cost;
mod guest;
mod measure;
mod oracle;
mod own_cost;
mod pooled;
mod profile;
mod report;
mod score;
mod score_report;
mod stats;
mod table;
mod text;
mod truth;
mod workloads;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::dist;
use crate::kernels;
use measure::{PairOfKernels, Plan};
use oracle::Tools;
use table::Table;
use workloads::Workload;

/// Arguments of `cargo xtask lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Build a lab kernel from Debian's sources, unless the cache has it.
    Build {
        /// A kernel of xtask/lab.toml.
        name: String,
        /// How many compilers run at once [default: one for each CPU].
        #[arg(long, short, value_name = "N")]
        jobs: Option<usize>,
        #[command(flatten)]
        output: Output,
    },
    /// Find out what an option truly costs, from bare runs on both kernels.
    Truth {
        /// The workloads, or `all`.
        #[arg(required = true)]
        workloads: Vec<String>,
        #[command(flatten)]
        pair: PairArgs,
        #[command(flatten)]
        plan: PlanArgs,
        #[command(flatten)]
        profiler: ProfilerArgs,
        #[command(flatten)]
        output: Output,
    },
    /// Profile the kernel with the option while the oracle watches, and put the
    /// report beside the truth. Fails beyond the bounds of
    /// xtask/accuracy-bounds.toml.
    Score {
        /// The workloads, or `all`.
        #[arg(default_values_t = ["messaging".to_owned(), "pipe".to_owned()])]
        workloads: Vec<String>,
        #[command(flatten)]
        pair: PairArgs,
        #[command(flatten)]
        plan: ScorePlanArgs,
        #[command(flatten)]
        profiler: ProfilerArgs,
        /// Regenerate the table of this pair in docs/accuracy.md.
        #[arg(long)]
        write: bool,
        /// Print `skipped: no lab kernels` and succeed when the pair is not built.
        #[arg(long)]
        skip_missing: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Measure what profiling adds to a workload, and what perf adds, in guest
    /// instructions.
    Cost {
        /// The workloads, or `all`.
        #[arg(default_values_t = ["messaging".to_owned()])]
        workloads: Vec<String>,
        /// The kernel: a name of xtask/lab.toml or the path of a bzImage.
        #[arg(long, default_value = "6.1-plain")]
        kernel: String,
        /// Pairs of a bare and a profiled run.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=1000))]
        pairs: u32,
        /// Boots over which the pairs are spread.
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
        boots: u32,
        /// What the guests draw their random numbers from.
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        #[command(flatten)]
        profiler: ProfilerArgs,
        #[command(flatten)]
        output: Output,
    },
}

/// Which profiler.
#[derive(Debug, Args)]
struct ProfilerArgs {
    /// A static `preemptprof` [default: built by `cargo xtask dist`].
    #[arg(long, value_name = "FILE")]
    preemptprof: Option<PathBuf>,
}

impl ProfilerArgs {
    fn tools(&self) -> Result<Tools> {
        oracle::prepare(match &self.preemptprof {
            Some(path) if path.is_file() => path.clone(),
            Some(path) => anyhow::bail!("{}: no such file", path.display()),
            None => dist::dist()?.binary,
        })
    }
}

/// Which two kernels.
#[derive(Debug, Args)]
struct PairArgs {
    /// A pair of xtask/lab.toml.
    #[arg(long, default_value = "debug-preempt")]
    pair: String,
    /// The kernel with the option, instead of the pair's: a name or the path of
    /// a bzImage.
    #[arg(long, value_name = "KERNEL")]
    with: Option<String>,
    /// The kernel without it.
    #[arg(long, value_name = "KERNEL")]
    without: Option<String>,
}

/// How often.
#[derive(Debug, Args)]
struct PlanArgs {
    /// Runs on each kernel.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Boots over which the runs are spread.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    boots: u32,
    /// What the guests draw their random numbers from; other seeds are other
    /// runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl PlanArgs {
    fn plan(&self) -> Plan {
        Plan {
            runs: self.runs,
            boots: self.boots,
            seed: self.seed,
        }
    }
}

/// How often, for a score.
#[derive(Debug, Args)]
struct ScorePlanArgs {
    /// Profiled runs of each workload, of one boot.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// One more argument of `preemptprof run`; may be given several times.
    #[arg(long = "run-arg", value_name = "ARG", allow_hyphen_values = true)]
    run_args: Vec<String>,
    /// How often the workload runs within one profiled run
    #[arg(long, value_name = "K", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    times: u32,
    /// Bare runs on each kernel where the truth is not known yet.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    truth_runs: u32,
    /// Boots over which the bare runs are spread.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    boots: u32,
    /// What the guests draw their random numbers from; other seeds are other
    /// runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

impl ScorePlanArgs {
    fn truth(&self) -> Plan {
        Plan {
            runs: self.truth_runs,
            boots: self.boots,
            seed: self.seed,
        }
    }

    fn request(&self) -> score::Request {
        score::Request {
            runs: self.runs,
            seed: self.seed,
            run_args: self.run_args.clone(),
            times: self.times,
        }
    }
}

/// How results are printed.
#[derive(Debug, Args)]
struct Output {
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables.
    Text,
    /// One JSON document.
    Json,
}

impl Output {
    fn print<T: Serialize>(&self, value: &T, text: impl FnOnce(&T) -> String) -> Result<()> {
        match self.format {
            Format::Text => print!("{}", text(value)),
            Format::Json => println!("{}", serde_json::to_string_pretty(value)?),
        }
        Ok(())
    }
}

impl PairArgs {
    fn find(&self, table: &Table) -> Result<PairOfKernels> {
        let pair = table.pair(&self.pair)?;
        let folders = kernels::lab_folders();
        let find = |given: &Option<String>, usual: &str| {
            table::find(table, given.as_deref().unwrap_or(usual), &folders)
        };
        Ok(PairOfKernels {
            name: self.pair.clone(),
            option: pair.option.clone(),
            owns: pair.owns.clone(),
            with: find(&self.with, &pair.with)?,
            without: find(&self.without, &pair.without)?,
        })
    }
}

fn workloads(names: &[String]) -> Result<Vec<Workload>> {
    if names.iter().any(|name| name == "all") {
        return Ok(workloads::ALL.to_vec());
    }
    names.iter().map(|name| workloads::named(name)).collect()
}

/// Runs one verb of the lab; the status of the process.
///
/// # Errors
///
/// When a kernel or a program is missing, or a guest fails.
pub fn lab(args: &LabArgs) -> Result<ExitCode> {
    let table = Table::load()?;
    match &args.verb {
        Verb::Build { name, jobs, output } => {
            let jobs = jobs.unwrap_or_else(|| {
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
            });
            let kernel = build::build(&table, name, jobs)?;
            output.print(
                &serde_json::json!({
                    "schema": "preemptprof/lab-build/1",
                    "kernel": kernel.name,
                    "image": kernel.image,
                    "system_map": kernel.system_map,
                    "config": kernel.config,
                }),
                |_| format!("{}\n", kernel.image.display()),
            )?;
        }
        Verb::Truth {
            workloads: names,
            pair,
            plan,
            profiler,
            output,
        } => {
            let workloads = workloads(names)?;
            let pair = pair.find(&table)?;
            let truths = measure::truths(&pair, &profiler.tools()?, &workloads, plan.plan())?;
            output.print(&truths, |truths| {
                let texts: Vec<String> = truths.iter().map(report::truth).collect();
                texts.join("\n")
            })?;
        }
        Verb::Score {
            workloads: names,
            pair,
            plan,
            profiler,
            write,
            skip_missing,
            output,
        } => {
            let workloads = workloads(names)?;
            let pair = match pair.find(&table) {
                Err(error) if *skip_missing => {
                    eprintln!("{error:#}");
                    println!("{SKIPPED}");
                    return Ok(ExitCode::SUCCESS);
                }
                pair => pair?,
            };
            let tools = profiler.tools()?;
            let score = scored(&pair, &workloads, plan.truth(), &plan.request(), &tools)?;
            output.print(&score, score_report::score)?;
            if *write {
                accuracy::write(&score)?;
            }
            if !score.passed {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Cost {
            workloads: names,
            kernel,
            pairs,
            boots,
            seed,
            profiler,
            output,
        } => {
            let workloads = workloads(names)?;
            let kernel = table::find(&table, kernel, &kernels::lab_folders())?;
            let tools = profiler.tools()?;
            let plan = Plan {
                runs: *pairs,
                boots: *boots,
                seed: *seed,
            };
            let costs: Vec<cost::Cost> = workloads
                .iter()
                .map(|workload| cost::run(&kernel, &tools, *workload, plan))
                .collect::<Result<_>>()?;
            output.print(&costs, |costs| cost::text(costs))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What CI prints where the pair is not built.
const SKIPPED: &str = "skipped: no lab kernels";

/// Scores `workloads`, finding out first the truths that are not yet known.
fn scored(
    pair: &PairOfKernels,
    workloads: &[Workload],
    plan: Plan,
    request: &score::Request,
    tools: &Tools,
) -> Result<score::Score> {
    let mut truths = measure::kept(pair, workloads, plan.runs);
    let missing: Vec<Workload> = workloads
        .iter()
        .filter(|workload| !truths.contains_key(workload.name))
        .copied()
        .collect();
    if !missing.is_empty() {
        let found = measure::truths(pair, tools, &missing, plan)?;
        truths.extend(missing.iter().map(|workload| workload.name).zip(found));
    }
    score::run(pair, tools, workloads, &truths, request, |workload| {
        bounds::of(&pair.name, workload)
    })
}

/// The small score of CI: the DEBUG_PREEMPT pair on two workloads. `None` when
/// the pair is not built, for CI never builds a kernel.
///
/// # Errors
///
/// When a guest fails, or with the list when a bound is exceeded.
pub fn small_score() -> Result<Option<()>> {
    let table = Table::load()?;
    let arguments = PairArgs {
        pair: "debug-preempt".to_owned(),
        with: None,
        without: None,
    };
    let Ok(pair) = arguments.find(&table) else {
        return Ok(None);
    };
    let workloads = [workloads::named("messaging")?, workloads::named("pipe")?];
    let plan = Plan {
        runs: 3,
        boots: 1,
        seed: 1,
    };
    let tools = ProfilerArgs { preemptprof: None }.tools()?;
    let request = score::Request {
        runs: 1,
        seed: 1,
        run_args: Vec::new(),
        times: 3,
    };
    let score = scored(&pair, &workloads, plan, &request, &tools)?;
    print!("{}", score_report::score(&score));
    anyhow::ensure!(
        score.passed,
        "the profiler is less accurate than xtask/accuracy-bounds.toml allows"
    );
    Ok(Some(()))
}
