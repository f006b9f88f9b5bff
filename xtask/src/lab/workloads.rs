//! What the lab runs: fixed amounts of work of 1 to 5 s of guest time.

use anyhow::Result;

use crate::error::hinted;

/// One workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    /// What it is called on the command line and in results.
    pub(crate) name: &'static str,
    /// What the guest runs.
    pub(crate) command: &'static str,
}

/// All of them.
pub(crate) const ALL: [Workload; 8] = [
    Workload {
        name: "messaging",
        command: "preemptprof bench messaging -g 2 -l 300",
    },
    Workload {
        name: "pipe",
        command: "preemptprof bench pipe --same-cpu -l 100000",
    },
    Workload {
        name: "sockets-1",
        command: "preemptprof bench messaging -g 1 -l 600",
    },
    Workload {
        name: "sockets-4",
        command: "preemptprof bench messaging -g 4 -l 150",
    },
    Workload {
        name: "threads-4",
        command: "preemptprof bench messaging -t -g 4 -l 150",
    },
    Workload {
        name: "veth",
        command: "preemptprof bench veth -n 100",
    },
    Workload {
        name: "spawn",
        command: "preemptprof bench spawn -n 1000",
    },
    Workload {
        name: "timers",
        command: "preemptprof bench timers -n 300 --via socket",
    },
];

/// Those that `all` leaves out: what perf itself runs, to compare with figures of
/// others. They are short.
const OF_PERF: [Workload; 2] = [
    Workload {
        name: "perf-messaging",
        command: "perf bench sched messaging -g 2 -l 100",
    },
    Workload {
        name: "perf-pipe",
        command: "perf bench sched pipe -l 3000",
    },
];

impl Workload {
    /// Whether the guest must have perf.
    pub(crate) fn needs_perf(&self) -> bool {
        self.command.starts_with("perf ")
    }
}

/// The workload of that name.
///
/// # Errors
///
/// When there is none.
pub(crate) fn named(name: &str) -> Result<Workload> {
    let known = || ALL.into_iter().chain(OF_PERF);
    known()
        .find(|workload| workload.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = known().map(|workload| workload.name).collect();
            hinted(
                format!("no workload `{name}`"),
                [format!("there are {}", names.join(", "))],
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    #[test]
    fn names_are_known_or_listed() {
        assert!(!named("pipe").unwrap().needs_perf());
        assert!(named("perf-pipe").unwrap().needs_perf());
        let hints = hints(&named("nosuch").unwrap_err());
        assert!(
            hints[0].contains("threads-4") && hints[0].contains("perf-pipe"),
            "{hints:?}"
        );
    }
}
