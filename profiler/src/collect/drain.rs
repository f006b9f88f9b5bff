//! From ring-buffer records to a recording's: bounded turns, stacks kept once.

use aya::maps::{MapData, RingBuf};
use bytes::Bytes;
use profiler_ebpf::{
    Counters, EpochRecord, RCU_FUNCTIONS, RCU_WAITS, RcuRecord, RecordHeader, SampleRecord,
    TaskRecord, flags, kind, loss,
};
use zerocopy::FromBytes as _;

use super::rcu::RcuCalls;
use super::tasks::Tasks;
use super::users::UserSymbols;
use crate::fast_map::FastMap;
use crate::kernel::Kallsyms;
use crate::recording::{
    Epoch, Frame, FrameId, Sample, SampleFlags, Sink, StackId, SwitchCounts, Symbol,
};

/// Records taken in one turn. A full buffer must not keep the loop from signals
/// and timers: `RingBuf::next` never yields by itself.
const TURN: usize = 4096;
/// Distinct stacks and addresses remembered, to find their ids without asking
/// the sink. Forgetting them costs time, nothing else.
const REMEMBERED: usize = 1 << 16;

/// Turns records into calls of a sink.
pub(super) struct Drain<'a> {
    kallsyms: &'a Kallsyms,
    /// The profiler's own process id in the initial PID namespace; 0 unknown.
    own_tgid: u32,
    /// CLOCK_MONOTONIC at the start of the run, nanoseconds.
    origin_ns: u64,
    stacks: FastMap<Bytes, StackId>,
    frames: FastMap<u64, FrameId>,
    /// Functions of kernel frames that were met.
    functions: Vec<u64>,
    /// The same of user stacks, whose addresses mean something in one process.
    user_stacks: FastMap<(u32, Bytes), StackId>,
    users: UserSymbols,
    /// Blocking RCU calls.
    rcu: RcuCalls,
    /// Switches by task.
    pub(super) tasks: Tasks,
    /// Records that are of no known kind or size: the object is not of this
    /// build, or memory is broken.
    pub(super) unreadable: u64,
    comms: FastMap<[u8; 16], u32>,
}

impl<'a> Drain<'a> {
    /// A drain for a run that starts at `origin_ns`.
    pub(super) fn new(kallsyms: &'a Kallsyms, own_tgid: u32, origin_ns: u64) -> Self {
        Self {
            kallsyms,
            own_tgid,
            origin_ns,
            stacks: FastMap::default(),
            frames: FastMap::default(),
            functions: Vec::new(),
            user_stacks: FastMap::default(),
            users: UserSymbols::default(),
            rcu: RcuCalls::default(),
            tasks: Tasks::default(),
            unreadable: 0,
            comms: FastMap::default(),
        }
    }

    /// Kernel functions that were met since this was last asked, by address.
    pub(super) fn take_functions(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.functions)
    }

    /// The run starts now, not when this was made.
    pub(super) fn set_origin(&mut self, origin_ns: u64) {
        self.origin_ns = origin_ns;
    }

    /// Takes at most one turn's records; true when there may be more.
    pub(super) fn turn(&mut self, events: &mut RingBuf<MapData>, sink: &mut dyn Sink) -> bool {
        for _ in 0..TURN {
            let Some(item) = events.next() else {
                return false;
            };
            self.record(&item, sink);
        }
        true
    }

    /// Takes one record.
    pub(super) fn record(&mut self, bytes: &[u8], sink: &mut dyn Sink) {
        let known = match RecordHeader::ref_from_prefix(bytes).map(|(header, _)| header.kind) {
            Ok(kind::SAMPLE) => self.sample(bytes, sink),
            Ok(kind::EPOCH) => self.epoch(bytes, sink),
            Ok(kind::RCU) => self.rcu_call(bytes, sink),
            Ok(kind::TASK) => self.task(bytes),
            _ => None,
        };
        if known.is_none() {
            self.unreadable += 1;
        }
    }

    /// Ends the run: what was held back goes to the sink.
    pub(super) fn finish(&mut self, sink: &mut dyn Sink) {
        self.rcu.finish(sink);
    }

    /// Takes what tasks sent that went after the last turn. The run is over for
    /// everything else.
    pub(super) fn late_tasks(&mut self, events: &mut RingBuf<MapData>) {
        while let Some(item) = events.next() {
            if RecordHeader::ref_from_prefix(&item).is_ok_and(|(it, _)| it.kind == kind::TASK)
                && self.task(&item).is_none()
            {
                self.unreadable += 1;
            }
        }
    }

    pub(super) fn since_start(&self, time_ns: u64) -> u64 {
        time_ns.saturating_sub(self.origin_ns)
    }

    fn sample(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Option<()> {
        let (record, frames) = SampleRecord::read_from_prefix(bytes).ok()?;
        let kernel_bytes = usize::from(record.kernel_bytes);
        let user_bytes = usize::from(record.user_bytes);
        let kernel = frames.get(..kernel_bytes)?;
        let user = frames.get(kernel_bytes..kernel_bytes + user_bytes)?;
        let mut bits = 0;
        for (theirs, ours) in [
            (flags::TARGET, SampleFlags::TARGET),
            (flags::USER_MODE, SampleFlags::USER_MODE),
            (flags::KERNEL_TRUNCATED, SampleFlags::KERNEL_TRUNCATED),
            (flags::USER_TRUNCATED, SampleFlags::USER_TRUNCATED),
        ] {
            if record.flags & theirs != 0 {
                bits |= ours;
            }
        }
        if self.own_tgid != 0 && record.tgid == self.own_tgid {
            bits |= SampleFlags::PROFILER;
        }
        // Symbols of other people's programs are read from big files and shown
        // nowhere.
        let user = if record.flags & flags::TARGET != 0 {
            user
        } else {
            &[]
        };
        let comm = self.comm(&record.comm, sink);
        self.tasks.see(record.pid, &record.comm);
        let sample = Sample {
            time_ns: self.since_start(record.header.time_ns),
            ip: record.ip,
            cgroup_id: record.cgroup_id,
            cpu: record.header.cpu,
            pid: record.pid,
            tgid: record.tgid,
            comm,
            kernel_stack: self.kernel_stack(kernel, sink),
            user_stack: self.user_stack(record.tgid, user, sink),
            flags: bits,
        };
        sink.sample(&sample);
        Some(())
    }

    fn epoch(&self, bytes: &[u8], sink: &mut dyn Sink) -> Option<()> {
        let (record, _) = EpochRecord::read_from_prefix(bytes).ok()?;
        let time_ns = self.since_start(record.header.time_ns);
        sink.epoch(&epoch_of(record.header.cpu, time_ns, &record.counters));
        Some(())
    }

    fn rcu_call(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Option<()> {
        let (record, _) = RcuRecord::read_from_prefix(bytes).ok()?;
        let depth = record.stack_bytes as usize / 8;
        let frames = record.frames.get(..depth)?;
        let index = (record.flags >> flags::FUNCTION_SHIFT) as usize;
        let (of_call, function) = if record.flags & flags::OFF_CPU == 0 {
            self.call_frames(frames, RCU_FUNCTIONS.get(index)?)
        } else {
            self.block_frames(frames, index)
        };
        let in_mutex = frames[..of_call].iter().any(|&address| {
            self.kallsyms
                .lookup(address)
                .is_some_and(|symbol| symbol.base_name().contains("mutex_lock"))
        });
        let stack: Vec<u8> = function
            .iter()
            .chain(&frames[of_call..])
            .flat_map(|address| address.to_ne_bytes())
            .collect();
        let call = super::rcu::Block {
            start_ns: self.since_start(record.start_ns),
            end_ns: self.since_start(record.header.time_ns),
            pid: record.pid,
            tgid: record.tgid,
            comm: self.comm(&record.comm, sink),
            kernel_stack: self.kernel_stack(&stack, sink),
            // Attaching and detaching wait for RCU too.
            target: record.flags & flags::TARGET != 0
                && (self.own_tgid == 0 || record.tgid != self.own_tgid),
        };
        if record.flags & flags::OFF_CPU == 0 {
            sink.rcu(&call.event());
        } else {
            self.rcu.block(call, (index, in_mutex), sink);
        }
        Some(())
    }

    fn task(&mut self, bytes: &[u8]) -> Option<()> {
        let (record, _) = TaskRecord::read_from_prefix(bytes).ok()?;
        self.tasks
            .add(record.pid, Some(&record.comm), &record.entry);
        Some(())
    }

    /// Where a function and its callers begin on a stack. The programs that saw the
    /// call and their trampolines stand before it; with another tracer on the
    /// function they stand in its place, and its address is given too.
    fn call_frames(&self, frames: &[u64], function: &str) -> (usize, Option<u64>) {
        let symbol_of = |&address: &u64| self.kallsyms.lookup(address);
        let is_it = |address: &u64| symbol_of(address).is_some_and(|it| it.base_name() == function);
        if let Some(position) = frames.iter().position(is_it) {
            return (position, None);
        }
        let caller = frames
            .iter()
            .position(|address| symbol_of(address).is_some_and(|it| it.module != "bpf"));
        (caller.unwrap_or(0), self.kallsyms.address(function))
    }

    /// The same of a block. Where what waits for the function stands on the stack
    /// in its place, its address is given.
    fn block_frames(&self, frames: &[u64], index: usize) -> (usize, Option<u64>) {
        let Some(&function) = RCU_FUNCTIONS.get(index) else {
            return (0, None);
        };
        let waits = |name: &str| RCU_WAITS.contains(&(name, index));
        let found = frames.iter().enumerate().find_map(|(position, &address)| {
            let symbol = self.kallsyms.lookup(address)?;
            waits(symbol.base_name()).then_some((position, symbol.base_name() == function))
        });
        match found {
            Some((position, true)) => (position, None),
            // The function itself may come next.
            Some((position, false)) => match self.call_frames(&frames[position..], function) {
                (next @ 1.., None) => (position + next, None),
                _ => (position + 1, self.kallsyms.address(function)),
            },
            None => self.call_frames(frames, function),
        }
    }

    fn comm(&mut self, comm: &[u8; 16], sink: &mut dyn Sink) -> u32 {
        if let Some(&id) = self.comms.get(comm) {
            return id;
        }
        if self.comms.len() >= REMEMBERED {
            self.comms.clear();
        }
        let id = sink.intern_comm(&comm_text(comm));
        self.comms.insert(*comm, id);
        id
    }

    fn kernel_stack(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> StackId {
        if bytes.is_empty() {
            return 0;
        }
        if let Some(&id) = self.stacks.get(bytes) {
            return id;
        }
        if self.stacks.len() >= REMEMBERED {
            self.stacks.clear();
        }
        let frames: Vec<FrameId> = addresses(bytes)
            .map(|address| self.kernel_frame(address, sink))
            .collect();
        let id = sink.intern_stack(&frames);
        self.stacks.insert(Bytes::copy_from_slice(bytes), id);
        id
    }

    fn kernel_frame(&mut self, address: u64, sink: &mut dyn Sink) -> FrameId {
        if let Some(&id) = self.frames.get(&address) {
            return id;
        }
        if self.frames.len() >= REMEMBERED {
            self.frames.clear();
        }
        let found = self.kallsyms.lookup(address);
        if let Some(function) = found {
            self.functions.push(function.start);
        }
        let symbol = sink.intern_symbol(&found.as_ref().map_or_else(unknown, |symbol| Symbol {
            name: symbol.name.to_owned(),
            module: symbol.module.to_owned(),
        }));
        let offset = found.map_or(0, |symbol| address - symbol.start);
        let id = sink.intern_frame(&Frame {
            addr: address,
            symbol,
            offset: u32::try_from(offset).unwrap_or(u32::MAX),
        });
        self.frames.insert(address, id);
        id
    }

    fn user_stack(&mut self, tgid: u32, bytes: &[u8], sink: &mut dyn Sink) -> StackId {
        if bytes.is_empty() {
            return 0;
        }
        let key = (tgid, Bytes::copy_from_slice(bytes));
        if let Some(&id) = self.user_stacks.get(&key) {
            return id;
        }
        if self.user_stacks.len() >= REMEMBERED {
            self.user_stacks.clear();
        }
        let frames: Vec<FrameId> = addresses(bytes)
            .map(|address| {
                let (symbol, offset) = self.users.lookup(tgid, address).unwrap_or((unknown(), 0));
                let symbol = sink.intern_symbol(&symbol);
                sink.intern_frame(&Frame {
                    addr: address,
                    symbol,
                    offset,
                })
            })
            .collect();
        let id = sink.intern_stack(&frames);
        self.user_stacks.insert(key, id);
        id
    }
}

fn unknown() -> Symbol {
    Symbol {
        name: "[unknown]".to_owned(),
        module: String::new(),
    }
}

/// A task name as text: up to its first NUL, with U+FFFD for what is not UTF-8.
pub(super) fn comm_text(comm: &[u8]) -> String {
    let end = comm
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

/// The addresses of a stack. The kernel ends a user stack that it could not
/// follow with a 0.
fn addresses(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .chunks_exact(8)
        .map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap_or_default()))
        .filter(|&address| address != 0)
}

/// A CPU's counters as an epoch's record.
pub(super) fn epoch_of(cpu: u32, time_ns: u64, counters: &Counters) -> Epoch {
    Epoch {
        cpu,
        time_ns,
        switches: target_switches(counters),
        other_switches: other_switches(counters),
        sampler_hits: counters.sampler_hits,
        idle_samples: counters.idle_samples,
        losses: loss::NAMES
            .iter()
            .zip(counters.losses)
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| ((*name).to_owned(), count))
            .collect(),
    }
}

/// The target's part of a CPU's counters.
pub(super) fn target_switches(counters: &Counters) -> SwitchCounts {
    SwitchCounts {
        voluntary: counters.target_voluntary,
        preempted: counters.target_preempted,
    }
}

/// Everyone else's part of a CPU's counters.
pub(super) fn other_switches(counters: &Counters) -> SwitchCounts {
    SwitchCounts {
        voluntary: counters.other_voluntary,
        preempted: counters.other_preempted,
    }
}
