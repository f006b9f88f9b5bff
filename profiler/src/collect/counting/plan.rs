//! Where calls can be counted: worked out from the running kernel's text before
//! a run.

use std::collections::{BTreeSet, HashMap};

use crate::catalog::{CallerGroups, Catalog};
use crate::kernel::text::{Arch, CallSite, Snapshot, block_starts, call_sites};
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
    /// The function it lies in, by address.
    pub function: u64,
    /// Code of that function is where most workloads spend their time: locks.
    pub core: bool,
    /// The calls that are counted here: all of one basic block.
    pub calls: Vec<Call>,
}

/// A call that is executed whenever its place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The call instruction; the target's entry when that is the place.
    pub address: u64,
    /// Index into [`Plan::targets`].
    pub target: usize,
    /// How much higher preempt_count is at the call than at the place.
    pub deeper: i32,
}

/// What is to be counted, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The functions.
    pub targets: Vec<Target>,
    /// The places.
    pub places: Vec<Place>,
    /// Functions with places, by the functions that call them.
    pub callees: HashMap<u64, Vec<u64>>,
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
    /// single breakpoint; any other where it is called, the calls of one basic
    /// block together.
    pub fn make(
        arch: Arch,
        text: &Snapshot<'_>,
        targets: Vec<Target>,
        symbols: &Kallsyms,
        takes: &mut dyn FnMut(u64) -> bool,
    ) -> Self {
        let mut places = Vec::new();
        let addresses: Vec<u64> = targets.iter().map(|target| target.address).collect();
        let mut by_call = vec![true; targets.len()];
        for (index, target) in targets.iter().enumerate() {
            if takes(target.address) {
                by_call[index] = false;
                places.push(Place {
                    address: target.address,
                    entry: true,
                    out_of_reach: false,
                    function: target.address,
                    core: true,
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
            let blocks = function.map_or_else(Vec::new, |function| block_starts(text, &function));
            let block = |site: &CallSite| blocks.partition_point(|start| *start <= site.address);
            for together in in_function.chunk_by(|a, b| block(a) == block(b)) {
                places.push(Place {
                    address: together[0].address,
                    entry: false,
                    out_of_reach: protected
                        .iter()
                        .any(|section| section.contains(&together[0].address)),
                    function: function.map_or(0, |function| function.start),
                    core: function.is_some_and(|function| {
                        CallerGroups::builtin().group(function.base_name()) == Some("locking")
                    }),
                    calls: calls(together, &targets),
                });
            }
        }
        let callees = callees(arch, text, &places, symbols);
        Self {
            targets,
            places,
            callees,
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

/// Who calls the functions that have places.
fn callees(
    arch: Arch,
    text: &Snapshot<'_>,
    places: &[Place],
    symbols: &Kallsyms,
) -> HashMap<u64, Vec<u64>> {
    let functions: BTreeSet<u64> = places.iter().map(|place| place.function).collect();
    let functions: Vec<u64> = functions.into_iter().collect();
    let mut callees: HashMap<u64, Vec<u64>> = HashMap::new();
    for call in call_sites(arch, text, &functions, symbols) {
        if let Some(caller) = symbols.lookup(call.address) {
            let of_caller = callees.entry(caller.start).or_default();
            let callee = functions[call.target];
            if !of_caller.contains(&callee) {
                of_caller.push(callee);
            }
        }
    }
    callees
}
