//! The sampler on trial: what calibration asks of it before a run.

use std::os::fd::AsFd as _;
use std::time::Instant;

use anyhow::Context as _;
use aya::maps::PerCpuValues;
use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _};
use profiler_ebpf::{CLOCK_READINGS, CpuState, RecordHeader, kind, watch};
use zerocopy::FromBytes as _;

use super::object::Plain;
use super::perf::{Opener, Sampler};
use super::session::{Session, sampler_program};

/// What the sampler did in one burst.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Burst {
    /// Its hits.
    pub hits: u64,
    /// Nanoseconds in the program, by its own clock readings.
    pub program_ns: u64,
    /// When each record was made, CLOCK_MONOTONIC nanoseconds.
    pub times: Vec<u64>,
}

impl Session {
    /// Runs the sampler's program on `cpu` in some bursts, but begins none after
    /// a time, from an event of its own with `hz` samples a second, while `spin`
    /// is at work. The caller is on that CPU. Before the run only: counters and
    /// records are wiped.
    ///
    /// # Errors
    ///
    /// When the event cannot be had, or a map not be read or wiped.
    pub fn try_sampler<T>(
        &mut self,
        cpu: u32,
        hz: u64,
        opener: &dyn Opener,
        (bursts, until): (usize, Instant),
        mut spin: impl FnMut() -> T,
    ) -> anyhow::Result<Vec<(Burst, T)>> {
        let fd = opener.open(self.event(), cpu, hz)?;
        let sampler = Sampler::attach(fd, sampler_program(&mut self.ebpf)?.fd()?.as_fd())?;
        self.wipe(Some(cpu))?;
        let result = (0..bursts)
            .take_while(|_| Instant::now() < until)
            .map(|_| self.burst(cpu, &sampler, &mut spin))
            .collect();
        drop(sampler);
        self.wipe(None)?;
        self.drop_records();
        result
    }

    fn burst<T>(
        &mut self,
        cpu: u32,
        sampler: &Sampler,
        spin: &mut impl FnMut() -> T,
    ) -> anyhow::Result<(Burst, T)> {
        let before = self.state(cpu)?.counters;
        sampler.enable()?;
        let seen = spin();
        sampler.disable()?;
        let after = self.state(cpu)?.counters;
        let burst = Burst {
            hits: after.sampler_hits - before.sampler_hits,
            program_ns: after.sampler_ns - before.sampler_ns,
            times: self.drop_records(),
        };
        Ok((burst, seen))
    }

    fn state(&self, cpu: u32) -> anyhow::Result<CpuState> {
        let states = self.states()?;
        let Plain(state) = states
            .get(cpu as usize)
            .with_context(|| format!("map CPUS has no CPU {cpu}"))?;
        Ok(*state)
    }

    /// Zeroes all counters; afterwards only `cpu` is sampled and no CPU's
    /// switches are counted.
    fn wipe(&mut self, cpu: Option<u32>) -> anyhow::Result<()> {
        let mut states = vec![Plain(CpuState::default()); self.states()?.len()];
        if let Some(Plain(state)) = cpu.and_then(|cpu| states.get_mut(cpu as usize)) {
            state.watched = watch::SAMPLES;
        }
        let values = PerCpuValues::try_from(states).context("counting CPUs")?;
        self.maps.cpus.set(0, values, 0).context("wiping map CPUS")
    }

    /// Throws away what the programs have sent; the times of the samples in it.
    fn drop_records(&mut self) -> Vec<u64> {
        let mut times = Vec::new();
        if let Some(events) = &mut self.maps.events {
            while let Some(item) = events.next() {
                if let Ok((header, _)) = RecordHeader::read_from_prefix(&item)
                    && header.kind == kind::SAMPLE
                {
                    times.push(header.time_ns);
                }
            }
        }
        times
    }

    /// What one clock reading costs a program, nanoseconds: the least of a few
    /// trials. Minimum kernel 5.10.
    ///
    /// # Errors
    ///
    /// When the kernel cannot run raw tracepoint programs on request.
    pub fn clock_ns(&mut self) -> anyhow::Result<f64> {
        const TRIALS: usize = 16;
        let program: &mut RawTracePoint = self
            .ebpf
            .program_mut("clock")
            .context("the BPF object has no program clock")?
            .try_into()?;
        program.load()?;
        let mut least = u32::MAX;
        for _ in 0..TRIALS {
            let result = program.test_run(RawTracePointRunOptions::new())?;
            least = least.min(result.return_value);
        }
        program.unload()?;
        Ok(f64::from(least) / f64::from(CLOCK_READINGS))
    }
}
