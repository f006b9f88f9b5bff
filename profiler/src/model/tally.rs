//! Samples counted once, by stack and by whose they are.

use std::collections::HashMap;

use super::attribution::{Attribution, UNKNOWN, frame_name, frames};
use crate::recording::{FrameId, Recording, Sample, SampleFlags, StackId, SymbolId};

/// Whether a sample counts as the target's. The profiler's own never do, also
/// when the whole machine is the target.
pub(crate) fn is_workload(sample: &Sample) -> bool {
    sample.is_target() && sample.flags & SampleFlags::PROFILER == 0
}

/// The samples of a recording by what matters for shares.
#[derive(Default)]
pub(super) struct Tally {
    /// Of the target.
    pub(super) target: u64,
    /// Of the target, user mode.
    pub(super) user: u64,
    /// Of everything else but the profiler.
    pub(super) other: u64,
    /// Of the profiler's own threads.
    pub(super) profiler: u64,
    /// Of the target in kernel mode, without a kernel stack.
    pub(super) stackless: u64,
    /// Of the target, kernel stack cut short.
    pub(super) truncated: u64,
    /// Of the target in kernel mode, innermost frame without a symbol.
    pub(super) unknown: u64,
    /// Of the target, by option (the catalogue's order).
    pub(super) options: HashMap<usize, OptionTally>,
}

/// The samples one option owns.
#[derive(Default)]
pub(super) struct OptionTally {
    /// All of them.
    pub(super) samples: u64,
    /// By the symbol that decided.
    pub(super) functions: HashMap<SymbolId, u64>,
    /// By the frame that called into the option.
    pub(super) callers: HashMap<FrameId, u64>,
}

impl Tally {
    pub(super) fn new(recording: &Recording, attribution: &Attribution) -> Self {
        let mut tally = Self::default();
        // One pass over the samples, then one over the stacks: a million samples
        // have a few thousand stacks.
        let mut by_stack = vec![0_u64; recording.stacks.len()];
        for sample in &recording.samples {
            if sample.flags & SampleFlags::PROFILER != 0 {
                tally.profiler += 1;
                continue;
            }
            if !is_workload(sample) {
                tally.other += 1;
                continue;
            }
            tally.target += 1;
            let user_mode = sample.flags & SampleFlags::USER_MODE != 0;
            tally.user += u64::from(user_mode);
            tally.truncated += u64::from(sample.flags & SampleFlags::KERNEL_TRUNCATED != 0);
            if user_mode {
                continue;
            }
            match by_stack.get_mut(sample.kernel_stack as usize) {
                Some(count) if sample.kernel_stack != 0 => *count += 1,
                _ => tally.stackless += 1,
            }
        }
        for (id, &count) in by_stack.iter().enumerate().filter(|(_, count)| **count > 0) {
            let Ok(id) = StackId::try_from(id) else { break };
            if let Some(&innermost) = frames(recording, id).first()
                && frame_name(recording, innermost) == UNKNOWN
            {
                tally.unknown += count;
            }
            let Some(owned) = attribution.owner(id) else {
                continue;
            };
            let option = tally.options.entry(owned.option).or_default();
            option.samples += count;
            *option.functions.entry(owned.symbol).or_default() += count;
            if let Some(caller) = owned.caller {
                *option.callers.entry(caller).or_default() += count;
            }
        }
        tally
    }
}
