//! Calls that were counted, as a recording keeps them: what was seen, for how
//! long, and what a call executes. What follows from it is the model's.

use serde::{Deserialize, Serialize};

/// Windows are dealt out to so many groups; how much the groups differ says how
/// sure their sum is.
pub const GROUPS: usize = 20;

/// What counting calls came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counting {
    /// How hits were counted: `breakpoint`.
    pub leg: String,
    /// Windows in which something was armed.
    pub windows: u64,
    /// Their length together, nanoseconds of one CPU.
    pub armed_ns: u64,
    /// Hits, the target's and others'.
    pub hits: u64,
    /// What a hit costs.
    pub hit_price: Measured,
    /// CPU time of the counting thread, nanoseconds.
    pub thread_ns: u64,
    /// The pace of the code that is counted, nanoseconds per instruction.
    pub pace: Measured,
    /// How the pace was measured, one phrase.
    pub pace_source: String,
    /// From the workload's start to its end, nanoseconds.
    pub wall_ns: u64,
    /// CPUs on which calls were counted.
    pub cpus: u32,
    /// Samples left out, as they fell into windows.
    pub window_samples: u64,
    /// The functions whose calls are counted.
    pub targets: Vec<CountedFunction>,
    /// Where.
    pub sites: Vec<CountedSite>,
}

/// A number with the interval that noise leaves it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The estimate.
    pub value: f64,
    /// The least it can be.
    pub low: f64,
    /// The most it can be.
    pub high: f64,
}

/// A function whose calls are counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountedFunction {
    /// Its name.
    pub symbol: String,
    /// Instructions that stand in place of a call where the option is off.
    pub inlined: u32,
    /// Call sites in this kernel's text.
    pub sites: u32,
    /// Of these, those that take no breakpoint.
    pub out_of_reach: u32,
}

/// A place where calls are counted: a call site, or the entry of the function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CountedSite {
    /// Index into [`Counting::targets`].
    pub target: u32,
    /// The function the site is in; the target itself for its entry.
    pub function: String,
    /// Bytes from the start of that function.
    pub offset: u32,
    /// The target's entry: calls from everywhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub entry: bool,
    /// The site takes no breakpoint: it is not counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub out_of_reach: bool,
    /// Instructions that a call executes in the target: nested, with interrupts
    /// off, and preemptible. Absent when the code is not understood, or nothing
    /// was counted here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callee: Option<[u32; 3]>,
    /// Instructions that a call takes in its caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<f64>,
    /// What was seen, by group of windows.
    pub seen: Vec<Seen>,
}

/// What was seen of a site in one group of windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The group, below [`GROUPS`].
    pub group: u8,
    /// CPU time that passed for what is watched: without what counting took.
    pub ns: f64,
    /// Hits by the target: nested, with interrupts off, and preemptible.
    pub hits: [u64; 3],
}
