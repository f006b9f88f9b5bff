//! What happened when: samples and switches by slots of time.

use std::collections::{BTreeMap, BTreeSet};

use super::By;
use super::group::{self, Key};
use crate::model::{Attribution, is_workload};
use crate::recording::{Epoch, Recording};

/// Length of an epoch that the recording does not name.
const EPOCH_NS: u64 = 100_000_000;

/// Samples of one slot of time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// In user mode.
    pub(crate) user: u64,
    /// In kernel mode, owned by no option.
    pub(crate) unowned: u64,
    options: BTreeMap<usize, u64>,
}

impl Counts {
    /// All samples in kernel mode.
    pub(crate) fn kernel(&self) -> u64 {
        self.unowned + self.options.values().sum::<u64>()
    }

    /// Samples an option owns.
    pub(crate) fn of(&self, option: usize) -> u64 {
        self.options.get(&option).copied().unwrap_or(0)
    }
}

/// The workload's samples over time, in slots of equal length. Slots without a
/// sample are left out.
#[derive(Debug)]
pub(crate) struct Timeline {
    slot_ns: u64,
    slots: BTreeMap<u64, Counts>,
}

impl Timeline {
    /// One slot an epoch.
    pub(crate) fn by_epoch(recording: &Recording, attribution: &Attribution) -> Self {
        let slot_ns = match recording.header.epoch_ns {
            0 => EPOCH_NS,
            epoch => epoch,
        };
        Self::new(recording, attribution, slot_ns)
    }

    /// Slots of `slot_ns`, at least 1.
    pub(crate) fn new(recording: &Recording, attribution: &Attribution, slot_ns: u64) -> Self {
        let slot_ns = slot_ns.max(1);
        let mut slots: BTreeMap<u64, Counts> = BTreeMap::new();
        for sample in recording.samples.iter().filter(|s| is_workload(s)) {
            let counts = slots.entry(sample.time_ns / slot_ns).or_default();
            let key = Key::of(sample);
            if key.user_mode {
                counts.user += 1;
            } else if let Some(owned) = group::owner(attribution, key, By::Time) {
                *counts.options.entry(owned.option).or_default() += 1;
            } else {
                counts.unowned += 1;
            }
        }
        Self { slot_ns, slots }
    }

    /// The slots that have a sample, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, &Counts)> {
        self.slots.iter().map(|(&slot, counts)| (slot, counts))
    }

    /// When a slot begins, nanoseconds since the run's start.
    pub(crate) const fn start(&self, slot: u64) -> u64 {
        slot.saturating_mul(self.slot_ns)
    }

    /// The options that own a sample.
    pub(crate) fn options(&self) -> BTreeSet<usize> {
        self.slots
            .values()
            .flat_map(|counts| counts.options.keys().copied())
            .collect()
    }
}

/// Switches away from the target's tasks within one epoch of a CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochSwitches {
    pub(crate) from_ns: u64,
    pub(crate) voluntary: u64,
    pub(crate) preempted: u64,
}

/// The switches of each epoch, by CPU: the recording's counters only grow.
pub(crate) fn epochs_by_cpu(recording: &Recording) -> BTreeMap<u32, Vec<EpochSwitches>> {
    let mut by_cpu: BTreeMap<u32, Vec<&Epoch>> = BTreeMap::new();
    for epoch in &recording.epochs {
        by_cpu.entry(epoch.cpu).or_default().push(epoch);
    }
    by_cpu
        .into_iter()
        .map(|(cpu, mut epochs)| {
            epochs.sort_by_key(|epoch| epoch.time_ns);
            let mut before = &Epoch::default();
            let switches = epochs
                .into_iter()
                .map(|epoch| {
                    let of = EpochSwitches {
                        from_ns: before.time_ns,
                        voluntary: (epoch.switches.voluntary)
                            .saturating_sub(before.switches.voluntary),
                        preempted: (epoch.switches.preempted)
                            .saturating_sub(before.switches.preempted),
                    };
                    before = epoch;
                    of
                })
                .collect();
            (cpu, switches)
        })
        .collect()
}
