//! The versioned recording: what one profiled run saw. It does not depend on a
//! live kernel.

mod types;

pub use types::{
    Epoch, Evidence, Frame, FrameId, Gap, Header, Loss, Metric, Overhead, RcuEvent, Recording,
    RunInfo, Sample, SampleFlags, Sampling, Stack, StackId, SwitchCounts, Symbol, SymbolId, Target,
    TaskSwitches, Trailer,
};
