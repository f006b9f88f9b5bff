//! Periodic wake-ups beside a busy background, as cyclictest measures them: how
//! long after its time a task runs again.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result};

use super::process::{Children, set_name};
use crate::error::hinted;
use crate::recording::{Histogram, Metric};

/// Options of the latency benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Wake-ups
    #[arg(short = 'n', long, value_name = "N", default_value_t = 2_000)]
    pub count: u64,
    /// From one wake-up to the next, microseconds
    #[arg(long, value_name = "US", default_value_t = 1_000)]
    pub interval_us: u32,
    /// Processes that keep the CPUs busy meanwhile; by default one for each CPU
    #[arg(long, value_name = "N")]
    pub busy: Option<u32>,
}

/// The most processes that keep CPUs busy.
const MOST_BUSY: u32 = 1024;

/// What a run came to.
pub struct Outcome {
    /// The 99th percentile, in microseconds.
    pub metric: Metric,
    /// How late each wake-up was.
    pub late: Histogram,
    /// Wake-ups that were so late that the next one's time had passed.
    pub overruns: u64,
}

/// Runs the benchmark; the metric is the 99th percentile of lateness.
///
/// # Errors
/// When the count or the interval is 0 or absurdly long, when a process cannot be
/// started, or when a wait fails.
pub fn run(args: &Args) -> Result<Outcome> {
    let bad = |what: &str, hint: &str| Err(hinted(what.to_owned(), [hint.to_owned()]));
    if args.count == 0 {
        return bad("-n 0: nothing to measure", "give -n a number of at least 1");
    }
    if !(20..=10_000_000).contains(&args.interval_us) {
        return bad(
            &format!("--interval-us {}: not a useful interval", args.interval_us),
            "from 20 (microseconds) to 10000000 (ten seconds)",
        );
    }
    let busy = args.busy.unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
    });
    if busy > MOST_BUSY {
        return bad(
            &format!("--busy {busy}: too many"),
            &format!("at most {MOST_BUSY}"),
        );
    }
    let mut children = Children::new();
    set_name(c"latency-busy");
    for _ in 0..busy {
        // Killed when `children` goes.
        children.fork(spin)?;
    }
    set_name(c"latency");
    let outcome = wake_ups(args.count, Duration::from_micros(args.interval_us.into()));
    drop(children);
    let (late, overruns) = outcome.context("a wait failed")?;
    let p99_ns = late.quantile(0.99).unwrap_or_default();
    Ok(Outcome {
        metric: Metric {
            name: "99 % late by at most".to_owned(),
            value: p99_ns as f64 / 1e3,
            unit: "us".to_owned(),
            better: "lower".to_owned(),
        },
        late,
        overruns,
    })
}

/// Works until it is killed: in user mode, and now and then a system call, as
/// programs do.
fn spin() -> io::Result<()> {
    let mut value = 1_u64;
    loop {
        for _ in 0..20_000 {
            value = std::hint::black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        // SAFETY: getppid has no preconditions.
        unsafe { libc::getppid() };
    }
}

/// Sleeps to one time after the other; how late it was each time.
fn wake_ups(count: u64, interval: Duration) -> io::Result<(Histogram, u64)> {
    let mut late = Histogram::default();
    let mut overruns = 0;
    let mut due = monotonic()? + interval;
    for _ in 0..count {
        sleep_until(due)?;
        let now = monotonic()?;
        late.note(u64::try_from(now.saturating_sub(due).as_nanos()).unwrap_or(u64::MAX));
        due += interval;
        if now >= due {
            // The times that have passed are not waited for.
            overruns += 1;
            due = now + interval;
        }
    }
    Ok((late, overruns))
}

/// CLOCK_MONOTONIC.
fn monotonic() -> io::Result<Duration> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    if unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

fn sleep_until(due: Duration) -> io::Result<()> {
    let due = libc::timespec {
        tv_sec: due.as_secs() as libc::time_t,
        tv_nsec: due.subsec_nanos().into(),
    };
    loop {
        // SAFETY: `due` outlives the call; nothing is written for an absolute time.
        let error = unsafe {
            libc::clock_nanosleep(
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const due,
                std::ptr::null_mut(),
            )
        };
        match error {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Prints the result: percentiles, as cyclictest's histograms give them.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, outcome: &Outcome) -> io::Result<()> {
    writeln!(out, "# Running 'latency' benchmark:")?;
    writeln!(
        out,
        "# Woke up {} times, every {} us, beside a busy background\n",
        args.count, args.interval_us
    )?;
    for (name, fraction) in [
        ("50 %", 0.5),
        ("90 %", 0.9),
        ("99 %", 0.99),
        ("99.9 %", 0.999),
    ] {
        let us = outcome.late.quantile(fraction).unwrap_or_default() as f64 / 1e3;
        writeln!(out, " {name:>14}: {us:.1} [usec] late at most")?;
    }
    let max_us = outcome.late.max_ns as f64 / 1e3;
    writeln!(out, " {:>14}: {max_us:.1} [usec]", "latest")?;
    writeln!(out, " {:>14}: {}", "overruns", outcome.overruns)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::error::hints;

    #[test]
    fn wake_ups_are_late_and_never_early() {
        let args = Args {
            count: 50,
            interval_us: 500,
            busy: Some(1),
        };
        let begin = Instant::now();
        let outcome = run(&args).unwrap();
        assert!(begin.elapsed() >= Duration::from_micros(50 * 500));
        assert_eq!(outcome.late.count, 50);
        assert!(outcome.late.max_ns > 0);
        assert_eq!(outcome.metric.unit, "us");
        let mut text = Vec::new();
        print(&mut text, &args, &outcome).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.contains("99.9 %: ") && text.contains("overruns: "),
            "{text}"
        );
    }

    #[test]
    fn bad_arguments_are_refused() {
        for (count, interval_us, busy) in [(0, 100, 1), (1, 0, 1), (1, u32::MAX, 1), (1, 100, 2000)]
        {
            let args = Args {
                count,
                interval_us,
                busy: Some(busy),
            };
            let error = run(&args).err().unwrap();
            assert!(!hints(&error).is_empty(), "{error}");
        }
    }
}
