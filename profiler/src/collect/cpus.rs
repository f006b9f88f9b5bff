//! CPUs that go offline and come online during a run.

use std::collections::{BTreeMap, BTreeSet};

use crate::recording::Gap;

/// Times in which a CPU was not watched.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    open: BTreeMap<u32, u64>,
    closed: Vec<Gap>,
}

impl Gaps {
    /// Notes CPUs that went and came, at `now_ns` since the run's start.
    pub(super) fn note(&mut self, gone: &[u32], back: &[u32], now_ns: u64) {
        for &cpu in gone {
            self.open.entry(cpu).or_insert(now_ns);
        }
        for &cpu in back {
            // A CPU that comes online for the first time was not watched before.
            let from_ns = self.open.remove(&cpu).unwrap_or(0);
            self.closed.push(gap(cpu, from_ns, now_ns));
        }
    }

    /// All gaps of a run that ends at `end_ns`.
    pub(super) fn finish(mut self, end_ns: u64) -> Vec<Gap> {
        for (cpu, from_ns) in std::mem::take(&mut self.open) {
            self.closed.push(gap(cpu, from_ns, end_ns));
        }
        self.closed.sort_by_key(|gap| (gap.from_ns, gap.cpu));
        self.closed
    }
}

fn gap(cpu: u32, from_ns: u64, to_ns: u64) -> Gap {
    Gap {
        cpu,
        from_ns,
        to_ns,
        reason: "the CPU was offline".to_owned(),
    }
}

/// The difference between two sets of online CPUs, as the set of those that are
/// new.
pub(super) fn newcomers(before: &BTreeSet<u32>, now: &BTreeSet<u32>) -> BTreeSet<u32> {
    now.difference(before).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_absence_is_a_named_gap() {
        let mut gaps = Gaps::default();
        gaps.note(&[1], &[], 100);
        gaps.note(&[1], &[], 150);
        gaps.note(&[], &[1], 300);
        gaps.note(&[], &[5], 400);
        gaps.note(&[2], &[], 500);
        let gaps = gaps.finish(900);
        let spans: Vec<(u32, u64, u64)> = gaps
            .iter()
            .map(|gap| (gap.cpu, gap.from_ns, gap.to_ns))
            .collect();
        assert_eq!(spans, [(5, 0, 400), (1, 100, 300), (2, 500, 900)]);
    }
}
