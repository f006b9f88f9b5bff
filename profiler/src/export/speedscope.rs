//! A profile for <https://www.speedscope.app>: its JSON file format, one sampled
//! profile.
//!
//! Equal stacks are one entry with their weight: the file format has no table of
//! stacks, and a million of them written out would be hundreds of megabytes. An
//! order in time is what the Firefox profile keeps.

use std::io::{self, Write};

use serde::Serialize;

use super::By;
use super::group::{self, Numbers};
use crate::model::Attribution;
use crate::recording::Recording;
use crate::report::{command_line, escape};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: u32,
    shared: Shared,
    profiles: [Profile; 1],
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// Writes the workload's stacks with their weights. A stack that an option owns
/// ends in a frame that names it, as in folded stacks.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    by: By,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut numbers = Numbers::new();
    let options: Vec<String> = attribution
        .options()
        .map(|option| format!("[{option}]"))
        .collect();
    let (mut samples, mut weights) = (Vec::new(), Vec::new());
    for (key, weight) in group::groups(recording, by) {
        let mut stack: Vec<usize> = group::parts(recording, attribution, key, by)
            .map(|part| numbers.of_part(recording, part))
            .collect();
        stack.push(numbers.of_comm(recording, key.comm));
        stack.reverse();
        if let Some(owned) = group::owner(attribution, key, by)
            && let Some(option) = options.get(owned.option)
        {
            stack.push(numbers.of(option));
        }
        samples.push(stack);
        weights.push(weight);
    }
    let header = &recording.header;
    let command = if header.command.is_empty() {
        "preemptprof".to_owned()
    } else {
        escape(&command_line(&header.command)).into_owned()
    };
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: format!("preemptprof@{}", env!("CARGO_PKG_VERSION")),
        name: command,
        active_profile_index: 0,
        shared: Shared {
            frames: numbers
                .names
                .into_iter()
                .map(|name| Frame { name })
                .collect(),
        },
        profiles: [Profile {
            r#type: "sampled",
            name: match by {
                By::Time => "samples",
                By::Rcu => "blocked in rcu_barrier",
            }
            .to_owned(),
            unit: match by {
                By::Time => "none",
                By::Rcu => "nanoseconds",
            },
            start_value: 0,
            end_value: weights.iter().copied().fold(0, u64::saturating_add),
            samples,
            weights,
        }],
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}
