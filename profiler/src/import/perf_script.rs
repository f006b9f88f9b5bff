//! What `perf script` prints: for each sample a line with the task, the time and
//! the event, and its frames on the lines below it, innermost first.
//!
//! Names are whatever programs call themselves: a task's may hold spaces,
//! brackets and colons, a function's the whole of C++. What a line means is
//! decided by the parts that perf itself prints.

mod frame;
mod head;
mod info;

use std::collections::BTreeMap;
use std::io::BufRead;

use anyhow::Context as _;

use self::frame::Owner;
use self::head::Head;
use self::info::Info;
use super::facts::kernel_facts;
use super::lines::Lines;
use super::stacks::{Interner, MAX_DEPTH, Stacks};
use super::{Imported, Known, UNKNOWN_EVENT, evidence, header, is_timer, probes};
use crate::error::hinted;
use crate::kernel::{CpuList, MachineFacts, base_name, waits_for_work};
use crate::recording::{
    Header, Loss, RunInfo, Sample, SampleFlags, Sampling, Sink, Target, Trailer,
};

/// Events of which the names are kept when their samples are left out.
const MAX_EVENTS: usize = 64;

/// Reads the output of `perf script`, with or without `--header`, into the sink
/// that `make_sink` makes. When the import fails after that, the sink is given to
/// `discard`.
///
/// Samples of one event are taken: the one asked for, else the first that
/// measures time (`cycles`, `cpu-clock` and their kin). The idle task's time is
/// left out.
///
/// # Errors
///
/// When the input cannot be read, or no sample of such an event is in it.
pub fn import<S: Sink>(
    input: impl BufRead,
    known: &Known,
    make_sink: impl FnOnce(&Header) -> anyhow::Result<S>,
    discard: impl FnOnce(S),
) -> anyhow::Result<Imported<S>> {
    let mut reader = Reader {
        known,
        make_sink: Some(make_sink),
        open: None,
        info: Info::default(),
        stacks: Stacks::default(),
        interner: Interner::default(),
        current: None,
        left_out: BTreeMap::new(),
        strange: 0,
        lost: 0,
    };
    if let Err(error) = reader.read(input) {
        if let Some(open) = reader.open {
            discard(open.sink);
        }
        return Err(error);
    }
    reader.finish()
}

/// A recording that has begun.
struct Open<S> {
    sink: S,
    event: String,
    started_ns: u64,
    last_ns: u64,
    samples: u64,
    idle: u64,
}

/// A sample whose frames are being read.
struct Current {
    sample: Sample,
    innermost: Option<Innermost>,
    truncated: bool,
}

/// What the innermost frame says of a sample.
#[derive(Clone, Copy)]
struct Innermost {
    kernel: bool,
    idle: bool,
}

struct Reader<'k, S, M> {
    known: &'k Known,
    make_sink: Option<M>,
    open: Option<Open<S>>,
    info: Info,
    stacks: Stacks,
    interner: Interner,
    current: Option<Current>,
    left_out: BTreeMap<String, u64>,
    strange: u64,
    lost: u64,
}

impl<S: Sink, M: FnOnce(&Header) -> anyhow::Result<S>> Reader<'_, S, M> {
    fn read(&mut self, input: impl BufRead) -> anyhow::Result<()> {
        let mut lines = Lines::new(input);
        while let Some(line) = lines.next().context("cannot read the samples")? {
            self.line(line)?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        if line.trim().is_empty() {
            self.end_sample();
        } else if let Some(comment) = line.strip_prefix('#') {
            self.info.line(comment);
        } else if line.starts_with('\t') && self.current.is_some() {
            self.frame(line);
        } else if let Some(head) = Head::parse(line) {
            self.end_sample();
            self.head(&head)?;
        } else if line.starts_with([' ', '\t']) {
            // Tabs do not survive every mail and every paste. Without a sample
            // it is one of an event that is left out.
            self.frame(line);
        } else {
            self.strange += 1;
        }
        Ok(())
    }

    fn head(&mut self, head: &Head<'_>) -> anyhow::Result<()> {
        if let Some(record) = head.event.strip_prefix("PERF_RECORD_") {
            if record.starts_with("LOST") {
                let count = head.rest.rsplit(' ').next();
                let count = count.and_then(|count| count.parse().ok()).unwrap_or(1);
                self.lost = self.lost.saturating_add(count);
            }
            return Ok(());
        }
        let event = if head.event.is_empty() {
            UNKNOWN_EVENT
        } else {
            head.event
        };
        if !self.wants(event) {
            self.leave_out(event);
            return Ok(());
        }
        let open = match &mut self.open {
            Some(open) => open,
            None => {
                let open = self.begin(head, event)?;
                self.open.insert(open)
            }
        };
        open.last_ns = open.last_ns.max(head.time_ns);
        self.current = Some(Current {
            sample: Sample {
                time_ns: head.time_ns.saturating_sub(open.started_ns),
                cpu: head.cpu.unwrap_or(0),
                pid: head.tid,
                tgid: head.pid,
                comm: open.sink.intern_comm(head.comm),
                flags: SampleFlags::TARGET,
                ..Sample::default()
            },
            innermost: None,
            truncated: false,
        });
        // Without call chains the one frame is on the same line.
        if !head.rest.is_empty() {
            self.frame(head.rest);
        }
        Ok(())
    }

    fn wants(&self, event: &str) -> bool {
        match (&self.open, &self.known.event) {
            (Some(open), _) => open.event == event,
            (None, Some(asked)) => {
                // `cycles` means `cycles:P` too.
                asked == event || event.split(':').next() == Some(asked.as_str())
            }
            (None, None) => measures_time(event),
        }
    }

    fn leave_out(&mut self, event: &str) {
        if let Some(count) = self.left_out.get_mut(event) {
            *count += 1;
        } else if self.left_out.len() < MAX_EVENTS {
            self.left_out.insert(event.to_owned(), 1);
        } else {
            *self.left_out.entry("others".to_owned()).or_default() += 1;
        }
    }

    /// Makes the recording, now that the first sample is there.
    fn begin(&mut self, head: &Head<'_>, event: &str) -> anyhow::Result<Open<S>> {
        let info = &self.info;
        let mut header = header(self.known);
        header.kernel = kernel_facts(self.known, &info.release, &info.arch);
        header.machine = self.machine();
        header.command.clone_from(&info.command);
        header.target = if info.whole_machine {
            Target::Machine
        } else {
            Target::Command
        };
        let period_hz = head
            .period
            .filter(|_| is_timer(event))
            .and_then(|period| (1_000_000_000 + period / 2).checked_div(period));
        header.sampling = Sampling {
            event: event.to_owned(),
            evidence: evidence(event, &info.arch),
            hz: self.known.hz.or(info.hz).or(period_hz).unwrap_or(0),
            cpus: match info.cpus {
                0 => String::new(),
                cpus => CpuList::from_iter(0..cpus).to_string(),
            },
        };
        let make_sink = self.make_sink.take().context("a second beginning")?;
        Ok(Open {
            sink: make_sink(&header)?,
            event: event.to_owned(),
            started_ns: head.time_ns,
            last_ns: head.time_ns,
            samples: 0,
            idle: 0,
        })
    }

    fn machine(&self) -> MachineFacts {
        MachineFacts {
            cpu_model: self.info.cpu_model.clone(),
            possible_cpus: self.info.cpus,
            online_cpus: self.info.cpus,
            ..MachineFacts::default()
        }
    }

    fn frame(&mut self, line: &str) {
        let Some((printed, owner)) = frame::parse(line) else {
            // Source lines and the like.
            self.strange += 1;
            return;
        };
        let (Some(current), Some(open)) = (&mut self.current, &mut self.open) else {
            return;
        };
        let kernel = owner == Owner::Kernel;
        if current.innermost.is_none() {
            current.sample.ip = printed.addr;
            current.innermost = Some(Innermost {
                kernel,
                idle: kernel && is_idle(printed.symbol),
            });
        }
        let stack = match owner {
            Owner::Kernel => &mut self.stacks.kernel,
            Owner::Other => &mut self.stacks.user,
        };
        if stack.len() < MAX_DEPTH {
            stack.push(self.interner.frame(&mut open.sink, &printed));
        } else {
            current.truncated = true;
        }
    }

    fn end_sample(&mut self) {
        let (Some(current), Some(open)) = (self.current.take(), &mut self.open) else {
            return;
        };
        let mut sample = current.sample;
        let innermost = current.innermost;
        // The idle task has pid 0 on every CPU. What interrupts do meanwhile is work.
        if sample.pid == 0 && innermost.is_none_or(|frame| frame.idle) {
            open.idle += 1;
        } else {
            (sample.kernel_stack, sample.user_stack) = self.stacks.intern(&mut open.sink);
            if innermost.is_some_and(|frame| !frame.kernel) {
                sample.flags |= SampleFlags::USER_MODE;
            }
            if current.truncated {
                sample.flags |= SampleFlags::KERNEL_TRUNCATED;
            }
            open.sink.sample(&sample);
            open.samples += 1;
        }
        self.stacks.clear();
    }

    fn finish(mut self) -> anyhow::Result<Imported<S>> {
        self.end_sample();
        let machine = self.machine();
        let Some(open) = self.open else {
            return Err(nothing(&self.left_out, self.known, self.strange));
        };
        let mut trailer = Trailer {
            run: RunInfo {
                wall_s: open.last_ns.saturating_sub(open.started_ns) as f64 / 1e9,
                ..RunInfo::default()
            },
            probes: probes("perf script"),
            machine,
            idle_samples: open.idle,
            ..Trailer::default()
        };
        trailer.warnings.push(
            "The samples were imported: what was lost is known only as far as perf script was \
             told to say it (--show-lost-events), and each sample counts the same, whatever its \
             period."
                .to_owned(),
        );
        if self.lost > 0 {
            trailer.losses.push(Loss {
                cpu: 0,
                reason: "perf_lost".to_owned(),
                count: self.lost,
            });
        }
        Ok(Imported {
            sink: open.sink,
            trailer,
            event: open.event,
            samples: open.samples,
            left_out: self.left_out,
            strange_lines: self.strange,
        })
    }
}

fn nothing(left_out: &BTreeMap<String, u64>, known: &Known, strange: u64) -> anyhow::Error {
    let events: Vec<&str> = left_out.keys().map(String::as_str).collect();
    if !events.is_empty() {
        let message = match &known.event {
            Some(event) => format!("no sample of event {event}"),
            None => "no sample of an event that measures time".to_owned(),
        };
        let hint = format!("--event takes another; there are {}", events.join(", "));
        return hinted(message, [hint]);
    }
    let message = match strange {
        0 => "there is no sample in it".to_owned(),
        _ => "this is not what perf script prints: no line begins a sample".to_owned(),
    };
    hinted(
        message,
        [
            "perf script -F comm,pid,tid,cpu,time,period,event,ip,sym,symoff,dso gives all that is used",
        ],
    )
}

/// Whether samples of the event are spread over time, more or less.
fn measures_time(event: &str) -> bool {
    let name = event.split(':').next().unwrap_or_default();
    let name = match name.split_once('/') {
        // `cpu_core/cycles/`, `armv8_pmuv3_0/cpu_cycles/`.
        Some((_, term)) => term.trim_end_matches('/'),
        None => name,
    };
    let exact = [
        "cycles",
        "cpu-cycles",
        "cpu_cycles",
        "ref-cycles",
        "bus-cycles",
    ];
    exact.contains(&name) || is_timer(event) || event == UNKNOWN_EVENT
}

/// Functions that wait for work, or were inlined around one that does: time there is
/// nobody's.
fn is_idle(symbol: &str) -> bool {
    let loops = [
        "arch_cpu_idle",
        "cpu_idle_poll",
        "cpuidle_enter_state",
        "do_idle",
        "io_idle",
        "kvm_para_halt",
    ];
    waits_for_work(symbol) || loops.contains(&base_name(symbol))
}

#[cfg(test)]
mod tests;
