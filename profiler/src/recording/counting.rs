//! Calls that were counted, as a recording keeps them: what was seen, for how
//! long, and what a call executes. What follows from it is the model's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::kernel::Kallsyms;

/// Windows are dealt out to so many groups; how much the groups differ says how
/// sure their sum is.
pub const GROUPS: usize = 20;

/// What counting calls came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counting {
    /// How hits were counted: `breakpoint`.
    pub leg: String,
    /// Windows in which something was armed.
    pub windows: u64,
    /// Their length together, nanoseconds of one CPU.
    pub armed_ns: u64,
    /// Hits, the target's and others'.
    pub hits: u64,
    /// What a hit costs.
    pub hit_price: Measured,
    /// CPU time of the counting thread, nanoseconds.
    pub thread_ns: u64,
    /// The pace of the code that is counted, nanoseconds per instruction.
    pub pace: Measured,
    /// How the pace was measured, one phrase.
    pub pace_source: String,
    /// From the workload's start to its end, nanoseconds.
    pub wall_ns: u64,
    /// CPUs on which calls were counted.
    pub cpus: u32,
    /// Samples left out, as they fell into windows.
    pub window_samples: u64,
    /// The functions whose calls are counted.
    pub targets: Vec<CountedFunction>,
    /// Where.
    pub sites: Vec<CountedSite>,
}

/// A number with the interval that noise leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The estimate.
    pub value: f64,
    /// The least it can be.
    pub low: f64,
    /// The most it can be.
    pub high: f64,
}

/// A function whose calls are counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountedFunction {
    /// Its name.
    pub symbol: String,
    /// Instructions that stand in place of a call where the option is off.
    pub inlined: u32,
    /// Call sites in this kernel's text.
    pub sites: u32,
    /// Of these, those that take no breakpoint.
    pub out_of_reach: u32,
}

/// A place where calls are counted: a call site, or the entry of the function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountedSite {
    /// Index into [`Counting::targets`].
    pub target: u32,
    /// The function the site is in; the target itself for its entry.
    pub function: String,
    /// Bytes from the start of that function.
    pub offset: u32,
    /// The target's entry: calls from everywhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entry: bool,
    /// The site takes no breakpoint: it is not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_reach: bool,
    /// The function at whose entry it was counted instead, which is called as often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted_at: Option<String>,
    /// How likely it seemed to be hot before it was looked at, least first: places
    /// that seemed alike and were looked at speak for those that were not.
    #[serde(default)]
    pub likely: u8,
    /// Instructions that a call executes in the target: nested, with interrupts
    /// off, and preemptible. Absent when the code is not understood, or nothing
    /// was counted here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<[u32; 3]>,
    /// Instructions that a call takes in its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<f64>,
    /// What was seen, by group of windows.
    pub seen: Vec<Seen>,
}

/// What was seen of a site in one group of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The group, below [`GROUPS`].
    pub group: u8,
    /// CPU time that passed for what is watched: without what counting took. Windows
    /// that stand for more of the run than others, as fewer were made about that
    /// time, weigh more; on average they weigh 1.
    pub ns: f64,
    /// Hits by the target, in the same weights: nested, with interrupts off, and
    /// preemptible.
    pub hits: [f64; 3],
}

impl Counting {
    /// What was done, one line.
    pub fn summary(&self) -> String {
        let all = self.sites.len();
        let looked = self
            .sites
            .iter()
            .filter(|site| !site.seen.is_empty())
            .count();
        format!(
            "{} windows of {:.1} us on average, {} hits at {:.0} ns, {:.1} ms of the thread; \
             {looked} of {all} places looked at, {} hit, {} refused",
            self.windows,
            self.armed_ns as f64 / 1e3 / self.windows.max(1) as f64,
            self.hits,
            self.hit_price.value,
            self.thread_ns as f64 / 1e6,
            self.sites.iter().filter(|site| site.is_hit()).count(),
            self.sites.iter().filter(|site| site.out_of_reach).count(),
        )
    }

    /// The functions that called a check, by address: a later run looks there first.
    pub fn hot_functions(&self, symbols: &Kallsyms) -> Vec<u64> {
        let mut hot: Vec<u64> = self
            .sites
            .iter()
            .filter(|site| site.is_hit())
            .flat_map(|site| symbols.variants(&site.function))
            .map(|symbol| symbol.start)
            .collect();
        hot.sort_unstable();
        hot.dedup();
        hot
    }

    /// Adds what a later run of the same kernel saw.
    pub fn append(&mut self, next: Self) {
        let weight = (self.thread_ns + self.armed_ns).max(1) as f64;
        let other = (next.thread_ns + next.armed_ns).max(1) as f64;
        let mean = |a: &mut Measured, b: Measured| {
            let part = other / (weight + other);
            *a = Measured {
                value: a.value * (1.0 - part) + b.value * part,
                low: a.low.min(b.low),
                high: a.high.max(b.high),
            };
        };
        mean(&mut self.hit_price, next.hit_price);
        mean(&mut self.pace, next.pace);
        self.windows = self.windows.saturating_add(next.windows);
        self.armed_ns = self.armed_ns.saturating_add(next.armed_ns);
        self.hits = self.hits.saturating_add(next.hits);
        self.thread_ns = self.thread_ns.saturating_add(next.thread_ns);
        self.wall_ns = self.wall_ns.saturating_add(next.wall_ns);
        self.window_samples = self.window_samples.saturating_add(next.window_samples);

        let mut targets = Vec::with_capacity(next.targets.len());
        for target in next.targets {
            let known = self.targets.iter().position(|t| t.symbol == target.symbol);
            targets.push(known.unwrap_or_else(|| {
                self.targets.push(target);
                self.targets.len() - 1
            }) as u32);
        }
        let key =
            |site: &CountedSite| (site.target, site.function.clone(), site.offset, site.entry);
        let mut places: BTreeMap<_, usize> = self
            .sites
            .iter()
            .enumerate()
            .map(|(at, site)| (key(site), at))
            .collect();
        for mut site in next.sites {
            let Some(&target) = targets.get(site.target as usize) else {
                continue;
            };
            site.target = target;
            match places.get(&key(&site)) {
                Some(&at) => self.sites[at].append(site),
                None => {
                    places.insert(key(&site), self.sites.len());
                    self.sites.push(site);
                }
            }
        }
    }
}

impl CountedSite {
    /// Whether the target was seen to come by.
    pub fn is_hit(&self) -> bool {
        self.seen.iter().any(|seen| seen.hits != [0.0; 3])
    }

    fn append(&mut self, next: Self) {
        self.callee = self.callee.or(next.callee);
        self.caller = self.caller.or(next.caller);
        self.out_of_reach |= next.out_of_reach;
        for more in next.seen {
            match self.seen.iter_mut().find(|seen| seen.group == more.group) {
                Some(seen) => {
                    seen.ns += more.ns;
                    for (sum, hits) in seen.hits.iter_mut().zip(more.hits) {
                        *sum += hits;
                    }
                }
                None => self.seen.push(more),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(sites: &[(&str, u32, u8, u64)]) -> Counting {
        let site = |&(function, offset, group, hits): &(&str, u32, u8, u64)| CountedSite {
            function: function.to_owned(),
            offset,
            seen: vec![Seen {
                group,
                ns: 1_000.0,
                hits: [hits as f64, 0.0, 0.0],
            }],
            ..CountedSite::default()
        };
        Counting {
            hits: sites.iter().map(|site| site.3).sum(),
            targets: vec![CountedFunction {
                symbol: "debug_smp_processor_id".to_owned(),
                ..CountedFunction::default()
            }],
            sites: sites.iter().map(site).collect(),
            ..Counting::default()
        }
    }

    #[test]
    fn functions_that_were_hit_are_where_to_look_next() {
        let symbols = Kallsyms::parse(
            b"ffffffff81000000 T _stext\nffffffff81000100 t a.isra.0\n\
              ffffffff81000200 t b\nffffffff81000300 T _etext\n",
        );
        let counting = counting(&[("a", 4, 0, 3), ("a", 9, 1, 1), ("b", 4, 0, 0)]);
        assert_eq!(counting.hot_functions(&symbols), [0xffff_ffff_8100_0100]);
    }

    #[test]
    fn runs_add_up_place_by_place() {
        let mut all = counting(&[("a", 4, 0, 5), ("b", 8, 1, 1)]);
        all.append(counting(&[("a", 4, 0, 7), ("a", 9, 0, 2), ("b", 8, 2, 3)]));
        assert_eq!((all.hits, all.targets.len(), all.sites.len()), (18, 1, 3));
        assert_eq!(all.sites[0].seen[0].hits[0], 12.0);
        assert_eq!(all.sites[0].seen[0].ns, 2_000.0);
        assert_eq!(all.sites[1].seen.len(), 2);
    }
}
