//! Where calls can be counted: worked out from the running kernel's text before
//! a run.

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
    /// How likely it is to be hot, from what is known without running: higher
    /// comes first.
    pub prior: u8,
}

/// What is to be counted, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The functions.
    pub targets: Vec<Target>,
    /// The places; those of one target are together.
    pub places: Vec<Place>,
}

/// The functions worth counting on this kernel: those of options that are on and
/// whose cost is that of their calls.
pub fn targets(catalog: &Catalog, facts: &KernelFacts, symbols: &Kallsyms) -> Vec<Target> {
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
    for option in catalog.options().iter().filter(|option| on(option)) {
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
                    prior: u8::MAX,
                });
                continue;
            }
            let of_target = sites.iter().filter(|site| site.target == index);
            places.extend(of_target.map(|site: &CallSite| {
                Place {
                    address: site.address,
                    target: index,
                    entry: false,
                    out_of_reach: protected
                        .iter()
                        .any(|section| section.contains(&site.address)),
                    prior: prior(symbols, site.address),
                }
            }));
        }
        Self { targets, places }
    }
}

/// Core code before drivers: the linker lays directories out in the order of
/// the top Makefile (init, arch, kernel, mm, fs, ..., drivers), and what most
/// workloads run is in functions that the catalogue of callers knows.
fn prior(symbols: &Kallsyms, address: u64) -> u8 {
    let Some(symbol) = symbols.lookup(address) else {
        return 0;
    };
    u8::from(CallerGroups::builtin().group(symbol.base_name()).is_some())
}
