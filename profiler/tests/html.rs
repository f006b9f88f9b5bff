//! The page: by its text, and clicked through in a browser where one is installed.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod common;
mod skip;
mod tools;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Builder, TARGET};
use profiler::model::report::{Calls, CountingReport, Estimate, OverheadReport};
use profiler::model::{AnalyseOptions, Attribution, Knowledge, Report, analyse};
use profiler::probes::ProbeStatus;
use profiler::recording::{
    Epoch, Evidence, Gap, Histogram, Ledger, Measured, Recording, SwitchCounts,
};
use profiler::report::html;
use serde_json::Value;
use tools::installed;

fn page(recording: &Recording) -> String {
    page_of(recording, |_| {})
}

/// The page of a report that `edit` has changed.
fn page_of(recording: &Recording, edit: impl FnOnce(&mut Report)) -> String {
    let knowledge = Knowledge::new(&common::catalog(), &recording.header.kernel);
    let attribution = Attribution::new(recording, &knowledge);
    let mut report = analyse(recording, &common::catalog(), &AnalyseOptions::default());
    edit(&mut report);
    let mut out = Vec::new();
    html::write(recording, &attribution, &report, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The recording with counters over time.
fn with_epochs() -> Recording {
    let mut recording = common::messaging();
    recording.header.epoch_ns = 100_000_000;
    for step in 1..=100_u64 {
        recording.epochs.push(Epoch {
            cpu: 0,
            time_ns: step * 100_000_000,
            switches: SwitchCounts {
                voluntary: step * 1000,
                preempted: step * 100,
            },
            ..Epoch::default()
        });
    }
    recording
}

/// The data that the flame graph is drawn from.
fn graph(page: &str) -> Value {
    let (_, rest) = page.split_once("id=\"flame-data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// The samples of the outermost frames.
fn total(graph: &Value) -> u64 {
    graph["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|node| node[0] == 0)
        .map(|node| node[2].as_u64().unwrap())
        .sum()
}

#[test]
fn has_what_the_report_has() {
    let page = page(&with_epochs());
    for text in [
        "CONFIG_DEBUG_PREEMPT takes",
        "perf bench sched messaging -g 16 -l 1000",
        "5.7 %",
        "5.3-6.2",
        "Called from",
        "rcu_barrier",
        "Own cost",
        "Context switches",
        "<svg class=\"strip\"",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(page.contains(text), "no {text}");
    }
    assert_eq!(total(&graph(&page)), 10_000);
    // Nothing is fetched: no address in an attribute, no import.
    for text in [
        "src=",
        "href=",
        "url(",
        "@import",
        "fetch(",
        "XMLHttpRequest",
    ] {
        assert!(!page.contains(text), "{text}");
    }
    save("report.html", &page);
}

#[test]
fn names_do_not_leave_their_place() {
    let evil = "</script><img src=x onerror=alert(1)>\"'&\u{1b}[31m\u{202e}";
    let mut builder = Builder::new();
    builder.recording.header = common::messaging().header;
    builder.recording.header.command = vec![evil.to_owned()];
    builder.recording.header.kernel.release = evil.to_owned();
    builder.recording.trailer.warnings = vec![evil.to_owned()];
    builder.kernel(5, evil, TARGET, &["preempt_count_add", evil]);
    builder.user(5, evil, &[evil]);
    builder.rcu(evil, 1000, true, &[evil]);
    let page = page(&builder.recording);
    assert!(!page.contains("<img") && !page.contains("</script><"));
    assert!(!page.contains(['\u{1b}', '\u{202e}']));
    let graph = graph(&page);
    assert_eq!(total(&graph), 10);
    let escaped = profiler::report::escape(evil).into_owned();
    assert!(graph["names"].as_array().unwrap().contains(&escaped.into()));
    save("hostile.html", &page);
}

#[test]
fn the_ledger_is_shown_where_there_is_one() {
    let mut recording = with_epochs();
    assert!(!page(&recording).contains("id=\"latency\""));
    let mut times = Histogram::default();
    for ns in [5, 900, 1_000, 70_000, 8_000_000] {
        times.note(ns);
    }
    // A damaged one: no such bucket.
    times.buckets.insert(u16::MAX, 1);
    recording.trailer.probes.push(ProbeStatus {
        wanted: "wake".to_owned(),
        leg: "tp_btf".to_owned(),
        ..ProbeStatus::default()
    });
    recording.trailer.ledger = Some(Ledger {
        wakeups: 5,
        latency: [("busy".to_owned(), times)].into(),
        ..Ledger::default()
    });
    let page = page(&recording);
    for text in [
        "id=\"latency\"",
        "Wake-up latency",
        "<td class=\"\">busy (counted)</td>",
        "aria-label=\"busy\"",
        "<title>65.5 us to 131 us: 1</title>",
    ] {
        assert!(page.contains(text), "no {text}");
    }
    save("ledger.html", &page);
}

/// What counting calls adds to a report.
fn count_calls(report: &mut Report) {
    let estimate = |value: f64| Estimate {
        value,
        low: value * 0.9,
        high: value * 1.1,
        evidence: Evidence::default(),
    };
    let calls = |value: f64| Calls {
        value,
        low: value - 1000.0,
        high: value + 1000.0,
        coverage: 0.987,
        ..Calls::default()
    };
    let sampled = report.options.first_mut().unwrap();
    sampled.calls = Some(calls(1_234_567.0));
    sampled.ns_per_call = Some(estimate(4.0));
    sampled.gain_if_off = Some(estimate(0.08));
    sampled.functions[0].calls = Some(765_432.0);
    sampled.callers[0].calls = Some(543_210.0);
    sampled.callers[0].target = Some("debug_smp_processor_id".to_owned());
    let sampled = report.options.get_mut(1).unwrap();
    sampled.no_gain = Some("its checks <cannot> be counted".to_owned());
    // Called, and too seldom for a sample.
    let name = "CONFIG_DEBUG_LIST";
    let seldom = report.options.iter_mut().find(|o| o.option.name == name);
    let seldom = seldom.unwrap();
    seldom.calls = Some(calls(98_765.0));
    seldom.cpu_share = Some(Estimate::default());
    report.counting = Some(CountingReport {
        leg: "breakpoint".to_owned(),
        windows: 1200,
        armed_ns: 60_000_000,
        hits: 23_456,
        hit_ns: Measured {
            value: 2100.0,
            low: 2000.0,
            high: 2200.0,
        },
        share: 0.0123,
        pace_source: "timed <here>".to_owned(),
        places: 40_000,
        looked_at: 39_000,
        hit: 700,
        ..CountingReport::default()
    });
    report.overhead = Some(OverheadReport {
        bpf_ns: 11_000_000,
        bpf_source: "measured in the programs".to_owned(),
        bpf_stats_ns: Some(12_000_000),
        probe_ns: 13_000_000,
        probe_source: "23 ns each".to_owned(),
        user_ns: 14_000_000,
        setup_ns: 1_500_000_000,
        share: 0.0234,
    });
    report.loss.total = 4321;
    report.loss.by_reason = [("ring_full".to_owned(), 4321)].into();
    report.coverage.gaps = vec![Gap {
        cpu: 3,
        from_ns: 5_000_000,
        to_ns: 7_000_000,
        reason: "CPU went offline".to_owned(),
    }];
}

#[test]
fn counting_own_cost_and_loss_are_shown() {
    let recording = with_epochs();
    let plain = page(&recording);
    for text in [
        "ns per call",
        "Gain if off",
        "Counting calls",
        "Lost because of",
    ] {
        assert!(!plain.contains(text), "{text}");
    }
    let page = page_of(&recording, count_calls);
    for text in [
        "<span>1,234,567<small class=\"bounds\">1,233,567-1,235,567</small></span>",
        "<span>4.0<small class=\"bounds\">3.6-4.4</small></span>",
        "<span>8.0 %<small class=\"bounds\">7.2-8.8 %</small></span>",
        "98.7 % of them within reach of counting",
        "<td class=\"num\">765,432</td>",
        "<td class=\"\">debug_smp_processor_id</td>",
        "<td class=\"num\">543,210</td>",
        "DEBUG_LIST</th>",
        "<span>98,765<small",
        "by breakpoint: 1,200 windows, 60.0 ms together; 23,456 hits; 39,000 of 40,000 places \
         looked at, 700 hit",
        "<dd>2.3 % of the machine</dd>",
        "<td class=\"num\">11.0 ms</td><td class=\"\">measured in the programs</td>",
        "<td class=\"num\">12.0 ms</td>",
        "<td class=\"num\">13.0 ms</td><td class=\"\">23 ns each</td>",
        "<td class=\"num\">14.0 ms</td>",
        "<td class=\"num\">1.50 s</td>",
        "23,456 hits at 2100 (2000-2200) ns",
        "timed &lt;here&gt;",
        "<dd>4,321 records</dd>",
        "<td class=\"\">ring_full</td><td class=\"num\">4,321</td>",
        "CPU went offline",
        "<p class=\"withheld\">Gain not known of HARDENED_USERCOPY: its checks &lt;cannot&gt; be \
         counted</p>",
    ] {
        assert!(page.contains(text), "no {text}");
    }
    save("counting.html", &page);
}

#[test]
fn nothing_was_sampled() {
    let page = page(&Builder::new().recording);
    assert!(page.contains("No sample hit the workload."));
    assert!(!page.contains("id=\"flame-data\""));
}

#[test]
fn deep_and_wide_recordings_make_small_pages() {
    let mut builder = Builder::new();
    let words: Vec<String> = (0..3_000).map(|depth| format!("f{depth}")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    builder.kernel(3, "deep", TARGET, &words);
    for task in 0..9_000 {
        builder.kernel(1, &format!("task{task}"), TARGET, &["f0"]);
    }
    let page = page(&builder.recording);
    let nodes = graph(&page)["nodes"].as_array().unwrap().len();
    assert!(nodes <= 400, "{nodes}");
    assert!(page.contains("frames too small or too deep"));
}

/// Runs in the page after its own script: clicks, and writes down what it sees.
const CLICKS: &str = r##"<script>
const seen = {};
const boxes = () => [...document.querySelectorAll("#flame-graph div")];
const named = (name) => boxes().find((box) => box.textContent === name);
seen.all = boxes().length;
seen.owned = boxes().filter((box) => /^c\d/.test(box.className)).length;
const search = document.getElementById("flame-search");
search.value = "PREEMPT_count";
search.dispatchEvent(new Event("input"));
seen.matched = document.getElementById("flame-matched").textContent;
seen.marked = boxes().filter((box) => box.className.includes("match")).length;
search.value = "";
search.dispatchEvent(new Event("input"));
seen.unmarked = boxes().filter((box) => box.className.includes("match")).length;
const target = named("do_syscall_64");
target.click();
seen.zoomed = named("do_syscall_64").style.width;
seen.detail = document.getElementById("flame-detail").textContent;
seen.canReset = !document.getElementById("flame-reset").disabled;
document.getElementById("flame-reset").click();
seen.back = boxes().length;
document.querySelector("details summary").click();
seen.opened = document.querySelectorAll("details[open]").length;
dispatchEvent(new Event("beforeprint"));
seen.printed = document.querySelectorAll("details:not([open])").length;
dispatchEvent(new Event("afterprint"));
seen.after = document.querySelectorAll("details[open]").length;
seen.wide = document.documentElement.scrollWidth > innerWidth;
const out = document.createElement("pre");
out.id = "seen";
out.textContent = JSON.stringify(seen);
document.body.append(out);
</script>"##;

#[test]
fn clicked_through_in_a_browser() {
    let browser = ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .find_map(|name| installed(name));
    let Some(browser) = browser else {
        return skip::skip("clicked_through_in_a_browser", "Chromium is not installed");
    };
    for width in [1200, 500] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, page(&with_epochs()) + CLICKS).unwrap();
        let Some(dom) = dump(&browser, &path, dir.path(), width) else {
            return skip::skip(
                "clicked_through_in_a_browser",
                "Chromium does not start here",
            );
        };
        let (_, seen) = dom.split_once("<pre id=\"seen\">").unwrap();
        let seen: Value = serde_json::from_str(seen.split_once("</pre>").unwrap().0).unwrap();
        let number = |name: &str| seen[name].as_u64().unwrap();
        assert!(number("all") > 10, "{seen}");
        assert!(number("owned") > 0, "{seen}");
        assert!(number("marked") > 0, "{seen}");
        assert_eq!(number("unmarked"), 0, "{seen}");
        let matched = seen["matched"].as_str().unwrap();
        assert!(
            matched.starts_with("matched ") && matched.ends_with(" %"),
            "{seen}"
        );
        assert_eq!(seen["zoomed"], "100%", "{seen}");
        let detail = seen["detail"].as_str().unwrap();
        assert!(detail.starts_with("do_syscall_64: "), "{seen}");
        assert_eq!(seen["canReset"], true, "{seen}");
        assert_eq!(number("back"), number("all"), "{seen}");
        assert_eq!(number("opened"), 1, "{seen}");
        assert_eq!(number("printed"), 0, "{seen}");
        assert_eq!(number("after"), 1, "{seen}");
        assert_eq!(seen["wide"], false, "{seen}");
    }
}

/// The page as the browser has it after its scripts; absent when the browser
/// cannot run at all.
fn dump(browser: &Path, page: &Path, profile: &Path, width: u32) -> Option<String> {
    let mut child = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--window-size={width},900"))
        .arg(format!(
            "--user-data-dir={}",
            profile.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .stdout(fs::File::create(profile.join("dom")).unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .ok()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if began.elapsed() > Duration::from_secs(90) {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let dom = fs::read_to_string(profile.join("dom")).unwrap();
    (status?.success() && !dom.is_empty()).then_some(dom)
}

/// Leaves the page to be looked at.
fn save(name: &str, page: &str) {
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), page).unwrap();
}
