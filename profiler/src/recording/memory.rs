//! A recording that is kept in memory, for `run` without `-o`.

use super::sink::{Recorder, Sink, State, Store, delegate_sink};
use super::{
    Epoch, Frame, FrameId, Header, RcuEvent, Recording, Sample, StackId, Symbol, SymbolId, Trailer,
};

/// Keeps a run in memory and gives it back as a [`Recording`].
#[derive(Debug)]
pub struct MemorySink {
    recorder: Recorder<MemoryStore>,
}

delegate_sink!(MemorySink, recorder);

impl MemorySink {
    /// Enough for about an hour of 997 samples a second on 2 CPUs.
    pub const DEFAULT_LIMIT: usize = 512 << 20;

    /// A sink that stops (`memory_full`) when its records and tables would take
    /// more than `limit` bytes. A minute of 997 samples a second on 2 CPUs takes
    /// about 8 MiB.
    pub fn new(header: &Header, limit: usize) -> Self {
        let store = MemoryStore {
            recording: Recording {
                header: header.clone(),
                stacks: vec![Box::default()],
                ..Recording::default()
            },
            room: limit,
            state: State::default(),
        };
        Self {
            recorder: Recorder::new(store),
        }
    }

    /// Ends the run. The losses of this sink are added to those of `trailer`.
    pub fn finish(self, trailer: &Trailer) -> Recording {
        let MemoryStore {
            mut recording,
            state,
            ..
        } = self.recorder.store;
        recording.trailer = state.complete_trailer(trailer);
        recording.complete = state.stopped.is_none();
        recording
    }
}

#[derive(Debug)]
struct MemoryStore {
    recording: Recording,
    room: usize,
    state: State,
}

impl MemoryStore {
    /// Takes `bytes` from what is left; stops the store when there is too
    /// little. A stopped store takes nothing, so ids in records stay in range.
    fn take(&mut self, bytes: usize) -> bool {
        if self.state.stopped.is_some() {
            return false;
        }
        match self.room.checked_sub(bytes) {
            Some(room) => self.room = room,
            None => self.state.stopped = Some("memory_full"),
        }
        self.state.stopped.is_none()
    }

    fn take_record(&mut self, cpu: u32, bytes: usize) -> bool {
        let taken = self.take(bytes);
        if !taken {
            self.state.lose(cpu, "memory_full", 1);
        }
        taken
    }
}

impl Store for MemoryStore {
    fn comm(&mut self, comm: &str) {
        if self.take(size_of::<String>() + comm.len()) {
            self.recording.comms.push(comm.to_owned());
        }
    }

    fn symbol(&mut self, symbol: &Symbol) {
        if self.take(size_of::<Symbol>() + symbol.name.len() + symbol.module.len()) {
            self.recording.symbols.push(symbol.clone());
        }
    }

    fn frame(&mut self, frame: &Frame) {
        if self.take(size_of::<Frame>()) {
            self.recording.frames.push(*frame);
        }
    }

    fn stack(&mut self, frames: &[FrameId]) {
        if self.take(size_of::<Box<[FrameId]>>() + size_of_val(frames)) {
            self.recording.stacks.push(frames.into());
        }
    }

    fn sample(&mut self, sample: &Sample) {
        if self.take_record(sample.cpu, size_of::<Sample>()) {
            self.recording.samples.push(*sample);
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        let losses: usize = epoch.losses.keys().map(|reason| reason.len() + 64).sum();
        if self.take_record(epoch.cpu, size_of::<Epoch>() + losses) {
            self.recording.epochs.push(epoch.clone());
        }
    }

    fn rcu(&mut self, event: &RcuEvent) {
        if self.take_record(0, size_of::<RcuEvent>()) {
            self.recording.rcu.push(event.clone());
        }
    }

    fn flush(&mut self) {}

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }
}
