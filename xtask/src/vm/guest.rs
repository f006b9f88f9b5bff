//! What the guest finds: its files, its `/init`, and how results come back.
//!
//! Three serial ports keep apart what must not mix: `ttyS0` is the kernel's
//! console, `ttyS1` carries what the command prints, `ttyS2` the status and the
//! files that changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result, bail};

use super::cpio::Archive;
use crate::error::hinted;
use crate::host;

/// Where a shared folder is in the guest, and the command's working folder.
pub const SHARE: &str = "/share";

/// A file of the host at a path in the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// The file or folder on the host.
    pub from: PathBuf,
    /// Its absolute path in the guest.
    pub to: String,
}

impl GuestFile {
    /// A file or folder at its own path.
    ///
    /// # Errors
    ///
    /// If the path cannot be made absolute.
    pub fn at_home(from: impl AsRef<Path>) -> Result<Self> {
        let from = std::path::absolute(from.as_ref())
            .with_context(|| format!("{}", from.as_ref().display()))?;
        let to = from
            .to_str()
            .with_context(|| format!("{}: not UTF-8", from.display()))?
            .to_owned();
        Ok(Self { from, to })
    }

    /// A file or folder at another path.
    pub fn at(from: impl Into<PathBuf>, to: impl Into<String>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
        }
    }

    /// Reads `FILE` or `FILE:/PATH/IN/GUEST`.
    ///
    /// # Errors
    ///
    /// If there is no such file.
    pub fn parse(text: &str) -> Result<Self> {
        let file = match text.rsplit_once(":/") {
            Some((from, to)) if !from.is_empty() => Self::at(from, format!("/{to}")),
            _ => Self::at_home(text)?,
        };
        if !file.from.exists() {
            return Err(hinted(
                format!("no file {} to add to the guest", file.from.display()),
                ["give FILE or FILE:/PATH/IN/GUEST, with FILE a path and not a name in PATH"],
            ));
        }
        Ok(file)
    }
}

/// The initramfs of a guest that runs `script`.
///
/// # Errors
///
/// If busybox is missing or a file cannot be read.
pub(super) fn initramfs(
    script: &str,
    files: &[GuestFile],
    share: Option<&Path>,
) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for name in ["bin", "sbin", "lib", "lib64"] {
        archive.folder(&format!("/usr/{name}"), 0o755)?;
        archive.symlink(&format!("/{name}"), &format!("usr/{name}"))?;
    }
    for name in ["dev", "etc", "proc", "run", "sys", "tmp", "root", "vm"] {
        archive.folder(&format!("/{name}"), 0o755)?;
    }
    archive.character_device("/dev/console", (5, 1))?;
    archive.file("/etc/passwd", 0o644, 0, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("/etc/group", 0o644, 0, b"root:x:0:\n")?;
    // The loader finds libraries in unusual folders through the host's cache.
    if let Ok(cache) = fs::read("/etc/ld.so.cache") {
        archive.file("/etc/ld.so.cache", 0o644, 0, &cache)?;
    }
    for file in files {
        add(&mut archive, &file.from, &file.to, true)?;
    }
    busybox(&mut archive)?;
    archive.folder(SHARE, 0o755)?;
    if let Some(folder) = share {
        add(&mut archive, folder, SHARE, false)?;
    }
    archive.file("/vm/script", 0o644, 0, script.as_bytes())?;
    archive.file("/init", 0o755, 0, INIT.as_bytes())?;
    archive.finish()
}

/// Adds a file, or a folder with all in it; with `libraries`, also what an ELF
/// program loads.
fn add(archive: &mut Archive, from: &Path, to: &str, libraries: bool) -> Result<()> {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    let data = fs::metadata(from).with_context(|| format!("reading {}", from.display()))?;
    if data.is_dir() {
        archive.folder(to, data.permissions().mode() & 0o7777)?;
        let entries = fs::read_dir(from).with_context(|| format!("reading {}", from.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("reading {}", from.display()))?;
            let name = entry.file_name();
            let name = name
                .to_str()
                .with_context(|| format!("{}: not UTF-8", entry.path().display()))?;
            let below = format!("{}/{name}", to.trim_end_matches('/'));
            if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                let target = fs::read_link(entry.path())
                    .with_context(|| format!("reading {}", entry.path().display()))?;
                archive.symlink(&below, &target.to_string_lossy())?;
            } else {
                add(archive, &entry.path(), &below, libraries)?;
            }
        }
        return Ok(());
    }
    let kind = data.file_type();
    if kind.is_socket() || kind.is_fifo() || kind.is_block_device() || kind.is_char_device() {
        bail!("{}: neither a file nor a folder", from.display());
    }
    let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
    let mtime = data
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .and_then(|age| u32::try_from(age.as_secs()).ok())
        .unwrap_or_default();
    archive.file(to, data.permissions().mode() & 0o7777, mtime, &bytes)?;
    if libraries && bytes.starts_with(b"\x7fELF") {
        for library in shared_libraries(from)? {
            if !archive.contains(&library)? {
                add(archive, Path::new(&library), &library, false)?;
            }
        }
    }
    Ok(())
}

/// The shared libraries of a program, with the loader, at the paths at which the
/// loader looks for them.
fn shared_libraries(program: &Path) -> Result<Vec<String>> {
    let output = host::collect(Command::new("ldd").arg(program))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_ldd(&text).with_context(|| format!("the libraries of {}", program.display()))
}

/// Reads the output of `ldd`; that of a static program names no library.
fn parse_ldd(text: &str) -> Result<Vec<String>> {
    let mut libraries = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.ends_with("not found") {
            bail!("{line}");
        }
        let path = line.split_once(" => ").map_or(line, |(_, path)| path);
        let path = path.split(" (0x").next().unwrap_or(path).trim();
        if path.starts_with('/') && !path.ends_with(':') {
            libraries.push(path.to_owned());
        }
    }
    Ok(libraries)
}

/// Adds busybox, and a link for each applet whose name no added program has.
fn busybox(archive: &mut Archive) -> Result<()> {
    let hint = "`cargo xtask setup` installs Debian's busybox-static";
    let program =
        host::find("busybox").ok_or_else(|| hinted("no busybox for the guest", [hint]))?;
    if !crate::dist::is_static(&program)? {
        return Err(hinted(
            format!("{} is not static", program.display()),
            [hint],
        ));
    }
    add(archive, &program, "/usr/bin/busybox", false)?;
    for applet in host::read(Command::new(&program).arg("--list"))?.lines() {
        if applet.is_empty() || applet.contains('/') {
            continue;
        }
        if !archive.contains(&format!("/usr/sbin/{applet}"))? {
            archive.symlink(&format!("/usr/bin/{applet}"), "busybox")?;
        }
    }
    Ok(())
}

/// The guest's first process. A command that leaves a process behind with its
/// output open must not keep the guest from ending; hence the bounded wait.
const INIT: &str = r#"#!/usr/bin/busybox sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root TERM=dumb LC_ALL=C
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
for port in /dev/ttyS1 /dev/ttyS2; do stty -F $port raw -echo 2>/dev/null; done
exec 9>/dev/ttyS2
{
    mount -t tracefs tracefs /sys/kernel/tracing
    mount -t debugfs debugfs /sys/kernel/debug
    mount -t bpf bpf /sys/fs/bpf
    mount -t securityfs securityfs /sys/kernel/security
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    ip link set lo up
} 2>/dev/null
mkfifo /vm/output
cat /vm/output >/dev/ttyS1 &
copier=$!
cd /share
echo ready >&9
# find compares whole seconds.
touch -d "@$(($(date +%s) - 1))" /vm/start
sh /vm/script >/vm/output 2>&1 </dev/null 9>&-
status=$?
tries=0
while kill -0 $copier 2>/dev/null && [ $tries -lt 20 ]; do
    usleep 100000
    tries=$((tries + 1))
done
kill $copier 2>/dev/null
echo "status $status" >&9
find . -newer /vm/start ! -type d >/vm/changed
if [ -s /vm/changed ]; then
    cpio -o -H newc </vm/changed >/vm/archive 2>/vm/error || echo "error $(tail -n 1 /vm/error)" >&9
    echo "files $(wc -c </vm/archive)" >&9
    cat /vm/archive >&9
fi
echo done >&9
exec 9>&-
poweroff -f
"#;

/// What came through `ttyS2`, read as it grows.
#[derive(Debug, Default)]
pub(super) struct Control {
    bytes: Vec<u8>,
    read: usize,
    wanted: Option<usize>,
    /// `/init` runs.
    pub(super) ready: bool,
    /// The exit status of the command, once it ended.
    pub(super) status: Option<i32>,
    /// The `newc` archive of changed files.
    pub(super) archive: Vec<u8>,
    /// All was sent.
    pub(super) done: bool,
}

impl Control {
    /// Takes what arrived since the last call.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.extend_from_slice(bytes);
        loop {
            let rest = &self.bytes[self.read..];
            if let Some(size) = self.wanted {
                if rest.len() < size {
                    return Ok(());
                }
                self.archive = rest[..size].to_vec();
                self.read += size;
                self.wanted = None;
                continue;
            }
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
                return Ok(());
            };
            let line = String::from_utf8_lossy(&rest[..end]).trim().to_owned();
            self.read += end + 1;
            match line.split_once(' ') {
                None if line == "ready" => self.ready = true,
                None if line == "done" => self.done = true,
                Some(("status", number)) => self.status = Some(number.parse()?),
                Some(("error", what)) => bail!("collecting changed files in the guest: {what}"),
                Some(("files", size)) => self.wanted = Some(size.trim().parse()?),
                _ => bail!("the guest's control port said {line:?}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ldd() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f48)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f48)\n";
        assert_eq!(
            parse_ldd(text).unwrap(),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(parse_ldd("\tstatically linked\n").unwrap().is_empty());
        assert!(parse_ldd("\tlibx.so => not found\n").is_err());
    }

    #[test]
    fn control_takes_bytes_in_any_portions() {
        let stream = b"ready\nstatus 3\nfiles 6\ndone\n\0done\n";
        for size in 1..stream.len() {
            let mut control = Control::default();
            for portion in stream.chunks(size) {
                control.push(portion).unwrap();
            }
            assert!(control.ready && control.done);
            assert_eq!(control.status, Some(3));
            assert_eq!(control.archive, b"done\n\0");
        }
        assert!(Control::default().push(b"garbage\n").is_err());
    }

    #[test]
    fn names_what_to_add() {
        let own = std::env::current_exe().unwrap();
        let own = own.to_str().unwrap();
        assert_eq!(GuestFile::parse(own).unwrap().to, own);
        let moved = GuestFile::parse(&format!("{own}:/bin/x")).unwrap();
        assert_eq!(
            (moved.from.to_str().unwrap(), moved.to.as_str()),
            (own, "/bin/x")
        );
        assert!(GuestFile::parse("/nonexistent/file").is_err());
    }
}
