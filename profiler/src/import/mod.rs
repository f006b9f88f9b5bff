//! Recordings from samples that another tool took, for hosts where BPF is not
//! allowed: what `perf script` prints, and folded stacks.
//!
//! An import has samples and nothing else: no switches, no rcu_barrier, no cost
//! of the sampling. Its report says where it comes from.

mod facts;
pub mod folded;
mod lines;
pub mod perf_script;
mod stacks;

use std::collections::BTreeMap;

use crate::probes::ProbeStatus;
use crate::recording::{Evidence, Header, Trailer};

pub use facts::read_config;

use crate::kernel::Config;

/// What is known of imported samples beside what they say themselves.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Where the samples come from, for the report: `perf script out.txt`.
    pub source: String,
    /// The kernel's configuration, and the path it was read from.
    pub config: Option<(Config, String)>,
    /// `uname -r` of the kernel.
    pub release: Option<String>,
    /// The event whose samples are taken; others are left out.
    pub event: Option<String>,
    /// Samples per second and CPU.
    pub hz: Option<u64>,
    /// Weight of a folded stack that makes one sample; 1 when absent.
    pub weight: Option<u64>,
}

/// What came of an import.
#[derive(Debug)]
pub struct Imported<S> {
    /// What `make_sink` made, with everything in it.
    pub sink: S,
    /// The end of the recording.
    pub trailer: Trailer,
    /// The event of the samples.
    pub event: String,
    /// Samples taken.
    pub samples: u64,
    /// Samples left out, by event.
    pub left_out: BTreeMap<String, u64>,
    /// Lines that are nothing known.
    pub strange_lines: u64,
}

/// Nominal length of an epoch, nanoseconds: the resolution of time lines.
const EPOCH_NS: u64 = 100_000_000;

/// What the samples of an event see, by its name and the machine it counted on.
fn evidence(event: &str, arch: &str) -> Evidence {
    // A counter's interrupt can be masked on arm64, as a timer's.
    if is_timer(event) || event.is_empty() || event == UNKNOWN_EVENT || arch == "aarch64" {
        Evidence::SampledTimer
    } else {
        Evidence::SampledNmi
    }
}

fn is_timer(event: &str) -> bool {
    let name = event.split(':').next().unwrap_or_default();
    matches!(name, "cpu-clock" | "task-clock")
}

/// Stands for the event of samples that do not name it.
const UNKNOWN_EVENT: &str = "unknown event";

/// The status table of an import.
fn probes(tool: &str) -> Vec<ProbeStatus> {
    let none = |wanted: &str| ProbeStatus {
        wanted: wanted.to_owned(),
        leg: "none".to_owned(),
        why_not_better: format!("{tool} gives samples only"),
        fix: "record with preemptprof".to_owned(),
        absent: false,
    };
    vec![none("switch"), none("rcu_barrier")]
}

/// The header of an import, but for what only the samples say.
fn header(known: &Known) -> Header {
    Header {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        imported: Some(known.source.clone()),
        epoch_ns: EPOCH_NS,
        ..Header::default()
    }
}
