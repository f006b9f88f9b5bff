//! Built-in benchmarks.
