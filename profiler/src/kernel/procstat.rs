//! CPU time as `/proc/stat` counts it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::root;

/// Time of one CPU, or of all, since boot, in ticks of `USER_HZ` (100 a second).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// User mode, guests included.
    pub user: u64,
    /// User mode at a raised nice value, guests included.
    pub nice: u64,
    /// Kernel mode.
    pub system: u64,
    /// Idle.
    pub idle: u64,
    /// Idle with a task waiting for I/O.
    pub iowait: u64,
    /// Hard interrupts.
    pub irq: u64,
    /// Soft interrupts.
    pub softirq: u64,
    /// Wanted to run while the hypervisor ran something else.
    pub steal: u64,
}

impl CpuTimes {
    /// Reads the numbers behind `cpu` or `cpuN`; kernels before 2.6.11 lack some.
    fn parse(numbers: &str) -> Option<Self> {
        let mut numbers = numbers.split_ascii_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next().unwrap_or(Ok(0)).ok();
        Some(Self {
            user: next()?,
            nice: next()?,
            system: next()?,
            idle: next()?,
            iowait: next()?,
            irq: next()?,
            softirq: next()?,
            steal: next()?,
        })
    }

    fn fields(&self) -> [u64; 8] {
        [
            self.user,
            self.nice,
            self.system,
            self.idle,
            self.iowait,
            self.irq,
            self.softirq,
            self.steal,
        ]
    }
}

/// One reading of `/proc/stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcStat {
    /// All CPUs together.
    pub total: CpuTimes,
    /// The online CPUs, by number.
    pub cpus: BTreeMap<u32, CpuTimes>,
    /// Context switches since boot.
    pub context_switches: u64,
}

impl ProcStat {
    /// Reads `/proc/stat` below `root`.
    pub fn load(root: &Path) -> io::Result<Self> {
        let text = root::read_text(root, "/proc/stat")?;
        Self::parse(&text).ok_or_else(|| io::Error::other("/proc/stat has no line of all CPUs"))
    }

    /// Reads its text; lines that are damaged are left out, except that of all CPUs.
    pub fn parse(text: &str) -> Option<Self> {
        let mut stat = Self::default();
        let mut complete = false;
        for line in text.lines() {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            match name.strip_prefix("cpu") {
                Some("") => {
                    stat.total = CpuTimes::parse(rest)?;
                    complete = true;
                }
                Some(number) => {
                    if let (Ok(cpu), Some(times)) = (number.parse(), CpuTimes::parse(rest)) {
                        stat.cpus.insert(cpu, times);
                    }
                }
                None if name == "ctxt" => {
                    stat.context_switches = rest.trim().parse().unwrap_or(0);
                }
                None => {}
            }
        }
        complete.then_some(stat)
    }

    /// The fraction of the CPUs' time since `earlier` that the hypervisor stole;
    /// `None` when no tick has passed.
    pub fn steal_since(&self, earlier: &Self) -> Option<f64> {
        // Idle and I/O wait can go back a little; that is no time passing.
        let passed: u128 = self
            .total
            .fields()
            .iter()
            .zip(earlier.total.fields())
            .map(|(now, then)| u128::from(now.saturating_sub(then)))
            .sum();
        let stolen = self.total.steal.saturating_sub(earlier.total.steal);
        (passed > 0).then(|| stolen as f64 / passed as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steal_is_the_fraction_of_the_time_between_two_readings() {
        let earlier = "cpu  100 0 50 800 10 0 5 35 7 0\ncpu0 100 0 50 800 10 0 5 35 0 0\nintr 1 2\nctxt 1000\n";
        let later = "cpu  140 0 60 839 9 0 5 46 9 0\ncpu0 1 0 0 0 0 0 0 0 0 0\ncpux 1\nctxt 1500\n";
        let (earlier, later) = (
            ProcStat::parse(earlier).unwrap(),
            ProcStat::parse(later).unwrap(),
        );
        assert_eq!(later.steal_since(&earlier), Some(0.11));
        assert_eq!(later.context_switches - earlier.context_switches, 500);
        assert_eq!(earlier.cpus.keys().copied().collect::<Vec<_>>(), [0]);
        assert_eq!(earlier.steal_since(&earlier), None);
    }

    #[test]
    fn a_reading_without_the_sum_is_refused() {
        assert_eq!(ProcStat::parse(""), None);
        assert_eq!(ProcStat::parse("cpu0 1 2 3 4\n"), None);
        assert_eq!(ProcStat::parse("cpu  1 2 x 4\n"), None);
        assert_eq!(ProcStat::parse("cpu 1 2 3 4\n").unwrap().total.idle, 4);
    }

    proptest! {
        #[test]
        fn steal_is_a_fraction(a in prop::array::uniform8(any::<u64>()), b in prop::array::uniform8(any::<u64>())) {
            let line = |times: [u64; 8]| {
                let numbers: Vec<String> = times.iter().map(u64::to_string).collect();
                ProcStat::parse(&format!("cpu  {}\n", numbers.join(" "))).unwrap()
            };
            if let Some(steal) = line(a).steal_since(&line(b)) {
                prop_assert!((0.0..=1.0).contains(&steal));
            }
        }

        #[test]
        fn hostile_text_never_panics(text in "(cpu[0-9x]{0,12} ?[0-9 ]{0,60}\n|\\PC{0,20}\n){0,6}") {
            let _ = ProcStat::parse(&text);
        }
    }
}
