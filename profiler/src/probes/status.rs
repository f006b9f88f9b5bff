//! The status table: what was wanted and what it got.

use serde::{Deserialize, Serialize};

/// One row of the status table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// The measurement, e.g. `switch`.
    pub wanted: String,
    /// The leg in use, e.g. `raw_tp`; `none` when no leg is left.
    pub leg: String,
    /// Why each better leg was not used, best first; empty when the best is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_not_better: String,
    /// What would make the better leg work; empty when nothing would or need.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub fix: String,
    /// There is nothing of the kind in this kernel: no leg is missed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub absent: bool,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_false(value: &bool) -> bool {
    !value
}

/// A program that was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramInfo {
    /// Its name in the BPF object.
    pub name: String,
    /// Instructions the verifier looked at; absent before 5.16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_instructions: Option<u32>,
    /// Bytes of machine code.
    pub jited_bytes: u32,
}
