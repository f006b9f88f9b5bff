//! What `cargo xtask` does, as a library: set-up, virtual machines, the kernel
//! matrix, tests and releases of preemptprof.
//!
//! Nothing here depends on the `profiler` package, whose build needs a BPF
//! toolchain: `cargo xtask setup` must work where there is none.

pub mod dist;
pub mod host;
pub mod kernels;
pub mod lab;
pub mod run;
pub mod setup;
pub mod test;
pub mod vm;

/// Errors with `hint:` lines, the same as the product's.
#[path = "../../profiler/src/error.rs"]
pub mod error;

/// Which compiler builds the BPF object, shared with `profiler/build.rs`.
#[path = "../../profiler/build/toolchain.rs"]
mod toolchain;
