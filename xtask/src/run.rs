//! `cargo xtask run`: from a bare machine to a first report.

use std::ffi::OsString;
use std::process::ExitStatus;

use anyhow::{Context as _, Result};

use crate::{host, setup};

/// Sets up what is missing, builds, and runs `preemptprof run` with `arguments`
/// as root. Without a command among them that is the built-in workload.
///
/// # Errors
///
/// If the set-up or the build fails, or root cannot be had.
pub fn run(arguments: &[OsString]) -> Result<ExitStatus> {
    setup::setup(false)?;
    let binary = host::cargo_build(host::cargo().args([
        "build",
        "--release",
        "--package",
        "profiler",
        "--bin",
        "preemptprof",
    ]))?;
    let mut command = host::as_root(&binary)?;
    command.arg("run").args(arguments);
    eprintln!("$ {}", host::shown(&command));
    command
        .status()
        .with_context(|| format!("cannot run `{}`", host::shown(&command)))
}
