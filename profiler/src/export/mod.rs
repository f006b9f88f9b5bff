//! Recordings in the formats of other tools, one file per format.

pub mod folded;
pub mod svg;

/// What the weights of an export are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Samples of the workload.
    #[default]
    Time,
    /// Nanoseconds the workload was blocked in rcu_barrier.
    Rcu,
}
