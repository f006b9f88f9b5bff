//! What entering a program costs beside the program, measured on the running
//! kernel just before the workload starts, in some 40 ms.
//!
//! - A sampling interrupt: a sampler like the run's, with the same program,
//!   interrupts a loop that reads the clock. The gaps around the times of its
//!   records are what user mode loses to a sample; the program's own time is
//!   taken off. Caches are warm and user mode is interrupted, so a run pays
//!   rather more.
//! - A tracepoint's call of a program: switches between two threads, before the
//!   switch program is attached and after, when it returns at once as no CPU is
//!   watched yet. The fast ones of many short batches are compared, in units of
//!   a yardstick without switches that is timed along with each.
//! - A clock reading, which the programs' own timing contains once and leaves
//!   out once: a program reads the clock over and over.
//!
//! Each price has the interval that noise leaves it. One that noise exceeds
//! stands as the most it can be, with a warning; one that cannot be had at all
//! is not guessed.

use std::time::{Duration, Instant};

use super::cost::{Price, Prices};
use super::pin::Pinned;
use super::pingpong::{Batch, PingPong};
use super::run::monotonic_ns;
use crate::probes::perf::{self, Opener};
use crate::probes::{Burst, Session};

/// Samples a second while calibrating, where the kernel allows so many.
const CALIBRATION_HZ: u64 = 5_000;
/// How long the loop that is interrupted runs, and how often.
const SPIN_NS: u64 = 800_000;
const BURSTS: usize = 16;
/// After so long no further burst begins: another task may have the CPU.
const LONGEST: Duration = Duration::from_millis(25);
/// How long switches are timed, before and after.
const PLAY: Duration = Duration::from_millis(8);
/// Fewer measurements than this have no interval.
const FEWEST: usize = 6;
/// Which of the batches of switches is compared, as a quantile: on a busy machine
/// most are disturbed.
const UNDISTURBED: f64 = 0.1;

/// Calibration: begun before anything is attached.
pub struct Calibration {
    cpu: Option<u32>,
    game: Option<PingPong>,
    /// Switches without the switch program.
    bare: Vec<Batch>,
    spent: Duration,
}

impl Calibration {
    /// Gets ready to measure on the first of `cpus`, those that will be watched,
    /// on which this thread may run.
    pub fn begin(cpus: &[u32]) -> Self {
        let begin = Instant::now();
        let cpu = cpus.iter().copied().find(|&cpu| Pinned::to(cpu).is_ok());
        Self {
            cpu,
            game: cpu.and_then(|cpu| PingPong::start(cpu).ok()),
            bare: Vec::new(),
            spent: begin.elapsed(),
        }
    }

    /// To be called when the switch program is about to be attached.
    pub fn before_switch(&mut self) {
        let begin = Instant::now();
        self.bare = self.play();
        self.spent += begin.elapsed();
    }

    fn play(&mut self) -> Vec<Batch> {
        self.game
            .as_mut()
            .and_then(|game| game.play(PLAY).ok())
            .unwrap_or_default()
    }

    /// Measures the rest, once everything is attached and nothing is started.
    ///
    /// # Errors
    ///
    /// When what calibration counted cannot be wiped.
    pub fn finish(mut self, session: &mut Session, opener: &dyn Opener) -> anyhow::Result<Prices> {
        let begin = Instant::now();
        let switch = if session.watches("switch") {
            let attached = self.play();
            between(&self.bare, &attached)
        } else {
            None
        };
        // The partner's end is no part of what follows.
        self.game = None;
        let sample = match self.cpu {
            Some(cpu) => sample(session, cpu, opener)?,
            None => None,
        };
        Ok(Prices {
            cpu: self.cpu,
            sample,
            switch,
            clock_ns: session.clock_ns().ok(),
            spent: self.spent + begin.elapsed(),
        })
    }
}

fn sample(session: &mut Session, cpu: u32, opener: &dyn Opener) -> anyhow::Result<Option<Price>> {
    let Ok(_pinned) = Pinned::to(cpu) else {
        return Ok(None);
    };
    let hz = CALIBRATION_HZ.min(perf::max_sample_rate().unwrap_or(CALIBRATION_HZ));
    let turn_ns = turn();
    let until = Instant::now() + LONGEST;
    let limits = (BURSTS, until);
    let bursts = session.try_sampler(cpu, hz, opener, limits, || spin(turn_ns))?;
    Ok(price_of_samples(&bursts, turn_ns))
}

/// A part of the spinning loop that took longer than it should: its begin and
/// end, CLOCK_MONOTONIC nanoseconds.
type Gap = (u64, u64);

/// How long one turn of the loop takes undisturbed, nanoseconds.
fn turn() -> u64 {
    let times: Vec<u64> = (0..512).map(|_| monotonic_ns()).collect();
    let mut turns: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    turns.sort_unstable();
    turns[turns.len() / 2]
}

/// Reads the clock for `SPIN_NS`; what interrupted it.
fn spin(turn_ns: u64) -> Vec<Gap> {
    // No interrupt is as short as this.
    let usual = turn_ns + (turn_ns / 4).max(200);
    let mut gaps = Vec::with_capacity(256);
    let mut last = monotonic_ns();
    let end = last + SPIN_NS;
    while last < end {
        let now = monotonic_ns();
        if now - last > usual {
            gaps.push((last, now));
        }
        last = now;
    }
    gaps
}

/// The price of a sample, from what the sampler and what the loop saw.
fn price_of_samples(bursts: &[(Burst, Vec<Gap>)], turn_ns: u64) -> Option<Price> {
    let whole: Vec<Vec<f64>> = bursts
        .iter()
        .map(|(burst, gaps)| of_one_sample(gaps, &burst.times, turn_ns))
        .collect();
    let mut all: Vec<f64> = whole.iter().flatten().copied().collect();
    all.sort_unstable_by(f64::total_cmp);
    // Another interrupt, another task, or the hypervisor with another guest.
    let too_long = 3.0 * all.get(all.len() / 2)?;
    let mut prices: Vec<f64> = bursts
        .iter()
        .zip(&whole)
        .filter_map(|((burst, _), whole)| {
            let usual: Vec<f64> = whole
                .iter()
                .copied()
                .filter(|gap| *gap < too_long)
                .collect();
            if usual.is_empty() || burst.hits == 0 {
                return None;
            }
            let mean = usual.iter().sum::<f64>() / usual.len() as f64;
            Some(mean - burst.program_ns as f64 / burst.hits as f64)
        })
        .collect();
    let quantile = quantile(&mut prices, 0.5)?;
    Price::measured(quantile.at, quantile.low, quantile.high)
}

/// Lengths of the gaps in which exactly one sample was taken.
fn of_one_sample(gaps: &[Gap], times: &[u64], turn_ns: u64) -> Vec<f64> {
    gaps.iter()
        .filter(|(begin, end)| {
            let inside = times.iter().filter(|time| (begin..=end).contains(time));
            inside.count() == 1
        })
        .map(|(begin, end)| (end - begin).saturating_sub(turn_ns) as f64)
        .collect()
}

/// The price of a tracepoint's call: how much longer a switch takes with it.
/// Switches are compared by how many rounds of the yardstick they take, as the
/// machine's pace may have changed in between.
fn between(bare: &[Batch], attached: &[Batch]) -> Option<Price> {
    let fast = |batches: &[Batch], part: fn(&Batch) -> f64| {
        let mut parts: Vec<f64> = batches.iter().map(part).collect();
        quantile(&mut parts, UNDISTURBED)
    };
    let rounds = |batches: &[Batch]| {
        let switch = fast(batches, |batch| batch.switch_ns)?;
        let round_ns = fast(batches, |batch| batch.yardstick_ns)?.at;
        Some(Quantile {
            at: switch.at / round_ns,
            low: switch.low / round_ns,
            high: switch.high / round_ns,
        })
    };
    let (before, after) = (rounds(bare)?, rounds(attached)?);
    // What moves within each of the two has moved between them as well.
    let drift = |batches: &[Batch]| {
        let (first, second) = batches.split_at(batches.len() / 2);
        Some((rounds(first)?.at - rounds(second)?.at).abs())
    };
    let drift = drift(bare)?.max(drift(attached)?);
    let round_ns = fast(attached, |batch| batch.yardstick_ns)?.at;
    let price = after.at - before.at;
    Price::measured(
        price * round_ns,
        (after.low - before.high).min(price - drift) * round_ns,
        (after.high - before.low).max(price + drift) * round_ns,
    )
}

/// A quantile and its 95 % interval, by ranks, so whatever the distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Quantile {
    at: f64,
    low: f64,
    high: f64,
}

fn quantile(values: &mut [f64], share: f64) -> Option<Quantile> {
    if values.len() < FEWEST {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let count = values.len() as f64;
    let margin = 1.96 * (count * share * (1.0 - share)).sqrt();
    let rank = |rank: f64| values[(rank.max(0.0) as usize).min(values.len() - 1)];
    Some(Quantile {
        at: rank(count * share),
        low: rank((count * share - margin).floor()),
        high: rank((count * share + margin).ceil()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen bursts of four samples that cost `entry` beside the program's
    /// 700 ns, in a loop of 20 ns a turn.
    fn bursts(entry: u64) -> Vec<(Burst, Vec<Gap>)> {
        (0..16u64)
            .map(|index| {
                let at = |hit: u64| index * 1_000_000 + hit * 200_000;
                let gaps = (0..4).map(|hit| (at(hit), at(hit) + 20 + entry + 700 + index % 5));
                let burst = Burst {
                    hits: 4,
                    program_ns: 4 * 700,
                    times: (0..4).map(|hit| at(hit) + entry / 2).collect(),
                };
                (burst, gaps.collect())
            })
            .collect()
    }

    #[test]
    fn a_sample_costs_what_the_gap_has_beside_the_program() {
        let price = price_of_samples(&bursts(2_000), 20).unwrap();
        assert!((2_000.0..2_005.0).contains(&price.ns), "{price:?}");
        assert!(price.low >= 2_000.0 && price.high <= 2_004.0);
        assert!(!price.is_bound);
    }

    #[test]
    fn other_interruptions_are_no_samples() {
        let mut noisy = bursts(2_000);
        for (index, (burst, gaps)) in noisy.iter_mut().enumerate() {
            // The tick: no sample in it.
            gaps.push((
                index as u64 * 1_000_000 + 50_000,
                index as u64 * 1_000_000 + 58_000,
            ));
            // The hypervisor, while a sample is taken; and two samples in one gap.
            if index % 3 == 0 {
                gaps[0].1 += 5_000_000;
                burst.times.push(gaps[1].0 + 1);
            }
        }
        let price = price_of_samples(&noisy, 20).unwrap();
        assert!((2_000.0..2_005.0).contains(&price.ns), "{price:?}");
    }

    #[test]
    fn without_samples_there_is_no_price() {
        assert_eq!(price_of_samples(&[], 20), None);
        let silent = vec![(Burst::default(), vec![(5, 5_000)]); 16];
        assert_eq!(price_of_samples(&silent, 20), None);
    }

    /// Batches of switches that take `ns` at a pace of 1, where a round of the
    /// yardstick takes 400 ns; every third is disturbed by something else, now
    /// in the one part and now in the other.
    fn batches(ns: f64, noise: f64, pace: f64) -> Vec<Batch> {
        (0..200)
            .map(|index| {
                let disturbed = |phase: i32| if index % 6 == phase { 50_000.0 } else { 0.0 };
                let noise = noise * f64::from(index * 7 % 11 - 5) / 11.0;
                Batch {
                    switch_ns: (ns + noise) * pace + disturbed(0),
                    yardstick_ns: 400.0 * pace + disturbed(3),
                }
            })
            .collect()
    }

    #[test]
    fn a_call_costs_the_difference_at_whatever_pace() {
        for pace in [1.0, 1.7, 0.6] {
            let bare = batches(1_500.0, 40.0, 1.0);
            let price = between(&bare, &batches(1_560.0, 40.0, pace)).unwrap();
            assert!((price.low..=price.high).contains(&price.ns), "{price:?}");
            // The price is given at the pace of the second.
            assert!((price.ns / pace - 60.0).abs() < 10.0, "{price:?}");
            assert!(!price.is_bound);
        }
    }

    #[test]
    fn a_call_that_noise_exceeds_is_given_as_a_bound() {
        let bare = batches(1_500.0, 2_000.0, 1.0);
        let price = between(&bare, &batches(1_510.0, 2_000.0, 1.0)).unwrap();
        assert!(price.is_bound);
        assert_eq!(price.ns, price.high);
        // Switches that got faster by more than the noise say nothing.
        let faster = batches(900.0, 4.0, 1.0);
        assert_eq!(between(&batches(1_500.0, 4.0, 1.0), &faster), None);
        assert_eq!(between(&[], &faster), None);
    }

    #[test]
    fn quantiles_have_intervals_that_hold_them() {
        let mut values: Vec<f64> = (0..100).rev().map(f64::from).collect();
        let quarter = quantile(&mut values, 0.25).unwrap();
        assert_eq!((quarter.at, quarter.low, quarter.high), (25.0, 16.0, 34.0));
        assert_eq!(quantile(&mut [1.0; 5], 0.5), None);
    }

    #[test]
    fn two_threads_switch_and_the_loop_ends() {
        let mut calibration = Calibration::begin(&[0, 1, 2, 3]);
        assert!(calibration.cpu.is_some());
        calibration.before_switch();
        assert!(calibration.bare.iter().all(|batch| {
            batch.switch_ns > 0.0 && batch.switch_ns.is_finite() && batch.yardstick_ns > 0.0
        }));
        let turn_ns = turn();
        let begin = monotonic_ns();
        for (from, to) in spin(turn_ns) {
            assert!(from >= begin && to > from + turn_ns);
        }
        assert!(monotonic_ns() - begin >= SPIN_NS);
    }
}
