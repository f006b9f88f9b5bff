//! Patterns of benchmarks that print what they found.

use std::ffi::OsString;
use std::sync::LazyLock;

use regex::bytes::{Captures, Regex};

use super::number;
use crate::recording::Metric;

/// Names that `--metric` takes.
pub const NAMES: [&str; 10] = [
    "perf-bench",
    "hackbench",
    "schbench",
    "cyclictest",
    "sysbench",
    "pgbench",
    "stress-ng",
    "fio",
    "redis-benchmark",
    "preemptprof-bench",
];

/// How several matches become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Several {
    /// The last one: what was printed before was on the way there.
    Last,
    /// Their sum: the parts of one result.
    Sum,
    /// The greatest.
    Max,
    /// Their geometric mean: results that count alike.
    Mean,
    /// None: results that have nothing in common.
    Refuse,
}

/// One way in which a result is printed.
#[derive(Debug)]
struct Pattern {
    regex: &'static str,
    several: Several,
    name: &'static str,
    unit: &'static str,
    better: &'static str,
}

const fn lower(
    regex: &'static str,
    several: Several,
    name: &'static str,
    unit: &'static str,
) -> Pattern {
    Pattern {
        regex,
        several,
        name,
        unit,
        better: "lower",
    }
}

const fn higher(
    regex: &'static str,
    several: Several,
    name: &'static str,
    unit: &'static str,
) -> Pattern {
    Pattern {
        better: "higher",
        ..lower(regex, several, name, unit)
    }
}

/// A benchmark that is known.
#[derive(Debug)]
pub(super) struct Benchmark {
    pub(super) name: &'static str,
    /// The program, and the word that must follow it somewhere.
    program: (&'static str, Option<&'static str>),
    /// The first that matches decides.
    patterns: &'static [Pattern],
    /// Compiled, in the same order.
    regexes: LazyLock<Vec<Regex>>,
}

use Several::{Last, Max, Mean, Refuse, Sum};

/// What `perf bench` and our own benchmarks print.
const BENCH: &[Pattern] = &[
    lower(
        r"(?m)^\s*([0-9.]+) usecs/op\b",
        Last,
        "time per operation",
        "us",
    ),
    higher(
        r"Averaged ([0-9]+) operations/sec",
        Last,
        "operations per second",
        "1/s",
    ),
    higher(r"(?m)^\s*([0-9.]+) GB/sec", Last, "throughput", "GB/s"),
    lower(r"Total time: ([0-9.]+) \[sec\]", Last, "total time", "s"),
    // perf bench --format=simple
    lower(r"\A\s*([0-9]+\.[0-9]+)\s*\z", Last, "total time", "s"),
];

macro_rules! benchmarks {
    ($($at:tt $name:literal $program:expr, $patterns:expr;)*) => {
        static BENCHMARKS: [Benchmark; NAMES.len()] = [$(Benchmark {
            name: $name,
            program: $program,
            patterns: $patterns,
            regexes: LazyLock::new(|| compile($at)),
        }),*];
    };
}

benchmarks! {
    0 "perf-bench" ("perf", Some("bench")), BENCH;
    1 "hackbench" ("hackbench", None), &[
        lower(r"(?m)^Time: ([0-9.]+)", Last, "time", "s"),
    ];
    2 "schbench" ("schbench", None), &[
        lower(
            r"(?s)Wakeup Latencies percentiles[^\n]*\n.*?99\.0+th: *([0-9]+)",
            Last, "99th percentile of wake-up latency", "us",
        ),
        lower(
            r"(?s)Latency percentiles[^\n]*\n.*?99\.0+th: *([0-9]+)",
            Last, "99th percentile of latency", "us",
        ),
    ];
    3 "cyclictest" ("cyclictest", None), &[
        lower(r"(?m)^# Max Latencies:.*?\b([0-9]+)\s*$", Last, "maximum latency", "us"),
        lower(r"(?m)^T: *[0-9]+ .*\bMax: *([0-9]+)", Max, "maximum latency", "us"),
    ];
    4 "sysbench" ("sysbench", None), &[
        higher(
            r"transactions: +[0-9]+ +\(([0-9.]+) per sec",
            Last, "transactions per second", "1/s",
        ),
        higher(r"events per second: +([0-9.]+)", Last, "events per second", "1/s"),
        higher(
            r"Total operations: +[0-9]+ +\( *([0-9.]+) per second",
            Last, "operations per second", "1/s",
        ),
        higher(r"(?:reads|writes)/s: +([0-9.]+)", Sum, "reads and writes per second", "1/s"),
        higher(r"total number of events: +([0-9]+)", Last, "events", ""),
        lower(r"total time: +([0-9.]+)s", Last, "total time", "s"),
    ];
    5 "pgbench" ("pgbench", None), &[
        // Older ones print it with and without the time to connect, in this order.
        higher(r"(?m)^tps = ([0-9.]+)", Last, "transactions per second", "1/s"),
    ];
    6 "stress-ng" ("stress-ng", None), &[
        higher(
            r"(?m)^stress-ng: (?:info|metrc): +\[[0-9]+\] +[a-z][a-z0-9_-]* +[0-9]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +([0-9.]+) +[0-9.]+",
            Refuse, "bogo operations per second", "1/s",
        ),
    ];
    7 "fio" ("fio", None), &[
        higher(r"\bIOPS=([0-9.]+[kKMG]?)", Sum, "I/O operations per second", "1/s"),
        higher(r#""iops" *: *([0-9.]+)"#, Sum, "I/O operations per second", "1/s"),
    ];
    8 "redis-benchmark" ("redis-benchmark", None), &[
        higher(
            r"([0-9.]+) requests per second",
            Mean, "requests per second", "1/s",
        ),
        higher(r#"(?m)^"[A-Z][^"\n]*","([0-9.]+)""#, Mean, "requests per second", "1/s"),
    ];
    9 "preemptprof-bench" ("preemptprof", Some("bench")), BENCH;
}

/// The patterns are constants, and a test compiles them all: one that does not
/// compile would only match nothing.
fn compile(at: usize) -> Vec<Regex> {
    let patterns = BENCHMARKS[at].patterns;
    patterns
        .iter()
        .map(|pattern| Regex::new(pattern.regex))
        .map_while(Result::ok)
        .collect()
}

/// The benchmark of this name.
pub(super) fn find(name: &str) -> Option<&'static Benchmark> {
    BENCHMARKS.iter().find(|known| known.name == name)
}

/// The benchmark that a command runs, also behind `taskset`, `nice`, `sh -c` and
/// the like. One that is only mentioned is taken for it too: nothing then matches
/// in the output, and the clock tells.
pub(super) fn of_command(command: &[OsString]) -> Option<&'static Benchmark> {
    let line: Vec<String> = command
        .iter()
        .flat_map(|word| {
            let word = word.to_string_lossy();
            let words: Vec<String> = word.split_whitespace().map(str::to_owned).collect();
            words
        })
        .collect();
    line.iter().enumerate().find_map(|(at, word)| {
        let program = word.rsplit('/').next()?;
        BENCHMARKS.iter().find(|known| {
            let (name, then) = known.program;
            program == name
                && then.is_none_or(|then| line[at + 1..].iter().any(|word| word == then))
        })
    })
}

impl Benchmark {
    /// The result in this output.
    pub(super) fn read(&self, output: &[u8]) -> Option<Metric> {
        if let Some(metric) = document(output) {
            return Some(metric);
        }
        // Lines that are drawn over each other are lines.
        let lines: Vec<u8> = output
            .iter()
            .map(|&byte| if byte == b'\r' { b'\n' } else { byte })
            .collect();
        let mut tries = self.patterns.iter().zip(self.regexes.iter());
        tries.find_map(|(pattern, regex)| pattern.read(regex, &lines))
    }
}

impl Pattern {
    fn read(&self, regex: &Regex, output: &[u8]) -> Option<Metric> {
        let value = |captures: Captures<'_>| number(captures.get(1)?.as_bytes());
        let found: Vec<f64> = regex.captures_iter(output).filter_map(value).collect();
        let last = *found.last()?;
        let value = match self.several {
            Last => last,
            Sum => found.iter().sum(),
            Max => found.iter().copied().fold(last, f64::max),
            Mean => {
                let logs: f64 = found.iter().map(|value| value.ln()).sum();
                (logs / found.len() as f64).exp()
            }
            Refuse if found.len() == 1 => last,
            Refuse => return None,
        };
        value.is_finite().then(|| Metric {
            name: self.name.to_owned(),
            value,
            unit: self.unit.to_owned(),
            better: self.better.to_owned(),
        })
    }
}

/// The result of `preemptprof bench --format json`.
fn document(output: &[u8]) -> Option<Metric> {
    #[derive(serde::Deserialize)]
    struct Document {
        schema: String,
        metric: Metric,
    }
    let start = output.iter().position(|&byte| byte == b'{')?;
    let mut documents =
        serde_json::Deserializer::from_slice(&output[start..]).into_iter::<Document>();
    let document = documents.next()?.ok()?;
    let ours = document.schema == "preemptprof/bench/1";
    let sound = matches!(document.metric.better.as_str(), "lower" | "higher");
    (ours && sound && document.metric.value.is_finite()).then_some(document.metric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles_and_has_its_group() {
        for (known, name) in BENCHMARKS.iter().zip(NAMES) {
            assert_eq!(known.name, name);
            assert_eq!(known.regexes.len(), known.patterns.len(), "{name}");
            for regex in known.regexes.iter() {
                assert_eq!(regex.captures_len(), 2, "{regex}");
            }
        }
    }

    #[test]
    fn commands_are_recognised() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split('|').map(OsString::from).collect();
            of_command(&words).map(|known| known.name)
        };
        assert_eq!(of("perf|bench|sched|pipe"), Some("perf-bench"));
        assert_eq!(of("/usr/bin/perf|-v|bench|mem"), Some("perf-bench"));
        assert_eq!(of("perf|stat|ls"), None);
        assert_eq!(of("taskset|-c|0|hackbench|-g|4"), Some("hackbench"));
        assert_eq!(of("sh|-c|cd /tmp && exec pgbench -T 5"), Some("pgbench"));
        assert_eq!(
            of("/x/preemptprof|bench|messaging"),
            Some("preemptprof-bench")
        );
        assert_eq!(of("make|-j8"), None);
        assert_eq!(of(""), None);
    }
}
