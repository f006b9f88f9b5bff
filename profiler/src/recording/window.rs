//! The last seconds of a run that goes on.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sink::{Recorder, Sink, State, Store, delegate_sink};
use super::{
    Epoch, Frame, FrameId, Header, LatencyGroup, Ledger, Loss, RcuEvent, Recording, RunInfo,
    Sample, StackId, SwitchCounts, Symbol, SymbolId, Trailer,
};
use crate::probes::ProbeStatus;

/// Samples kept at most: on a large machine the window is shorter than asked for.
const MAX_SAMPLES: usize = 2_000_000;

/// Takes a run and keeps its last seconds, for [`Window`] to show.
#[derive(Debug)]
pub struct WindowSink {
    recorder: Recorder<WindowStore>,
}

delegate_sink!(WindowSink, recorder);

/// What a [`WindowSink`] keeps; can be looked at from another thread.
#[derive(Clone, Debug)]
pub struct Window {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    recording: Recording,
    keep_ns: u64,
    /// Each CPU's newest counters from before the records that are kept.
    before: BTreeMap<u32, Epoch>,
    newest_ns: u64,
    /// What the ledger held, and when, ascending; the first may be older than the
    /// window.
    ledgers: VecDeque<(u64, Ledger)>,
    /// The legs that fill it.
    probes: Vec<ProbeStatus>,
    /// Bytes of the tables, which only grow.
    table_bytes: usize,
}

impl WindowSink {
    /// A sink that keeps the last `keep_ns` nanoseconds.
    pub fn new(header: &Header, keep_ns: u64) -> Self {
        let kept = Kept {
            recording: Recording {
                header: header.clone(),
                stacks: vec![Box::default()],
                complete: true,
                ..Recording::default()
            },
            keep_ns,
            before: BTreeMap::new(),
            newest_ns: 0,
            ledgers: VecDeque::new(),
            probes: Vec::new(),
            table_bytes: 0,
        };
        Self {
            recorder: Recorder::new(WindowStore {
                kept: Arc::new(Mutex::new(kept)),
                state: State::default(),
            }),
        }
    }

    /// What it keeps.
    pub fn window(&self) -> Window {
        Window {
            kept: Arc::clone(&self.recorder.store.kept),
        }
    }
}

impl Window {
    /// Gives `look` the recording of the last `length_ns` nanoseconds that were
    /// kept, as if nothing else had been recorded: its counts of switches and
    /// losses are of that time alone. Absent before the first record.
    pub fn last<T>(&self, length_ns: u64, look: impl FnOnce(&Recording) -> T) -> Option<T> {
        let mut kept = lock(&self.kept);
        let kept = &mut *kept;
        if kept.newest_ns == 0 {
            return None;
        }
        let from_ns = kept.newest_ns.saturating_sub(length_ns);
        let all = &mut kept.recording;
        let samples = all.samples.iter().filter(|s| s.time_ns >= from_ns);
        let samples: Vec<Sample> = samples.copied().collect();
        let rcu = all.rcu.iter().filter(|event| event.time_ns >= from_ns);
        let rcu: Vec<RcuEvent> = rcu.cloned().collect();
        let (epochs, before): (Vec<_>, Vec<_>) = all
            .epochs
            .iter()
            .cloned()
            .partition(|epoch| epoch.time_ns >= from_ns);
        let mut base = kept.before.clone();
        for epoch in before {
            newer(&mut base, epoch);
        }
        all.trailer = trailer(&epochs, &base, kept.newest_ns - from_ns);
        all.trailer.ledger = ledger(&kept.ledgers, from_ns);
        all.trailer.probes.clone_from(&kept.probes);
        let samples = std::mem::replace(&mut all.samples, samples);
        let rcu = std::mem::replace(&mut all.rcu, rcu);
        let epochs = std::mem::replace(&mut all.epochs, epochs);
        let seen = look(all);
        (all.samples, all.rcu, all.epochs) = (samples, rcu, epochs);
        Some(seen)
    }

    /// Bytes of the names and stacks that were ever seen. They only grow, at the
    /// rate at which new ones turn up.
    pub fn table_bytes(&self) -> usize {
        lock(&self.kept).table_bytes
    }
}

/// What is shared stays whole when the other thread panics: nothing is moved out.
fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the newer counters of a CPU.
fn newer(by_cpu: &mut BTreeMap<u32, Epoch>, epoch: Epoch) {
    match by_cpu.get(&epoch.cpu) {
        Some(known) if known.time_ns > epoch.time_ns => {}
        _ => {
            by_cpu.insert(epoch.cpu, epoch);
        }
    }
}

/// The trailer of an interval, from counters that only grow.
fn trailer(epochs: &[Epoch], base: &BTreeMap<u32, Epoch>, length_ns: u64) -> Trailer {
    let mut last: BTreeMap<u32, Epoch> = BTreeMap::new();
    for epoch in epochs {
        newer(&mut last, epoch.clone());
    }
    let none = Epoch::default();
    let (mut own, mut others) = (SwitchCounts::default(), SwitchCounts::default());
    let mut trailer = Trailer {
        run: RunInfo {
            wall_s: length_ns as f64 / 1e9,
            ..RunInfo::default()
        },
        ..Trailer::default()
    };
    for (&cpu, now) in &last {
        let then = base.get(&cpu).unwrap_or(&none);
        for (sum, now, then) in [
            (&mut own, now.switches, then.switches),
            (&mut others, now.other_switches, then.other_switches),
        ] {
            sum.voluntary += now.voluntary.saturating_sub(then.voluntary);
            sum.preempted += now.preempted.saturating_sub(then.preempted);
        }
        trailer.idle_samples += now.idle_samples.saturating_sub(then.idle_samples);
        for (reason, &count) in &now.losses {
            let count = count.saturating_sub(then.losses.get(reason).copied().unwrap_or(0));
            if count > 0 {
                trailer.losses.push(Loss {
                    cpu,
                    reason: reason.clone(),
                    count,
                });
            }
        }
    }
    if !last.is_empty() {
        trailer.switches = Some(own);
        trailer.other_switches = Some(others);
    }
    trailer
}

/// What came to the ledger since `from_ns`; absent without one.
fn ledger(ledgers: &VecDeque<(u64, Ledger)>, from_ns: u64) -> Option<Ledger> {
    let (_, now) = ledgers.back()?;
    let none = Ledger::default();
    let then = ledgers
        .iter()
        .rev()
        .find(|(time_ns, _)| *time_ns <= from_ns);
    let then = then.map_or(&none, |(_, then)| then);
    let known: BTreeMap<&str, &LatencyGroup> = then
        .groups
        .iter()
        .map(|group| (group.comm.as_str(), group))
        .collect();
    let groups = now.groups.iter().map(|group| LatencyGroup {
        comm: group.comm.clone(),
        latency: match known.get(group.comm.as_str()) {
            Some(known) => group.latency.since(&known.latency),
            None => group.latency.clone(),
        },
    });
    let mut groups: Vec<LatencyGroup> = groups.filter(|g| g.latency.count > 0).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.latency.count));
    let latency = now.latency.iter().map(|(cause, histogram)| {
        let since = match then.latency.get(cause) {
            Some(known) => histogram.since(known),
            None => histogram.clone(),
        };
        (cause.clone(), since)
    });
    Some(Ledger {
        wakeups: now.wakeups.saturating_sub(then.wakeups),
        woken_running: now.woken_running.saturating_sub(then.woken_running),
        clock_backwards: now.clock_backwards.saturating_sub(then.clock_backwards),
        ended_waiting: now.ended_waiting.saturating_sub(then.ended_waiting),
        exits: now.exits.saturating_sub(then.exits),
        latency: latency.filter(|(_, since)| since.count > 0).collect(),
        groups,
        ..Ledger::default()
    })
}

#[derive(Debug)]
struct WindowStore {
    kept: Arc<Mutex<Kept>>,
    state: State,
}

impl WindowStore {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        lock(&self.kept)
    }
}

impl Kept {
    /// Lets go of what is older than the window.
    fn prune(&mut self) {
        let from_ns = self.newest_ns.saturating_sub(self.keep_ns);
        let recording = &mut self.recording;
        recording.samples.retain(|sample| sample.time_ns >= from_ns);
        let too_many = recording.samples.len().saturating_sub(MAX_SAMPLES);
        recording.samples.drain(..too_many);
        recording.rcu.retain(|event| event.time_ns >= from_ns);
        // One that is older tells what came since.
        while self
            .ledgers
            .get(1)
            .is_some_and(|(time_ns, _)| *time_ns <= from_ns)
        {
            self.ledgers.pop_front();
        }
        let old = recording.epochs.extract_if(.., |e| e.time_ns < from_ns);
        for epoch in old {
            newer(&mut self.before, epoch);
        }
    }
}

impl Store for WindowStore {
    fn comm(&mut self, comm: &str) {
        let mut kept = self.kept();
        kept.table_bytes += size_of::<String>() + comm.len();
        kept.recording.comms.push(comm.to_owned());
    }

    fn symbol(&mut self, symbol: &Symbol) {
        let mut kept = self.kept();
        kept.table_bytes += size_of::<Symbol>() + symbol.name.len() + symbol.module.len();
        kept.recording.symbols.push(symbol.clone());
    }

    fn frame(&mut self, frame: &Frame) {
        let mut kept = self.kept();
        kept.table_bytes += size_of::<Frame>();
        kept.recording.frames.push(*frame);
    }

    fn stack(&mut self, frames: &[FrameId]) {
        let mut kept = self.kept();
        kept.table_bytes += size_of::<Box<[FrameId]>>() + size_of_val(frames);
        kept.recording.stacks.push(frames.into());
    }

    fn sample(&mut self, sample: &Sample) {
        let mut kept = self.kept();
        kept.newest_ns = kept.newest_ns.max(sample.time_ns);
        kept.recording.samples.push(*sample);
        if kept.recording.samples.len() > 2 * MAX_SAMPLES {
            kept.prune();
        }
    }

    fn epoch(&mut self, epoch: &Epoch) {
        let mut kept = self.kept();
        kept.newest_ns = kept.newest_ns.max(epoch.time_ns);
        kept.recording.epochs.push(epoch.clone());
    }

    fn rcu(&mut self, event: &RcuEvent) {
        self.kept().recording.rcu.push(event.clone());
    }

    fn shows_ledger(&self) -> bool {
        true
    }

    fn ledger(&mut self, time_ns: u64, so_far: Ledger, probes: &[ProbeStatus]) {
        let mut kept = self.kept();
        kept.probes = probes.to_vec();
        kept.ledgers.push_back((time_ns, so_far));
    }

    fn flush(&mut self) {
        self.kept().prune();
    }

    fn state(&self) -> &State {
        &self.state
    }

    fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::SampleFlags;

    const SECOND: u64 = 1_000_000_000;

    /// One sample and one epoch a second.
    fn feed(sink: &mut WindowSink, seconds: std::ops::Range<u64>) {
        for second in seconds {
            let comm = sink.intern_comm("task");
            sink.sample(&Sample {
                time_ns: second * SECOND,
                comm,
                flags: SampleFlags::TARGET,
                ..Sample::default()
            });
            for cpu in 0..2 {
                sink.epoch(&Epoch {
                    cpu,
                    time_ns: second * SECOND,
                    switches: SwitchCounts {
                        voluntary: second * 10,
                        preempted: second,
                    },
                    losses: [("ring_full".to_owned(), second)].into(),
                    ..Epoch::default()
                });
            }
            sink.flush();
        }
    }

    #[test]
    fn the_last_seconds_are_a_recording_of_their_own() {
        let mut sink = WindowSink::new(&Header::default(), 20 * SECOND);
        let window = sink.window();
        assert_eq!(window.last(SECOND, |_| ()), None);
        feed(&mut sink, 1..101);
        for (length, samples) in [(5, 6), (20, 21), (90, 21)] {
            let (counted, switches, lost) = window
                .last(length * SECOND, |recording| {
                    assert_eq!(recording.epochs.len(), 2 * samples);
                    let lost: u64 = recording.trailer.losses.iter().map(|l| l.count).sum();
                    (recording.samples.len(), recording.trailer.switches, lost)
                })
                .unwrap();
            assert_eq!(counted, samples);
            // Each epoch that is in it, on two CPUs.
            let samples = samples as u64;
            assert_eq!(switches.unwrap().voluntary, 2 * samples * 10);
            assert_eq!(switches.unwrap().preempted, 2 * samples);
            assert_eq!(lost, 2 * samples);
        }
        // Looking changes nothing.
        assert_eq!(window.last(5 * SECOND, |r| r.samples.len()), Some(6));
        assert_eq!(window.last(20 * SECOND, |r| r.samples.len()), Some(21));
    }

    #[test]
    fn the_ledger_is_of_the_last_seconds() {
        let mut sink = WindowSink::new(&Header::default(), 20 * SECOND);
        let window = sink.window();
        let wake = ProbeStatus {
            wanted: "wake".to_owned(),
            leg: "tp_btf".to_owned(),
            ..ProbeStatus::default()
        };
        let mut so_far = Ledger::default();
        feed(&mut sink, 1..2);
        assert_eq!(
            window.last(SECOND, |r| r.trailer.ledger.clone()),
            Some(None)
        );
        for second in 1..=100 {
            so_far.wakeups += 2;
            let busy = so_far.latency.entry("busy".to_owned()).or_default();
            // Early ones were long.
            busy.note(if second <= 50 { 1_000_000 } else { 1_000 });
            sink.ledger(second * SECOND, so_far.clone(), std::slice::from_ref(&wake));
            feed(&mut sink, second..second + 1);
        }
        let (ledger, probes) = window
            .last(5 * SECOND, |r| {
                (r.trailer.ledger.clone().unwrap(), r.trailer.probes.clone())
            })
            .unwrap();
        assert_eq!(probes, [wake]);
        assert_eq!(ledger.wakeups, 10);
        let busy = &ledger.latency["busy"];
        assert_eq!((busy.count, busy.total_ns), (5, 5_000));
        assert!((1_000..1_100).contains(&busy.max_ns), "{}", busy.max_ns);
        assert_eq!(lock(&sink.recorder.store.kept).ledgers.len(), 21);
    }

    #[test]
    fn only_tables_grow() {
        let mut sink = WindowSink::new(&Header::default(), 20 * SECOND);
        feed(&mut sink, 1..101);
        let before = sink.window().table_bytes();
        feed(&mut sink, 101..1001);
        assert_eq!(sink.window().table_bytes(), before);
        let kept = lock(&sink.recorder.store.kept);
        assert_eq!(kept.recording.samples.len(), 21);
        assert_eq!(kept.recording.epochs.len(), 42);
    }
}
