//! Recordings made one after the other as one.

use anyhow::{Result, bail};

use super::{
    Epoch, Frame, MemorySink, RcuEvent, Recording, Sample, Sink as _, SwitchCounts, Trailer,
};
use crate::error::hinted;

/// Puts recordings of the same kernel and command together, in their order. Times
/// are those of the first; counters of epochs go on from each part's last record.
///
/// # Errors
///
/// When there is none, when they are of different kernels or were sampled
/// differently, or when one refers to what it does not have.
pub fn concat(parts: Vec<Recording>) -> Result<Recording> {
    let Some(first) = parts.first() else {
        bail!("no recording to put together");
    };
    let header = first.header.clone();
    let mut sink = MemorySink::new(&header, usize::MAX);
    let mut trailer: Option<Trailer> = None;
    let mut counted: std::collections::BTreeMap<u32, Epoch> = std::collections::BTreeMap::new();
    let mut complete = true;
    for part in parts {
        let (a, b) = (&header.kernel, &part.header.kernel);
        let same = (&a.release, &a.build_id, &a.boot_parameters)
            == (&b.release, &b.build_id, &b.boot_parameters)
            && a.preempt_model.active == b.preempt_model.active
            && header.sampling == part.header.sampling
            && header.command == part.header.command;
        if !same {
            return Err(hinted(
                format!(
                    "the parts are not of one kernel and command: {} and {}",
                    a.release, b.release
                ),
                ["a sweep is resumed on the kernel it began on, with the same options"],
            ));
        }
        let by_ns = part
            .header
            .started_unix_ns
            .saturating_sub(header.started_unix_ns);
        complete &= part.complete;
        append(&mut sink, &part, by_ns, &mut counted)?;
        let mut next = part.trailer;
        for run in &mut next.runs {
            run.start_ns = run.start_ns.saturating_add(by_ns);
            run.end_ns = run.end_ns.saturating_add(by_ns);
        }
        match &mut trailer {
            Some(trailer) => trailer.append(next, by_ns),
            None => trailer = Some(next),
        }
    }
    let mut whole = sink.finish(&trailer.unwrap_or_default());
    whole.complete &= complete;
    Ok(whole)
}

/// Adds one part's tables and records.
fn append(
    sink: &mut MemorySink,
    part: &Recording,
    by_ns: u64,
    counted: &mut std::collections::BTreeMap<u32, Epoch>,
) -> Result<()> {
    fn of(table: &[u32], id: u32) -> Result<u32> {
        match table.get(id as usize) {
            Some(id) => Ok(*id),
            None => bail!("a part refers to an entry it does not have"),
        }
    }
    let comms: Vec<u32> = part
        .comms
        .iter()
        .map(|comm| sink.intern_comm(comm))
        .collect();
    let symbols: Vec<u32> = part
        .symbols
        .iter()
        .map(|symbol| sink.intern_symbol(symbol))
        .collect();
    let mut frames = Vec::with_capacity(part.frames.len());
    for frame in &part.frames {
        let symbol = of(&symbols, frame.symbol)?;
        frames.push(sink.intern_frame(&Frame { symbol, ..*frame }));
    }
    let mut stacks = Vec::with_capacity(part.stacks.len());
    for stack in &part.stacks {
        let stack: Vec<u32> = stack
            .iter()
            .map(|&frame| of(&frames, frame))
            .collect::<Result<_>>()?;
        stacks.push(sink.intern_stack(&stack));
    }
    for sample in &part.samples {
        sink.sample(&Sample {
            time_ns: sample.time_ns.saturating_add(by_ns),
            comm: of(&comms, sample.comm)?,
            kernel_stack: of(&stacks, sample.kernel_stack)?,
            user_stack: of(&stacks, sample.user_stack)?,
            ..*sample
        });
    }
    let before = counted.clone();
    for epoch in &part.epochs {
        let mut sum = match before.get(&epoch.cpu) {
            Some(before) => epoch.after(before),
            None => epoch.clone(),
        };
        sum.time_ns = epoch.time_ns.saturating_add(by_ns);
        sink.epoch(&sum);
        counted.insert(epoch.cpu, sum);
    }
    for event in &part.rcu {
        sink.rcu(&RcuEvent {
            time_ns: event.time_ns.saturating_add(by_ns),
            comm: of(&comms, event.comm)?,
            kernel_stack: of(&stacks, event.kernel_stack)?,
            ..event.clone()
        });
    }
    Ok(())
}

impl Epoch {
    /// This record, of a session that counted from nothing, as the one of a
    /// recording that had counted `before`.
    #[must_use]
    pub fn after(&self, before: &Self) -> Self {
        let plus = |a: SwitchCounts, b: SwitchCounts| SwitchCounts {
            voluntary: a.voluntary.saturating_add(b.voluntary),
            preempted: a.preempted.saturating_add(b.preempted),
        };
        // Named one by one, so that a counter that is added cannot be forgotten.
        let Self {
            cpu,
            time_ns,
            switches,
            other_switches,
            sampler_hits,
            idle_samples,
            mut losses,
        } = self.clone();
        for (reason, count) in &before.losses {
            let sum = losses.entry(reason.clone()).or_default();
            *sum = sum.saturating_add(*count);
        }
        Self {
            cpu,
            time_ns,
            switches: plus(switches, before.switches),
            other_switches: plus(other_switches, before.other_switches),
            sampler_hits: sampler_hits.saturating_add(before.sampler_hits),
            idle_samples: idle_samples.saturating_add(before.idle_samples),
            losses,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::recording::{Header, RunRecord, Symbol};

    /// A part that began at `second`, in which one function was hit so often.
    fn part(second: u64, function: &str, hits: u64, value: &str) -> Recording {
        let header = Header {
            started_unix_ns: second * 1_000_000_000,
            ..Header::default()
        };
        let mut sink = MemorySink::new(&header, 1 << 20);
        let comm = sink.intern_comm(function);
        let symbol = sink.intern_symbol(&Symbol {
            name: function.to_owned(),
            module: String::new(),
        });
        let frame = sink.intern_frame(&Frame {
            addr: 7,
            symbol,
            offset: 1,
        });
        let kernel_stack = sink.intern_stack(&[frame]);
        for hit in 0..hits {
            sink.sample(&Sample {
                time_ns: hit,
                comm,
                kernel_stack,
                ..Sample::default()
            });
        }
        sink.epoch(&Epoch {
            sampler_hits: hits,
            ..Epoch::default()
        });
        sink.rcu(&RcuEvent {
            comm,
            kernel_stack,
            ..RcuEvent::default()
        });
        let mut trailer = Trailer::default();
        trailer.run.wall_s = 1.0;
        trailer.runs = vec![RunRecord {
            profiled: true,
            end_ns: 100,
            point: BTreeMap::from([("n".to_owned(), value.to_owned())]),
            ..RunRecord::default()
        }];
        sink.finish(&trailer)
    }

    #[test]
    fn parts_become_one_recording() {
        let parts = || {
            vec![
                part(10, "a", 3, "1"),
                part(15, "b", 2, "2"),
                part(20, "a", 4, "3"),
            ]
        };
        let whole = concat(parts()).unwrap();
        assert_eq!(whole, concat(parts()).unwrap(), "the same every time");
        assert_eq!(whole.samples.len(), 9);
        let names: Vec<&str> = whole
            .samples
            .iter()
            .map(|sample| {
                let frame = whole.stacks[sample.kernel_stack as usize][0];
                let symbol = whole.frames[frame as usize].symbol;
                whole.symbols[symbol as usize].name.as_str()
            })
            .collect();
        assert_eq!(names, ["a", "a", "a", "b", "b", "a", "a", "a", "a"]);
        assert_eq!((whole.symbols.len(), whole.comms.len()), (2, 2));
        assert_eq!(whole.samples[3].time_ns, 5_000_000_000);
        let starts: Vec<u64> = whole.trailer.runs.iter().map(|run| run.start_ns).collect();
        assert_eq!(starts, [0, 5_000_000_000, 10_000_000_000]);
        let counted: Vec<u64> = whole
            .epochs
            .iter()
            .map(|epoch| epoch.sampler_hits)
            .collect();
        assert_eq!(counted, [3, 5, 9]);
        assert_eq!(whole.trailer.run.wall_s, 3.0);
        assert!(whole.complete);
        // In two steps it comes to the same.
        let mut parts = parts();
        let last = parts.pop().unwrap();
        let begun = concat(parts).unwrap();
        assert_eq!(concat(vec![begun, last]).unwrap(), whole);
    }

    #[test]
    fn parts_of_different_kernels_are_not() {
        let mut other = part(2, "b", 1, "2");
        other.header.kernel.release = "another".into();
        assert!(concat(vec![part(1, "a", 1, "1"), other]).is_err());
        assert!(concat(Vec::new()).is_err());
        let mut broken = part(2, "b", 1, "2");
        broken.samples[0].kernel_stack = 99;
        assert!(concat(vec![part(1, "a", 1, "1"), broken]).is_err());
    }
}
