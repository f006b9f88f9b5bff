//! What the ledger counted, as the trailer keeps it.

use std::collections::BTreeMap;

use profiler_ebpf::ledger::histogram;
use serde::{Deserialize, Serialize};

/// The ledger of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// Wake-ups of the target that were seen.
    pub wakeups: u64,
    /// Of these, tasks that were woken before they had left their CPU.
    pub woken_running: u64,
    /// Waits left out because they would have ended before they began.
    pub clock_backwards: u64,
    /// Tasks that ended between wake-up and running.
    pub ended_waiting: u64,
    /// Switches away from tasks that ended.
    pub exits: u64,
    /// Wake-up latencies by the cause of the wait: `busy`, `idle`, `lazy`.
    pub latency: BTreeMap<String, Histogram>,
    /// Wake-up latencies by task name.
    pub groups: Vec<LatencyGroup>,
    /// The longest ones, longest first.
    pub worst: Vec<Latency>,
    /// From a task's leaving a CPU to its return, when one other task ran in
    /// between and both blocked.
    pub handoffs: Histogram,
    /// Preemptions, most first.
    pub preemptions: Vec<Preemption>,
    /// Waits that a timer of the timer wheel ended.
    pub timers: Vec<TimerWaits>,
    /// The machine's ticks.
    pub ticks: Ticks,
    /// Runs of the ledger's own programs, the switch program left out.
    pub program_hits: u64,
}

/// Long latencies kept of several runs.
const WORST: usize = 16;

impl Ledger {
    /// Adds a later run's, which began `start_ns` after the recording did.
    pub fn append(&mut self, next: Self, start_ns: u64) {
        // Named one by one, so that a field that is added cannot be forgotten.
        let Self {
            wakeups,
            woken_running,
            clock_backwards,
            ended_waiting,
            exits,
            latency,
            groups,
            worst,
            handoffs,
            preemptions,
            timers,
            ticks,
            program_hits,
        } = next;
        for (sum, value) in [
            (&mut self.wakeups, wakeups),
            (&mut self.woken_running, woken_running),
            (&mut self.clock_backwards, clock_backwards),
            (&mut self.ended_waiting, ended_waiting),
            (&mut self.exits, exits),
            (&mut self.program_hits, program_hits),
            (&mut self.ticks.busy, ticks.busy),
            (&mut self.ticks.busy_ns, ticks.busy_ns),
            (&mut self.ticks.idle, ticks.idle),
            (&mut self.ticks.idle_ns, ticks.idle_ns),
        ] {
            *sum = sum.saturating_add(value);
        }
        for (cause, histogram) in latency {
            self.latency.entry(cause).or_default().merge(&histogram);
        }
        for group in groups {
            match self
                .groups
                .iter_mut()
                .find(|known| known.comm == group.comm)
            {
                Some(known) => known.latency.merge(&group.latency),
                None => self.groups.push(group),
            }
        }
        self.worst.extend(worst.into_iter().map(|latency| Latency {
            time_ns: latency.time_ns.saturating_add(start_ns),
            ..latency
        }));
        self.worst
            .sort_by_key(|latency| std::cmp::Reverse(latency.wait_ns));
        self.worst.truncate(WORST);
        self.handoffs.merge(&handoffs);
        for pair in preemptions {
            let known = self.preemptions.iter_mut().find(|known| {
                (&known.of, &known.by, &known.cause) == (&pair.of, &pair.by, &pair.cause)
                    && known.by_kernel_thread == pair.by_kernel_thread
            });
            match known {
                Some(known) => {
                    known.count = known.count.saturating_add(pair.count);
                    known.waits = known.waits.saturating_add(pair.waits);
                    known.wait_ns = known.wait_ns.saturating_add(pair.wait_ns);
                }
                None => self.preemptions.push(pair),
            }
        }
        for waits in timers {
            let known = self.timers.iter_mut().find(|known| {
                (&known.comm, &known.stack) == (&waits.comm, &waits.stack)
                    && known.jiffies == waits.jiffies
            });
            match known {
                Some(known) => {
                    known.count = known.count.saturating_add(waits.count);
                    known.elapsed_ns = known.elapsed_ns.saturating_add(waits.elapsed_ns);
                }
                None => self.timers.push(waits),
            }
        }
    }
}

/// Wake-up latencies of tasks of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyGroup {
    /// The name.
    pub comm: String,
    /// Their latencies.
    pub latency: Histogram,
}

/// One long wake-up latency.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From wake-up to running.
    pub wait_ns: u64,
    /// When the task ran, nanoseconds since the run's start.
    pub time_ns: u64,
    /// The CPU it ran on.
    pub cpu: u32,
    /// Its name.
    pub comm: String,
    /// Its thread id.
    pub pid: u32,
    /// `busy`, `idle` or `lazy`.
    pub cause: String,
    /// The name of the task that had the CPU until then.
    pub culprit: String,
    /// Its thread id; 0 the idle task.
    pub culprit_pid: u32,
    /// The kernel stack on which that task left the CPU, outermost first, joined
    /// by `;`.
    pub stack: String,
}

/// Preemptions of tasks of one name by tasks of another, for one cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Preemption {
    /// Name of the task that could have gone on.
    pub of: String,
    /// Name of the task that got the CPU.
    pub by: String,
    /// Whether that is a kernel thread.
    pub by_kernel_thread: bool,
    /// One of the names of [`causes`](crate::kernel::causes).
    pub cause: String,
    /// How many.
    pub count: u64,
    /// Of how many the end of the wait was seen.
    pub waits: u64,
    /// How long the tasks waited for a CPU, together.
    pub wait_ns: u64,
}

/// Waits of equal length from one call site.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimerWaits {
    /// The task's name.
    pub comm: String,
    /// The kernel stack at the start, outermost first, joined by `;`.
    pub stack: String,
    /// Jiffies from the start to the expiry that was asked for.
    pub jiffies: u32,
    /// How many.
    pub count: u64,
    /// How long they took, together, up to the timer's expiry.
    pub elapsed_ns: u64,
}

/// Ticks of the watched CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticks {
    /// While a task ran.
    pub busy: u64,
    /// Time in their handler.
    pub busy_ns: u64,
    /// On an idle CPU.
    pub idle: u64,
    /// Time in their handler.
    pub idle_ns: u64,
}

/// A distribution of times: buckets of `profiler_ebpf::ledger::histogram`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub total_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
    /// How many are in each bucket that is not empty.
    pub buckets: BTreeMap<u16, u64>,
}

impl Histogram {
    /// Adds one time.
    pub fn note(&mut self, ns: u64) {
        self.count = self.count.saturating_add(1);
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        let bucket = self
            .buckets
            .entry(histogram::bucket(ns) as u16)
            .or_default();
        *bucket = bucket.saturating_add(1);
    }

    /// Adds all of another's times.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        for (&bucket, &count) in &other.buckets {
            let sum = self.buckets.entry(bucket).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// The time that a fraction of all are not above: the middle of its bucket,
    /// within 3.2 %, and never above the longest. `None` of nothing.
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        let counted: u64 = self
            .buckets
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count));
        if counted == 0 {
            return None;
        }
        let rank = (counted as f64 * fraction.clamp(0.0, 1.0)).ceil().max(1.0) as u64;
        let mut below = 0_u64;
        for (&bucket, &count) in &self.buckets {
            below = below.saturating_add(count);
            if below >= rank {
                // A damaged recording may name a bucket that does not exist.
                let bucket = usize::from(bucket).min(histogram::BUCKETS - 1);
                return Some(histogram::middle(bucket).min(self.max_ns));
            }
        }
        Some(self.max_ns)
    }

    /// What came since `then`, which holds a part of the same times. The longest is
    /// exact when it came since, otherwise its bucket's upper bound.
    pub fn since(&self, then: &Self) -> Self {
        let buckets: BTreeMap<u16, u64> = self
            .buckets
            .iter()
            .map(|(&bucket, &count)| {
                let known = then.buckets.get(&bucket).copied().unwrap_or_default();
                (bucket, count.saturating_sub(known))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        let max_ns = match buckets.last_key_value() {
            None => 0,
            Some(_) if self.max_ns > then.max_ns => self.max_ns,
            Some((&last, _)) => {
                let next = usize::from(last) + 1;
                let bound = match next {
                    histogram::BUCKETS.. => self.max_ns,
                    next => histogram::least(next).saturating_sub(1),
                };
                bound.min(self.max_ns)
            }
        };
        Self {
            count: self.count.saturating_sub(then.count),
            total_ns: self.total_ns.saturating_sub(then.total_ns),
            max_ns,
            buckets,
        }
    }

    /// The mean; `None` of nothing.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / self.count as f64)
    }
}

impl From<&profiler_ebpf::ledger::Histogram> for Histogram {
    fn from(raw: &profiler_ebpf::ledger::Histogram) -> Self {
        Self {
            count: raw.count,
            total_ns: raw.total_ns,
            max_ns: raw.max_ns,
            buckets: (0_u16..)
                .zip(raw.buckets)
                .filter(|(_, count)| *count > 0)
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(times: &[u64]) -> Histogram {
        let mut histogram = Histogram::default();
        for &ns in times {
            histogram.note(ns);
        }
        histogram
    }

    proptest! {
        #[test]
        fn what_came_since_is_what_was_added(
            before in proptest::collection::vec(any::<u32>(), 0..30),
            after in proptest::collection::vec(any::<u32>(), 0..30),
        ) {
            let times = |times: &[u32]| of(&times.iter().map(|&ns| ns.into()).collect::<Vec<_>>());
            let (then, added) = (times(&before), times(&after));
            let mut now = then.clone();
            now.merge(&added);
            let since = now.since(&then);
            prop_assert_eq!(&since.buckets, &added.buckets);
            prop_assert_eq!((since.count, since.total_ns), (added.count, added.total_ns));
            prop_assert!(since.max_ns >= added.max_ns);
            prop_assert!(since.max_ns as f64 <= added.max_ns as f64 * 1.07 + 1.0);
        }
    }

    #[test]
    fn nothing_has_no_quantiles() {
        assert_eq!(Histogram::default().quantile(0.5), None);
        assert_eq!(Histogram::default().mean(), None);
    }

    #[test]
    fn runs_add_up() {
        let run = |by: &str, wait_ns: u64| Ledger {
            exits: 2,
            latency: BTreeMap::from([("busy".to_owned(), of(&[wait_ns]))]),
            groups: vec![LatencyGroup {
                comm: "a".to_owned(),
                latency: of(&[wait_ns]),
            }],
            worst: vec![Latency {
                wait_ns,
                time_ns: 7,
                ..Latency::default()
            }],
            preemptions: vec![Preemption {
                by: by.to_owned(),
                count: 3,
                ..Preemption::default()
            }],
            timers: vec![TimerWaits {
                jiffies: 1,
                count: 5,
                elapsed_ns: 50,
                ..TimerWaits::default()
            }],
            ..Ledger::default()
        };
        let mut sum = run("x", 10);
        sum.append(run("x", 30), 1_000);
        sum.append(run("y", 20), 2_000);
        assert_eq!(sum.exits, 6);
        assert_eq!(sum.latency["busy"].count, 3);
        assert_eq!(sum.groups.len(), 1);
        assert_eq!(sum.groups[0].latency.max_ns, 30);
        let worst: Vec<(u64, u64)> = (sum.worst.iter())
            .map(|latency| (latency.wait_ns, latency.time_ns))
            .collect();
        assert_eq!(worst, [(30, 1_007), (20, 2_007), (10, 7)]);
        let pairs: Vec<(&str, u64)> = (sum.preemptions.iter())
            .map(|pair| (pair.by.as_str(), pair.count))
            .collect();
        assert_eq!(pairs, [("x", 6), ("y", 3)]);
        assert_eq!((sum.timers.len(), sum.timers[0].count), (1, 15));
    }

    proptest! {
        #[test]
        fn merging_is_the_same_as_counting_together(
            a in proptest::collection::vec(any::<u64>(), 0..100),
            b in proptest::collection::vec(0_u64..1 << 34, 0..100),
        ) {
            let both: Vec<u64> = a.iter().chain(&b).copied().collect();
            let mut merged = of(&a);
            merged.merge(&of(&b));
            prop_assert_eq!(&merged, &of(&both));
            let mut turned = of(&b);
            turned.merge(&of(&a));
            prop_assert_eq!(merged, turned);
        }

        #[test]
        fn quantiles_are_near_those_of_the_values(
            mut times in proptest::collection::vec(0_u64..1 << 39, 1..300),
            fraction in 0.0_f64..=1.0,
        ) {
            let histogram = of(&times);
            let found = histogram.quantile(fraction).unwrap() as f64;
            times.sort_unstable();
            let rank = ((times.len() as f64 * fraction).ceil() as usize).max(1);
            let exact = times[rank - 1] as f64;
            prop_assert!((found - exact).abs() <= 0.033 * exact, "{} for {}", found, exact);
            prop_assert!(found <= histogram.max_ns as f64);
        }

        #[test]
        fn quantiles_of_damaged_histograms_do_not_panic(
            buckets in proptest::collection::btree_map(any::<u16>(), any::<u64>(), 0..20),
            count in any::<u64>(), max_ns in any::<u64>(), fraction in any::<f64>(),
        ) {
            let histogram = Histogram { count, total_ns: max_ns, max_ns, buckets };
            let _ = histogram.quantile(fraction);
        }
    }
}
