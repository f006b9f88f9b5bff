//! Reads a recording back, trusting nothing in it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use zerocopy::FromBytes;

use super::format::{
    ChunkHead, EpochRecord, FOOTER_LEN, Footer, FrameRecord, HEAD_LEN, Kind, MAGIC, MAX_PAYLOAD,
    PROLOGUE_LEN, Prologue, RcuRecord, SampleRecord, VERSION, checksum,
};
use super::{Epoch, Frame, RcuEvent, Recording, Sample, Symbol, Trailer};
use crate::error::hinted;

/// What could be read of a damaged recording.
#[derive(Clone, Debug, PartialEq)]
pub struct Salvaged {
    /// Everything before the damage.
    pub recording: Recording,
    /// What is wrong and where; absent when the recording is whole.
    pub problem: Option<String>,
}

/// Reads a whole recording.
///
/// # Errors
/// When `path` is not a regular file, not a recording, of a newer version,
/// damaged, truncated or unfinished. The message says what and where.
pub fn read(path: &Path) -> Result<Recording> {
    let Salvaged { recording, problem } = salvage(path)?;
    match problem {
        None => Ok(recording),
        Some(problem) => Err(hinted(
            format!("cannot read {}: {problem}", path.display()),
            [format!(
                "`preemptprof report --salvage {}` reads what comes before",
                path.display()
            )],
        )),
    }
}

/// Reads all whole chunks before the first damage. Without a trailer the
/// recording has a default one and is not complete.
///
/// # Errors
/// When `path` is not a regular file, not a recording, of a newer version, or
/// damaged before its first record.
pub fn salvage(path: &Path) -> Result<Salvaged> {
    let (file, size) = open(path)?;
    let mut input = Input {
        source: BufReader::with_capacity(1 << 20, file),
        size,
        at: 0,
        payload: Vec::new(),
    };
    read_prologue(&mut input, path)?;
    let mut reader = Reader::new();
    let problem = loop {
        match reader.step(&mut input) {
            Ok(Step::More) => {}
            Ok(Step::End) => break None,
            Err(problem) => break Some(problem),
        }
    };
    if !reader.has_header {
        let problem = problem.unwrap_or_default();
        return Err(hinted(
            format!("cannot read {}: {problem}", path.display()),
            ["nothing of it can be salvaged: its header is missing"],
        ));
    }
    reader.recording.complete &= problem.is_none();
    Ok(Salvaged {
        recording: reader.recording,
        problem,
    })
}

fn open(path: &Path) -> Result<(File, u64)> {
    let refuse = |why: &str, hint: &str| {
        Err(hinted(
            format!("cannot read {}: {why}", path.display()),
            [hint.to_owned()],
        ))
    };
    if path.as_os_str() == "-" {
        return refuse(
            "a recording cannot come from standard input",
            "give the name of a file (or ./- for a file of that name)",
        );
    }
    // Not to wait for a writer of a FIFO, nor to touch a device.
    match fs::metadata(path) {
        Ok(meta) => {
            let kind = meta.file_type();
            let hint = "give the name of a file written by `preemptprof record -o`";
            if kind.is_dir() {
                return refuse("it is a directory", hint);
            }
            if kind.is_fifo() {
                return refuse("it is a pipe, not a file", hint);
            }
            if !kind.is_file() {
                return refuse("it is not a regular file", hint);
            }
        }
        Err(error) => {
            let mut partial = path.as_os_str().to_owned();
            partial.push(".partial");
            let hint = if Path::new(&partial).exists() {
                format!(
                    "{0} exists: its run was killed or still runs; `preemptprof report --salvage \
                     {0}` reads what it has",
                    partial.display()
                )
            } else {
                "check the path and its permissions".to_owned()
            };
            return refuse(&error.to_string(), &hint);
        }
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .map_err(|error| {
            hinted(
                format!("cannot read {}: {error}", path.display()),
                ["check its permissions"],
            )
        })?;
    let size = file
        .metadata()
        .with_context(|| format!("cannot read {}", path.display()))?
        .len();
    if size == 0 {
        return refuse(
            "it is empty",
            "the run that should have written it never began",
        );
    }
    Ok((file, size))
}

fn read_prologue(input: &mut Input<impl Read>, path: &Path) -> Result<()> {
    let foreign = || {
        hinted(
            format!("{} is not a preemptprof recording", path.display()),
            ["recordings are written by `preemptprof record -o FILE`"],
        )
    };
    let bytes = input.take(PROLOGUE_LEN).map_err(|_| foreign())?;
    let prologue = Prologue::read_from_bytes(bytes).map_err(|_| foreign())?;
    if prologue.magic != MAGIC {
        return Err(foreign());
    }
    let version = prologue.version.get();
    if version > VERSION {
        return Err(hinted(
            format!(
                "{} has recording version {version}; this preemptprof ({}) reads version {VERSION}",
                path.display(),
                env!("CARGO_PKG_VERSION"),
            ),
            ["read it with the preemptprof that wrote it, or a newer one"],
        ));
    }
    if version == 0 || prologue.reserved.get() != 0 {
        return Err(hinted(
            format!(
                "cannot read {}: its first 16 bytes are damaged",
                path.display()
            ),
            ["nothing of it can be salvaged"],
        ));
    }
    Ok(())
}

/// What is wrong, for people.
type Problem = String;

struct Input<R> {
    source: R,
    /// Length of the file when it was opened.
    size: u64,
    at: u64,
    /// The last bytes taken; grows only as far as the file does.
    payload: Vec<u8>,
}

impl<R: Read> Input<R> {
    fn remaining(&self) -> u64 {
        self.size - self.at
    }

    fn take(&mut self, len: usize) -> std::result::Result<&[u8], Problem> {
        if len as u64 > self.remaining() {
            return Err(format!(
                "{len} bytes expected at offset {}, {} left",
                self.at,
                self.remaining()
            ));
        }
        self.payload.resize(len, 0);
        self.source
            .read_exact(&mut self.payload)
            .map_err(|error| format!("reading at offset {} failed: {error}", self.at))?;
        self.at += len as u64;
        Ok(&self.payload)
    }
}

enum Step {
    More,
    End,
}

struct Reader {
    recording: Recording,
    has_header: bool,
    has_trailer: bool,
    chunks: u64,
}

impl Reader {
    fn new() -> Self {
        Self {
            recording: Recording {
                stacks: vec![Box::default()],
                ..Recording::default()
            },
            has_header: false,
            has_trailer: false,
            chunks: 0,
        }
    }

    /// Reads one chunk. On an error the recording is as it was before.
    fn step<R: Read>(&mut self, input: &mut Input<R>) -> std::result::Result<Step, Problem> {
        let at = input.at;
        let number = self.chunks;
        if input.remaining() == 0 {
            return Err(format!(
                "it ends at offset {at} without a footer: the run that wrote it was killed or \
                 still runs"
            ));
        }
        if input.remaining() < HEAD_LEN as u64 {
            return Err(format!(
                "it is truncated: {} bytes at offset {at} are no whole chunk",
                input.remaining()
            ));
        }
        let head = ChunkHead::read_from_bytes(input.take(HEAD_LEN)?)
            .map_err(|_| format!("the chunk at offset {at} has no head"))?;
        let (raw_kind, len) = (head.kind.get(), head.len.get());
        let Some(kind) = Kind::from_u32(raw_kind) else {
            return Err(if raw_kind == 0 && len == 0 {
                format!(
                    "it has no footer, only unused space from offset {at}: the run that wrote it \
                     was killed or still runs"
                )
            } else {
                format!("chunk {number} at offset {at} is damaged: there is no kind {raw_kind}")
            });
        };
        let name = kind.name();
        let damaged =
            |why: &str| format!("chunk {number} ({name}) at offset {at} is damaged: {why}");
        if u64::from(len) > input.remaining() {
            return Err(format!(
                "it is truncated, or chunk {number} ({name}) at offset {at} is damaged: {len} \
                 bytes announced, {} left",
                input.remaining()
            ));
        }
        if len as usize > MAX_PAYLOAD {
            return Err(damaged(&format!(
                "{len} bytes are more than a chunk can have"
            )));
        }
        let payload = input.take(len as usize)?;
        if checksum(raw_kind, len, payload) != head.crc.get() {
            return Err(damaged("its checksum does not match"));
        }
        let before = self.lengths();
        let order = self.check_order(kind);
        order
            .and_then(|()| self.apply(kind, payload))
            .map_err(|why| {
                self.truncate(&before);
                damaged(&why)
            })?;
        self.chunks += 1;
        if kind == Kind::Footer {
            let (end, size) = (input.at, input.size);
            let payload = &input.payload;
            self.check_footer(payload, end, size)
                .map_err(|why| damaged(&why))?;
            return Ok(Step::End);
        }
        Ok(Step::More)
    }

    fn check_order(&self, kind: Kind) -> std::result::Result<(), Problem> {
        if (kind == Kind::Header) == self.has_header {
            return Err(if self.has_header {
                "a second header".to_owned()
            } else {
                "the header must come first".to_owned()
            });
        }
        if (kind == Kind::Footer) != self.has_trailer {
            return Err(if self.has_trailer {
                "only the footer may follow the trailer".to_owned()
            } else {
                "the trailer is missing before it".to_owned()
            });
        }
        Ok(())
    }

    fn apply(&mut self, kind: Kind, payload: &[u8]) -> std::result::Result<(), Problem> {
        let recording = &mut self.recording;
        let mut cursor = Cursor(payload);
        match kind {
            Kind::Header => {
                recording.header = from_json(payload)?;
                self.has_header = true;
            }
            Kind::Trailer => {
                recording.trailer = from_json::<Trailer>(payload)?;
                self.has_trailer = true;
            }
            Kind::Comms => {
                while !cursor.is_empty() {
                    recording.comms.push(cursor.text()?);
                    fits(recording.comms.len())?;
                }
            }
            Kind::Symbols => {
                while !cursor.is_empty() {
                    let name = cursor.text()?;
                    let module = cursor.text()?;
                    recording.symbols.push(Symbol { name, module });
                    fits(recording.symbols.len())?;
                }
            }
            Kind::Frames => {
                for frame in records::<FrameRecord>(payload)?.iter().map(Frame::from) {
                    in_range("symbol", frame.symbol, recording.symbols.len())?;
                    recording.frames.push(frame);
                }
                fits(recording.frames.len())?;
            }
            Kind::Stacks => {
                while !cursor.is_empty() {
                    let stack = cursor.stack()?;
                    for frame in &stack {
                        in_range("frame", *frame, recording.frames.len())?;
                    }
                    recording.stacks.push(stack);
                    fits(recording.stacks.len())?;
                }
            }
            Kind::Samples => {
                let (comms, stacks) = (recording.comms.len(), recording.stacks.len());
                for sample in records::<SampleRecord>(payload)?.iter().map(Sample::from) {
                    in_range("task name", sample.comm, comms)?;
                    in_range("stack", sample.kernel_stack, stacks)?;
                    in_range("stack", sample.user_stack, stacks)?;
                    recording.samples.push(sample);
                }
            }
            Kind::Epochs => {
                while !cursor.is_empty() {
                    recording.epochs.push(cursor.epoch()?);
                }
            }
            Kind::Rcu => {
                for record in records::<RcuRecord>(payload)? {
                    let event = RcuEvent::from(record);
                    if record.target.get() > 1 {
                        return Err(format!("{} is neither yes nor no", record.target.get()));
                    }
                    in_range("task name", event.comm, recording.comms.len())?;
                    in_range("stack", event.kernel_stack, recording.stacks.len())?;
                    recording.rcu.push(event);
                }
            }
            Kind::Footer => {}
        }
        Ok(())
    }

    fn check_footer(
        &mut self,
        payload: &[u8],
        end: u64,
        size: u64,
    ) -> std::result::Result<(), Problem> {
        let footer = Footer::read_from_bytes(payload).map_err(|_| {
            format!(
                "{} bytes instead of {}",
                payload.len(),
                FOOTER_LEN - HEAD_LEN
            )
        })?;
        let recording = &mut self.recording;
        let counts = [
            ("chunks", footer.chunks, self.chunks),
            ("task names", footer.comms, recording.comms.len() as u64),
            ("symbols", footer.symbols, recording.symbols.len() as u64),
            ("frames", footer.frames, recording.frames.len() as u64),
            ("stacks", footer.stacks, recording.stacks.len() as u64),
            ("samples", footer.samples, recording.samples.len() as u64),
            ("epochs", footer.epochs, recording.epochs.len() as u64),
            ("rcu records", footer.rcu, recording.rcu.len() as u64),
            ("bytes", footer.bytes, end),
        ];
        for (what, said, found) in counts {
            if said.get() != found {
                return Err(format!("{said} {what} announced, {found} found"));
            }
        }
        if footer.complete.get() > 1 || footer.reserved.get() != 0 {
            return Err("unknown flags".to_owned());
        }
        if end != size {
            return Err(format!("{} bytes follow it", size - end));
        }
        recording.complete = footer.complete.get() == 1;
        Ok(())
    }

    fn lengths(&self) -> [usize; 7] {
        let r = &self.recording;
        [
            r.comms.len(),
            r.symbols.len(),
            r.frames.len(),
            r.stacks.len(),
            r.samples.len(),
            r.epochs.len(),
            r.rcu.len(),
        ]
    }

    fn truncate(&mut self, lengths: &[usize; 7]) {
        let r = &mut self.recording;
        r.comms.truncate(lengths[0]);
        r.symbols.truncate(lengths[1]);
        r.frames.truncate(lengths[2]);
        r.stacks.truncate(lengths[3]);
        r.samples.truncate(lengths[4]);
        r.epochs.truncate(lengths[5]);
        r.rcu.truncate(lengths[6]);
    }
}

/// Ids are 32 bits wide.
fn fits(len: usize) -> std::result::Result<(), Problem> {
    u32::try_from(len)
        .map(|_| ())
        .map_err(|_| "the table has more entries than there are ids".to_owned())
}

fn in_range(what: &str, id: u32, len: usize) -> std::result::Result<(), Problem> {
    if (id as usize) < len {
        Ok(())
    } else {
        Err(format!("it refers to {what} {id} of {len}"))
    }
}

fn from_json<T: serde::de::DeserializeOwned>(payload: &[u8]) -> std::result::Result<T, Problem> {
    serde_json::from_slice(payload).map_err(|error| error.to_string())
}

fn records<T>(payload: &[u8]) -> std::result::Result<&[T], Problem>
where
    T: FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    <[T]>::ref_from_bytes(payload)
        .map_err(|_| format!("{} bytes are no whole number of records", payload.len()))
}

/// The rest of a payload.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&mut self, len: usize) -> std::result::Result<&[u8], Problem> {
        let (bytes, rest) = self
            .0
            .split_at_checked(len)
            .ok_or_else(|| format!("an entry of {len} bytes, {} left", self.0.len()))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u32(&mut self) -> std::result::Result<u32, Problem> {
        let mut value = [0; 4];
        value.copy_from_slice(self.bytes(4)?);
        Ok(u32::from_le_bytes(value))
    }

    fn u64(&mut self) -> std::result::Result<u64, Problem> {
        let mut value = [0; 8];
        value.copy_from_slice(self.bytes(8)?);
        Ok(u64::from_le_bytes(value))
    }

    fn text(&mut self) -> std::result::Result<String, Problem> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.bytes(len)?)
            .map(str::to_owned)
            .map_err(|error| error.to_string())
    }

    fn stack(&mut self) -> std::result::Result<Box<[u32]>, Problem> {
        let depth = self.u32()? as usize;
        let bytes = self.bytes(depth.saturating_mul(4))?;
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|id| u32::from_le_bytes(*id))
            .collect())
    }

    fn epoch(&mut self) -> std::result::Result<Epoch, Problem> {
        let record = EpochRecord::read_from_bytes(self.bytes(size_of::<EpochRecord>())?)
            .map_err(|_| "an epoch is cut short".to_owned())?;
        let mut epoch = Epoch::from(&record);
        for _ in 0..record.losses.get() {
            let reason = self.text()?;
            let count = self.u64()?;
            if epoch.losses.insert(reason, count).is_some() {
                return Err("a reason occurs twice".to_owned());
            }
        }
        Ok(epoch)
    }
}
