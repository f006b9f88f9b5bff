//! The `preemptprof` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    profiler::cli::main()
}
