//! Who owns a kernel stack.
//!
//! The walk goes outwards from the interrupted instruction and ends at the first
//! interrupt or exception entry frame: what lies beyond was interrupted, it did
//! not call. The first frame that an enabled option owns decides.

use super::knowledge::Knowledge;
use crate::catalog::{Owner, Takes};
use crate::fast_map::FastMap;
use crate::recording::{Evidence, FrameId, Recording, Stack, StackId, SymbolId};

/// The owner of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owned {
    /// Index of the option in the catalogue's order.
    pub option: usize,
    /// The symbol that decided.
    pub symbol: SymbolId,
    /// The depth of the frame that decided, 0 being the innermost.
    pub inner: usize,
    /// The depth of the first frame outwards that the option does not own; the
    /// stack's length when it owns all the rest.
    pub outer: usize,
    /// The frame at `outer`, which called into the option.
    pub caller: Option<FrameId>,
}

/// What is known of a symbol, found out once.
#[derive(Clone, Copy, Default)]
struct SymbolVerdict {
    owner: Option<Owner>,
    entry: bool,
}

/// The owners of all kernel stacks of a recording's samples.
#[derive(Clone, Debug, Default)]
pub struct Attribution {
    /// Names of the options, in the catalogue's order.
    options: Vec<String>,
    /// By stack id; stacks that are not a sample's kernel stack have none.
    stacks: FastMap<StackId, Owned>,
}

impl Attribution {
    /// Walks each distinct kernel stack once.
    pub fn new(recording: &Recording, knowledge: &Knowledge) -> Self {
        let mut used = vec![false; recording.stacks.len()];
        for sample in &recording.samples {
            if let Some(slot) = used.get_mut(sample.kernel_stack as usize) {
                *slot = true;
            }
        }
        let mut walker = Walker {
            recording,
            knowledge,
            by_nmi: recording.header.sampling.evidence == Evidence::SampledNmi,
            verdicts: vec![None; recording.symbols.len()],
        };
        let stacks = used
            .iter()
            .zip(&recording.stacks)
            .enumerate()
            .filter(|(_, (used, _))| **used)
            .filter_map(|(id, (_, stack))| {
                let id = StackId::try_from(id).ok()?;
                Some((id, walker.walk(stack)?))
            })
            .collect();
        let options = knowledge
            .states()
            .iter()
            .map(|state| state.name.clone())
            .collect();
        Self { options, stacks }
    }

    /// The owner of a sample's kernel stack.
    pub fn owner(&self, stack: StackId) -> Option<&Owned> {
        self.stacks.get(&stack)
    }

    /// Every stack that an option owns, in no particular order.
    pub fn owned_stacks(&self) -> impl Iterator<Item = (StackId, &Owned)> {
        self.stacks.iter().map(|(stack, owned)| (*stack, owned))
    }

    /// The names of a stack's frames that its owner owns, innermost first.
    pub fn owned_names<'r>(
        &self,
        recording: &'r Recording,
        stack: StackId,
    ) -> impl Iterator<Item = &'r str> {
        let range = self
            .owner(stack)
            .map_or(0..0, |owned| owned.inner..owned.outer);
        let owned = frames(recording, stack).get(range).unwrap_or_default();
        owned.iter().map(|&frame| frame_name(recording, frame))
    }

    /// The names of all options, with `CONFIG_`, in the catalogue's order.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.options.iter().map(String::as_str)
    }

    /// The name of an option, with `CONFIG_`.
    pub fn option(&self, option: usize) -> &str {
        self.options.get(option).map_or(UNKNOWN, String::as_str)
    }
}

struct Walker<'a> {
    recording: &'a Recording,
    knowledge: &'a Knowledge,
    /// Whether the samples were taken by NMIs.
    by_nmi: bool,
    verdicts: Vec<Option<SymbolVerdict>>,
}

impl Walker<'_> {
    fn walk(&mut self, stack: &Stack) -> Option<Owned> {
        for (depth, &frame) in stack.iter().enumerate() {
            let symbol = self.recording.frames.get(frame as usize)?.symbol;
            let verdict = self.verdict(symbol);
            if verdict.entry {
                return None;
            }
            let Some(owner) = verdict.owner else { continue };
            let takes = match owner.takes {
                Takes::Callees => true,
                Takes::Itself => depth == 0,
                Takes::ItselfByNmi => depth == 0 && self.by_nmi,
            };
            if !takes {
                continue;
            }
            let outer = self.outer(stack, depth + 1, owner.option_index);
            return Some(Owned {
                option: owner.option_index,
                symbol,
                inner: depth,
                outer,
                caller: stack.get(outer).copied(),
            });
        }
        None
    }

    /// The depth of the first frame from `depth` outwards that the option does
    /// not own. An entry frame may be it: it belongs to the context that ran the
    /// option's code.
    fn outer(&mut self, stack: &Stack, depth: usize, option: usize) -> usize {
        let rest = stack.get(depth..).unwrap_or_default();
        let owned = rest.iter().take_while(|&&frame| {
            let Some(frame) = self.recording.frames.get(frame as usize) else {
                return false;
            };
            let verdict = self.verdict(frame.symbol);
            !verdict.entry
                && verdict
                    .owner
                    .is_some_and(|owner| owner.option_index == option)
        });
        depth + owned.count()
    }

    fn verdict(&mut self, symbol: SymbolId) -> SymbolVerdict {
        let Some(slot) = self.verdicts.get(symbol as usize) else {
            return SymbolVerdict::default();
        };
        if let Some(known) = slot {
            return *known;
        }
        let named = &self.recording.symbols[symbol as usize];
        // BPF programs choose their own names and may take a kernel function's.
        let verdict = if named.module == "bpf" {
            SymbolVerdict::default()
        } else {
            SymbolVerdict {
                owner: self.knowledge.owner(&named.name),
                entry: self.knowledge.is_entry_frame(&named.name),
            }
        };
        self.verdicts[symbol as usize] = Some(verdict);
        verdict
    }
}

/// The name of a frame's symbol.
pub(crate) fn frame_name(recording: &Recording, frame: FrameId) -> &str {
    let name = recording
        .frames
        .get(frame as usize)
        .and_then(|frame| recording.symbols.get(frame.symbol as usize))
        .map_or("", |symbol| symbol.name.as_str());
    if name.is_empty() { UNKNOWN } else { name }
}

/// What stands for a name that is not known.
pub(crate) const UNKNOWN: &str = "[unknown]";

/// The name behind an index into [`Recording::comms`].
pub(crate) fn comm(recording: &Recording, comm: u32) -> &str {
    let name = recording
        .comms
        .get(comm as usize)
        .map_or("", String::as_str);
    if name.is_empty() { UNKNOWN } else { name }
}

/// The frames of a stack, innermost first; empty for an id out of range.
pub(crate) fn frames(recording: &Recording, stack: StackId) -> &[FrameId] {
    recording
        .stacks
        .get(stack as usize)
        .map_or(&[], |stack| stack)
}
