//! Bounded drains of the ring buffer, epoch counters, losses by reason, and the
//! profiler's own cost.

mod capture;
mod cost;
pub mod counting;
mod cpus;
mod drain;
mod ledger;
mod pin;
mod pingpong;
mod prices;
mod rcu;
mod run;
mod series;
mod signals;
mod tasks;
mod unprofiled;
mod users;
pub mod workload;

pub use capture::{Capture, Copying, Outputs};
pub use cost::{Price, Prices};
pub use prices::Calibration;
pub use run::{Ended, Outcome, Run, Watched};
pub use series::{Continued, Kind, Series, Step, schedule};
pub use signals::Signals;
pub use unprofiled::unprofiled;
