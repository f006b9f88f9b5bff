//! Tests that need what a machine lacks.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code"
)]

use std::fs::OpenOptions;
use std::io::Write as _;

/// Says that `test` cannot run here. The test runner counts it as skipped.
pub fn skip(test: &str, why: &str) {
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("PREEMPTPROF_SKIP_LOG") {
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        log.write_all(format!("{test}: {why}\n").as_bytes())
            .unwrap();
    }
}
