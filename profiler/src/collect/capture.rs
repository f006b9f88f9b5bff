//! What the workload prints, read as it passes by.
//!
//! Its stdout and stderr are copied byte for byte to ours. Where ours is a
//! terminal the workload gets a terminal too: a pseudo-terminal with the same
//! settings and size whose output is not processed, as ours will be. Where stdout
//! and stderr are one and the same, so are the workload's, and keep their order.

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::thread::JoinHandle;

use super::workload::pipe;

/// So much of the end of each stream is kept, bytes: results come last.
const KEPT: usize = 1 << 20;
/// So much is still copied of what processes print that outlive the workload.
const AFTERWARDS: usize = 1 << 20;

/// The workload's ends; closed in this process once it has been started.
#[derive(Debug)]
pub struct Outputs {
    /// What is to become its stdout, and its stderr.
    pub(super) ends: Vec<(OwnedFd, Vec<i32>)>,
}

/// Our ends.
#[derive(Debug)]
pub struct Capture {
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    from: File,
    to: File,
}

/// Copying under way.
#[derive(Debug)]
pub struct Copying {
    threads: Vec<(OwnedFd, JoinHandle<Vec<u8>>)>,
}

impl Capture {
    /// Makes pipes or pseudo-terminals in place of our stdout and stderr.
    ///
    /// # Errors
    ///
    /// When there are no descriptors or pseudo-terminals left.
    pub fn open() -> io::Result<(Outputs, Self)> {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let mut ends = Vec::new();
        let mut streams = Vec::new();
        let mut open = |ours: BorrowedFd<'_>, as_: Vec<i32>| -> io::Result<()> {
            let to = File::from(ours.try_clone_to_owned()?);
            let (from, end) = if to.is_terminal() {
                terminal_like(&to)?
            } else {
                pipe()?
            };
            ends.push((end, as_));
            let from = File::from(from);
            streams.push(Stream { from, to });
            Ok(())
        };
        if is_same(1, 2) {
            open(stdout.as_fd(), vec![1, 2])?;
        } else {
            open(stdout.as_fd(), vec![1])?;
            open(stderr.as_fd(), vec![2])?;
        }
        Ok((Outputs { ends }, Self { streams }))
    }

    /// Begins to copy, in threads of its own: no process may be forked until
    /// [`Copying::finish`].
    ///
    /// # Errors
    ///
    /// When a thread or descriptor limit is reached.
    pub fn start(self) -> io::Result<Copying> {
        let mut threads = Vec::new();
        for stream in self.streams {
            let (stop, stopper) = pipe()?;
            let thread = std::thread::Builder::new()
                .name("output".to_owned())
                .spawn(move || stream.copy(&stop))?;
            threads.push((stopper, thread));
        }
        Ok(Copying { threads })
    }
}

impl Copying {
    /// Ends it, once the workload has ended: the end of what was printed, stdout
    /// first. What processes that outlive the workload print later goes nowhere.
    pub fn finish(self) -> Vec<u8> {
        let mut kept = Vec::new();
        for (stopper, thread) in self.threads {
            drop(stopper);
            kept.extend(thread.join().unwrap_or_default());
            kept.push(b'\n');
        }
        kept
    }
}

impl Stream {
    fn copy(mut self, stop: &OwnedFd) -> Vec<u8> {
        let mut kept = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut left = None;
        loop {
            let (readable, stopped) = wait(&self.from, stop);
            if stopped && left.is_none() {
                left = Some(AFTERWARDS);
            }
            if !readable || left == Some(0) {
                if stopped {
                    break;
                }
                continue;
            }
            // A pseudo-terminal whose other end is closed gives EIO.
            let bytes = match self.from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => &buffer[..length],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            if let Some(left) = &mut left {
                *left = left.saturating_sub(bytes.len());
            }
            // Nobody reads it any more: closing our end tells the workload so.
            if write_all(&mut self.to, bytes).is_err() {
                break;
            }
            kept.extend_from_slice(bytes);
            if kept.len() > 2 * KEPT {
                kept.drain(..kept.len() - KEPT);
            }
        }
        kept.drain(..kept.len().saturating_sub(KEPT));
        kept
    }
}

/// Writes all of it, also where someone made stdout non-blocking.
fn write_all(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd {
                    fd: to.as_raw_fd(),
                    events: libc::POLLOUT,
                    revents: 0,
                };
                // SAFETY: one valid structure.
                unsafe { libc::poll(&raw mut poll, 1, -1) };
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until there is something to read, or the other end is closed, or it is
/// to stop: which of them.
fn wait(from: &File, stop: &OwnedFd) -> (bool, bool) {
    let poll = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut polls = [poll(from.as_raw_fd()), poll(stop.as_raw_fd())];
    // SAFETY: two valid structures.
    unsafe { libc::poll(polls.as_mut_ptr(), 2, -1) };
    (polls[0].revents != 0, polls[1].revents != 0)
}

/// Whether two descriptors are of the same open file or device.
fn is_same(a: i32, b: i32) -> bool {
    let stat = |fd| {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: `stat` is writable, and read only when it was filled in.
        unsafe {
            (libc::fstat(fd, stat.as_mut_ptr()) == 0).then(|| {
                let stat = stat.assume_init();
                (stat.st_dev, stat.st_ino)
            })
        }
    };
    matches!((stat(a), stat(b)), (Some(a), Some(b)) if a == b)
}

/// A pseudo-terminal that looks like `terminal`: our end, and the workload's.
fn terminal_like(terminal: &File) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut settings = std::mem::MaybeUninit::<libc::termios>::zeroed();
    let mut size = std::mem::MaybeUninit::<libc::winsize>::zeroed();
    let (mut ours, mut theirs) = (-1, -1);
    // SAFETY: all arguments are writable and of the types asked for; zeroes are a
    // valid termios and a valid winsize.
    let opened = unsafe {
        let has_settings = libc::tcgetattr(terminal.as_raw_fd(), settings.as_mut_ptr()) == 0;
        libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr());
        let settings = settings.assume_init_mut();
        // What comes through is processed by the real terminal, once.
        settings.c_oflag &= !libc::OPOST;
        libc::openpty(
            &raw mut ours,
            &raw mut theirs,
            std::ptr::null_mut(),
            if has_settings {
                settings
            } else {
                std::ptr::null_mut()
            },
            size.as_mut_ptr(),
        )
    };
    if opened != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: descriptors that were just made for us; this process has one thread,
    // so that none is inherited before it is marked.
    unsafe {
        for fd in [ours, theirs] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        Ok((OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)))
    }
}
