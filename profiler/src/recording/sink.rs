//! Where the records of a run go while it runs.

use std::collections::BTreeMap;

use super::format::{MAX_DEPTH, MAX_NAME};
use super::intern::{FrameKey, Interned, Table};
use super::{
    Epoch, Frame, FrameId, Ledger, Loss, RcuEvent, Sample, StackId, Symbol, SymbolId, Trailer,
};
use crate::probes::ProbeStatus;

/// Takes the records of a run: [`Writer`](super::Writer) to a file,
/// [`MemorySink`](super::MemorySink) to memory.
///
/// Intern first, then refer to the ids. The dedupe tables are bounded: when one
/// is full it starts anew, so the same thing can get a second id later, and
/// whoever adds up must do so by content. Ids are never reused. Names longer
/// than 64 KiB and stacks deeper than 16,384 frames are cut.
///
/// A sink that cannot go on (full disk, full memory) takes no more records,
/// counts them as lost, and keeps what it has.
pub trait Sink {
    /// The id of a task name.
    fn intern_comm(&mut self, comm: &str) -> u32;
    /// The id of a symbol.
    fn intern_symbol(&mut self, symbol: &Symbol) -> SymbolId;
    /// The id of a frame.
    fn intern_frame(&mut self, frame: &Frame) -> FrameId;
    /// The id of a stack, innermost frame first; the empty one is always 0.
    fn intern_stack(&mut self, frames: &[FrameId]) -> StackId;
    /// Takes a sample.
    fn sample(&mut self, sample: &Sample);
    /// Takes an epoch's counters.
    fn epoch(&mut self, epoch: &Epoch);
    /// Takes an rcu_barrier call.
    fn rcu(&mut self, event: &RcuEvent);
    /// Whether [`Sink::ledger`] does anything: reading it takes time.
    fn shows_ledger(&self) -> bool;
    /// Takes what the ledger holds so far, at a time since the start, and the legs
    /// that filled it. A recording has the whole of it in its trailer.
    fn ledger(&mut self, time_ns: u64, so_far: Ledger, probes: &[ProbeStatus]);
    /// Hands what is buffered to the kernel, so that it survives the process.
    /// Call it every second or so: a killed run loses what came after.
    fn flush(&mut self);
    /// Why no more records are taken (`disk_full`, `memory_full`, `write_error`,
    /// `ids_exhausted`); absent while they are.
    fn stopped(&self) -> Option<&'static str>;
    /// Records not taken so far.
    fn lost(&self) -> u64;
}

/// Records not taken, by CPU and reason.
pub(super) type Lost = BTreeMap<(u32, &'static str), u64>;

/// The state of a store.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) stopped: Option<&'static str>,
    pub(super) lost: Lost,
}

impl State {
    pub(super) fn lose(&mut self, cpu: u32, reason: &'static str, count: u64) {
        if count > 0 {
            *self.lost.entry((cpu, reason)).or_default() += count;
        }
    }

    /// `trailer` with the losses of the sink added to it.
    pub(super) fn complete_trailer(&self, trailer: &Trailer) -> Trailer {
        let mut trailer = trailer.clone();
        for (&(cpu, reason), &count) in &self.lost {
            let same = |loss: &&mut Loss| loss.cpu == cpu && loss.reason == reason;
            if let Some(loss) = trailer.losses.iter_mut().find(same) {
                loss.count = loss.count.saturating_add(count);
            } else {
                trailer.losses.push(Loss {
                    cpu,
                    reason: reason.to_owned(),
                    count,
                });
            }
        }
        if let Some(reason) = self.stopped {
            trailer.warnings.push(format!(
                "The recording ends early ({reason}): {} records after that are missing.",
                self.lost.values().sum::<u64>()
            ));
        }
        trailer
    }
}

/// What a [`Recorder`] puts its things into. New table entries come with
/// ascending ids.
pub(super) trait Store {
    fn comm(&mut self, comm: &str);
    fn symbol(&mut self, symbol: &Symbol);
    fn frame(&mut self, frame: &Frame);
    fn stack(&mut self, frames: &[FrameId]);
    fn sample(&mut self, sample: &Sample);
    fn epoch(&mut self, epoch: &Epoch);
    fn rcu(&mut self, event: &RcuEvent);
    fn shows_ledger(&self) -> bool {
        false
    }
    fn ledger(&mut self, time_ns: u64, so_far: Ledger, probes: &[ProbeStatus]) {
        let _ = (time_ns, so_far, probes);
    }
    fn flush(&mut self);
    fn state(&self) -> &State;
    fn state_mut(&mut self) -> &mut State;
}

/// The part that all sinks share: interning and refusing what cannot be taken.
#[derive(Debug)]
pub(super) struct Recorder<S> {
    comms: Table<Box<str>>,
    symbols: Table<Symbol>,
    frames: Table<FrameKey>,
    stacks: Table<Box<[FrameId]>>,
    pub(super) store: S,
}

/// CPU that records of no CPU are counted on when they are lost.
const NO_CPU: u32 = 0;

impl<S: Store> Recorder<S> {
    pub(super) fn new(store: S) -> Self {
        Self {
            comms: Table::starting_at(0),
            symbols: Table::starting_at(0),
            frames: Table::starting_at(0),
            // Stack 0 is the empty one; no file stores it.
            stacks: Table::starting_at(1),
            store,
        }
    }

    fn exhausted(&mut self) -> u32 {
        self.store
            .state_mut()
            .stopped
            .get_or_insert("ids_exhausted");
        0
    }

    /// Whether a record can be taken; counts it as lost otherwise.
    fn admits(&mut self, cpu: u32, in_range: bool) -> bool {
        let reason = match self.store.state().stopped {
            Some(reason) => reason,
            // A record with an id that nobody gave out would make the whole
            // recording unreadable.
            None if !in_range => "bad_id",
            None => return true,
        };
        self.store.state_mut().lose(cpu, reason, 1);
        false
    }
}

/// `text`, cut at a character boundary when it is longer than [`MAX_NAME`].
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_NAME)]
}

impl<S: Store> Sink for Recorder<S> {
    fn intern_comm(&mut self, comm: &str) -> u32 {
        let comm = cut(comm);
        match self.comms.intern(comm) {
            Interned::Known(id) => id,
            Interned::New(id) => {
                self.store.comm(comm);
                id
            }
            Interned::Exhausted => self.exhausted(),
        }
    }

    fn intern_symbol(&mut self, symbol: &Symbol) -> SymbolId {
        if symbol.name.len() > MAX_NAME || symbol.module.len() > MAX_NAME {
            return self.intern_symbol(&Symbol {
                name: cut(&symbol.name).to_owned(),
                module: cut(&symbol.module).to_owned(),
            });
        }
        match self.symbols.intern(symbol) {
            Interned::Known(id) => id,
            Interned::New(id) => {
                self.store.symbol(symbol);
                id
            }
            Interned::Exhausted => self.exhausted(),
        }
    }

    fn intern_frame(&mut self, frame: &Frame) -> FrameId {
        // A frame of a symbol that nobody gave out keeps its address.
        let frame = if frame.symbol < self.symbols.next() {
            *frame
        } else {
            let unknown = Symbol {
                name: "[unknown]".to_owned(),
                module: String::new(),
            };
            Frame {
                symbol: self.intern_symbol(&unknown),
                offset: 0,
                ..*frame
            }
        };
        match self
            .frames
            .intern(&(frame.addr, frame.symbol, frame.offset))
        {
            Interned::Known(id) => id,
            Interned::New(id) => {
                self.store.frame(&frame);
                id
            }
            Interned::Exhausted => self.exhausted(),
        }
    }

    fn intern_stack(&mut self, frames: &[FrameId]) -> StackId {
        let frames = &frames[..frames.len().min(MAX_DEPTH)];
        let given_out = self.frames.next();
        if frames.is_empty() || frames.iter().any(|frame| *frame >= given_out) {
            return 0;
        }
        match self.stacks.intern(frames) {
            Interned::Known(id) => id,
            Interned::New(id) => {
                self.store.stack(frames);
                id
            }
            Interned::Exhausted => self.exhausted(),
        }
    }

    fn sample(&mut self, sample: &Sample) {
        let stacks = self.stacks.next();
        let in_range = sample.comm < self.comms.next()
            && sample.kernel_stack < stacks
            && sample.user_stack < stacks;
        if self.admits(sample.cpu, in_range) {
            self.store.sample(sample);
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        if self.admits(epoch.cpu, true) {
            self.store.epoch(epoch);
        }
    }

    fn rcu(&mut self, event: &RcuEvent) {
        let in_range = event.comm < self.comms.next() && event.kernel_stack < self.stacks.next();
        if self.admits(NO_CPU, in_range) {
            self.store.rcu(event);
        }
    }

    fn shows_ledger(&self) -> bool {
        self.store.shows_ledger()
    }

    fn ledger(&mut self, time_ns: u64, so_far: Ledger, probes: &[ProbeStatus]) {
        self.store.ledger(time_ns, so_far, probes);
    }

    fn flush(&mut self) {
        self.store.flush();
    }

    fn stopped(&self) -> Option<&'static str> {
        self.store.state().stopped
    }

    fn lost(&self) -> u64 {
        self.store.state().lost.values().sum()
    }
}

/// Makes a public type that holds a [`Recorder`] a [`Sink`].
macro_rules! delegate_sink {
    ($type:ty, $field:ident) => {
        impl Sink for $type {
            fn intern_comm(&mut self, comm: &str) -> u32 {
                self.$field.intern_comm(comm)
            }
            fn intern_symbol(&mut self, symbol: &Symbol) -> SymbolId {
                self.$field.intern_symbol(symbol)
            }
            fn intern_frame(&mut self, frame: &Frame) -> FrameId {
                self.$field.intern_frame(frame)
            }
            fn intern_stack(&mut self, frames: &[FrameId]) -> StackId {
                self.$field.intern_stack(frames)
            }
            fn sample(&mut self, sample: &Sample) {
                self.$field.sample(sample);
            }
            fn epoch(&mut self, epoch: &Epoch) {
                self.$field.epoch(epoch);
            }
            fn rcu(&mut self, event: &RcuEvent) {
                self.$field.rcu(event);
            }
            fn shows_ledger(&self) -> bool {
                self.$field.shows_ledger()
            }
            fn ledger(
                &mut self,
                time_ns: u64,
                so_far: $crate::recording::Ledger,
                probes: &[$crate::probes::ProbeStatus],
            ) {
                self.$field.ledger(time_ns, so_far, probes);
            }
            fn flush(&mut self) {
                self.$field.flush();
            }
            fn stopped(&self) -> Option<&'static str> {
                self.$field.stopped()
            }
            fn lost(&self) -> u64 {
                self.$field.lost()
            }
        }
    };
}
pub(super) use delegate_sink;
