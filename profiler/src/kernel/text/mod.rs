//! Kernel text: where it calls certain functions, and how many instructions a
//! call of one executes.
//!
//! What depends on the architecture lies behind [`Arch`]. Live bytes go in, so
//! that what ftrace, static calls, alternatives and livepatch have changed is
//! seen as it is.

mod arm64;
mod blocks;
mod path;
mod site;
mod x86;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::{Kallsyms, KernelMemory, SymbolRef};

pub use blocks::Blocks;
pub use path::{Conditions, Path, walk};
pub use site::{CallerCost, caller_cost};

/// How the instructions of an architecture are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// x86-64.
    X86,
    /// arm64.
    Arm64,
}

impl Arch {
    /// By the name `uname -m` has for it.
    pub fn from_machine(machine: &str) -> Option<Self> {
        match machine {
            "x86_64" => Some(Self::X86),
            "aarch64" => Some(Self::Arm64),
            _ => None,
        }
    }

    /// Bytes from a direct call to what it returns to.
    pub const fn call_length(self) -> u64 {
        match self {
            Self::X86 => 5,
            Self::Arm64 => 4,
        }
    }

    /// Bytes before a function from which its callers may enter it: padding that
    /// call depth tracking and kernel CFI make use of (x86, since 6.2).
    const fn prefix(self) -> u64 {
        match self {
            Self::X86 => 16,
            Self::Arm64 => 0,
        }
    }

    /// Calls `each` with every direct call or jump in `bytes`, which lie at
    /// `base`: its address, where it goes, and whether it is a jump.
    fn branches(self, bytes: &[u8], base: u64, each: &mut dyn FnMut(u64, u64, bool)) {
        match self {
            Self::X86 => x86::branches(bytes, base, each),
            Self::Arm64 => arm64::branches(bytes, base, each),
        }
    }
}

/// A direct call of a target, or a jump to it: a tail call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallSite {
    /// Address of the instruction.
    pub address: u64,
    /// Which target, an index into what was searched for.
    pub target: usize,
    /// It is a jump: the target returns to the caller's caller.
    pub tail: bool,
}

/// Every call site of functions in some text, by address.
///
/// Every byte that could begin a call is tried; a match inside another
/// instruction would need its last bytes to be the exact distance to a target.
/// On the kernels this was tried on, a full decode finds the same sites.
pub fn call_sites(
    arch: Arch,
    snapshot: &Snapshot<'_>,
    targets: &[u64],
    symbols: &Kallsyms,
) -> Vec<CallSite> {
    let mut entries: HashMap<u64, usize, foldhash::fast::FixedState> = HashMap::default();
    for (index, &target) in targets.iter().enumerate() {
        entries.insert(target, index);
        for address in target.saturating_sub(arch.prefix())..target {
            // A function so short that its successor follows within the prefix.
            let other = symbols.lookup(address);
            if other.is_none_or(|other| other.offset != 0) {
                entries.entry(address).or_insert(index);
            }
        }
    }
    let mut sites = Vec::new();
    arch.branches(snapshot.text, snapshot.base, &mut |address, to, tail| {
        if let Some(&target) = entries.get(&to)
            // A loop inside the target is no call of it.
            && !(tail && symbols.lookup(address).is_some_and(|s| s.start == targets[target]))
        {
            sites.push(CallSite {
                address,
                target,
                tail,
            });
        }
    });
    sites.sort_unstable();
    sites
}

/// Which functions each function calls directly, or ends with a jump to; by
/// address.
pub type CallGraph = HashMap<u64, Vec<u64>, foldhash::fast::FixedState>;

/// The direct calls between all functions of some text.
pub fn call_graph(arch: Arch, snapshot: &Snapshot<'_>, symbols: &Kallsyms) -> CallGraph {
    let starts: Vec<u64> = {
        let within =
            |symbol: &SymbolRef<'_>| snapshot.text(symbol.start..symbol.start.wrapping_add(1));
        let text = symbols.iter().filter(|symbol| within(symbol).is_some());
        let mut starts: Vec<u64> = text.map(|symbol| symbol.start).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    };
    let known: HashSet<u64, foldhash::fast::FixedState> = starts.iter().copied().collect();
    let mut graph = CallGraph::default();
    // Calls come in the order of their addresses, and so do their functions.
    let mut next = 0;
    arch.branches(snapshot.text, snapshot.base, &mut |address, to, _| {
        // A function's prefix ends at the function, which is aligned to it.
        let prefix = arch.prefix().max(1);
        let aligned = to.next_multiple_of(prefix);
        let Some(&callee) = known.get(&to).or_else(|| known.get(&aligned)) else {
            return;
        };
        while starts.get(next).is_some_and(|start| *start <= address) {
            next += 1;
        }
        let Some(&caller) = next.checked_sub(1).and_then(|last| starts.get(last)) else {
            return;
        };
        if caller != callee {
            let callees = graph.entry(caller).or_default();
            if !callees.contains(&callee) {
                callees.push(callee);
            }
        }
    });
    graph
}

/// Text that was read once, over memory that is read when asked for.
#[derive(Debug)]
pub struct Snapshot<'a> {
    text: &'a [u8],
    base: u64,
    memory: &'a dyn KernelMemory,
}

impl<'a> Snapshot<'a> {
    /// `text` lies at `base`.
    pub fn new(text: &'a [u8], base: u64, memory: &'a dyn KernelMemory) -> Self {
        Self { text, base, memory }
    }

    /// The text in a range of addresses, as far as it was read.
    pub fn text(&self, range: Range<u64>) -> Option<&'a [u8]> {
        let start = usize::try_from(range.start.checked_sub(self.base)?).ok()?;
        let end = usize::try_from(range.end.checked_sub(self.base)?).ok()?;
        self.text.get(start..end.min(self.text.len()))
    }

    /// An unsigned number of `size` bytes, at most 8, little endian.
    fn read(&self, address: u64, size: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let wanted = bytes.get_mut(..size)?;
        match self.text(address..address.checked_add(size as u64)?) {
            Some(text) if text.len() == size => wanted.copy_from_slice(text),
            _ => self.memory.read(address, wanted).ok()?,
        }
        Some(u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests;
