//! For each wanted measurement, its legs in order: the first that the kernel
//! takes is used, and what was said of the better ones is kept.

use anyhow::{Context as _, anyhow};
use aya::programs::{
    BtfTracePoint, FEntry, FExit, KProbe, Program, ProgramError, RawTracePoint, TracePoint,
};
use aya::{Btf, Ebpf};
use profiler_ebpf::RCU_FUNCTIONS;

use super::ProbeStatus;
use super::allow::{self, Method};
use super::offsets::Offsets;
use super::refusal;
use crate::kernel::Release;

/// What the choice of legs depends on.
pub struct Surroundings<'a> {
    /// The kernel's line.
    pub release: Option<Release>,
    /// Offsets known of this kernel.
    pub offsets: &'a Offsets,
    /// The kernel's BTF as the loader wants it, or why there is none.
    pub btf: Result<&'a Btf, String>,
    /// Whether tracefs can be read, or why not.
    pub tracefs: Result<(), String>,
}

/// Loads a leg's programs and attaches them.
type Attach<'a> = Box<dyn FnOnce(&mut Ebpf) -> anyhow::Result<()> + 'a>;

/// One way to make a measurement.
pub(super) struct Leg<'a> {
    name: &'static str,
    attach: Attach<'a>,
}

impl<'a> Leg<'a> {
    pub(super) fn new(
        name: &'static str,
        attach: impl FnOnce(&mut Ebpf) -> anyhow::Result<()> + 'a,
    ) -> Self {
        Self {
            name,
            attach: Box::new(attach),
        }
    }
}

/// Tries `legs` in order and reports the outcome; to `refusals` goes what was
/// said of those that failed, at length.
pub(super) fn first(
    ebpf: &mut Ebpf,
    wanted: &str,
    refusals: &mut Vec<String>,
    legs: Vec<Leg<'_>>,
) -> ProbeStatus {
    let mut reasons: Vec<String> = Vec::new();
    let mut fixes: Vec<&str> = Vec::new();
    let mut used = "none";
    for leg in legs {
        match (leg.attach)(ebpf) {
            Ok(()) => {
                used = leg.name;
                break;
            }
            Err(error) => {
                reasons.push(format!("{}: {}", leg.name, refusal::brief(&error)));
                refusals.push(format!("{wanted}: {}: {}", leg.name, refusal::full(&error)));
                if let Some(fix) = refusal::fix(&error)
                    && !fixes.contains(&fix)
                {
                    fixes.push(fix);
                }
            }
        }
    }
    ProbeStatus {
        wanted: wanted.to_owned(),
        leg: used.to_owned(),
        why_not_better: reasons.join("; "),
        fix: fixes.join("; "),
        ..ProbeStatus::default()
    }
}

fn program<'e, P>(ebpf: &'e mut Ebpf, name: &str) -> anyhow::Result<&'e mut P>
where
    &'e mut P: TryFrom<&'e mut Program, Error = ProgramError>,
{
    let program = ebpf
        .program_mut(name)
        .with_context(|| format!("the BPF object has no program {name}"))?;
    Ok(<&mut P>::try_from(program)?)
}

pub(super) fn tp_btf(
    ebpf: &mut Ebpf,
    name: &str,
    tracepoint: &str,
    around: &Surroundings<'_>,
) -> anyhow::Result<()> {
    let btf = around.btf.as_ref().map_err(|why| anyhow!(why.clone()))?;
    let program: &mut BtfTracePoint = program(ebpf, name)?;
    program.load(tracepoint, btf)?;
    if let Err(error) = program.attach() {
        program.unload()?;
        return Err(error.into());
    }
    Ok(())
}

pub(super) fn raw_tp(ebpf: &mut Ebpf, name: &str, tracepoint: &str) -> anyhow::Result<()> {
    let program: &mut RawTracePoint = program(ebpf, name)?;
    program.load()?;
    if let Err(error) = program.attach(tracepoint) {
        program.unload()?;
        return Err(error.into());
    }
    Ok(())
}

fn tracepoint(
    ebpf: &mut Ebpf,
    name: &str,
    tracepoint: &str,
    around: &Surroundings<'_>,
    offsets: &[Option<u32>],
) -> anyhow::Result<()> {
    around.tracefs.clone().map_err(|why| anyhow!(why))?;
    if offsets.contains(&None) {
        return Err(anyhow!(
            "sched/{tracepoint} has no format that is understood"
        ));
    }
    let program: &mut TracePoint = program(ebpf, name)?;
    program.load()?;
    if let Err(error) = program.attach("sched", tracepoint) {
        program.unload()?;
        return Err(error.into());
    }
    Ok(())
}

/// Detaches and unloads a tracepoint's program. One that is not loaded cannot be
/// unloaded, which is as well.
pub(super) fn unload(ebpf: &mut Ebpf, name: &str) {
    let _ = match ebpf.program_mut(name) {
        Some(Program::BtfTracePoint(program)) => program.unload(),
        Some(Program::RawTracePoint(program)) => program.unload(),
        _ => Ok(()),
    };
}

pub(super) fn needs(known: bool, what: &str) -> anyhow::Result<()> {
    if known {
        Ok(())
    } else {
        Err(anyhow!("{what} is not known (no BTF)"))
    }
}

/// A tracepoint of the scheduler and what its legs need to know. Its programs are
/// `WANTED_btf`, `WANTED_raw` and `WANTED_tp`.
pub(super) struct SchedEvent<'a> {
    pub(super) wanted: &'a str,
    pub(super) tracepoint: &'a str,
    /// Whether what the raw and BTF legs read of a task is known, and its name.
    pub(super) reads: (bool, &'a str),
    /// What the last leg reads of the tracepoint's record.
    pub(super) fields: &'a [Option<u32>],
}

pub(super) fn attach_sched(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
    event: &SchedEvent<'_>,
) -> ProbeStatus {
    let SchedEvent {
        wanted,
        tracepoint: name,
        reads: (known, what),
        fields,
    } = *event;
    let legs = vec![
        Leg::new("tp_btf", |ebpf| {
            needs(known, what)?;
            tp_btf(ebpf, &format!("{wanted}_btf"), name, around)
        }),
        Leg::new("raw_tp", |ebpf| {
            needs(known, what)?;
            raw_tp(ebpf, &format!("{wanted}_raw"), name)
        }),
        Leg::new("tracepoint", |ebpf| {
            tracepoint(ebpf, &format!("{wanted}_tp"), name, around, fields)
        }),
    ];
    first(ebpf, wanted, refusals, legs)
}

/// Attaches to context switches.
pub(super) fn attach_switch(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
) -> ProbeStatus {
    let offsets = around.offsets;
    let event = SchedEvent {
        wanted: "switch",
        tracepoint: "sched_switch",
        reads: (offsets.knows_state(), "the state of a task at a switch"),
        fields: &[offsets.switch_prev_state, offsets.switch_next_pid],
    };
    attach_sched(ebpf, around, refusals, &event)
}

/// Attaches to new tasks, so that the target's descendants belong to it.
pub(super) fn attach_fork(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
) -> ProbeStatus {
    let offsets = around.offsets;
    let event = SchedEvent {
        wanted: "fork",
        tracepoint: "sched_process_fork",
        reads: (offsets.task_pid.is_some(), "task_struct.pid"),
        fields: &[offsets.fork_child],
    };
    attach_sched(ebpf, around, refusals, &event)
}

/// Attaches to tasks that are gone, so that their ids can come back.
pub(super) fn attach_free(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
) -> ProbeStatus {
    let offsets = around.offsets;
    let event = SchedEvent {
        wanted: "free",
        tracepoint: "sched_process_free",
        reads: (offsets.task_pid.is_some(), "task_struct.pid"),
        // Without the name, which has no fixed place on newer kernels, the last one
        // seen of the task does.
        fields: &[offsets.free_pid],
    };
    attach_sched(ebpf, around, refusals, &event)
}

/// Attaches to a blocking RCU call, by its index in `RCU_FUNCTIONS`. `none` in
/// the result of rcu_barrier means that the off-CPU leg is left.
pub(super) fn attach_rcu(
    ebpf: &mut Ebpf,
    around: &Surroundings<'_>,
    refusals: &mut Vec<String>,
    index: usize,
) -> ProbeStatus {
    let target = RCU_FUNCTIONS[index];
    let prefix = match index {
        0 => "rcu".to_owned(),
        index => format!("rcu{index}"),
    };
    let name = |program: &str| format!("{prefix}_{program}");
    let allowed = |method| allow::check(method, target, around.release).map_err(|why| anyhow!(why));
    first(
        ebpf,
        target,
        refusals,
        vec![
            Leg::new("fentry", |ebpf| {
                allowed(Method::Fentry)?;
                let btf = around.btf.as_ref().map_err(|why| anyhow!(why.clone()))?;
                let enter: &mut FEntry = program(ebpf, &name("enter_fentry"))?;
                enter.load(target, btf)?;
                let exit: &mut FExit = program(ebpf, &name("exit_fexit"))?;
                exit.load(target, btf)?;
                // The end first: a call that ends unseen would never leave the map.
                let attached = exit.attach().map(drop).and_then(|()| {
                    let enter: &mut FEntry = program(ebpf, &name("enter_fentry"))
                        .map_err(|_| ProgramError::NotLoaded)?;
                    enter.attach().map(drop)
                });
                if let Err(error) = attached {
                    program::<FExit>(ebpf, &name("exit_fexit"))?.unload()?;
                    program::<FEntry>(ebpf, &name("enter_fentry"))?.unload()?;
                    return Err(error.into());
                }
                Ok(())
            }),
            Leg::new("kprobe", |ebpf| {
                allowed(Method::Kprobe)?;
                let exit: &mut KProbe = program(ebpf, &name("exit_kretprobe"))?;
                exit.load()?;
                exit.attach(target, 0)?;
                let enter: &mut KProbe = program(ebpf, &name("enter_kprobe"))?;
                let attached = enter
                    .load()
                    .and_then(|()| enter.attach(target, 0).map(drop));
                if let Err(error) = attached {
                    program::<KProbe>(ebpf, &name("exit_kretprobe"))?.unload()?;
                    return Err(error.into());
                }
                Ok(())
            }),
        ],
    )
}
