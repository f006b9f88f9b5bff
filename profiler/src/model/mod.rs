//! Attribution and cost. Neither files nor the kernel are read here.

mod account;
mod analyse;
mod attribution;
mod cost;
mod interval;
mod knowledge;
pub mod ledger;
mod rcu;
pub mod report;
mod runs;
mod tally;
pub mod timers;
pub mod waits;

pub use analyse::{AnalyseOptions, analyse, analyse_with};
pub use attribution::{Attribution, Owned};
pub(crate) use attribution::{UNKNOWN, comm, frame_name, frames};
pub use interval::wilson;
pub use knowledge::Knowledge;
pub(crate) use rcu::rcu_function;
pub use report::Report;
pub use runs::{
    Measurements, PointMetric, ProfilerEffect, RunMetric, measurements, points, profiler_effect,
};
pub(crate) use tally::is_workload;
