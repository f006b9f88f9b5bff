//! What preemptprof must say and leave behind on every kernel of the matrix.
//!
//! Each check prints what preemptprof said and what the kernel itself says of the
//! same thing, and compares the two; durations are never judged.

use std::ops::RangeInclusive;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::checks::{Check, Section, Subject, succeeded};
use super::ledger::lost;
use super::recording::{FILE as RECORDING, valid_report};
use super::runs::{self, ROUND_TRIPS, traced};

/// Parts what preemptprof said from what the kernel says.
const KERNEL_SAYS: &str = "@@kernel";
/// The most instructions the verifier may look at in one program. It refuses
/// above a million; a program near that is a program about to be refused.
const VERIFIER_CEILING: u64 = 100_000;

/// The checks.
pub(super) const PRODUCT: &[Check] = &[
    Check {
        name: "doctor",
        skip: |_| None,
        script: |subject| {
            // Two other runs are made under the second model and the third.
            let fourth = match subject.models.len() {
                4.. => {
                    "under 4; preemptprof doctor --format json >/tmp/fourth.json || exit 1\n\
                        said /tmp/fourth.json\n"
                }
                _ => "",
            };
            format!(
                "{fourth}under 1; preemptprof doctor --format json >/tmp/doctor.json || exit 1\n\
                 cat /tmp/doctor.json; said /tmp/doctor.json"
            )
        },
        verify: |subject, section| {
            succeeded(section)?;
            let doctor = json(&section.output)?;
            ensure!(
                doctor["schema"] == "preemptprof/doctor/1",
                "no doctor document"
            );
            for (wanted, leg) in expected_legs(subject) {
                let found = leg_of(&doctor, wanted);
                ensure!(
                    found == Some(leg),
                    "{wanted}: leg {found:?}, not {leg}: {doctor:#}"
                );
            }
            let programs = doctor["programs"].as_array().context("no programs")?;
            ensure!(programs.len() >= 6, "{} programs loaded", programs.len());
            for program in programs {
                // Absent before 5.16.
                let count = program["verified_instructions"].as_u64().unwrap_or(0);
                ensure!(
                    count <= VERIFIER_CEILING,
                    "{program}: over {VERIFIER_CEILING}"
                );
            }
            Ok(())
        },
    },
    Check {
        name: "switches",
        skip: |_| None,
        script: |_| runs::watched(KERNEL_SAYS),
        verify: |_, section| {
            let (report, _) = parts(section)?;
            valid_report(&report)?;
            verify_watched(&report)
        },
    },
    Check {
        name: "counting",
        skip: |_| None,
        script: runs::as_before,
        verify: |subject, section| verify_counting(subject, &parts(section)?.0),
    },
    Check {
        name: "rcu_barrier",
        skip: |_| None,
        script: |_| runs::machine(KERNEL_SAYS),
        verify: |_, section| {
            let (report, trace) = parts(section)?;
            valid_report(&report)?;
            verify_rcu_barrier(&report, &traced(trace, "rcu_barrier"))
        },
    },
    Check {
        name: "record",
        skip: |_| None,
        script: |_| runs::record(RECORDING),
        verify: |_, section| succeeded(section),
    },
    Check {
        name: "other-legs",
        skip: |subject| elsewhere("other-legs", subject),
        // The legs themselves are those of the recording, on every kernel.
        script: |_| runs::barriers_without_btf(KERNEL_SAYS),
        verify: |subject, section| {
            let (report, trace) = parts(section)?;
            let traced = traced(trace, "rcu_barrier");
            valid_report(&report)?;
            verify_other_legs(subject, &report, false)?;
            if is_old(subject) {
                // A return probe has as many instances as there are CPUs on a kernel
                // without preemption: of calls at the same time some are missed.
                let count = report["rcu"][0]["count"].as_u64().unwrap_or(0);
                ensure!(
                    (1..=*traced.end()).contains(&count),
                    "{traced:?} calls, {count} seen"
                );
                return Ok(());
            }
            verify_rcu_barrier(&report, &traced)
        },
    },
    Check {
        name: "attribution",
        skip: |subject| {
            let lab = subject.name.contains("debug-preempt") || subject.name.contains("plain");
            (!lab).then(|| "a lab kernel's matter".to_owned())
        },
        script: |_| {
            "preemptprof run --callers 50 --max-overhead 10 --format json \
             --report /tmp/share.json -- preemptprof bench messaging -g 1 -l 200 >/dev/null\n\
             cat /tmp/share.json"
                .to_owned()
        },
        verify: |subject, section| {
            succeeded(section)?;
            let report = json(&section.output)?;
            valid_report(&report)?;
            let option = debug_preempt(&report)?;
            if subject.name.contains("plain") {
                ensure!(option["state"] == "n", "{option}");
                ensure!(option.get("cpu_share").is_none(), "{option}");
                return Ok(());
            }
            ensure!(option["state"] == "y", "{option}");
            let share = option["cpu_share"]["value"].as_f64().context("no share")?;
            ensure!(share > 0.002, "{option}");
            let groups: Vec<&str> = option["callers"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|caller| caller["group"].as_str())
                .collect();
            for group in ["locking", "slab"] {
                ensure!(groups.contains(&group), "no caller in {group}: {option:#}");
            }
            verify_calls(option)
        },
    },
    Check {
        name: "killed",
        skip: |subject| elsewhere("killed", subject),
        script: |_| {
            // Killed while the workload runs, which then goes on.
            "cd /tmp; preemptprof run --count off -- sh -c 'touch started; sleep 1; echo survived >survived' & \
             until [ -e started ]; do usleep 50000; done; kill -9 $!; wait\n\
             for i in $(seq 100); do [ -s survived ] && break; usleep 100000; done; cat survived"
                .to_owned()
        },
        verify: |_, section| {
            ensure!(
                section.output.contains("survived"),
                "the workload did not run on: {}",
                section.output
            );
            Ok(())
        },
    },
];

/// Checks that say the same on any kernel, or nearly so, with the kernels that
/// stand for the others. Each costs a start of preemptprof.
const CHOSEN: [(&str, &[&str]); 2] = [
    // Return probes as 5.10 has them, with one place a CPU, and as they are now.
    ("other-legs", &["5.10", "7.3"]),
    // That the workload lives on is the product's doing. What the kernel takes back
    // from a killed process, a realtime kernel frees later than others.
    ("killed", &["6.1", "6.1-rt"]),
];

/// Why a check does not run on this kernel, if others stand for it.
fn elsewhere(check: &str, subject: &Subject) -> Option<String> {
    let kernel = subject.name.trim_start_matches("vm/");
    let (_, chosen) = CHOSEN.iter().find(|(name, _)| *name == check)?;
    (!chosen.contains(&kernel)).then(|| format!("checked on {}", chosen.join(", ")))
}

/// Whether the kernel's tracepoint of switches does not tell the task's state, as
/// before 5.18.
fn is_old(subject: &Subject) -> bool {
    subject.release.starts_with("5.")
}

/// The legs without BTF. Tasks are followed only where not all are the target.
pub(super) fn verify_other_legs(
    subject: &Subject,
    report: &Value,
    follows_tasks: bool,
) -> Result<()> {
    let switch = if is_old(subject) {
        "tracepoint"
    } else {
        "raw_tp"
    };
    let mut legs = vec![
        ("sample", "cpu-clock"),
        ("switch", switch),
        ("rcu_barrier", "kprobe"),
    ];
    if follows_tasks {
        legs.extend([("fork", "tracepoint"), ("free", "tracepoint")]);
    }
    for (wanted, leg) in legs {
        let found = leg_of(report, wanted);
        ensure!(
            found == Some(leg),
            "{wanted}: leg {found:?}, not {leg}: {}",
            report["probes"]
        );
    }
    Ok(())
}

fn verify_rcu_barrier(report: &Value, traced: &RangeInclusive<u64>) -> Result<()> {
    ensure!(*traced.start() > 0, "the guest made no rcu_barrier call");
    let event = report["rcu"]
        .as_array()
        .context("no rcu")?
        .iter()
        .find(|event| event["event"] == "rcu_barrier")
        .context("no rcu_barrier")?;
    ensure!(
        event["count"]
            .as_u64()
            .is_some_and(|count| traced.contains(&count)),
        "{traced:?} calls were made: {event}"
    );
    ensure!(
        event["by"].as_array().is_some_and(|by| !by.is_empty()),
        "no callers: {event}"
    );
    Ok(())
}

/// Judges the switches of the watched run, which are compared with the kernel's own
/// counts in `switches-by-task`.
fn verify_watched(report: &Value) -> Result<()> {
    let switches = &report["switches"];
    let number = |name: &str| switches[name].as_u64().context("no switches");
    let (total, voluntary, preempted) =
        (number("total")?, number("voluntary")?, number("preempted")?);
    ensure!(total == voluntary + preempted, "{switches}");
    let made = 2 * ROUND_TRIPS;
    ensure!(total >= made, "{made} switches were made: {switches}");
    ensure!(lost(report) == 0, "lost: {}", report["loss"]);
    Ok(())
}

/// Judges a run of the pipe benchmark.
pub(super) fn verify_switches(report: &Value) -> Result<()> {
    let switches = &report["switches"];
    let number = |name: &str| switches[name].as_u64().context("no switches");
    let (total, voluntary, preempted) =
        (number("total")?, number("voluntary")?, number("preempted")?);
    ensure!(total == voluntary + preempted, "{switches}");
    // Each side of each round trip waits for the other on the one CPU.
    let made = 2 * ROUND_TRIPS;
    ensure!(total >= made, "{made} switches were made: {switches}");
    ensure!(total < made + 2000, "{made} switches were made: {switches}");
    ensure!(report["loss"]["total"] == 0, "lost: {}", report["loss"]);
    Ok(())
}

/// What a report has of DEBUG_PREEMPT.
fn debug_preempt(report: &Value) -> Result<&Value> {
    report["options"]
        .as_array()
        .and_then(|options| {
            options
                .iter()
                .find(|option| option["name"] == "CONFIG_DEBUG_PREEMPT")
        })
        .context("DEBUG_PREEMPT is not in the report")
}

/// Calls of checks are counted on every kernel that has any.
fn verify_counting(subject: &Subject, report: &Value) -> Result<()> {
    let leg = leg_of(report, "check");
    if subject.name.contains("plain") && leg != Some("breakpoint") {
        return Ok(());
    }
    ensure!(leg == Some("breakpoint"), "{leg:?}: {}", report["probes"]);
    let counting = &report["counting"];
    let windows = counting["windows"].as_u64().unwrap_or(0);
    ensure!(windows > 0, "no windows: {counting}");
    Ok(())
}

/// Where checks are most of what is done, they are found and say what they cost.
fn verify_calls(option: &Value) -> Result<()> {
    let calls = option["calls"]["value"].as_f64().context("no calls")?;
    // 8,000 messages, each sent and received with some locks taken. What they take
    // is another matter: by an emulator's clock instructions have no pace, and the
    // report may say that samples contradict it.
    ensure!(calls > 40_000.0, "{calls} calls: {option}");
    match option["gain_if_off"]["value"].as_f64() {
        Some(gain) => ensure!(gain > 0.0 && gain < 0.5, "gain {gain}: {option}"),
        None => ensure!(option["no_gain"].is_string(), "{option}"),
    }
    Ok(())
}

/// The legs a kernel must give.
fn expected_legs(_: &Subject) -> [(&'static str, &'static str); 5] {
    [
        ("sample", "cpu-clock"),
        ("switch", "tp_btf"),
        ("fork", "tp_btf"),
        ("free", "tp_btf"),
        ("rcu_barrier", "fentry"),
    ]
}

fn leg_of<'a>(document: &'a Value, wanted: &str) -> Option<&'a str> {
    document["probes"]
        .as_array()?
        .iter()
        .find(|probe| probe["wanted"] == wanted)?["leg"]
        .as_str()
}

/// The JSON document that begins and ends an output, whatever stands around it.
fn json(output: &str) -> Result<Value> {
    let start = output
        .find('{')
        .with_context(|| format!("no JSON: {output}"))?;
    let end = output
        .rfind('}')
        .with_context(|| format!("no JSON: {output}"))?;
    serde_json::from_str(&output[start..=end]).with_context(|| format!("bad JSON: {output}"))
}

/// The report that a run printed, and what the kernel says.
///
/// # Errors
///
/// When it failed or was cut short.
pub(super) fn parts(section: &Section) -> Result<(Value, &str)> {
    succeeded(section)?;
    let (report, kernel) = section
        .output
        .split_once(KERNEL_SAYS)
        .with_context(|| format!("cut short: {}", section.output))?;
    Ok((json(report)?, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str) -> Subject {
        Subject {
            name: name.to_owned(),
            release: "6.1.".to_owned(),
            models: vec!["full".to_owned(), "none".to_owned()],
            booted_model: None,
        }
    }

    fn verify(name: &str, kernel: &str, output: &str) -> Result<()> {
        let check = PRODUCT.iter().find(|check| check.name == name).unwrap();
        let section = Section {
            status: 0,
            output: output.to_owned(),
        };
        (check.verify)(&subject(kernel), &section)
    }

    /// A report that follows the schema: the one whose text the tests of
    /// `profiler` keep.
    fn valid() -> Value {
        let snapshot = include_str!(
            "../../../profiler/tests/snapshots/report_text__json_matches_the_schema.snap"
        );
        json(snapshot).unwrap()
    }

    fn debug_preempt_mut(report: &mut Value) -> &mut Value {
        report["options"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .find(|option| option["name"] == "CONFIG_DEBUG_PREEMPT")
            .unwrap()
    }

    fn doctor(leg: &str, verified: u64) -> String {
        let probes: Vec<Value> = expected_legs(&subject("6.1"))
            .iter()
            .map(|(wanted, usual)| {
                let leg = if *wanted == "switch" { leg } else { usual };
                serde_json::json!({"wanted": wanted, "leg": leg})
            })
            .collect();
        let program = serde_json::json!({"name": "x", "verified_instructions": verified});
        serde_json::json!({
            "schema": "preemptprof/doctor/1",
            "probes": probes,
            "programs": vec![program; 6],
        })
        .to_string()
    }

    #[test]
    fn each_check_can_fail() {
        verify("doctor", "6.1", &doctor("tp_btf", 500)).unwrap();
        assert!(verify("doctor", "6.1", &doctor("raw_tp", 500)).is_err());
        assert!(verify("doctor", "6.1", &doctor("tp_btf", 900_000)).is_err());

        let switches = |total: u64, lost: u64| {
            let mut report = valid();
            for (name, count) in [("total", total), ("voluntary", total - 1), ("preempted", 1)] {
                report["switches"][name] = count.into();
            }
            report["loss"]["by_reason"] = serde_json::json!({"task_map_full": lost});
            format!("{report}\n{KERNEL_SAYS}\n")
        };
        verify("switches", "6.1", &switches(2 * ROUND_TRIPS + 9, 0)).unwrap();
        assert!(verify("switches", "6.1", &switches(2 * ROUND_TRIPS - 9, 0)).is_err());
        assert!(verify("switches", "6.1", &switches(2 * ROUND_TRIPS + 9, 1)).is_err());

        assert!(verify("switches", "6.1", "{\"schema\": \"preemptprof/report/1\"}").is_err());

        let barriers = |mut report: Value, count: u64, traced: usize| {
            assert_eq!(report["rcu"][0]["event"], "rcu_barrier");
            report["rcu"][0]["count"] = count.into();
            let call = " kworker/u4:1-31 [000] ..... 7.1: rcu_barrier <-cleanup_net\n";
            let mark = |name: &str| format!("sh-9 [000] ..... 7.2: tracing_mark_write: {name}\n");
            let (begin, end) = (mark("begin"), mark("end"));
            let calls = call.repeat(traced);
            format!("{report}\n{KERNEL_SAYS}\n{begin}{calls}{end}")
        };
        let rcu = |count, traced| barriers(valid(), count, traced);
        verify("rcu_barrier", "6.1", &rcu(3, 3)).unwrap();
        assert!(verify("rcu_barrier", "6.1", &rcu(2, 3)).is_err());
        assert!(verify("rcu_barrier", "6.1", &rcu(0, 0)).is_err());

        let share = |state: &str, groups: [&str; 2]| {
            let mut report = valid();
            let option = debug_preempt_mut(&mut report);
            option["state"] = state.into();
            option["calls"] = serde_json::json!({
                "value": 900_000.0, "low": 0.0, "high": 900_000.0, "evidence": "counted",
                "coverage": 1.0,
            });
            option["callers"].as_array_mut().unwrap().truncate(1);
            let caller = option["callers"][0].clone();
            option["callers"] = groups
                .map(|group| {
                    let mut caller = caller.clone();
                    caller["group"] = group.into();
                    caller
                })
                .to_vec()
                .into();
            report.to_string()
        };
        let both = ["locking", "slab"];
        verify("attribution", "6.1-debug-preempt", &share("y", both)).unwrap();
        assert!(verify("attribution", "6.1-debug-preempt", &share("n", both)).is_err());
        assert!(verify("attribution", "6.1-debug-preempt", &share("y", ["slab"; 2])).is_err());
        assert!(verify("attribution", "6.1-plain", &share("n", both)).is_err());
        let mut off = valid();
        debug_preempt_mut(&mut off)["state"] = "n".into();
        debug_preempt_mut(&mut off)
            .as_object_mut()
            .unwrap()
            .remove("cpu_share");
        verify("attribution", "6.1-plain", &off.to_string()).unwrap();

        let counting = |leg: &str, windows: u64, calls: f64, gain: f64| {
            let mut report = valid();
            report["probes"] = serde_json::json!([{"wanted": "check", "leg": leg}]);
            report["counting"]["windows"] = windows.into();
            let option = debug_preempt_mut(&mut report);
            let estimate = |value: f64| serde_json::json!({"value": value, "low": 0.0, "high": value, "evidence": "counted"});
            option["calls"] = estimate(calls);
            option["calls"]["coverage"] = 1.0.into();
            option["gain_if_off"] = estimate(gain);
            report
        };
        let judge = |kernel: &str, report: &Value| {
            verify_counting(&subject(kernel), report)?;
            verify_calls(debug_preempt(report)?)
        };
        let good = counting("breakpoint", 300, 900_000.0, 0.11);
        judge("6.1-debug-preempt", &good).unwrap();
        judge("6.12", &good).unwrap();
        for (leg, windows, calls, gain) in [
            ("none", 300, 900_000.0, 0.11),
            ("breakpoint", 0, 900_000.0, 0.11),
            ("breakpoint", 300, 900.0, 0.11),
            ("breakpoint", 300, 900_000.0, 0.0),
        ] {
            let bad = counting(leg, windows, calls, gain);
            assert!(judge("6.1-debug-preempt", &bad).is_err(), "{leg} {windows}");
        }
        let off = counting("none", 0, 0.0, 0.0);
        verify_counting(&subject("6.1-plain"), &off).unwrap();
        assert!(verify_counting(&subject("6.1"), &off).is_err());

        verify("killed", "6.1", "survived\n").unwrap();
        assert!(verify("killed", "6.1", "").is_err());
        let legs = |switch: &str, traced: usize| {
            let probes: Vec<Value> = [
                ("sample", "cpu-clock"),
                ("switch", switch),
                ("fork", "tracepoint"),
                ("free", "tracepoint"),
                ("rcu_barrier", "kprobe"),
            ]
            .iter()
            .map(|(wanted, leg)| serde_json::json!({"wanted": wanted, "leg": leg}))
            .collect();
            let mut report = valid();
            report["probes"] = probes.into();
            barriers(report, 3, traced)
        };
        verify("other-legs", "6.1", &legs("raw_tp", 3)).unwrap();
        assert!(verify("other-legs", "6.1", &legs("tp_btf", 3)).is_err());
        assert!(verify("other-legs", "6.1", &legs("raw_tp", 4)).is_err());
        verify("record", "6.1", "").unwrap();
        let failed = Section {
            status: 1,
            output: String::new(),
        };
        let record = PRODUCT.iter().find(|check| check.name == "record").unwrap();
        assert!((record.verify)(&subject("6.1"), &failed).is_err());
        assert_eq!(PRODUCT.len(), 8, "a check without its test");
    }
}
