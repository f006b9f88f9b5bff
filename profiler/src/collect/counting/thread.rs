//! The thread that aims, arms and reads breakpoints while the workload runs.

use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_ebpf::{BREAKPOINTS, CheckSlots, hit};

use super::plan::Plan;
use super::schedule::{Looked, Schedule, Set};
use super::spacing::{LEAST_PAUSE_NS, Spacing};
use crate::collect::run::monotonic_ns;
use crate::probes::Mapped;
use crate::probes::breakpoint::Breakpoints;
use crate::recording::Measured;

/// How counting is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// CPUs to count on.
    pub cpus: Vec<u32>,
    /// The most that counting may take, as a share of one CPU's time.
    pub max_overhead: f64,
    /// What a hit costs, nanoseconds.
    pub hit_price: Measured,
    /// Address of each CPU's preempt_count, by CPU; empty when it is not known.
    pub preempt_counts: Vec<u64>,
    /// Where the random sequence begins.
    pub seed: u64,
}

/// Counting that is under way.
pub struct Counter {
    stop: Arc<AtomicBool>,
    hints: Sender<Vec<u64>>,
    thread: JoinHandle<Counted>,
    plan: Plan,
    settings: Settings,
}

/// What the thread saw.
pub(super) struct Counted {
    /// What became of each place.
    pub(super) places: Vec<Looked>,
    pub(super) windows: u64,
    pub(super) armed_ns: u64,
    pub(super) hits: u64,
    pub(super) thread_ns: u64,
    pub(super) wall_ns: u64,
}

/// How long before the interrupt that ends a window counting ends.
const EARLY_NS: u64 = 2_000;
/// How long it takes this thread to give up the CPU, to begin with, and at most.
const LEAVE_NS: u64 = 8_000;
const LONGEST_LEAVE_NS: u64 = 40_000;
/// A window begins at random up to so much later. The timer that this thread had
/// waited for was held up wherever interrupts were off, so the workload goes on
/// where they were let in again more often than elsewhere: windows that all began
/// there would see less of what comes before.
const DELAY_NS: f64 = 20_000.0;
/// The longest wait, so that the end is not missed.
const LONGEST_WAIT: Duration = Duration::from_millis(20);
/// What a real-time scheduler needs of time to run in.
const PRIORITY: libc::c_int = 1;

impl Counter {
    /// Starts counting. `program` is what runs at each hit, `slots` its map.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn start(
        program: OwnedFd,
        slots: Mapped<CheckSlots>,
        mut plan: Plan,
        settings: Settings,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (hints, inbox) = std::sync::mpsc::channel();
        let worker = Worker {
            stop: Arc::clone(&stop),
            program,
            slots,
            addresses: plan.places.iter().map(|place| place.address).collect(),
            schedule: Schedule::new(&mut plan, settings.seed),
            inbox,
            settings: settings.clone(),
            breakpoints: Vec::new(),
            leave_ns: LEAVE_NS,
            spacing: Spacing::default(),
            switches: 0,
            windows: 0,
            armed_ns: 0,
            hits: 0,
        };
        let thread = std::thread::Builder::new()
            .name("counting".to_owned())
            .spawn(move || worker.run())?;
        Ok(Self {
            stop,
            hints,
            thread,
            plan,
            settings,
        })
    }

    /// Tells of kernel functions that were met in samples, by address.
    pub fn hint(&self, functions: Vec<u64>) {
        if !functions.is_empty() {
            // A thread that has ended needs none.
            let _ = self.hints.send(functions);
        }
    }

    /// Stops counting: what was planned, how, and what was seen. `None` when the
    /// thread failed.
    pub(super) fn finish(self) -> Option<(Plan, Settings, Counted)> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        let counted = self.thread.join().ok()?;
        Some((self.plan, self.settings, counted))
    }
}

struct Worker {
    stop: Arc<AtomicBool>,
    program: OwnedFd,
    slots: Mapped<CheckSlots>,
    addresses: Vec<u64>,
    schedule: Schedule,
    inbox: Receiver<Vec<u64>>,
    settings: Settings,
    /// Breakpoints of the CPUs that had a turn; `None` where there are none.
    breakpoints: Vec<(u32, Option<Breakpoints>)>,
    /// How long this thread takes to give up the CPU.
    leave_ns: u64,
    spacing: Spacing,
    /// Switches away from the target in windows, as far as they are watched.
    switches: u64,
    windows: u64,
    armed_ns: u64,
    hits: u64,
}

impl Worker {
    fn run(mut self) -> Counted {
        let start = Instant::now();
        run_at_once();
        let begun = thread_time();
        while !self.stop.load(Ordering::Relaxed) {
            while let Ok(functions) = self.inbox.try_recv() {
                self.schedule.hint(&functions);
            }
            if !self.turn(start, begun) {
                break;
            }
        }
        Counted {
            windows: self.windows,
            armed_ns: self.armed_ns,
            hits: self.hits,
            thread_ns: (thread_time() - begun).as_nanos() as u64,
            wall_ns: start.elapsed().as_nanos() as u64,
            places: self.schedule.finish(),
        }
    }

    /// Pauses after a window, so that what is spent stays within the limit. How long
    /// follows from what windows took lately, not from what this one did: after a
    /// window full of hits the workload would else be left alone for as long as it is
    /// at the same, and a burst of work be seen less than the calm after it.
    fn pay(&mut self, start: Instant, begun: Duration) {
        // More CPUs give more to count, and more to pay with; but what one CPU
        // pays is its workload's loss.
        let capacity = self.settings.cpus.len().clamp(1, 4) as f64;
        let limit = self.settings.max_overhead * capacity;
        let spent = (thread_time() - begun).as_nanos() as f64
            + self.hits as f64 * self.settings.hit_price.value;
        let pause = self
            .spacing
            .pause(spent / limit, start.elapsed().as_nanos() as f64);
        // Random, so that windows keep no step with the workload.
        let jitter = self.schedule.some_of(pause + LEAST_PAUSE_NS);
        self.wait(Duration::from_nanos((0.5 * pause + jitter) as u64));
    }

    /// Waits, but not past the end.
    fn wait(&self, length: Duration) {
        let until = Instant::now() + length;
        while !self.stop.load(Ordering::Relaxed) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if left > LONGEST_WAIT {
                std::thread::park_timeout(LONGEST_WAIT);
            } else {
                std::thread::sleep(left);
            }
        }
    }

    /// Watches one set of places. `false` when there is nothing left to do.
    fn turn(&mut self, start: Instant, begun: Duration) -> bool {
        let choice = self.schedule.one_of(self.settings.cpus.len());
        let Some(&cpu) = self.settings.cpus.get(choice) else {
            return false;
        };
        let mut breakpoints = match self.take(cpu) {
            Some(breakpoints) => breakpoints,
            None => {
                self.settings.cpus.swap_remove(choice);
                return !self.settings.cpus.is_empty();
            }
        };
        let hit_ns = self.settings.hit_price.value;
        let Some(mut set) = self.schedule.draw(breakpoints.count(), hit_ns) else {
            return false;
        };
        let mut aimed = Vec::new();
        for place in std::mem::take(&mut set.places) {
            match breakpoints.aim(aimed.len(), self.addresses[place]) {
                Ok(()) => aimed.push(place),
                Err(_) => self.schedule.refuse(place),
            }
        }
        set.places = aimed;
        if !set.places.is_empty() {
            self.point_slots(cpu, &set);
            for _ in 0..set.windows {
                if self.stop.load(Ordering::Relaxed) || !self.window(cpu, &breakpoints, &set) {
                    break;
                }
                self.pay(start, begun);
            }
        }
        self.give(cpu, breakpoints);
        true
    }

    /// The breakpoints of a CPU, opened when it has its first turn.
    fn take(&mut self, cpu: u32) -> Option<Breakpoints> {
        if let Some((_, breakpoints)) = self.breakpoints.iter_mut().find(|(c, _)| *c == cpu) {
            return breakpoints.take();
        }
        use std::os::fd::AsFd as _;
        // Any places will do to begin with, as long as they take one.
        let opened = self
            .addresses
            .windows(BREAKPOINTS)
            .take(64)
            .find_map(|places| Breakpoints::open(cpu, self.program.as_fd(), places).ok())
            .or_else(|| Breakpoints::open(cpu, self.program.as_fd(), &self.addresses).ok());
        self.breakpoints.push((cpu, None));
        opened
    }

    fn give(&mut self, cpu: u32, breakpoints: Breakpoints) {
        if let Some((_, slot)) = self.breakpoints.iter_mut().find(|(c, _)| *c == cpu) {
            *slot = Some(breakpoints);
        }
    }

    /// Tells the program what is aimed at.
    fn point_slots(&mut self, cpu: u32, set: &Set) {
        let Some(mut slots) = self.slots.get(cpu as usize) else {
            return;
        };
        slots.address = [0; BREAKPOINTS];
        for (slot, &place) in slots.address.iter_mut().zip(&set.places) {
            *slot = self.addresses[place];
        }
        let preempt_counts = &self.settings.preempt_counts;
        slots.preempt_count = preempt_counts.get(cpu as usize).copied().unwrap_or(0);
        self.slots.set(cpu as usize, slots);
    }

    /// One window. `false` when the CPU has gone.
    fn window(&mut self, cpu: u32, breakpoints: &Breakpoints, set: &Set) -> bool {
        let index = cpu as usize;
        let Some(mut before) = self.slots.get(index) else {
            return false;
        };
        // Nothing counts until this thread, about to wait, has left the CPU.
        before.armed = 1;
        before.from_ns = u64::MAX;
        before.until_ns = u64::MAX;
        self.slots.set(index, before);
        let start = monotonic_ns();
        if breakpoints.arm().is_err() {
            return false;
        }
        let delay = self.schedule.some_of(DELAY_NS) as u64;
        before.from_ns = monotonic_ns() + self.leave_ns + delay;
        before.until_ns = before.from_ns + set.window_ns;
        // The end first: a window without one would have begun.
        let words = [
            (offset_of!(CheckSlots, until_ns), before.until_ns),
            (offset_of!(CheckSlots, from_ns), before.from_ns),
        ];
        for (offset, value) in words {
            self.slots.set_word(index, offset, value);
        }
        let own = thread_time();
        sleep_until(before.until_ns + EARLY_NS);
        let own = thread_time() - own;
        let disarmed = breakpoints.disarm().is_ok();
        let length = monotonic_ns() - start;
        let Some(mut after) = self.slots.get(index) else {
            return false;
        };
        let delta = |place: usize| -> [u64; hit::COUNT] {
            std::array::from_fn(|kind| after.hits[place][kind] - before.hits[place][kind])
        };
        let hits: Vec<[u64; hit::COUNT]> = (0..set.places.len()).map(delta).collect();
        after.armed = 0;
        self.slots.set(index, after);

        let total: u64 = hits.iter().flatten().sum();
        // The time that passed for the workload: not what the hits took.
        let lost = total as f64 * self.settings.hit_price.value;
        let ns = (set.window_ns as f64 - lost).max(0.0);
        let switches = after.switches - before.switches;
        self.switches += switches;
        let targets: u64 = hits.iter().flat_map(|hits| &hits[..hit::OTHER]).sum();
        // Where no switch was ever seen, none may be watched.
        let met = switches > 0 || targets > 0 || self.switches == 0;
        let window = self.schedule.window(ns, self.spacing.weight(), met);
        for (&place, &hits) in set.places.iter().zip(&hits) {
            self.schedule.record(place, &window, hits);
        }
        self.windows += 1;
        self.armed_ns += length;
        self.hits += total + (after.outside - before.outside);
        // On this thread's way out of the CPU and back into it: as long as both,
        // to be on the safe side.
        let seen = own.as_nanos() as u64;
        self.leave_ns = (self.leave_ns * 7 + seen.min(LONGEST_LEAVE_NS)) / 8;
        disarmed
    }
}

/// Sleeps until a time of CLOCK_MONOTONIC, nanoseconds.
fn sleep_until(time_ns: u64) {
    let until = libc::timespec {
        tv_sec: (time_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (time_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the time is valid for the call. A signal that ends it early makes
    // the window shorter than its time, which only costs precision.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const until,
            std::ptr::null_mut(),
        )
    };
}

/// Asks for the CPU as soon as a window is to end: one that stays open for
/// longer costs more than it was to. Without the privilege it goes on as it is.
fn run_at_once() {
    let parameters = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the structure is valid for the call, which is about this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
