//! The hash map of hot paths: what runs while a workload runs is part of the
//! profiler's cost.

use std::collections::HashMap;

/// A hash map with a quick hash function, seeded so that nobody can choose keys
/// that collide.
pub(crate) type FastMap<K, V> = HashMap<K, V, foldhash::fast::RandomState>;
