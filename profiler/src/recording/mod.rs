//! The versioned recording: what one profiled run saw. It does not depend on a
//! live kernel.
//!
//! [`Writer`] and [`MemorySink`] take a run as it happens, both as a [`Sink`];
//! [`read`] and [`salvage`] give it back as a [`Recording`].

mod concat;
mod counting;
mod format;
mod intern;
mod ledger;
mod memory;
mod merge;
mod reader;
mod sink;
mod trailer;
mod types;
mod window;
mod writer;

pub use concat::concat;
pub use counting::{CountedFunction, CountedSite, Counting, GROUPS, Measured, Seen};
pub use ledger::{Histogram, Latency, LatencyGroup, Ledger, Preemption, Ticks, TimerWaits};
pub use memory::MemorySink;
pub use reader::{Salvaged, read, salvage};
pub use sink::Sink;
pub use types::{
    Epoch, Evidence, Frame, FrameId, Gap, Header, Loss, Metric, Overhead, RcuEvent, Recording,
    RunInfo, RunRecord, Sample, SampleFlags, Sampling, Stack, StackId, SwitchCounts, Symbol,
    SymbolId, Target, TaskSwitches, Trailer,
};
pub use window::{Window, WindowSink};
pub use writer::{Finished, Writer, save};
