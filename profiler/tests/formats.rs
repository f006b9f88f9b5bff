//! Each export, read back by something that does not share its code: other
//! tools where they are installed, and decoders written here.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;
mod skip;
mod tools;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::process::Command;

use common::Builder;
use profiler::catalog::Catalog;
use profiler::export::{By, csv, firefox, openmetrics, pprof, speedscope, trace};
use profiler::model::{AnalyseOptions, Attribution, Knowledge, Report, analyse};
use profiler::recording::{Epoch, Recording, SwitchCounts};
use proptest::prelude::*;
use serde_json::Value;
use tools::{Csv, Protobuf, installed};

/// Names that mean something to one format or another.
const HOSTILE: [&str; 8] = [
    "a;b",
    "say \"no\", 'yes'",
    "<script>alert(1)</script>&amp;",
    "\u{1b}[31mred\u{7}",
    "back\\slash {x=\"y\"}",
    "new\nline\r\t",
    "\u{fffd} lossy \u{202e}",
    "=1+2",
];

/// A recording whose names are hostile.
fn hostile() -> Recording {
    let mut builder = Builder::new();
    builder.recording.header = common::messaging().header;
    builder.recording.header.command = vec!["<script>\u{1b}".to_owned(), "\"".to_owned()];
    for (index, name) in HOSTILE.into_iter().enumerate() {
        let count = index as u64 + 1;
        builder.kernel(
            count,
            name,
            common::TARGET,
            &[name, "entry_SYSCALL_64_after_hwframe"],
        );
        builder.kernel(1, name, common::TARGET, &["preempt_count_add", name]);
        builder.user(1, name, &[name]);
        builder.user(1, name, &[]);
        builder.rcu(name, 1_000, true, &[name]);
    }
    builder.recording
}

/// The recordings that every format must carry.
fn recordings() -> Vec<(&'static str, Recording)> {
    let mut epochs = common::messaging();
    for (cpu, time_ns, voluntary) in [(0, 100, 5), (1, 100, 7), (0, 200, 9), (1, 300, 7)] {
        epochs.epochs.push(Epoch {
            cpu,
            time_ns: time_ns * 1_000_000,
            switches: SwitchCounts {
                voluntary,
                preempted: voluntary / 2,
            },
            ..Epoch::default()
        });
    }
    vec![
        ("messaging", epochs),
        ("troubled", common::troubled()),
        ("hostile", hostile()),
        ("empty", Builder::new().recording),
    ]
}

struct Exported {
    pprof: Vec<u8>,
    firefox: Vec<u8>,
    speedscope: Vec<u8>,
    trace: Vec<u8>,
    options: Vec<u8>,
    callers: Vec<u8>,
    metrics: Vec<u8>,
    report: Report,
}

fn export(recording: &Recording) -> Exported {
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(recording, &knowledge);
    let report = analyse(recording, &common::catalog(), &AnalyseOptions::default());
    let bytes = |write: &dyn Fn(&mut Vec<u8>) -> std::io::Result<()>| {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        out
    };
    Exported {
        pprof: bytes(&|out| pprof::write(recording, &attribution, By::Time, out)),
        firefox: bytes(&|out| firefox::write(recording, &attribution, out)),
        speedscope: bytes(&|out| speedscope::write(recording, &attribution, By::Time, out)),
        trace: bytes(&|out| trace::write(recording, &attribution, out)),
        options: bytes(&|out| csv::write_options(&report, out)),
        callers: bytes(&|out| csv::write_callers(&report, out)),
        metrics: bytes(&|out| openmetrics::write(&report, out)),
        report,
    }
}

fn owned(report: &Report) -> BTreeMap<String, u64> {
    report
        .options
        .iter()
        .map(|option| {
            let samples = option.functions.iter().map(|f| f.samples).sum();
            (option.option.name.clone(), samples)
        })
        .filter(|(_, samples)| *samples > 0)
        .collect()
}

#[test]
fn pprof_by_its_wire_format() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&exported.pprof[..])
            .read_to_end(&mut plain)
            .unwrap();
        let profile = Protobuf::parse(&plain);
        let strings: Vec<String> = profile
            .all(6)
            .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
            .collect();
        assert_eq!(strings[0], "", "{name}");
        let ids = |field: u64| -> BTreeSet<u64> {
            profile
                .all(field)
                .map(|bytes| Protobuf::parse(bytes).number(1))
                .collect()
        };
        let (mappings, locations, functions) = (ids(3), ids(4), ids(5));
        assert!(!locations.contains(&0) && !functions.contains(&0));
        for location in profile.all(4).map(Protobuf::parse) {
            let mapping = location.number(2);
            assert!(mapping == 0 || mappings.contains(&mapping), "{name}");
            for line in location.all(4).map(Protobuf::parse) {
                assert!(functions.contains(&line.number(1)), "{name}");
            }
        }
        let (mut total, mut by_option) = (0, BTreeMap::new());
        for sample in profile.all(2).map(Protobuf::parse) {
            let values = sample.numbers(2);
            assert_eq!(values.len(), profile.all(1).count(), "{name}");
            assert!(sample.numbers(1).iter().all(|id| locations.contains(id)));
            total += values[0];
            for label in sample.all(3).map(Protobuf::parse) {
                let text = |field| strings[usize::try_from(label.number(field)).unwrap()].clone();
                if text(1) == "option" {
                    *by_option.entry(text(2)).or_insert(0) += values[0];
                }
            }
        }
        assert_eq!(total, exported.report.sampling.samples, "{name}");
        assert_eq!(by_option, owned(&exported.report), "{name}");
        assert!(
            strings.iter().all(|s| !s.chars().any(char::is_control)),
            "{name}"
        );
    }
}

#[test]
fn pprof_by_go() {
    let Some(go) = installed("go") else {
        return skip::skip("pprof_by_go", "go is not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let path = dir.path().join("a.pb.gz");
        fs::write(&path, &exported.pprof).unwrap();
        let output = Command::new(&go)
            .args(["tool", "pprof", "-raw"])
            .arg(&path)
            .env("HOME", dir.path())
            .env("PPROF_TMPDIR", dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let problem = String::from_utf8_lossy(&output.stderr);
        if exported.report.sampling.samples == 0 {
            // Go refuses a profile without samples or takes it; it must not crash.
            continue;
        }
        assert!(output.status.success(), "{name}: {problem}");
        let (_, samples) = text.split_once("Samples:\n").unwrap();
        let (samples, _) = samples.split_once("Locations\n").unwrap();
        let total: u64 = samples
            .lines()
            .skip(1)
            .filter_map(|line| {
                line.split_once(':')?
                    .0
                    .split_whitespace()
                    .next()?
                    .parse::<u64>()
                    .ok()
            })
            .sum();
        assert_eq!(total, exported.report.sampling.samples, "{name}: {text}");
    }
}

#[test]
fn speedscope_by_its_schema() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let file: Value = serde_json::from_slice(&exported.speedscope).unwrap();
        assert_eq!(
            file["$schema"],
            "https://www.speedscope.app/file-format-schema.json"
        );
        let frames = file["shared"]["frames"].as_array().unwrap();
        assert!(frames.iter().all(|frame| frame["name"].is_string()));
        let profile = &file["profiles"][0];
        assert_eq!(profile["type"], "sampled");
        assert!(profile["name"].is_string());
        assert_eq!(profile["unit"], "none");
        let samples = profile["samples"].as_array().unwrap();
        let weights = profile["weights"].as_array().unwrap();
        assert_eq!(samples.len(), weights.len());
        let (mut total, mut by_option) = (0, BTreeMap::new());
        for (stack, weight) in samples.iter().zip(weights) {
            let weight = weight.as_u64().unwrap();
            total += weight;
            let stack = stack.as_array().unwrap();
            assert!(!stack.is_empty());
            let names: Vec<&str> = stack
                .iter()
                .map(|id| {
                    let id = usize::try_from(id.as_u64().unwrap()).unwrap();
                    frames[id]["name"].as_str().unwrap()
                })
                .collect();
            if let Some(option) = names.last().unwrap().strip_prefix("[CONFIG_") {
                let option = format!("CONFIG_{}", option.trim_end_matches(']'));
                *by_option.entry(option).or_insert(0) += weight;
            }
        }
        assert_eq!(total, exported.report.sampling.samples, "{name}");
        assert_eq!(profile["startValue"], 0);
        assert_eq!(profile["endValue"].as_u64(), Some(total));
        assert_eq!(by_option, owned(&exported.report), "{name}");
    }
}

#[test]
fn firefox_by_its_tables() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let profile: Value = serde_json::from_slice(&exported.firefox).unwrap();
        let categories = profile["meta"]["categories"].as_array().unwrap();
        let (mut total, mut by_option) = (0, BTreeMap::new());
        for thread in profile["threads"].as_array().unwrap() {
            let samples = &thread["samples"];
            let length = samples["length"].as_u64().unwrap();
            total += length;
            assert_eq!(thread["samples"]["weightType"], "samples");
            let stacks = thread["stackTable"]["frame"].as_array().unwrap();
            let frames = thread["frameTable"]["category"].as_array().unwrap();
            for stack in samples["stack"].as_array().unwrap() {
                let Some(mut at) = stack.as_u64() else {
                    continue;
                };
                // The first category of an option met outwards, as owners are.
                let prefixes = thread["stackTable"]["prefix"].as_array().unwrap();
                loop {
                    let frame = stacks[usize::try_from(at).unwrap()].as_u64().unwrap();
                    let category = frames[usize::try_from(frame).unwrap()].as_u64().unwrap();
                    let category = &categories[usize::try_from(category).unwrap()]["name"];
                    let category = category.as_str().unwrap();
                    if category.starts_with("CONFIG_") {
                        *by_option.entry(category.to_owned()).or_insert(0) += 1;
                        break;
                    }
                    match prefixes[usize::try_from(at).unwrap()].as_u64() {
                        Some(prefix) => at = prefix,
                        None => break,
                    }
                }
            }
        }
        assert_eq!(total, exported.report.sampling.samples, "{name}");
        assert_eq!(by_option, owned(&exported.report), "{name}");
    }
}

#[test]
fn trace_by_its_events() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let file: Value = serde_json::from_slice(&exported.trace).unwrap();
        let events = file["traceEvents"].as_array().unwrap();
        let sum = |counter: &dyn Fn(&str) -> bool, field: &str| -> u64 {
            events
                .iter()
                .filter(|event| event["ph"] == "C" && counter(event["name"].as_str().unwrap()))
                .map(|event| event["args"][field].as_u64().unwrap())
                .sum()
        };
        let report = &exported.report;
        let samples = |counter: &str| counter == "samples";
        assert_eq!(
            sum(&samples, "user"),
            report.sampling.user_samples,
            "{name}"
        );
        assert_eq!(
            sum(&samples, "user") + sum(&samples, "kernel"),
            report.sampling.samples,
            "{name}"
        );
        let blocked: f64 = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| event["dur"].as_f64().unwrap() * 1e3)
            .sum();
        let expected: u64 = recording
            .rcu
            .iter()
            .filter(|event| event.target)
            .map(|event| event.duration_ns)
            .sum();
        assert!((blocked - expected as f64).abs() < 1.0, "{name}");
        let switches = |counter: &str| counter.ends_with(" switches");
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for epoch in &recording.epochs {
            last.insert(epoch.cpu, epoch.switches.voluntary);
        }
        assert_eq!(
            sum(&switches, "voluntary"),
            last.values().sum::<u64>(),
            "{name}"
        );
    }
}

#[test]
fn trace_tells_rcu_calls_apart() {
    let mut builder = Builder::new();
    builder.recording.header = common::messaging().header;
    for function in [
        "synchronize_rcu_expedited",
        "rcu_barrier",
        "synchronize_rcu",
    ] {
        builder.rcu("ip", 5_000, true, &[function, "netdev_run_todo+0x5b"]);
    }
    let file: Value = serde_json::from_slice(&export(&builder.recording).trace).unwrap();
    let names: Vec<&str> = file["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| event["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "synchronize_rcu_expedited",
            "rcu_barrier",
            "synchronize_rcu"
        ]
    );
}

#[test]
fn csv_adds_up() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let report = &exported.report;
        let options = Csv::parse(&String::from_utf8(exported.options).unwrap());
        assert_eq!(options.sum("samples"), report.sampling.samples, "{name}");
        assert_eq!(options.rows.len(), report.options.len() + 2);
        let callers = Csv::parse(&String::from_utf8(exported.callers).unwrap());
        assert_eq!(
            callers.sum("samples"),
            owned(report).values().sum::<u64>(),
            "{name}"
        );
    }
}

/// The samples of a metric: labels and value.
fn metric<'t>(text: &'t str, name: &str) -> Vec<(&'t str, f64)> {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .filter_map(|rest| rest.rsplit_once(' '))
        .map(|(labels, value)| (labels, value.parse().unwrap()))
        .collect()
}

#[test]
fn openmetrics_adds_up() {
    for (name, recording) in recordings() {
        let exported = export(&recording);
        let text = String::from_utf8(exported.metrics).unwrap();
        assert!(text.ends_with("\n# EOF\n"), "{name}");
        let samples = metric(&text, "preemptprof_samples");
        let total: f64 = samples.iter().map(|(_, value)| value).sum();
        assert_eq!(total as u64, exported.report.sampling.samples, "{name}");
        // Each family is declared once, before its samples.
        let mut declared = BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let family = rest.split(' ').next().unwrap();
                assert!(declared.insert(family), "{name}: {family} twice");
            } else if !line.starts_with('#') {
                let family = line.split(['{', ' ']).next().unwrap();
                assert!(declared.contains(family), "{name}: {line}");
            }
        }
        for line in text.lines().filter_map(|l| l.strip_prefix("# UNIT ")) {
            let (family, unit) = line.split_once(' ').unwrap();
            assert!(family.ends_with(&format!("_{unit}")), "{name}: {line}");
        }
    }
}

#[test]
fn openmetrics_by_promtool() {
    let Some(promtool) = installed("promtool") else {
        return skip::skip("openmetrics_by_promtool", "promtool is not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, recording) in recordings() {
        let path = dir.path().join("a.prom");
        fs::write(&path, export(&recording).metrics).unwrap();
        let output = Command::new(&promtool)
            .args(["check", "metrics"])
            .stdin(fs::File::open(&path).unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {said}");
        assert_eq!(said, "", "{name}");
    }
}

#[test]
fn hostile_names_stay_apart() {
    let exported = export(&hostile());
    let file: Value = serde_json::from_slice(&exported.speedscope).unwrap();
    let names: BTreeSet<&str> = file["shared"]["frames"]
        .as_array()
        .unwrap()
        .iter()
        .map(|frame| frame["name"].as_str().unwrap())
        .collect();
    for name in HOSTILE {
        let escaped = profiler::report::escape(name);
        assert!(names.contains(&*escaped), "{escaped}");
    }
    for bytes in [
        &exported.firefox,
        &exported.speedscope,
        &exported.trace,
        &exported.options,
        &exported.callers,
        &exported.metrics,
    ] {
        let text = std::str::from_utf8(bytes).unwrap();
        let control = |c: char| c.is_control() && c != '\n' && c != '\r';
        assert!(!text.chars().any(control));
    }
}

#[test]
fn blocked_time_adds_up() {
    let recording = common::messaging();
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    let mut out = Vec::new();
    speedscope::write(&recording, &attribution, By::Rcu, &mut out).unwrap();
    let file: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(file["profiles"][0]["endValue"], 149_500_000);
    assert_eq!(file["profiles"][0]["unit"], "nanoseconds");
    let mut out = Vec::new();
    pprof::write(&recording, &attribution, By::Rcu, &mut out).unwrap();
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(&out[..])
        .read_to_end(&mut plain)
        .unwrap();
    let profile = Protobuf::parse(&plain);
    let total: u64 = profile
        .all(2)
        .map(|sample| Protobuf::parse(sample).numbers(2)[0])
        .sum();
    assert_eq!(total, 149_500_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn totals_survive_any_names(
        names in prop::collection::vec(any::<String>(), 1..6),
        counts in prop::collection::vec(1_u64..20, 1..12),
    ) {
        let mut builder = Builder::new();
        builder.recording.header = common::messaging().header;
        for (index, &count) in counts.iter().enumerate() {
            let name = &names[index % names.len()];
            let inner = ["preempt_count_add", name][index % 2];
            builder.kernel(count, name, common::TARGET, &[inner, name]);
        }
        let total: u64 = counts.iter().sum();
        let exported = export(&builder.recording);
        let file: Value = serde_json::from_slice(&exported.speedscope).unwrap();
        prop_assert_eq!(file["profiles"][0]["endValue"].as_u64(), Some(total));
        let file: Value = serde_json::from_slice(&exported.firefox).unwrap();
        let samples: u64 = file["threads"].as_array().unwrap().iter()
            .map(|thread| thread["samples"]["length"].as_u64().unwrap())
            .sum();
        prop_assert_eq!(samples, total);
        let metrics = String::from_utf8(exported.metrics).unwrap();
        let sum: f64 = metric(&metrics, "preemptprof_samples").iter().map(|(_, v)| v).sum();
        prop_assert_eq!(sum as u64, total);
        let callers = Csv::parse(&String::from_utf8(exported.callers).unwrap());
        prop_assert_eq!(callers.sum("samples"), owned(&exported.report).values().sum::<u64>());
    }
}

#[test]
fn the_builtin_catalogue_exports_too() {
    let recording = common::messaging();
    let report = analyse(&recording, Catalog::builtin(), &AnalyseOptions::default());
    let mut out = Vec::new();
    csv::write_options(&report, &mut out).unwrap();
    let options = Csv::parse(&String::from_utf8(out).unwrap());
    assert_eq!(options.sum("samples"), report.sampling.samples);
}
