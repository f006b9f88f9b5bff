//! Two kernels compared, from recordings built by hand.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use std::collections::BTreeMap;

use profiler::diff::document::Diff;
use profiler::diff::{self, Input, flame};
use profiler::model::{Attribution, Knowledge};
use profiler::recording::{Metric, Recording, RunRecord, SwitchCounts};
use profiler::report::text::TextOptions;
use profiler::report::{diff as text, diff_markdown, json};
use serde_json::Value;

/// The recording with runs of these times, in seconds.
fn with_runs(mut recording: Recording, values: &[f64]) -> Recording {
    recording.trailer.run.metric = None;
    recording.trailer.runs = values
        .iter()
        .map(|&value| RunRecord {
            profiled: true,
            end_ns: 5_000_000_000,
            wall_s: 1.0 + value,
            metric: Some(Metric {
                name: "total time".into(),
                value,
                unit: "s".into(),
                better: "lower".into(),
            }),
            switches: recording.trailer.switches,
            ..RunRecord::default()
        })
        .collect();
    recording
}

/// The same benchmark on a kernel without DEBUG_PREEMPT: what it owned is gone.
fn without_debug_preempt() -> Recording {
    let mut recording = common::messaging();
    let catalog = common::catalog();
    let knowledge = Knowledge::new(&catalog, &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    recording.samples.retain(|sample| {
        attribution
            .owner(sample.kernel_stack)
            .is_none_or(|owned| attribution.option(owned.option) != "CONFIG_DEBUG_PREEMPT")
    });
    let kernel = &mut recording.header.kernel;
    kernel.release = "6.1.192-plain".into();
    kernel.build_id = "00c0ffef".into();
    kernel.config.0.remove("CONFIG_DEBUG_PREEMPT");
    kernel.present_symbols.retain(|symbol| {
        !symbol.contains("preempt")
            && !symbol.contains("smp_processor_id")
            && symbol != "in_lock_functions"
    });
    recording.trailer.switches = Some(SwitchCounts {
        voluntary: 110_000,
        preempted: 6_000,
    });
    recording
}

fn input(name: &str, recording: Recording) -> Input {
    Input {
        name: name.to_owned(),
        recording,
    }
}

const BASE: [f64; 5] = [3.311, 3.318, 3.314, 3.320, 3.312];
const NEW: [f64; 5] = [3.122, 3.129, 3.126, 3.131, 3.120];

fn pair() -> (Vec<Input>, Vec<Input>) {
    (
        vec![input("base.pprec", with_runs(common::messaging(), &BASE))],
        vec![input("new.pprec", with_runs(without_debug_preempt(), &NEW))],
    )
}

fn compare(base: &[Input], new: &[Input]) -> Diff {
    diff::compare(base, new, &common::catalog(), false).unwrap()
}

/// The document as JSON, checked against its schema.
#[track_caller]
fn valid(diff: &Diff) -> Value {
    let schema: Value = serde_json::from_str(include_str!("../schema/diff-1.json")).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.set_default_draft(boon::Draft::V2020_12);
    compiler.add_resource("diff-1.json", schema).unwrap();
    let index = compiler.compile("diff-1.json", &mut schemas).unwrap();
    let value: Value = serde_json::from_str(&json::render(diff).unwrap()).unwrap();
    if let Err(error) = schemas.validate(&value, index) {
        panic!("{error:#}");
    }
    value
}

fn render(diff: &Diff) -> String {
    text::render(
        diff,
        &TextOptions {
            callers: 5,
            ..TextOptions::default()
        },
    )
}

#[test]
fn an_option_that_was_switched_off_explains_what_changed() {
    let (base, new) = pair();
    let diff = compare(&base, &new);
    let metric = diff.metric.as_ref().unwrap();
    assert!(
        metric.significant && metric.test == "mann-whitney",
        "{metric:?}"
    );
    assert!((metric.change + 0.057).abs() < 0.001, "{metric:?}");
    assert!(metric.low.unwrap() < metric.change && metric.change < metric.high.unwrap());

    let option = &diff.options[0];
    assert_eq!(
        (
            option.name.as_str(),
            option.base.as_str(),
            option.new.as_str(),
            option.differs
        ),
        ("CONFIG_DEBUG_PREEMPT", "y", "n", true)
    );
    let predicted = option.predicted.as_ref().unwrap();
    assert!((predicted.value + 0.057).abs() < 1e-9, "{predicted:?}");
    assert!(predicted.low < predicted.value && predicted.value < predicted.high);
    // No count says more, and a timer sees the least.
    assert!(predicted.from == "cpu_share" && predicted.at_least);
    let observed = option.observed.unwrap();
    assert!((observed.value + 0.057).abs() < 1e-9, "{observed:?}");
    assert!(diff.options.iter().skip(1).all(|option| !option.differs));

    let explained = diff.explained.unwrap();
    assert!((explained.fraction - 1.0).abs() < 0.02, "{explained:?}");
    assert!(explained.low < 1.0 && 1.0 < explained.high && explained.at_least);

    // All of the option's callers became cheaper.
    let of_it = diff
        .callers
        .iter()
        .filter(|caller| caller.option == option.name);
    let sum: f64 = of_it.map(|caller| caller.change).sum();
    assert!(sum < -0.05, "{sum}");
    let value = valid(&diff);
    assert_eq!(value["schema"], "preemptprof/diff/1");
    let changed: Vec<&Value> = value["differences"]["config"]
        .as_array()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(changed[0]["what"], "CONFIG_DEBUG_PREEMPT");
    insta::assert_snapshot!("diff_text", render(&diff));
    insta::assert_snapshot!("diff_markdown", diff_markdown::render(&diff));
}

#[test]
fn an_option_that_was_switched_on_explains_it_too() {
    let (new, base) = pair();
    let diff = compare(&base, &new);
    let predicted = diff.options[0].predicted.as_ref().unwrap();
    assert!(
        (predicted.value - 0.057 / 0.943).abs() < 1e-9,
        "{predicted:?}"
    );
    let explained = diff.explained.unwrap();
    assert!((explained.fraction - 1.0).abs() < 0.02, "{explained:?}");
}

#[test]
fn the_same_kernel_twice_differs_in_nothing() {
    let base = [input("a", with_runs(common::messaging(), &BASE))];
    let diff = compare(&base, &base);
    assert!(!diff.metric.as_ref().unwrap().significant);
    assert_eq!(diff.explained, None);
    assert!(diff.differences.kernel.is_empty() && diff.differences.config.is_empty());
    assert!(diff.options.iter().all(|option| !option.differs));
    assert!(
        diff.callers
            .iter()
            .all(|caller| caller.change.abs() < 1e-12)
    );
    let text = render(&diff);
    assert!(
        text.contains("not significant") && text.contains("are the same"),
        "{text}"
    );
    valid(&diff);
}

#[test]
fn recordings_of_one_side_are_one_sample() {
    let half = |values: &[f64]| input("part", with_runs(common::messaging(), values));
    let (whole, new) = pair();
    let parts = [half(&BASE[..2]), half(&BASE[2..])];
    let (whole, parts) = (compare(&whole, &new), compare(&parts, &new));
    let values = |diff: &Diff| diff.metric.as_ref().unwrap().base_values.clone();
    assert_eq!(values(&whole), values(&parts));
    let shares = |diff: &Diff| diff.options[0].base_share.unwrap();
    assert_eq!(shares(&whole).value, shares(&parts).value);
    assert!(
        shares(&parts).high < shares(&whole).high,
        "twice the samples"
    );
    assert_eq!(parts.base.runs, 5);
}

#[test]
fn one_run_each_claims_no_significance() {
    let base = [input("a", common::messaging())];
    let new = [input("b", without_debug_preempt())];
    let diff = compare(&base, &new);
    let metric = diff.metric.as_ref().unwrap();
    assert!(!metric.significant && metric.test == "none" && metric.low.is_none());
    assert!(
        diff.warnings
            .iter()
            .any(|warning| warning.contains("no difference can be significant"))
    );
    valid(&diff);
    assert!(render(&diff).contains("too few runs"));
}

#[test]
fn what_cannot_be_compared_is_refused_by_name() {
    let refused = |change: fn(&mut Recording), what: &str| {
        let (base, mut new) = pair();
        change(&mut new[0].recording);
        let error = diff::compare(&base, &new, &common::catalog(), false).unwrap_err();
        assert!(format!("{error:#}").contains(what), "{error:#}");
        assert!(!profiler::error::hints(&error).is_empty(), "{what}");
        diff::compare(&base, &new, &common::catalog(), true)
    };
    let anyway = refused(
        |new| new.header.command.push("-l".into()),
        "the workloads differ",
    );
    assert!(
        anyway
            .unwrap()
            .warnings
            .iter()
            .any(|warning| warning.contains("workloads differ"))
    );
    let anyway = refused(
        |new| {
            new.header.machine.cpu_model = "another".into();
            new.trailer.machine.cpu_model = "another".into();
        },
        "the machines differ: CPU model",
    );
    assert!(anyway.is_ok());
    refused(
        |new| new.header.kernel.arch = "aarch64".into(),
        "architectures differ",
    )
    .unwrap();
    let metric = refused(
        |new| {
            for run in &mut new.trailer.runs {
                run.metric.as_mut().unwrap().name = "tps".into();
            }
        },
        "another metric: tps in s, not total time in s",
    );
    assert!(metric.is_err(), "no flag makes two metrics one");

    // The same program elsewhere is the same; the rest is named.
    let (base, mut new) = pair();
    let recording = &mut new[0].recording;
    recording.header.command[0] = format!("/opt/x/{}", recording.header.command[0]);
    recording.header.kernel.clock = "hpet".into();
    recording.trailer.machine.governor = "powersave".into();
    recording.trailer.machine.smt = "off".into();
    recording
        .trailer
        .machine
        .mitigations
        .insert("spectre_v9".into(), "Vulnerable".into());
    let warnings = compare(&base, &new).warnings.join("\n");
    for what in ["clock source", "governor", "SMT", "mitigation spectre_v9"] {
        assert!(warnings.contains(what), "{what}: {warnings}");
    }

    let (base, new) = pair();
    let mixed: Vec<Input> = base.into_iter().chain(new).collect();
    let error = diff::compare(&mixed, &mixed, &common::catalog(), true).unwrap_err();
    assert!(
        error.to_string().contains("of another kernel: release"),
        "{error}"
    );
    assert!(diff::compare(&[], &mixed, &common::catalog(), true).is_err());
}

#[test]
fn recordings_gone_wrong_are_warned_of() {
    let (base, mut new) = pair();
    let recording = &mut new[0].recording;
    recording.trailer.run.exit_code = Some(3);
    recording.trailer.runs[1].exit_code = 3;
    recording.complete = false;
    recording.samples.clear();
    let diff = compare(&base, &new);
    let warnings = diff.warnings.join("\n");
    for what in ["1 of 5 runs", "incomplete", "no sample hit"] {
        assert!(warnings.contains(what), "{what}: {warnings}");
    }
    assert_eq!(diff.metric.as_ref().unwrap().new_values.len(), 4);
    valid(&diff);
    render(&diff);

    // Nothing at all, on both sides.
    let mut empty = Recording::default();
    empty.stacks.push(Box::default());
    let nothing = [input("empty", empty)];
    let diff = compare(&nothing, &nothing);
    assert!(diff.metric.is_none() && diff.explained.is_none());
    valid(&diff);
    render(&diff);
    diff_markdown::render(&diff);
    assert!(diff::fails(&diff, 0.0).is_err());
}

#[test]
fn a_regression_fails_and_an_improvement_does_not() {
    let (base, new) = pair();
    let better = compare(&base, &new);
    assert!(!diff::fails(&better, 0.0).unwrap());
    let worse = compare(&new, &base);
    assert!(diff::fails(&worse, 0.05).unwrap());
    assert!(!diff::fails(&worse, 0.07).unwrap());
}

fn at(groups: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("groups".to_owned(), groups.to_owned())])
}

/// Two points of a sweep, 5 runs each, the second twice as slow.
fn sweep(recording: Recording, values: &[f64]) -> Recording {
    let slow: Vec<f64> = values.iter().map(|value| 2.0 * value).collect();
    let all: Vec<f64> = values.iter().chain(&slow).copied().collect();
    let mut recording = with_runs(recording, &all);
    let last = recording
        .samples
        .iter()
        .map(|sample| sample.time_ns)
        .max()
        .unwrap();
    for (at_run, run) in recording.trailer.runs.iter_mut().enumerate() {
        run.point = at(if at_run < 5 { "1" } else { "4" });
        // All samples are of the first point's runs.
        let begin = if at_run < 5 { 0 } else { last + 1 };
        (run.start_ns, run.end_ns) = (begin, begin + last);
    }
    recording
}

#[test]
fn each_point_of_a_sweep_has_its_row() {
    let base = [input("base", sweep(common::messaging(), &BASE))];
    let new = [input("new", sweep(without_debug_preempt(), &NEW))];
    let diff = compare(&base, &new);
    assert_eq!((diff.metric.as_ref(), diff.explained), (None, None));
    assert_eq!(diff.points.len(), 2);
    let points: Vec<&BTreeMap<String, String>> =
        diff.points.iter().map(|point| &point.point).collect();
    assert_eq!(points, [&at("1"), &at("4")]);
    let metric = |at: usize| diff.points[at].metric.as_ref().unwrap();
    assert!(metric(0).significant && metric(1).significant);
    assert!((metric(1).base / metric(0).base - 2.0).abs() < 1e-9);
    assert!((diff.points[0].explained.unwrap().fraction - 1.0).abs() < 0.02);
    assert_eq!(
        diff.points[1].options[0].base_share, None,
        "no sample is of its runs"
    );
    let text = render(&diff);
    assert!(
        text.contains("Amean 1      3.3150 (0.00%)  3.1256 *  5.71%*"),
        "{text}"
    );
    assert!(
        text.contains("Amean 4      6.6300 (0.00%)  6.2512 *  5.71%*"),
        "{text}"
    );
    valid(&diff);
    assert!(diff_markdown::render(&diff).contains("Amean groups=4"));

    let alone = [input("new", with_runs(without_debug_preempt(), &NEW))];
    let error = diff::compare(&base, &alone, &common::catalog(), false).unwrap_err();
    assert!(error.to_string().contains("no point in common"), "{error}");
}

#[test]
fn hostile_names_stay_text() {
    let (base, mut new) = pair();
    let evil = "<script>|\u{1b}[2J;\"'`\u{202e}";
    let recording = &mut new[0].recording;
    recording.header.kernel.boot_parameters = format!("x={evil}");
    recording.header.kernel.release = evil.to_owned();
    for symbol in &mut recording.symbols {
        symbol.name.push_str(evil);
    }
    for comm in &mut recording.comms {
        comm.push_str(evil);
    }
    new[0].name = evil.to_owned();
    let diff = compare(&base, &new);
    valid(&diff);
    let tame = |text: &str| !text.contains(['\u{1b}', '\u{202e}']);
    assert!(tame(&render(&diff)));
    let markdown = diff_markdown::render(&diff);
    assert!(
        tame(&markdown) && !markdown.contains("<script>"),
        "{markdown}"
    );
    let mut svg = Vec::new();
    flame::write(&base, &new, &common::catalog(), &mut svg).unwrap();
    well_formed(&svg);
}

/// Reads an SVG to its end; its texts.
fn well_formed(svg: &[u8]) -> Vec<String> {
    let text = std::str::from_utf8(svg).unwrap();
    let mut reader = quick_xml::Reader::from_str(text);
    let mut titles = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Eof => return titles,
            quick_xml::events::Event::Text(text) => {
                titles.push(text.decode().unwrap().into_owned());
            }
            _ => {}
        }
    }
}

#[test]
fn the_flame_graph_is_of_a_unit_of_work() {
    let draw = |base: &[Input], new: &[Input]| {
        let mut svg = Vec::new();
        flame::write(base, new, &common::catalog(), &mut svg).unwrap();
        well_formed(&svg);
        String::from_utf8(svg).unwrap()
    };
    let (base, new) = pair();
    let cheaper = draw(&base, &new);
    // White is the same, red dearer, blue cheaper: what the option owned is gone
    // and nothing else changed.
    assert!(cheaper.contains("6.1.192 -&gt; 6.1.192-plain"), "the title");
    let twice = [
        input("a", with_runs(common::messaging(), &BASE)),
        input("b", with_runs(common::messaging(), &BASE)),
    ];
    assert_eq!(
        draw(&base, &base),
        draw(&twice, &base),
        "twice the runs, the same work"
    );
    // Half the runs with as many samples: each costs twice as much.
    let dear = [input("dear", with_runs(common::messaging(), &BASE[..2]))];
    let red = draw(&base, &dear);
    let (dearer, less) = (colors(&red, true), colors(&red, false));
    assert!(dearer > 0 && less == 0, "{dearer} {less}");
    assert_eq!(colors(&cheaper, true), 0);
    // What is gone has no width; the other way round it is what became dearer.
    assert!(!cheaper.contains("CONFIG_DEBUG_PREEMPT"));
    let back = draw(&new, &base);
    assert!(colors(&back, true) > 0 && back.contains("CONFIG_DEBUG_PREEMPT"));
    let cheap = draw(&dear, &base);
    assert!(colors(&cheap, false) > 0 && colors(&cheap, true) == 0);
    let empty = [input("empty", Recording::default())];
    let error = flame::write(&empty, &empty, &common::catalog(), &mut Vec::new());
    assert!(error.unwrap_err().to_string().contains("nothing to draw"));
}

/// Frames that are red, or blue.
fn colors(svg: &str, red: bool) -> usize {
    svg.split("fill=\"rgb(")
        .skip(1)
        .filter(|rest| {
            let parts: Vec<u8> = rest
                .split(')')
                .next()
                .unwrap()
                .split(',')
                .map(|part| part.parse().unwrap())
                .collect();
            let (strong, weak) = if red {
                (parts[0], parts[2])
            } else {
                (parts[2], parts[0])
            };
            strong == 255 && weak < 255
        })
        .count()
}
