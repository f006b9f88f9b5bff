//! The JSON document the oracle writes; `cargo xtask lab` reads it with these
//! same types.

#![allow(
    unreachable_pub,
    reason = "each crate that includes this file uses a part of it"
)]

use serde::{Deserialize, Serialize};

/// The value of [`Document::schema`].
pub const SCHEMA: &str = "preemptprof/oracle/1";

/// Everything one run of a machine counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: String,
    /// The symbol that marks.
    pub mark: String,
    /// How often it was executed. Odd when the last window never ended.
    pub marks: u64,
    /// What was counted between the first and second mark, the third and
    /// fourth, and so on.
    pub windows: Vec<Window>,
}

/// Counts of one window: from the execution of its first mark to that of its
/// second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Instructions executed, by where they lie.
    pub instructions: Instructions,
    /// Functions of which at least one instruction was executed, by address.
    pub functions: Vec<Function>,
    /// Call sites executed at least once, by address.
    pub sites: Vec<Site>,
}

/// Executed instructions as `-icount` counts them: one for each repetition of
/// a `rep` prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instructions {
    /// All of them.
    pub total: u64,
    /// At user-space addresses.
    pub user: u64,
    /// At kernel addresses.
    pub kernel: u64,
    /// The part of `kernel` outside the symbol table: modules, BPF programs,
    /// ftrace and kprobe trampolines.
    pub kernel_unnamed: u64,
}

/// Counts of one function symbol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Its name in `System.map`.
    pub symbol: String,
    /// Its address; names of static functions repeat.
    pub address: u64,
    /// Executed instructions between this symbol and the next.
    pub instructions: u64,
    /// Executions of its first instruction. A loop that jumps back to the
    /// first instruction counts as calls.
    pub calls: u64,
}

/// Executions of one direct call, or of one direct jump to another function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    /// Address of the instruction.
    pub address: u64,
    /// The function it lies in.
    pub caller: String,
    /// Bytes from the start of the caller.
    pub offset: u64,
    /// The function it calls; absent for an `int3`, which stands for whatever
    /// instruction a probe replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How often it was executed.
    pub calls: u64,
}
