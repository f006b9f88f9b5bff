//! What a kernel's debug and preemption options cost a benchmark.
//!
//! Data flows one way, and each arrow is a module boundary:
//!
//! ```text
//! kernel -> probes (plan, attach) -> collect (drain) -> recording -> model -> report / export
//!             catalog ------------------------------------------------^
//! ```
//!
//! Everything from [`recording`] to the right works on a file, without root, on
//! any machine.

pub mod catalog;
pub mod cli;
pub mod collect;
pub mod diff;
pub mod error;
pub mod export;
mod fast_map;
pub mod host;
pub mod import;
pub mod kernel;
pub mod metric;
pub mod model;
pub mod output;
pub mod probes;
pub mod recording;
pub mod report;
pub mod stats;
pub mod workloads;
