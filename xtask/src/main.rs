//! `cargo xtask`: everything a developer runs that is not `cargo build`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xtask::error::{hinted, hints};
use xtask::vm::{Echo, GuestFile, Vm};
use xtask::{dist, kernels, lab, run, setup, test};

/// Set-up, tests, virtual machines and releases of preemptprof.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install what is missing to build and test.
    Setup {
        /// Leave out what only the virtual machines need.
        #[arg(long)]
        no_vm: bool,
    },
    /// Set up, build, and run `preemptprof run ARGS` as root.
    Run {
        /// Arguments of `preemptprof run`; none: the built-in workload.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Build the static binary target/dist/preemptprof.
    Dist,
    /// Run all tests; the last line counts them.
    Test {
        /// Leave out the virtual machines.
        #[arg(long)]
        no_vm: bool,
        /// Only what has this in its name: fmt, clippy, a test's path, a kernel
        /// (`vm/6.1 `) or a check (`btf`).
        #[arg(long, value_name = "X")]
        filter: Option<String>,
    },
    /// Run a command in a virtual machine.
    Vm(VmArgs),
    /// Show the kernels, and fetch those that are not in the cache.
    Kernels {
        /// Show only; fetch nothing.
        #[arg(long)]
        offline: bool,
    },
    /// Kernels whose true difference is known, and how close reports come to it.
    Lab(lab::LabArgs),
}

#[derive(Args)]
struct VmArgs {
    /// A name from `cargo xtask kernels` or the path of a bzImage.
    kernel: String,
    /// The command, run by busybox's shell. Its applets come before programs in
    /// PATH: call those by their path.
    #[arg(required = true, last = true, value_name = "SHELL")]
    shell: Vec<String>,
    /// Virtual CPUs [default: 2, with --icount 1].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    smp: Option<u32>,
    /// Let guest time count instructions, one nanosecond each.
    #[arg(long)]
    icount: bool,
    /// More kernel parameters.
    #[arg(
        long,
        value_name = "ARGS",
        default_value = "",
        allow_hyphen_values = true
    )]
    append: String,
    /// Programs, with their libraries, and other files to add: FILE or
    /// FILE:/PATH/IN/GUEST.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    add: Vec<String>,
    /// A folder to copy to /share, where the command runs; files it changes there
    /// come back.
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Seconds the whole may take.
    #[arg(long, value_name = "S", default_value_t = 120)]
    timeout: u64,
    /// Memory in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(64..))]
    mem: u32,
    /// Leave preemptprof out of the guest.
    #[arg(long)]
    no_preemptprof: bool,
}

fn main() -> ExitCode {
    match act(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            for hint in hints(&error) {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn act(verb: Verb) -> Result<ExitCode> {
    match verb {
        Verb::Setup { no_vm } => setup::setup(!no_vm)?,
        Verb::Run { args } => {
            let status = run::run(&args)?;
            return Ok(status.code().map_or(ExitCode::FAILURE, exit_code));
        }
        Verb::Dist => dist::print(&dist::dist()?),
        Verb::Test { no_vm, filter } => {
            let tally = test::test(&test::Selection { no_vm, filter })?;
            println!("{tally}");
            if tally.failed > 0 {
                return Ok(ExitCode::FAILURE);
            }
        }
        Verb::Vm(args) => return boot(args),
        Verb::Kernels { offline } => list(offline)?,
        Verb::Lab(args) => return lab::lab(&args),
    }
    Ok(ExitCode::SUCCESS)
}

fn boot(args: VmArgs) -> Result<ExitCode> {
    let mut vm = Vm::new(kernels::resolve(&args.kernel)?);
    if args.icount {
        vm = vm.with_icount();
    }
    if let Some(smp) = args.smp {
        vm.smp = smp;
    }
    if let Some(root) = &args.root
        && !root.is_dir()
    {
        return Err(hinted(
            format!("--root {}: no such folder", root.display()),
            ["it must exist: what the command changes comes back into it"],
        ));
    }
    for file in &args.add {
        vm.files.push(GuestFile::parse(file)?);
    }
    if !args.no_preemptprof {
        let built = dist::dist().map_err(|error| {
            let mut lines = hints(&error);
            lines.push("--no-preemptprof boots without it".to_owned());
            hinted(format!("preemptprof for the guest: {error:#}"), lines)
        })?;
        vm.files
            .push(GuestFile::at(built.binary, "/usr/bin/preemptprof"));
    }
    vm.append = args.append;
    vm.root = args.root;
    vm.timeout = Duration::from_secs(args.timeout);
    vm.mem_mib = args.mem;
    vm.echo = Echo::All;
    let outcome = vm.run(&args.shell.join(" "))?;
    for file in &outcome.files {
        eprintln!("vm: came back: {}", file.display());
    }
    eprintln!(
        "vm: {}: status {}; booted in {:.1} s, {:.1} s in all",
        vm.kernel.name,
        outcome.status,
        outcome.boot.as_secs_f64(),
        outcome.total.as_secs_f64()
    );
    Ok(exit_code(outcome.status))
}

fn list(offline: bool) -> Result<()> {
    for entry in kernels::table()? {
        if !offline {
            entry.fetch()?;
        }
        let origin = entry.origin();
        let origin = origin.as_deref().unwrap_or("not fetched");
        println!("{:<8} {origin}", entry.name);
    }
    for name in kernels::lab_names() {
        println!("{name}");
    }
    Ok(())
}

/// A child's exit status as ours. Values beyond eight bits do not exist.
fn exit_code(status: i32) -> ExitCode {
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
