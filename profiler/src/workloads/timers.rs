//! A chain of short waits, each begun when the one before is over.
//!
//! With a jiffy of 10 ms (HZ=100) a wait of 1 ms that the kernel rounds up to
//! jiffies takes ten times as long as asked for.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::process::Children;
use super::total_time;
use crate::error::hinted;
use crate::recording::Metric;

/// How to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Via {
    /// nanosleep: a high-resolution timer
    Nanosleep,
    /// poll on nothing: a high-resolution timer with slack
    Poll,
    /// FUTEX_WAIT that nobody wakes: a high-resolution timer
    Futex,
    /// A read that times out (SO_RCVTIMEO): rounded up to jiffies
    Socket,
}

/// Options of the timers benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Waits, one after the other
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000)]
    pub count: u64,
    /// Length of a wait, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1)]
    pub wait_ms: u32,
    /// How to wait
    #[arg(long, value_enum, default_value_t = Via::Nanosleep)]
    pub via: Via,
    /// Pass each turn on through this many processes, each of which waits for the
    /// one before it with a time limit, as the parts of a container runtime do
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub hand_offs: u32,
}

/// Runs the benchmark; the metric is the total time in seconds.
///
/// # Errors
/// When the count or the wait is 0 or absurdly long, or a wait fails.
pub fn run(args: &Args) -> Result<Metric> {
    if args.count == 0 || args.wait_ms == 0 {
        let option = if args.count == 0 { "-n" } else { "--wait-ms" };
        return Err(hinted(
            format!("{option} 0: nothing to measure"),
            [format!("give {option} a number of at least 1")],
        ));
    }
    if args.wait_ms > 60_000 {
        return Err(hinted(
            format!("--wait-ms {} is too long", args.wait_ms),
            ["at most 60000 (one minute)"],
        ));
    }
    if args.hand_offs > MOST_HAND_OFFS {
        return Err(hinted(
            format!("--hand-offs {}: too many", args.hand_offs),
            [format!("at most {MOST_HAND_OFFS}")],
        ));
    }
    let wait = Duration::from_millis(args.wait_ms.into());
    let (mut socket, _other) = UnixStream::pair().context("cannot open a socket pair")?;
    socket
        .set_read_timeout(Some(wait))
        .context("cannot set a time limit (SO_RCVTIMEO)")?;
    let mut chain = Chain::start(args.hand_offs)?;
    let begin = Instant::now();
    for _ in 0..args.count {
        match args.via {
            Via::Nanosleep => {
                std::thread::sleep(wait);
                Ok(())
            }
            Via::Poll => poll(args.wait_ms),
            Via::Futex => futex(wait),
            Via::Socket => read(&mut socket),
        }
        .context("a wait failed")?;
        chain.pass().context("a hand-off failed")?;
    }
    let elapsed = begin.elapsed();
    chain.end()?;
    Ok(total_time(elapsed))
}

/// How long one process of a chain waits for the one before it, and for its
/// successor: longer than any turn takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest chain.
const MOST_HAND_OFFS: u32 = 256;

/// Processes that pass a word on in a ring, from this one to this one.
struct Chain {
    children: Children,
    ends: Option<(UnixStream, UnixStream)>,
}

impl Chain {
    fn start(length: u32) -> Result<Self> {
        let mut children = Children::new();
        if length == 0 {
            return Ok(Self {
                children,
                ends: None,
            });
        }
        let pair = || -> Result<(UnixStream, UnixStream)> {
            let (tx, rx) = UnixStream::pair().context("cannot open a socket pair")?;
            rx.set_read_timeout(Some(PATIENCE))
                .context("cannot set a time limit (SO_RCVTIMEO)")?;
            Ok((tx, rx))
        };
        let (first, mut previous) = pair()?;
        for _ in 0..length {
            let (tx, rx) = pair()?;
            let (first, own, tx) = (&first, &previous, &tx);
            children.fork(|| {
                // Inherited, and it must not keep the ring open.
                // SAFETY: the parent's copy stays; this process leaves by _exit.
                unsafe { libc::close(first.as_raw_fd()) };
                pass_on(own, tx)
            })?;
            previous = rx;
        }
        Ok(Self {
            children,
            ends: Some((first, previous)),
        })
    }

    /// Sends one word round the ring.
    fn pass(&mut self) -> io::Result<()> {
        let Some((first, last)) = &mut self.ends else {
            return Ok(());
        };
        first.write_all(&[1])?;
        last.read_exact(&mut [0])
    }

    fn end(mut self) -> Result<()> {
        // Each process ends when the one before it has.
        self.ends = None;
        self.children.wait_all()
    }
}

/// Passes words on until there are no more.
fn pass_on(mut from: &UnixStream, mut to: &UnixStream) -> io::Result<()> {
    let mut word = [0];
    loop {
        match from.read(&mut word) {
            Ok(0) => return Ok(()),
            Ok(_) => to.write_all(&word)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Prints the result in perf's manner.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, metric: &Metric) -> io::Result<()> {
    let via = format!("{:?}", args.via).to_lowercase();
    writeln!(out, "# Running 'timers' benchmark:")?;
    writeln!(
        out,
        "# Waited {} times for {} ms ({via}), one after the other{}\n",
        args.count,
        args.wait_ms,
        match args.hand_offs {
            0 => String::new(),
            hand_offs => format!(", with {hand_offs} hand-offs each"),
        }
    )?;
    writeln!(out, " {:>14}: {:.3} [sec]\n", "Total time", metric.value)?;
    let each = metric.value * 1e6 / args.count as f64;
    writeln!(out, " {each:>14.6} usecs/wait")
}

fn poll(wait_ms: u32) -> io::Result<()> {
    let timeout = i32::try_from(wait_ms).unwrap_or(i32::MAX);
    // SAFETY: no descriptors are passed.
    expect(
        unsafe { libc::poll(std::ptr::null_mut(), 0, timeout) }.into(),
        None,
    )
}

fn futex(wait: Duration) -> io::Result<()> {
    let word = AtomicU32::new(0);
    let timeout = libc::timespec {
        tv_sec: wait.as_secs() as libc::time_t,
        tv_nsec: wait.subsec_nanos().into(),
    };
    // SAFETY: the word and the time outlive the call; nobody else knows them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            0,
            &raw const timeout,
        )
    };
    expect(result, Some(libc::ETIMEDOUT))
}

fn read(socket: &mut UnixStream) -> io::Result<()> {
    match socket.read(&mut [0]) {
        Ok(_) => Err(io::Error::other("the socket had something to read")),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}

/// The result of a wait that must end by time: 0, or this errno. A signal may
/// cut a wait short.
fn expect(result: libc::c_long, errno: Option<i32>) -> io::Result<()> {
    if result == 0 && errno.is_none() {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == errno || error.kind() == io::ErrorKind::Interrupted {
        return Ok(());
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    #[test]
    fn no_wait_is_shorter_than_asked_for() {
        for via in [Via::Nanosleep, Via::Poll, Via::Futex, Via::Socket] {
            let args = Args {
                count: 5,
                wait_ms: 2,
                via,
                hand_offs: 0,
            };
            let metric = run(&args).unwrap();
            assert!(metric.value >= 0.010, "{via:?}: {}", metric.value);
            assert_eq!(
                (metric.unit.as_str(), metric.better.as_str()),
                ("s", "lower")
            );
            let mut text = Vec::new();
            print(&mut text, &args, &metric).unwrap();
            assert!(String::from_utf8(text).unwrap().contains("Total time: 0.0"));
        }
    }

    #[test]
    fn a_word_goes_round_and_the_ring_ends() {
        let args = Args {
            count: 3,
            wait_ms: 1,
            via: Via::Socket,
            hand_offs: 4,
        };
        let metric = run(&args).unwrap();
        assert!(metric.value >= 0.003);
        let mut text = Vec::new();
        print(&mut text, &args, &metric).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("with 4 hand-offs each"), "{text}");
        let long = Args {
            hand_offs: 257,
            ..args
        };
        assert!(!hints(&run(&long).unwrap_err()).is_empty());
    }

    #[test]
    fn bad_arguments_are_refused() {
        for (count, wait_ms) in [(0, 1), (1, 0), (1, u32::MAX)] {
            let via = Via::Poll;
            let error = run(&Args {
                count,
                wait_ms,
                via,
                hand_offs: 0,
            })
            .unwrap_err();
            assert!(!hints(&error).is_empty(), "{error}");
        }
    }
}
