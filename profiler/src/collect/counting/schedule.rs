//! Which places are watched next, and for how long.
//!
//! Some windows look at places in turn, to find those that are hot; the others
//! go to the hot ones, each where it narrows the sum of all calls most. Both are
//! drawn from a random sequence, so that a workload's own rhythm is not met in
//! step.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use profiler_ebpf::hit;

use super::plan::{Kind, Plan};
use crate::kernel::text::CallGraph;
use crate::recording::{GROUPS, Seen};

/// How long an unknown place is looked at, nanoseconds: most are not hit at all,
/// and then time costs nothing. Locks are hot almost for sure.
const LOOK_NS: u64 = 1_000_000;
const LOOK_AT_LOCK_NS: u64 = 60_000;
/// How often a place is looked at in one pass whose function was hit elsewhere,
/// or was sampled: work comes in bursts.
const LOOKS: [u32; 2] = [6, 4];
/// Windows on known places: between these, and so that about this many hits are
/// expected: then they take about as much as the window itself. A longer window
/// sees more of what a workload does by turns.
const SHORTEST_NS: u64 = 30_000;
const LONGEST_NS: u64 = 2_000_000;
const WANTED_HITS: f64 = 36.0;
/// How much longer windows are at most where the workload waits for the most part.
const STRETCH: f64 = 8.0;
/// How often a place is looked at while the workload is not at work, at the most,
/// before that counts.
const MISSES: u8 = 40;
/// How long a workload is at one thing, by and large: longer windows say more than
/// shorter ones up to this.
const TURN_NS: f64 = 200_000.0;
/// Windows on one set of unknown places: aiming takes as much as a window does, and
/// two at different times say more of what comes in bursts than one that is longer.
const LOOK_WINDOWS: u32 = 2;
/// Windows on one set of known places before the next is aimed at.
const WINDOWS: u32 = 4;
/// A place may be hotter than it was seen to be: by this share of all hits for
/// the first window, and less with each.
const DOUBT: f64 = 0.1;
/// How much hits may slow down what is watched, within a window: the time that
/// passed for it is known the worse the more of it they take.
const SLOWEST: f64 = 0.5;
/// How much hotter a place may be than those it is watched together with.
const ALIKE: f64 = 2.0;
/// The share of sets that look for hot places: while there are likely ones that
/// nobody has looked at, while there are others, and later.
const LOOKING: [f64; 3] = [0.85, 0.4, 0.15];

/// Places to be watched together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    /// Indexes of places.
    pub(super) places: Vec<usize>,
    /// How long a window is.
    pub(super) window_ns: u64,
    /// How many there are.
    pub(super) windows: u32,
}

/// A window that is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The group its counts go to.
    pub(super) group: u8,
    /// Time that passed in it for the workload, nanoseconds.
    pub(super) ns: f64,
    /// How much of the run it stands for.
    pub(super) weight: f64,
    /// Whether the workload was at work in it.
    pub(super) met: bool,
}

/// What became of a place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Looked {
    /// It takes no breakpoint.
    pub(super) refused: bool,
    /// How likely it seemed to be hot before it was looked at, least first.
    pub(super) likely: u8,
    /// What was seen; nothing when it was not looked at.
    pub(super) seen: Vec<Seen>,
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
    /// Its function is called by one that is called by one that was met.
    Far,
    /// Its function is of a subsystem that most workloads go through with
    /// interrupts off, where no sample meets it.
    Common,
    /// Its function is called by one that was met.
    Near,
    /// Its function was sampled.
    Likely,
    /// Its function is a lock's.
    Lock,
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
    /// Its rank when it was looked at first.
    looked_as: Option<usize>,
    /// The pass in which it is to be looked at next.
    pass: u32,
    windows: u32,
    /// Windows beside these in which the workload was not at work.
    misses: u8,
    /// What they were worth, in windows that are long enough.
    turns: f64,
    ns: f64,
    /// How many calls each hit stands for.
    calls: f64,
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
    /// count is off by about as much as it is. `total` is the rate of all places.
    fn worth(&self, total: f64) -> f64 {
        let turns = self.turns.max(0.2);
        let rate = self.calls * self.rate() + DOUBT * total / turns.max(1.0);
        rate.powi(2) / (turns * (turns + 1.0))
    }

    fn rank(&self) -> usize {
        2 * self.prior as usize + usize::from(self.first)
    }

    fn is_open(&self) -> bool {
        !self.refused && self.hits == 0.0
    }

    /// Adds what a window saw of it.
    fn add(&mut self, window: &Window, hits: [u64; hit::COUNT]) {
        let index = match self.seen.iter().position(|seen| seen.group == window.group) {
            Some(index) => index,
            None => {
                self.seen.push(Seen {
                    group: window.group,
                    ..Seen::default()
                });
                self.seen.len() - 1
            }
        };
        let seen = &mut self.seen[index];
        seen.ns += window.weight * window.ns;
        for (sum, more) in seen.hits.iter_mut().zip(hits) {
            *sum += window.weight * more as f64;
        }
    }
}

/// A function with places.
#[derive(Clone, Debug, Default)]
struct Function {
    /// The most likely that it was said to be hot since this was begun.
    prior: Prior,
    places: Vec<usize>,
}

fn places_of(functions: &HashMap<u64, Function, FixedState>, function: u64) -> Vec<usize> {
    let function = functions.get(&function);
    function.map_or_else(Vec::new, |function| function.places.clone())
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
    /// Functions with places, by address.
    functions: HashMap<u64, Function, FixedState>,
    callees: CallGraph,
    /// Functions that were met, and those they call: what follows from that is
    /// worked out once.
    met: HashSet<u64, FixedState>,
    near: HashSet<u64, FixedState>,
    windows: u64,
    /// The sum of their weights.
    weights: f64,
    /// The share of them, lately, in which the workload was at work.
    met_share: f64,
    random: fastrand::Rng,
}

impl Schedule {
    /// Takes the call graph out of the plan: nobody else needs it.
    pub(super) fn new(plan: &mut Plan, seed: u64) -> Self {
        let mut functions: HashMap<u64, Function, FixedState> = HashMap::default();
        for (index, place) in plan.places.iter().enumerate() {
            let function = functions.entry(place.function).or_default();
            function.places.push(index);
        }
        let known = plan
            .places
            .iter()
            .enumerate()
            .map(|(index, place)| Known {
                refused: place.out_of_reach,
                first: functions[&place.function].places[0] == index,
                function: place.function,
                calls: place.calls.len() as f64,
                core: place.kind == Kind::Lock,
                // What takes no breakpoint is interrupt and idle entry for the most
                // part: nothing says that it is hot.
                prior: match place.kind {
                    _ if place.out_of_reach => Prior::None,
                    Kind::Lock => Prior::Lock,
                    Kind::Common => Prior::Common,
                    Kind::Other => Prior::None,
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
            functions,
            callees: std::mem::take(&mut plan.callees),
            met: HashSet::default(),
            near: HashSet::default(),
            windows: 0,
            weights: 0.0,
            met_share: 1.0,
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
    fn raise_function(&mut self, address: u64, prior: Prior) {
        let Some(function) = self.functions.get_mut(&address) else {
            return;
        };
        if function.prior >= prior {
            return;
        }
        function.prior = prior;
        // Out and in again, as it is not changed meanwhile.
        let places = std::mem::take(&mut function.places);
        for &place in &places {
            if self.known[place].prior < prior {
                self.raise(place, prior);
            }
        }
        if let Some(function) = self.functions.get_mut(&address) {
            function.places = places;
        }
    }

    /// Tells of functions that were sampled, by address.
    pub(super) fn hint(&mut self, functions: &[u64]) {
        for &function in functions {
            self.met(function, Prior::Likely);
        }
    }

    /// A function is executed: then what it calls may well be.
    fn met(&mut self, function: u64, prior: Prior) {
        self.raise_function(function, prior);
        if !self.met.insert(function) {
            return;
        }
        let callees = std::mem::take(&mut self.callees);
        let called_by = |function: &u64| callees.get(function).into_iter().flatten();
        for near in called_by(&function) {
            self.raise_function(*near, Prior::Near);
            if self.near.insert(*near) {
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
        let likely = &self.queues[2 * Prior::Common as usize..];
        let looking = match self.passes {
            0 if likely.iter().any(|queue| !queue.is_empty()) => LOOKING[0],
            0 => LOOKING[1],
            _ => LOOKING[2],
        };
        if self.random.f64() >= looking
            && let Some(set) = self.hot(breakpoints, hit_ns)
        {
            return Some(set);
        }
        let places = self.unknown(breakpoints);
        if places.is_empty() {
            // Every place is hot.
            return self.hot(breakpoints, hit_ns);
        }
        // One that was not hit at once is none of those that are hot almost for sure.
        let lock = places
            .iter()
            .any(|&place| self.known[place].core && self.known[place].windows == 0);
        Some(Set {
            places,
            window_ns: self.stretched(if lock { LOOK_AT_LOCK_NS } else { LOOK_NS }),
            windows: if lock { 1 } else { LOOK_WINDOWS },
        })
    }

    /// The places that are worth a window most.
    fn hot(&mut self, breakpoints: usize, hit_ns: f64) -> Option<Set> {
        // Each option's sum is to be known about as well, in its own measure.
        let mut totals = vec![0.0; self.options];
        for &index in &self.hot {
            let known = &self.known[index];
            totals[known.option] += known.calls * known.rate();
        }
        let mut hot: Vec<(f64, usize)> = Vec::with_capacity(self.hot.len());
        for &index in &self.hot {
            let known = &self.known[index];
            // So that equals take turns, and the same ones do not stay together.
            let luck = 0.5 + self.random.f64();
            let total = totals[known.option];
            hot.push((luck * known.worth(total) / total, index));
        }
        hot.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut places: Vec<usize> = Vec::new();
        let mut rate = 0.0;
        for (_, index) in hot {
            let more = self.known[index].rate();
            // One that is much hotter would make the window too short for the first.
            let fits = more <= ALIKE * rate && (rate + more) * hit_ns <= SLOWEST;
            if places.is_empty() || fits {
                places.push(index);
                rate += more;
            }
            if places.len() == breakpoints {
                break;
            }
        }
        (!places.is_empty()).then(|| Set {
            places,
            window_ns: ((WANTED_HITS / rate) as u64).clamp(SHORTEST_NS, self.stretched(LONGEST_NS)),
            windows: WINDOWS,
        })
    }

    /// The length of a window where the workload waits for the most part: there
    /// windows take next to nothing, and short ones would seldom meet it at work.
    fn stretched(&self, ns: u64) -> u64 {
        (ns as f64 * self.met_share.powi(-2).min(STRETCH)) as u64
    }

    /// The next places to look at.
    fn unknown(&mut self, breakpoints: usize) -> Vec<usize> {
        let mut places = self.queued(breakpoints);
        if places.is_empty() {
            self.passes += 1;
            self.fill();
            places = self.queued(breakpoints);
        }
        places
    }

    /// The next places of this pass.
    fn queued(&mut self, breakpoints: usize) -> Vec<usize> {
        let mut places = Vec::new();
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

    /// A window that is over, which stands for so much of the run. All of its places
    /// go to one group, as what they have in common is to show.
    pub(super) fn window(&mut self, ns: f64, weight: f64, met: bool) -> Window {
        self.windows += 1;
        self.weights += weight;
        self.met_share += (f64::from(u8::from(met)) - self.met_share) / 32.0;
        Window {
            group: (self.windows % GROUPS as u64) as u8,
            ns,
            weight,
            met,
        }
    }

    /// Adds what a window saw of a place.
    pub(super) fn record(&mut self, place: usize, window: &Window, hits: [u64; hit::COUNT]) {
        let known = &mut self.known[place];
        let rank = known.rank();
        known.looked_as.get_or_insert(rank);
        let total = hits.iter().sum::<u64>() as f64;
        let missed = !window.met && known.is_open() && total == 0.0;
        if missed && known.misses < MISSES {
            // That says nothing of the place, which has its turn again.
            known.misses += 1;
            known.pass = self.passes;
            self.queues[rank].insert(0, place);
            known.add(window, hits);
            return;
        }
        known.windows += 1;
        known.turns += (window.ns / TURN_NS).min(1.0);
        known.ns += window.ns;
        let news = if known.hits == 0.0 && total > 0.0 {
            self.hot.push(place);
            Some(Prior::Beside)
        } else if known.first && known.windows == 1 && known.prior <= Prior::Far {
            // Of a function that is executed some other place may be hot.
            Some(Prior::Cold)
        } else {
            let again = match known.prior {
                Prior::Beside => known.windows < LOOKS[0],
                Prior::Likely | Prior::Lock => known.windows < LOOKS[1],
                _ => false,
            };
            if again && known.is_open() {
                known.pass = self.passes;
                self.queues[known.rank()].insert(0, place);
            }
            None
        };
        known.hits += total;
        known.add(window, hits);
        let function = known.function;
        match news {
            Some(Prior::Beside) => self.met(function, Prior::Beside),
            Some(prior) => {
                for place in places_of(&self.functions, function) {
                    if self.known[place].prior < Prior::Beside {
                        self.raise(place, prior);
                    }
                }
            }
            None => {}
        }
    }

    /// What became of each place.
    pub(super) fn finish(self) -> Vec<Looked> {
        let scale = if self.weights > 0.0 {
            self.windows as f64 / self.weights
        } else {
            1.0
        };
        let scaled = |seen: Seen| Seen {
            ns: seen.ns * scale,
            hits: seen.hits.map(|hits| hits * scale),
            ..seen
        };
        self.known
            .into_iter()
            .map(|known| Looked {
                refused: known.refused,
                likely: known.looked_as.unwrap_or_else(|| known.rank()) as u8,
                seen: known.seen.into_iter().map(scaled).collect(),
            })
            .collect()
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
