//! Files that preemptprof writes: whole or not at all, never through somebody
//! else's link, and owned by whoever typed the command.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::error::hinted;

/// Gives `file` to the user who called sudo; does nothing when the process is
/// not root or was not started by sudo.
///
/// # Errors
/// When `SUDO_UID` or `SUDO_GID` is not a number, or the file system refuses the
/// change of owner.
pub fn chown_to_invoker(file: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    let root = unsafe { libc::geteuid() } == 0;
    let id = |name| std::env::var_os(name);
    match invoker(root, id("SUDO_UID"), id("SUDO_GID"))? {
        Some((uid, gid)) => chown(file, uid, gid),
        None => Ok(()),
    }
}

/// Who called sudo.
fn invoker(root: bool, uid: Option<OsString>, gid: Option<OsString>) -> Result<Option<(u32, u32)>> {
    let (true, Some(uid), Some(gid)) = (root, uid, gid) else {
        return Ok(None);
    };
    let number = |name: &str, value: &OsStr| {
        value
            .to_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| {
                hinted(
                    format!("{name} is not a number: {}", value.display()),
                    [format!(
                        "unset {name}, or start preemptprof with sudo itself"
                    )],
                )
            })
    };
    Ok(Some((number("SUDO_UID", &uid)?, number("SUDO_GID", &gid)?)))
}

fn chown(file: BorrowedFd<'_>, uid: u32, gid: u32) -> Result<()> {
    // SAFETY: the descriptor is borrowed and therefore open.
    if unsafe { libc::fchown(file.as_raw_fd(), uid, gid) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    // File systems without owners (vfat, some shared folders) say EPERM.
    if error.raw_os_error() == Some(libc::EPERM) {
        return Ok(());
    }
    Err(error).with_context(|| format!("cannot give the file to user {uid}"))
}

/// A file that appears under its name only when it is whole.
///
/// It is written under another name in the same directory and renamed by
/// [`commit`](Self::commit). Dropped before that, it is removed, unless
/// [`keep_on_drop`](Self::keep_on_drop) was called.
#[derive(Debug)]
pub struct AtomicFile {
    file: File,
    temp: PathBuf,
    target: PathBuf,
    force: bool,
    keep: bool,
    done: bool,
}

impl AtomicFile {
    /// Starts writing what will become `target`.
    ///
    /// # Errors
    /// When `target` exists and `force` is not given, when it is something other
    /// than a file, or when the directory cannot be written to.
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        let mut name = OsString::from(".");
        name.push(file_name(target)?);
        name.push(format!(".{}.tmp", std::process::id()));
        let temp = target.with_file_name(name);
        check_target(target, force)?;
        // A leftover under this name is from a dead process with our number.
        let _ = fs::remove_file(&temp);
        Self::open(target, temp, force, 0o644)
    }

    /// Like [`create`](Self::create), under the given suffix instead of a hidden
    /// name, readable by the owner alone, and locked against a second writer.
    ///
    /// # Errors
    /// As for `create`; and when the suffixed file exists, is not a plain file,
    /// or another process holds its lock.
    pub fn create_visible(target: &Path, suffix: &str, force: bool) -> Result<Self> {
        let mut name = file_name(target)?.to_os_string();
        name.push(suffix);
        let temp = target.with_file_name(name);
        check_target(target, force)?;
        if let Ok(meta) = fs::symlink_metadata(&temp) {
            if !force {
                return Err(hinted(
                    format!("{} already exists", temp.display()),
                    [
                        format!(
                            "a run is writing it or was killed; `preemptprof report --salvage {}` \
                             reads what it has",
                            temp.display()
                        ),
                        "--force replaces it".to_owned(),
                    ],
                ));
            }
            if meta.is_file() && is_locked(&temp) {
                return Err(hinted(
                    format!("{} is being written by another process", temp.display()),
                    ["choose another file name"],
                ));
            }
            fs::remove_file(&temp).with_context(|| format!("cannot replace {}", temp.display()))?;
        }
        let this = Self::open(target, temp, force, 0o600)?;
        // SAFETY: the descriptor is open. File systems without locks are fine.
        unsafe { libc::flock(this.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
        Ok(this)
    }

    fn open(target: &Path, temp: PathBuf, force: bool, mode: u32) -> Result<Self> {
        // O_EXCL: neither an existing file nor a planted link is ever opened.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(mode)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(&temp)
            .map_err(|error| cannot_create(target, &error))?;
        let this = Self {
            file,
            temp,
            target: target.to_owned(),
            force,
            keep: false,
            done: false,
        };
        chown_to_invoker(this.file.as_fd())
            .with_context(|| format!("cannot create {}", target.display()))?;
        Ok(this)
    }

    /// The open file.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// Its name until [`commit`](Self::commit).
    pub fn temp_path(&self) -> &Path {
        &self.temp
    }

    /// Its name afterwards.
    pub fn target_path(&self) -> &Path {
        &self.target
    }

    /// From now on the unfinished file stays when it is not committed.
    pub const fn keep_on_drop(&mut self) {
        self.keep = true;
    }

    /// From now on the unfinished file is removed when it is not committed.
    pub const fn remove_on_drop(&mut self) {
        self.keep = false;
    }

    /// Writes the contents to the disk and gives the file its name.
    ///
    /// # Errors
    /// When the disk fails, or when `target` came to exist meanwhile and `force`
    /// was not given; the file then keeps its temporary name if
    /// [`keep_on_drop`](Self::keep_on_drop) was called.
    pub fn commit(mut self) -> Result<()> {
        self.file
            .sync_all()
            .with_context(|| format!("cannot write {}", self.temp.display()))?;
        check_target(&self.target, self.force)?;
        rename(&self.temp, &self.target, self.force).map_err(|error| {
            if error.kind() == io::ErrorKind::AlreadyExists {
                already_exists(&self.target)
            } else {
                anyhow::Error::new(error).context(format!(
                    "cannot rename {} to {}",
                    self.temp.display(),
                    self.target.display()
                ))
            }
        })?;
        self.done = true;
        Ok(())
    }
}

impl Write for AtomicFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.file.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.done && !self.keep {
            let _ = fs::remove_file(&self.temp);
        }
    }
}

/// Writes `contents` to `target` through an [`AtomicFile`].
///
/// # Errors
/// As for [`AtomicFile::create`] and [`AtomicFile::commit`].
pub fn write_file(target: &Path, force: bool, contents: &[u8]) -> Result<()> {
    write_with(target, force, |out| Ok(out.write_all(contents)?))
}

/// Writes to `target` through an [`AtomicFile`] what `contents` writes to its
/// argument, a buffered one.
///
/// # Errors
/// As for [`AtomicFile::create`] and [`AtomicFile::commit`], and whatever
/// `contents` fails with.
pub fn write_with(
    target: &Path,
    force: bool,
    contents: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let cannot_write = |error: anyhow::Error| match error.is::<io::Error>() {
        true => error.context(format!("cannot write {}", target.display())),
        false => error,
    };
    if is_device(target) {
        let device = OpenOptions::new().append(true).open(target);
        let mut device = BufWriter::new(device.map_err(|error| cannot_write(error.into()))?);
        return contents(&mut device)
            .and_then(|()| Ok(device.flush()?))
            .map_err(cannot_write);
    }
    let mut file = BufWriter::with_capacity(1 << 18, AtomicFile::create(target, force)?);
    contents(&mut file).map_err(cannot_write)?;
    let file = file
        .into_inner()
        .map_err(|error| cannot_write(error.into_error().into()))?;
    file.commit()
}

/// Refuses what [`AtomicFile::create`] would, without making a file: for outputs
/// that are written only after something that takes long.
///
/// # Errors
/// As for `create`.
pub fn check(target: &Path, force: bool) -> Result<()> {
    if is_device(target) {
        return Ok(());
    }
    file_name(target)?;
    check_target(target, force)?;
    let directory = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: the string is NUL-terminated and outlives the call.
    if unsafe { libc::access(name.as_ptr(), libc::W_OK | libc::X_OK) } == 0 {
        return Ok(());
    }
    Err(cannot_create(target, &io::Error::last_os_error()))
}

/// Whether `target` is something below /dev that is written to rather than
/// replaced: /dev/null, a terminal, /dev/stdout and what stands behind it. Elsewhere
/// nobody expects one, and one that is there may be a trap.
fn is_device(target: &Path) -> bool {
    target.starts_with("/dev") && !target.starts_with("/dev/shm") && fs::metadata(target).is_ok()
}

fn cannot_create(target: &Path, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => "the directory does not exist",
        io::ErrorKind::PermissionDenied => "the directory is not writable for you",
        io::ErrorKind::ReadOnlyFilesystem => "choose a directory on a writable disk",
        _ => "choose another file name",
    };
    hinted(
        format!("cannot create {}: {error}", target.display()),
        [hint],
    )
}

fn file_name(target: &Path) -> Result<&OsStr> {
    // `dir/` has a file name for Path, and is still a directory.
    target
        .file_name()
        .filter(|_| !target.as_os_str().as_bytes().ends_with(b"/"))
        .ok_or_else(|| {
            hinted(
                format!("`{}` names no file", target.display()),
                ["give the name of a file to write"],
            )
        })
}

/// The refusal to replace `target`.
pub fn already_exists(target: &Path) -> anyhow::Error {
    hinted(
        format!("{} already exists", target.display()),
        ["--force replaces it"],
    )
}

fn check_target(target: &Path, force: bool) -> Result<()> {
    let meta = match fs::symlink_metadata(target) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(hinted(
                format!("cannot create {}: {error}", target.display()),
                ["check the directory in that path"],
            ));
        }
    };
    let kind = meta.file_type();
    // A rename would put a plain file in the place of /dev/null.
    if !kind.is_file() && !kind.is_symlink() {
        let what = if kind.is_dir() {
            "a directory"
        } else {
            "not a regular file"
        };
        return Err(hinted(
            format!("cannot write {}: it is {what}", target.display()),
            ["give the name of a file to write"],
        ));
    }
    if force {
        Ok(())
    } else {
        Err(already_exists(target))
    }
}

fn is_locked(path: &Path) -> bool {
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path);
    let Ok(file) = opened else { return false };
    // SAFETY: the descriptor is open; closing it releases the lock.
    let got = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) };
    got != 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
}

fn rename(from: &Path, to: &Path, force: bool) -> io::Result<()> {
    if force {
        return fs::rename(from, to);
    }
    let old = CString::new(from.as_os_str().as_bytes())?;
    let new = CString::new(to.as_os_str().as_bytes())?;
    // By number: musl has no wrapper. Since Linux 3.15.
    // SAFETY: both strings are NUL-terminated and outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            old.as_ptr(),
            libc::AT_FDCWD,
            new.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // The file system cannot promise it (NFS, some FUSE): a link can.
        Some(libc::EINVAL | libc::ENOSYS) => match fs::hard_link(from, to) {
            Ok(()) => fs::remove_file(from),
            Err(link) if link.kind() == io::ErrorKind::AlreadyExists => Err(link),
            // Neither: `to` was seen not to exist a moment ago.
            Err(_) => fs::rename(from, to),
        },
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::error::hints;

    #[test]
    fn appears_only_when_committed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.svg");
        let mut file = AtomicFile::create(&target, false).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!target.exists());
        drop(file);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write_file(&target, false, b"whole").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn existing_files_need_force() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        fs::write(&target, b"old").unwrap();
        let error = write_file(&target, false, b"new").unwrap_err();
        assert!(error.to_string().contains("already exists"));
        assert!(hints(&error)[0].contains("--force"));
        assert_eq!(fs::read(&target).unwrap(), b"old");
        write_file(&target, true, b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out");
        let file = AtomicFile::create(&target, false).unwrap();
        fs::write(&target, b"theirs").unwrap();
        assert!(file.commit().is_err());
        assert_eq!(fs::read(&target).unwrap(), b"theirs");
        assert!(rename(&target, &target, false).is_err());
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        let target = dir.path().join("rec");
        symlink(&victim, dir.path().join("rec.partial")).unwrap();
        assert!(AtomicFile::create_visible(&target, ".partial", false).is_err());
        symlink(&victim, &target).unwrap();
        assert!(AtomicFile::create(&target, false).is_err());
        // With --force the links themselves are replaced.
        let mut file = AtomicFile::create_visible(&target, ".partial", true).unwrap();
        file.write_all(b"new").unwrap();
        file.commit().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&target).unwrap().is_file());
        assert_eq!(fs::symlink_metadata(&target).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn devices_are_written_to() {
        use std::os::unix::fs::FileTypeExt as _;

        check(Path::new("/dev/null"), false).unwrap();
        write_file(Path::new("/dev/null"), false, b"report").unwrap();
        let null = fs::symlink_metadata("/dev/null").unwrap();
        assert!(null.file_type().is_char_device());
        // A FIFO that someone put elsewhere is no output.
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let name = CString::new(fifo.as_os_str().as_bytes()).unwrap();
        // SAFETY: the string is NUL-terminated and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(check(&fifo, true).is_err());
        assert!(write_file(&fifo, true, b"report").is_err());
    }

    #[test]
    fn what_is_no_file_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        for target in [
            Path::new("/dev/null"),
            dir.path(),
            Path::new("/"),
            Path::new("x/"),
        ] {
            assert!(
                AtomicFile::create(target, true).is_err(),
                "{}",
                target.display()
            );
        }
        assert!(AtomicFile::create(&dir.path().join("no/such"), true).is_err());
    }

    #[test]
    fn two_writers_do_not_share_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("rec");
        let first = AtomicFile::create_visible(&target, ".partial", false).unwrap();
        let error = AtomicFile::create_visible(&target, ".partial", true).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
        first.commit().unwrap();
    }

    #[test]
    fn files_belong_to_whoever_called_sudo() {
        let id = |text: &str| Some(OsString::from(text));
        assert_eq!(
            invoker(true, id("1000"), id("100")).unwrap(),
            Some((1000, 100))
        );
        assert_eq!(invoker(false, id("1000"), id("100")).unwrap(), None);
        assert_eq!(invoker(true, id("1000"), None).unwrap(), None);
        let error = invoker(true, id("1000"), id("-1")).unwrap_err();
        assert!(error.to_string().contains("SUDO_GID"), "{error}");

        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("f")).unwrap();
        let owner = file.metadata().unwrap().uid();
        if owner != 0 {
            eprintln!("skipped: only root can give files away");
            return;
        }
        chown(file.as_fd(), 1234, 567).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1234, 567));
    }
}
