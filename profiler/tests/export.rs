//! Folded stacks and flame graphs, against inferno and by their totals.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;

use std::collections::BTreeSet;

use common::{Builder, TARGET, USER};
use profiler::export::{By, folded, svg};
use profiler::model::{AnalyseOptions, Attribution, Knowledge, analyse};
use profiler::recording::{Recording, Sample};
use proptest::prelude::*;

fn fold(recording: &Recording, by: By) -> String {
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(recording, &knowledge);
    let mut out = Vec::new();
    folded::write(recording, &attribution, by, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn draw(recording: &Recording, by: By) -> anyhow::Result<String> {
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(recording, &knowledge);
    let report = analyse(recording, &common::catalog(), &AnalyseOptions::default());
    let mut out = Vec::new();
    svg::write(recording, &attribution, &report, by, &mut out)?;
    Ok(String::from_utf8(out)?)
}

/// The sum of the last words, as every reader of folded stacks takes it.
fn total(folded: &str) -> u64 {
    folded
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum()
}

/// What inferno makes of it: the samples of the frame that holds all others.
fn total_by_inferno(folded: &str) -> u64 {
    let mut options = inferno::flamegraph::Options::default();
    let mut out = Vec::new();
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut out).unwrap();
    let svg = String::from_utf8(out).unwrap();
    let (_, rest) = svg.split_once("total_samples=\"").unwrap();
    rest.split_once('"').unwrap().0.parse().unwrap()
}

#[test]
fn folded_time() {
    let folded = fold(&common::messaging(), By::Time);
    assert_eq!(total(&folded), 10_000);
    assert_eq!(total_by_inferno(&folded), 10_000);
    let owned: u64 = folded
        .lines()
        .filter(|line| line.contains(";[CONFIG_DEBUG_PREEMPT] "))
        .map(total)
        .sum();
    assert_eq!(owned, 570);
    insta::assert_snapshot!(folded);
}

#[test]
fn folded_rcu() {
    let folded = fold(&common::messaging(), By::Rcu);
    assert_eq!(total(&folded), 149_500_000);
    insta::assert_snapshot!(folded);
}

/// What is too small to be drawn counts for what is around it.
#[test]
fn svg_of_many_small_stacks_keeps_their_samples() {
    let mut builder = Builder::new();
    builder.kernel(20_000, "big", TARGET, &["inner", "outer"]);
    for task in 0..30 {
        builder.kernel(1, &format!("small{task}"), TARGET, &["f"]);
        builder.kernel(1, "big", TARGET, &[&format!("rare{task}"), "outer"]);
    }
    let svg = draw(&builder.recording, By::Time).unwrap();
    for text in [
        "total_samples=\"20060\"",
        "[tasks too small to be drawn] (30 samples",
        "<title>big (20,030 samples",
        "<title>outer (20,030 samples",
        "<title>inner (20,000 samples",
    ] {
        assert!(svg.contains(text), "no {text}");
    }
    assert!(!svg.contains("rare") && !svg.contains("small1"));
    // The text has all of it.
    let folded = fold(&builder.recording, By::Time);
    assert_eq!(folded.lines().count(), 61);
    assert_eq!(total(&folded), 20_060);
}

#[test]
fn svg_shows_the_options_with_their_shares() {
    let svg = draw(&common::messaging(), By::Time).unwrap();
    for text in [
        "perf bench sched messaging -g 16 -l 1000: DEBUG_PREEMPT 5.7 %, HARDENED_USERCOPY 1.2 %",
        "DEBUG_PREEMPT 5.7 % (5.3-6.2)",
        "kernel 6.1.192, preempt voluntary",
        "<title>[CONFIG_DEBUG_PREEMPT]",
        "<title>preempt_count_add (240 samples",
    ] {
        assert!(svg.contains(text), "no {text}");
    }
    // The frame under an interrupt carries the name but not the colour.
    let colors: BTreeSet<&str> = svg
        .split("<title>preempt_count_add (")
        .skip(1)
        .map(|rest| {
            let (_, rest) = rest.split_once("fill=\"").unwrap();
            rest.split_once('"').unwrap().0
        })
        .collect();
    assert_eq!(colors.len(), 2, "{colors:?}");
    assert!(colors.contains("rgb(255,107,87)"));
    save("time.svg", &svg);
}

#[test]
fn svg_of_blocked_time() {
    let svg = draw(&common::messaging(), By::Rcu).unwrap();
    assert!(svg.contains("blocked 150 ms in rcu_barrier (3x)"));
    assert!(svg.contains("149,500,000 ns"));
    save("rcu.svg", &svg);
}

#[test]
fn svg_of_nothing_says_so() {
    let mut recording = common::messaging();
    recording.samples.clear();
    let error = draw(&recording, By::Time).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing to draw: no sample hit the workload"
    );
    assert_eq!(profiler::error::hints(&error).len(), 1);
}

#[test]
fn svg_of_hostile_names_is_well_formed() {
    let mut recording = common::troubled();
    recording.header.command = vec!["<script>\u{1b}&\"--]]>".to_owned(), "x".repeat(500)];
    recording.comms[0] = "<b>&--\u{ffff};\n".to_owned();
    let svg = draw(&recording, By::Time).unwrap();
    assert!(!svg.contains("<b>") && !svg.contains("<script>\\"));
    assert!(
        !svg.chars()
            .any(|c| c.is_control() && c != '\n' && c != '\t')
    );
    well_formed(&svg);
    save("hostile.svg", &svg);
}

#[test]
fn a_long_legend_takes_more_rows() {
    let recording = common::messaging();
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    let mut report = analyse(&recording, &common::catalog(), &AnalyseOptions::default());
    for index in 0..12 {
        let mut option = report.options[0].clone();
        option.option.name = format!("CONFIG_ANOTHER_OPTION_{index}");
        report.options.push(option);
    }
    let mut out = Vec::new();
    svg::write(&recording, &attribution, &report, By::Time, &mut out).unwrap();
    let svg = String::from_utf8(out).unwrap();
    well_formed(&svg);
    let legend = svg.split_once("<g id=\"legend\">").unwrap().1;
    let legend = legend.split_once("</g>").unwrap().0;
    let rows: BTreeSet<&str> = legend
        .split("<text ")
        .skip(1)
        .map(|text| {
            text.split_once(" y=\"")
                .unwrap()
                .1
                .split_once('"')
                .unwrap()
                .0
        })
        .collect();
    assert_eq!(legend.matches("<rect").count(), 3 + 12 + 1);
    assert!(rows.len() > 2, "{rows:?}");
    save("legend.svg", &svg);
}

/// Reads every event to the end; names of start and end tags must match.
fn well_formed(svg: &str) {
    let mut reader = quick_xml::Reader::from_str(svg);
    let mut open = 0;
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Start(_) => open += 1,
            quick_xml::events::Event::End(_) => open -= 1,
            quick_xml::events::Event::Text(text) => {
                text.decode().unwrap();
            }
            quick_xml::events::Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(open, 0);
}

/// Keeps a picture where `PREEMPTPROF_SAVE_SVG` says, to be looked at.
fn save(name: &str, svg: &str) {
    if let Some(folder) = std::env::var_os("PREEMPTPROF_SAVE_SVG") {
        std::fs::write(std::path::Path::new(&folder).join(name), svg).unwrap();
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-z ;#0-9.\\\\\n]{0,8}",
        Just("# 1".to_owned()),
        Just("preempt_count_add".to_owned()),
        Just("asm_sysvec_apic_timer_interrupt".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn totals_survive_arbitrary_names(
        stacks in prop::collection::vec((name(), prop::collection::vec(name(), 0..5), any::<bool>(), 1_u64..20), 1..20),
    ) {
        let mut builder = Builder::new();
        builder.recording.header.kernel = common::debug_preempt_facts();
        let mut expected = 0;
        let mut comms = BTreeSet::new();
        for (comm, frames, user, count) in &stacks {
            let words: Vec<String> = frames.iter().map(|frame| format!("{frame}+0x10")).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if *user {
                builder.user(*count, comm, &words);
            } else {
                builder.kernel(*count, comm, TARGET, &words);
            }
            expected += count;
            comms.insert(comm.clone());
        }
        let folded = fold(&builder.recording, By::Time);
        prop_assert_eq!(total(&folded), expected);
        prop_assert_eq!(total_by_inferno(&folded), expected);
        // Different tasks stay different.
        let names: BTreeSet<&str> = folded
            .lines()
            .map(|line| line.split_once(';').unwrap().0)
            .collect();
        let unnamed = usize::from(comms.contains("") && comms.contains("[unknown]"));
        prop_assert_eq!(names.len(), comms.len() - unnamed);
        let svg = draw(&builder.recording, By::Time).unwrap();
        well_formed(&svg);
        let all = format!("total_samples=\"{expected}\"");
        prop_assert!(svg.contains(&all), "no {}", all);
    }

    #[test]
    fn shares_are_shares(
        stacks in prop::collection::vec((prop::collection::vec(name(), 0..6), 0_u32..32, 1_u64..20), 0..20),
    ) {
        let mut builder = Builder::new();
        builder.recording.header.kernel = common::debug_preempt_facts();
        for (frames, flags, count) in &stacks {
            let words: Vec<String> = frames.iter().map(|frame| format!("{frame}+0x10")).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            builder.kernel(*count, "task", *flags, &words);
        }
        let report = analyse(&builder.recording, &common::catalog(), &AnalyseOptions::default());
        let mut sum = 0.0;
        for option in &report.options {
            let Some(share) = option.cpu_share else { continue };
            prop_assert!(0.0 <= share.low && share.low <= share.value);
            prop_assert!(share.value <= share.high && share.high <= 1.0);
            let functions: f64 = option.functions.iter().map(|function| function.share).sum();
            prop_assert!((functions - share.value).abs() < 1e-9);
            let callers: f64 = option.callers.iter().map(|caller| caller.share).sum();
            prop_assert!(callers <= share.value + 1e-9);
            sum += share.value;
        }
        prop_assert!(sum <= 1.0 + 1e-9);
        let owned: u64 = fold(&builder.recording, By::Time)
            .lines()
            .filter(|line| line.contains(";[CONFIG_"))
            .map(total)
            .sum();
        prop_assert!((owned as f64 - sum * report.sampling.samples as f64).abs() < 1e-6);
    }

    #[test]
    fn ids_out_of_range_do_not_panic(ids in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>(), any::<u32>()), 1..20)) {
        let mut recording = common::messaging();
        for (sample, (comm, kernel_stack, user_stack, flags)) in recording.samples.iter_mut().zip(ids) {
            *sample = Sample { comm, kernel_stack, user_stack, flags: flags & (TARGET | USER), ..*sample };
        }
        recording.frames.truncate(20);
        recording.symbols.truncate(10);
        let folded = fold(&recording, By::Time);
        let report = analyse(&recording, &common::catalog(), &AnalyseOptions::default());
        prop_assert_eq!(total(&folded), report.sampling.samples);
        fold(&recording, By::Rcu);
    }
}
