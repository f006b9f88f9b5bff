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

/// The workload of that name.
///
/// # Errors
///
/// When there is none.
pub(crate) fn named(name: &str) -> Result<Workload> {
    ALL.into_iter()
        .find(|workload| workload.name == name)
        .ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|workload| workload.name).collect();
            hinted(
                format!("no workload `{name}`"),
                [format!("there are {}", names.join(", "))],
            )
        })
}
