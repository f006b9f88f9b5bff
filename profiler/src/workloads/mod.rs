//! The built-in benchmarks.
//!
//! [`messaging`] and [`pipe`] do the same work, take the same options and print
//! the same figures as `perf bench sched messaging` and `perf bench sched pipe`.
//! [`latency`], [`spawn`], [`timers`] and [`veth`] stress what preemption models
//! and HZ change: wake-ups beside a busy background, process churn, short waits,
//! and `rcu_barrier`.
//!
//! Each has `Args` for the command line, `run` for the work, and `print` for
//! what people see. `run` forks: call it before the process starts threads.

pub mod latency;
pub mod messaging;
mod netlink;
pub mod pipe;
mod process;
pub mod spawn;
pub mod timers;
pub mod veth;

use std::io::{self, Write};
use std::time::Duration;

use crate::recording::Metric;

/// What happened per operation, in microseconds.
fn per_operation(name: &str, elapsed: Duration, operations: u64) -> Metric {
    Metric {
        name: name.to_owned(),
        value: elapsed.as_secs_f64() * 1e6 / operations as f64,
        unit: "us".to_owned(),
        better: "lower".to_owned(),
    }
}

/// How long it all took, in seconds.
fn total_time(elapsed: Duration) -> Metric {
    Metric {
        name: "total time".to_owned(),
        value: elapsed.as_secs_f64(),
        unit: "s".to_owned(),
        better: "lower".to_owned(),
    }
}

/// The three lines that `perf bench sched pipe` ends with.
fn print_per_operation(out: &mut dyn Write, metric: &Metric, operations: u64) -> io::Result<()> {
    let total_s = metric.value * operations as f64 / 1e6;
    writeln!(out, " {:>14}: {total_s:.3} [sec]\n", "Total time")?;
    writeln!(out, " {:>14.6} usecs/op", metric.value)?;
    writeln!(out, " {:>14} ops/sec", (1e6 / metric.value) as u64)
}
