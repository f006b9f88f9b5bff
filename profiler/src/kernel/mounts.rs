//! Where kernel file systems are mounted, from the mount table.

use std::path::{Path, PathBuf};

use super::root;

/// A mount, from a line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mount {
    /// The directory of the file system that is mounted; not `/` for a bind mount of
    /// a part, as containers have.
    pub(super) root: String,
    /// Where it is mounted.
    pub(super) point: String,
    /// The file system's type.
    pub(super) kind: String,
    /// Options of the file system itself, e.g. the controllers of a cgroup v1 mount.
    pub(super) options: String,
}

/// Every mount this process sees, in order; a later one covers an earlier one.
pub(super) fn mounts(root: &Path) -> Vec<Mount> {
    let table = root::read_text(root, "/proc/self/mountinfo").unwrap_or_default();
    table.lines().filter_map(parse_mountinfo).collect()
}

/// `31 23 0:28 / /sys/fs/cgroup rw,relatime shared:9 - tmpfs tmpfs rw`.
fn parse_mountinfo(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, mount.next()?);
    let mut file_system = file_system.split(' ');
    Some(Mount {
        root: unescape(root),
        point: unescape(point),
        kind: file_system.next()?.to_owned(),
        options: file_system.nth(1).unwrap_or_default().to_owned(),
    })
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (
                b'\\',
                [
                    a @ b'0'..=b'3',
                    b @ b'0'..=b'7',
                    c @ b'0'..=b'7',
                    after @ ..,
                ],
            ) => {
                bytes.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = after;
            }
            _ => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Where a file system of this type is mounted as a whole, the conventional place
/// first.
fn mounted(root: &Path, kind: &str, usual: &str) -> Option<String> {
    let mounts = mounts(root);
    let mut places = mounts
        .iter()
        .filter(|mount| mount.kind == kind && mount.root == "/")
        .map(|mount| mount.point.as_str());
    let found = places
        .clone()
        .find(|&point| point == usual)
        .or_else(|| places.next())?;
    Some(found.to_owned())
}

/// The directory of tracefs below `root`: wherever it is mounted, or the `tracing`
/// directory that debugfs mounts it on when it is entered. `None` when neither is.
pub fn tracefs(root: &Path) -> Option<PathBuf> {
    let own = mounted(root, "tracefs", "/sys/kernel/tracing");
    let inner = || debugfs_path(root).map(|point| format!("{point}/tracing"));
    own.into_iter()
        .chain(inner())
        .map(|point| root::join(root, &point))
        .find(|path| path.join("events").is_dir())
}

/// The directory of debugfs below `root`; `None` when it is not mounted.
pub fn debugfs(root: &Path) -> Option<PathBuf> {
    debugfs_path(root).map(|point| root::join(root, &point))
}

pub(super) fn debugfs_path(root: &Path) -> Option<String> {
    mounted(root, "debugfs", "/sys/kernel/debug")
}

/// Whether securityfs is mounted, and where.
pub(super) fn securityfs_path(root: &Path) -> Option<String> {
    mounted(root, "securityfs", "/sys/kernel/security")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn table(lines: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::write(dir.path().join("proc/self/mountinfo"), lines).unwrap();
        dir
    }

    #[test]
    fn a_line_of_the_table_is_read() {
        let line = "36 35 98:0 /a\\040b /mnt\\134x\\011 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(
            parse_mountinfo(line),
            Some(Mount {
                root: "/a b".into(),
                point: "/mnt\\x\t".into(),
                kind: "ext3".into(),
                options: "rw,errors=continue".into(),
            })
        );
        assert_eq!(parse_mountinfo("36 35 98:0 / /mnt rw"), None);
    }

    #[test]
    fn tracefs_is_found_wherever_it_is() {
        let dir = table("");
        assert_eq!(tracefs(dir.path()), None);
        let dir = table("1 0 0:1 / /sys/kernel/debug rw - debugfs none rw\n");
        assert_eq!(tracefs(dir.path()), None);
        let inner = dir.path().join("sys/kernel/debug/tracing");
        std::fs::create_dir_all(inner.join("events")).unwrap();
        assert_eq!(tracefs(dir.path()), Some(inner));
        let dir = table("1 0 0:1 / /odd\\040place rw - tracefs none rw\n");
        let odd = dir.path().join("odd place");
        std::fs::create_dir_all(odd.join("events")).unwrap();
        assert_eq!(tracefs(dir.path()), Some(odd));
        // A part of it, bound into a container, does not do.
        let dir = table("1 0 0:1 /instances/x /t rw - tracefs none rw\n");
        std::fs::create_dir_all(dir.path().join("t/events")).unwrap();
        assert_eq!(tracefs(dir.path()), None);
    }

    proptest! {
        #[test]
        fn hostile_lines_never_panic(line in "\\PC{0,80}|[\\\\0-9 /-]{0,60}") {
            let _ = parse_mountinfo(&line);
            prop_assert!(unescape(&line).len() <= line.len() * 3);
        }
    }
}
