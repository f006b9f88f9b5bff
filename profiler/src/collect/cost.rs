//! The profiler's own cost between the workload's start and end.

use std::time::Duration;

use profiler_ebpf::ledger::LedgerCpu;
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
            window_samples,
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
        sum.window_samples += window_samples;
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
///
/// From the clock's reading to the clock's reading there is one reading's worth
/// of time. The sampler and the task programs do read it each time, the other
/// reading's worth is in the price of entering them; of the switch program only
/// timed runs read it, twice.
fn bpf_ns(counters: &Counters, clock_ns: f64) -> u64 {
    let switches = if counters.switch_timed_hits == 0 {
        0.0
    } else {
        let timed_hits = counters.switch_timed_hits as f64;
        let mean = counters.switch_timed_ns as f64 / timed_hits - clock_ns;
        mean.max(0.0) * counters.switch_hits as f64 + 2.0 * clock_ns * timed_hits
    };
    counters.sampler_ns + counters.task_ns + switches as u64
}

/// Nanoseconds in the ledger's programs, which time one run in 64.
fn ledger_ns(ledger: &LedgerCpu, clock_ns: f64) -> u64 {
    if ledger.timed_hits == 0 {
        return 0;
    }
    let mean = ledger.timed_ns as f64 / ledger.timed_hits as f64 - clock_ns;
    (mean.max(0.0) * ledger.hits as f64) as u64
}

/// What the programs add to one switch and the wake-up that led to it; `None`
/// without a switch that was timed.
fn per_switch_ns(inputs: &Inputs<'_>, clock_ns: f64) -> Option<u64> {
    // Taken off a measured time, so of a price that noise exceeds the least.
    let price = inputs
        .prices
        .switch
        .map_or(0.0, |price| match price.is_bound {
            true => price.low,
            false => price.ns,
        });
    let mean = |ns: u64, hits: u64| {
        (hits > 0).then(|| (ns as f64 / hits as f64 - clock_ns).max(0.0) + price)
    };
    let counters = inputs.counters;
    let switch = mean(counters.switch_timed_ns, counters.switch_timed_hits)?;
    let wake = mean(inputs.ledger.timed_ns, inputs.ledger.timed_hits).unwrap_or_default();
    Some((switch + wake) as u64)
}

/// What a run's own cost is made of.
pub(super) struct Inputs<'a> {
    /// Counters at the workload's end.
    pub(super) counters: &'a Counters,
    /// Run time of all programs by the kernel's statistics during the run, when
    /// those were on.
    pub(super) kernel_stats_ns: Option<u64>,
    /// What entering each program costs.
    pub(super) prices: &'a Prices,
    /// CPU time of this process from the workload's start to its end.
    pub(super) user: Duration,
    /// From the command's start to the workload's.
    pub(super) setup: Duration,
    /// From the workload's start to its end.
    pub(super) wall: Duration,
    /// CPUs online.
    pub(super) online_cpus: usize,
    /// What hits of breakpoints took, their program included, nanoseconds.
    pub(super) hits_ns: u64,
    /// Counters of the ledger's programs; zeros when there is no ledger.
    pub(super) ledger: LedgerCpu,
}

/// What entering and leaving a program costs, beside the program: calibrated on
/// the running kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// The CPU they were measured on.
    pub cpu: Option<u32>,
    /// A sampling interrupt, with one of the program's clock readings.
    pub sample: Option<Price>,
    /// A tracepoint's call of a program.
    pub switch: Option<Price>,
    /// A clock reading of a program, nanoseconds.
    pub clock_ns: Option<f64>,
    /// How long measuring them took.
    pub spent: Duration,
}

/// A price: nanoseconds, and the interval that noise leaves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// The estimate; of one that noise exceeds, the most it can be.
    pub ns: f64,
    /// The least it can be.
    pub low: f64,
    /// The most it can be.
    pub high: f64,
    /// Noise exceeds it: it is not known to be more than nothing.
    pub is_bound: bool,
}

impl Price {
    /// A price that is not free, or `None` when even the most it can be is less
    /// than nothing.
    pub(super) fn measured(ns: f64, low: f64, high: f64) -> Option<Self> {
        let is_bound = low <= 0.0;
        (high > 0.0).then_some(Self {
            ns: if is_bound { high } else { ns },
            low: low.max(0.0),
            high,
            is_bound,
        })
    }

    fn text(&self) -> String {
        if self.is_bound {
            format!("at most {:.0} ns (lost in the noise)", self.high)
        } else {
            format!("{:.0} ns ({:.0}-{:.0})", self.ns, self.low, self.high)
        }
    }
}

impl Prices {
    /// The prices and how they are known, one phrase.
    pub fn text(&self) -> String {
        let price = |what: &str, price: &Option<Price>| match price {
            Some(price) => format!("{what} {}", price.text()),
            None => format!("{what} not measured"),
        };
        let clock = match self.clock_ns {
            Some(ns) => format!("a clock reading {ns:.0} ns"),
            None => "a clock reading not measured".to_owned(),
        };
        let place = match self.cpu {
            Some(cpu) => format!("; calibrated on CPU {cpu}"),
            None => String::new(),
        };
        format!(
            "{}, {}, {clock}{place}",
            price("a sampling interrupt", &self.sample),
            price("a tracepoint's call", &self.switch),
        )
    }

    /// What is not known of the prices of programs that ran.
    pub(super) fn warnings(&self, counters: &Counters) -> Vec<String> {
        [
            ("a sampling interrupt", &self.sample, counters.sampler_hits),
            (
                "a tracepoint's call of a program",
                &self.switch,
                counters.switch_hits + counters.task_hits,
            ),
        ]
        .into_iter()
        .filter(|(_, _, hits)| *hits > 0)
        .filter_map(|(what, price, _)| match price {
            None => Some(format!(
                "The price of {what} could not be measured: own cost leaves it out."
            )),
            Some(price) if price.is_bound => Some(format!(
                "The price of {what} is lost in the noise: own cost takes the most it can be, \
                 {:.0} ns.",
                price.high
            )),
            Some(_) => None,
        })
        .collect()
    }
}

/// Adds it up.
pub(super) fn overhead(inputs: &Inputs<'_>) -> Overhead {
    let counters = inputs.counters;
    let prices = inputs.prices;
    let clock_ns = prices.clock_ns.unwrap_or_default();
    let bpf_ns = bpf_ns(counters, clock_ns) + ledger_ns(&inputs.ledger, clock_ns);
    let sample_ns = prices.sample.map_or(0.0, |price| price.ns);
    let switch_ns = prices.switch.map_or(0.0, |price| price.ns);
    let task_hits = counters.task_hits as f64;
    let probe_ns = (sample_ns * counters.sampler_hits as f64
        + switch_ns * (counters.switch_hits + inputs.ledger.hits) as f64
        + (switch_ns + clock_ns) * task_hits) as u64
        + inputs.hits_ns;
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
        bpf_source: "the programs' own clock".to_owned(),
        bpf_stats_ns: inputs.kernel_stats_ns,
        probe_source: prices.text(),
        per_switch_ns: per_switch_ns(inputs, clock_ns),
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
            prices: &Prices {
                cpu: Some(1),
                sample: Price::measured(1000.0, 900.0, 1100.0),
                switch: Price::measured(50.0, 40.0, 60.0),
                clock_ns: Some(20.0),
                ..Prices::default()
            },
            user: Duration::from_millis(3),
            setup: Duration::from_millis(200),
            wall: Duration::from_secs(1),
            online_cpus: 2,
            hits_ns: 1_000,
            ledger: LedgerCpu::default(),
        });
        // 2 ms + 64,000 x 80 ns + 1000 x 40 ns + 5 us; 1000 x 1 us + 64,010 x
        // 50 ns + 10 x 20 ns + 1 us; 3 ms.
        assert_eq!(overhead.bpf_ns, 7_165_000);
        assert_eq!(overhead.probe_ns, 4_201_700);
        assert_eq!(overhead.user_ns, 3_000_000);
        assert_eq!(overhead.setup_ns, 200_000_000);
        assert!((overhead.share - 14_366_700.0 / 2e9).abs() < 1e-9);
        assert_eq!(
            overhead.probe_source,
            "a sampling interrupt 1000 ns (900-1100), a tracepoint's call 50 ns (40-60), \
             a clock reading 20 ns; calibrated on CPU 1"
        );
    }

    #[test]
    fn nothing_divides_by_nothing() {
        let overhead = overhead(&Inputs {
            counters: &Counters::default(),
            kernel_stats_ns: None,
            prices: &Prices::default(),
            user: Duration::ZERO,
            setup: Duration::ZERO,
            wall: Duration::ZERO,
            online_cpus: 0,
            hits_ns: 0,
            ledger: LedgerCpu::default(),
        });
        assert_eq!(overhead.share, 0.0);
        assert_eq!(
            overhead.probe_source,
            "a sampling interrupt not measured, a tracepoint's call not measured, \
             a clock reading not measured"
        );
    }

    #[test]
    fn what_is_not_known_of_a_price_is_said_when_it_matters() {
        let prices = Prices {
            switch: Price::measured(5.0, -20.0, 30.0),
            ..Prices::default()
        };
        assert_eq!(prices.switch.map(|price| price.ns), Some(30.0));
        assert_eq!(prices.warnings(&Counters::default()), Vec::<String>::new());
        let warnings = prices.warnings(&Counters {
            sampler_hits: 1,
            task_hits: 1,
            ..Counters::default()
        });
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].contains("sampling interrupt could not be measured"));
        assert!(warnings[1].contains("lost in the noise") && warnings[1].contains("30 ns"));
        assert_eq!(Price::measured(-9.0, -20.0, -1.0), None);
    }

    #[test]
    fn clock_readings_never_make_a_program_faster_than_nothing() {
        let counters = Counters {
            switch_hits: 64,
            switch_timed_hits: 1,
            switch_timed_ns: 15,
            ..Counters::default()
        };
        assert_eq!(bpf_ns(&counters, 20.0), 40);
        assert_eq!(bpf_ns(&counters, 0.0), 960);
    }
}
