//! A writer of `newc` archives, the format of an initramfs
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::{Result, bail};

/// File type bits of a mode, from `stat(2)`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER: u32 = 0o020_000;

/// An archive under construction. Paths are absolute in the guest; folders above
/// an entry are made as needed.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
    entries: BTreeSet<String>,
}

/// The fields of an entry that differ between kinds.
#[derive(Default)]
struct Entry<'a> {
    mode: u32,
    mtime: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl Archive {
    /// Whether the path has an entry already.
    ///
    /// # Errors
    ///
    /// If the path is not absolute and plain.
    pub(super) fn contains(&self, path: &str) -> Result<bool> {
        Ok(self.entries.contains(&normal(path)?))
    }

    /// Adds a folder; nothing if it is there.
    ///
    /// # Errors
    ///
    /// If the path is not absolute and plain.
    pub(super) fn folder(&mut self, path: &str, permissions: u32) -> Result<()> {
        let mode = DIRECTORY | permissions;
        self.entry(
            path,
            &Entry {
                mode,
                ..Entry::default()
            },
        )
    }

    /// Adds a regular file.
    ///
    /// # Errors
    ///
    /// If the path is not absolute and plain, or the file is 4 GiB or more.
    pub(super) fn file(
        &mut self,
        path: &str,
        permissions: u32,
        mtime: u32,
        data: &[u8],
    ) -> Result<()> {
        let mode = REGULAR | permissions;
        self.entry(
            path,
            &Entry {
                mode,
                mtime,
                data,
                ..Entry::default()
            },
        )
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    ///
    /// If the path is not absolute and plain.
    pub(super) fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        let mode = SYMLINK | 0o777;
        let data = target.as_bytes();
        self.entry(
            path,
            &Entry {
                mode,
                data,
                ..Entry::default()
            },
        )
    }

    /// Adds a character device.
    ///
    /// # Errors
    ///
    /// If the path is not absolute and plain.
    pub(super) fn character_device(&mut self, path: &str, device: (u32, u32)) -> Result<()> {
        let mode = CHARACTER | 0o600;
        self.entry(
            path,
            &Entry {
                mode,
                device,
                ..Entry::default()
            },
        )
    }

    /// Ends the archive and returns it.
    ///
    /// # Errors
    ///
    /// None in practice; the trailer is an entry like any other.
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        self.write("TRAILER!!!", &Entry::default())?;
        Ok(self.bytes)
    }

    fn entry(&mut self, path: &str, entry: &Entry<'_>) -> Result<()> {
        let name = normal(path)?;
        if self.entries.contains(&name) {
            return Ok(());
        }
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(&format!("/{above}"), 0o755)?;
        }
        self.write(&name, entry)?;
        self.entries.insert(name);
        Ok(())
    }

    fn write(&mut self, name: &str, entry: &Entry<'_>) -> Result<()> {
        let Ok(size) = u32::try_from(entry.data.len()) else {
            bail!("{name}: 4 GiB or more do not fit into an initramfs");
        };
        self.inode += 1;
        let links = if entry.mode & DIRECTORY == DIRECTORY {
            2
        } else {
            1
        };
        let fields = [
            self.inode,
            entry.mode,
            0,
            0,
            links,
            entry.mtime,
            size,
            0,
            0,
            entry.device.0,
            entry.device.1,
            u32::try_from(name.len())? + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(entry.data);
        self.pad();
        Ok(())
    }

    /// Names and data end on a multiple of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The name of an absolute path inside the archive. `bin`, `sbin`, `lib` and
/// `lib64` at the top are links into `usr` in the guest, and an archive cannot
/// have files below a link.
fn normal(path: &str) -> Result<String> {
    let mut parts = Vec::new();
    for component in Path::new(path).components() {
        match component {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir | Component::Prefix(_) => {
                bail!("{path}: `..` has no place in a guest's path")
            }
        }
    }
    if !path.starts_with('/') || parts.is_empty() {
        bail!("{path:?} is not an absolute path of a file in the guest");
    }
    if parts.len() > 1 && matches!(parts[0].as_str(), "bin" | "sbin" | "lib" | "lib64") {
        parts.insert(0, "usr".to_owned());
    }
    Ok(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn another_reader_agrees() {
        let mut archive = Archive::default();
        archive.symlink("/bin", "usr/bin").unwrap();
        archive
            .file("/bin/tool", 0o755, 86_400, b"#!/bin/sh\n")
            .unwrap();
        archive.file("/deep/er/file", 0o640, 0, &[7; 4097]).unwrap();
        archive
            .file("/deep/er/file", 0o640, 0, b"a second one is left out")
            .unwrap();
        archive.character_device("/dev/console", (5, 1)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive");
        std::fs::write(&path, archive.finish().unwrap()).unwrap();
        let Some(busybox) = crate::host::find("busybox") else {
            eprintln!("skipped: no busybox");
            return;
        };
        let output = Command::new(busybox)
            .args(["cpio", "-t", "-v"])
            .stdin(std::fs::File::open(&path).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let line = |name: &str| {
            lines
                .iter()
                .find(|words| words.contains(&name))
                .unwrap_or_else(|| panic!("{name} is not in\n{text}"))
        };
        assert_eq!(line("usr/bin/tool")[0], "-rwxr-xr-x");
        assert_eq!(line("usr/bin/tool")[2], "10");
        assert_eq!(line("deep/er/file")[..3], ["-rw-r-----", "0/0", "4097"]);
        assert!(line("bin")[0].starts_with('l'));
        assert!(line("dev/console")[0].starts_with('c'));
        assert_eq!(text.matches("deep/er/file").count(), 1);
    }

    #[test]
    fn paths_are_absolute_plain_and_merged() {
        assert_eq!(normal("/lib64/ld.so").unwrap(), "usr/lib64/ld.so");
        assert_eq!(normal("/lib").unwrap(), "lib");
        assert_eq!(normal("//a/./b").unwrap(), "a/b");
        assert!(normal("a/b").is_err());
        assert!(normal("/a/../b").is_err());
        assert!(normal("/").is_err());
    }
}
