//! Recordings in the formats of other tools, one file per format.
//!
//! In each of them the samples of the workload add up to the recording's. Names
//! are escaped as in reports: no tool that shows one hands control characters of
//! a hostile task to its terminal, and different names stay different.

pub mod csv;
pub mod firefox;
pub mod folded;
pub(crate) mod group;
pub mod openmetrics;
pub mod pprof;
pub mod speedscope;
pub mod svg;
pub(crate) mod timeline;
pub mod trace;
pub(crate) mod tree;

/// What the weights of an export are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Samples of the workload.
    #[default]
    Time,
    /// Nanoseconds the workload was blocked in rcu_barrier.
    Rcu,
}
