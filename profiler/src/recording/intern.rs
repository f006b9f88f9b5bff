//! Gives equal things one id, within a bounded memory.

use std::borrow::Borrow;
use std::hash::Hash;

use super::{FrameId, Symbol};
use crate::fast_map::FastMap;

/// Entries one table remembers.
const MAX_ENTRIES: usize = 14_000;
/// Bytes behind the pointers that one table remembers.
const MAX_BYTES: usize = 1 << 20;

/// The ids of one kind of thing.
///
/// When the table is full it forgets what it knew and goes on counting: ids stay
/// unique, and something seen before gets a second id.
#[derive(Debug)]
pub(super) struct Table<K> {
    known: FastMap<K, u32>,
    bytes: usize,
    next: u32,
}

/// What [`Table::intern`] says.
pub(super) enum Interned {
    /// Seen before.
    Known(u32),
    /// Not seen before: write it down.
    New(u32),
    /// Every id is taken.
    Exhausted,
}

impl<K: Eq + Hash + HeapBytes> Table<K> {
    pub(super) fn starting_at(next: u32) -> Self {
        Self {
            known: FastMap::default(),
            bytes: 0,
            next,
        }
    }

    /// Ids given out so far are below this.
    pub(super) const fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn intern<Q>(&mut self, key: &Q) -> Interned
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized + ToKey<K>,
    {
        if let Some(id) = self.known.get(key) {
            return Interned::Known(*id);
        }
        let Some(after) = self.next.checked_add(1) else {
            return Interned::Exhausted;
        };
        let id = self.next;
        self.next = after;
        let key = key.to_key();
        let bytes = key.heap_bytes();
        if self.known.len() >= MAX_ENTRIES || self.bytes + bytes > MAX_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += bytes;
        self.known.insert(key, id);
        Interned::New(id)
    }
}

/// Memory a key owns beside itself.
pub(super) trait HeapBytes {
    fn heap_bytes(&self) -> usize;
}

/// The owned form of a key.
pub(super) trait ToKey<K> {
    fn to_key(&self) -> K;
}

impl HeapBytes for Box<str> {
    fn heap_bytes(&self) -> usize {
        self.len()
    }
}

impl ToKey<Box<str>> for str {
    fn to_key(&self) -> Box<str> {
        self.into()
    }
}

impl HeapBytes for Symbol {
    fn heap_bytes(&self) -> usize {
        self.name.len() + self.module.len()
    }
}

impl ToKey<Self> for Symbol {
    fn to_key(&self) -> Self {
        self.clone()
    }
}

/// A frame's address, symbol and offset.
pub(super) type FrameKey = (u64, u32, u32);

impl HeapBytes for FrameKey {
    fn heap_bytes(&self) -> usize {
        0
    }
}

impl ToKey<Self> for FrameKey {
    fn to_key(&self) -> Self {
        *self
    }
}

impl HeapBytes for Box<[FrameId]> {
    fn heap_bytes(&self) -> usize {
        size_of_val::<[FrameId]>(self)
    }
}

impl ToKey<Box<[FrameId]>> for [FrameId] {
    fn to_key(&self) -> Box<[FrameId]> {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(interned: Interned) -> (u32, bool) {
        match interned {
            Interned::Known(id) => (id, false),
            Interned::New(id) => (id, true),
            Interned::Exhausted => panic!("exhausted"),
        }
    }

    #[test]
    fn equal_things_share_an_id() {
        let mut table = Table::<Box<str>>::starting_at(0);
        assert_eq!(id(table.intern("a")), (0, true));
        assert_eq!(id(table.intern("b")), (1, true));
        assert_eq!(id(table.intern("a")), (0, false));
    }

    #[test]
    fn a_full_table_forgets_but_never_reuses_an_id() {
        let mut table = Table::<Box<[FrameId]>>::starting_at(1);
        for n in 0..1_000_000_u32 {
            assert_eq!(id(table.intern([n, n / 3, 7].as_slice())), (n + 1, true));
            assert!(table.known.len() <= MAX_ENTRIES && table.bytes <= MAX_BYTES);
        }
        // Long keys are bounded by their bytes.
        let mut names = Table::<Box<str>>::starting_at(0);
        for n in 0..100 {
            names.intern(format!("{n}{}", "x".repeat(64 << 10)).as_str());
            assert!(names.bytes <= MAX_BYTES);
        }
    }

    #[test]
    fn ids_run_out_without_a_panic() {
        let mut table = Table::<Box<str>>::starting_at(u32::MAX);
        assert!(matches!(table.intern("x"), Interned::Exhausted));
    }
}
