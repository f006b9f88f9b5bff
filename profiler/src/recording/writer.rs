//! Writes a recording to a file as it comes in.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use zerocopy::IntoBytes;

use super::format::{
    Chunk, FOOTER_LEN, Footer, FrameRecord, HEAD_LEN, Kind, MAGIC, MAX_PAYLOAD, PROLOGUE_LEN,
    Prologue, RcuRecord, SampleRecord, VERSION,
};
use super::sink::{Recorder, Sink, State, Store, delegate_sink};
use super::trailer::{make_finite, shorten};
use super::{
    Epoch, Frame, FrameId, Header, RcuEvent, Recording, Sample, StackId, Symbol, SymbolId, Trailer,
};
use crate::error::hinted;
use crate::output::AtomicFile;

/// Disk space kept back for the trailer and the footer.
const RESERVE: u64 = 256 << 10;
/// Space is taken from the disk in steps of this size.
const STEP: u64 = 1 << 20;
/// A buffer of records is written when it is this full.
const BUFFER: usize = 64 << 10;

/// Writes `FILE.partial` and renames it to `FILE` when it is finished.
///
/// Tables and records are buffered (64 KiB each) and written tables first, so
/// that whatever is in the file can be read. Space for the end of the file is
/// taken from the disk beforehand: on a full disk the writer takes no more
/// records, counts them as lost (`disk_full`), and [`finish`](Self::finish)
/// still works. Dropped unfinished, it leaves `FILE.partial`, which
/// [`salvage`](super::salvage) reads.
#[derive(Debug)]
pub struct Writer {
    recorder: Recorder<FileStore>,
}

delegate_sink!(Writer, recorder);

/// A finished recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Whether nothing was lost at the end (disk full or the like).
    pub complete: bool,
    /// The file.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// Samples in it.
    pub samples: u64,
}

impl Writer {
    /// Starts a recording that will become `path`.
    ///
    /// # Errors
    /// When `path` or `path.partial` exists and `force` is not given, when one of
    /// them is not a plain file, or when there is no space for even an empty
    /// recording.
    pub fn create(path: &Path, force: bool, header: &Header) -> Result<Self> {
        let store = FileStore::create(path, force, header)?;
        Ok(Self {
            recorder: Recorder::new(store),
        })
    }

    /// The name of the file while it is being written.
    pub fn partial_path(&self) -> &Path {
        self.recorder.store.output.temp_path()
    }

    /// Writes the end of the recording and gives it its name. The losses of the
    /// writer are added to those of `trailer`.
    ///
    /// # Errors
    /// When the disk fails for another reason than being full; what was written
    /// then stays as `FILE.partial`.
    pub fn finish(self, trailer: &Trailer) -> Result<Finished> {
        self.recorder.store.finish(trailer)
    }

    /// Removes the file: nothing was recorded after all.
    pub fn discard(mut self) {
        self.recorder.store.output.remove_on_drop();
    }
}

/// Writes a whole recording to `path`, its tables as they are.
///
/// # Errors
/// As for [`Writer::create`] and [`Writer::finish`]; and when the disk is full
/// or an id is out of range.
pub fn save(recording: &Recording, path: &Path, force: bool) -> Result<Finished> {
    let range = |what: &str, ok: bool| {
        if ok {
            Ok(())
        } else {
            bail!("the recording refers to a {what} it does not have")
        }
    };
    let mut store = FileStore::create(path, force, &recording.header)?;
    store.output.remove_on_drop();
    store.incomplete = !recording.complete;
    let names = recording
        .symbols
        .iter()
        .map(|symbol| symbol.name.len() + symbol.module.len());
    let longest = names
        .chain(recording.comms.iter().map(String::len))
        .chain(
            recording
                .stacks
                .iter()
                .map(|stack| size_of_val::<[FrameId]>(stack)),
        )
        .max();
    if longest.is_some_and(|len| len > MAX_PAYLOAD / 2) {
        bail!(
            "the recording has a table entry of more than {} MiB",
            MAX_PAYLOAD >> 21
        );
    }
    for comm in &recording.comms {
        store.comm(comm);
    }
    for symbol in &recording.symbols {
        store.symbol(symbol);
    }
    for frame in &recording.frames {
        range("symbol", (frame.symbol as usize) < recording.symbols.len())?;
        store.frame(frame);
    }
    range(
        "stack 0",
        recording
            .stacks
            .first()
            .is_some_and(|stack| stack.is_empty()),
    )?;
    for stack in &recording.stacks[1..] {
        range(
            "frame",
            stack
                .iter()
                .all(|id| (*id as usize) < recording.frames.len()),
        )?;
        store.stack(stack);
    }
    let comm_ok = |id: u32| (id as usize) < recording.comms.len();
    let stack_ok = |id: u32| (id as usize) < recording.stacks.len();
    for sample in &recording.samples {
        range("task name", comm_ok(sample.comm))?;
        range(
            "stack",
            stack_ok(sample.kernel_stack) && stack_ok(sample.user_stack),
        )?;
        store.sample(sample);
    }
    for epoch in &recording.epochs {
        store.epoch(epoch);
    }
    for event in &recording.rcu {
        range("task name", comm_ok(event.comm))?;
        range("stack", stack_ok(event.kernel_stack))?;
        store.rcu(event);
    }
    store.flush();
    if let Some(reason) = store.state.stopped {
        return Err(hinted(
            format!("cannot write {}: {reason}", path.display()),
            ["free some space or choose another disk"],
        ));
    }
    store.finish(&recording.trailer)
}

/// A chunk of records, and on which CPUs those not yet written were.
#[derive(Debug)]
struct Records {
    chunk: Chunk,
    pending: BTreeMap<u32, u64>,
}

impl Records {
    fn new(kind: Kind) -> Self {
        Self {
            chunk: Chunk::new(kind),
            pending: BTreeMap::new(),
        }
    }

    fn count(&mut self, cpu: u32) {
        *self.pending.entry(cpu).or_default() += 1;
    }
}

#[derive(Debug)]
struct FileStore {
    output: AtomicFile,
    /// Where the next chunk goes.
    end: u64,
    /// The disk has promised us the space up to here.
    reserved: u64,
    /// `ulimit -f`: beyond it the kernel would end the process by SIGXFSZ.
    limit: u64,
    /// Comms, symbols, frames, stacks: in the order in which they refer to each
    /// other.
    tables: [Chunk; 4],
    /// Entries in the buffers of `tables`.
    table_pending: [u64; 4],
    samples: Records,
    epochs: Records,
    rcu: Records,
    /// What the file holds already.
    written: Footer,
    state: State,
    incomplete: bool,
}

const COMMS: usize = 0;
const SYMBOLS: usize = 1;
const FRAMES: usize = 2;
const STACKS: usize = 3;

impl FileStore {
    fn create(path: &Path, force: bool, header: &Header) -> Result<Self> {
        let json = serde_json::to_vec(header).context("cannot write the recording's header")?;
        if json.len() > MAX_PAYLOAD {
            bail!("the recording's header is too long ({} bytes)", json.len());
        }
        let output = AtomicFile::create_visible(path, ".partial", force)?;
        let mut store = Self {
            output,
            end: 0,
            reserved: 0,
            limit: file_size_limit(),
            tables: [Kind::Comms, Kind::Symbols, Kind::Frames, Kind::Stacks].map(Chunk::new),
            table_pending: [0; 4],
            samples: Records::new(Kind::Samples),
            epochs: Records::new(Kind::Epochs),
            rcu: Records::new(Kind::Rcu),
            written: Footer {
                stacks: 1.into(),
                ..Footer::default()
            },
            state: State::default(),
            incomplete: false,
        };
        let mut chunk = Chunk::new(Kind::Header);
        chunk.put(&json);
        store.write_start(&mut chunk).map_err(|error| {
            hinted(
                format!("cannot write {}: {error}", path.display()),
                if is_full(&error) {
                    ["a recording needs at least 512 KiB: free some space or choose another disk"]
                } else {
                    ["choose another file name"]
                },
            )
        })?;
        store.output.keep_on_drop();
        Ok(store)
    }

    fn write_start(&mut self, header: &mut Chunk) -> io::Result<()> {
        let prologue = Prologue {
            magic: MAGIC,
            version: VERSION.into(),
            reserved: 0.into(),
        };
        self.write(prologue.as_bytes())?;
        debug_assert_eq!(self.end, PROLOGUE_LEN as u64);
        self.write(header.seal())?;
        bump(&mut self.written.chunks, 1);
        Ok(())
    }

    /// Appends `bytes`, leaving the reserve untouched. On an error nothing was
    /// appended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let after = self.end + bytes.len() as u64;
        let needed = after + RESERVE;
        if needed > self.limit {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if needed > self.reserved {
            let file = self.output.file();
            let step = needed.max(self.reserved + STEP).min(self.limit);
            self.reserved = match reserve(file, self.reserved, step) {
                Ok(()) => step,
                Err(error) if is_full(&error) => {
                    reserve(file, self.reserved, needed)?;
                    needed
                }
                Err(error) => return Err(error),
            };
        }
        self.output.file().write_all_at(bytes, self.end)?;
        self.end = after;
        Ok(())
    }

    /// Takes no more records; those still in the buffers are lost.
    fn stop(&mut self, error: &io::Error) {
        let reason = if is_full(error) {
            "disk_full"
        } else {
            "write_error"
        };
        self.state.stopped.get_or_insert(reason);
        for kind in [Kind::Samples, Kind::Epochs, Kind::Rcu] {
            let records = std::mem::replace(self.records(kind), Records::new(kind));
            for (cpu, count) in records.pending {
                self.state.lose(cpu, reason, count);
            }
        }
    }

    /// Writes the buffered tables, those that others refer to first.
    fn flush_tables(&mut self) {
        for table in 0..self.tables.len() {
            if self.tables[table].is_empty() || self.state.stopped.is_some() {
                continue;
            }
            let mut chunk = std::mem::replace(&mut self.tables[table], Chunk::new(Kind::Comms));
            let result = self.write(chunk.seal());
            chunk.clear();
            self.tables[table] = chunk;
            match result {
                Ok(()) => {
                    let total = match table {
                        COMMS => &mut self.written.comms,
                        SYMBOLS => &mut self.written.symbols,
                        FRAMES => &mut self.written.frames,
                        _ => &mut self.written.stacks,
                    };
                    bump(total, self.table_pending[table]);
                    bump(&mut self.written.chunks, 1);
                    self.table_pending[table] = 0;
                }
                Err(error) => self.stop(&error),
            }
        }
    }

    /// Writes the buffered records of one kind.
    fn flush_records(&mut self, kind: Kind) {
        self.flush_tables();
        // Nothing is pending in a store that has stopped.
        if self.records(kind).chunk.is_empty() {
            return;
        }
        let mut records = std::mem::replace(self.records(kind), Records::new(kind));
        let result = self.write(records.chunk.seal());
        if let Err(error) = result {
            *self.records(kind) = records;
            self.stop(&error);
            return;
        }
        let total = match kind {
            Kind::Samples => &mut self.written.samples,
            Kind::Epochs => &mut self.written.epochs,
            _ => &mut self.written.rcu,
        };
        bump(total, records.pending.values().sum());
        bump(&mut self.written.chunks, 1);
        records.chunk.clear();
        records.pending.clear();
        *self.records(kind) = records;
    }

    const fn records(&mut self, kind: Kind) -> &mut Records {
        match kind {
            Kind::Samples => &mut self.samples,
            Kind::Epochs => &mut self.epochs,
            _ => &mut self.rcu,
        }
    }

    fn table(&mut self, table: usize, room: usize) -> Option<&mut Chunk> {
        if self.tables[table].payload_len() + room > BUFFER {
            self.flush_tables();
        }
        if self.state.stopped.is_some() {
            return None;
        }
        self.table_pending[table] += 1;
        Some(&mut self.tables[table])
    }

    fn record(&mut self, kind: Kind, cpu: u32) -> Option<&mut Chunk> {
        if self.records(kind).chunk.payload_len() + size_of::<SampleRecord>() > BUFFER {
            self.flush_records(kind);
        }
        if let Some(reason) = self.state.stopped {
            self.state.lose(cpu, reason, 1);
            return None;
        }
        let records = self.records(kind);
        records.count(cpu);
        Some(&mut records.chunk)
    }

    fn finish(mut self, trailer: &Trailer) -> Result<Finished> {
        self.flush();
        let failed = |output: &AtomicFile| {
            format!(
                "cannot write the end of {}; what was recorded is in it",
                output.temp_path().display()
            )
        };
        let mut trailer = self.state.complete_trailer(trailer);
        make_finite(&mut trailer);
        let mut json = serde_json::to_vec(&trailer)?;
        let tail = (HEAD_LEN + json.len() + FOOTER_LEN) as u64;
        // A trailer that fits the reserve needs nothing from the disk.
        let mut whole = json.len() <= MAX_PAYLOAD;
        if whole && tail > self.reserved - self.end {
            let end = self.end + tail;
            whole = end <= self.limit && reserve(self.output.file(), self.reserved, end).is_ok();
        }
        if !whole {
            let room = (self.reserved - self.end) as usize - HEAD_LEN - FOOTER_LEN;
            json = shorten(trailer, room.min(MAX_PAYLOAD))?;
        }
        let mut chunk = Chunk::new(Kind::Trailer);
        chunk.put(&json);
        let complete = whole && !self.incomplete && self.state.stopped.is_none();
        let bytes = chunk.seal();
        let footer_at = self.end + bytes.len() as u64;
        let total = footer_at + FOOTER_LEN as u64;
        self.output
            .file()
            .write_all_at(bytes, self.end)
            .with_context(|| failed(&self.output))?;
        bump(&mut self.written.chunks, 2);
        self.written.bytes = total.into();
        self.written.complete = u32::from(complete).into();
        let mut chunk = Chunk::new(Kind::Footer);
        chunk.put(self.written.as_bytes());
        let file = self.output.file();
        file.write_all_at(chunk.seal(), footer_at)
            // Gives back what was reserved and not used.
            .and_then(|()| file.set_len(total))
            .with_context(|| failed(&self.output))?;
        let finished = Finished {
            complete,
            path: self.output.target_path().to_owned(),
            bytes: total,
            samples: self.written.samples.get(),
        };
        self.output.commit()?;
        Ok(finished)
    }
}

impl Store for FileStore {
    fn comm(&mut self, comm: &str) {
        if let Some(chunk) = self.table(COMMS, comm.len()) {
            chunk.put_str(comm);
        }
    }

    fn symbol(&mut self, symbol: &Symbol) {
        if let Some(chunk) = self.table(SYMBOLS, symbol.name.len() + symbol.module.len()) {
            chunk.put_str(&symbol.name);
            chunk.put_str(&symbol.module);
        }
    }

    fn frame(&mut self, frame: &Frame) {
        if let Some(chunk) = self.table(FRAMES, size_of::<FrameRecord>()) {
            chunk.put(FrameRecord::from(frame).as_bytes());
        }
    }

    fn stack(&mut self, frames: &[FrameId]) {
        if let Some(chunk) = self.table(STACKS, size_of_val(frames)) {
            chunk.put_stack(frames);
        }
    }

    fn sample(&mut self, sample: &Sample) {
        if let Some(chunk) = self.record(Kind::Samples, sample.cpu) {
            chunk.put(SampleRecord::from(sample).as_bytes());
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        if let Some(chunk) = self.record(Kind::Epochs, epoch.cpu) {
            chunk.put_epoch(epoch);
        }
    }

    fn rcu(&mut self, event: &RcuEvent) {
        if let Some(chunk) = self.record(Kind::Rcu, 0) {
            chunk.put(RcuRecord::from(event).as_bytes());
        }
    }

    fn flush(&mut self) {
        for kind in [Kind::Samples, Kind::Epochs, Kind::Rcu] {
            self.flush_records(kind);
        }
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

fn bump(total: &mut zerocopy::little_endian::U64, by: u64) {
    *total = (total.get() + by).into();
}

/// Whether `error` says that there is no room: disk, quota, or file size limit.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)
    )
}

fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` outlives the call.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Makes the disk promise the space from `from` to `to` of `file`.
fn reserve(file: &File, from: u64, to: u64) -> io::Result<()> {
    let len = to.saturating_sub(from);
    let (Ok(start), Ok(wanted)) = (libc::off_t::try_from(from), libc::off_t::try_from(len)) else {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    };
    loop {
        // SAFETY: the descriptor is open; no memory is passed.
        let done =
            unsafe { libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_KEEP_SIZE, start, wanted) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            // No such call on this file system (NFS 4.1, 9p, some FUSE): zeros
            // take the space just as well.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => return write_zeros(file, from, to),
            _ => return Err(error),
        }
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = [0; 16 << 10];
    let mut at = from;
    while at < to {
        let len = (to - at).min(zeros.len() as u64) as usize;
        file.write_all_at(&zeros[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_reserve_where_the_file_system_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = File::create_new(&path).unwrap();
        write_zeros(&file, 10, 70_000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 70_000);
    }
}
