//! aya's loader of BPF objects, made once.
//!
//! A new one reads and parses the BTF of the whole kernel, for relocations that
//! our objects do not have, and that took more time than everything else that is
//! done to load one. A run opens objects half a dozen times.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use aya::{Ebpf, EbpfError, EbpfLoader};
use zerocopy::{Immutable, IntoBytes};

static LOADER: LazyLock<Mutex<Loader>> = LazyLock::new(|| Mutex::new(Loader::new()));

/// The loader. What is set stays for the objects that are loaded after: each has
/// to set all that any other sets.
pub(super) struct Loader {
    loader: EbpfLoader<'static>,
    /// Values of globals, which must live as long as the loader. There are only so
    /// many different ones.
    values: BTreeSet<&'static [u8]>,
}

impl Loader {
    /// Takes the loader, for one object.
    pub(super) fn lock() -> MutexGuard<'static, Self> {
        LOADER.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> Self {
        let mut loader = EbpfLoader::new();
        // Several megabytes.
        loader.btf(None);
        Self {
            loader,
            values: BTreeSet::new(),
        }
    }

    /// Sets a global, which the object must have.
    pub(super) fn set<T: IntoBytes + Immutable>(&mut self, name: &'static str, value: &T) {
        let value = self.kept(value.as_bytes());
        self.loader.override_global(name, value, true);
    }

    /// Sets how many entries a map has.
    pub(super) fn size(&mut self, map: &'static str, entries: u32) {
        self.loader.map_max_entries(map, entries);
    }

    /// Loads an object: its maps are made, its programs are not loaded yet.
    pub(super) fn load(&mut self, object: &[u8]) -> Result<Ebpf, EbpfError> {
        self.loader.load(object)
    }

    fn kept(&mut self, value: &[u8]) -> &'static [u8] {
        if let Some(kept) = self.values.get(value) {
            return kept;
        }
        let kept: &'static [u8] = Box::leak(value.into());
        self.values.insert(kept);
        kept
    }
}
