//! What counting came to, for the recording: counts, and what a call executes
//! at each place, read from the kernel's text once more.

use super::Code;
use super::plan::{Call, Place, Plan};
use super::schedule::Looked;
use super::thread::{Counted, Settings};
use crate::kernel::text::{Conditions, Snapshot, call_sites, caller_cost, walk};
use crate::kernel::{Kallsyms, base_name};
use crate::recording::{CountedFunction, CountedSite, Counting, Seen};

/// `PREEMPT_NEED_RESCHED`: set while nothing is to be rescheduled (x86).
const NO_RESCHED: u32 = 1 << 31;

/// What a call finds, apart from where it comes from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    /// Where the per-CPU variables of one CPU lie.
    pub(super) percpu: Option<u64>,
    /// Where its preempt_count lies.
    pub(super) preempt_count: Option<u64>,
}

impl Cpu {
    /// A call with this preempt_count.
    pub(super) fn conditions(self, count: u32, interrupts: bool) -> Conditions {
        Conditions {
            percpu: self.percpu,
            preempt_count: self.preempt_count,
            count: count | NO_RESCHED,
            interrupts,
            ..Conditions::default()
        }
    }
}

/// What goes into the recording beside the counts.
pub(super) struct Known<'a> {
    pub(super) symbols: &'a Kallsyms,
    pub(super) text: &'a Snapshot<'a>,
    pub(super) code: Code,
}

/// What was seen at a place, for a call there.
fn at_call(seen: &Seen, place: &Place, call: &Call) -> Seen {
    let all = seen.hits.iter().sum();
    let hits = if place.proxy.is_some() {
        // On the way out of the kernel interrupts are off.
        [0.0, all, 0.0]
    } else if call.deeper > 0 {
        // Nested, if it was not already.
        [all, 0.0, 0.0]
    } else {
        seen.hits
    };
    Seen { hits, ..*seen }
}

pub(super) fn result(
    plan: &Plan,
    settings: &Settings,
    counted: &Counted,
    known: &Known<'_>,
) -> Counting {
    let addresses: Vec<u64> = plan.targets.iter().map(|target| target.address).collect();
    let all = call_sites(known.code.arch, known.text, &addresses, known.symbols);
    let is_ours = |address: u64| addresses.contains(&address);
    let caller = |address: u64| {
        let symbol = known.symbols.lookup(address)?;
        caller_cost(known.text, &symbol, address, &is_ours)
    };
    // What a call of a target takes in its callers, over all of them.
    let typical: Vec<Option<f64>> = (0..plan.targets.len())
        .map(|target| {
            let costs: Vec<f64> = all
                .iter()
                .filter(|site| site.target == target)
                .filter_map(|site| caller(site.address))
                .map(|cost| f64::from(cost.instructions()))
                .collect();
            (!costs.is_empty()).then(|| costs.iter().sum::<f64>() / costs.len() as f64)
        })
        .collect();

    let site = |place: &Place, call: &Call, looked: &Looked| {
        let symbol = known.symbols.lookup(call.address);
        let seen: Vec<Seen> = looked
            .seen
            .iter()
            .map(|seen| at_call(seen, place, call))
            .collect();
        let hit = seen.iter().any(|seen| seen.hits != [0.0; 3]);
        let cost = caller(call.address).filter(|_| !place.entry);
        let target = addresses[call.target];
        let walked = |count: u32, interrupts: bool| {
            let argument = cost.and_then(|cost| cost.argument);
            // A count is never taken below zero.
            let least = argument.filter(|argument| *argument < 1 << 20).unwrap_or(0);
            let is_sub = plan.targets[call.target].symbol == "preempt_count_sub";
            let count = if is_sub {
                count.max(least as u32)
            } else {
                count
            };
            let conditions = Conditions {
                argument,
                return_address: call.address + known.code.arch.call_length(),
                ..known.code.cpu.conditions(count, interrupts)
            };
            let separate = |address| address != target && is_ours(address);
            walk(known.text, target, &conditions, &separate).map(|path| path.instructions)
        };
        let callee = if hit {
            match (walked(1, true), walked(0, false), walked(0, true)) {
                (Some(nested), Some(off), Some(preemptible)) => Some([nested, off, preemptible]),
                // Outside of preemptible code it may never be called.
                (Some(nested), _, _) => Some([nested; 3]),
                (None, _, Some(preemptible)) => Some([preemptible; 3]),
                _ => None,
            }
        } else {
            None
        };
        CountedSite {
            target: call.target as u32,
            function: symbol.map_or_else(String::new, |symbol| base_name(symbol.name).to_owned()),
            offset: symbol.map_or(0, |symbol| symbol.offset as u32),
            entry: place.entry,
            out_of_reach: looked.refused,
            likely: looked.likely,
            counted_at: place.proxy.map(str::to_owned),
            callee,
            caller: if place.entry {
                typical[call.target]
            } else {
                cost.filter(|_| hit)
                    .map(|cost| f64::from(cost.instructions()))
            },
            seen,
        }
    };
    let sites: Vec<CountedSite> = plan
        .places
        .iter()
        .zip(&counted.places)
        .flat_map(|(place, looked)| {
            let site = &site;
            place
                .calls
                .iter()
                .map(move |call| site(place, call, looked))
        })
        .collect();
    let targets = plan
        .targets
        .iter()
        .enumerate()
        .map(|(index, target)| CountedFunction {
            symbol: target.symbol.clone(),
            inlined: target.inlined,
            sites: all.iter().filter(|site| site.target == index).count() as u32,
            out_of_reach: sites
                .iter()
                .filter(|site| site.target as usize == index && site.out_of_reach)
                .count() as u32,
        })
        .collect();
    let (pace, pace_source) = known.code.pace.clone();
    Counting {
        leg: "breakpoint".to_owned(),
        windows: counted.windows,
        armed_ns: counted.armed_ns,
        hits: counted.hits,
        hit_price: settings.hit_price,
        thread_ns: counted.thread_ns,
        pace,
        pace_source,
        wall_ns: counted.wall_ns,
        cpus: settings.cpus.len() as u32,
        window_samples: 0,
        targets,
        // Places where nothing was seen are most of them, and say nothing but how
        // long nothing was seen; one number does for all.
        sites,
    }
}
