//! The oracle: a QEMU TCG plugin that counts, exactly, what a guest kernel
//! executes between two marks.
//!
//! It sees every instruction the emulated CPU executes and is invisible to the
//! guest: under `-icount shift=0` the guest's clock is the number of executed
//! instructions, and a plugin adds none. Per function symbol of a `System.map`
//! it counts instructions and calls (executions of the first instruction), and
//! per direct call or jump to a function it counts executions.
//!
//! ```text
//! qemu-system-x86_64 -accel tcg,thread=single -icount shift=0 -smp 1 \
//!     -plugin libpreemptprof_oracle.so,map=System.map,out=oracle.json ...
//! ```
//!
//! The guest kernel must be booted with `nokaslr`, or no address matches. A
//! mark is the execution of the first instruction of the symbol in `mark=`
//! (by default `__x64_sys_sethostname`, which nothing calls during a
//! benchmark); marks come in pairs, and each pair is one counting window.
//!
//! Plugin API version 1, which is QEMU 6.0 to 8.2. QEMU 9.0 changed the ABI and
//! refuses a plugin of version 1 itself.

mod args;
mod branch;
mod counters;
pub mod document;
mod symbols;

// A test executable has no QEMU to resolve these symbols against.
#[cfg(not(test))]
pub mod abi;
#[cfg(not(test))]
pub mod plugin;
