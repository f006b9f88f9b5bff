//! The layout of a recording on disk; `docs/recording-format.md` describes it.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Epoch, Frame, FrameId, RcuEvent, Sample, SwitchCounts};

/// The first bytes of every recording. The line ends show a text-mode copy.
pub(super) const MAGIC: [u8; 8] = *b"ppr\x80\r\n\x1a\n";
/// The version this build reads and writes.
pub(super) const VERSION: u32 = 1;
/// No chunk's payload is longer.
pub(super) const MAX_PAYLOAD: usize = 64 << 20;
/// Longer names are cut before they are interned.
pub(super) const MAX_NAME: usize = 64 << 10;
/// Deeper stacks are cut before they are interned.
pub(super) const MAX_DEPTH: usize = 16 << 10;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Kind {
    Header = 1,
    Comms = 2,
    Symbols = 3,
    Frames = 4,
    Stacks = 5,
    Samples = 6,
    Epochs = 7,
    Rcu = 8,
    Trailer = 9,
    Footer = 10,
}

impl Kind {
    pub(super) const fn from_u32(value: u32) -> Option<Self> {
        Some(match value {
            1 => Self::Header,
            2 => Self::Comms,
            3 => Self::Symbols,
            4 => Self::Frames,
            5 => Self::Stacks,
            6 => Self::Samples,
            7 => Self::Epochs,
            8 => Self::Rcu,
            9 => Self::Trailer,
            10 => Self::Footer,
            _ => return None,
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Comms => "comms",
            Self::Symbols => "symbols",
            Self::Frames => "frames",
            Self::Stacks => "stacks",
            Self::Samples => "samples",
            Self::Epochs => "epochs",
            Self::Rcu => "rcu",
            Self::Trailer => "trailer",
            Self::Footer => "footer",
        }
    }
}

/// The start of the file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Prologue {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) reserved: U32,
}

/// The start of each chunk. The checksum covers `kind`, `len` and the payload.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct ChunkHead {
    pub(super) kind: U32,
    pub(super) len: U32,
    pub(super) crc: U32,
}

pub(super) const PROLOGUE_LEN: usize = size_of::<Prologue>();
pub(super) const HEAD_LEN: usize = size_of::<ChunkHead>();

/// The checksum of a chunk.
pub(super) fn checksum(kind: u32, len: u32, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&kind.to_le_bytes());
    crc.update(&len.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// A chunk being filled: the payload behind room for its head.
#[derive(Debug)]
pub(super) struct Chunk {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Chunk {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            bytes: vec![0; HEAD_LEN],
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.len() == HEAD_LEN
    }

    pub(super) fn payload_len(&self) -> usize {
        self.bytes.len() - HEAD_LEN
    }

    pub(super) fn clear(&mut self) {
        self.bytes.truncate(HEAD_LEN);
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// A length and the bytes. The caller keeps texts below [`MAX_PAYLOAD`].
    pub(super) fn put_str(&mut self, text: &str) {
        self.put_u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.put(text.as_bytes());
    }

    pub(super) fn put_stack(&mut self, frames: &[FrameId]) {
        self.put_u32(u32::try_from(frames.len()).unwrap_or(u32::MAX));
        for frame in frames {
            self.put_u32(*frame);
        }
    }

    pub(super) fn put_epoch(&mut self, epoch: &Epoch) {
        self.put(EpochRecord::from(epoch).as_bytes());
        for (reason, count) in &epoch.losses {
            self.put_str(reason);
            self.put(&count.to_le_bytes());
        }
    }

    /// The whole chunk, its head filled in.
    pub(super) fn seal(&mut self) -> &[u8] {
        let len = u32::try_from(self.payload_len()).unwrap_or(u32::MAX);
        let kind = self.kind as u32;
        let head = ChunkHead {
            kind: kind.into(),
            len: len.into(),
            crc: checksum(kind, len, &self.bytes[HEAD_LEN..]).into(),
        };
        self.bytes[..HEAD_LEN].copy_from_slice(head.as_bytes());
        &self.bytes
    }
}

/// A [`Frame`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct FrameRecord {
    addr: U64,
    symbol: U32,
    offset: U32,
}

impl From<&Frame> for FrameRecord {
    fn from(frame: &Frame) -> Self {
        Self {
            addr: frame.addr.into(),
            symbol: frame.symbol.into(),
            offset: frame.offset.into(),
        }
    }
}

impl From<&FrameRecord> for Frame {
    fn from(record: &FrameRecord) -> Self {
        Self {
            addr: record.addr.get(),
            symbol: record.symbol.get(),
            offset: record.offset.get(),
        }
    }
}

/// A [`Sample`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct SampleRecord {
    time_ns: U64,
    ip: U64,
    cgroup_id: U64,
    cpu: U32,
    pid: U32,
    tgid: U32,
    comm: U32,
    kernel_stack: U32,
    user_stack: U32,
    flags: U32,
}

impl From<&Sample> for SampleRecord {
    fn from(sample: &Sample) -> Self {
        Self {
            time_ns: sample.time_ns.into(),
            ip: sample.ip.into(),
            cgroup_id: sample.cgroup_id.into(),
            cpu: sample.cpu.into(),
            pid: sample.pid.into(),
            tgid: sample.tgid.into(),
            comm: sample.comm.into(),
            kernel_stack: sample.kernel_stack.into(),
            user_stack: sample.user_stack.into(),
            flags: sample.flags.into(),
        }
    }
}

impl From<&SampleRecord> for Sample {
    fn from(record: &SampleRecord) -> Self {
        Self {
            time_ns: record.time_ns.get(),
            ip: record.ip.get(),
            cgroup_id: record.cgroup_id.get(),
            cpu: record.cpu.get(),
            pid: record.pid.get(),
            tgid: record.tgid.get(),
            comm: record.comm.get(),
            kernel_stack: record.kernel_stack.get(),
            user_stack: record.user_stack.get(),
            flags: record.flags.get(),
        }
    }
}

/// An [`Epoch`] without its losses, which follow it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct EpochRecord {
    cpu: U32,
    pub(super) losses: U32,
    time_ns: U64,
    voluntary: U64,
    preempted: U64,
    other_voluntary: U64,
    other_preempted: U64,
    sampler_hits: U64,
    idle_samples: U64,
}

impl From<&Epoch> for EpochRecord {
    fn from(epoch: &Epoch) -> Self {
        Self {
            cpu: epoch.cpu.into(),
            losses: u32::try_from(epoch.losses.len()).unwrap_or(u32::MAX).into(),
            time_ns: epoch.time_ns.into(),
            voluntary: epoch.switches.voluntary.into(),
            preempted: epoch.switches.preempted.into(),
            other_voluntary: epoch.other_switches.voluntary.into(),
            other_preempted: epoch.other_switches.preempted.into(),
            sampler_hits: epoch.sampler_hits.into(),
            idle_samples: epoch.idle_samples.into(),
        }
    }
}

impl From<&EpochRecord> for Epoch {
    fn from(record: &EpochRecord) -> Self {
        Self {
            cpu: record.cpu.get(),
            time_ns: record.time_ns.get(),
            switches: SwitchCounts {
                voluntary: record.voluntary.get(),
                preempted: record.preempted.get(),
            },
            other_switches: SwitchCounts {
                voluntary: record.other_voluntary.get(),
                preempted: record.other_preempted.get(),
            },
            sampler_hits: record.sampler_hits.get(),
            idle_samples: record.idle_samples.get(),
            losses: std::collections::BTreeMap::new(),
        }
    }
}

/// An [`RcuEvent`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RcuRecord {
    time_ns: U64,
    duration_ns: U64,
    pid: U32,
    tgid: U32,
    comm: U32,
    kernel_stack: U32,
    pub(super) target: U32,
}

impl From<&RcuEvent> for RcuRecord {
    fn from(event: &RcuEvent) -> Self {
        Self {
            time_ns: event.time_ns.into(),
            duration_ns: event.duration_ns.into(),
            pid: event.pid.into(),
            tgid: event.tgid.into(),
            comm: event.comm.into(),
            kernel_stack: event.kernel_stack.into(),
            target: u32::from(event.target).into(),
        }
    }
}

impl From<&RcuRecord> for RcuEvent {
    fn from(record: &RcuRecord) -> Self {
        Self {
            time_ns: record.time_ns.get(),
            duration_ns: record.duration_ns.get(),
            pid: record.pid.get(),
            tgid: record.tgid.get(),
            comm: record.comm.get(),
            kernel_stack: record.kernel_stack.get(),
            target: record.target.get() != 0,
        }
    }
}

/// The last chunk: how much there is of everything.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(super) struct Footer {
    /// Chunks, this one included.
    pub(super) chunks: U64,
    pub(super) comms: U64,
    pub(super) symbols: U64,
    pub(super) frames: U64,
    /// Stacks, the implied empty one included.
    pub(super) stacks: U64,
    pub(super) samples: U64,
    pub(super) epochs: U64,
    pub(super) rcu: U64,
    /// Length of the file.
    pub(super) bytes: U64,
    /// 1 when nothing was lost at the end, else 0.
    pub(super) complete: U32,
    pub(super) reserved: U32,
}

/// Length of a whole footer chunk.
pub(super) const FOOTER_LEN: usize = HEAD_LEN + size_of::<Footer>();

const _: () = assert!(PROLOGUE_LEN == 16 && HEAD_LEN == 12 && size_of::<Footer>() == 80);
const _: () = assert!(size_of::<FrameRecord>() == 16 && size_of::<SampleRecord>() == 52);
const _: () = assert!(size_of::<EpochRecord>() == 64 && size_of::<RcuRecord>() == 36);
