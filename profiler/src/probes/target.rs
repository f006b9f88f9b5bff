//! Whose numbers are wanted, in the kernel's terms.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use profiler_ebpf::target;

use crate::error::hinted;

/// The inode of the initial PID namespace (`PROC_PID_INIT_INO`,
/// include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What tells the target's tasks from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// One of `profiler_ebpf::target`.
    pub mode: u8,
    /// With `target::CGROUP`: the cgroup v2 id.
    pub cgroup_id: u64,
    /// With `target::CGROUP`: its depth below the root.
    pub cgroup_level: u32,
    /// Device and inode of the profiler's PID namespace, when tasks are given by
    /// their ids in it and it is not the initial one.
    pub pid_namespace: Option<(u64, u64)>,
}

impl Scope {
    /// Every task.
    pub const fn machine() -> Self {
        Self {
            mode: target::MACHINE,
            cgroup_id: 0,
            cgroup_level: 0,
            pid_namespace: None,
        }
    }

    /// Tasks given by id, and their descendants.
    ///
    /// # Errors
    ///
    /// When `/proc/self/ns/pid` cannot be read.
    pub fn tasks() -> io::Result<Self> {
        Ok(Self {
            mode: target::TASKS,
            pid_namespace: own_pid_namespace()?,
            ..Self::machine()
        })
    }

    /// The cgroup v2 at `path` (absolute, or below the cgroup2 mount) and those
    /// below it. Minimum kernel 5.7.
    ///
    /// # Errors
    ///
    /// When there is no such cgroup, when it is of version 1, or when the depth
    /// below the root cannot be known because of a cgroup namespace.
    pub fn cgroup(path: &Path) -> anyhow::Result<Self> {
        let mounts =
            fs::read_to_string("/proc/self/mounts").context("reading /proc/self/mounts")?;
        let found = locate_cgroup(path, &mounts)?;
        let directory = fs::metadata(&found.directory)
            .with_context(|| format!("--cgroup {}", path.display()))?;
        let root = fs::metadata(&found.mount)
            .with_context(|| format!("reading {}", found.mount.display()))?;
        if root.ino() != 1 {
            return Err(hinted(
                format!(
                    "--cgroup {}: its depth below the root is not known",
                    path.display()
                ),
                ["this shell is in a cgroup namespace; run preemptprof outside of the container"],
            ));
        }
        Ok(Self {
            mode: target::CGROUP,
            cgroup_id: directory.ino(),
            cgroup_level: found.level,
            pid_namespace: None,
        })
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Located {
    directory: PathBuf,
    mount: PathBuf,
    level: u32,
}

/// Finds the directory of a cgroup and its depth below the cgroup2 mount.
fn locate_cgroup(path: &Path, mounts: &str) -> anyhow::Result<Located> {
    let points = |kind: &'static str| {
        mounts.lines().filter_map(move |line| {
            let mut fields = line.split(' ');
            let point = fields.nth(1)?;
            (fields.next()? == kind).then(|| PathBuf::from(unescape_mount(point)))
        })
    };
    let Some(mount) = points("cgroup2").next() else {
        return Err(hinted(
            "--cgroup needs cgroup v2, which is not mounted",
            ["mount -t cgroup2 none /sys/fs/cgroup, or use -p or -a"],
        ));
    };
    let directory = if path.is_absolute() {
        path.to_owned()
    } else {
        mount.join(path)
    };
    // `..` and symbolic links would falsify the depth.
    let directory = directory.canonicalize().map_err(|error| {
        hinted(
            format!("no cgroup {}: {error}", path.display()),
            [format!("cgroups are directories below {}", mount.display())],
        )
    })?;
    let mount = mount.canonicalize().unwrap_or(mount);
    let Ok(below) = directory.strip_prefix(&mount) else {
        let version_1 = points("cgroup").any(|mount| directory.starts_with(mount));
        let hint = if version_1 {
            "that is a cgroup of version 1; a cgroup is told apart in BPF by its version 2 id"
        } else {
            "it is not a cgroup"
        };
        return Err(hinted(
            format!("--cgroup {}: not below {}", path.display(), mount.display()),
            [hint],
        ));
    };
    Ok(Located {
        level: below.components().count() as u32,
        directory: directory.clone(),
        mount,
    })
}

/// Undoes the octal escapes of /proc/mounts.
fn unescape_mount(point: &str) -> String {
    point
        .replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// Device and inode of the caller's PID namespace, unless it is the initial one.
fn own_pid_namespace() -> io::Result<Option<(u64, u64)>> {
    let namespace = fs::metadata("/proc/self/ns/pid")?;
    if namespace.ino() == INITIAL_PID_NAMESPACE {
        return Ok(None);
    }
    let device = namespace.dev();
    // The helper wants the kernel's own encoding (MKDEV, include/linux/kdev_t.h).
    let device = u64::from(libc::major(device)) << 20 | u64::from(libc::minor(device));
    Ok(Some((device, namespace.ino())))
}

/// A process and the threads and processes below it, as /proc shows them.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Process ids.
    pub processes: BTreeSet<u32>,
    /// Thread ids, those of main threads included.
    pub threads: BTreeSet<u32>,
}

/// Finds the processes `pids`, everything they started, and all their threads.
/// Processes that come and go meanwhile are found by the fork program.
///
/// # Errors
///
/// A pid that does not exist, with the hint that it is looked up in the caller's
/// PID namespace; unreadable `/proc`.
pub fn family(proc: &Path, pids: &[u32]) -> anyhow::Result<Family> {
    let mut parents = Vec::new();
    for entry in fs::read_dir(proc).with_context(|| format!("reading {}", proc.display()))? {
        let Ok(entry) = entry else { continue };
        let Some(pid) = parse_pid(&entry.file_name()) else {
            continue;
        };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        if let Some(parent) = parent_of(&stat) {
            parents.push((pid, parent));
        }
    }
    let mut family = Family::default();
    for &pid in pids {
        if !parents.iter().any(|&(found, _)| found == pid) {
            return Err(hinted(
                format!("no process {pid}"),
                ["-p takes process ids of the PID namespace preemptprof runs in; see ps -e"],
            ));
        }
        family.processes.insert(pid);
    }
    loop {
        let before = family.processes.len();
        for &(pid, parent) in &parents {
            if family.processes.contains(&parent) {
                family.processes.insert(pid);
            }
        }
        if family.processes.len() == before {
            break;
        }
    }
    for &pid in &family.processes {
        let Ok(threads) = fs::read_dir(proc.join(pid.to_string()).join("task")) else {
            continue;
        };
        family.threads.extend(
            threads
                .flatten()
                .filter_map(|thread| parse_pid(&thread.file_name())),
        );
    }
    Ok(family)
}

fn parse_pid(name: &std::ffi::OsStr) -> Option<u32> {
    name.to_str()?.parse().ok()
}

/// The fourth field of /proc/PID/stat; the second, the name in parentheses, may
/// contain anything.
fn parent_of(stat: &str) -> Option<u32> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_is_found_behind_any_name() {
        assert_eq!(parent_of("12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_of("12 (a) b ) S 3) R 9 12"), Some(9));
        assert_eq!(parent_of("12 sh S"), None);
        assert_eq!(parent_of(""), None);
    }

    #[test]
    fn a_family_includes_this_test_and_its_child() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let family = family(Path::new("/proc"), &[me]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(family.processes.contains(&me) && family.processes.contains(&child.id()));
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() } as u32;
        assert!(family.threads.contains(&thread) && family.threads.contains(&child.id()));
    }

    #[test]
    fn an_unknown_pid_is_an_error_with_a_hint() {
        let error = family(Path::new("/proc"), &[u32::MAX]).unwrap_err();
        assert!(error.to_string().contains("no process 4294967295"));
        assert!(!crate::error::hints(&error).is_empty());
    }

    #[test]
    fn cgroups_are_located_below_their_mount() {
        let root = std::env::temp_dir().canonicalize().unwrap();
        let mounts = format!("none {} cgroup2 rw 0 0\n", root.display());
        let located = locate_cgroup(&root, &mounts).unwrap();
        assert_eq!((located.level, &located.mount), (0, &root));
        assert!(locate_cgroup(Path::new("/proc"), &mounts).is_err());
        assert!(locate_cgroup(Path::new("no/such"), &mounts).is_err());
        let error = locate_cgroup(&root, "proc /proc proc rw 0 0\n").unwrap_err();
        assert!(error.to_string().contains("cgroup v2"));
    }
}
