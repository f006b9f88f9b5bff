//! What the host makes of a recording that a guest wrote.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::checks::Subject;
use super::product;
use crate::host;

/// The name of the check.
pub(super) const NAME: &str = "recording";

/// The file in the shared folder.
pub(super) const FILE: &str = "legs.pprec";

/// Reports the recording with `preemptprof`, and judges it: its counters only grow,
/// and the report is valid and says what the guest did.
///
/// # Errors
///
/// With what is wrong.
pub(super) fn verify(
    subject: &Subject,
    preemptprof: &Path,
    epochs: &Path,
    share: &Path,
) -> Result<()> {
    let file = share.join(FILE);
    ensure!(file.is_file(), "the guest sent no recording");
    host::read(Command::new(epochs).arg(&file))?;
    let text = host::read(
        Command::new(preemptprof)
            .args(["report", "--format", "json"])
            .arg(&file),
    )?;
    let report: Value = serde_json::from_str(&text).context("the report of the recording")?;
    valid_report(&report)?;
    product::verify_switches(&report)?;
    product::verify_other_legs(subject, &report, true)
}

/// The schema that the repository publishes.
const SCHEMA: &str = include_str!("../../../profiler/schema/report-1.json");

/// Fails unless the document follows the schema of reports.
///
/// # Errors
///
/// With what does not follow it.
pub(super) fn valid_report(report: &Value) -> Result<()> {
    let name = "report-1.json";
    let schema = serde_json::from_str(SCHEMA).context(name)?;
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.set_default_draft(boon::Draft::V2020_12);
    // Its errors borrow and cannot be handed on.
    compiler
        .add_resource(name, schema)
        .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    let index = compiler
        .compile(name, &mut schemas)
        .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    schemas
        .validate(report, index)
        .map_err(|error| anyhow::anyhow!("the report is not valid: {error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_refuses() {
        let no_schema = serde_json::json!({"options": []});
        let error = valid_report(&no_schema).unwrap_err().to_string();
        assert!(error.contains("not valid"), "{error}");
        assert!(valid_report(&serde_json::json!([])).is_err());
    }
}
