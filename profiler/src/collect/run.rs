//! The one loop of a profiled run.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use profiler_ebpf::loss;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::MissedTickBehavior;

use super::cost::{self, Prices};
use super::counting;
use super::cpus::{Gaps, newcomers};
use super::drain::{Drain, epoch_of, other_switches, target_switches};
use super::ledger;
use super::signals::Signals;
use super::workload::{CannotStart, Exit, Workload};
use crate::kernel::{CpuList, Kallsyms, ProcStat};
use crate::probes::{Plain, ProbeStatus, Session, perf};
use crate::recording::{Epoch, Loss, RunInfo, Sink, Trailer};

/// How often the loop looks around: at CPUs that come and go, and at processes
/// that end.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// In so many of these turns the ring buffer is emptied once, if it does not ask
/// for it earlier. Each time takes the CPU from the machine that is measured, and
/// names that were looked up once are known the next time.
const DRAIN_ONE_IN: u32 = 8;

/// What is watched until when.
pub enum Watched {
    /// A command, until it ends.
    Command(Workload),
    /// Processes, until the last has ended.
    Processes(Vec<OwnedFd>),
    /// Something without an end of its own.
    Forever,
}

/// A run about to begin.
pub struct Run<'a> {
    /// What is attached.
    pub session: Session,
    /// What is watched until when.
    pub watched: Watched,
    /// Where records go.
    pub sink: &'a mut dyn Sink,
    /// Kernel symbols.
    pub kallsyms: &'a Kallsyms,
    /// Signals that end the run.
    pub signals: &'a Signals,
    /// An end by the clock.
    pub duration: Option<Duration>,
    /// Whether CPUs that come online belong to the run, which they do unless
    /// they were chosen by number.
    pub all_cpus: bool,
    /// The profiler's own process id in the initial PID namespace; 0 unknown.
    pub own_tgid: u32,
    /// What entering the programs costs.
    pub prices: Prices,
    /// When the command that makes this run began.
    pub began: Instant,
    /// Whether the kernel's BPF statistics are to be on for this run.
    pub bpf_stats: bool,
    /// Calls to be counted, and its row of the status table.
    pub counting: (Option<counting::Prepared>, Option<ProbeStatus>),
    /// Kernel functions that runs before this one saw call checks, by address.
    pub hot: &'a [u64],
    /// CLOCK_MONOTONIC when the recording began, which every time of it is
    /// counted from, nanoseconds; absent when it begins with this run.
    pub origin_ns: Option<u64>,
}

/// Why a run ended.
#[derive(Debug)]
pub enum Ended {
    /// The command ended.
    Exited(Exit),
    /// The command never became one.
    CannotStart(CannotStart),
    /// The watched processes ended, the time was up, or a signal came.
    Stopped,
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// Why it ended.
    pub ended: Ended,
    /// The recording's end, were this its only run.
    pub trailer: Trailer,
    /// CLOCK_MONOTONIC when the workload was let go, nanoseconds.
    pub started_ns: u64,
    /// Each CPU's counters at the run's end.
    pub last_epochs: Vec<Epoch>,
    /// From the workload's end until everything was detached.
    pub detach: Duration,
}

impl Run<'_> {
    /// Lets the workload run, drains until it ends, detaches, and adds up.
    ///
    /// # Errors
    ///
    /// When sampling cannot be started or the maps cannot be read. The workload
    /// then runs on unprofiled or never began.
    pub fn go(self) -> anyhow::Result<Outcome> {
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .context("starting the event loop")?
            .block_on(self.run())
    }

    async fn run(mut self) -> anyhow::Result<Outcome> {
        let events = self.session.take_events()?;
        let mut events = watch(events)?;
        let mut logs = self.session.take_logs();
        let signals = watch(self.signals.fd().try_clone()?)?;
        let child = match &self.watched {
            Watched::Command(workload) => Some(watch(workload.pidfd().try_clone()?)?),
            _ => None,
        };
        let mut drain = Drain::new(self.kallsyms, self.own_tgid, monotonic_ns());
        let mut online = online_cpus().unwrap_or_default();
        let mut gaps = Gaps::default();
        let stats = ProcStat::load(Path::new("/")).ok();

        let mut warnings = Vec::new();
        let kernel_stats = self
            .bpf_stats
            .then(|| KernelStats::begin(&self.session))
            .and_then(|begun| {
                begun
                    .map_err(|error| warnings.push(format!("--bpf-stats: {error}.")))
                    .ok()
            });
        let misses_before = self.session.recursion_misses().unwrap_or_default();

        let setup = self.began.elapsed();
        let user_before = cost::own_cpu_time();
        let started_ns = monotonic_ns();
        drain.set_origin(self.origin_ns.unwrap_or(started_ns));
        let start = Instant::now();
        self.session.start()?;
        if let Watched::Command(workload) = &mut self.watched {
            workload.release();
        }
        let (prepared, mut call_status) = std::mem::take(&mut self.counting);
        let counter = prepared.and_then(|prepared| {
            prepared
                .start()
                .map_err(|error| counting_failed(&mut call_status, &error.to_string()))
                .ok()
        });
        if let Some(counter) = &counter {
            counter.hint(self.hot.to_vec());
        }

        let deadline = self.duration.map(|duration| start + duration);
        let mut tick = tokio::time::interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // One turn at a time, whoever asks for it: records may come faster than
        // they are taken, and the end must be seen all the same.
        let mut more = false;
        let mut turns = 0_u32;
        loop {
            tokio::select! {
                biased;
                // The end first: what happens after it is not the workload's.
                guard = readable(child.as_ref()) => {
                    guard?;
                    break;
                }
                guard = signals.readable() => {
                    guard?.clear_ready();
                    match &self.watched {
                        Watched::Command(workload) => pass_on(self.signals, workload),
                        _ if self.signals.next().is_some() => break,
                        _ => {}
                    }
                }
                () = until(deadline) => break,
                _ = tick.tick() => {
                    turns = turns.wrapping_add(1);
                    // What is sampled first says where to look for calls.
                    let early = counter.is_some() && turns < DRAIN_ONE_IN && turns.is_power_of_two();
                    if turns.is_multiple_of(DRAIN_ONE_IN) || early {
                        more = drain.turn(events.get_mut(), self.sink);
                        self.show_ledger(drain.since_start(monotonic_ns()));
                        self.sink.flush();
                    }
                    if let Some(counter) = &counter {
                        counter.hint(drain.take_functions());
                    }
                    if let Some(logs) = &mut logs {
                        logs.flush();
                    }
                    self.follow_cpus(&mut online, &mut gaps, start)?;
                    if self.all_ended() {
                        break;
                    }
                }
                // Looks at the descriptors before it goes on.
                () = tokio::task::yield_now(), if more => {
                    more = drain.turn(events.get_mut(), self.sink);
                }
                guard = events.readable_mut(), if !more => {
                    let mut guard = guard?;
                    more = drain.turn(guard.get_inner_mut(), self.sink);
                    guard.clear_ready();
                }
            }
        }

        let wall = start.elapsed();
        self.session.stop();
        let counted = counter.map(|counter| {
            let ended = counter.stop();
            if ended.is_none() {
                counting_failed(&mut call_status, "the counting thread failed");
            }
            ended
        });
        let counted = counted.flatten();
        let states = self.session.states()?;
        let ledger_cpus = self.session.ledger_states();
        let user = cost::own_cpu_time().saturating_sub(user_before);
        let end_ns = u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX);
        // The kernel's statistics are off again from here on.
        let kernel_stats_ns = kernel_stats.and_then(|stats| stats.end(&self.session));
        while drain.turn(events.get_mut(), self.sink) {}
        drain.finish(self.sink);
        if let Some(logs) = &mut logs {
            logs.flush();
        }

        let counters = cost::total(&states);
        let last_epochs = (0..)
            .zip(&states)
            .map(|(cpu, Plain(state))| epoch_of(cpu, end_ns, &state.counters))
            .collect();
        warnings.extend(self.prices.warnings(&counters));
        let watches_switches = self.session.watches("switch");
        let mut trailer = Trailer {
            run: RunInfo {
                wall_s: wall.as_secs_f64(),
                ..RunInfo::default()
            },
            probes: self.session.status().to_vec(),
            idle_samples: counters.idle_samples,
            losses: [losses(&states), ledger::losses(&ledger_cpus)].concat(),
            gaps: gaps.finish(end_ns),
            overhead: cost::overhead(&cost::Inputs {
                counters: &counters,
                kernel_stats_ns,
                prices: &self.prices,
                user,
                setup,
                wall,
                online_cpus: online.len(),
                hits_ns: counted.as_ref().map_or(0, counting::Ended::hits_ns),
                ledger: ledger::total(&ledger_cpus),
            }),
            warnings,
            ..Trailer::default()
        };
        if watches_switches {
            trailer.switches = Some(target_switches(&counters));
            trailer.other_switches = Some(other_switches(&counters));
        }
        for (&cpu, &count) in self.session.throttled() {
            trailer
                .losses
                .push(loss_of(cpu, "sampler_throttled", count));
        }
        let misses = self.session.recursion_misses().unwrap_or_default();
        if let count @ 1.. = misses.saturating_sub(misses_before) {
            trailer.losses.push(loss_of(0, "recursion_miss", count));
        }
        let before_detach = Instant::now();
        let maps = self.session.detach();
        let detach = before_detach.elapsed();
        // Tasks that went meanwhile are in the map no more.
        drain.late_tasks(events.get_mut());
        if drain.unreadable > 0 {
            trailer
                .losses
                .push(loss_of(0, "unreadable_record", drain.unreadable));
        }
        if let Some(maps) = &maps.ledger {
            let since_start = |time_ns| drain.since_start(time_ns);
            trailer.ledger = Some(ledger::gather(
                maps,
                &ledger_cpus,
                since_start,
                self.kallsyms,
            ));
        }
        let in_slots = maps.slots.iter().flatten();
        let in_slots = in_slots.map(|Plain(slot)| (slot.pid, slot.entry));
        let in_table = maps.tasks.iter().flatten();
        let in_table = in_table.map(|(pid, Plain(entry))| (pid, entry));
        for (pid, entry) in in_slots.chain(in_table) {
            if entry.voluntary + entry.preempted > 0 {
                drain.tasks.add(pid, live_comm(pid).as_deref(), &entry);
            }
        }
        trailer.task_switches = drain.tasks.finish();
        if let Some(counted) = counted {
            match counted.result(self.kallsyms) {
                Ok(mut counting) => {
                    counting.window_samples = counters.window_samples;
                    trailer.counting = Some(counting);
                }
                Err(error) => counting_failed(&mut call_status, &format!("{error:#}")),
            }
        }
        if let Some(status) = call_status {
            counting::put_status(&mut trailer.probes, status);
        }
        drop(events);
        let ended = match self.watched {
            Watched::Command(mut workload) => {
                // With `--duration` it may still be at work.
                while let Some(child) = &child
                    && !workload.has_ended()
                {
                    tokio::select! {
                        guard = child.readable() => drop(guard?),
                        guard = signals.readable() => {
                            guard?.clear_ready();
                            pass_on(self.signals, &workload);
                        }
                    }
                }
                match workload.wait() {
                    Ok(exit) => {
                        trailer.run.exit_code = Some(exit.status);
                        Ended::Exited(exit)
                    }
                    Err(refused) => Ended::CannotStart(refused),
                }
            }
            _ => Ended::Stopped,
        };
        if let (Some(before), Ok(after)) = (stats, ProcStat::load(Path::new("/"))) {
            trailer.machine.steal = after.steal_since(&before);
        }
        Ok(Outcome {
            ended,
            trailer,
            started_ns,
            last_epochs,
            detach,
        })
    }
}

impl Run<'_> {
    /// Gives a sink that shows the run what its ledger holds so far.
    fn show_ledger(&mut self, time_ns: u64) {
        if self.sink.shows_ledger()
            && let Some(maps) = self.session.ledger_maps()
        {
            let so_far = ledger::so_far(maps, &self.session.ledger_states());
            self.sink.ledger(time_ns, so_far, self.session.status());
        }
    }

    /// Follows CPUs that went or came.
    fn follow_cpus(
        &mut self,
        online: &mut BTreeSet<u32>,
        gaps: &mut Gaps,
        start: Instant,
    ) -> anyhow::Result<()> {
        let Some(now) = online_cpus().filter(|now| now != online) else {
            return Ok(());
        };
        if self.all_cpus {
            self.session.want_cpus(&newcomers(online, &now))?;
        }
        let (gone, back) = self.session.follow_cpus(&now, &perf::Kernel);
        let now_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        gaps.note(&gone, &back, now_ns);
        *online = now;
        Ok(())
    }

    /// Whether the last watched process has ended.
    fn all_ended(&self) -> bool {
        match &self.watched {
            Watched::Processes(pidfds) => pidfds.iter().all(has_ended),
            _ => false,
        }
    }
}

/// The kernel's BPF statistics, on for everyone's programs while this lives.
struct KernelStats {
    _on: OwnedFd,
    before_ns: u64,
}

impl KernelStats {
    /// Switches them on. Minimum kernel 5.8.
    fn begin(session: &Session) -> anyhow::Result<Self> {
        let on = aya::sys::enable_stats(aya::sys::Stats::RunTime)?;
        let before_ns = session
            .run_time_ns()
            .context("the programs' statistics cannot be read")?;
        Ok(Self { _on: on, before_ns })
    }

    /// Switches them off: what they counted, nanoseconds.
    fn end(self, session: &Session) -> Option<u64> {
        Some(session.run_time_ns()?.saturating_sub(self.before_ns))
    }
}

/// Makes an owned descriptor something to wait for.
pub(super) fn watch<T: AsFd + std::os::fd::AsRawFd>(owner: T) -> anyhow::Result<AsyncFd<T>> {
    // SAFETY: `owner` owns its descriptor (an `OwnedFd`, or a map whose data
    // does) and moves into the result, which keeps it open.
    let watched = unsafe { AsyncFd::register_with_interest(owner, Interest::READABLE) };
    watched.map_err(|error| anyhow::anyhow!("waiting for a descriptor: {error}"))
}

/// Passes signals on to the command, but for those it has already.
pub(super) fn pass_on(signals: &Signals, workload: &Workload) {
    while let Some(signal) = signals.next() {
        if !signal.from_kernel {
            workload.signal(signal.number);
        }
    }
}

/// Waits for a descriptor, or forever when there is none.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) -> std::io::Result<()> {
    match fd {
        Some(fd) => fd.readable().await.map(drop),
        None => std::future::pending().await,
    }
}

/// Waits until a time, or forever when there is none.
async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Whether the process of a pidfd has ended.
pub(super) fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one valid structure, no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// CPUs online now; the last known set stays in force when that cannot be read.
fn online_cpus() -> Option<BTreeSet<u32>> {
    let cpus = CpuList::load(Path::new("/"), "/sys/devices/system/cpu/online").ok()?;
    Some(cpus.iter().collect())
}

/// Notes that calls were not counted after all.
fn counting_failed(status: &mut Option<ProbeStatus>, why: &str) {
    if let Some(status) = status {
        "none".clone_into(&mut status.leg);
        why.clone_into(&mut status.why_not_better);
    }
}

/// CLOCK_MONOTONIC, which the programs use, nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn loss_of(cpu: u32, reason: &str, count: u64) -> Loss {
    Loss {
        cpu,
        reason: reason.to_owned(),
        count,
    }
}

fn losses(states: &[Plain<profiler_ebpf::CpuState>]) -> Vec<Loss> {
    (0..)
        .zip(states)
        .flat_map(|(cpu, Plain(state))| {
            loss::NAMES
                .iter()
                .zip(state.counters.losses)
                .filter(|&(_, count)| count > 0)
                .map(move |(reason, count)| loss_of(cpu, reason, count))
        })
        .collect()
}

/// The name of a task that still lives.
fn live_comm(pid: u32) -> Option<Vec<u8>> {
    let mut comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    comm.pop_if(|byte| *byte == b'\n');
    Some(comm)
}
