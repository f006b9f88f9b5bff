//! Counters that generated code adds to, and their copies at the marks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::args::Choice;
use crate::branch::Branch;
use crate::document;
use crate::symbols::{FunctionIndex, SymbolTable};

/// Counters per block: big enough that a kernel's functions fit in a few
/// dozen.
const BLOCK: usize = 4096;

/// A growing array of counters whose addresses never change.
///
/// Generated code keeps the addresses for as long as the machine runs, so
/// blocks are never freed nor moved.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    blocks: Vec<&'static [AtomicU64]>,
    used: usize,
}

impl Arena {
    /// Adds a counter, zero, and returns its index.
    pub(crate) fn push(&mut self) -> usize {
        if self.used == self.blocks.len() * BLOCK {
            let block: Vec<AtomicU64> = (0..BLOCK).map(|_| AtomicU64::new(0)).collect();
            self.blocks.push(block.leak());
        }
        self.used += 1;
        self.used - 1
    }

    /// The counter itself.
    pub(crate) fn counter(&self, index: usize) -> &'static AtomicU64 {
        &self.blocks[index / BLOCK][index % BLOCK]
    }

    /// A copy of all counters as they are now.
    fn copy(&self) -> Vec<u64> {
        (0..self.used)
            .map(|index| self.counter(index).load(Ordering::Relaxed))
            .collect()
    }
}

/// Fixed counters at the beginning of the arena.
const USER: usize = 0;
const UNNAMED: usize = 1;
const FIRST_FUNCTION: usize = 2;

/// Half of the address space belongs to the kernel on x86-64.
const KERNEL: u64 = 1 << 63;

#[derive(Clone, Debug)]
struct SiteInfo {
    address: u64,
    caller: FunctionIndex,
    target: Option<FunctionIndex>,
    counter: usize,
}

/// All that is counted, by function and by site.
#[derive(Debug)]
pub(crate) struct Counters {
    arena: Arena,
    table: SymbolTable,
    functions: Choice,
    sites: Choice,
    site_index: HashMap<(u64, Option<FunctionIndex>), usize>,
    site_list: Vec<SiteInfo>,
    marks: u64,
    begin: Option<Vec<u64>>,
    windows: Vec<document::Window>,
}

impl Counters {
    /// Counters for the functions of `table`, all zero.
    pub(crate) fn new(table: SymbolTable, functions: Choice, sites: Choice) -> Self {
        let mut arena = Arena::default();
        for _ in 0..FIRST_FUNCTION + 2 * table.functions().len() {
            arena.push();
        }
        Self {
            arena,
            table,
            functions,
            sites,
            site_index: HashMap::new(),
            site_list: Vec::new(),
            marks: 0,
            begin: None,
            windows: Vec::new(),
        }
    }

    /// The counter of instructions at `address`, and that of the calls of the
    /// function that begins there.
    pub(crate) fn instruction(
        &self,
        address: u64,
    ) -> (&'static AtomicU64, Option<&'static AtomicU64>) {
        if address < KERNEL {
            return (self.arena.counter(USER), None);
        }
        let Some(function) = self.table.at(address) else {
            return (self.arena.counter(UNNAMED), None);
        };
        let index = FIRST_FUNCTION + 2 * function;
        let entry = self.table.functions()[function].start == address;
        (
            self.arena.counter(index),
            entry.then(|| self.arena.counter(index + 1)),
        )
    }

    /// The counter of the call site at `address`, when `branch` is one.
    ///
    /// A jump is a site when it goes to the beginning of another function.
    pub(crate) fn site(&mut self, address: u64, branch: Branch) -> Option<&'static AtomicU64> {
        let caller = self.table.at(address)?;
        let target = match branch {
            Branch::Call(target) => Some(self.table.starting_at(target)?),
            Branch::Jump(target) => Some(self.table.starting_at(target).filter(|t| *t != caller)?),
            Branch::Breakpoint => None,
        };
        let wanted = match target {
            Some(target) => self.sites.contains(&self.table.functions()[target].name),
            None => self.sites != Choice::None,
        };
        if !wanted {
            return None;
        }
        // Code that is patched at run time makes one address several sites.
        let index = *self.site_index.entry((address, target)).or_insert_with(|| {
            self.site_list.push(SiteInfo {
                address,
                caller,
                target,
                counter: self.arena.push(),
            });
            self.site_list.len() - 1
        });
        Some(self.arena.counter(self.site_list[index].counter))
    }

    /// Takes a mark: begins a window, or ends the one that is open.
    pub(crate) fn mark(&mut self) {
        self.marks += 1;
        let now = self.arena.copy();
        match self.begin.take() {
            None => self.begin = Some(now),
            Some(before) => self.windows.push(self.window(&before, &now)),
        }
    }

    fn window(&self, before: &[u64], now: &[u64]) -> document::Window {
        // A counter made inside the window was zero at its beginning.
        let count = |index: usize| now[index] - before.get(index).copied().unwrap_or(0);
        let mut kernel = count(UNNAMED);
        let mut functions = Vec::new();
        for (index, function) in self.table.functions().iter().enumerate() {
            let instructions = count(FIRST_FUNCTION + 2 * index);
            kernel += instructions;
            if instructions > 0 && self.functions.contains(&function.name) {
                functions.push(document::Function {
                    symbol: function.name.clone(),
                    address: function.start,
                    instructions,
                    calls: count(FIRST_FUNCTION + 2 * index + 1),
                });
            }
        }
        let mut sites: Vec<document::Site> = self
            .site_list
            .iter()
            .filter(|site| count(site.counter) > 0)
            .map(|site| {
                let caller = &self.table.functions()[site.caller];
                document::Site {
                    address: site.address,
                    caller: caller.name.clone(),
                    offset: site.address - caller.start,
                    target: site.target.map(|t| self.table.functions()[t].name.clone()),
                    calls: count(site.counter),
                }
            })
            .collect();
        sites.sort_by(|a, b| (a.address, &a.target).cmp(&(b.address, &b.target)));
        document::Window {
            instructions: document::Instructions {
                total: count(USER) + kernel,
                user: count(USER),
                kernel,
                kernel_unnamed: count(UNNAMED),
            },
            functions,
            sites,
        }
    }

    /// The document of all windows that ended.
    pub(crate) fn document(&self, mark: &str) -> document::Document {
        document::Document {
            schema: document::SCHEMA.to_owned(),
            mark: mark.to_owned(),
            marks: self.marks,
            windows: self.windows.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: u64 = 0xffff_ffff_8100_0000;
    const B: u64 = 0xffff_ffff_8100_0040;

    fn counters(sites: Choice) -> Counters {
        let table = SymbolTable::parse(
            "ffffffff81000000 T a\nffffffff81000040 T b\nffffffff81000080 D end\n",
        )
        .unwrap();
        Counters::new(table, Choice::All, sites)
    }

    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    #[test]
    fn only_what_lies_between_the_marks_counts() {
        let mut counters = counters(Choice::All);
        let (a, a_calls) = counters.instruction(A);
        let (user, none) = counters.instruction(0x40_0000);
        assert!(none.is_none());
        add(a, 1000);
        counters.mark();
        add(a, 5);
        add(a_calls.unwrap(), 2);
        add(user, 7);
        // A site first translated inside the window.
        let site = counters.site(A + 8, Branch::Call(B)).unwrap();
        add(site, 3);
        let (unnamed, _) = counters.instruction(0xffff_ffff_c000_0000);
        add(unnamed, 4);
        counters.mark();
        add(a, 1000);

        let document = counters.document("m");
        assert_eq!(document.marks, 2);
        let window = &document.windows[0];
        assert_eq!(
            window.instructions,
            document::Instructions {
                total: 16,
                user: 7,
                kernel: 9,
                kernel_unnamed: 4
            }
        );
        assert_eq!(window.functions.len(), 1);
        assert_eq!(window.functions[0].instructions, 5);
        assert_eq!(window.functions[0].calls, 2);
        assert_eq!(window.sites[0].caller, "a");
        assert_eq!(window.sites[0].offset, 8);
        assert_eq!(window.sites[0].target.as_deref(), Some("b"));
        assert_eq!(window.sites[0].calls, 3);
    }

    #[test]
    fn an_open_window_is_not_reported() {
        let mut counters = counters(Choice::All);
        for _ in 0..3 {
            counters.mark();
        }
        let document = counters.document("m");
        assert_eq!((document.marks, document.windows.len()), (3, 1));
    }

    #[test]
    fn what_is_a_site() {
        let mut all = counters(Choice::All);
        assert!(all.site(A + 8, Branch::Call(B)).is_some());
        assert!(all.site(A + 8, Branch::Call(A)).is_some(), "recursion");
        assert!(all.site(A + 8, Branch::Call(B + 1)).is_none());
        assert!(all.site(A + 8, Branch::Jump(B)).is_some(), "tail call");
        assert!(all.site(A + 8, Branch::Jump(A)).is_none(), "loop");
        assert!(all.site(A + 8, Branch::Breakpoint).is_some());
        assert!(all.site(0x1000, Branch::Call(B)).is_none(), "user code");
        let mut some = counters(Choice::Names(vec!["a".to_owned()]));
        assert!(some.site(A + 8, Branch::Call(B)).is_none());
        assert!(some.site(B + 8, Branch::Call(A)).is_some());
        let mut none = counters(Choice::None);
        assert!(none.site(A + 8, Branch::Breakpoint).is_none());
    }

    #[test]
    fn one_site_keeps_its_counter_over_translations() {
        let mut counters = counters(Choice::All);
        let first = counters.site(A + 8, Branch::Call(B)).unwrap();
        let again = counters.site(A + 8, Branch::Call(B)).unwrap();
        assert!(std::ptr::eq(first, again));
        let other = counters.site(A + 13, Branch::Call(B)).unwrap();
        assert!(!std::ptr::eq(first, other));
    }

    #[test]
    fn addresses_stay_when_the_arena_grows() {
        let mut arena = Arena::default();
        let index = arena.push();
        let before: *const AtomicU64 = arena.counter(index);
        for _ in 0..3 * BLOCK {
            arena.push();
        }
        assert!(std::ptr::eq(before, arena.counter(index)));
        assert_eq!(arena.copy().len(), 3 * BLOCK + 1);
    }
}
