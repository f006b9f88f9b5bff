//! Time lost to jiffies. A timer of the timer wheel expires at a tick, so a wait
//! takes whole jiffies. How long the task wanted to wait is not visible: the
//! kernel had made jiffies of it before. Of a wait of n jiffies it is known to
//! have been more than n - 1 and at most n.

use serde::{Deserialize, Serialize};

use crate::recording::{Evidence, Ledger, Ticks, TimerWaits};

/// Tick rates that are compared.
pub const RATES: [u32; 4] = [100, 250, 300, 1000];

/// Waits for the timer wheel, and what another tick rate would make of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timers {
    /// Length of a jiffy.
    pub jiffy_ns: u64,
    /// Waits that a timer of the timer wheel ended.
    pub rounded_waits: u64,
    /// How long they took.
    pub waited_ns: u64,
    /// The part of it that rounding added: the best guess, taking a wait of one
    /// jiffy to ask for as little as there is, and a longer one for half of its
    /// last jiffy.
    pub lost_ns: u64,
    /// The least it can be.
    pub lost_low_ns: u64,
    /// The most it can be.
    pub lost_high_ns: u64,
    /// How these are known.
    pub evidence: Evidence,
    /// The leg that saw the waits; absent in a salvaged recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// What other tick rates would make of the same waits.
    pub at_hz: Vec<AtHz>,
    /// By task and call site, most lost first.
    pub by: Vec<TimerBy>,
    /// The tick itself; absent when no leg watched it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticks: Option<TickCost>,
}

/// The same waits at another tick rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AtHz {
    /// The rate.
    pub hz: u32,
    /// Less time waited; negative when it would be more.
    pub saved_ns: i64,
    /// The least it can be.
    pub saved_low_ns: i64,
    /// The most it can be.
    pub saved_high_ns: i64,
    /// Time in ticks while tasks run, at the price of today's; absent when no leg
    /// watched them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tick_ns: Option<u64>,
}

/// Waits of one task name from one call site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimerBy {
    /// The task's name.
    pub comm: String,
    /// The kernel stack at the start, outermost first, joined by `;`.
    pub stack: String,
    /// Waits.
    pub count: u64,
    /// How long they took.
    pub waited_ns: u64,
    /// The part that rounding added, as in [`Timers::lost_ns`].
    pub lost_ns: u64,
}

/// The machine's ticks and the time in their handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TickCost {
    /// While a task ran.
    pub busy: u64,
    /// Time in their handler.
    pub busy_ns: u64,
    /// On an idle CPU.
    pub idle: u64,
    /// Time in their handler.
    pub idle_ns: u64,
    /// How these are known.
    pub evidence: Evidence,
}

/// Which of the possible lengths a wait is taken to have asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Just more than a jiffy less than it took.
    Least,
    /// As [`Timers::lost_ns`] says.
    Likely,
    /// All of its jiffies.
    Most,
}

/// What a wait of `jiffies` asked for, in jiffies.
fn asked(jiffies: u32, which: Asked) -> f64 {
    let jiffies = f64::from(jiffies.max(1));
    match which {
        Asked::Least => jiffies - 1.0,
        Asked::Likely if jiffies < 2.0 => 0.0,
        Asked::Likely => jiffies - 0.5,
        Asked::Most => jiffies,
    }
}

/// What the timer wheel rounds a wait of so many jiffies up to, in jiffies: one more
/// than the multiple of this that it lies in (kernel/time/timer.c, `calc_index`, since
/// 4.8, commit 500462a9de65). Each of its levels is eight times as coarse as the one
/// before it.
fn granularity(jiffies: f64) -> f64 {
    const LEVELS: i32 = 8;
    let mut level = 0;
    // LVL_START: 63 of the level below.
    while level < LEVELS && jiffies >= 63.0 * 8_f64.powi(level) {
        level += 1;
    }
    8_f64.powi(level)
}

/// How long `waits` take, together, with jiffies of `other_ns` instead of
/// `jiffy_ns`. They begin as far into a jiffy as they do now.
fn elapsed_at(waits: &TimerWaits, jiffy_ns: f64, other_ns: f64, which: Asked) -> f64 {
    let count = waits.count as f64;
    if count == 0.0 {
        return 0.0;
    }
    let mean = waits.elapsed_ns as f64 / count / jiffy_ns;
    let jiffies = f64::from(waits.jiffies.max(1));
    // What the wheel added, and lateness with it.
    let coarse = granularity(jiffies);
    let added = ((mean - jiffies) / coarse).max(0.0);
    let (added, late) = (added.min(1.0), (added - 1.0).max(0.0) * coarse * jiffy_ns);
    let wanted = asked(waits.jiffies, which) * jiffy_ns;
    // No wait is shorter than a jiffy; the epsilon keeps 10 ms at 1000 Hz 10.
    let others = (wanted / other_ns - 1e-9).ceil().max(1.0);
    count * ((others + added * granularity(others)) * other_ns + late)
}

/// The part of the time of `waits` that rounding added.
fn lost(waits: &TimerWaits, jiffy_ns: f64, which: Asked) -> f64 {
    let wanted = asked(waits.jiffies, which) * jiffy_ns * waits.count as f64;
    (waits.elapsed_ns as f64 - wanted).max(0.0)
}

/// The timers' part of the report.
pub(super) fn timers(ledger: &Ledger, hz: u32, legs: (Option<String>, bool)) -> Timers {
    let (leg, ticks_watched) = legs;
    let jiffy_ns = 1e9 / f64::from(hz);
    let sum = |value: &dyn Fn(&TimerWaits) -> f64| ledger.timers.iter().map(value).sum::<f64>();
    let lost_sum = |which| sum(&|waits| lost(waits, jiffy_ns, which)) as u64;
    let elapsed = sum(&|waits| waits.elapsed_ns as f64);
    let ticks = ticks_watched.then(|| tick_cost(ledger.ticks));
    let at_hz = RATES
        .into_iter()
        .filter(|&rate| rate != hz)
        .map(|rate| {
            let other_ns = 1e9 / f64::from(rate);
            let saved = |which| {
                (elapsed - sum(&|waits| elapsed_at(waits, jiffy_ns, other_ns, which))) as i64
            };
            let bounds = [
                saved(Asked::Least),
                saved(Asked::Most),
                saved(Asked::Likely),
            ];
            AtHz {
                hz: rate,
                saved_ns: saved(Asked::Likely),
                saved_low_ns: bounds.into_iter().min().unwrap_or_default(),
                saved_high_ns: bounds.into_iter().max().unwrap_or_default(),
                tick_ns: ticks
                    .map(|ticks| (ticks.busy_ns as f64 * f64::from(rate) / f64::from(hz)) as u64),
            }
        })
        .collect();
    let mut by: Vec<TimerBy> = Vec::new();
    for waits in &ledger.timers {
        let found = by
            .iter()
            .position(|by| by.comm == waits.comm && by.stack == waits.stack);
        let at = found.unwrap_or_else(|| {
            by.push(TimerBy {
                comm: waits.comm.clone(),
                stack: waits.stack.clone(),
                ..TimerBy::default()
            });
            by.len() - 1
        });
        if let Some(by) = by.get_mut(at) {
            by.count = by.count.saturating_add(waits.count);
            by.waited_ns = by.waited_ns.saturating_add(waits.elapsed_ns);
            by.lost_ns = (by.lost_ns).saturating_add(lost(waits, jiffy_ns, Asked::Likely) as u64);
        }
    }
    by.sort_by_key(|by| std::cmp::Reverse(by.lost_ns));
    Timers {
        jiffy_ns: jiffy_ns as u64,
        rounded_waits: ledger
            .timers
            .iter()
            .fold(0, |sum, waits| sum.saturating_add(waits.count)),
        waited_ns: elapsed as u64,
        lost_ns: lost_sum(Asked::Likely),
        lost_low_ns: lost_sum(Asked::Most),
        lost_high_ns: lost_sum(Asked::Least),
        evidence: Evidence::Derived,
        leg,
        at_hz,
        by,
        ticks,
    }
}

fn tick_cost(ticks: Ticks) -> TickCost {
    TickCost {
        busy: ticks.busy,
        busy_ns: ticks.busy_ns,
        idle: ticks.idle,
        idle_ns: ticks.idle_ns,
        evidence: Evidence::Counted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn waits(jiffies: u32, count: u64, each_ns: u64) -> TimerWaits {
        TimerWaits {
            jiffies,
            count,
            elapsed_ns: count * each_ns,
            ..TimerWaits::default()
        }
    }

    fn ledger(timers: Vec<TimerWaits>) -> Ledger {
        Ledger {
            timers,
            ticks: Ticks {
                busy: 100,
                busy_ns: 200_000,
                ..Ticks::default()
            },
            ..Ledger::default()
        }
    }

    fn at(timers: &Timers, hz: u32) -> AtHz {
        *timers.at_hz.iter().find(|at| at.hz == hz).unwrap()
    }

    #[test]
    fn a_chain_of_shortest_waits_goes_with_the_jiffy() {
        // Each begins right after a tick and ends at the next but one, as the wheel
        // keeps it from ending early: 20 ms at 100 Hz.
        let found = timers(&ledger(vec![waits(1, 500, 20_000_000)]), 100, (None, true));
        assert_eq!(found.rounded_waits, 500);
        let faster = at(&found, 1000);
        assert_eq!(faster.saved_ns, 9_000_000_000);
        // At the least: all of a jiffy was wanted, and with the wheel's it is 11 ms.
        assert_eq!(
            (faster.saved_low_ns, faster.saved_high_ns),
            (4_500_000_000, 9_000_000_000)
        );
        assert_eq!(faster.tick_ns, Some(2_000_000));
        // And back.
        let found = timers(&ledger(vec![waits(1, 500, 2_000_000)]), 1000, (None, false));
        assert_eq!(at(&found, 100).saved_ns, -9_000_000_000);
        assert_eq!(at(&found, 100).tick_ns, None);
    }

    #[test]
    fn a_wait_may_have_wanted_all_of_its_jiffies() {
        let found = timers(&ledger(vec![waits(5, 10, 50_000_000)]), 100, (None, false));
        let faster = at(&found, 1000);
        assert_eq!(faster.saved_low_ns, 0);
        assert!(faster.saved_high_ns <= 100_000_000, "{faster:?}");
        assert!(faster.saved_ns > 0);
    }

    #[test]
    fn long_waits_are_rounded_more_coarsely() {
        assert_eq!(
            [62.0, 63.0, 503.0, 504.0].map(granularity),
            [1.0, 8.0, 8.0, 64.0]
        );
        assert_eq!(granularity(1e12), 8_f64.powi(8));
        // 640 ms at 100 Hz end 8 jiffies late at the most, and 64 of 1 ms at 1000 Hz.
        let found = timers(&ledger(vec![waits(64, 1, 720_000_000)]), 100, (None, false));
        let faster = at(&found, 1000);
        assert!(
            (16_000_000..=26_000_000).contains(&faster.saved_high_ns),
            "{faster:?}"
        );
        assert_eq!(faster.saved_low_ns, 16_000_000);
    }

    proptest! {
        #[test]
        fn bounds_hold_the_guess_and_nothing_is_absurd(
            jiffies in any::<u32>(), count in 0_u64..1 << 40, elapsed_ns in 0_u64..1 << 60,
            hz in prop_oneof![Just(100_u32), Just(250), Just(300), Just(1000), Just(24)],
        ) {
            let one = TimerWaits { jiffies, count, elapsed_ns, ..TimerWaits::default() };
            let found = timers(&ledger(vec![one.clone(), one]), hz, (None, false));
            prop_assert!(found.lost_low_ns <= found.lost_ns);
            prop_assert!(found.lost_ns <= found.lost_high_ns);
            for at in found.at_hz {
                prop_assert!(at.saved_low_ns <= at.saved_ns && at.saved_ns <= at.saved_high_ns);
            }
        }
    }
}
