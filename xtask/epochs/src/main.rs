//! `preemptprof-epochs FILE`: fails when the counters in a recording's epoch records
//! go back, or say more was lost than its trailer, and else prints how many there are.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use profiler::recording::{self, Epoch, Recording};

fn main() -> ExitCode {
    match act() {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn act() -> Result<String> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(file), None) = (arguments.next(), arguments.next()) else {
        bail!("usage: preemptprof-epochs FILE");
    };
    check(&recording::read(Path::new(&file))?)
}

/// Compares each epoch record with the one before it of the same CPU, and the last
/// with the trailer.
fn check(recording: &Recording) -> Result<String> {
    ensure!(!recording.epochs.is_empty(), "no epoch records");
    let mut last: BTreeMap<u32, &Epoch> = BTreeMap::new();
    for epoch in &recording.epochs {
        if let Some(before) = last.insert(epoch.cpu, epoch) {
            grows(before, epoch).with_context(|| {
                format!(
                    "CPU {}, from {} to {} ns",
                    epoch.cpu, before.time_ns, epoch.time_ns
                )
            })?;
        }
    }
    for (cpu, epoch) in &last {
        for (reason, count) in &epoch.losses {
            let total: u64 = recording
                .trailer
                .losses
                .iter()
                .filter(|loss| loss.cpu == *cpu && loss.reason == *reason)
                .map(|loss| loss.count)
                .sum();
            ensure!(
                total >= *count,
                "CPU {cpu} lost {count} by {reason} in its last epoch, and {total} in all"
            );
        }
    }
    Ok(format!(
        "{} epoch records of {} CPUs",
        recording.epochs.len(),
        last.len()
    ))
}

/// Fails when a counter of `now` is below that of `before`.
fn grows(before: &Epoch, now: &Epoch) -> Result<()> {
    let (switches, other) = (&now.switches, &now.other_switches);
    let counters = [
        ("time", before.time_ns, now.time_ns),
        (
            "voluntary switches",
            before.switches.voluntary,
            switches.voluntary,
        ),
        ("preemptions", before.switches.preempted, switches.preempted),
        (
            "other voluntary switches",
            before.other_switches.voluntary,
            other.voluntary,
        ),
        (
            "other preemptions",
            before.other_switches.preempted,
            other.preempted,
        ),
        ("sampler hits", before.sampler_hits, now.sampler_hits),
        ("idle samples", before.idle_samples, now.idle_samples),
    ];
    for (name, before, now) in counters {
        ensure!(before <= now, "{name} fell from {before} to {now}");
    }
    // A reason that is absent has lost nothing.
    for (reason, before) in &before.losses {
        let now = now.losses.get(reason).copied().unwrap_or(0);
        ensure!(
            *before <= now,
            "losses by {reason} fell from {before} to {now}"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use recording::Loss;

    use super::*;

    fn epoch(cpu: u32, time_ns: u64, lost: u64) -> Epoch {
        Epoch {
            cpu,
            time_ns,
            losses: [("ring_full".to_owned(), lost)].into(),
            ..Epoch::default()
        }
    }

    fn recording(epochs: Vec<Epoch>, lost: u64) -> Recording {
        let mut recording = Recording {
            epochs,
            ..Recording::default()
        };
        recording.trailer.losses = vec![Loss {
            cpu: 0,
            reason: "ring_full".to_owned(),
            count: lost,
        }];
        recording
    }

    #[test]
    fn counters_that_go_back() {
        let good = vec![epoch(0, 1, 2), epoch(1, 1, 0), epoch(0, 2, 2)];
        assert_eq!(
            check(&recording(good.clone(), 2)).unwrap(),
            "3 epoch records of 2 CPUs"
        );
        let says = |epochs: Vec<Epoch>, lost, word: &str| {
            let error = format!("{:#}", check(&recording(epochs, lost)).unwrap_err());
            assert!(error.contains(word), "{error}");
        };
        says(good, 1, "in its last epoch");
        says(vec![epoch(0, 1, 2), epoch(0, 2, 1)], 2, "ring_full fell");
        says(vec![epoch(0, 2, 0), epoch(0, 1, 0)], 0, "time fell");
        says(Vec::new(), 0, "no epoch records");
        let mut forgotten = epoch(0, 2, 0);
        forgotten.losses.clear();
        says(vec![epoch(0, 1, 1), forgotten], 1, "from 1 to 0");
        let mut before = epoch(0, 1, 0);
        before.other_switches.preempted = 1;
        says(vec![before, epoch(0, 2, 0)], 0, "other preemptions fell");
    }

    proptest! {
        #[test]
        fn any_order_of_cpus_will_do(cpus in proptest::collection::vec(0u32..3, 1..20)) {
            let epochs: Vec<Epoch> = cpus.iter().zip(0..).map(|(cpu, at)| epoch(*cpu, at, 0)).collect();
            prop_assert!(check(&recording(epochs, 0)).is_ok());
        }
    }
}
