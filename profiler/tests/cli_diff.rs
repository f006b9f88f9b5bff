//! `preemptprof diff` as its users run it.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;
mod common;

use std::fs;
use std::path::PathBuf;

use command::{folder, run};
use profiler::recording::{Metric, RunRecord, save};
use serde_json::Value;
use tempfile::TempDir;

/// Two recordings, the second of a kernel that is slower by a tenth.
fn files() -> (TempDir, PathBuf, PathBuf) {
    let folder = folder();
    let write = |name: &str, factor: f64| {
        let mut recording = common::messaging();
        recording.trailer.runs = (0..5)
            .map(|run| RunRecord {
                profiled: true,
                end_ns: 1 << 40,
                metric: Some(Metric {
                    name: "total time".into(),
                    value: factor * (3.0 + f64::from(run) / 1000.0),
                    unit: "s".into(),
                    better: "lower".into(),
                }),
                ..RunRecord::default()
            })
            .collect();
        let path = folder.path().join(name);
        save(&recording, &path, false).unwrap();
        path
    };
    let (base, new) = (write("base.pprec", 1.0), write("new.pprec", 1.1));
    (folder, base, new)
}

#[test]
fn a_comparison_in_every_shape() {
    let (folder, base, new) = files();
    let (base, new) = (base.to_str().unwrap(), new.to_str().unwrap());
    let text = run(["diff", base, "--vs", new]).exits(0).out();
    assert!(
        text.contains("Amean  3.0020 (0.00%)  3.3022 *-10.00%*"),
        "{text}"
    );
    let document = run(["diff", base, "--vs", new, "--format", "json"]).exits(0);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!(document["metric"]["significant"], true);
    for (name, begins) in [
        ("a.svg", "<?xml"),
        ("a.json", "{"),
        ("a.md", "**"),
        ("a.txt", "total"),
    ] {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        run(["diff", base, "--vs", new, "-o", path]).exits(0);
        assert!(
            fs::read_to_string(path).unwrap().starts_with(begins),
            "{name}"
        );
        run(["diff", base, "--vs", new, "-o", path]).refuses(1, "exists");
        run(["diff", base, "--vs", new, "--force", "-o", path]).exits(0);
    }
    run(["diff", base, "--vs", new, "-o", "a.what"]).refuses_with_hint(2, "which format");
}

#[test]
fn a_regression_is_a_status() {
    let (_folder, base, new) = files();
    let (base, new) = (base.to_str().unwrap(), new.to_str().unwrap());
    run(["diff", base, "--vs", new, "--fail-above", "5"]).exits(1);
    run(["diff", base, "--vs", new, "--fail-above", "11%"]).exits(0);
    run(["diff", new, "--vs", base, "--fail-above", "0"]).exits(0);
    run(["diff", base, "--vs", new, "--fail-above", "-1"]).exits(2);
}

#[test]
fn what_is_no_recording_is_refused() {
    let (folder, base, _) = files();
    let base = base.to_str().unwrap();
    let other = folder.path().join("report.json");
    fs::write(&other, "{\"schema\": \"preemptprof/report/1\"}").unwrap();
    let other = other.to_str().unwrap();
    run(["diff", base, "--vs", other]).refuses(1, "report.json");
    run(["diff", base, "--vs", "/no/such/file"]).refuses(1, "/no/such/file");
    run(["diff", base]).exits(2);
    run(["diff", "--vs", base]).exits(2);
}
