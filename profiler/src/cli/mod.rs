//! The command line: parse, do, print, exit.

mod args;
mod attach;
mod bench;
mod diff;
mod export;
mod generate;
mod import;
mod inspect;
mod listen;
mod measure;
mod meter;
mod outputs;
mod repeat;
mod saved;
mod sweep;
mod terminal;
mod top;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Instant;

use clap::FromArgMatches as _;
use clap::error::ErrorKind;

pub use args::Cli;
use args::Command;

use crate::error::is_misuse;

/// Exit status of `run` and `record` when preemptprof itself failed: their
/// other statuses are the workload's own.
const OURS: u8 = 125;
/// Exit status of the others when the command line makes no sense.
const MISUSE: u8 = 2;

/// Runs the command line and returns its exit status.
pub fn main() -> ExitCode {
    let began = Instant::now();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let parsed = args::command().try_get_matches_from(&arguments);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            if matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            ) {
                // Nothing is left to say when the terminal is gone.
                let _ = error.print();
                return ExitCode::SUCCESS;
            }
            terminal::print_usage_error(&error);
            return ExitCode::from(match is_measuring(&arguments) {
                true => OURS,
                false => MISUSE,
            });
        }
    };
    if matches!(
        cli.command,
        Command::Report(_)
            | Command::Diff(_)
            | Command::Export(_)
            | Command::Doctor(_)
            | Command::Options(_)
    ) {
        end_with_the_reader();
    }
    let (result, failure) = match cli.command {
        Command::Run(args) => (measure::run(&args, cli.verbose, began), OURS),
        Command::Record(args) => (measure::record(&args, cli.verbose, began), OURS),
        Command::Top(args) => (top::top(&args, began), 1),
        Command::Report(args) => (saved::report(&args), 1),
        Command::Export(args) => (export::export(&args), 1),
        Command::Import(args) => (import::import(&args), 1),
        Command::Diff(args) => (diff::diff(&args), 1),
        Command::Doctor(args) => (inspect::doctor(args.format), 1),
        Command::Options(args) => (inspect::options(args.format), 1),
        Command::Bench(args) => (bench::bench(&args), 1),
        Command::Completions(args) => (generate::completions(&args), 1),
        Command::Man(args) => (generate::man(&args), 1),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            terminal::print_error(&error);
            ExitCode::from(match is_misuse(&error) && failure != OURS {
                true => MISUSE,
                false => failure,
            })
        }
    }
}

/// Undoes what Rust does with SIGPIPE: what only prints has nothing left to do
/// when nobody reads it (`preemptprof report FILE | head`).
fn end_with_the_reader() {
    // SAFETY: no handler is installed; this is before there is a second thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Whether the arguments are of `run` or `record`, as far as can be told of
/// arguments that make no sense.
fn is_measuring(arguments: &[OsString]) -> bool {
    arguments
        .iter()
        .skip(1)
        .find(|argument| !argument.as_encoded_bytes().starts_with(b"-"))
        .is_some_and(|command| command == "run" || command == "record")
}
