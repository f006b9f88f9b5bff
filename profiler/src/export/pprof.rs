//! A profile for `go tool pprof` and everything else that reads its
//! `profile.proto`: gzip over protobuf.
//!
//! The message and field numbers are those of
//! <https://github.com/google/pprof/blob/main/proto/profile.proto>. What an option
//! owns carries the label `option`, so `-tagroot option` and `-tagfocus
//! option=CONFIG_X` sort by it; the task's name is the label `comm`.

use std::collections::HashMap;
use std::io::{self, BufWriter, IntoInnerError, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use prost::encoding::message;

use super::By;
use super::group::{self, Part};
use crate::fast_map::FastMap;
use crate::model::{Attribution, comm, frame_name};
use crate::recording::{FrameId, Recording};
use crate::report::escape;

/// All of the profile but its samples, which are written one by one: in memory
/// they take more than the recording.
#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// The profile's field of its samples.
const SAMPLE: u32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The file name of the kernel itself, as perf has it.
const KERNEL: &str = "[kernel.kallsyms]";

/// Writes the workload's samples. Values are samples and, where the rate is
/// known, nanoseconds; with [`By::Rcu`] nanoseconds blocked.
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
    let gzip = GzEncoder::new(out, Compression::fast());
    let mut gzip = BufWriter::with_capacity(1 << 16, gzip);
    let profile = Builder::new(recording, attribution, by).write(&mut gzip)?;
    gzip.write_all(&profile.encode_to_vec())?;
    let gzip = gzip.into_inner().map_err(IntoInnerError::into_error)?;
    gzip.finish()?;
    Ok(())
}

struct Builder<'r> {
    recording: &'r Recording,
    attribution: &'r Attribution,
    by: By,
    profile: Profile,
    strings: HashMap<String, i64>,
    /// By module and name: the recording's tables hold the same thing more than
    /// once.
    functions: HashMap<(&'r str, &'r str), u64>,
    mappings: HashMap<&'r str, u64>,
    frames: FastMap<FrameId, u64>,
    missing: HashMap<&'static str, u64>,
}

impl<'r> Builder<'r> {
    fn new(recording: &'r Recording, attribution: &'r Attribution, by: By) -> Self {
        let mut this = Self {
            recording,
            attribution,
            by,
            profile: Profile::default(),
            strings: HashMap::new(),
            functions: HashMap::new(),
            mappings: HashMap::new(),
            frames: FastMap::default(),
            missing: HashMap::new(),
        };
        // The format wants the empty string to be the first.
        this.string("");
        this
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let id = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), id);
        id
    }

    fn value_type(&mut self, r#type: &str, unit: &str) -> ValueType {
        ValueType {
            r#type: self.string(r#type),
            unit: self.string(unit),
        }
    }

    /// Writes the samples, and returns the rest: its tables are known after them,
    /// and the order of fields means nothing.
    fn write(mut self, out: &mut impl Write) -> io::Result<Profile> {
        let header = &self.recording.header;
        let hz = header.sampling.hz;
        let per_sample = 1_000_000_000_u64.checked_div(hz);
        match self.by {
            By::Time => {
                let samples = self.value_type("samples", "count");
                self.profile.sample_type.push(samples);
                if let Some(period) = per_sample {
                    let time = self.value_type("cpu", "nanoseconds");
                    self.profile.sample_type.push(time);
                    self.profile.period_type = Some(time);
                    self.profile.period = period as i64;
                }
                self.profile.default_sample_type = self.string("samples");
            }
            By::Rcu => {
                let blocked = self.value_type("blocked", "nanoseconds");
                self.profile.sample_type.push(blocked);
                self.profile.default_sample_type = self.string("blocked");
            }
        }
        self.profile.time_nanos = i64::try_from(header.started_unix_ns).unwrap_or(0);
        // The cast saturates; an absurd wall time is only shown oddly.
        self.profile.duration_nanos = (self.recording.trailer.run.wall_s * 1e9) as i64;
        self.comments();
        let (option, task) = (self.string("option"), self.string("comm"));
        let (recording, attribution, by) = (self.recording, self.attribution, self.by);
        let mut sample = Sample::default();
        let mut encoded = Vec::new();
        for (key, weight) in group::groups(recording, by) {
            sample.clear();
            let locations = group::parts(recording, attribution, key, by);
            sample
                .location_id
                .extend(locations.map(|part| self.location(part)));
            let value = &mut sample.value;
            value.push(i64::try_from(weight).unwrap_or(i64::MAX));
            if let (By::Time, Some(period)) = (by, per_sample) {
                value.push(i64::try_from(weight.saturating_mul(period)).unwrap_or(i64::MAX));
            }
            let label = &mut sample.label;
            label.push(Label {
                key: task,
                str: self.string(&escape(comm(recording, key.comm))),
            });
            if let Some(owned) = group::owner(attribution, key, by) {
                label.push(Label {
                    key: option,
                    str: self.string(attribution.option(owned.option)),
                });
            }
            encoded.clear();
            message::encode(SAMPLE, &sample, &mut encoded);
            out.write_all(&encoded)?;
        }
        Ok(self.profile)
    }

    fn comments(&mut self) {
        let header = &self.recording.header;
        let kernel = &header.kernel;
        let lines = [
            format!("preemptprof {}", header.tool_version),
            format!(
                "kernel {}, preempt {}",
                kernel.release, kernel.preempt_model.active
            ),
            format!(
                "{}, {}",
                header.sampling.event,
                header.sampling.evidence.as_str()
            ),
        ];
        for line in lines {
            let line = self.string(&escape(&line));
            self.profile.comment.push(line);
        }
    }

    fn location(&mut self, part: Part) -> u64 {
        let frame = match part {
            Part::Missing(name) => {
                if let Some(&known) = self.missing.get(name) {
                    return known;
                }
                let id = self.add_location(0, "", name, false);
                self.missing.insert(name, id);
                return id;
            }
            Part::Frame(frame, _) => frame,
        };
        if let Some(&known) = self.frames.get(&frame) {
            return known;
        }
        let recording = self.recording;
        let name = frame_name(recording, frame);
        let (addr, module) = recording
            .frames
            .get(frame as usize)
            .map_or((0, ""), |frame| {
                let symbol = recording.symbols.get(frame.symbol as usize);
                (
                    frame.addr,
                    symbol.map_or("", |symbol| symbol.module.as_str()),
                )
            });
        let id = self.add_location(addr, module, name, true);
        self.frames.insert(frame, id);
        id
    }

    fn add_location(&mut self, address: u64, module: &'r str, name: &'r str, real: bool) -> u64 {
        let mapping_id = if real { self.mapping(module) } else { 0 };
        let function_id = self.function(module, name);
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location {
            id,
            mapping_id,
            address,
            line: vec![Line { function_id }],
        });
        id
    }

    fn mapping(&mut self, module: &'r str) -> u64 {
        if let Some(&known) = self.mappings.get(module) {
            return known;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let kernel = module.is_empty();
        let build_id = if kernel {
            self.string(&self.recording.header.kernel.build_id)
        } else {
            0
        };
        let filename = self.string(&escape(if kernel { KERNEL } else { module }));
        self.profile.mapping.push(Mapping {
            id,
            filename,
            build_id,
            has_functions: true,
        });
        self.mappings.insert(module, id);
        id
    }

    fn function(&mut self, module: &'r str, name: &'r str) -> u64 {
        if let Some(&known) = self.functions.get(&(module, name)) {
            return known;
        }
        let id = self.profile.function.len() as u64 + 1;
        let name_id = self.string(&escape(name));
        let filename = self.string(&escape(module));
        self.profile.function.push(Function {
            id,
            name: name_id,
            system_name: name_id,
            filename,
        });
        self.functions.insert((module, name), id);
        id
    }
}
