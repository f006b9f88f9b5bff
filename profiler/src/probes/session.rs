//! Everything that is attached, from the first program to the last detach.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{MapData, PerCpuValues, RingBuf};
use aya::programs::{PerfEvent, RawTracePoint, RawTracePointRunOptions, TestRun as _};
use profiler_ebpf::ledger::LedgerCpu;
use profiler_ebpf::{CheckSlots, CpuState, TASK_SLOTS, TaskEntry, TaskSlot, watch};

use super::ledger;
use super::legs::{self, Surroundings};
use super::logs::Logs;
use super::mapped::Mapped;
use super::object::{self, Maps, Plain, Settings};
use super::perf::{self, Event, Opener, Sampler};
use super::target::Family;
use super::{ProbeStatus, ProgramInfo, checks, privileges, rcu};
use crate::error::hinted;
use crate::kernel::Kallsyms;

/// What a session is to measure, and what is known of the kernel for it.
pub struct Request<'a> {
    /// Programs' settings; the off-CPU leg's text is filled in when it is needed.
    pub settings: Settings,
    /// What the choice of legs depends on.
    pub around: Surroundings<'a>,
    /// Kernel symbols.
    pub kallsyms: &'a Kallsyms,
    /// CPUs to watch.
    pub cpus: Vec<u32>,
    /// Samples per second and CPU.
    pub hz: u64,
    /// Called when the switch program is about to be attached.
    pub before_switch: &'a mut dyn FnMut(),
}

/// Attached programs and their maps. Dropping it detaches everything.
pub struct Session {
    samplers: BTreeMap<u32, Sampler>,
    /// CPUs that are to be watched whenever they are online.
    wanted_cpus: BTreeSet<u32>,
    hz: u64,
    event: Event,
    started: bool,
    throttled: BTreeMap<u32, u64>,
    status: Vec<ProbeStatus>,
    refusals: Vec<String>,
    pub(super) ebpf: Ebpf,
    /// Where the programs' log lines come from, with `Settings::log`; taken by
    /// the run.
    logs: Option<Logs>,
    /// The maps; `events` is taken by the drain.
    pub maps: Maps,
}

impl Session {
    /// Attaches everything but starts nothing: no CPU is watched yet.
    ///
    /// # Errors
    ///
    /// When there is no sampler. Any other measurement that cannot be had is a
    /// row of the status table.
    pub fn attach(request: Request<'_>, opener: &dyn Opener) -> anyhow::Result<Self> {
        let Request {
            mut settings,
            around,
            kallsyms,
            cpus,
            hz,
            before_switch,
        } = request;
        let mut ebpf = object::open(&settings).map_err(privileges::explain)?;

        let mut refusals = Vec::new();
        let mut rcu = rcu::attach(&mut ebpf, &around, &settings, &mut refusals);
        settings.rcu_texts = rcu::texts(&rcu, kallsyms);
        if settings.rcu_texts.iter().any(Option::is_some) {
            // The programs' globals are frozen, so they are loaded anew.
            drop(ebpf);
            ebpf = object::open(&settings).map_err(privileges::explain)?;
            rcu::attach_again(&mut rcu, &mut ebpf, &around);
        }
        // Before the switch program's price is measured, which is what it adds.
        let ledger = match &settings.ledger {
            Some(ledger) => ledger::attach(&mut ebpf, &around, ledger, &mut refusals),
            None => Vec::new(),
        };
        before_switch();
        let switch = legs::attach_switch(&mut ebpf, &around, &mut refusals);
        rcu::off_cpu_legs(&mut rcu, &settings, &switch, around.offsets);

        let mut status = Vec::new();
        if object::needs_forks(settings.scope.mode) {
            status.push(legs::attach_fork(&mut ebpf, &around, &mut refusals));
            status.push(legs::attach_free(&mut ebpf, &around, &mut refusals));
        }

        status.extend(ledger);
        status.extend(rcu.split_off(1));
        status.extend(checks::rows(kallsyms));

        let maps = Maps::take(&mut ebpf, settings.ledger.is_some())?;
        let logs = settings.log.then(|| Logs::take(&mut ebpf)).transpose()?;
        let program = load_sampler(&mut ebpf)?;
        let (event, fds, why) =
            perf::open_all(opener, &cpus, hz).map_err(|(cpu, error)| no_sampler(cpu, error))?;
        let mut samplers = BTreeMap::new();
        for (cpu, fd) in fds {
            let sampler = Sampler::attach(fd, program.as_fd())
                .with_context(|| format!("attaching the sampler on CPU {cpu}"))?;
            samplers.insert(cpu, sampler);
        }
        let sample = ProbeStatus {
            wanted: "sample".to_owned(),
            leg: event.name().to_owned(),
            fix: why
                .as_ref()
                .map(|_| "a machine, or a virtual machine, with a PMU".to_owned())
                .unwrap_or_default(),
            why_not_better: why.unwrap_or_default(),
            ..ProbeStatus::default()
        };
        status.splice(0..0, [sample, switch].into_iter().chain(rcu));

        Ok(Self {
            samplers,
            wanted_cpus: cpus.into_iter().collect(),
            hz,
            event,
            started: false,
            throttled: BTreeMap::new(),
            status,
            refusals,
            ebpf,
            logs,
            maps,
        })
    }

    /// The sampling event in use.
    pub fn event(&self) -> Event {
        self.event
    }

    /// The status table.
    pub fn status(&self) -> &[ProbeStatus] {
        &self.status
    }

    /// What the kernel said of each leg that it did not take, at length.
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// Whether a measurement got a leg.
    pub fn watches(&self, wanted: &str) -> bool {
        self.status
            .iter()
            .any(|row| row.wanted == wanted && row.leg != "none")
    }

    /// The ring buffer, once.
    ///
    /// # Errors
    ///
    /// When it was taken before.
    pub fn take_events(&mut self) -> anyhow::Result<RingBuf<MapData>> {
        self.maps
            .events
            .take()
            .context("the ring buffer was taken before")
    }

    /// The programs' log lines, once; `None` without `Settings::log`.
    pub fn take_logs(&mut self) -> Option<Logs> {
        self.logs.take()
    }

    /// Run time of all programs by the kernel's BPF statistics, nanoseconds.
    pub fn run_time_ns(&self) -> Option<u64> {
        let mut total = 0;
        for (_, program) in self.ebpf.programs() {
            // Programs that were not needed are not loaded.
            if program.fd().is_ok() {
                total += u64::try_from(program.info().ok()?.run_time().as_nanos()).ok()?;
            }
        }
        Some(total)
    }

    /// The programs that are loaded, by name.
    pub fn programs(&self) -> Vec<ProgramInfo> {
        let mut programs: Vec<ProgramInfo> = self
            .ebpf
            .programs()
            // The others were not needed, and are not loaded.
            .filter(|(_, program)| program.fd().is_ok())
            .filter_map(|(name, program)| {
                let info = program.info().ok()?;
                Some(ProgramInfo {
                    name: name.to_owned(),
                    verified_instructions: info.verified_instruction_count(),
                    jited_bytes: info.size_jitted(),
                })
            })
            .collect();
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        programs
    }

    /// Makes tasks the target: `family` by thread id, or in a PID namespace of
    /// the caller's own by process id, which the programs look up as they meet
    /// them. Returns how many there was no room for.
    pub fn add_targets(&mut self, family: &Family, namespaced: bool) -> usize {
        const NOEXIST: u64 = 1;
        let mut refused = 0;
        let mut note = |result: Result<(), aya::maps::MapError>| {
            if let Err(aya::maps::MapError::SyscallError(error)) = result
                && error.io_error.raw_os_error() != Some(libc::EEXIST)
            {
                refused += 1;
            }
        };
        if namespaced {
            for pid in &family.processes {
                note(self.maps.ns_targets.insert(pid, 0, 0));
            }
        } else {
            let entry = Plain(TaskEntry::default());
            for thread in &family.threads {
                note(self.maps.tasks.insert(thread, entry, NOEXIST));
            }
        }
        refused
    }

    /// Makes the calling thread a target, for as long as its own hits are to cost
    /// what the target's do. Returns its thread id.
    pub fn lend_target(&mut self) -> u32 {
        // SAFETY: gettid has no preconditions.
        let tid = unsafe { libc::gettid() } as u32;
        let entry = Plain(TaskEntry::default());
        // Without it the hits only cost a little more.
        let _ = self.maps.tasks.insert(tid, entry, 0);
        tid
    }

    /// Undoes [`lend_target`](Self::lend_target).
    pub fn take_back(&mut self, tid: u32) {
        let _ = self.maps.tasks.remove(&tid);
        let slot = tid & (TASK_SLOTS - 1);
        if matches!(self.maps.slots.get(&slot, 0), Ok(Plain(slot)) if slot.pid == tid) {
            let _ = self.maps.slots.set(slot, Plain(TaskSlot::default()), 0);
        }
    }

    /// Starts counting, from nothing, and sampling.
    ///
    /// # Errors
    ///
    /// When a map or a sampler cannot be written to.
    pub fn start(&mut self) -> anyhow::Result<()> {
        self.started = true;
        // Forks are followed, and their cost counted, since they are attached.
        let states = vec![Plain(CpuState::default()); self.states()?.len()];
        self.watch(states)?;
        for (cpu, sampler) in &self.samplers {
            sampler
                .enable()
                .with_context(|| format!("starting the sampler on CPU {cpu}"))?;
        }
        Ok(())
    }

    /// Tells the programs which CPUs are watched, and what was counted so far.
    fn watch(&mut self, mut states: Vec<Plain<CpuState>>) -> anyhow::Result<()> {
        for (cpu, state) in (0..).zip(&mut states) {
            state.0.watched = if self.wanted_cpus.contains(&cpu) {
                watch::SAMPLES | watch::SWITCHES
            } else {
                0
            };
        }
        let values = PerCpuValues::try_from(states).context("counting CPUs")?;
        self.maps.cpus.set(0, values, 0).context("writing map CPUS")
    }

    /// Stops sampling; the counters stand still but for switches.
    pub fn stop(&mut self) {
        for sampler in self.samplers.values() {
            // A CPU that has gone has no sampler to stop.
            let _ = sampler.disable();
        }
    }

    /// The state of every possible CPU.
    ///
    /// # Errors
    ///
    /// When the map cannot be read.
    pub fn states(&self) -> anyhow::Result<Vec<Plain<CpuState>>> {
        let values = self.maps.cpus.get(&0, 0).context("reading map CPUS")?;
        Ok(values.to_vec())
    }

    /// The ledger's state of every possible CPU; empty when there is no ledger.
    pub fn ledger_states(&self) -> Vec<Plain<LedgerCpu>> {
        let ledger = self.maps.ledger.as_ref();
        let values = ledger.and_then(|ledger| ledger.cpus.get(&0, 0).ok());
        values.map(|values| values.to_vec()).unwrap_or_default()
    }

    /// The ledger's maps; absent when there is no ledger.
    pub fn ledger_maps(&self) -> Option<&ledger::LedgerMaps> {
        self.maps.ledger.as_ref()
    }

    /// How often samplers were throttled so far, by CPU.
    pub fn throttled(&mut self) -> &BTreeMap<u32, u64> {
        for (&cpu, sampler) in &mut self.samplers {
            if let Some(count @ 1..) = sampler.throttled() {
                *self.throttled.entry(cpu).or_default() += count;
            }
        }
        &self.throttled
    }

    /// Follows CPUs that went or came: returns those that are no longer sampled,
    /// and those that are again.
    pub fn follow_cpus(
        &mut self,
        online: &BTreeSet<u32>,
        opener: &dyn Opener,
    ) -> (Vec<u32>, Vec<u32>) {
        let gone: Vec<u32> = self
            .samplers
            .keys()
            .filter(|cpu| !online.contains(cpu))
            .copied()
            .collect();
        for cpu in &gone {
            // The event is dead: it does not come back with its CPU.
            self.samplers.remove(cpu);
        }
        let missing: Vec<u32> = self
            .wanted_cpus
            .iter()
            .filter(|cpu| online.contains(cpu) && !self.samplers.contains_key(cpu))
            .copied()
            .collect();
        let back = missing
            .into_iter()
            .filter(|&cpu| self.revive(cpu, opener).is_ok())
            .collect();
        (gone, back)
    }

    fn revive(&mut self, cpu: u32, opener: &dyn Opener) -> anyhow::Result<()> {
        let fd = opener.open(self.event, cpu, self.hz)?;
        let sampler = Sampler::attach(fd, sampler_program(&mut self.ebpf)?.fd()?.as_fd())?;
        if self.started {
            sampler.enable()?;
        }
        self.samplers.insert(cpu, sampler);
        Ok(())
    }

    /// Adds CPUs that came online and that nobody has named to those wanted.
    pub fn want_cpus(&mut self, cpus: &BTreeSet<u32>) -> anyhow::Result<()> {
        if cpus.is_subset(&self.wanted_cpus) {
            return Ok(());
        }
        self.wanted_cpus.extend(cpus);
        self.watch(self.states()?)
    }

    /// Samples the kernel dropped because another program was running on the
    /// CPU, since the programs were loaded; 6.12 and later count them. `None`
    /// when the kernel does not say.
    pub fn recursion_misses(&mut self) -> Option<u64> {
        use std::os::fd::AsRawFd as _;
        let program = sampler_program(&mut self.ebpf).ok()?;
        let fd = program.fd().ok()?.as_fd().as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("recursion_misses:"))?;
        line.trim().parse().ok()
    }

    /// The program for breakpoints, loaded, and its map; once.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the program, or the map was taken before.
    pub fn counting(&mut self) -> anyhow::Result<(OwnedFd, Mapped<CheckSlots>)> {
        let program: &mut PerfEvent = self
            .ebpf
            .program_mut("check")
            .context("the BPF object has no program check")?
            .try_into()?;
        program.load()?;
        let fd = program.fd()?.as_fd().try_clone_to_owned()?;
        let cpus = self.states()?.len();
        Ok((fd, Mapped::take(&mut self.ebpf, "CHECKS", cpus)?))
    }

    /// Runs a program that times something, so often: what it says each time.
    ///
    /// # Errors
    ///
    /// When the kernel cannot run raw tracepoint programs on request.
    pub fn time(&mut self, name: &str, trials: usize) -> anyhow::Result<Vec<f64>> {
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut(name)
            .with_context(|| format!("the BPF object has no program {name}"))?
            .try_into()?;
        program.load()?;
        let mut times = Vec::with_capacity(trials);
        for _ in 0..trials {
            let result = program.test_run(RawTracePointRunOptions::new())?;
            times.push(f64::from(result.return_value));
        }
        program.unload()?;
        Ok(times)
    }

    /// The process id of the caller in the initial PID namespace. Minimum kernel
    /// 5.10.
    ///
    /// # Errors
    ///
    /// When the kernel cannot run raw tracepoint programs on request.
    pub fn own_tgid(&mut self) -> anyhow::Result<u32> {
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut("whoami")
            .context("the BPF object has no program whoami")?
            .try_into()?;
        program.load()?;
        let result = program.test_run(RawTracePointRunOptions::new())?;
        Ok(result.return_value)
    }

    /// Detaches everything and keeps the maps.
    pub fn detach(self) -> Maps {
        let Self {
            samplers,
            ebpf,
            maps,
            logs: _,
            wanted_cpus: _,
            hz: _,
            event: _,
            started: _,
            throttled: _,
            status: _,
            refusals: _,
        } = self;
        drop(samplers);
        drop(ebpf);
        maps
    }
}

pub(super) fn sampler_program(ebpf: &mut Ebpf) -> anyhow::Result<&mut PerfEvent> {
    Ok(ebpf
        .program_mut("sample")
        .context("the BPF object has no program sample")?
        .try_into()?)
}

fn load_sampler(ebpf: &mut Ebpf) -> anyhow::Result<&aya::programs::ProgramFd> {
    let program = sampler_program(ebpf)?;
    program.load().map_err(|error| {
        privileges::explain(anyhow::Error::new(error).context("loading the sampler"))
    })?;
    Ok(program.fd()?)
}

fn no_sampler(cpu: u32, error: io::Error) -> anyhow::Error {
    let hints: Vec<String> = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            let paranoid =
                std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            vec![
                "sampling every task of a CPU needs root, or CAP_PERFMON and CAP_BPF".to_owned(),
                format!("kernel.perf_event_paranoid is {}", paranoid.trim()),
            ]
        }
        Some(libc::EMFILE) => vec![
            "one file descriptor is needed for each CPU; raise the limit: ulimit -n 65536"
                .to_owned(),
        ],
        Some(libc::ENODEV) => vec![format!("CPU {cpu} is not online; see -C")],
        _ => Vec::new(),
    };
    hinted(
        format!("no sampler on CPU {cpu}: perf_event_open: {error}"),
        hints,
    )
}
