//! The capabilities this process has, and those it lacks.

use std::path::Path;

use super::{Release, root};

/// Names by bit, `include/uapi/linux/capability.h`.
const NAMES: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// The kernel takes `CAP_SYS_ADMIN` in place of these (`bpf_capable`,
/// `perfmon_capable`, `checkpoint_restore_ns_capable`).
const SPLIT_FROM_SYS_ADMIN: [(&str, Release); 3] = [
    ("CAP_BPF", Release::new(5, 8)),
    ("CAP_PERFMON", Release::new(5, 8)),
    ("CAP_CHECKPOINT_RESTORE", Release::new(5, 9)),
];

/// The effective capabilities of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    effective: u64,
    initial_user_namespace: bool,
}

impl Capabilities {
    /// Those of this process, from `/proc/self/status` below `root`.
    pub fn load(root: &Path) -> std::io::Result<Self> {
        let status = root::read_text(root, "/proc/self/status")?;
        let effective = parse_effective(&status)
            .ok_or_else(|| std::io::Error::other("/proc/self/status has no line CapEff"))?;
        // Where user namespaces are not built in there is no such file, and all are
        // in the initial one.
        let initial =
            root::read_text(root, "/proc/self/uid_map").map_or(true, |map| is_identity(&map));
        Ok(Self {
            effective,
            initial_user_namespace: initial,
        })
    }

    /// Whether `name` is in the effective set itself.
    pub fn has(self, name: &str) -> bool {
        NAMES
            .iter()
            .position(|&known| known == name)
            .is_some_and(|bit| (self.effective >> bit) & 1 == 1)
    }

    /// Which of `wanted` this process lacks on a kernel of `release`, as that kernel
    /// checks them: `CAP_SYS_ADMIN` stands for `CAP_BPF` and `CAP_PERFMON`, and
    /// before 5.8, where those do not exist, it is the one that is missing.
    ///
    /// Capabilities in a user namespace other than the first count for nothing: the
    /// kernel asks for these in the first one.
    pub fn missing<'a>(self, wanted: &[&'a str], release: Release) -> Vec<&'a str> {
        let mut missing = Vec::new();
        for &name in wanted {
            let split = SPLIT_FROM_SYS_ADMIN
                .iter()
                .find(|(split, _)| *split == name);
            let (held, lacking) = match split {
                Some(&(_, since)) if release < since => {
                    (self.has("CAP_SYS_ADMIN"), "CAP_SYS_ADMIN")
                }
                Some(_) => (self.has(name) || self.has("CAP_SYS_ADMIN"), name),
                None => (self.has(name), name),
            };
            let granted = held && self.initial_user_namespace;
            if !granted && !missing.contains(&lacking) {
                missing.push(lacking);
            }
        }
        missing
    }

    /// The names of all effective capabilities.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES
            .into_iter()
            .enumerate()
            .filter(move |(bit, _)| (self.effective >> bit) & 1 == 1)
            .map(|(_, name)| name)
    }

    /// Whether the process is in the first user namespace. In another one, as in a
    /// rootless container, no capability helps.
    pub fn in_initial_user_namespace(self) -> bool {
        self.initial_user_namespace
    }
}

fn parse_effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The map of the first namespace: all 2^32 - 1 ids onto themselves.
fn is_identity(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Release = Release::new(6, 1);
    const OLD: Release = Release::new(5, 4);

    fn with(names: &[&str]) -> Capabilities {
        let effective = names.iter().fold(0, |set, name| {
            set | 1 << NAMES.iter().position(|known| known == name).unwrap()
        });
        Capabilities {
            effective,
            initial_user_namespace: true,
        }
    }

    #[test]
    fn sys_admin_stands_for_what_was_split_from_it() {
        let admin = with(&["CAP_SYS_ADMIN"]);
        assert!(admin.missing(&["CAP_BPF", "CAP_PERFMON"], NEW).is_empty());
        assert_eq!(
            admin.missing(&["CAP_BPF", "CAP_SYS_RESOURCE"], NEW),
            ["CAP_SYS_RESOURCE"]
        );
        let split = with(&["CAP_BPF", "CAP_PERFMON"]);
        assert!(split.missing(&["CAP_BPF", "CAP_PERFMON"], NEW).is_empty());
        assert_eq!(
            split.missing(&["CAP_BPF", "CAP_PERFMON"], OLD),
            ["CAP_SYS_ADMIN"]
        );
        assert_eq!(
            with(&["CAP_BPF"]).missing(&["CAP_PERFMON"], NEW),
            ["CAP_PERFMON"]
        );
    }

    #[test]
    fn a_user_namespace_of_ones_own_is_worth_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/self");
        std::fs::create_dir_all(&proc).unwrap();
        assert!(Capabilities::load(dir.path()).is_err());
        std::fs::write(proc.join("status"), "Name:\tx\nCapEff:\t000001ffffffffff\n").unwrap();
        let load = || Capabilities::load(dir.path()).unwrap();
        assert!(load().in_initial_user_namespace());
        std::fs::write(proc.join("uid_map"), "         0          0 4294967295\n").unwrap();
        assert!(load().missing(&["CAP_BPF"], NEW).is_empty());
        assert_eq!(load().names().count(), 41);
        std::fs::write(proc.join("uid_map"), "0 1000 1\n").unwrap();
        assert_eq!(load().missing(&["CAP_BPF"], NEW), ["CAP_BPF"]);
    }

    #[test]
    fn damaged_status_is_refused() {
        for status in ["", "CapEff:", "CapEff:\tzz", "CapEff:\t1ffffffffffffffff"] {
            assert_eq!(parse_effective(status), None, "{status}");
        }
        assert!(!with(&[]).has("CAP_NONSENSE"));
        assert_eq!(with(&[]).missing(&["CAP_NONSENSE"], NEW), ["CAP_NONSENSE"]);
    }
}
