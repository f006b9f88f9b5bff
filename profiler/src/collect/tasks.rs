//! Switches by task.

use profiler_ebpf::TaskEntry;

use super::drain::comm_text;
use crate::fast_map::FastMap;
use crate::recording::{SwitchCounts, TaskSwitches};

/// Tasks told apart; beyond that they are added up by name, and beyond that
/// under [`OTHERS`].
const LIMIT: usize = 1 << 15;
/// What tasks beyond the limits are added up under.
const OTHERS: &str = "[others]";

/// Collects them: from tasks that ended while the run went on, and at its end
/// from the map of those that are left.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    counts: FastMap<(u32, String), SwitchCounts>,
    names: FastMap<u32, [u8; 16]>,
}

impl Tasks {
    /// Remembers the name of a task.
    pub(super) fn see(&mut self, pid: u32, comm: &[u8; 16]) {
        if self.names.len() < LIMIT || self.names.contains_key(&pid) {
            self.names.insert(pid, *comm);
        }
    }

    /// Adds a task's switches. Without a name the last one seen is taken.
    pub(super) fn add(&mut self, pid: u32, comm: Option<&[u8]>, entry: &TaskEntry) {
        if entry.voluntary == 0 && entry.preempted == 0 {
            return;
        }
        let comm = comm
            .map(comm_text)
            .filter(|comm| !comm.is_empty())
            .or_else(|| self.names.get(&pid).map(|comm| comm_text(comm)))
            .unwrap_or_else(|| "[unknown]".to_owned());
        let mut key = (pid, comm);
        if self.counts.len() >= LIMIT && !self.counts.contains_key(&key) {
            key.0 = 0;
            if self.counts.len() >= 2 * LIMIT && !self.counts.contains_key(&key) {
                key.1 = OTHERS.to_owned();
            }
        }
        let counts = self.counts.entry(key).or_default();
        counts.voluntary += entry.voluntary;
        counts.preempted += entry.preempted;
    }

    /// All of them, most switches first.
    pub(super) fn finish(self) -> Vec<TaskSwitches> {
        let mut tasks: Vec<TaskSwitches> = self
            .counts
            .into_iter()
            .map(|((pid, comm), counts)| TaskSwitches { pid, comm, counts })
            .collect();
        tasks.sort_by(|a, b| {
            let total = |task: &TaskSwitches| task.counts.voluntary + task.counts.preempted;
            total(b)
                .cmp(&total(a))
                .then_with(|| (a.pid, &a.comm).cmp(&(b.pid, &b.comm)))
        });
        tasks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(voluntary: u64, preempted: u64) -> TaskEntry {
        TaskEntry {
            voluntary,
            preempted,
        }
    }

    #[test]
    fn no_switch_is_lost_whatever_the_number_of_tasks() {
        let mut tasks = Tasks::default();
        let many = 3 * LIMIT as u32;
        for pid in 1..=many {
            tasks.add(pid, Some(format!("task{pid}").as_bytes()), &entry(1, 2));
        }
        let tasks = tasks.finish();
        assert!(tasks.len() <= 2 * LIMIT + 1);
        let total: u64 = tasks
            .iter()
            .map(|task| task.counts.voluntary + task.counts.preempted)
            .sum();
        assert_eq!(total, 3 * u64::from(many));
        assert_eq!(tasks[0].comm, OTHERS);
    }

    #[test]
    fn a_task_without_a_name_gets_the_last_one_seen() {
        let mut tasks = Tasks::default();
        tasks.see(7, b"worker\0\0\0\0\0\0\0\0\0\0");
        tasks.add(7, None, &entry(1, 0));
        tasks.add(8, Some(&[0; 16]), &entry(0, 3));
        tasks.add(9, Some(b"gone"), &entry(0, 0));
        let tasks = tasks.finish();
        let names: Vec<&str> = tasks.iter().map(|task| task.comm.as_str()).collect();
        assert_eq!(names, ["[unknown]", "worker"]);
    }
}
