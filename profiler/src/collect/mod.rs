//! Bounded drains of the ring buffer, epoch counters, losses by reason, and the
//! profiler's own cost.

mod cost;
mod cpus;
mod drain;
pub mod prices;
mod rcu;
mod run;
mod signals;
mod tasks;
mod users;
pub mod workload;

pub use cost::Prices;
pub use run::{Ended, Outcome, Run, Watched};
pub use signals::Signals;
