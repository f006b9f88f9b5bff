//! The command under test: started, held at a gate until everything is
//! attached, waited for.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::capture::Outputs;
use crate::error::hinted;

/// A command that cannot be started, as the shell tells it.
#[derive(Debug)]
pub struct CannotStart {
    /// 127 when there is no such command, 126 when it is not executable.
    pub status: i32,
    /// What was said of it.
    pub error: anyhow::Error,
}

/// Finds the file that `execvp` would run.
///
/// # Errors
///
/// 127 or 126, with the shell's meaning.
pub fn resolve(command: &OsString) -> Result<PathBuf, CannotStart> {
    let not_found = || CannotStart {
        status: 127,
        error: hinted(
            format!("{}: command not found", command.display()),
            ["give its path, or look at $PATH; sudo resets it"],
        ),
    };
    if command.is_empty() {
        return Err(not_found());
    }
    if command.as_bytes().contains(&b'/') {
        return check_executable(Path::new(command)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => not_found(),
            _ => not_executable(command, &error),
        });
    }
    let path = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut denied = None;
    for directory in env::split_paths(&path) {
        match check_executable(&directory.join(command)) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = Some(error),
            Err(_) => {}
        }
    }
    Err(match denied {
        Some(error) => not_executable(command, &error),
        None => not_found(),
    })
}

fn not_executable(command: &OsString, error: &io::Error) -> CannotStart {
    CannotStart {
        status: 126,
        error: hinted(
            format!("{}: cannot be executed: {error}", command.display()),
            ["is it a program, and has it the x permission (ls -l)?"],
        ),
    }
}

fn check_executable(path: &Path) -> io::Result<PathBuf> {
    let metadata = path.metadata()?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(path.to_owned())
}

/// How a workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status; 128+N when signal N ended it.
    pub status: i32,
}

/// A started command. Until [`release`](Self::release) it waits at a gate; if
/// this process ends before, so does it.
#[derive(Debug)]
pub struct Workload {
    /// What was typed.
    name: OsString,
    pid: libc::pid_t,
    pidfd: OwnedFd,
    gate: Option<File>,
    exec_error: File,
    waited: bool,
}

impl Workload {
    /// Forks the command's process. Call it while this process has one thread,
    /// and before anything is attached: the child inherits what is open.
    ///
    /// `signals` is the mask the command starts with; `outputs` take the place of
    /// stdout and stderr.
    ///
    /// # Errors
    ///
    /// When a process or descriptor limit is reached, or an argument has a NUL.
    pub fn spawn(
        command: &[OsString],
        signals: &libc::sigset_t,
        outputs: Option<Outputs>,
    ) -> anyhow::Result<Self> {
        let arguments: Vec<CString> = command
            .iter()
            .map(|argument| CString::new(argument.clone().into_vec()))
            .collect::<Result<_, _>>()
            .context("an argument of the command contains a NUL byte")?;
        let pointers: Vec<*const libc::c_char> = arguments
            .iter()
            .map(|argument| argument.as_ptr())
            .chain([std::ptr::null()])
            .collect();
        let places: Vec<(i32, i32)> = outputs
            .iter()
            .flat_map(|outputs| &outputs.ends)
            .flat_map(|(end, places)| places.iter().map(|&place| (end.as_raw_fd(), place)))
            .collect();
        let (gate_out, gate_in) = pipe().context("making a pipe")?;
        let (error_out, error_in) = pipe().context("making a pipe")?;
        // SAFETY: this process has one thread, so the child may go on as it
        // likes; it only makes system calls until it executes the command.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            let error = io::Error::last_os_error();
            return Err(hinted(
                format!("starting {}: fork: {error}", command[0].display()),
                ["the limit on processes may be reached: ulimit -u"],
            ));
        }
        if pid == 0 {
            drop(gate_in);
            // SAFETY: as for the fork; `pointers` ends with a null.
            unsafe {
                child(
                    &pointers,
                    signals,
                    &places,
                    gate_out.as_raw_fd(),
                    error_in.as_raw_fd(),
                )
            }
        }
        // SAFETY: pidfd_open takes numbers; the pid is our unreaped child's.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if pidfd < 0 {
            return Err(io::Error::last_os_error()).context("pidfd_open (Linux 5.3)");
        }
        Ok(Self {
            name: command[0].clone(),
            pid,
            // SAFETY: a descriptor the kernel just made for us; close-on-exec.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd as i32) },
            gate: Some(gate_in.into()),
            exec_error: error_out.into(),
            waited: false,
        })
    }

    /// Its process id, in the caller's PID namespace.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// A descriptor that becomes readable when it ends.
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Lets it run. One that is gone already, because a signal ended it at the
    /// gate, is waited for like any other.
    pub fn release(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            // EPIPE and nothing else: the gate is a pipe of ours with room.
            let _ = gate.write_all(&[1]);
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        super::run::has_ended(&self.pidfd)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        if !self.waited {
            // SAFETY: the pid is our unreaped child's.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Reaps it; blocks until it has ended.
    ///
    /// # Errors
    ///
    /// When it never became the command: what `execvp` said.
    pub fn wait(&mut self) -> Result<Exit, CannotStart> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is writable.
            let result = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
            if result == self.pid {
                break;
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(CannotStart {
                    status: 125,
                    error: anyhow::Error::new(error).context("waiting for the command"),
                });
            }
        }
        self.waited = true;
        let mut errno = [0; 4];
        if self.exec_error.read_exact(&mut errno).is_ok() {
            let error = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
            let status = if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            };
            return Err(CannotStart {
                status,
                error: hinted(
                    format!("{}: cannot be executed: {error}", self.name.display()),
                    ["if it is a script, look at the interpreter in its first line"],
                ),
            });
        }
        let status = if libc::WIFSIGNALED(status) {
            128 + libc::WTERMSIG(status)
        } else {
            libc::WEXITSTATUS(status)
        };
        Ok(Exit { status })
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        // Still at the gate: it ends when the gate closes.
        if self.gate.take().is_some() && !self.waited {
            // SAFETY: the pid is our unreaped child's.
            unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        }
    }
}

/// The child's side.
///
/// # Safety
///
/// Only between fork and exec of a process that had one thread; `arguments` ends
/// with a null pointer.
unsafe fn child(
    arguments: &[*const libc::c_char],
    signals: &libc::sigset_t,
    places: &[(i32, i32)],
    gate: i32,
    error: i32,
) -> ! {
    let mut byte = 0_u8;
    // SAFETY: system calls on descriptors and memory of this process.
    unsafe {
        // Rust ignores SIGPIPE and exec keeps that; a command expects neither.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigprocmask(libc::SIG_SETMASK, signals, std::ptr::null_mut());
        while libc::read(gate, (&raw mut byte).cast(), 1) < 0
            && *libc::__errno_location() == libc::EINTR
        {}
        if byte == 0 {
            libc::_exit(125);
        }
        for &(end, place) in places {
            libc::dup2(end, place);
        }
        libc::execvp(arguments[0], arguments.as_ptr());
        let errno = *libc::__errno_location();
        libc::write(error, (&raw const errno).cast(), size_of::<i32>());
        libc::_exit(if errno == libc::ENOENT { 127 } else { 126 });
    }
}

/// A pipe: reading end, writing end.
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for both descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: descriptors the kernel just made for us.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_as_the_shell_finds_them() {
        assert!(resolve(&"sh".into()).unwrap().ends_with("sh"));
        assert!(resolve(&"/bin/sh".into()).is_ok());
        for (command, status) in [
            ("no-such-command-at-all", 127),
            ("/no/such/file", 127),
            ("/etc/passwd/x", 127),
            ("", 127),
            ("/etc/passwd", 126),
            ("/etc", 126),
            ("./", 126),
        ] {
            let refused = resolve(&command.into()).unwrap_err();
            assert_eq!(refused.status, status, "{command}");
            assert!(!crate::error::hints(&refused.error).is_empty());
        }
    }
}
