//! Counting calls of functions that nothing can be attached to, in short
//! windows, by execution breakpoints at the places that call them.

mod pace;
mod plan;
mod price;
mod result;
mod schedule;
mod spacing;
mod thread;

use std::cell::RefCell;
use std::os::fd::{AsFd as _, OwnedFd};

use profiler_ebpf::CheckSlots;

use crate::catalog::Catalog;
use crate::kernel::text::{Arch, Snapshot};
use crate::kernel::{Kallsyms, KernelFacts, KernelMemory as _, Model, Release};
use crate::probes::breakpoint::Breakpoints;
use crate::probes::{Mapped, Memory, ProbeStatus, Session, allow, read_text};
use crate::recording::{Counting, Measured};
use plan::{Plan, Target};
use result::{Cpu, Known};
pub use thread::Counter;
use thread::Settings;

/// The row of the status table.
const WANTED: &str = "check";
/// The other row that counting stands for.
const COUNTED_TOO: &str = "preempt_count";

/// Puts the row of counting in place of those that say that checks are only
/// sampled; where nothing is counted these stay, with the reason. One that says
/// that DEBUG_PREEMPT has none gives way when other options have some.
pub fn put_status(rows: &mut Vec<ProbeStatus>, status: ProbeStatus) {
    let of_checks = |row: &ProbeStatus| [WANTED, COUNTED_TOO].contains(&row.wanted.as_str());
    if status.leg != "none" {
        rows.retain(|row| !of_checks(row));
        rows.push(status);
    } else if let Some(row) = rows.iter_mut().find(|row| {
        let is_sampled = !row.absent && row.leg != "none";
        row.wanted == WANTED && (is_sampled || row.absent && !status.absent)
    }) {
        row.absent = false;
        row.why_not_better = status.why_not_better;
        row.fix = status.fix;
    }
}

/// Executed once by each read of a file: where the price of a hit is measured.
const EVERY_READ: &str = "vfs_read";

/// Everything that counting needs, before the workload starts.
pub struct Prepared {
    program: OwnedFd,
    slots: Mapped<CheckSlots>,
    plan: Plan,
    settings: Settings,
    code: Code,
}

/// What is needed of the machine to tell what a call takes.
struct Code {
    arch: Arch,
    cpu: Cpu,
    pace: (Measured, String),
}

/// What is known of the kernel, and what is wanted.
pub struct Request<'a> {
    /// Kernel facts.
    pub facts: &'a KernelFacts,
    /// Kernel symbols.
    pub symbols: &'a Kallsyms,
    /// Offset of preempt_count in `pcpu_hot` (6.2 to 6.14).
    pub preempt_count_offset: Option<u32>,
    /// CPUs that are watched.
    pub cpus: &'a [u32],
    /// The most that counting may take, as a share of one CPU's time.
    pub max_overhead: f64,
}

/// Finds what to count and where, and measures what counting costs. What it
/// comes to is also said as a row of the status table.
pub fn prepare(session: &mut Session, request: &Request<'_>) -> (Option<Prepared>, ProbeStatus) {
    let mut status = ProbeStatus {
        wanted: WANTED.to_owned(),
        leg: "none".to_owned(),
        ..ProbeStatus::default()
    };
    let targets = plan::targets(Catalog::builtin(), request.facts, request.symbols);
    if targets.is_empty() {
        status.why_not_better =
            "no option that is on has checks whose calls say what it costs".to_owned();
        status.absent = !request.symbols.hidden();
        return (None, status);
    }
    match try_prepare(session, request, targets) {
        Ok(prepared) => {
            status.leg = "breakpoint".to_owned();
            let unreachable = prepared
                .plan
                .places
                .iter()
                .filter(|p| p.out_of_reach)
                .count();
            if unreachable > 0 {
                status.why_not_better = format!(
                    "{unreachable} of {} call sites are in .noinstr.text, which takes no probe",
                    prepared.plan.places.len()
                );
            }
            (Some(prepared), status)
        }
        Err((why, fix)) => {
            status.why_not_better = why;
            status.fix = fix;
            (None, status)
        }
    }
}

/// A reason, and what would help; the latter may be empty.
type Refusal = (String, String);

fn refusal(why: impl Into<String>) -> Refusal {
    (why.into(), String::new())
}

fn try_prepare(
    session: &mut Session,
    request: &Request<'_>,
    targets: Vec<Target>,
) -> Result<Prepared, Refusal> {
    let symbols = request.symbols;
    let arch = Arch::from_machine(&request.facts.arch)
        .filter(|arch| *arch == Arch::X86)
        .ok_or_else(|| {
            let arch = &request.facts.arch;
            refusal(format!(
                "what a check costs is not read from code on {arch}"
            ))
        })?;
    let realtime = request.facts.preempt_model.active == Model::Rt;
    let release = Release::parse(&request.facts.release);
    allow::breakpoints(release, realtime).map_err(refusal)?;
    let range = symbols
        .text_range()
        .ok_or_else(|| refusal("the bounds of the kernel's text are not known"))?;
    let (program, mut slots) = session
        .counting()
        .map_err(|error| refusal(format!("breakpoint: {error:#}")))?;
    let &cpu = request
        .cpus
        .first()
        .ok_or_else(|| refusal("no CPU is watched"))?;
    let every_read = symbols
        .address(EVERY_READ)
        .ok_or_else(|| refusal(format!("{EVERY_READ} is not among the kernel's symbols")))?;
    let probe = Breakpoints::open(cpu, program.as_fd(), &[every_read]).map_err(no_breakpoint)?;

    let bytes = read_text(range.clone()).map_err(|error| refusal(format!("{error:#}")))?;
    let probe = RefCell::new(probe);
    let memory = Memory::default();
    let snapshot = Snapshot::new(&bytes, range.start, &memory);
    let plan = Plan::make(arch, &snapshot, targets, symbols, &mut |address| {
        probe.borrow_mut().aim(0, address).is_ok()
    });
    if plan.places.is_empty() {
        return Err(refusal("the kernel's text has no call of a check"));
    }
    drop(probe);

    let offsets = percpu_offsets(&memory, symbols, request.cpus);
    let preempt_count = symbols.address("__preempt_count").or_else(|| {
        let start = symbols.address("pcpu_hot")?;
        Some(start + u64::from(request.preempt_count_offset?))
    });
    let percpu = offsets.get(cpu as usize).copied();
    let one = Cpu {
        percpu,
        preempt_count: percpu
            .zip(preempt_count)
            .map(|(percpu, variable)| percpu.wrapping_add(variable)),
    };
    // As in a window; and hits by the target take another way through the program
    // than others'.
    let index = cpu as usize;
    let idle = slots.get(index).unwrap_or_default();
    slots.set(
        index,
        CheckSlots {
            preempt_count: one.preempt_count.unwrap_or(0),
            until_ns: u64::MAX,
            address: [0, 0, 0, every_read],
            ..idle
        },
    );
    let lent = session.lend_target();
    let hit_price = price::hit_price(cpu, program.as_fd(), every_read);
    session.take_back(lent);
    slots.set(index, idle);
    let hit_price = hit_price
        .map_err(|error| refusal(format!("breakpoint: its price cannot be measured: {error}")))?;
    let pace = pace::measure(session, &snapshot, symbols, &one.conditions(1, true))
        .map_err(|why| refusal(format!("the pace of the code is not known: {why}")))?;
    let preempt_counts = preempt_count.map_or_else(Vec::new, |variable| {
        let address = |percpu: &u64| percpu.wrapping_add(variable);
        offsets.iter().map(address).collect()
    });
    Ok(Prepared {
        settings: Settings {
            cpus: request.cpus.to_vec(),
            max_overhead: request.max_overhead,
            hit_price,
            preempt_counts,
            seed: fastrand::u64(..),
        },
        program,
        slots,
        plan,
        code: Code {
            arch,
            cpu: one,
            pace,
        },
    })
}

/// Why there is no breakpoint.
fn no_breakpoint(error: std::io::Error) -> Refusal {
    let (why, fix) = match error.raw_os_error() {
        Some(libc::ENOSPC) => (
            "other programs have all of them",
            "end the debugger or profiler that uses them",
        ),
        Some(libc::EINVAL) => (
            "this kernel takes none in its own text (CONFIG_KPROBES is off)",
            "a kernel with CONFIG_KPROBES",
        ),
        Some(libc::EPERM | libc::EACCES) => ("not permitted", "CAP_SYS_ADMIN: run it as root"),
        Some(libc::EOPNOTSUPP | libc::ENODEV | libc::ENOENT) => ("this machine has none", ""),
        _ => ("refused", ""),
    };
    (format!("breakpoint: {why} ({error})"), fix.to_owned())
}

/// Where the per-CPU variables of each CPU lie: `__per_cpu_offset`
/// (arch/x86/kernel/setup_percpu.c). Empty when it cannot be read.
fn percpu_offsets(memory: &Memory, symbols: &Kallsyms, cpus: &[u32]) -> Vec<u64> {
    let Some(array) = symbols.address("__per_cpu_offset") else {
        return Vec::new();
    };
    let last = cpus.iter().copied().max().unwrap_or(0);
    let read = |cpu: u32| {
        let mut bytes = [0; 8];
        let address = array + 8 * u64::from(cpu);
        memory.read(address, &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    };
    (0..=last).map_while(read).collect()
}

impl Prepared {
    /// Starts counting.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn start(self) -> std::io::Result<Running> {
        Ok(Running {
            counter: Counter::start(self.program, self.slots, self.plan, self.settings)?,
            code: self.code,
        })
    }
}

/// Counting under way.
pub struct Running {
    counter: Counter,
    code: Code,
}

/// Counting that has ended.
pub struct Ended {
    plan: Plan,
    settings: Settings,
    counted: thread::Counted,
    code: Code,
}

impl Running {
    /// Tells of kernel functions that were met in samples, by address.
    pub fn hint(&self, functions: Vec<u64>) {
        self.counter.hint(functions);
    }

    /// Ends it. `None` when the thread failed.
    pub fn stop(self) -> Option<Ended> {
        let (plan, settings, counted) = self.counter.finish()?;
        Some(Ended {
            plan,
            settings,
            counted,
            code: self.code,
        })
    }
}

impl Ended {
    /// Time that hits took, nanoseconds.
    pub fn hits_ns(&self) -> u64 {
        (self.counted.hits as f64 * self.settings.hit_price.value) as u64
    }

    /// What it came to.
    ///
    /// # Errors
    ///
    /// When the kernel's text can no longer be read.
    pub fn result(self, symbols: &Kallsyms) -> anyhow::Result<Counting> {
        use anyhow::Context as _;
        let range = symbols.text_range().context("no text")?;
        let bytes = read_text(range.clone())?;
        let memory = Memory::default();
        let snapshot = Snapshot::new(&bytes, range.start, &memory);
        let known = Known {
            symbols,
            text: &snapshot,
            code: self.code,
        };
        Ok(result::result(
            &self.plan,
            &self.settings,
            &self.counted,
            &known,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(leg: &str, why: &str, absent: bool) -> ProbeStatus {
        ProbeStatus {
            wanted: WANTED.to_owned(),
            leg: leg.to_owned(),
            why_not_better: why.to_owned(),
            absent,
            ..ProbeStatus::default()
        }
    }

    #[test]
    fn the_reason_why_nothing_is_counted_is_the_rows() {
        let put = |before: ProbeStatus, status: ProbeStatus| {
            let mut rows = vec![before];
            put_status(&mut rows, status);
            assert_eq!(rows.len(), 1);
            rows.remove(0)
        };
        let refused = || row("none", "breakpoint: refused", false);
        let sampled = put(row("sampled", "not counted", false), refused());
        assert_eq!(sampled, row("sampled", "breakpoint: refused", false));
        // Checks of other options than DEBUG_PREEMPT.
        let others = put(row("none", "DEBUG_PREEMPT is off", true), refused());
        assert_eq!(others, refused());
        let nothing = row("none", "no option has checks", true);
        let off = row("none", "DEBUG_PREEMPT is off", true);
        assert_eq!(put(off.clone(), nothing), off);
        let hidden = row("none", "kernel symbols are hidden", false);
        assert_eq!(put(hidden.clone(), refused()), hidden);
        let counted = row("breakpoint", "", false);
        assert_eq!(put(off, counted.clone()), counted);
    }
}
