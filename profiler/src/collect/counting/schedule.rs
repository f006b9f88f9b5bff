//! Which places are watched next, and for how long.
//!
//! Some windows look at places in turn, to find those that are hot; the others
//! go to the hot ones, each where it narrows the sum of all calls most. Both are
//! drawn from a random sequence, so that a workload's own rhythm is not met in
//! step.

use std::collections::HashMap;

use profiler_ebpf::hit;

use super::plan::Plan;
use crate::recording::{GROUPS, Seen};

/// How long an unknown place is looked at, nanoseconds.
const LOOK_NS: u64 = 250_000;
/// Windows on known places: between these, and so that about this many hits are
/// expected. A hit takes about as long as a whole window's fixed cost in thirty.
const SHORTEST_NS: u64 = 100_000;
const LONGEST_NS: u64 = 2_000_000;
const WANTED_HITS: f64 = 24.0;
/// Windows on one set of known places before the next is aimed at.
const WINDOWS: u32 = 3;
/// How much hits may slow down what is watched, within a window: the time that
/// passed for it is known the worse the more of it they take.
const SLOWEST: f64 = 0.5;
/// The share of windows that look for hot places: while there are places nobody
/// has looked at, and later.
const LOOKING: [f64; 2] = [0.7, 0.2];

/// Places to be watched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// Indexes of places.
    pub(super) places: Vec<usize>,
    /// How long a window is.
    pub(super) window_ns: u64,
    /// How many there are.
    pub(super) windows: u32,
    /// The group their counts go to.
    pub(super) group: u8,
}

/// How likely a place is hot that nobody has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Prior {
    #[default]
    None,
    /// Its function is called by one that is called by one that was sampled.
    Far,
    /// Its function is called by one that was sampled.
    Near,
    /// Its function was sampled, or is one that most code calls.
    Likely,
}

#[derive(Clone, Debug, Default)]
struct Known {
    refused: bool,
    prior: Prior,
    option: usize,
    windows: u32,
    ns: f64,
    /// All hits, the target's and others'.
    hits: f64,
    seen: Vec<Seen>,
}

impl Known {
    /// Hits per nanosecond.
    fn rate(&self) -> f64 {
        if self.ns > 0.0 {
            self.hits / self.ns
        } else {
            0.0
        }
    }

    /// How much of the sum's variance another window takes away: a window's
    /// count is off by about as much as it is.
    fn worth(&self) -> f64 {
        let windows = f64::from(self.windows.max(1));
        self.rate().powi(2) / (windows * (windows + 1.0))
    }

    fn is_open(&self) -> bool {
        !self.refused && self.hits == 0.0
    }
}

/// Draws sets.
#[derive(Debug)]
pub(super) struct Schedule {
    known: Vec<Known>,
    /// Places still to be looked at in this pass, the last one next.
    queue: Vec<usize>,
    passes: u32,
    /// Places that were hit, and that take a breakpoint.
    hot: Vec<usize>,
    /// Options have lower numbers.
    options: usize,
    /// Places by the function they lie in, and functions by their callers.
    by_function: HashMap<u64, Vec<usize>>,
    callees: HashMap<u64, Vec<u64>>,
    sets: u64,
    random: fastrand::Rng,
}

impl Schedule {
    pub(super) fn new(plan: &Plan, seed: u64) -> Self {
        let mut by_function: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, place) in plan.places.iter().enumerate() {
            by_function.entry(place.function).or_default().push(index);
        }
        let known = plan
            .places
            .iter()
            .map(|place| Known {
                refused: place.out_of_reach,
                prior: if place.core {
                    Prior::Likely
                } else {
                    Prior::None
                },
                option: plan.targets[place.target].option,
                ..Known::default()
            })
            .collect();
        let mut schedule = Self {
            known,
            queue: Vec::new(),
            hot: Vec::new(),
            options: plan.targets.iter().map(|t| t.option + 1).max().unwrap_or(0),
            passes: 0,
            by_function,
            callees: plan.callees.clone(),
            sets: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        schedule.fill();
        schedule
    }

    /// Begins a pass over all places that are not known to be hot.
    fn fill(&mut self) {
        self.queue = (0..self.known.len())
            .filter(|&index| self.known[index].is_open())
            .collect();
        self.random.shuffle(&mut self.queue);
        self.sort();
    }

    fn sort(&mut self) {
        let known = &self.known;
        self.queue.sort_by_key(|&index| known[index].prior);
    }

    /// Tells of functions that were sampled, by address.
    pub(super) fn hint(&mut self, functions: &[u64]) {
        let mut raise = |function: u64, prior: Prior| {
            for &place in self.by_function.get(&function).into_iter().flatten() {
                let known = &mut self.known[place];
                known.prior = known.prior.max(prior);
            }
        };
        for function in functions {
            raise(*function, Prior::Likely);
            for near in self.callees.get(function).into_iter().flatten() {
                raise(*near, Prior::Near);
                for far in self.callees.get(near).into_iter().flatten() {
                    raise(*far, Prior::Far);
                }
            }
        }
        self.sort();
    }

    /// A random share of `most`.
    pub(super) fn some_of(&mut self, most: f64) -> f64 {
        most * self.random.f64()
    }

    /// A random one of so many.
    pub(super) fn one_of(&mut self, count: usize) -> usize {
        self.random.usize(..count.max(1))
    }

    /// The next set for so many breakpoints. `None` when there is no place left.
    pub(super) fn draw(&mut self, breakpoints: usize, hit_ns: f64) -> Option<Set> {
        let group = (self.sets % GROUPS as u64) as u8;
        self.sets += 1;
        let looking = LOOKING[usize::from(self.passes > 0)];
        if self.random.f64() >= looking
            && let Some((places, rate)) = self.hot(breakpoints, hit_ns)
        {
            return Some(Set {
                places,
                window_ns: ((WANTED_HITS / rate) as u64).clamp(SHORTEST_NS, LONGEST_NS),
                windows: WINDOWS,
                group,
            });
        }
        let places = self.unknown(breakpoints);
        if places.is_empty() {
            // Every place is hot.
            let (places, rate) = self.hot(breakpoints, hit_ns)?;
            return Some(Set {
                places,
                window_ns: ((WANTED_HITS / rate) as u64).clamp(SHORTEST_NS, LONGEST_NS),
                windows: WINDOWS,
                group,
            });
        }
        Some(Set {
            places,
            window_ns: LOOK_NS,
            windows: 1,
            group,
        })
    }

    /// The places that are worth a window most, and their rate together.
    fn hot(&mut self, breakpoints: usize, hit_ns: f64) -> Option<(Vec<usize>, f64)> {
        // Each option's sum is to be known about as well, in its own measure.
        let mut totals = vec![0.0; self.options];
        for &index in &self.hot {
            totals[self.known[index].option] += self.known[index].rate();
        }
        let mut hot: Vec<(f64, usize)> = Vec::with_capacity(self.hot.len());
        for &index in &self.hot {
            let known = &self.known[index];
            // So that equals take turns, and the same ones do not stay together.
            let luck = 0.5 + self.random.f64();
            hot.push((luck * known.worth() / totals[known.option], index));
        }
        hot.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut places = Vec::new();
        let mut rate = 0.0;
        for (_, index) in hot {
            let more = self.known[index].rate();
            if places.is_empty() || (rate + more) * hit_ns <= SLOWEST {
                places.push(index);
                rate += more;
            }
            if places.len() == breakpoints {
                break;
            }
        }
        (!places.is_empty()).then_some((places, rate))
    }

    /// The next places to look at.
    fn unknown(&mut self, breakpoints: usize) -> Vec<usize> {
        let mut places = Vec::new();
        if self.queue.is_empty() {
            self.passes += 1;
            self.fill();
        }
        while places.len() < breakpoints
            && let Some(index) = self.queue.pop()
        {
            if self.known[index].is_open() {
                places.push(index);
            }
        }
        places
    }

    /// The kernel takes no breakpoint there.
    pub(super) fn refuse(&mut self, place: usize) {
        self.known[place].refused = true;
        self.hot.retain(|hot| *hot != place);
    }

    /// Adds what a window saw of a place.
    pub(super) fn record(&mut self, place: usize, group: u8, ns: f64, hits: [u64; hit::COUNT]) {
        let known = &mut self.known[place];
        known.windows += 1;
        known.ns += ns;
        let total = hits.iter().sum::<u64>() as f64;
        if known.hits == 0.0 && total > 0.0 {
            self.hot.push(place);
        }
        known.hits += total;
        let index = match known.seen.iter().position(|seen| seen.group == group) {
            Some(index) => index,
            None => {
                known.seen.push(Seen {
                    group,
                    ..Seen::default()
                });
                known.seen.len() - 1
            }
        };
        let seen = &mut known.seen[index];
        seen.ns += ns;
        for (sum, more) in seen.hits.iter_mut().zip(hits) {
            *sum += more;
        }
    }

    /// For each place whether it was refused, and what was seen.
    pub(super) fn finish(self) -> Vec<(bool, Vec<Seen>)> {
        self.known
            .into_iter()
            .map(|known| (known.refused, known.seen))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::counting::plan::{Place, Target};

    fn plan(count: usize) -> Plan {
        let place = |index: usize| Place {
            address: index as u64,
            target: 0,
            entry: false,
            out_of_reach: index % 10 == 9,
            function: index as u64 / 2,
            core: index < 20,
        };
        Plan {
            targets: vec![Target {
                symbol: "debug_smp_processor_id".to_owned(),
                address: 0,
                inlined: 1,
                option: 0,
            }],
            places: (0..count).map(place).collect(),
            callees: HashMap::from([(50, vec![60]), (60, vec![70])]),
        }
    }

    /// Plays a workload whose places are hit at fixed rates, per nanosecond.
    fn play(rates: &[f64], sets: usize, seed: u64) -> Vec<(bool, Vec<Seen>)> {
        let plan = plan(rates.len());
        let mut schedule = Schedule::new(&plan, seed);
        for _ in 0..sets {
            let set = schedule.draw(4, 1_000.0).unwrap();
            for _ in 0..set.windows {
                for &place in &set.places {
                    assert!(!plan.places[place].out_of_reach);
                    let ns = set.window_ns as f64;
                    let hits = (rates[place] * ns).round() as u64;
                    schedule.record(place, set.group, ns, [0, hits, 0, 0]);
                }
            }
        }
        schedule.finish()
    }

    #[test]
    fn what_was_sampled_is_looked_at_first() {
        let mut schedule = Schedule::new(&plan(200), 5);
        schedule.hint(&[50]);
        let mut order = Vec::new();
        while order.len() < 25 {
            order.extend(schedule.unknown(4));
        }
        let position = |place: usize| order.iter().position(|index| *index == place).unwrap();
        // Locks and the function itself, then what it calls, then what that calls.
        assert!(position(100) < 20 && position(101) < 20);
        assert!(position(120).max(position(121)) < position(140).min(position(141)));
        assert!(position(120) >= 18);
    }

    #[test]
    fn every_place_is_looked_at_and_the_hot_ones_most() {
        let mut rates = vec![0.0; 200];
        rates[100] = 3e-4;
        rates[150] = 1e-4;
        let seen = play(&rates, 400, 7);
        let time = |index: usize| seen[index].1.iter().map(|seen| seen.ns).sum::<f64>();
        for index in (0..200).filter(|index| index % 10 != 9) {
            assert!(time(index) > 0.0, "{index}");
        }
        assert!(time(100) > 10.0 * time(3) && time(150) > 5.0 * time(3));
        assert_eq!(time(9), 0.0);
    }

    #[test]
    fn sums_of_rates_come_out_right() {
        let rates: Vec<f64> = (0..60).map(|index| 2e-4 / f64::from(1 + index)).collect();
        let seen = play(&rates, 2_000, 3);
        for (index, (_, seen)) in seen.iter().enumerate() {
            let ns: f64 = seen.iter().map(|seen| seen.ns).sum();
            let hits: u64 = seen.iter().map(|seen| seen.hits[1]).sum();
            if index % 10 != 9 && rates[index] > 4e-6 {
                let rate = hits as f64 / ns;
                assert!((rate / rates[index] - 1.0).abs() < 0.15, "{index}: {rate}");
            }
            assert!(seen.iter().all(|seen| usize::from(seen.group) < GROUPS));
        }
    }

    #[test]
    fn places_that_are_refused_are_left_alone() {
        let mut schedule = Schedule::new(&plan(8), 1);
        for index in 0..8 {
            schedule.refuse(index);
        }
        assert_eq!(schedule.draw(4, 1_000.0), None);
    }
}
