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

/// How long an unknown place is looked at, nanoseconds: most are not hit at all,
/// and then time costs nothing. Locks are hot almost for sure.
const LOOK_NS: u64 = 1_000_000;
const LOOK_AT_LOCK_NS: u64 = 60_000;
/// How often a place is looked at in one pass whose function was hit elsewhere,
/// or was sampled: work comes in bursts.
const LOOKS: [u32; 2] = [4, 2];
/// Windows on known places: between these, and so that about this many hits are
/// expected. A hit takes about as long as a whole window's fixed cost in thirty.
const SHORTEST_NS: u64 = 40_000;
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

/// How likely a place is hot that nobody has looked at, least first. Of a
/// function one place is looked at before the others: when it is not hit, the
/// others hardly are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Prior {
    /// Its function was looked at, and not hit.
    Cold,
    #[default]
    None,
    /// Its function is called by one that is called by one that was sampled.
    Far,
    /// Its function is called by one that was sampled.
    Near,
    /// Its function was sampled, or is one that most code calls.
    Likely,
    /// Another place of its function was hit.
    Beside,
}

/// Ranks of places: by [`Prior`], and the first of a function before others.
const RANKS: usize = 2 * (Prior::Beside as usize + 1);

#[derive(Clone, Debug, Default)]
struct Known {
    refused: bool,
    prior: Prior,
    /// It is the place of its function that is looked at first.
    first: bool,
    core: bool,
    function: u64,
    option: usize,
    /// The pass in which it is to be looked at next.
    pass: u32,
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

    fn rank(&self) -> usize {
        2 * self.prior as usize + usize::from(self.first)
    }

    fn is_open(&self) -> bool {
        !self.refused && self.hits == 0.0
    }
}

/// Draws sets.
#[derive(Debug)]
pub(super) struct Schedule {
    known: Vec<Known>,
    /// Places still to be looked at in this pass, by rank; the last one of the
    /// highest rank is next. A place whose rank has changed is in several.
    queues: [Vec<usize>; RANKS],
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
            .enumerate()
            .map(|(index, place)| Known {
                refused: place.out_of_reach,
                first: by_function[&place.function][0] == index,
                function: place.function,
                core: place.core,
                prior: if place.core {
                    Prior::Likely
                } else {
                    Prior::None
                },
                option: plan.targets[place.calls[0].target].option,
                ..Known::default()
            })
            .collect();
        let mut schedule = Self {
            known,
            queues: Default::default(),
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
        let mut order: Vec<usize> = (0..self.known.len()).collect();
        self.random.shuffle(&mut order);
        for index in order {
            if self.known[index].is_open() {
                self.known[index].pass = self.passes;
                self.queues[self.known[index].rank()].push(index);
            }
        }
    }

    /// Changes how likely a place is hot.
    fn raise(&mut self, place: usize, prior: Prior) {
        let known = &mut self.known[place];
        if known.prior != prior && known.is_open() {
            known.prior = prior;
            let rank = known.rank();
            self.queues[rank].push(place);
        }
    }

    /// Makes it at least this likely that the places of a function are hot.
    fn raise_function(&mut self, function: u64, prior: Prior) {
        // In and out again, as it is not changed meanwhile.
        if let Some(places) = self.by_function.remove(&function) {
            for &place in &places {
                if self.known[place].prior < prior {
                    self.raise(place, prior);
                }
            }
            self.by_function.insert(function, places);
        }
    }

    /// Tells of functions that were sampled, by address.
    pub(super) fn hint(&mut self, functions: &[u64]) {
        let callees = std::mem::take(&mut self.callees);
        let called_by = |function: &u64| callees.get(function).into_iter().flatten();
        for function in functions {
            self.raise_function(*function, Prior::Likely);
            for near in called_by(function) {
                self.raise_function(*near, Prior::Near);
                for far in called_by(near) {
                    self.raise_function(*far, Prior::Far);
                }
            }
        }
        self.callees = callees;
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
            && let Some(set) = self.hot(breakpoints, hit_ns, group)
        {
            return Some(set);
        }
        let places = self.unknown(breakpoints);
        if places.is_empty() {
            // Every place is hot.
            return self.hot(breakpoints, hit_ns, group);
        }
        let lock = places.iter().any(|&place| self.known[place].core);
        Some(Set {
            places,
            window_ns: if lock { LOOK_AT_LOCK_NS } else { LOOK_NS },
            windows: 1,
            group,
        })
    }

    /// The places that are worth a window most.
    fn hot(&mut self, breakpoints: usize, hit_ns: f64, group: u8) -> Option<Set> {
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
        (!places.is_empty()).then(|| Set {
            places,
            window_ns: ((WANTED_HITS / rate) as u64).clamp(SHORTEST_NS, LONGEST_NS),
            windows: WINDOWS,
            group,
        })
    }

    /// The next places to look at.
    fn unknown(&mut self, breakpoints: usize) -> Vec<usize> {
        let mut places = Vec::new();
        if self.queues.iter().all(Vec::is_empty) {
            self.passes += 1;
            self.fill();
        }
        for rank in (0..RANKS).rev() {
            while places.len() < breakpoints
                && let Some(index) = self.queues[rank].pop()
            {
                let known = &mut self.known[index];
                // Once in a pass, and at its latest rank.
                if known.is_open() && known.rank() == rank && known.pass == self.passes {
                    known.pass = self.passes + 1;
                    places.push(index);
                }
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
        let news = if known.hits == 0.0 && total > 0.0 {
            self.hot.push(place);
            Some(Prior::Beside)
        } else if known.first && known.windows == 1 {
            Some(Prior::Cold)
        } else {
            let again = match known.prior {
                Prior::Beside => known.windows < LOOKS[0],
                Prior::Likely => known.windows < LOOKS[1],
                _ => false,
            };
            if again && known.is_open() {
                known.pass = self.passes;
                self.queues[known.rank()].insert(0, place);
            }
            None
        };
        known.hits += total;
        let function = known.function;
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
        match news {
            Some(Prior::Beside) => self.raise_function(function, Prior::Beside),
            Some(prior) => {
                for place in self.by_function.get(&function).cloned().unwrap_or_default() {
                    if self.known[place].prior < Prior::Beside {
                        self.raise(place, prior);
                    }
                }
            }
            None => {}
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
    use crate::collect::counting::plan::{Call, Place, Target};

    fn plan(count: usize) -> Plan {
        let place = |index: usize| Place {
            address: index as u64,
            entry: false,
            out_of_reach: index % 10 == 9,
            function: index as u64 / 2,
            core: index < 20,
            calls: vec![Call {
                address: index as u64,
                target: 0,
                deeper: 0,
            }],
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
        // Locks and the function itself, then what it calls, then what that calls;
        // of each the first place before the other.
        assert!(position(100) < position(101) && position(101) < 20);
        assert!(position(120) < position(121) && position(121) < position(140));
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
        let (mut sum, mut truth) = (0.0, 0.0);
        for (index, (_, seen)) in seen.iter().enumerate() {
            let ns: f64 = seen.iter().map(|seen| seen.ns).sum();
            let hits: u64 = seen.iter().map(|seen| seen.hits[1]).sum();
            // Of a rate so low that a window's hits are rounded to nothing, nothing
            // is known here.
            if index % 10 != 9 && rates[index] > 1e-5 {
                sum += hits as f64 / ns;
                truth += rates[index];
            }
            assert!(seen.iter().all(|seen| usize::from(seen.group) < GROUPS));
        }
        assert!((sum / truth - 1.0).abs() < 0.03, "{sum} {truth}");
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
