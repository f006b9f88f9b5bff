//! A profile for <https://www.speedscope.app>: its JSON file format, one sampled
//! profile.
//!
//! Equal stacks are one entry with their weight: the file format has no table of
//! stacks, and a million of them written out would be hundreds of megabytes. An
//! order in time is what the Firefox profile keeps.

use std::cell::RefCell;
use std::io::{self, Write};

use serde::{Serialize, Serializer};

use super::By;
use super::group::{self, Key, Numbers};
use crate::model::Attribution;
use crate::recording::Recording;
use crate::report::{command_line, escape};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: String,
    name: String,
    active_profile_index: u32,
    profiles: [Profile<'a>; 1],
    /// After the profiles: which frames there are is known when they are written.
    shared: Shared<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile<'a> {
    r#type: &'static str,
    name: &'static str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Stacks<'a>,
    weights: Weights<'a>,
}

/// The stacks, each made when it is written: together they can take more than the
/// recording.
struct Stacks<'a> {
    recording: &'a Recording,
    attribution: &'a Attribution,
    by: By,
    groups: &'a [(Key, u64)],
    /// What stands at the end of a stack that an option owns.
    owners: &'a [String],
    numbers: &'a RefCell<Numbers<'a>>,
}

impl Serialize for Stacks<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let &Self {
            recording,
            attribution,
            by,
            groups,
            owners,
            numbers,
        } = self;
        serializer.collect_seq(groups.iter().map(|&(key, _)| {
            let mut numbers = numbers.borrow_mut();
            let mut stack: Vec<usize> = group::parts(recording, attribution, key, by)
                .map(|part| numbers.of_part(recording, part))
                .collect();
            stack.push(numbers.of_comm(recording, key.comm));
            stack.reverse();
            if let Some(owned) = group::owner(attribution, key, by)
                && let Some(owner) = owners.get(owned.option)
            {
                stack.push(numbers.of(owner));
            }
            stack
        }))
    }
}

struct Weights<'a>(&'a [(Key, u64)]);

impl Serialize for Weights<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|(_, weight)| weight))
    }
}

struct Shared<'a>(&'a RefCell<Numbers<'a>>);

impl Serialize for Shared<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Frame<'a> {
            name: &'a str,
        }
        #[derive(Serialize)]
        struct Frames<'a> {
            frames: Vec<Frame<'a>>,
        }
        let numbers = self.0.borrow();
        let frames = numbers.names.iter().map(|name| Frame { name }).collect();
        Frames { frames }.serialize(serializer)
    }
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
    let owners: Vec<String> = attribution
        .options()
        .map(|option| format!("[{option}]"))
        .collect();
    let groups = group::groups(recording, by);
    let numbers = RefCell::new(Numbers::new());
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
        profiles: [Profile {
            r#type: "sampled",
            name: match by {
                By::Time => "samples",
                By::Rcu => "blocked in rcu_barrier",
            },
            unit: match by {
                By::Time => "none",
                By::Rcu => "nanoseconds",
            },
            start_value: 0,
            end_value: groups
                .iter()
                .fold(0, |sum, (_, weight)| sum.saturating_add(*weight)),
            samples: Stacks {
                recording,
                attribution,
                by,
                groups: &groups,
                owners: &owners,
                numbers: &numbers,
            },
            weights: Weights(&groups),
        }],
        shared: Shared(&numbers),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")
}
