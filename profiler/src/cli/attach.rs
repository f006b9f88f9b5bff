//! Attaching what a run needs.

use std::path::Path;
use std::time::Duration;

use super::args::{Count, MeasureArgs};
use crate::collect::counting;
use crate::error::hinted;
use crate::host::Host;
use crate::kernel::{CpuList, idle_texts};
use crate::probes::target::Scope;
use crate::probes::{
    IDLE_TEXTS, LedgerSettings, ProbeStatus, ProgramInfo, Request, Session, Settings, perf,
};

/// Nominal length of an epoch.
pub(super) const EPOCH: Duration = Duration::from_millis(100);

/// Room for tasks of the target that live at the same time.
const MAX_TASKS: u32 = 1 << 16;

/// Attaches what a run would.
pub(super) fn attach(
    args: &MeasureArgs,
    verbose: u8,
    host: &Host,
    scope: Scope,
    cpus: &[u32],
    before_switch: &mut dyn FnMut(),
) -> anyhow::Result<Session> {
    let around = host.surroundings();
    let request = Request {
        settings: Settings {
            scope,
            offsets: around.offsets.clone(),
            idle_texts: idle_texts(&host.facts.symbols, IDLE_TEXTS),
            rcu_texts: Default::default(),
            has_cgroups: Path::new("/proc/self/cgroup").exists(),
            user_stacks: args.user_stacks,
            max_stack: host.max_stack(),
            epoch_ns: EPOCH.as_nanos() as u64,
            ring_bytes: args
                .ring_size
                .unwrap_or_else(|| ring_bytes(cpus.len(), args.frequency, args.user_stacks)),
            max_tasks: MAX_TASKS,
            log: verbose >= 2,
            ledger: args.ledger.then(|| {
                let facts = &host.facts;
                LedgerSettings::new(&facts.kernel, &facts.symbols, around.offsets.ledger.clone())
            }),
        },
        around,
        kallsyms: &host.facts.symbols,
        cpus: cpus.to_vec(),
        hz: args.frequency,
        before_switch,
    };
    Session::attach(request, &perf::Kernel)
}

/// Gets ready to count calls.
pub(super) fn count(
    args: &MeasureArgs,
    session: &mut Session,
    host: &Host,
    cpus: &[u32],
) -> (Option<counting::Prepared>, Option<ProbeStatus>) {
    let max_overhead = match args.count {
        Count::Auto => args.max_overhead / 100.0,
        // Always at it.
        Count::Exact => f64::INFINITY,
        Count::Off => return (None, None),
    };
    let request = counting::Request {
        facts: &host.facts.kernel,
        symbols: &host.facts.symbols,
        preempt_count_offset: host.surroundings().offsets.preempt_count,
        cpus,
        max_overhead,
    };
    let (prepared, status) = counting::prepare(session, &request);
    (prepared, Some(status))
}

/// Attaches what a run with default arguments would, and detaches it: the rows
/// of the status table, and what was loaded.
///
/// # Errors
///
/// When there would be no sampler.
pub(super) fn rehearse(host: &Host) -> anyhow::Result<(Vec<ProbeStatus>, Vec<ProgramInfo>)> {
    let args = MeasureArgs::default();
    let cpus = chosen_cpus(None, host)?;
    let mut session = attach(&args, 0, host, Scope::tasks()?, &cpus, &mut || ())?;
    let mut rows = session.status().to_vec();
    if let (_, Some(status)) = count(&args, &mut session, host, &cpus) {
        counting::put_status(&mut rows, status);
    }
    Ok((rows, session.programs()))
}

/// Room for four seconds of samples of all CPUs: two drains' worth. A buffer that
/// is half full is drained at once.
fn ring_bytes(cpus: usize, hz: u64, user_stacks: bool) -> u32 {
    // A record with 40 frames; user stacks are deeper and always taken.
    let record = if user_stacks { 1024 } else { 400 };
    let bytes = cpus as u64 * hz * record * 4;
    bytes.next_power_of_two().clamp(256 << 10, 64 << 20) as u32
}

/// The CPUs to watch: those chosen, or all that are online.
pub(super) fn chosen_cpus(chosen: Option<&CpuList>, host: &Host) -> anyhow::Result<Vec<u32>> {
    let online = host.online_cpus()?;
    let Some(chosen) = chosen else {
        return Ok(online.iter().collect());
    };
    let missing = chosen.without(&online);
    if !missing.is_empty() {
        return Err(hinted(
            format!("-C {chosen}: CPU {missing} is not online"),
            [format!("online are {online}")],
        ));
    }
    if chosen.is_empty() {
        return Err(hinted(
            "-C: no CPU is chosen",
            [format!("online are {online}")],
        ));
    }
    Ok(chosen.iter().collect())
}
