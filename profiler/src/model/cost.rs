//! What an option costs, from counted calls: the sum over all places of calls
//! times what a call takes, less what the code would do with the option off.
//!
//! Places that were not looked at in time are taken to be as hot as those that
//! seemed alike before they were looked at; which came first was drawn by lot.
//!
//! How sure the sum is follows from how much it changes when one group of
//! windows is left out (the jackknife), from how well the pace of the code is
//! known, and from what cannot be read off a call site.

use std::collections::BTreeMap;
use std::ops::{Add, Mul};

use super::report::{CallerShare, Calls, Estimate};
use crate::recording::{CountedSite, Counting, Evidence, GROUPS, Recording};

/// Instructions in the caller that a call takes beside those that are read off
/// its place: registers saved around it, and values that cannot stay in the
/// registers a call may change. Compilers save none where enough are free, and
/// up to three (save, restore, and a move) where one is short.
const SPILLS: (f64, f64) = (1.0, 1.0);
/// Student's t for a 95 % interval with one degree of freedom less than groups.
const T95: f64 = 2.093;
/// What 95 % of a uniform distribution's half width is of its deviation.
const UNIFORM: f64 = 1.732;

/// What was counted, ready to be asked for options.
pub(super) struct Costs<'a> {
    counting: &'a Counting,
    /// CPU time that passed for what is watched, nanoseconds, all CPUs together.
    cpu_ns: f64,
    /// The target's part of it, without what probes took of that.
    busy: f64,
}

/// What one option costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cost {
    pub(super) calls: Calls,
    pub(super) ns_per_call: Option<Estimate>,
    pub(super) gain: Option<Estimate>,
    /// Calls of each function.
    pub(super) functions: BTreeMap<String, f64>,
    /// Calls from each place, most first.
    pub(super) callers: Vec<CallerShare>,
}

/// Sums over some places.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Calls per nanosecond.
    calls: f64,
    /// Instructions per nanosecond, without spills.
    instructions: f64,
}

impl Add for Sums {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            instructions: self.instructions + other.instructions,
        }
    }
}

impl Mul<f64> for Sums {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self {
            calls: self.calls * factor,
            instructions: self.instructions * factor,
        }
    }
}

impl<'a> Costs<'a> {
    /// `None` when nothing was counted.
    pub(super) fn new(recording: &'a Recording, target_samples: u64) -> Option<Self> {
        let counting = recording.trailer.counting.as_ref()?;
        let lost = counting.hits as f64 * counting.hit_price.value + counting.thread_ns as f64;
        let cpu_ns = counting.wall_ns as f64 * f64::from(counting.cpus) - lost;
        let kept = recording.samples.len() as u64;
        let all = kept.saturating_add(recording.trailer.idle_samples);
        // The other probes take their time from whatever runs, which without them
        // would have been done sooner.
        let overhead = &recording.trailer.overhead;
        let hits_ns = counting.hits as f64 * counting.hit_price.value;
        let entering_ns = overhead.probe_ns as f64 - hits_ns;
        let probes_ns = probes_ns(overhead.bpf_ns as f64, entering_ns);
        let not_idle_ns = cpu_ns * kept as f64 / all as f64;
        (cpu_ns > 0.0 && all > 0 && target_samples > 0).then(|| Self {
            counting,
            cpu_ns,
            busy: target_samples as f64 / all as f64 * left_by(probes_ns, not_idle_ns),
        })
    }

    /// What an option costs whose checks are these functions. `None` when none of
    /// them was counted.
    pub(super) fn of(&self, checks: &[String]) -> Option<Cost> {
        let counting = self.counting;
        let targets: Vec<u32> = (0..)
            .zip(&counting.targets)
            .filter(|(_, target)| checks.contains(&target.symbol))
            .map(|(index, _)| index)
            .collect();
        if targets.is_empty() {
            return None;
        }
        let sites: Vec<&CountedSite> = counting
            .sites
            .iter()
            .filter(|site| targets.contains(&site.target))
            .collect();
        let counted = self.sums(&sites, None);
        let whole = counted + self.unseen(&sites, None);
        let parts: Vec<Sums> = (0..GROUPS as u8)
            .map(|group| self.sums(&sites, Some(group)) + self.unseen(&sites, Some(group)))
            .collect();
        let error = |of: &dyn Fn(&Sums) -> f64| {
            let values: Vec<f64> = parts.iter().map(of).collect();
            jackknife(&values)
        };
        let calls = estimate(
            whole.calls * self.cpu_ns,
            T95 * error(&|sums| sums.calls) * self.cpu_ns,
            Evidence::Counted,
        );
        let mut cost = Cost {
            calls: Calls {
                value: calls.value,
                low: calls.low,
                high: calls.high,
                evidence: Evidence::Counted,
                coverage: share_of(counted.calls, whole.calls),
            },
            functions: self.functions(&targets),
            callers: self.callers(&sites),
            ..Cost::default()
        };
        if whole.calls > 0.0 && sites.iter().any(|site| site.callee.is_some()) {
            let pace = counting.pace;
            let share =
                |sums: &Sums| (sums.instructions + SPILLS.0 * sums.calls) * pace.value / self.busy;
            let value = share(&whole);
            // Pace and spills are off for all calls alike.
            let relative = (pace.high - pace.low) / (2.0 * pace.value);
            let spills = SPILLS.1 / UNIFORM * whole.calls * pace.value / self.busy;
            let half = (T95 * error(&share))
                .hypot(1.96 * spills)
                .hypot(value * relative);
            let gain = estimate(value, half, Evidence::Derived);
            cost.gain = Some(Estimate {
                high: gain.high.min(1.0),
                ..gain
            });
            let per_call = (whole.instructions / whole.calls + SPILLS.0) * pace.value;
            let half = (SPILLS.1 * pace.value).hypot(per_call * relative);
            cost.ns_per_call = Some(estimate(per_call, half, Evidence::Derived));
        }
        Some(cost)
    }

    /// The sums over places, with one group of windows left out.
    fn sums(&self, sites: &[&CountedSite], without: Option<u8>) -> Sums {
        let mut sums = Sums::default();
        for site in sites {
            let (ns, hits) = seen(site, without);
            if ns <= 0.0 {
                continue;
            }
            let calls = hits.iter().sum::<f64>() / ns;
            sums.calls += calls;
            let callee: f64 = match site.callee {
                Some(callee) => callee
                    .iter()
                    .zip(hits)
                    .map(|(&instructions, hits)| f64::from(instructions) * hits / ns)
                    .sum(),
                // Code that is not understood costs nothing here: at the least.
                None => 0.0,
            };
            let inlined = self.counting.targets.get(site.target as usize);
            let inlined = inlined.map_or(0.0, |target| f64::from(target.inlined));
            let caller = site.caller.unwrap_or(1.0) - inlined;
            sums.instructions += callee + caller * calls;
        }
        sums
    }

    /// What places come to that nobody looked at, or could: as much as those that were and
    /// had seemed as likely to be hot. The jackknife looks at fewer places too.
    fn unseen(&self, sites: &[&CountedSite], without: Option<u8>) -> Sums {
        // By likelihood: what was looked at, and how many were not.
        let mut classes: BTreeMap<u8, (Vec<&CountedSite>, u32)> = BTreeMap::new();
        for site in sites {
            let (looked, missed) = classes.entry(site.likely).or_default();
            if seen(site, without).0 > 0.0 {
                looked.push(site);
            } else {
                *missed += 1;
            }
        }
        let mut unseen = Sums::default();
        let mut alike = Sums::default();
        for (looked, missed) in classes.values() {
            // Where none was, they are taken for those that seemed less likely.
            if !looked.is_empty() {
                alike = self.sums(looked, without) * (1.0 / looked.len() as f64);
            }
            unseen = unseen + alike * f64::from(*missed);
        }
        unseen
    }

    fn functions(&self, targets: &[u32]) -> BTreeMap<String, f64> {
        targets
            .iter()
            .map(|&target| {
                let sites: Vec<&CountedSite> = self
                    .counting
                    .sites
                    .iter()
                    .filter(|site| site.target == target)
                    .collect();
                let sums = self.sums(&sites, None) + self.unseen(&sites, None);
                let calls = sums.calls * self.cpu_ns;
                let symbol = &self.counting.targets[target as usize].symbol;
                (symbol.clone(), calls)
            })
            .collect()
    }

    fn callers(&self, sites: &[&CountedSite]) -> Vec<CallerShare> {
        let mut callers: Vec<CallerShare> = sites
            .iter()
            .filter(|site| !site.entry)
            .filter_map(|site| {
                let sums = self.sums(&[site], None);
                (sums.calls > 0.0).then(|| CallerShare {
                    symbol: site.function.clone(),
                    site: Some(format!("{}+{:#x}", site.function, site.offset)),
                    target: Some(self.counting.targets[site.target as usize].symbol.clone()),
                    calls: Some(sums.calls * self.cpu_ns),
                    samples: 0,
                    share: (sums.instructions + SPILLS.0 * sums.calls) * self.counting.pace.value
                        / self.busy,
                    group: None,
                })
            })
            .collect();
        callers.sort_by(|a, b| b.share.total_cmp(&a.share));
        callers
    }
}

/// What probes take: their programs, and entering them. The price of the latter is
/// timed in a few milliseconds and now and then far too high; it is less than what
/// the programs take.
fn probes_ns(programs_ns: f64, entering_ns: f64) -> f64 {
    programs_ns + entering_ns.clamp(0.0, programs_ns)
}

/// The part of some time that is left without what probes took of it. They never
/// take half: then the price is wrong.
fn left_by(probes_ns: f64, not_idle_ns: f64) -> f64 {
    if not_idle_ns > 0.0 {
        1.0 - (probes_ns / not_idle_ns).clamp(0.0, 0.5)
    } else {
        1.0
    }
}

/// All, where there is nothing.
fn share_of(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 1.0 }
}

/// Time and hits of a place, with one group of windows left out.
fn seen(site: &CountedSite, without: Option<u8>) -> (f64, [f64; 3]) {
    let mut ns = 0.0;
    let mut hits = [0.0; 3];
    for seen in &site.seen {
        if Some(seen.group) != without {
            ns += seen.ns;
            for (sum, more) in hits.iter_mut().zip(seen.hits) {
                *sum += more;
            }
        }
    }
    (ns, hits)
}

/// The standard error of a sum from what it is without each group.
fn jackknife(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    ((count - 1.0) / count * squares).sqrt()
}

fn estimate(value: f64, half: f64, evidence: Evidence) -> Estimate {
    Estimate {
        value,
        low: (value - half).max(0.0),
        high: value + half,
        evidence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{CountedFunction, Measured, Seen};

    /// A place with so many hits in each of some groups of 1 ms.
    fn site(likely: u8, hits: &[u64]) -> CountedSite {
        let seen = |(group, &hits): (usize, &u64)| Seen {
            group: group as u8,
            ns: 1e6,
            hits: [hits as f64, 0.0, 0.0],
        };
        CountedSite {
            function: format!("f{likely}"),
            likely,
            callee: Some([20; 3]),
            caller: Some(2.0),
            seen: hits.iter().enumerate().map(seen).collect(),
            ..CountedSite::default()
        }
    }

    fn cost(sites: Vec<CountedSite>) -> Cost {
        let pace = Measured {
            value: 1.0,
            low: 1.0,
            high: 1.0,
        };
        let counting = Counting {
            pace,
            targets: vec![CountedFunction {
                symbol: "check".to_owned(),
                inlined: 1,
                sites: sites.len() as u32,
                out_of_reach: 0,
            }],
            sites,
            ..Counting::default()
        };
        let costs = Costs {
            counting: &counting,
            cpu_ns: 1e9,
            busy: 1.0,
        };
        costs.of(&["check".to_owned()]).unwrap()
    }

    #[test]
    fn calls_times_what_they_take() {
        let all = cost(vec![site(3, &[500; 20]), site(3, &[0; 20])]);
        // 500 in a millisecond, for a second; 20 in the check, 2 for the call, 1
        // for registers, and 1 less for what stands there without it.
        assert!((all.calls.value - 500_000.0).abs() < 1.0, "{:?}", all.calls);
        assert!((all.calls.low - all.calls.value).abs() < 1.0);
        assert_eq!(all.calls.coverage, 1.0);
        let gain = all.gain.unwrap();
        assert!(
            (gain.value - 500_000.0 * 22.0 / 1e9).abs() < 1e-9,
            "{gain:?}"
        );
        // Only the registers are not known.
        assert!((gain.high - gain.value - 500_000.0 * 1.96 / UNIFORM / 1e9).abs() < 1e-6);
        assert_eq!(all.callers.len(), 1);
    }

    #[test]
    fn places_that_were_not_looked_at_are_as_hot_as_their_like() {
        let looked = [site(3, &[500; 20]), site(3, &[100; 20]), site(1, &[6; 20])];
        let none = [site(3, &[]), site(1, &[]), site(1, &[])];
        let all = cost(looked.iter().chain(&none).cloned().collect());
        let counted = 606_000.0;
        let whole = counted + 300_000.0 + 2.0 * 6_000.0;
        assert!((all.calls.value - whole).abs() < 1.0, "{:?}", all.calls);
        assert!((all.calls.coverage - counted / whole).abs() < 1e-9);
        assert!((all.functions["check"] - whole).abs() < 1.0);
    }

    #[test]
    fn likely_places_that_nobody_looked_at_are_like_the_most_likely_that_were() {
        let all = cost(vec![site(1, &[10; 20]), site(3, &[])]);
        assert!((all.calls.value - 20_000.0).abs() < 1.0, "{:?}", all.calls);
        // Nothing is known at all.
        assert_eq!(cost(vec![site(3, &[])]).calls.value, 0.0);
    }

    #[test]
    fn what_probes_take_is_not_the_workloads() {
        assert_eq!(probes_ns(30.0, 20.0), 50.0);
        assert_eq!(probes_ns(30.0, 200.0), 60.0);
        assert_eq!(probes_ns(30.0, -1.0), 30.0);
        assert_eq!(left_by(50.0, 1_000.0), 0.95);
        assert_eq!(left_by(-3.0, 1_000.0), 1.0);
        assert_eq!(left_by(900.0, 1_000.0), 0.5);
        assert_eq!(left_by(5.0, 0.0), 1.0);
    }

    #[test]
    fn the_interval_tells_windows_that_differ() {
        let bursts: Vec<u64> = (0..20).map(|group| 1_000 * (group % 2)).collect();
        let all = cost(vec![site(3, &bursts)]);
        assert!((all.calls.value - 500_000.0).abs() < 1.0);
        // The mean of twenty: their deviation by the root of their number.
        let error = 513_000.0 / 20_f64.sqrt();
        let half = all.calls.high - all.calls.value;
        assert!((half / (T95 * error) - 1.0).abs() < 0.01, "{half} {error}");
    }
}
