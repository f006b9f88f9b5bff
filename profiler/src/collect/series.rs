//! Several runs of one command: their order, and what one leaves to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::run::{Ended, Outcome, monotonic_ns};
use crate::probes::ProbeStatus;
use crate::recording::{
    Epoch, Frame, FrameId, Ledger, Metric, RcuEvent, RunRecord, Sample, Sink, StackId, Symbol,
    SymbolId, Trailer,
};

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It is not measured.
    Warmup,
    /// It is timed, and nothing is attached.
    Unprofiled,
    /// It is profiled.
    Profiled,
}

/// One run to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it is for.
    pub kind: Kind,
    /// Which of a sweep's points.
    pub point: usize,
}

/// The runs to make: of each point `warmup` that are not measured, then `runs`
/// profiled ones, with `baseline` each paired with an unprofiled one. Which of a
/// pair comes first alternates, so that a machine that warms up or slows down
/// favours neither.
pub fn schedule(points: usize, runs: u32, warmup: u32, baseline: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for point in 0..points {
        let step = |kind| Step { kind, point };
        steps.extend((0..warmup).map(|_| step(Kind::Warmup)));
        for pair in 0..runs {
            match (baseline, pair % 2) {
                (false, _) => steps.push(step(Kind::Profiled)),
                (true, 0) => steps.extend([step(Kind::Unprofiled), step(Kind::Profiled)]),
                (true, _) => steps.extend([step(Kind::Profiled), step(Kind::Unprofiled)]),
            }
        }
    }
    steps
}

/// The runs made so far.
#[derive(Debug, Default)]
pub struct Series {
    origin_ns: Option<u64>,
    /// What each CPU had counted when the last profiled run ended, all runs
    /// together: a session's counters begin at nothing, a recording's only grow.
    counted: BTreeMap<u32, Epoch>,
    trailer: Option<Trailer>,
    runs: Vec<RunRecord>,
    detach: Duration,
}

impl Series {
    /// The moment that the recording's times are counted from: the start of the
    /// first run that is measured. CLOCK_MONOTONIC, nanoseconds.
    pub fn origin_ns(&mut self) -> u64 {
        *self.origin_ns.get_or_insert_with(monotonic_ns)
    }

    /// Where the next profiled run's records go.
    pub fn sink<'a>(&'a self, sink: &'a mut dyn Sink) -> Continued<'a> {
        Continued {
            sink,
            counted: &self.counted,
        }
    }

    /// Notes a run that nothing was attached to and that has just ended.
    pub fn unprofiled(
        &mut self,
        exit_code: i32,
        wall: Duration,
        metric: Option<Metric>,
        point: BTreeMap<String, String>,
    ) {
        let end_ns = monotonic_ns().saturating_sub(self.origin_ns());
        self.runs.push(RunRecord {
            profiled: false,
            start_ns: end_ns.saturating_sub(wall.as_nanos() as u64),
            end_ns,
            wall_s: wall.as_secs_f64(),
            exit_code,
            metric,
            point,
            switches: None,
        });
    }

    /// Notes a profiled run, unless its command never became one; how it ended.
    pub fn profiled(
        &mut self,
        outcome: Outcome,
        metric: Option<Metric>,
        point: BTreeMap<String, String>,
    ) -> Ended {
        if let Ended::CannotStart(_) = outcome.ended {
            return outcome.ended;
        }
        let trailer = outcome.trailer;
        let start_ns = outcome.started_ns.saturating_sub(self.origin_ns());
        let wall_ns = Duration::try_from_secs_f64(trailer.run.wall_s)
            .map_or(0, |wall| wall.as_nanos() as u64);
        self.runs.push(RunRecord {
            profiled: true,
            start_ns,
            end_ns: start_ns.saturating_add(wall_ns),
            wall_s: trailer.run.wall_s,
            exit_code: trailer.run.exit_code.unwrap_or_default(),
            metric,
            point,
            switches: trailer.switches,
        });
        for epoch in outcome.last_epochs {
            let sum = match self.counted.get(&epoch.cpu) {
                Some(before) => epoch.after(before),
                None => epoch,
            };
            self.counted.insert(sum.cpu, sum);
        }
        self.detach += outcome.detach;
        match &mut self.trailer {
            Some(before) => before.append(trailer, start_ns),
            None => self.trailer = Some(trailer.started_at(start_ns)),
        }
        outcome.ended
    }

    /// Whether any run's output had a result.
    pub fn has_metric(&self) -> bool {
        self.runs.iter().any(|run| run.metric.is_some())
    }

    /// All runs together, with each of them where there was more than one; and
    /// how long detaching took. `None` when none was profiled.
    pub fn finish(self) -> (Option<Trailer>, Duration) {
        let trailer = self.trailer.map(|mut trailer| {
            match &self.runs[..] {
                [only] if only.point.is_empty() => trailer.run.metric = only.metric.clone(),
                _ => trailer.runs = self.runs,
            }
            trailer
        });
        (trailer, self.detach)
    }
}

/// A later run's records, as those of the recording it continues.
pub struct Continued<'a> {
    sink: &'a mut dyn Sink,
    counted: &'a BTreeMap<u32, Epoch>,
}

impl Sink for Continued<'_> {
    fn intern_comm(&mut self, comm: &str) -> u32 {
        self.sink.intern_comm(comm)
    }
    fn intern_symbol(&mut self, symbol: &Symbol) -> SymbolId {
        self.sink.intern_symbol(symbol)
    }
    fn intern_frame(&mut self, frame: &Frame) -> FrameId {
        self.sink.intern_frame(frame)
    }
    fn intern_stack(&mut self, frames: &[FrameId]) -> StackId {
        self.sink.intern_stack(frames)
    }
    fn sample(&mut self, sample: &Sample) {
        self.sink.sample(sample);
    }
    fn epoch(&mut self, epoch: &Epoch) {
        match self.counted.get(&epoch.cpu) {
            None => self.sink.epoch(epoch),
            Some(before) => self.sink.epoch(&epoch.after(before)),
        }
    }
    fn rcu(&mut self, event: &RcuEvent) {
        self.sink.rcu(event);
    }
    fn shows_ledger(&self) -> bool {
        self.sink.shows_ledger()
    }
    fn ledger(&mut self, time_ns: u64, so_far: Ledger, probes: &[ProbeStatus]) {
        self.sink.ledger(time_ns, so_far, probes);
    }
    fn flush(&mut self) {
        self.sink.flush();
    }
    fn stopped(&self) -> Option<&'static str> {
        self.sink.stopped()
    }
    fn lost(&self) -> u64 {
        self.sink.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{Header, MemorySink, SwitchCounts};

    fn letters(steps: &[Step]) -> String {
        steps
            .iter()
            .map(|step| match step.kind {
                Kind::Warmup => 'w',
                Kind::Unprofiled => 'u',
                Kind::Profiled => 'p',
            })
            .collect()
    }

    #[test]
    fn pairs_alternate() {
        assert_eq!(letters(&schedule(1, 4, 2, true)), "wwuppuuppu");
        assert_eq!(letters(&schedule(1, 3, 0, false)), "ppp");
        assert_eq!(letters(&schedule(2, 1, 1, true)), "wupwup");
        assert_eq!(schedule(2, 1, 0, false)[1].point, 1);
        assert_eq!(schedule(0, 5, 5, true), []);
    }

    fn outcome(started_ns: u64, cpu: u32, voluntary: u64) -> Outcome {
        let mut trailer = Trailer::default();
        trailer.run.wall_s = 1.5;
        trailer.run.exit_code = Some(0);
        Outcome {
            ended: Ended::Stopped,
            trailer,
            started_ns,
            last_epochs: vec![epoch(cpu, voluntary)],
            detach: Duration::from_millis(1),
        }
    }

    fn epoch(cpu: u32, voluntary: u64) -> Epoch {
        Epoch {
            cpu,
            switches: SwitchCounts {
                voluntary,
                preempted: 0,
            },
            losses: [("ring_full".to_owned(), voluntary)].into(),
            ..Epoch::default()
        }
    }

    #[test]
    fn a_recording_s_counters_grow_over_its_runs() {
        let mut series = Series::default();
        let origin = series.origin_ns();
        let mut sink = MemorySink::new(&Header::default(), 1 << 20);
        series.sink(&mut sink).epoch(&epoch(0, 3));
        series.profiled(outcome(origin, 0, 5), None, BTreeMap::new());
        series.sink(&mut sink).epoch(&epoch(0, 2));
        series.sink(&mut sink).epoch(&epoch(1, 9));
        series.profiled(outcome(origin + 2_000_000_000, 0, 4), None, BTreeMap::new());
        series.sink(&mut sink).epoch(&epoch(0, 1));
        let (trailer, detach) = series.finish();
        let trailer = trailer.unwrap();
        assert_eq!(detach, Duration::from_millis(2));
        let spans: Vec<(u64, u64)> = trailer
            .runs
            .iter()
            .map(|run| (run.start_ns, run.end_ns))
            .collect();
        assert_eq!(spans, [(0, 1_500_000_000), (2_000_000_000, 3_500_000_000)]);
        let recording = sink.finish(&trailer);
        let seen: Vec<(u32, u64, u64)> = recording
            .epochs
            .iter()
            .map(|epoch| {
                (
                    epoch.cpu,
                    epoch.switches.voluntary,
                    epoch.losses["ring_full"],
                )
            })
            .collect();
        assert_eq!(seen, [(0, 3, 3), (0, 7, 7), (1, 9, 9), (0, 10, 10)]);
    }

    #[test]
    fn one_run_is_not_a_series() {
        let mut series = Series::default();
        let origin = series.origin_ns();
        series.profiled(outcome(origin, 0, 5), None, BTreeMap::new());
        let trailer = series.finish().0.unwrap();
        assert_eq!(trailer.runs, []);
        assert_eq!(trailer.run.wall_s, 1.5);
    }
}
