//! Where calls can be counted: worked out from the running kernel's text before
//! a run.

use crate::catalog::{CallerGroups, Catalog, proxy};
use crate::kernel::text::{Arch, Blocks, CallGraph, CallSite, Snapshot, call_graph, call_sites};
use crate::kernel::{Kallsyms, KernelFacts, Release, Section};

/// A function whose calls are to be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name.
    pub symbol: String,
    /// Its address.
    pub address: u64,
    /// Instructions that stand in place of a call where the option is off.
    pub inlined: u32,
    /// Which option it is counted for: targets of one have the same number.
    pub option: usize,
}

/// A place where calls can be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where the breakpoint goes.
    pub address: u64,
    /// It is the entry of the one target that is counted here.
    pub entry: bool,
    /// It is known beforehand to take no breakpoint.
    pub out_of_reach: bool,
    /// The breakpoint goes to the entry of this function instead, which is called
    /// as often: once for each system call.
    pub proxy: Option<&'static str>,
    /// The function it lies in, by address.
    pub function: u64,
    /// What kind of function that is.
    pub kind: Kind,
    /// The calls that are counted here: those of its basic block, and of others
    /// that are executed as often.
    pub calls: Vec<Call>,
}

/// How much of a workload to expect in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A lock's, or a check itself: every workload goes through it all the time.
    Lock,
    /// Of a subsystem that most workloads go through.
    Common,
    /// Any other.
    Other,
}

/// Groups of callers that most workloads go through, much of the way with
/// interrupts off.
const COMMON: [&str; 8] = [
    "scheduler",
    "timers",
    "RCU",
    "interrupts",
    "system call entry",
    "slab",
    "page allocator",
    "memcg charging",
];

/// The group of callers that profiling itself goes through: what is called there
/// is mostly this program's doing, and no part of what the workload costs.
const PROFILING: &str = "BPF and tracing";

impl Kind {
    fn of(group: Option<&str>) -> Self {
        match group {
            Some("locking") => Self::Lock,
            Some(group) if COMMON.contains(&group) => Self::Common,
            _ => Self::Other,
        }
    }
}

/// A call that is executed whenever its place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call instruction; the target's entry when that is the place.
    pub address: u64,
    /// Index into [`Plan::targets`].
    pub target: usize,
    /// How much higher preempt_count is at the call than where its block begins.
    pub deeper: i32,
}

/// What is to be counted, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The functions.
    pub targets: Vec<Target>,
    /// The places.
    pub places: Vec<Place>,
    /// Which functions each function calls.
    pub callees: CallGraph,
}

/// The functions worth counting on this kernel: those of options that are on and
/// whose cost is that of their calls.
pub(super) fn targets(catalog: &Catalog, facts: &KernelFacts, symbols: &Kallsyms) -> Vec<Target> {
    let Some(release) = Release::parse(&facts.release) else {
        return Vec::new();
    };
    // The states are in the order of the options.
    let states = catalog.states(facts);
    let mut targets: Vec<Target> = Vec::new();
    for (index, (option, state)) in catalog.options().iter().zip(&states).enumerate() {
        if !state.state.is_on() {
            continue;
        }
        for check in option.checks(release) {
            let Some(address) = symbols.address(check.symbol) else {
                continue;
            };
            // A function of two options is counted once.
            if !targets.iter().any(|target| target.address == address) {
                targets.push(Target {
                    symbol: check.symbol.to_owned(),
                    address,
                    inlined: check.inlined,
                    option: index,
                });
            }
        }
    }
    targets
}

impl Plan {
    /// Finds the places. `takes` says whether a breakpoint may be put at an
    /// address. A target that takes one at its entry is counted there, with a
    /// single breakpoint; any other where it is called, calls that are executed
    /// equally often together.
    pub fn make(
        arch: Arch,
        text: &Snapshot<'_>,
        targets: Vec<Target>,
        symbols: &Kallsyms,
        takes: &mut dyn FnMut(u64) -> bool,
    ) -> Self {
        let mut places: Vec<Place> = Vec::new();
        let addresses: Vec<u64> = targets.iter().map(|target| target.address).collect();
        let mut by_call = vec![true; targets.len()];
        for (index, target) in targets.iter().enumerate() {
            if takes(target.address) {
                by_call[index] = false;
                places.push(Place {
                    address: target.address,
                    entry: true,
                    out_of_reach: false,
                    proxy: None,
                    function: target.address,
                    kind: Kind::Lock,
                    calls: vec![Call {
                        address: target.address,
                        target: index,
                        deeper: 0,
                    }],
                });
            }
        }
        let mut sites = call_sites(arch, text, &addresses, symbols);
        sites.retain(|site| by_call[site.target]);
        let protected: Vec<_> = [Section::Noinstr, Section::Entry]
            .into_iter()
            .filter_map(|section| symbols.section(section))
            .collect();
        let mut rest = sites.as_slice();
        while let Some(first) = rest.first() {
            let function = symbols.lookup(first.address);
            let end = function.map_or(first.address + 1, |function| function.range().end);
            let count = rest.partition_point(|site| site.address < end);
            let (in_function, after) = rest.split_at(count.max(1));
            rest = after;
            let group = function.and_then(|f| CallerGroups::builtin().group(f.base_name()));
            if group == Some(PROFILING) {
                continue;
            }
            let blocks = function.map_or_else(Blocks::default, |f| Blocks::of(text, &f));
            let begun = places.len();
            let mut classes = Vec::new();
            for (at, together) in in_function
                .chunk_by(|a, b| blocks.is_one(a.address, b.address))
                .enumerate()
            {
                let address = together[0].address;
                let class = blocks.class(address);
                let is_protected = protected.iter().any(|section| section.contains(&address));
                // What is executed as often as what is counted already is counted
                // with it.
                let same = classes
                    .iter()
                    .position(|other| class.is_some() && *other == (class, is_protected));
                if let Some(place) = same.and_then(|same| places.get_mut(begun + same)) {
                    place.calls.extend(calls(together, &targets));
                    continue;
                }
                // The first block is executed in every call, others may not be.
                let proxy = function
                    .filter(|_| is_protected && at == 0)
                    .and_then(|function| proxy(function.base_name()))
                    .and_then(|name| Some((name, symbols.address(name)?)))
                    .filter(|(_, entry)| takes(*entry));
                classes.push((class, is_protected));
                places.push(Place {
                    address: proxy.map_or(address, |(_, entry)| entry),
                    entry: false,
                    out_of_reach: is_protected && proxy.is_none(),
                    proxy: proxy.map(|(name, _)| name),
                    function: function.map_or(0, |function| function.start),
                    kind: Kind::of(group),
                    calls: calls(together, &targets),
                });
            }
        }
        Self {
            targets,
            places,
            callees: call_graph(arch, text, symbols),
        }
    }
}

/// The calls of one block, with what those before each do to preempt_count.
fn calls(together: &[CallSite], targets: &[Target]) -> Vec<Call> {
    let mut deeper = 0;
    let mut calls = Vec::with_capacity(together.len());
    for site in together {
        calls.push(Call {
            address: site.address,
            target: site.target,
            deeper,
        });
        deeper += match targets[site.target].symbol.as_str() {
            "preempt_count_add" => 1,
            "preempt_count_sub" => -1,
            _ => 0,
        };
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_the_catalogues() {
        let names: Vec<&str> = CallerGroups::builtin().names().collect();
        for group in COMMON.iter().chain(&[PROFILING, "locking"]) {
            assert!(names.contains(group), "{group}");
        }
    }
}
