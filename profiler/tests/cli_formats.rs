//! `export`, `import` and `report --html`, as users run them.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use command::{has, preemptprof};
use profiler::recording::{self, save};
use tempfile::TempDir;

const CONFIG: &str = "tests/fixtures/catalog/6.1-debug-preempt.config";

fn run(arguments: &[&str]) -> Output {
    preemptprof(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A folder with the recording of a benchmark in it.
fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pprec");
    save(&common::messaging(), &path, false).unwrap();
    (dir, path)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn each_output_has_the_format_of_its_extension() {
    let (dir, recording) = folder();
    let outputs: Vec<(PathBuf, &[u8])> = [
        ("a.svg", &b"<?xml"[..]),
        ("a.html", b"<!DOCTYPE html>"),
        ("a.folded", b"sched-messaging;"),
        ("a.pb.gz", &[0x1f, 0x8b]),
        ("a.firefox.json", b"{\"meta\""),
        ("a.firefox.json.gz", &[0x1f, 0x8b]),
        ("a.speedscope.json", b"{\"$schema\""),
        ("a.trace.json", b"{\"displayTimeUnit\""),
        ("a.csv", b"option,state"),
        ("a.callers.csv", b"option,symbol"),
        ("a.prom", b"# TYPE preemptprof_"),
        ("A.CSV.GZ", &[0x1f, 0x8b]),
    ]
    .into_iter()
    .map(|(name, start)| (dir.path().join(name), start))
    .collect();
    let mut arguments = vec!["export", text(&recording)];
    for (path, _) in &outputs {
        arguments.extend(["-o", text(path)]);
    }
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    for (path, start) in &outputs {
        let written = fs::read(path).unwrap();
        assert!(written.starts_with(start), "{}", path.display());
    }
    let again = run(&arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("already exists"));
    arguments.push("--force");
    assert!(run(&arguments).status.success());
}

#[test]
fn formats_are_named_or_asked_for() {
    let (dir, recording) = folder();
    for format in [
        "folded",
        "svg",
        "html",
        "pprof",
        "firefox",
        "speedscope",
        "trace",
        "csv",
        "callers-csv",
        "openmetrics",
    ] {
        let output = run(&["export", text(&recording), "--format", format]);
        assert!(output.status.success(), "{format}: {}", stderr(&output));
        assert!(!output.stdout.is_empty(), "{format}");
    }
    let output = run(&["export", text(&recording)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("which format?"));
    let strange = dir.path().join("a.xyz");
    let output = run(&["export", text(&recording), "-o", text(&strange)]);
    assert!(stderr(&output).contains("a.xyz"), "{}", stderr(&output));
    let two = run(&[
        "export",
        text(&recording),
        "--format",
        "svg",
        "-o",
        "a.svg",
        "-o",
        "b.svg",
    ]);
    assert_eq!(two.status.code(), Some(2));
    assert!(stderr(&two).contains("more than one -o"));
}

#[test]
fn what_makes_no_sense_is_said_before_anything_is_written() {
    let (dir, recording) = folder();
    let out = dir.path().join("a.folded");
    let refused = |arguments: &[&str], what: &str| {
        let output = run(arguments);
        let said = stderr(&output);
        let misuse = !what.starts_with("cannot read");
        let status = if misuse { 2 } else { 1 };
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(what) && said.contains("\nhint: "), "{said}");
    };
    let file = text(&recording);
    let twice = ["export", file, "-o", text(&out), "-o", text(&out)];
    refused(&twice, "is given twice");
    let page = dir.path().join("a.html");
    let by = ["export", file, "--by", "rcu", "-o", text(&page)];
    refused(&by, "--by rcu would change nothing");
    refused(
        &["import", "folded", "no-such-file", "-o", text(&out)],
        "cannot read no-such-file",
    );
    assert!(!out.exists() && !page.exists());
}

#[test]
fn the_page_is_written_instead_of_the_text() {
    let (dir, recording) = folder();
    let page = dir.path().join("page.html");
    let output = run(&["report", text(&recording), "--html", text(&page)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty());
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    let again = run(&["report", "--html", text(&page), text(&recording)]);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        run(&["report", "--html", text(&page), text(&recording), "--force"])
            .status
            .success()
    );
}

#[test]
fn what_perf_printed_becomes_a_recording() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a.pprec");
    let input = "tests/fixtures/import/perf-script.txt";
    let output = run(&[
        "import",
        "perf-script",
        input,
        "-o",
        text(&out),
        "--config",
        CONFIG,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("21 samples of cpu-clock"),
        "{}",
        stderr(&output)
    );
    let output = run(&["report", text(&out)]);
    let report = String::from_utf8(output.stdout).unwrap();
    for line in [
        "6.18.44-test",
        "imported from perf script",
        "CONFIG_PREEMPT=y in tests/fixtures",
        "The samples were imported",
        "switches     not counted",
    ] {
        assert!(report.contains(line), "no {line}: {report}");
    }
    assert!(!report.contains("own cost     0 %"), "{report}");

    // By stdin it is the same.
    let second = dir.path().join("b.pprec");
    let output = preemptprof(["import", "perf-script", "-", "-o", text(&second)])
        .stdin(fs::File::open(input).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("no --config"));
    let (first, second) = (
        recording::read(&out).unwrap(),
        recording::read(&second).unwrap(),
    );
    assert_eq!(first.samples, second.samples);
    assert_eq!(first.stacks, second.stacks);
}

#[test]
fn folded_stacks_come_back() {
    let (dir, recording) = folder();
    let folded = dir.path().join("a.folded");
    assert!(
        run(&["export", text(&recording), "-o", text(&folded)])
            .status
            .success()
    );
    let out = dir.path().join("b.pprec");
    let config = dir.path().join("config");
    let settings = [
        "DEBUG_PREEMPT",
        "HARDENED_USERCOPY",
        "PSI",
        "DEBUG_LIST",
        "PREEMPT_COUNT",
    ]
    .map(|name| format!("CONFIG_{name}=y\n"));
    fs::write(&config, settings.concat()).unwrap();
    let output = run(&[
        "import",
        "folded",
        text(&folded),
        "-o",
        text(&out),
        "--config",
        text(&config),
        "--kernel",
        "6.1.192",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let again = run(&["export", text(&out), "--format", "folded"]);
    let total = |folded: &str| -> u64 {
        folded
            .lines()
            .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum()
    };
    let owned = |folded: &str| -> u64 {
        let lines = folded
            .lines()
            .filter(|l| l.contains(";[CONFIG_DEBUG_PREEMPT] "));
        total(&lines.collect::<Vec<_>>().join("\n"))
    };
    let first = fs::read_to_string(&folded).unwrap();
    let again = String::from_utf8(again.stdout).unwrap();
    assert_eq!(total(&first), total(&again));
    assert!(owned(&first) > 0);
    assert_eq!(owned(&first), owned(&again));
}

#[test]
fn a_failed_import_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("a.pprec");
    for (kind, contents, said) in [
        ("perf-script", "nonsense\n", "not what perf script prints"),
        ("perf-script", "", "no sample"),
        ("folded", "nonsense\n", "no folded stack"),
        ("folded", "a;b 18446744073709551615\n", "line 1"),
    ] {
        let input = dir.path().join("input");
        fs::write(&input, contents).unwrap();
        let output = run(&["import", kind, text(&input), "-o", text(&out)]);
        assert_eq!(output.status.code(), Some(1), "{kind}");
        let error = stderr(&output);
        assert!(error.contains(said) && error.contains("hint: "), "{error}");
        fs::remove_file(&input).unwrap();
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "{kind}: {left:?}");
    }
    let output = run(&["import", "perf-data", "-", "-o", text(&out)]);
    assert!(stderr(&output).contains("stdin"), "{}", stderr(&output));
    let output = run(&["import", "folded", "/nowhere", "-o", text(&out)]);
    assert!(stderr(&output).contains("/nowhere"), "{}", stderr(&output));
    let output = run(&[
        "import",
        "folded",
        CONFIG,
        "-o",
        text(&out),
        "--config",
        "Cargo.toml",
    ]);
    assert!(
        stderr(&output).contains("sets no option"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_of_perf_record_is_read_by_perf() {
    let test = "a_file_of_perf_record_is_read_by_perf";
    if !has(test, "perf") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("perf.data");
    let recorded = std::process::Command::new("perf")
        .args([
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            "997",
            "-g",
            "-o",
            text(&data),
        ])
        .args([
            "--",
            "dd",
            "if=/dev/zero",
            "of=/dev/null",
            "bs=1k",
            "count=30000",
        ])
        .output()
        .unwrap();
    if !recorded.status.success() {
        return command::skip(test, "perf cannot record here");
    }
    let out = dir.path().join("a.pprec");
    let output = run(&["import", "perf-data", text(&data), "-o", text(&out)]);
    assert!(output.status.success(), "{}", stderr(&output));
    let recording = recording::read(&out).unwrap();
    assert!(!recording.samples.is_empty());
    assert_eq!(
        recording.header.sampling.event.split(':').next(),
        Some("cpu-clock")
    );
    assert!(!recording.header.kernel.release.is_empty());
    assert_eq!(recording.comms[recording.samples[0].comm as usize], "dd");

    fs::write(&data, "this is no file of perf").unwrap();
    let out = dir.path().join("b.pprec");
    let output = run(&["import", "perf-data", text(&data), "-o", text(&out)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("perf script ended"),
        "{}",
        stderr(&output)
    );
    assert!(!out.exists());
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for (shell, program, check) in [
        ("bash", "bash", &["-n"][..]),
        ("zsh", "zsh", &["-n"]),
        ("fish", "fish", &["--no-execute"]),
    ] {
        let output = run(&["completions", shell]);
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).unwrap();
        for word in ["import", "openmetrics", "--html", "messaging"] {
            assert!(script.contains(word), "{shell}: no {word}");
        }
        if has("completions_and_manual_pages_know_every_command", program) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("script");
            fs::write(&path, &script).unwrap();
            let mut shell = std::process::Command::new(program);
            assert!(shell.args(check).arg(&path).status().unwrap().success());
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man1");
    let output = run(&["man", text(&pages)]);
    assert!(output.status.success(), "{}", stderr(&output));
    for name in [
        "preemptprof",
        "preemptprof-export",
        "preemptprof-bench-pipe",
    ] {
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(&format!(".TH {name} 1")), "{page}");
    }
    let page = fs::read_to_string(pages.join("preemptprof-run.1")).unwrap();
    assert!(
        page.contains("Examples") && page.contains("user\\-stacks"),
        "{page}"
    );
    assert_eq!(run(&["man", text(&pages)]).status.code(), Some(1));
    let single = run(&["man"]);
    assert!(
        String::from_utf8(single.stdout)
            .unwrap()
            .contains(".TH preemptprof 1")
    );
}
