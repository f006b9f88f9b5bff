//! `perf bench sched pipe`: two tasks pass a word to and fro.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::process::{Channel, Children, channel, set_name};
use super::{per_operation, print_per_operation};
use crate::error::hinted;
use crate::recording::Metric;

/// Options of the pipe benchmark; those of `perf bench sched pipe` and a CPU.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Round trips
    #[arg(
        short = 'l',
        long = "loop",
        value_name = "N",
        default_value_t = 1_000_000
    )]
    pub loops: u64,
    /// Use threads instead of processes
    #[arg(short = 'T', long)]
    pub threaded: bool,
    /// Keep both ends on one CPU: the one this runs on
    #[arg(long)]
    pub same_cpu: bool,
    /// Keep both ends on this CPU
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<u32>,
}

/// Runs the benchmark; the metric is microseconds per round trip.
///
/// # Errors
/// When there are 0 loops, when the CPU cannot be used, or when an end fails.
pub fn run(args: &Args) -> Result<Metric> {
    if args.loops == 0 {
        return Err(hinted(
            "-l 0: nothing to measure",
            ["give -l a number of at least 1"],
        ));
    }
    set_name(c"sched-pipe");
    let pinned = match (args.cpu, args.same_cpu) {
        (Some(cpu), _) => Some(Pinned::to(cpu)?),
        (None, true) => Some(Pinned::to(current_cpu()?)?),
        (None, false) => None,
    };
    let elapsed = if args.threaded {
        run_threads(args.loops)?
    } else {
        run_processes(args.loops)?
    };
    drop(pinned);
    Ok(per_operation("time per operation", elapsed, args.loops))
}

/// Prints what perf prints.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, metric: &Metric) -> io::Result<()> {
    let kind = if args.threaded {
        "threads"
    } else {
        "processes"
    };
    writeln!(out, "# Running 'sched/pipe' benchmark:")?;
    writeln!(
        out,
        "# Executed {} pipe operations between two {kind}\n",
        args.loops
    )?;
    print_per_operation(out, metric, args.loops)
}

/// The end that begins.
fn ping(mut tx: &File, mut rx: &File, loops: u64) -> io::Result<()> {
    let mut word = [0; 4];
    for _ in 0..loops {
        tx.write_all(&word)?;
        rx.read_exact(&mut word)?;
    }
    Ok(())
}

/// The end that answers.
fn pong(mut rx: &File, mut tx: &File, loops: u64) -> io::Result<()> {
    let mut word = [0; 4];
    for _ in 0..loops {
        rx.read_exact(&mut word)?;
        tx.write_all(&word)?;
    }
    Ok(())
}

fn run_processes(loops: u64) -> Result<Duration> {
    let there = channel(true)?;
    let back = channel(true)?;
    let mut children = Children::new();
    let begin = Instant::now();
    let mut ends = Some((there, back));
    children.fork(|| {
        let Some((there, back)) = ends.take() else {
            return Ok(());
        };
        // Each side keeps only its own ends, so that it notices when the other
        // is gone.
        drop((there.tx, back.rx));
        pong(&there.rx, &back.tx, loops)
    })?;
    let Some((Channel { tx, rx }, back)) = ends else {
        return Ok(Duration::ZERO);
    };
    drop((rx, back.tx));
    let result = ping(&tx, &back.rx, loops);
    if result.is_err() {
        // The child's own error says more.
        drop((tx, back.rx));
    }
    children.wait_all()?;
    result.context("the other process went away")?;
    Ok(begin.elapsed())
}

fn run_threads(loops: u64) -> Result<Duration> {
    let there = channel(true)?;
    let back = channel(true)?;
    let (sender, results) = mpsc::channel();
    let other = sender.clone();
    let begin = Instant::now();
    let name = "cannot start a thread";
    let answering = thread::Builder::new()
        .spawn(move || {
            let _ = other.send(pong(&there.rx, &back.tx, loops));
        })
        .context(name)?;
    let asking = thread::Builder::new()
        .spawn(move || {
            let _ = sender.send(ping(&there.tx, &back.rx, loops));
        })
        .context(name)?;
    for _ in 0..2 {
        // The ends of an end that fails close with its thread: the other fails.
        results
            .recv()
            .context("a thread of the benchmark ended without a result")?
            .context("a thread of the benchmark failed")?;
    }
    for thread in [answering, asking] {
        let _ = thread.join();
    }
    Ok(begin.elapsed())
}

fn current_cpu() -> Result<u32> {
    // SAFETY: sched_getcpu has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu)
        .map_err(|_| io::Error::last_os_error())
        .context("cannot find out the current CPU")
}

/// This thread and what it starts, on one CPU; dropped, back where it was.
struct Pinned {
    before: libc::cpu_set_t,
}

impl Pinned {
    fn to(cpu: u32) -> Result<Self> {
        let refuse = |error: io::Error| {
            hinted(
                format!("cannot run on CPU {cpu}: {error}"),
                ["/sys/devices/system/cpu/online and the cpuset say which CPUs can be used"],
            )
        };
        if cpu >= libc::CPU_SETSIZE as u32 {
            return Err(refuse(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let mut before = MaybeUninit::<libc::cpu_set_t>::zeroed();
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: a buffer of the size given, which outlives the call.
        if unsafe { libc::sched_getaffinity(0, size, before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error()).context("cannot read the allowed CPUs");
        }
        // SAFETY: all zeros is an empty set.
        let mut wanted = unsafe { MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init() };
        // SAFETY: `cpu` was checked to lie in the set.
        unsafe { libc::CPU_SET(cpu as usize, &mut wanted) };
        // SAFETY: a set of the size given, which outlives the call.
        if unsafe { libc::sched_setaffinity(0, size, &raw const wanted) } != 0 {
            return Err(refuse(io::Error::last_os_error()));
        }
        Ok(Self {
            // SAFETY: zeroed and then filled in by the kernel.
            before: unsafe { before.assume_init() },
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let size = size_of::<libc::cpu_set_t>();
        // SAFETY: a set of the size given, which outlives the call.
        unsafe { libc::sched_setaffinity(0, size, &raw const self.before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    const ARGS: Args = Args {
        loops: 10_000,
        threaded: false,
        same_cpu: false,
        cpu: None,
    };

    #[test]
    fn bad_arguments_are_refused() {
        for args in [
            Args { loops: 0, ..ARGS },
            Args {
                cpu: Some(1023),
                loops: 1,
                ..ARGS
            },
            Args {
                cpu: Some(u32::MAX),
                loops: 1,
                ..ARGS
            },
        ] {
            let error = run(&args).unwrap_err();
            assert!(!hints(&error).is_empty(), "{error}");
        }
    }

    #[test]
    fn prints_as_perf_does() {
        let metric = per_operation("x", Duration::from_nanos(520_954_000), 10_000);
        let mut text = Vec::new();
        print(&mut text, &ARGS, &metric).unwrap();
        let expected = "# Running 'sched/pipe' benchmark:\n\
                        # Executed 10000 pipe operations between two processes\n\n     \
                        Total time: 0.521 [sec]\n\n      \
                        52.095400 usecs/op\n          19195 ops/sec\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
