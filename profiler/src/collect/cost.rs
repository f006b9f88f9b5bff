//! The profiler's own cost between the workload's start and end.

use std::time::Duration;

use profiler_ebpf::{Counters, CpuState};

use crate::probes::Plain;
use crate::recording::Overhead;

/// CPU time of this process's threads so far.
pub(super) fn own_cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is writable, and zeroed in case the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    [usage.ru_utime, usage.ru_stime]
        .iter()
        .map(|time| {
            Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
        })
        .sum()
}

/// The sum of all CPUs' counters.
pub(super) fn total(states: &[Plain<CpuState>]) -> Counters {
    let mut sum = Counters::default();
    for Plain(state) in states {
        // Named one by one, so that a counter that is added cannot be forgotten.
        let Counters {
            sampler_hits,
            idle_samples,
            sampler_ns,
            switch_hits,
            switch_timed_hits,
            switch_timed_ns,
            target_voluntary,
            target_preempted,
            other_voluntary,
            other_preempted,
            task_hits,
            task_ns,
            losses,
        } = state.counters;
        sum.sampler_hits += sampler_hits;
        sum.idle_samples += idle_samples;
        sum.sampler_ns += sampler_ns;
        sum.switch_hits += switch_hits;
        sum.switch_timed_hits += switch_timed_hits;
        sum.switch_timed_ns += switch_timed_ns;
        sum.target_voluntary += target_voluntary;
        sum.target_preempted += target_preempted;
        sum.other_voluntary += other_voluntary;
        sum.other_preempted += other_preempted;
        sum.task_hits += task_hits;
        sum.task_ns += task_ns;
        for (sum, loss) in sum.losses.iter_mut().zip(losses) {
            *sum += loss;
        }
    }
    sum
}

/// Nanoseconds in BPF programs: the sampler and the task programs time each of
/// their runs, the switch program one in 64.
fn bpf_ns(counters: &Counters) -> u64 {
    let switches = if counters.switch_timed_hits == 0 {
        0
    } else {
        let mean = counters.switch_timed_ns as f64 / counters.switch_timed_hits as f64;
        (mean * counters.switch_hits as f64) as u64
    };
    counters.sampler_ns + counters.task_ns + switches
}

/// What a run's own cost is made of.
pub(super) struct Inputs<'a> {
    /// Counters at the workload's end.
    pub(super) counters: &'a Counters,
    /// Run time of all programs by the kernel's statistics, when those were on.
    pub(super) kernel_stats_ns: Option<u64>,
    /// What entering each program costs.
    pub(super) prices: Prices,
    /// CPU time of this process from the workload's start to its end.
    pub(super) user: Duration,
    /// From the command's start to the workload's.
    pub(super) setup: Duration,
    /// From the workload's start to its end.
    pub(super) wall: Duration,
    /// CPUs online.
    pub(super) online_cpus: usize,
}

/// What entering and leaving a program costs, beside the program: calibrated on
/// the running kernel, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// A sampling interrupt.
    pub sample_ns: f64,
    /// A tracepoint's call of a program.
    pub switch_ns: f64,
}

/// Adds it up.
pub(super) fn overhead(inputs: &Inputs<'_>) -> Overhead {
    let counters = inputs.counters;
    let (bpf_ns, bpf_source) = match inputs.kernel_stats_ns {
        Some(ns) => (ns, "kernel.bpf_stats"),
        None => (bpf_ns(counters), "the programs' own clock"),
    };
    let probe_ns = (inputs.prices.sample_ns * counters.sampler_hits as f64
        + inputs.prices.switch_ns * (counters.switch_hits + counters.task_hits) as f64)
        as u64;
    let user_ns = nanoseconds(inputs.user);
    let capacity = inputs.wall.as_secs_f64() * inputs.online_cpus as f64 * 1e9;
    let share = if capacity > 0.0 {
        (bpf_ns + probe_ns + user_ns) as f64 / capacity
    } else {
        0.0
    };
    Overhead {
        bpf_ns,
        probe_ns,
        user_ns,
        setup_ns: nanoseconds(inputs.setup),
        share,
        bpf_source: bpf_source.to_owned(),
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_is_the_share_of_all_cpus() {
        let counters = Counters {
            sampler_hits: 1000,
            sampler_ns: 2_000_000,
            switch_hits: 64_000,
            switch_timed_hits: 1000,
            switch_timed_ns: 100_000,
            task_hits: 10,
            task_ns: 5_000,
            ..Counters::default()
        };
        let overhead = overhead(&Inputs {
            counters: &counters,
            kernel_stats_ns: None,
            prices: Prices {
                sample_ns: 1000.0,
                switch_ns: 50.0,
            },
            user: Duration::from_millis(3),
            setup: Duration::from_millis(200),
            wall: Duration::from_secs(1),
            online_cpus: 2,
        });
        // 2 ms + 64,000 x 100 ns + 5 us; 1000 x 1 us + 64,010 x 50 ns; 3 ms.
        assert_eq!(overhead.bpf_ns, 8_405_000);
        assert_eq!(overhead.probe_ns, 4_200_500);
        assert_eq!(overhead.user_ns, 3_000_000);
        assert_eq!(overhead.setup_ns, 200_000_000);
        assert!((overhead.share - 15_605_500.0 / 2e9).abs() < 1e-9);
    }

    #[test]
    fn nothing_divides_by_nothing() {
        let overhead = overhead(&Inputs {
            counters: &Counters::default(),
            kernel_stats_ns: None,
            prices: Prices::default(),
            user: Duration::ZERO,
            setup: Duration::ZERO,
            wall: Duration::ZERO,
            online_cpus: 0,
        });
        assert_eq!(overhead.share, 0.0);
    }
}
