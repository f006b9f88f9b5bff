//! Reports as text and JSON, against snapshots and the schema.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use profiler::catalog::Catalog;
use profiler::model::{AnalyseOptions, Report, analyse};
use profiler::recording::{Epoch, Evidence, Loss, Recording, SwitchCounts, Trailer};
use profiler::report::text::{self, TextOptions};
use profiler::report::{doctor, json, options};
use serde_json::Value;

fn report(recording: &Recording) -> Report {
    analyse(recording, &common::catalog(), &AnalyseOptions::default())
}

fn render(recording: &Recording, width: Option<usize>, color: bool, callers: usize) -> String {
    text::render(
        &report(recording),
        &TextOptions {
            width,
            color,
            callers,
        },
    )
}

#[test]
fn text_of_a_pipe() {
    insta::assert_snapshot!(render(&common::messaging(), None, false, 3));
}

#[test]
fn text_at_80_columns() {
    let text = render(&common::messaging(), Some(80), false, 0);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn text_at_40_columns() {
    insta::assert_snapshot!(render(&common::messaging(), Some(40), false, 1));
}

#[test]
fn text_in_colour_is_the_same_text() {
    let colored = render(&common::messaging(), Some(100), true, 2);
    let plain = render(&common::messaging(), Some(100), false, 2);
    insta::assert_snapshot!(colored.replace('\u{1b}', "<ESC>"));
    let stripped: String = anstyle_strip(&colored);
    assert_eq!(stripped, plain);
}

/// Removes `ESC [ ... m`.
fn anstyle_strip(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        out.push_str(part.split_once('m').unwrap().1);
    }
    // A styled line's blank end cannot be trimmed through the style.
    out.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[test]
fn text_of_a_run_that_went_wrong() {
    let text = render(&common::troubled(), Some(100), false, 0);
    assert!(
        !text.chars().any(|c| c.is_control() && c != '\n'),
        "{text:?}"
    );
    insta::assert_snapshot!(text);
}

#[test]
fn text_without_samples() {
    let mut recording = common::messaging();
    recording.samples.clear();
    let report = report(&recording);
    assert!(
        report
            .options
            .iter()
            .all(|option| option.cpu_share.is_none())
    );
    insta::assert_snapshot!(render(&recording, Some(100), false, 0));
}

#[test]
fn shares_are_what_was_built() {
    let report = report(&common::messaging());
    assert_eq!(report.sampling.samples, 10_000);
    assert_eq!(report.sampling.user_samples, 1_900);
    assert_eq!(
        (report.other.samples, report.other.profiler_samples),
        (700, 80)
    );
    let option = |name: &str| {
        report
            .options
            .iter()
            .find(|option| option.option.name == name)
            .unwrap()
    };
    let preempt = option("CONFIG_DEBUG_PREEMPT");
    assert_eq!(preempt.cpu_share.unwrap().value, 0.057);
    // in_lock_functions is called by preempt_count_add, which is the option's
    // too: the caller is the lock, not the option itself.
    assert_eq!(
        preempt.callers[0].site.as_deref(),
        Some("_raw_spin_unlock_irqrestore+0x25")
    );
    assert_eq!(preempt.callers[1].symbol, "_raw_spin_lock_irqsave");
    assert_eq!(preempt.callers[1].samples, 240);
    let objcg = preempt
        .callers
        .iter()
        .find(|caller| caller.symbol == "mod_objcg_state")
        .unwrap();
    assert_eq!(objcg.site.as_deref(), Some("mod_objcg_state+0x34"));
    // Compiler suffixes do not hide an owner; `self` symbols own no callees.
    let usercopy = option("CONFIG_HARDENED_USERCOPY");
    assert_eq!(usercopy.functions[0].symbol, "__check_object_size");
    assert_eq!(usercopy.functions[0].samples, 120);
    assert_eq!(option("CONFIG_PSI").functions[0].samples, 40);
    // On, watched, never hit: 0, not absent. Off: absent.
    assert_eq!(option("CONFIG_DEBUG_LIST").cpu_share.unwrap().value, 0.0);
    assert!(option("CONFIG_PROVE_LOCKING").cpu_share.is_none());
    assert!(option("CONFIG_PREEMPT_COUNT").cpu_share.is_none());
}

#[test]
fn an_option_that_is_off_owns_nothing() {
    let mut recording = common::messaging();
    recording
        .header
        .kernel
        .config
        .0
        .remove("CONFIG_DEBUG_PREEMPT");
    let report = report(&recording);
    let option = report
        .options
        .iter()
        .find(|option| option.option.name == "CONFIG_DEBUG_PREEMPT")
        .unwrap();
    assert!(option.cpu_share.is_none() && option.functions.is_empty());
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("CONFIG_DEBUG_PREEMPT is not set, but ")),
        "{:?}",
        report.warnings
    );
}

/// The catalogue the program ships, not the small one.
#[test]
fn the_builtin_catalogue_gives_the_check_functions_to_debug_preempt() {
    let report = analyse(
        &common::messaging(),
        Catalog::builtin(),
        &AnalyseOptions::default(),
    );
    let option = report
        .options
        .iter()
        .find(|option| option.option.name == "CONFIG_DEBUG_PREEMPT")
        .unwrap();
    assert_eq!(option.cpu_share.unwrap().value, 0.057);
    let group = |symbol: &str| {
        let caller = option
            .callers
            .iter()
            .find(|caller| caller.symbol == symbol)
            .unwrap();
        caller.group.clone()
    };
    assert!(group("mod_objcg_state").is_some_and(|group| group.contains("memcg")));
    assert_eq!(group("mod_objcg_state"), group("refill_obj_stock"));
    validate(&json::render(&report).unwrap());
}

#[test]
fn hidden_symbols_give_no_shares() {
    let mut recording = common::messaging();
    recording.header.kernel.symbols_hidden = Some("kptr_restrict is 2".to_owned());
    let report = report(&recording);
    assert!(
        report
            .options
            .iter()
            .all(|option| option.cpu_share.is_none())
    );
}

#[test]
fn a_salvaged_recording_is_read_from_its_epochs() {
    let mut recording = common::messaging();
    recording.trailer = Trailer::default();
    recording.complete = false;
    let epoch = |cpu, time_ns, voluntary, lost: u64| Epoch {
        cpu,
        time_ns,
        switches: SwitchCounts {
            voluntary,
            preempted: 1,
        },
        idle_samples: 4,
        losses: [
            ("ring_full".to_owned(), lost),
            ("stack_truncated".to_owned(), 2),
        ]
        .into(),
        ..Epoch::default()
    };
    recording.epochs = vec![epoch(0, 1, 10, 0), epoch(1, 1, 20, 1), epoch(0, 2, 15, 5)];
    let report = report(&recording);
    let switches = report.switches.unwrap();
    assert_eq!(
        (switches.voluntary, switches.preempted, switches.leg),
        (35, 2, None)
    );
    assert_eq!(report.loss.total, 6);
    assert_eq!(report.loss.by_reason["stack_truncated"], 4);
    assert_eq!(report.coverage.idle_samples, 8);
    assert_eq!(report.rcu.unwrap()[0].count, 3);
    assert!(
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("has no end"))
    );
}

#[test]
fn what_was_not_watched_is_absent_and_what_did_not_occur_is_zero() {
    let mut recording = common::messaging();
    recording.rcu.clear();
    assert_eq!(report(&recording).rcu.unwrap()[0].count, 0);
    recording.trailer.probes.clear();
    recording.trailer.switches = None;
    let report = report(&recording);
    assert!(report.rcu.is_none() && report.switches.is_none());
}

#[test]
fn what_a_kernel_does_not_have_is_not_degraded() {
    let mut recording = common::messaging();
    let row = |absent| profiler::probes::ProbeStatus {
        wanted: "check".to_owned(),
        leg: "none".to_owned(),
        why_not_better: "there are no checks".to_owned(),
        absent,
        ..Default::default()
    };
    recording.trailer.probes = vec![row(true)];
    recording.trailer.overhead.probe_source = "calibrated\u{1b} on CPU 0".to_owned();
    recording.trailer.overhead.bpf_stats_ns = Some(32_000_000);
    let text = render(&recording, None, false, 0);
    assert!(!text.contains("DEGRADED") && !text.contains("there are no checks"));
    assert!(
        text.contains("or 32.0 ms by the kernel's statistics"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
    let document = validate(&json::render(&report(&recording)).unwrap());
    assert_eq!(document["probes"][0]["absent"], true);
    assert_eq!(document["overhead"]["bpf_stats_ns"], 32_000_000);

    recording.trailer.probes = vec![row(false)];
    let text = render(&recording, None, false, 0);
    assert!(text.contains("DEGRADED") && text.contains("there are no checks"));
}

fn validate(document: &str) -> Value {
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
fn json_matches_the_schema() {
    for recording in [
        common::messaging(),
        common::troubled(),
        Recording::default(),
    ] {
        let report = report(&recording);
        let text = json::render(&report).unwrap();
        let value = validate(&text);
        assert!(!has_null(&value), "{text}");
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(back, report);
    }
    insta::assert_snapshot!(json::render(&report(&common::messaging())).unwrap());
}

#[test]
#[should_panic(expected = "report-1.json")]
fn the_schema_refuses_a_percentage() {
    let mut report = report(&common::messaging());
    report.options[0].cpu_share.as_mut().unwrap().value = 5.7;
    validate(&json::render(&report).unwrap());
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

#[test]
fn numbers_that_are_not_finite_do_not_reach_the_json() {
    let mut recording = common::messaging();
    recording.trailer.run.wall_s = f64::INFINITY;
    recording.trailer.overhead.share = f64::NAN;
    recording.trailer.run.metric.as_mut().unwrap().value = f64::NAN;
    let value = validate(&json::render(&report(&recording)).unwrap());
    assert!(value["run"].get("metric").is_none());
}

#[test]
fn what_bends_the_numbers_is_warned_of() {
    let warnings = |change: fn(&mut Recording)| {
        let mut recording = common::messaging();
        change(&mut recording);
        report(&recording).warnings
    };
    let usual = warnings(|_| {});
    for (change, said) in [
        (
            (|recording| recording.trailer.machine.steal = Some(0.02)) as fn(&mut Recording),
            "hypervisor took 2.0 %",
        ),
        (
            |recording| recording.trailer.overhead.share = 0.2,
            "profiler took 20 %",
        ),
        (
            |recording| {
                recording.trailer.losses.push(Loss {
                    cpu: 0,
                    reason: "ring_full".to_owned(),
                    count: recording.samples.len() as u64,
                });
            },
            "of the records were lost",
        ),
    ] {
        let found = warnings(change);
        assert_eq!(found.len(), usual.len() + 1, "{found:?}");
        assert!(
            found.iter().any(|warning| warning.contains(said)),
            "{found:?}"
        );
    }
    let mut recording = common::messaging();
    recording.trailer.machine.steal = Some(0.005);
    assert_eq!(report(&recording).warnings, usual);
}

#[test]
fn nmi_sampling_is_not_called_blind() {
    let mut recording = common::messaging();
    recording.header.sampling.event = "cycles".to_owned();
    recording.header.sampling.evidence = Evidence::SampledNmi;
    let text = render(&recording, None, false, 0);
    assert!(
        !text.contains("at least") && !text.contains("blind"),
        "{text}"
    );
}

#[test]
fn doctor_and_options() {
    let recording = common::troubled();
    let document = doctor::Doctor::new(
        &recording.header.kernel,
        &recording.header.machine,
        Vec::new(),
        recording.trailer.probes.clone(),
        false,
    );
    let layout = TextOptions {
        width: Some(90),
        ..TextOptions::default()
    };
    insta::assert_snapshot!("doctor_text", doctor::render(&document, &layout));
    let value: Value = serde_json::from_str(&json::render(&document).unwrap()).unwrap();
    assert_eq!(value["schema"], "preemptprof/doctor/1");
    assert!(!has_null(&value));

    let document = options::Options::new(&common::catalog(), &recording.header.kernel);
    insta::assert_snapshot!("options_text", options::render(&document, &layout));
    let value: Value = serde_json::from_str(&json::render(&document).unwrap()).unwrap();
    assert_eq!(value["schema"], "preemptprof/options/1");
    assert_eq!(value["options"].as_array().unwrap().len(), 7);
}

#[test]
fn runs_and_points_have_their_lines() {
    let run = |profiled: bool, value: f64, point: &str| profiler::recording::RunRecord {
        profiled,
        metric: Some(profiler::recording::Metric {
            name: "total time".into(),
            value,
            unit: "s".into(),
            better: "lower".into(),
        }),
        point: match point {
            "" => std::collections::BTreeMap::new(),
            point => [("g".to_owned(), point.to_owned())].into(),
        },
        ..profiler::recording::RunRecord::default()
    };
    let mut recording = common::messaging();
    recording.trailer.runs = vec![
        run(false, 3.30, ""),
        run(true, 3.33, ""),
        run(true, 3.31, ""),
        run(false, 3.29, ""),
    ];
    let text = render(&recording, None, false, 0);
    for line in [
        "runs         2 profiled, 2 with nothing attached; total time 3.3200 s (3.1929 to 3.4471) \
         profiled, 3.2950 s not (lower is better)",
        "             being profiled changes it by +0.76 %",
    ] {
        assert!(text.contains(line), "{text}");
    }
    validate(&json::render(&report(&recording)).unwrap());
    for (run, point) in recording.trailer.runs.iter_mut().zip(["1", "1", "4", "4"]) {
        run.point = [("g".to_owned(), point.to_owned())].into();
        run.profiled = true;
    }
    let text = render(&recording, None, false, 0);
    assert!(
        text.contains("\n             g=4: total time 3.3000 s (3.1729 to 3.4271)\n"),
        "{text}"
    );
    let value = validate(&json::render(&report(&recording)).unwrap());
    assert_eq!(value["run"]["points"].as_array().unwrap().len(), 2);
    assert!(value["run"].get("metric").is_none());
}
