//! Lists of CPUs as the kernel writes them: `0-3,6`.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;

use super::root;

/// One above the largest CPU number taken; `CONFIG_NR_CPUS` goes to 8192 on x86.
const MAX_CPUS: u32 = 65_536;

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList {
    /// In order, neither overlapping nor touching.
    ranges: Vec<RangeInclusive<u32>>,
}

/// Why a text is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuListError(String);

impl fmt::Display for CpuListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CpuListError {}

impl CpuList {
    /// Reads a list from sysfs, e.g. `/sys/devices/system/cpu/online`, where an empty
    /// file is an empty set.
    pub fn load(root: &Path, path: &str) -> std::io::Result<Self> {
        let text = root::read_text(root, path)?;
        if text.is_empty() {
            return Ok(Self::default());
        }
        text.parse().map_err(std::io::Error::other)
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// How many CPUs there are.
    pub fn len(&self) -> usize {
        self.ranges
            .iter()
            .map(|range| (range.end() - range.start()) as usize + 1)
            .sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `cpu` is one of them.
    pub fn contains(&self, cpu: u32) -> bool {
        let after = self.ranges.partition_point(|range| *range.start() <= cpu);
        after
            .checked_sub(1)
            .and_then(|index| self.ranges.get(index))
            .is_some_and(|range| range.contains(&cpu))
    }

    /// Those of `self` that are not in `other`, e.g. the wanted ones that are offline.
    pub fn without(&self, other: &Self) -> Self {
        self.iter().filter(|&cpu| !other.contains(cpu)).collect()
    }

    fn from_ranges(mut ranges: Vec<RangeInclusive<u32>>) -> Self {
        ranges.sort_unstable_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u32>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self::from_ranges(cpus.into_iter().map(|cpu| cpu..=cpu).collect())
    }
}

impl FromStr for CpuList {
    type Err = CpuListError;

    /// Reads `0-3,6`. Order and overlap do not matter; empty parts, ranges that go
    /// down and numbers from 65536 on are refused.
    fn from_str(text: &str) -> Result<Self, CpuListError> {
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            match part.parse::<u32>() {
                Ok(cpu) if digits && cpu < MAX_CPUS => Ok(cpu),
                _ => Err(CpuListError(format!(
                    "{part:?} is no CPU number (0 to {})",
                    MAX_CPUS - 1
                ))),
            }
        };
        let mut ranges = Vec::new();
        for part in text.trim().split(',') {
            let (first, last) = match part.trim().split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => {
                    let cpu = number(part.trim())?;
                    (cpu, cpu)
                }
            };
            if first > last {
                return Err(CpuListError(format!("the range {part} goes down")));
            }
            ranges.push(first..=last);
        }
        Ok(Self::from_ranges(ranges))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{first}")?,
                (first, last) => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for (text, shown, count) in [
            ("0", "0", 1),
            ("0-3,6\n", "0-3,6", 5),
            ("6, 0-1,2-3,2", "0-3,6", 5),
            ("65535", "65535", 1),
        ] {
            let list: CpuList = text.parse().unwrap();
            assert_eq!((list.to_string().as_str(), list.len()), (shown, count));
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "",
            ",",
            "0,",
            "3-1",
            "-1",
            "1-",
            "a",
            "+1",
            "65536",
            "0-4294967296",
            "0-3:1/2",
        ] {
            assert!(text.parse::<CpuList>().is_err(), "{text}");
        }
        let error = "3-1".parse::<CpuList>().unwrap_err();
        assert_eq!(error.to_string(), "the range 3-1 goes down");
    }

    #[test]
    fn an_empty_file_is_an_empty_set() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("isolated"), "\n").unwrap();
        assert!(CpuList::load(dir.path(), "/isolated").unwrap().is_empty());
        assert!(CpuList::load(dir.path(), "/missing").is_err());
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_its_numbers(cpus in prop::collection::btree_set(0u32..200, 1..50)) {
            let list: CpuList = cpus.iter().copied().collect();
            prop_assert_eq!(list.iter().collect::<BTreeSet<_>>(), cpus.clone());
            prop_assert_eq!(list.len(), cpus.len());
            prop_assert_eq!(list.to_string().parse::<CpuList>().unwrap(), list.clone());
            for cpu in 0..201 {
                prop_assert_eq!(list.contains(cpu), cpus.contains(&cpu));
            }
        }

        #[test]
        fn hostile_text_never_panics(text in "\\PC{0,40}|[0-9,\\- ]{0,40}") {
            if let Ok(list) = text.parse::<CpuList>() {
                prop_assert!(list.len() <= MAX_CPUS as usize);
            }
        }
    }
}
