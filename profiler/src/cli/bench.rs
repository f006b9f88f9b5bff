//! `preemptprof bench`.

use std::io::{self, Write as _};

use serde::Serialize;

use super::args::{Bench, BenchArgs, Format};
use crate::recording::Metric;
use crate::report::json;
use crate::workloads::{latency, messaging, pipe, spawn, timers, veth};

/// The result of a benchmark: `preemptprof/bench/1`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    name: &'static str,
    metric: &'a Metric,
}

/// Runs a benchmark and prints its result on stdout.
pub(super) fn bench(args: &BenchArgs) -> anyhow::Result<u8> {
    // More than its metric is printed of it.
    let mut woken = None;
    let (name, metric) = match &args.name {
        Bench::Latency(args) => {
            let outcome = woken.insert(latency::run(args)?);
            ("latency", outcome.metric.clone())
        }
        Bench::Messaging(args) => ("messaging", messaging::run(args)?),
        Bench::Pipe(args) => ("pipe", pipe::run(args)?),
        Bench::Spawn(args) => ("spawn", spawn::run(args)?),
        Bench::Timers(args) => ("timers", timers::run(args)?),
        Bench::Veth(args) => ("veth", veth::run(args)?),
    };
    let mut out = io::stdout().lock();
    match args.format {
        Format::Json => {
            let document = Document {
                schema: "preemptprof/bench/1",
                name,
                metric: &metric,
            };
            writeln!(out, "{}", json::render(&document)?.trim_end())?;
        }
        Format::Text => match &args.name {
            Bench::Latency(args) => {
                if let Some(outcome) = &woken {
                    latency::print(&mut out, args, outcome)?;
                }
            }
            Bench::Messaging(args) => messaging::print(&mut out, args, &metric)?,
            Bench::Pipe(args) => pipe::print(&mut out, args, &metric)?,
            Bench::Spawn(args) => spawn::print(&mut out, args, &metric)?,
            Bench::Timers(args) => timers::print(&mut out, args, &metric)?,
            Bench::Veth(args) => veth::print(&mut out, args, &metric)?,
        },
    }
    out.flush()?;
    Ok(0)
}
