//! The lab: kernels whose true difference is known, and how close the profiler
//! comes to it.
//!
//! Guests run under `-icount`, where time is the number of executed
//! instructions, and a QEMU plugin, the oracle, counts what the kernel executes.
//! Neither the load of this machine nor the watching changes a result.

mod build;
mod guest;
mod measure;
mod oracle;
mod report;
mod stats;
mod table;
mod text;
mod truth;
mod workloads;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::kernels;
use measure::{PairOfKernels, Plan};
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
        output: Output,
    },
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
            output,
        } => {
            let workloads = workloads(names)?;
            let pair = pair.find(&table)?;
            let oracle = oracle::prepare()?;
            let truths = measure::truths(&pair, &oracle, &workloads, plan.plan())?;
            output.print(&truths, |truths| {
                let texts: Vec<String> = truths.iter().map(report::truth).collect();
                texts.join("\n")
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
