//! fork and exec of a small program, over and over.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::process::Children;
use super::{per_operation, print_per_operation};
use crate::error::hinted;
use crate::recording::Metric;

/// Options of the spawn benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Processes to start, one after the other
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000)]
    pub count: u64,
    /// The program to run, which must exit with status 0 [default: true, or
    /// preemptprof --version where there is none]
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,
}

/// Runs the benchmark; the metric is microseconds per process.
///
/// # Errors
/// When the count is 0, or the program cannot be run or does not exit with 0.
pub fn run(args: &Args) -> Result<Metric> {
    if args.count == 0 {
        return Err(hinted(
            "-n 0: nothing to measure",
            ["give -n a number of at least 1"],
        ));
    }
    let (program, argument) = program(args)?;
    let path = CString::new(program.as_os_str().as_bytes())
        .context("the program's path contains a NUL")?;
    let mut argv = vec![path.as_ptr()];
    argv.extend(argument.map(|argument| argument.as_ptr()));
    argv.push(std::ptr::null());
    let null = File::options()
        .write(true)
        .open("/dev/null")
        .context("cannot open /dev/null")?;
    let begin = Instant::now();
    let mut children = Children::new();
    for _ in 0..args.count {
        children.fork(|| {
            // SAFETY: open descriptors; `argv` ends with a null pointer and
            // points to strings that live as long as this process.
            unsafe {
                libc::dup2(null.as_raw_fd(), libc::STDOUT_FILENO);
                libc::execv(path.as_ptr(), argv.as_ptr());
            }
            Err(io::Error::last_os_error())
        })?;
        children
            .wait_all()
            .with_context(|| format!("{} does not exit with status 0", program.display()))?;
    }
    Ok(per_operation(
        "time per process",
        begin.elapsed(),
        args.count,
    ))
}

/// Prints the result in perf's manner.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, metric: &Metric) -> io::Result<()> {
    writeln!(out, "# Running 'spawn' benchmark:")?;
    writeln!(
        out,
        "# Started {} processes, one after the other\n",
        args.count
    )?;
    print_per_operation(out, metric, args.count)
}

fn program(args: &Args) -> Result<(PathBuf, Option<&'static std::ffi::CStr>)> {
    if let Some(program) = &args.program {
        return match executable(program) {
            Ok(()) => Ok((program.clone(), None)),
            Err(error) => Err(hinted(
                format!("cannot run {}: {error}", program.display()),
                ["--program wants the path of an executable file"],
            )),
        };
    }
    let found = ["/bin/true", "/usr/bin/true"].map(Path::new);
    match found.into_iter().find(|path| executable(path).is_ok()) {
        Some(path) => Ok((path.to_owned(), None)),
        None => Ok((PathBuf::from("/proc/self/exe"), Some(c"--version"))),
    }
}

fn executable(path: &Path) -> io::Result<()> {
    let meta = path.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated string that outlives the call.
    match unsafe { libc::access(name.as_ptr(), libc::X_OK) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    #[test]
    fn bad_arguments_are_refused() {
        for (count, program) in [
            (0, None),
            (1, Some("/nonexistent")),
            (1, Some("/etc/passwd")),
            (1, Some("/bin")),
        ] {
            let args = Args {
                count,
                program: program.map(PathBuf::from),
            };
            let error = run(&args).unwrap_err();
            assert!(!hints(&error).is_empty(), "{error:#}");
        }
    }
}
