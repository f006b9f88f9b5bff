//! The machine this runs on: its folders, its programs, and running them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::error::hinted;

/// The workspace's root.
pub fn root() -> PathBuf {
    // xtask's package folder is one below it.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Where kernels and their package lists are kept: `PREEMPTPROF_CACHE`, else
/// `preemptprof` in the user's cache folder.
///
/// # Errors
///
/// If there is neither that variable nor a home folder.
pub fn cache() -> Result<PathBuf> {
    if let Some(folder) = variable("PREEMPTPROF_CACHE") {
        return Ok(folder.into());
    }
    if let Some(folder) = variable("XDG_CACHE_HOME") {
        return Ok(Path::new(&folder).join("preemptprof"));
    }
    let home = variable("HOME")
        .ok_or_else(|| hinted("no HOME to keep kernels below", ["set PREEMPTPROF_CACHE"]))?;
    Ok(Path::new(&home).join(".cache/preemptprof"))
}

/// The value of an environment variable, unless empty.
pub fn variable(name: &str) -> Option<OsString> {
    env::var_os(name).filter(|value| !value.is_empty())
}

/// The first executable called `name` in `PATH`, in the folders of system
/// programs, which a user's `PATH` may lack, or in cargo's own.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_bin = variable("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cargo")))
        .map(|home| home.join("bin"));
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .chain(cargo_bin)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

/// Whether `file` is a regular file that may be executed by someone.
pub fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Whether this process has root's user id.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command that runs `program` as root: itself, or through sudo.
///
/// # Errors
///
/// If this is not root and there is no sudo.
pub fn as_root(program: impl AsRef<OsStr>) -> Result<Command> {
    let program = program.as_ref();
    if is_root() {
        return Ok(Command::new(program));
    }
    let sudo = find("sudo").ok_or_else(|| {
        hinted(
            format!("{} must run as root", program.display()),
            ["there is no sudo here: run the same command as root"],
        )
    })?;
    let mut command = Command::new(sudo);
    command.arg(program);
    Ok(command)
}

/// The CPU time that a process with its threads has used so far, user and system;
/// nothing when it is gone.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    cpu_time_in(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `utime` and `stime` of `/proc/PID/stat`, which are in hundredths of a
/// second for user space whatever HZ is (USER_HZ, include/asm-generic/param.h).
fn cpu_time_in(stat: &str) -> Option<Duration> {
    // The name in parentheses may have blanks and parentheses of its own.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: Vec<u64> = ticks.filter_map(|field| field.parse().ok()).collect();
    (ticks.len() == 2).then(|| Duration::from_millis(10 * (ticks[0] + ticks[1])))
}

/// A cargo of the same toolchain as the one that runs this.
pub fn cargo() -> Command {
    let mut command = Command::new(variable("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// A command as one would type it, for messages.
pub fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

/// Runs a command with this process's standard output and error.
///
/// # Errors
///
/// If it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot run `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}`: {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns what it printed to standard output.
///
/// # Errors
///
/// If it cannot be started or does not succeed; then with its standard error.
pub fn read(command: &mut Command) -> Result<String> {
    let output = collect(command)?;
    if !output.status.success() {
        bail!(
            "`{}`: {}: {}",
            shown(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command and returns all it printed, whatever its status.
///
/// # Errors
///
/// If it cannot be started.
pub fn collect(command: &mut Command) -> Result<Output> {
    command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{}`", shown(command)))
}

/// Runs `cargo build` with these arguments and returns the executable that came
/// of it. Compiler messages go to standard error.
///
/// # Errors
///
/// If the build fails or makes no executable.
pub fn cargo_build(command: &mut Command) -> Result<PathBuf> {
    command
        .arg("--message-format=json-render-diagnostics")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let output = command
        .output()
        .with_context(|| format!("cannot run `{}`", shown(command)))?;
    if !output.status.success() {
        bail!("`{}`: {}", shown(command), output.status);
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back()
        .with_context(|| format!("`{}` made no executable", shown(command)))
}

/// Cargo's target folder for this workspace.
///
/// # Errors
///
/// If cargo cannot read the workspace.
pub fn target_dir() -> Result<PathBuf> {
    let text = read(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&text).context("the output of cargo metadata")?;
    metadata["target_directory"]
        .as_str()
        .map(PathBuf::from)
        .context("cargo metadata names no target folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cpu_time() {
        let stat = "7 (a ) b) R 1 7 7 0 -1 4 9 0 0 0 250 30 0 0 20 0 1";
        assert_eq!(cpu_time_in(stat), Some(Duration::from_millis(2800)));
        assert_eq!(cpu_time_in("7 (a"), None);
        assert_eq!(cpu_time_in("7 (a) R 1"), None);
        assert!(cpu_time(std::process::id()).is_some());
    }
}
