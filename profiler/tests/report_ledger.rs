//! The ledger's part of reports, against a snapshot and the schema.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::collections::BTreeMap;

use profiler::kernel::causes;
use profiler::model::{self, AnalyseOptions, Report};
use profiler::probes::ProbeStatus;
use profiler::recording::{
    Histogram, Latency, LatencyGroup, Ledger, Preemption, Recording, Ticks, TimerWaits,
};
use profiler::report::{json, text};
use serde_json::Value;

fn histogram(times: impl IntoIterator<Item = u64>) -> Histogram {
    let mut histogram = Histogram::default();
    for ns in times {
        histogram.note(ns);
    }
    histogram
}

fn preemption(by: &str, thread: bool, cause: &str, count: u64, wait_ns: u64) -> Preemption {
    Preemption {
        of: "sched-messaging".to_owned(),
        by: by.to_owned(),
        by_kernel_thread: thread,
        cause: cause.to_owned(),
        count,
        waits: count,
        wait_ns,
    }
}

/// The messaging run with a ledger.
fn recording() -> Recording {
    let mut recording = common::messaging();
    let busy = histogram((1..=1000).map(|at| at * 10_000));
    let idle = histogram([30_000; 10]);
    let mut both = busy.clone();
    both.merge(&idle);
    let trailer = &mut recording.trailer;
    trailer.ledger = Some(Ledger {
        wakeups: 1_015,
        woken_running: 4,
        clock_backwards: 1,
        ended_waiting: 0,
        exits: 40,
        latency: BTreeMap::from([("busy".to_owned(), busy), ("idle".to_owned(), idle)]),
        groups: vec![LatencyGroup {
            comm: "sched-messaging".to_owned(),
            latency: both,
        }],
        worst: vec![Latency {
            wait_ns: 10_000_000,
            time_ns: 3_000_000_000,
            cpu: 1,
            comm: "sched-messaging".to_owned(),
            pid: 1_003,
            cause: "busy".to_owned(),
            culprit: "evil\u{1b}[2J".to_owned(),
            culprit_pid: 17,
            stack: "entry_SYSCALL_64_after_hwframe;do_syscall_64;ksys_read;vfs_read;schedule"
                .to_owned(),
        }],
        handoffs: histogram([4_000, 4_100, 9_000]),
        preemptions: vec![
            preemption("sched-messaging", false, causes::USER, 6_000, 80_000_000),
            preemption("pagezero", true, causes::USER_TIMER, 700, 900_000_000),
            preemption("sched-messaging", false, causes::YIELD, 89, 1_000),
        ],
        timers: vec![TimerWaits {
            comm: "sched-messaging".to_owned(),
            stack: "do_syscall_64;ksys_read;unix_stream_read_generic".to_owned(),
            jiffies: 1,
            count: 100,
            elapsed_ns: 400_000_000,
        }],
        ticks: Ticks {
            busy: 1_250,
            busy_ns: 2_500_000,
            idle: 7,
            idle_ns: 10_000,
        },
        program_hits: 9_999,
    });
    trailer.overhead.per_switch_ns = Some(250);
    for wanted in ["wake", "wake_new", "timer", "tick"] {
        trailer.probes.push(ProbeStatus {
            wanted: wanted.to_owned(),
            leg: "tp_btf".to_owned(),
            ..ProbeStatus::default()
        });
    }
    recording
}

fn report(recording: &Recording) -> Report {
    let options = AnalyseOptions { callers: Some(3) };
    model::analyse(recording, &common::catalog(), &options)
}

fn valid(document: &str) -> Value {
    let schema: Value = serde_json::from_str(include_str!("../schema/report-1.json")).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.set_default_draft(boon::Draft::V2020_12);
    compiler.add_resource("report-1.json", schema).unwrap();
    let index = compiler.compile("report-1.json", &mut schemas).unwrap();
    let value: Value = serde_json::from_str(document).unwrap();
    if let Err(error) = schemas.validate(&value, index) {
        panic!("{error:#}");
    }
    value
}

#[test]
fn json_has_the_whole_ledger() {
    let report = report(&recording());
    let document = json::render(&report).unwrap();
    let value = valid(&document);
    assert_eq!(serde_json::from_str::<Report>(&document).unwrap(), report);
    let latency = &value["wakeup_latency"];
    assert_eq!(latency["count"], 1_010);
    assert_eq!(latency["max_ns"], 10_000_000);
    assert_eq!(latency["evidence"], "counted");
    assert_eq!(latency["leg"], "tp_btf");
    let median = latency["p50_ns"].as_f64().unwrap();
    assert!((median / 5_000_000.0 - 1.0).abs() < 0.04, "{median}");
    assert_eq!(value["timers"]["jiffy_ns"], 4_000_000);
    assert_eq!(value["timers"]["rounded_waits"], 100);
    assert_eq!(value["switches"]["handoff"]["own_ns"], 250);
    let threads = &value["switches"]["kernel_threads"];
    assert_eq!(threads[0]["name"], "pagezero");
    let by = value["switches"]["preemptions_by"].as_array().unwrap();
    let taken: u64 = by.iter().map(|by| by["count"].as_u64().unwrap()).sum();
    assert_eq!(taken, 6_700);
    for column in ["cost", "benefit"] {
        for row in value["ledger"][column].as_array().unwrap() {
            assert!(row["sentence"].as_str().unwrap().ends_with('.'), "{row}");
        }
    }
}

#[test]
fn text_has_two_columns() {
    let text = text::render(
        &report(&recording()),
        &text::TextOptions {
            width: Some(100),
            color: false,
            callers: 0,
        },
    );
    let from = text.find("COST").unwrap();
    assert!(!text.contains('\u{1b}'));
    insta::assert_snapshot!(&text[from..]);
}

#[test]
fn without_a_leg_there_is_no_number() {
    let mut recording = recording();
    for probe in &mut recording.trailer.probes {
        if ["wake", "timer", "tick"].contains(&probe.wanted.as_str()) {
            probe.leg = "none".to_owned();
        }
    }
    let value = valid(&json::render(&report(&recording)).unwrap());
    assert!(value.get("wakeup_latency").is_none());
    assert!(value.get("timers").is_none());
    assert!(value["ledger"]["benefit"].as_array().unwrap().is_empty());

    // And without --ledger nothing of it, not even zeros.
    recording.trailer.ledger = None;
    let value = valid(&json::render(&report(&recording)).unwrap());
    assert!(value.get("ledger").is_none());
    assert!(value["switches"].get("handoff").is_none());
}

#[test]
fn a_recording_keeps_its_ledger() {
    let recording = recording();
    let trailer = serde_json::to_vec(&recording.trailer).unwrap();
    let back: profiler::recording::Trailer = serde_json::from_slice(&trailer).unwrap();
    assert_eq!(back, recording.trailer);
    // One of before the ledger still reads.
    let mut old: Value = serde_json::from_slice(&trailer).unwrap();
    old.as_object_mut().unwrap().remove("ledger");
    let old: profiler::recording::Trailer = serde_json::from_value(old).unwrap();
    assert_eq!(old.ledger, None);
}
