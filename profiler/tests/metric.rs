//! Results read from what benchmarks print. The fixtures are written after the
//! formats that the programs' own sources and manuals show.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

use std::fs;
use std::path::Path;

use profiler::metric::{Choice, NAMES};

/// What is read from a fixture by the patterns of `benchmark`.
#[track_caller]
fn read(benchmark: &str, fixture: &str) -> Option<(f64, String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/metric")
        .join(format!("{fixture}.txt"));
    let Choice::Output(reader) = Choice::parse(benchmark).unwrap() else {
        panic!("{benchmark} reads no output");
    };
    let metric = reader.read(&fs::read(&path).unwrap())?;
    Some((metric.value, metric.unit, metric.better))
}

#[test]
fn each_benchmark_s_output_gives_its_result() {
    for (benchmark, fixture, value, unit, better) in [
        ("perf-bench", "perf-bench-messaging", 3.285, "s", "lower"),
        ("perf-bench", "perf-bench-pipe", 21.453_274, "us", "lower"),
        (
            "perf-bench",
            "perf-bench-futex",
            1_697_211.0,
            "1/s",
            "higher",
        ),
        (
            "perf-bench",
            "perf-bench-memcpy",
            10.172_526,
            "GB/s",
            "higher",
        ),
        ("perf-bench", "perf-bench-simple", 0.308, "s", "lower"),
        ("hackbench", "hackbench", 1.419, "s", "lower"),
        ("schbench", "schbench", 17.0, "us", "lower"),
        ("schbench", "schbench-old", 141.0, "us", "lower"),
        ("cyclictest", "cyclictest", 43.0, "us", "lower"),
        ("cyclictest", "cyclictest-histogram", 41.0, "us", "lower"),
        ("sysbench", "sysbench-cpu", 1391.72, "1/s", "higher"),
        ("sysbench", "sysbench-oltp", 960.98, "1/s", "higher"),
        ("sysbench", "sysbench-memory", 6_140_534.33, "1/s", "higher"),
        ("sysbench", "sysbench-threads", 13_273.0, "", "higher"),
        ("pgbench", "pgbench", 1_205.274_518, "1/s", "higher"),
        ("pgbench", "pgbench-old", 85.296_346, "1/s", "higher"),
        ("stress-ng", "stress-ng", 6021.22, "1/s", "higher"),
        ("fio", "fio", 16_400.0, "1/s", "higher"),
        (
            "redis-benchmark",
            "redis-benchmark",
            81_300.81,
            "1/s",
            "higher",
        ),
        (
            "redis-benchmark",
            "redis-benchmark-q",
            60_000.0,
            "1/s",
            "higher",
        ),
        (
            "redis-benchmark",
            "redis-benchmark-csv",
            81_300.81,
            "1/s",
            "higher",
        ),
        (
            "preemptprof-bench",
            "perf-bench-pipe",
            21.453_274,
            "us",
            "lower",
        ),
        (
            "preemptprof-bench",
            "preemptprof-timers",
            0.412,
            "s",
            "lower",
        ),
        ("preemptprof-bench", "preemptprof-json", 8.25, "us", "lower"),
    ] {
        let (found, its_unit, its_better) = read(benchmark, fixture)
            .unwrap_or_else(|| panic!("{benchmark} finds nothing in {fixture}"));
        assert!((found - value).abs() < 1e-6 * value, "{fixture}: {found}");
        assert_eq!(
            (its_unit.as_str(), its_better.as_str()),
            (unit, better),
            "{fixture}"
        );
    }
}

#[test]
fn results_that_have_nothing_in_common_are_not_made_one() {
    assert_eq!(read("stress-ng", "stress-ng-two"), None);
}

#[test]
fn no_benchmark_takes_another_s_output_for_its_own() {
    // What they share is meant to be shared.
    for (benchmark, fixture) in [
        ("hackbench", "perf-bench-messaging"),
        ("pgbench", "sysbench-oltp"),
        ("fio", "pgbench"),
        ("stress-ng", "fio"),
        ("schbench", "cyclictest"),
        ("cyclictest", "schbench"),
        ("redis-benchmark", "sysbench-cpu"),
        ("perf-bench", "hackbench"),
    ] {
        assert_eq!(read(benchmark, fixture), None, "{benchmark} {fixture}");
    }
    assert_eq!(NAMES.len(), 10);
}
