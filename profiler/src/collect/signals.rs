//! Signals as things to read.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Signals that end a run: passed on to the command, and a report is still made.
const CAUGHT: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// A caught signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// Whether the kernel sent it, as the terminal does to the whole foreground
    /// process group: the command has it already.
    pub from_kernel: bool,
}

/// Blocked signals of this process, read through a descriptor.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    came: Cell<bool>,
    /// The mask before, which a command is to start with.
    pub original: libc::sigset_t,
}

impl Signals {
    /// Blocks the signals; from now on they do not end this process.
    ///
    /// # Errors
    ///
    /// When the kernel gives no descriptor.
    pub fn block() -> io::Result<Self> {
        let mut original = MaybeUninit::uninit();
        // SAFETY: the sets are initialised by sigemptyset and sigprocmask.
        let (fd, original) = unsafe {
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            for signal in CAUGHT {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), original.as_mut_ptr());
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            (
                libc::signalfd(-1, set.as_ptr(), flags),
                original.assume_init(),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor the kernel just made for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            fd,
            came: Cell::new(false),
            original,
        })
    }

    /// The descriptor, readable when a signal has come.
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Whether one has come so far.
    pub fn came(&self) -> bool {
        while self.next().is_some() {}
        self.came.get()
    }

    /// The next signal, if one has come.
    pub fn next(&self) -> Option<Signal> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` has room for one record, and is read only when one came.
        unsafe {
            let read = libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size);
            if read != size as isize {
                return None;
            }
            let info = info.assume_init();
            self.came.set(true);
            Some(Signal {
                number: info.ssi_signo as i32,
                from_kernel: info.ssi_code == libc::SI_KERNEL,
            })
        }
    }
}
