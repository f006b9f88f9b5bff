//! From the ledger's maps and records to the recording.

use std::collections::{BTreeMap, HashMap};

use profiler_ebpf::COMM_LEN;
use profiler_ebpf::ledger::{
    self, LEDGER_FRAMES, LatencyRecord, LedgerCpu, PreemptionCounts, PreemptionKey, TimerCounts,
    TimerKey, cause as why,
};

use super::drain::comm_text;
use crate::kernel::{Kallsyms, causes};
use crate::probes::{LedgerMaps, Plain};
use crate::recording::{
    Histogram, Latency, LatencyGroup, Ledger, Loss, Preemption, Ticks, TimerWaits,
};

/// Long latencies kept.
const WORST: usize = 16;
/// Preemptions and waits kept apart; what is beyond is added up under
/// [`OTHERS`].
const KEPT: usize = 512;
/// What is beyond is added up under.
const OTHERS: &str = "[others]";
/// Causes of latencies by their index in the programs.
const CAUSES: [(u32, &str); 3] = [
    (why::BUSY, "busy"),
    (why::IDLE, "idle"),
    (why::LAZY, "lazy"),
];

/// Frames of a kernel stack as text, outermost first; the tracer's own, and
/// `skip` with everything before it, left out.
pub(super) fn stack_text(kallsyms: &Kallsyms, frames: &[u64], skip: &str) -> String {
    let names = names(kallsyms, frames);
    let from = names
        .iter()
        .position(|name| name == skip)
        .map_or(0, |position| position + 1);
    let mut shown: Vec<&str> = names[from..].iter().map(String::as_str).collect();
    shown.reverse();
    shown.join(";")
}

fn names(kallsyms: &Kallsyms, frames: &[u64]) -> Vec<String> {
    frames
        .iter()
        .take_while(|address| **address != 0)
        .map(|&address| match kallsyms.lookup(address) {
            Some(symbol) => symbol.base_name().to_owned(),
            None => "[unknown]".to_owned(),
        })
        .collect()
}

/// The longest latencies of a run, longest first. What is broken is left out.
fn longest(
    records: impl Iterator<Item = LatencyRecord>,
    kallsyms: &Kallsyms,
    since_start: impl Fn(u64) -> u64,
) -> Vec<Latency> {
    let mut latencies: Vec<Latency> = records
        .filter(|record| record.wait_ns > 0)
        .filter_map(|record| {
            let frames = record.frames.get(..record.stack_bytes as usize / 8)?;
            let cause = CAUSES.iter().find(|(index, _)| *index == record.cause)?.1;
            Some(Latency {
                wait_ns: record.wait_ns,
                time_ns: since_start(record.header.time_ns),
                cpu: record.header.cpu,
                comm: comm_text(&record.comm),
                pid: record.pid,
                cause: cause.to_owned(),
                culprit: comm_text(&record.culprit),
                culprit_pid: record.culprit_pid,
                stack: stack_text(kallsyms, frames, "__schedule"),
            })
        })
        .collect();
    latencies.sort_by_key(|latency| std::cmp::Reverse(latency.wait_ns));
    latencies.truncate(WORST);
    latencies
}

/// The sum of all CPUs' counters.
pub(super) fn total(cpus: &[Plain<LedgerCpu>]) -> LedgerCpu {
    let mut sum = LedgerCpu::default();
    for Plain(cpu) in cpus {
        for (sum, value) in [
            (&mut sum.hits, cpu.hits),
            (&mut sum.timed_hits, cpu.timed_hits),
            (&mut sum.timed_ns, cpu.timed_ns),
            (&mut sum.wakeups, cpu.wakeups),
            (&mut sum.woken_running, cpu.woken_running),
            (&mut sum.clock_backwards, cpu.clock_backwards),
            (&mut sum.ended_waiting, cpu.ended_waiting),
            (&mut sum.exits, cpu.exits),
            (&mut sum.busy_ticks, cpu.busy_ticks),
            (&mut sum.busy_tick_ns, cpu.busy_tick_ns),
            (&mut sum.idle_ticks, cpu.idle_ticks),
            (&mut sum.idle_tick_ns, cpu.idle_tick_ns),
        ] {
            *sum += value;
        }
    }
    sum
}

/// What is missing, by CPU and reason.
pub(super) fn losses(cpus: &[Plain<LedgerCpu>]) -> Vec<Loss> {
    (0..)
        .zip(cpus)
        .flat_map(|(cpu, Plain(state))| {
            ledger::loss::NAMES
                .iter()
                .zip(state.losses)
                .filter(|(_, count)| *count > 0)
                .map(move |(reason, count)| Loss {
                    cpu,
                    reason: (*reason).to_owned(),
                    count,
                })
        })
        .collect()
}

/// Wake-up latencies so far, of a run that goes on: the rest of the ledger is
/// read when it is over. What cannot be read is missing.
pub(super) fn so_far(maps: &LedgerMaps, cpus: &[Plain<LedgerCpu>]) -> Ledger {
    let sum = total(cpus);
    let (groups, latency) = latencies(maps);
    Ledger {
        wakeups: sum.wakeups,
        woken_running: sum.woken_running,
        clock_backwards: sum.clock_backwards,
        ended_waiting: sum.ended_waiting,
        exits: sum.exits,
        latency,
        groups,
        ..Ledger::default()
    }
}

/// The sum of the CPUs' histograms.
fn all_cpus(values: &[Plain<ledger::Histogram>]) -> Histogram {
    let mut histogram = Histogram::default();
    for Plain(value) in values {
        histogram.merge(&Histogram::from(value));
    }
    histogram
}

fn of_cause(maps: &LedgerMaps, index: u32) -> Histogram {
    let values = maps.causes.get(&index, 0).ok();
    values.map(|values| all_cpus(&values)).unwrap_or_default()
}

/// Latencies by task name, and by cause.
fn latencies(maps: &LedgerMaps) -> (Vec<LatencyGroup>, BTreeMap<String, Histogram>) {
    let of_groups = maps.groups.iter().flatten();
    let of_groups = of_groups.map(|(key, values)| (key, all_cpus(&values)));
    let (groups, mut latency) = by_group(of_groups);
    for (index, name) in CAUSES {
        let rest = of_cause(maps, index);
        if rest.count > 0 {
            latency.entry(name.to_owned()).or_default().merge(&rest);
        }
    }
    (groups, latency)
}

/// Reads the maps of a run that is over. What cannot be read is missing.
pub(super) fn gather(
    maps: &LedgerMaps,
    cpus: &[Plain<LedgerCpu>],
    since_start: impl Fn(u64) -> u64,
    kallsyms: &Kallsyms,
) -> Ledger {
    let sum = total(cpus);
    let mut ledger = so_far(maps, cpus);
    ledger
        .groups
        .sort_by(|a, b| (b.latency.count.cmp(&a.latency.count)).then_with(|| a.comm.cmp(&b.comm)));
    let worst = (0..2 * ledger::WORST_SLOTS).filter_map(|slot| maps.worst.get(&slot, 0).ok());
    let worst = worst.flat_map(|values| {
        values
            .iter()
            .map(|Plain(record)| *record)
            .collect::<Vec<_>>()
    });
    let stacks: HashMap<u64, [u64; LEDGER_FRAMES]> = maps.stacks.iter().flatten().collect();
    let preemptions = maps.preemptions.iter().flatten();
    let timers = maps.timers.iter().flatten();
    Ledger {
        worst: longest(worst, kallsyms, since_start),
        handoffs: of_cause(maps, why::HANDOFF),
        preemptions: by_pair(
            preemptions.map(|(Plain(key), Plain(counts))| (key, counts)),
            &stacks,
            kallsyms,
        ),
        timers: by_site(
            timers.map(|(Plain(key), Plain(counts))| (key, counts)),
            &stacks,
            kallsyms,
        ),
        ticks: Ticks {
            busy: sum.busy_ticks,
            busy_ns: sum.busy_tick_ns,
            idle: sum.idle_ticks,
            idle_ns: sum.idle_tick_ns,
        },
        program_hits: sum.hits,
        ..ledger
    }
}

/// Latencies by task name, and by cause.
fn by_group(
    entries: impl Iterator<Item = ([u8; COMM_LEN], Histogram)>,
) -> (Vec<LatencyGroup>, BTreeMap<String, Histogram>) {
    let mut names: BTreeMap<String, Histogram> = BTreeMap::new();
    let mut latency: BTreeMap<String, Histogram> = BTreeMap::new();
    for (key, histogram) in entries {
        let cause = u32::from(key[ledger::GROUP_CAUSE]);
        let cause = CAUSES.iter().find(|(index, _)| *index == cause);
        let comm = comm_text(&key[..ledger::GROUP_CAUSE]);
        names.entry(comm).or_default().merge(&histogram);
        if let Some((_, name)) = cause {
            latency
                .entry((*name).to_owned())
                .or_default()
                .merge(&histogram);
        }
    }
    let groups = names
        .into_iter()
        .map(|(comm, latency)| LatencyGroup { comm, latency })
        .collect();
    (groups, latency)
}

/// Preemptions by pair and cause: stacks that mean the same are added up.
fn by_pair(
    entries: impl Iterator<Item = (PreemptionKey, PreemptionCounts)>,
    stacks: &HashMap<u64, [u64; LEDGER_FRAMES]>,
    kallsyms: &Kallsyms,
) -> Vec<Preemption> {
    let mut known: HashMap<u64, &'static str> = HashMap::new();
    let mut sums: BTreeMap<(String, String, bool, &'static str), PreemptionCounts> =
        BTreeMap::new();
    for (key, counts) in entries {
        let cause = known.entry(key.stack).or_insert_with(|| {
            let frames = stacks.get(&key.stack).map_or(&[][..], |frames| frames);
            let names = names(kallsyms, frames);
            causes::cause(names.iter().map(String::as_str))
        });
        let by = if key.by_idle == 0 {
            comm_text(&key.by)
        } else {
            "[idle]".to_owned()
        };
        let kernel_thread = key.by_kernel_thread != 0;
        let sum = sums
            .entry((comm_text(&key.of), by, kernel_thread, cause))
            .or_default();
        sum.count += counts.count;
        sum.waits += counts.waits;
        sum.wait_ns += counts.wait_ns;
    }
    let mut pairs: Vec<Preemption> = sums
        .into_iter()
        .map(|((of, by, by_kernel_thread, cause), counts)| Preemption {
            of,
            by,
            by_kernel_thread,
            cause: cause.to_owned(),
            count: counts.count,
            waits: counts.waits,
            wait_ns: counts.wait_ns,
        })
        .collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse(pair.count));
    // The sums stay whole.
    let mut rest: BTreeMap<(bool, String), Preemption> = BTreeMap::new();
    for pair in pairs.drain(KEPT.min(pairs.len())..) {
        let sum = rest
            .entry((pair.by_kernel_thread, pair.cause.clone()))
            .or_insert_with(|| Preemption {
                of: OTHERS.to_owned(),
                by: OTHERS.to_owned(),
                by_kernel_thread: pair.by_kernel_thread,
                cause: pair.cause.clone(),
                ..Preemption::default()
            });
        sum.count += pair.count;
        sum.waits += pair.waits;
        sum.wait_ns += pair.wait_ns;
    }
    pairs.extend(rest.into_values());
    pairs
}

/// Waits by task, call site and length.
fn by_site(
    entries: impl Iterator<Item = (TimerKey, TimerCounts)>,
    stacks: &HashMap<u64, [u64; LEDGER_FRAMES]>,
    kallsyms: &Kallsyms,
) -> Vec<TimerWaits> {
    let mut sums: BTreeMap<(String, String, u32), TimerCounts> = BTreeMap::new();
    for (key, counts) in entries {
        let frames = stacks.get(&key.stack).map_or(&[][..], |frames| frames);
        let stack = stack_text(kallsyms, frames, "schedule_timeout");
        let sum = sums
            .entry((comm_text(&key.comm), stack, key.jiffies))
            .or_default();
        sum.count += counts.count;
        sum.elapsed_ns += counts.elapsed_ns;
    }
    let mut waits: Vec<TimerWaits> = sums
        .into_iter()
        .map(|((comm, stack, jiffies), counts)| TimerWaits {
            comm,
            stack,
            jiffies,
            count: counts.count,
            elapsed_ns: counts.elapsed_ns,
        })
        .collect();
    waits.sort_by_key(|waits| std::cmp::Reverse(waits.elapsed_ns));
    let mut rest: BTreeMap<u32, TimerWaits> = BTreeMap::new();
    for site in waits.drain(KEPT.min(waits.len())..) {
        let sum = rest.entry(site.jiffies).or_insert_with(|| TimerWaits {
            comm: OTHERS.to_owned(),
            stack: OTHERS.to_owned(),
            jiffies: site.jiffies,
            ..TimerWaits::default()
        });
        sum.count += site.count;
        sum.elapsed_ns += site.elapsed_ns;
    }
    waits.extend(rest.into_values());
    waits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> [u8; 16] {
        let mut name = [0; 16];
        name[..text.len()].copy_from_slice(text.as_bytes());
        name
    }

    #[test]
    fn pairs_beyond_the_limit_stay_in_the_sums() {
        let counts = PreemptionCounts {
            count: 2,
            waits: 1,
            wait_ns: 5,
        };
        let many = (0..3 * KEPT as u64).map(|index| {
            let key = PreemptionKey {
                of: name(&format!("t{index}")),
                by: name("by"),
                by_kernel_thread: u32::from(index % 2 == 0),
                ..PreemptionKey::default()
            };
            (key, counts)
        });
        let pairs = by_pair(many, &HashMap::new(), &Kallsyms::default());
        assert_eq!(pairs.len(), KEPT + 2);
        assert_eq!(
            pairs.iter().map(|pair| pair.count).sum::<u64>(),
            6 * KEPT as u64
        );
        assert_eq!(
            pairs.iter().map(|pair| pair.wait_ns).sum::<u64>(),
            15 * KEPT as u64
        );
        assert_eq!(pairs[KEPT].by, OTHERS);
    }

    #[test]
    fn stacks_are_read_from_the_outside_and_without_the_tracer() {
        let text = "ffffffff81000000 T outer\nffffffff81000100 T __schedule\n\
                    ffffffff81000200 t bpf_trace_run4\nffffffff81000300 T end\n";
        let kallsyms = Kallsyms::parse(text.as_bytes());
        let frames = [
            0xffff_ffff_8100_0210,
            0xffff_ffff_8100_0110,
            0xffff_ffff_8100_0010,
            0,
            7,
        ];
        assert_eq!(stack_text(&kallsyms, &frames, "__schedule"), "outer");
        assert_eq!(
            stack_text(&kallsyms, &frames[..1], "__schedule"),
            "bpf_trace_run4"
        );
        assert_eq!(stack_text(&kallsyms, &[], "__schedule"), "");
    }

    #[test]
    fn the_longest_come_first_and_empty_slots_not_at_all() {
        let record = |wait_ns: u64, cause: u32, stack_bytes: u32| LatencyRecord {
            header: profiler_ebpf::RecordHeader {
                kind: 0,
                cpu: 1,
                time_ns: 50,
            },
            wait_ns,
            pid: 7,
            cause,
            culprit_pid: 0,
            stack_bytes,
            comm: name("app"),
            culprit: name("swapper/1"),
            frames: [0; LEDGER_FRAMES],
        };
        let records = [
            record(10, why::BUSY, 16),
            record(0, why::BUSY, 0),
            record(30, why::IDLE, 0),
            record(40, 99, 0),
            record(50, why::IDLE, u32::MAX),
        ];
        let found = longest(records.into_iter(), &Kallsyms::default(), |time| time - 50);
        let found: Vec<(u64, &str)> = (found.iter())
            .map(|latency| (latency.wait_ns, latency.cause.as_str()))
            .collect();
        assert_eq!(found, [(30, "idle"), (10, "busy")]);
    }

    #[test]
    fn a_name_with_two_causes_is_one_group() {
        let mut times = Histogram::default();
        times.note(5);
        let key = |text: &str, cause: u32| {
            let mut key = name(text);
            key[ledger::GROUP_CAUSE] = cause as u8;
            (key, times.clone())
        };
        let long = "fifteen-letters";
        let (groups, latency) = by_group(
            [
                key("app", why::BUSY),
                key("app", why::IDLE),
                key(long, why::LAZY),
            ]
            .into_iter(),
        );
        let found: Vec<(&str, u64)> = (groups.iter())
            .map(|group| (group.comm.as_str(), group.latency.count))
            .collect();
        assert_eq!(found, [("app", 2), (long, 1)]);
        let causes: Vec<&str> = latency.keys().map(String::as_str).collect();
        assert_eq!(causes, ["busy", "idle", "lazy"]);
    }

    #[test]
    fn waits_of_one_site_are_added_up() {
        let key = TimerKey {
            comm: name("app"),
            jiffies: 1,
            ..TimerKey::default()
        };
        let other = TimerKey { stack: 9, ..key };
        let counts = TimerCounts {
            count: 3,
            elapsed_ns: 30,
        };
        let waits = by_site(
            [(key, counts), (other, counts)].into_iter(),
            &HashMap::new(),
            &Kallsyms::default(),
        );
        assert_eq!(waits.len(), 1);
        assert_eq!((waits[0].count, waits[0].elapsed_ns), (6, 60));
    }
}
