//! A trace for <https://ui.perfetto.dev> and chrome://tracing, in the JSON trace
//! event format: switches and samples by CPU and epoch, samples by option, and
//! each blocking RCU call.
//!
//! Counters hold what happened within an epoch, so the values of one counter add
//! up to the run's total.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;

use super::timeline::{Timeline, epochs_by_cpu};
use crate::model::{Attribution, comm, frame_name, frames, rcu_function};
use crate::recording::Recording;
use crate::report::{command_line, escape};

/// The process that holds the counters. No task has this id.
const COUNTERS: u32 = 0;

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    ph: &'static str,
    /// Microseconds.
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u32,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<&'a str, serde_json::Value>,
}

/// Writes the events.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    out: &mut dyn Write,
) -> io::Result<()> {
    out.write_all(b"{\"displayTimeUnit\":\"ns\",\"otherData\":")?;
    let header = &recording.header;
    let other = BTreeMap::from([
        ("command", command_line(&header.command)),
        ("kernel", escape(&header.kernel.release).into_owned()),
        ("preempt", header.kernel.preempt_model.active.to_string()),
        ("tool", format!("preemptprof {}", header.tool_version)),
    ]);
    serde_json::to_writer(&mut *out, &other)?;
    out.write_all(b",\"traceEvents\":[\n")?;
    let mut events = Events { out, first: true };
    events.name_process(COUNTERS, "preemptprof counters")?;
    events.switches(recording)?;
    events.samples(recording, attribution)?;
    events.rcu(recording)?;
    out.write_all(b"\n]}\n")
}

struct Events<'o> {
    out: &'o mut dyn Write,
    first: bool,
}

impl Events<'_> {
    fn put(&mut self, event: &Event<'_>) -> io::Result<()> {
        if !self.first {
            self.out.write_all(b",\n")?;
        }
        self.first = false;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn name_process(&mut self, pid: u32, name: &str) -> io::Result<()> {
        self.put(&Event {
            name: "process_name",
            ph: "M",
            ts: 0.0,
            dur: None,
            pid,
            tid: 0,
            args: BTreeMap::from([("name", name.into())]),
        })
    }

    fn counter(&mut self, name: &str, ns: u64, values: &[(&str, u64)]) -> io::Result<()> {
        self.put(&Event {
            name,
            ph: "C",
            ts: micros(ns),
            dur: None,
            pid: COUNTERS,
            tid: 0,
            args: values
                .iter()
                .map(|&(name, value)| (name, value.into()))
                .collect(),
        })
    }

    fn switches(&mut self, recording: &Recording) -> io::Result<()> {
        for (cpu, epochs) in epochs_by_cpu(recording) {
            let name = format!("CPU {cpu} switches");
            for epoch in epochs {
                let values = [
                    ("preempted", epoch.preempted),
                    ("voluntary", epoch.voluntary),
                ];
                self.counter(&name, epoch.from_ns, &values)?;
            }
        }
        Ok(())
    }

    fn samples(&mut self, recording: &Recording, attribution: &Attribution) -> io::Result<()> {
        let timeline = Timeline::by_epoch(recording, attribution);
        let mut end = None;
        for (slot, counts) in timeline.slots() {
            let from = timeline.start(slot);
            // A counter keeps its value until the next one.
            if let Some(end) = end.filter(|end| *end < from) {
                self.counter("samples", end, &[("kernel", 0), ("user", 0)])?;
            }
            let (kernel, user) = (counts.kernel(), counts.user);
            self.counter("samples", from, &[("kernel", kernel), ("user", user)])?;
            end = Some(timeline.start(slot.saturating_add(1)));
        }
        for option in timeline.options() {
            let name = attribution.option(option);
            let mut last = 0;
            for (slot, counts) in timeline.slots() {
                let samples = counts.of(option);
                if samples != last {
                    self.counter(name, timeline.start(slot), &[("samples", samples)])?;
                }
                last = samples;
            }
        }
        Ok(())
    }

    fn rcu(&mut self, recording: &Recording) -> io::Result<()> {
        let mut named = BTreeMap::new();
        for event in recording.rcu.iter().filter(|event| event.target) {
            let task = comm(recording, event.comm);
            named.entry(event.tgid).or_insert(task);
            let stack: Vec<_> = frames(recording, event.kernel_stack)
                .iter()
                .map(|&frame| escape(frame_name(recording, frame)))
                .collect();
            self.put(&Event {
                name: rcu_function(recording, event),
                ph: "X",
                ts: micros(event.time_ns),
                dur: Some(micros(event.duration_ns)),
                pid: event.tgid,
                tid: event.pid,
                args: BTreeMap::from([
                    ("comm", escape(task).into_owned().into()),
                    ("stack", stack.join(" < ").into()),
                ]),
            })?;
        }
        for (pid, name) in named {
            self.name_process(pid, &escape(name))?;
        }
        Ok(())
    }
}

fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}
