//! Child processes that neither outlive their parent nor fail unnoticed.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Context, Result};
use libc::pid_t;

use crate::error::hinted;

/// A child's exit status when its error has no number.
const NO_ERRNO: i32 = 254;
/// A child's exit status when it panicked.
const PANICKED: i32 = 255;

/// The processes a benchmark has started. Dropped, it kills those that are left.
#[derive(Debug)]
pub(super) struct Children {
    running: HashSet<pid_t>,
}

impl Children {
    /// Nobody yet. Children that nobody waits for (SIGCHLD ignored, as some
    /// supervisors leave it) are waited for from now on.
    pub(super) fn new() -> Self {
        let mut old = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: no new action is given; the old one fits and outlives the call.
        let known = unsafe { libc::sigaction(libc::SIGCHLD, std::ptr::null(), old.as_mut_ptr()) };
        // SAFETY: zeroed, and filled in by the kernel when the call succeeded.
        if known == 0 && unsafe { old.assume_init() }.sa_sigaction == libc::SIG_IGN {
            // SAFETY: the default action is no function of this process.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
        Self {
            running: HashSet::new(),
        }
    }

    /// Runs `body` in a new process, which is killed when this thread ends.
    ///
    /// In the child, `body` must not rely on other threads of this process.
    pub(super) fn fork(&mut self, body: impl FnOnce() -> io::Result<()>) -> Result<()> {
        // SAFETY: getpid has no preconditions.
        let parent = unsafe { libc::getpid() };
        // SAFETY: the child runs `body` and leaves by _exit, so that nothing of
        // the parent's stack is unwound or flushed twice.
        match unsafe { libc::fork() } {
            -1 => {
                let error = io::Error::last_os_error();
                let limits = format!(
                    "{} processes are running; limits: `ulimit -u`, \
                     /proc/sys/kernel/threads-max, pids.max of the cgroup",
                    self.running.len()
                );
                Err(hinted(
                    format!("cannot start another process: {error}"),
                    [limits, "use fewer groups (-g)".to_owned()],
                ))
            }
            0 => {
                die_with(parent);
                let status = match catch_unwind(AssertUnwindSafe(body)) {
                    Ok(Ok(())) => 0,
                    Ok(Err(error)) => error.raw_os_error().unwrap_or(NO_ERRNO),
                    Err(_) => PANICKED,
                };
                // SAFETY: _exit never returns and runs no handlers.
                unsafe { libc::_exit(status) }
            }
            pid => {
                self.running.insert(pid);
                Ok(())
            }
        }
    }

    /// Takes note of a child that has ended, if any has.
    pub(super) fn check(&mut self) -> Result<()> {
        while !self.running.is_empty() && self.wait_one(libc::WNOHANG)? {}
        Ok(())
    }

    /// Waits for all; the first failure is an error, and kills the others.
    pub(super) fn wait_all(&mut self) -> Result<()> {
        while !self.running.is_empty() {
            self.wait_one(0)?;
        }
        Ok(())
    }

    fn wait_one(&mut self, options: i32) -> Result<bool> {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, options) };
        match pid {
            0 => return Ok(false),
            -1 => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    return Ok(true);
                }
                return Err(error).context("cannot wait for the benchmark's processes");
            }
            _ => {}
        }
        if !self.running.remove(&pid) {
            return Ok(true);
        }
        let why = if libc::WIFSIGNALED(status) {
            format!("it was killed by signal {}", libc::WTERMSIG(status))
        } else {
            match libc::WEXITSTATUS(status) {
                0 => return Ok(true),
                NO_ERRNO => "the other end closed too early".to_owned(),
                PANICKED => "it panicked".to_owned(),
                errno => io::Error::from_raw_os_error(errno).to_string(),
            }
        };
        Err(hinted(
            format!("process {pid} of the benchmark failed: {why}"),
            ["the kernel log says more when memory ran out"],
        ))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for pid in &self.running {
            // SAFETY: a child that was not waited for keeps its number.
            unsafe {
                libc::kill(*pid, libc::SIGKILL);
                libc::waitpid(*pid, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// In a new child: be killed when `parent` ends, and end now if it has already.
pub(super) fn die_with(parent: pid_t) {
    // SAFETY: neither call passes memory; both may be made after fork.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
    }
}

/// The two ends of a pipe or socket pair.
pub(super) struct Channel {
    pub(super) rx: File,
    pub(super) tx: File,
}

/// Opens a pipe, or a pair of Unix stream sockets.
pub(super) fn channel(pipe: bool) -> Result<Channel> {
    let ends: io::Result<(OwnedFd, OwnedFd)> = if pipe {
        io::pipe().map(|(rx, tx)| (rx.into(), tx.into()))
    } else {
        UnixStream::pair().map(|(rx, tx)| (rx.into(), tx.into()))
    };
    let (rx, tx) = ends.map_err(|error| {
        let what = if pipe { "pipe" } else { "socket pair" };
        let hint = match error.raw_os_error() {
            Some(libc::EMFILE) => "too many open files: raise `ulimit -n` or use fewer groups (-g)",
            Some(libc::ENFILE) => "the system's limit is /proc/sys/fs/file-max",
            _ => "use fewer groups (-g)",
        };
        hinted(format!("cannot open another {what}: {error}"), [hint])
    })?;
    Ok(Channel {
        rx: rx.into(),
        tx: tx.into(),
    })
}

/// Waits until `file` can be read, or for `timeout_ms`; -1 is for ever.
pub(super) fn wait_readable(file: &File, timeout_ms: i32) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, which outlives the call.
    match unsafe { libc::poll(&raw mut poll, 1, timeout_ms) } {
        -1 => {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                return Ok(false);
            }
            Err(error)
        }
        ready => Ok(ready > 0),
    }
}

/// Names this thread, and the children it starts from now on.
pub(super) fn set_name(name: &std::ffi::CStr) {
    // SAFETY: a NUL-terminated string of which the kernel copies 15 bytes.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}
