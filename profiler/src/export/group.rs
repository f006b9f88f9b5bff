//! The workload's samples, grouped by what makes two of them the same to a tool
//! that knows no time.

use std::collections::BTreeMap;

use super::By;
use crate::fast_map::FastMap;
use crate::model::{Attribution, Owned, comm, frame_name, frames, is_workload};
use crate::recording::{FrameId, Recording, Sample, SampleFlags, StackId};
use crate::report::escape;

/// Stands for the frames of a sample that interrupted user mode when no user
/// stack was taken.
pub(crate) const USER: &str = "[user]";
/// Stands for the frames of a kernel-mode sample that came without a stack.
pub(crate) const NO_STACK: &str = "[no stack]";

/// What makes two samples fall into one line, before names are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) comm: u32,
    pub(crate) user_stack: StackId,
    pub(crate) kernel_stack: StackId,
    pub(crate) user_mode: bool,
}

impl Key {
    pub(crate) const fn of(sample: &Sample) -> Self {
        Self {
            comm: sample.comm,
            user_stack: sample.user_stack,
            kernel_stack: sample.kernel_stack,
            user_mode: sample.flags & SampleFlags::USER_MODE != 0,
        }
    }
}

/// The workload's samples, or the nanoseconds it was blocked, by key; sorted, so
/// that an export is the same on every run.
pub(crate) fn groups(recording: &Recording, by: By) -> Vec<(Key, u64)> {
    match by {
        By::Time => {
            let samples = || recording.samples.iter().filter(|s| is_workload(s));
            // Not a map: where hardly two keys are the same it takes thrice the memory.
            let mut keys = Vec::with_capacity(samples().count());
            keys.extend(samples().map(Key::of));
            keys.sort_unstable();
            let runs = || keys.chunk_by(|a, b| a == b);
            let mut groups = Vec::with_capacity(runs().count());
            groups.extend(runs().map(|run| (run[0], run.len() as u64)));
            groups
        }
        By::Rcu => {
            let mut keys: BTreeMap<Key, u64> = BTreeMap::new();
            for event in recording.rcu.iter().filter(|event| event.target) {
                let key = Key {
                    comm: event.comm,
                    user_stack: 0,
                    kernel_stack: event.kernel_stack,
                    user_mode: false,
                };
                let sum = keys.entry(key).or_default();
                *sum = sum.saturating_add(event.duration_ns);
            }
            keys.into_iter().collect()
        }
    }
}

/// The weight of all groups together.
pub(crate) fn total(recording: &Recording, by: By) -> u64 {
    match by {
        By::Time => recording.samples.iter().filter(|s| is_workload(s)).count() as u64,
        By::Rcu => recording
            .rcu
            .iter()
            .filter(|event| event.target)
            .fold(0, |sum, event| sum.saturating_add(event.duration_ns)),
    }
}

/// One frame of a [`Key`]'s stack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// An address with its symbol; the option that owns it.
    Frame(FrameId, Option<usize>),
    /// What stands for frames that nobody has: [`USER`] or [`NO_STACK`].
    Missing(&'static str),
}

/// The option that owns a key's time. Time blocked is nobody's.
pub(crate) fn owner(attribution: &Attribution, key: Key, by: By) -> Option<&Owned> {
    match by {
        By::Time if !key.user_mode => attribution.owner(key.kernel_stack),
        _ => None,
    }
}

/// The frames of a key, innermost first: kernel frames, then user frames.
pub(crate) fn parts<'r>(
    recording: &'r Recording,
    attribution: &Attribution,
    key: Key,
    by: By,
) -> impl Iterator<Item = Part> + 'r {
    let owned = owner(attribution, key, by).copied();
    let user = frames(recording, key.user_stack);
    let kernel = if key.user_mode {
        &[]
    } else {
        frames(recording, key.kernel_stack)
    };
    let missing = match key.user_mode {
        true => user.is_empty().then_some(USER),
        false => kernel.is_empty().then_some(NO_STACK),
    };
    let kernel = kernel.iter().enumerate().map(move |(depth, &frame)| {
        let owned = owned.filter(|owned| (owned.inner..owned.outer).contains(&depth));
        Part::Frame(frame, owned.map(|owned| owned.option))
    });
    let user = user.iter().map(|&frame| Part::Frame(frame, None));
    missing
        .map(Part::Missing)
        .into_iter()
        .chain(kernel)
        .chain(user)
}

/// The same thing under its one number: the writer's tables forget, so a name
/// can have several ids in a recording.
pub(crate) struct Numbers<'r> {
    numbers: FastMap<&'r str, usize>,
    /// The names by number, escaped: none of them can steer the terminal or hide
    /// in the tool that shows it.
    pub(crate) names: Vec<String>,
}

impl<'r> Numbers<'r> {
    pub(crate) fn new() -> Self {
        Self {
            numbers: FastMap::default(),
            names: Vec::new(),
        }
    }

    pub(crate) fn of(&mut self, name: &'r str) -> usize {
        let names = &mut self.names;
        *self.numbers.entry(name).or_insert_with(|| {
            names.push(escape(name).into_owned());
            names.len() - 1
        })
    }

    pub(crate) fn of_part(&mut self, recording: &'r Recording, part: Part) -> usize {
        match part {
            Part::Frame(frame, _) => self.of(frame_name(recording, frame)),
            Part::Missing(name) => self.of(name),
        }
    }

    pub(crate) fn of_comm(&mut self, recording: &'r Recording, id: u32) -> usize {
        self.of(comm(recording, id))
    }
}
