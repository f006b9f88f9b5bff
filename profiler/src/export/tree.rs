//! The workload's stacks as a tree, walked without ever being held: where hardly
//! two stacks are the same, its nodes would take more memory than the recording.

use std::io;

use super::By;
use super::group::{self, Key, NO_STACK, USER};
use crate::fast_map::FastMap;
use crate::model::{Attribution, Owned, UNKNOWN, frames};
use crate::recording::{Frame, FrameId, Recording};

/// One node's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// The frame after the innermost, which names the option that owns the stack.
    Owner(u16),
    /// A name, as [`Tree::names`] has it; the option that owns the frame.
    Name(u32, Option<u16>),
}

/// What a walk leaves out: what would be too small to be seen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A node with less is not entered.
    pub(crate) smallest: f64,
    /// A node is not entered when it has as many above it.
    pub(crate) deepest: usize,
    /// Whether [`Step::Owner`] ends stacks that an option owns.
    pub(crate) owners: bool,
    /// Whether a name is another node where an option owns the frame.
    pub(crate) options: bool,
}

impl Limits {
    /// Nothing is left out.
    pub(crate) const NONE: Self = Self {
        smallest: 0.0,
        deepest: usize::MAX,
        owners: true,
        options: true,
    };

    fn leaves_out(&self, depth: usize, weight: u64) -> bool {
        depth >= self.deepest || (weight as f64) < self.smallest
    }
}

/// Is told of each node, from the outermost inwards.
pub(crate) trait Visitor {
    /// A node `depth` nodes below the outermost ones, with all that is in it.
    /// Siblings come in the order of their names.
    fn enter(&mut self, depth: usize, step: Step, weight: u64) -> io::Result<()>;

    /// What ends at the node entered last, before what is within it: `own` is its
    /// own, `left_out` has nodes that were not entered. Not both are 0.
    fn ends(&mut self, depth: usize, own: u64, left_out: u64) -> io::Result<()>;
}

/// The tree of a recording.
pub(crate) struct Tree<'r> {
    recording: &'r Recording,
    attribution: &'r Attribution,
    by: By,
    groups: Vec<(Key, u64)>,
    /// All names there are, sorted.
    pub(crate) names: Vec<&'r str>,
    /// Numbers of names by id in the recording.
    frames: Vec<u32>,
    comms: Vec<u32>,
    unknown: u32,
    user: u32,
    no_stack: u32,
}

impl<'r> Tree<'r> {
    pub(crate) fn new(recording: &'r Recording, attribution: &'r Attribution, by: By) -> Self {
        let named = |name: &'r str| if name.is_empty() { UNKNOWN } else { name };
        let symbols = || recording.symbols.iter().map(|symbol| named(&symbol.name));
        let comms = || recording.comms.iter().map(|comm| named(comm));
        let mut names: Vec<&str> = symbols().chain(comms()).collect();
        names.extend([UNKNOWN, USER, NO_STACK]);
        names.sort_unstable();
        names.dedup();
        let numbers: FastMap<&str, u32> = names.iter().copied().zip(0..).collect();
        let unknown = numbers[UNKNOWN];
        let by_symbol: Vec<u32> = symbols().map(|name| numbers[name]).collect();
        let of_frame = |frame: &Frame| by_symbol.get(frame.symbol as usize).copied();
        Self {
            recording,
            attribution,
            by,
            groups: group::groups(recording, by),
            frames: recording
                .frames
                .iter()
                .map(|frame| of_frame(frame).unwrap_or(unknown))
                .collect(),
            comms: comms().map(|name| numbers[name]).collect(),
            unknown,
            user: numbers[USER],
            no_stack: numbers[NO_STACK],
            names,
        }
    }

    /// Walks the tree.
    pub(crate) fn walk(&mut self, limits: Limits, visitor: &mut impl Visitor) -> io::Result<()> {
        /// Siblings that are still to be entered.
        struct Open {
            next: usize,
            end: usize,
        }
        let mut groups = std::mem::take(&mut self.groups);
        let mut order = Vec::new();
        // One for each depth: a damaged recording's stacks are no reason to recurse.
        let mut open: Vec<Open> = Vec::new();
        let mut inside = 0..groups.len();
        loop {
            let depth = open.len();
            let range = inside.clone();
            let ends = self.arrange(&mut groups[range.clone()], depth, limits, &mut order);
            if ends.own > 0 || ends.left_out > 0 {
                visitor.ends(depth, ends.own, ends.left_out)?;
            }
            open.push(Open {
                next: range.start + ends.groups,
                end: range.end,
            });
            let entered = loop {
                let depth = open.len();
                let Some(siblings) = open.last_mut() else {
                    break None;
                };
                let from = siblings.next;
                if from == siblings.end {
                    open.pop();
                    continue;
                }
                let step = self.step(groups[from].0, depth - 1, limits);
                let same = groups[from..siblings.end]
                    .iter()
                    .take_while(|(key, _)| self.step(*key, depth - 1, limits) == step)
                    .count();
                siblings.next = from + same;
                // What ends here has been told already.
                let Some(step) = step else { continue };
                let run = from..from + same;
                visitor.enter(depth - 1, step, sum(&groups[run.clone()]))?;
                if same == 1 {
                    // Most of a tree of distinct stacks is paths without a branch.
                    self.follow(groups[from], depth, limits, visitor)?;
                    continue;
                }
                break Some(run);
            };
            match entered {
                Some(run) => inside = run,
                None => break,
            }
        }
        self.groups = groups;
        Ok(())
    }

    /// Walks what is left of one stack, from `depth` inwards.
    fn follow(
        &self,
        (key, weight): (Key, u64),
        mut depth: usize,
        limits: Limits,
        visitor: &mut impl Visitor,
    ) -> io::Result<()> {
        if weight == 0 {
            return Ok(());
        }
        let owned = group::owner(self.attribution, key, self.by);
        while let Some(step) = self.step_of(key, owned, depth, limits) {
            if limits.leaves_out(depth, weight) {
                return visitor.ends(depth, 0, weight);
            }
            visitor.enter(depth, step, weight)?;
            depth += 1;
        }
        visitor.ends(depth, weight, 0)
    }

    /// Sorts groups that are the same above `depth` by their step there. Those
    /// that end, or are left out, come first.
    fn arrange(
        &self,
        groups: &mut [(Key, u64)],
        depth: usize,
        limits: Limits,
        order: &mut Vec<(Option<Step>, (Key, u64))>,
    ) -> Ends {
        order.clear();
        order.extend(groups.iter().map(|group| {
            let step = self.step(group.0, depth, limits);
            (step, *group)
        }));
        // The groups' own order within a step: it is the same on every run.
        if !order.is_sorted_by_key(|(step, _)| *step) {
            order.sort_by_key(|(step, _)| *step);
        }
        let mut ends = Ends::default();
        let runs = || {
            order.chunk_by(|a, b| a.0 == b.0).map(|run| {
                let weight = run
                    .iter()
                    .fold(0, |sum: u64, (_, group)| sum.saturating_add(group.1));
                (run, weight)
            })
        };
        let ends_here = |run: &[(Option<Step>, (Key, u64))], weight| {
            run[0].0.is_none() || limits.leaves_out(depth, weight)
        };
        for (run, weight) in runs().filter(|&(run, weight)| ends_here(run, weight)) {
            let sum = match run[0].0 {
                None => &mut ends.own,
                Some(_) => &mut ends.left_out,
            };
            *sum = sum.saturating_add(weight);
            ends.groups += run.len();
        }
        let (mut first, mut rest) = (0, ends.groups);
        for (run, weight) in runs() {
            let at = match ends_here(run, weight) {
                true => &mut first,
                false => &mut rest,
            };
            for (_, group) in run {
                groups[*at] = *group;
                *at += 1;
            }
        }
        ends
    }

    /// The label of a stack's node at a depth; none below its innermost.
    fn step(&self, key: Key, depth: usize, limits: Limits) -> Option<Step> {
        // Most questions are about what is outside the kernel: no need to look for an
        // owner.
        let outside = 1 + frames(self.recording, key.user_stack).len();
        let owned = match depth < outside || key.user_mode {
            true => None,
            false => group::owner(self.attribution, key, self.by),
        };
        self.step_of(key, owned, depth, limits)
    }

    fn step_of(
        &self,
        key: Key,
        owned: Option<&Owned>,
        depth: usize,
        limits: Limits,
    ) -> Option<Step> {
        let recording = self.recording;
        let Some(depth) = depth.checked_sub(1) else {
            let comm = self.comms.get(key.comm as usize).copied();
            return Some(Step::Name(comm.unwrap_or(self.unknown), None));
        };
        let user = frames(recording, key.user_stack);
        if depth < user.len() {
            return Some(Step::Name(self.frame(user[user.len() - 1 - depth]), None));
        }
        let depth = depth - user.len();
        if key.user_mode {
            return (user.is_empty() && depth == 0).then_some(Step::Name(self.user, None));
        }
        let kernel = frames(recording, key.kernel_stack);
        if kernel.is_empty() {
            return (depth == 0).then_some(Step::Name(self.no_stack, None));
        }
        let option = |owned: &Owned| u16::try_from(owned.option).unwrap_or(u16::MAX);
        if depth < kernel.len() {
            let inwards = kernel.len() - 1 - depth;
            let owned = owned
                .filter(|owned| limits.options && (owned.inner..owned.outer).contains(&inwards));
            return Some(Step::Name(self.frame(kernel[inwards]), owned.map(option)));
        }
        let owned = owned.filter(|_| limits.owners && depth == kernel.len())?;
        Some(Step::Owner(option(owned)))
    }

    fn frame(&self, frame: FrameId) -> u32 {
        let number = self.frames.get(frame as usize).copied();
        number.unwrap_or(self.unknown)
    }
}

/// What ends at a node.
#[derive(Clone, Copy, Default)]
struct Ends {
    own: u64,
    left_out: u64,
    /// How many groups they are.
    groups: usize,
}

fn sum(groups: &[(Key, u64)]) -> u64 {
    groups
        .iter()
        .fold(0, |sum, (_, weight)| sum.saturating_add(*weight))
}
