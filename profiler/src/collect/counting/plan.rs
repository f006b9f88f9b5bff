//! Where calls can be counted: worked out from the running kernel's text before
//! a run.

use std::collections::{BTreeSet, HashMap};

use crate::catalog::{CallerGroups, Catalog, KernelOption};
use crate::kernel::text::{Arch, CallSite, call_sites};
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
    /// Index into [`Plan::targets`].
    pub target: usize,
    /// It is the target's entry.
    pub entry: bool,
    /// It is known beforehand to take no breakpoint.
    pub out_of_reach: bool,
    /// The function it lies in, by address.
    pub function: u64,
    /// Code of that function is where most workloads spend their time: locks.
    pub core: bool,
}

/// What is to be counted, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The functions.
    pub targets: Vec<Target>,
    /// The places; those of one target are together.
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
    let states = catalog.states(facts);
    let on = |option: &KernelOption| {
        states
            .iter()
            .any(|state| state.name == option.name && state.state.is_on())
    };
    let mut targets: Vec<Target> = Vec::new();
    for (index, option) in catalog.options().iter().enumerate() {
        if !on(option) {
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
    /// Finds the places. `text` lies at `base`; `takes` says whether a breakpoint
    /// may be put at an address. A target that takes one at its entry is counted
    /// there, with a single breakpoint; any other where it is called.
    pub fn make(
        arch: Arch,
        text: &[u8],
        base: u64,
        targets: Vec<Target>,
        symbols: &Kallsyms,
        takes: &mut dyn FnMut(u64) -> bool,
    ) -> Self {
        let mut places = Vec::new();
        let addresses: Vec<u64> = targets.iter().map(|target| target.address).collect();
        let sites = call_sites(arch, text, base, &addresses, symbols);
        let protected: Vec<_> = [Section::Noinstr, Section::Entry]
            .into_iter()
            .filter_map(|section| symbols.section(section))
            .collect();
        for (index, target) in targets.iter().enumerate() {
            if takes(target.address) {
                places.push(Place {
                    address: target.address,
                    target: index,
                    entry: true,
                    out_of_reach: false,
                    function: target.address,
                    core: true,
                });
                continue;
            }
            let of_target = sites.iter().filter(|site| site.target == index);
            places.extend(of_target.map(|site: &CallSite| {
                let function = symbols.lookup(site.address);
                Place {
                    address: site.address,
                    target: index,
                    entry: false,
                    out_of_reach: protected
                        .iter()
                        .any(|section| section.contains(&site.address)),
                    function: function.map_or(0, |function| function.start),
                    core: function.is_some_and(|function| {
                        CallerGroups::builtin().group(function.base_name()) == Some("locking")
                    }),
                }
            }));
        }
        let callees = callees(arch, text, base, &places, symbols);
        Self {
            targets,
            places,
            callees,
        }
    }
}

/// Who calls the functions that have places.
fn callees(
    arch: Arch,
    text: &[u8],
    base: u64,
    places: &[Place],
    symbols: &Kallsyms,
) -> HashMap<u64, Vec<u64>> {
    let functions: BTreeSet<u64> = places.iter().map(|place| place.function).collect();
    let functions: Vec<u64> = functions.into_iter().collect();
    let mut callees: HashMap<u64, Vec<u64>> = HashMap::new();
    for call in call_sites(arch, text, base, &functions, symbols) {
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
