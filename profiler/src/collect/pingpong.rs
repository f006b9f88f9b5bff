//! Context switches to be timed: two threads on one CPU and a byte between them;
//! and beside them, as a yardstick for the pace the CPU has just then, the same
//! byte back and forth within one thread.

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::pin::Pinned;

/// There and back in one batch: short, so that most batches of a busy machine
/// are nobody else's too.
const ROUNDS: usize = 8;
/// Rounds of the yardstick, to take about as long.
const YARDSTICK_ROUNDS: usize = 24;

/// What one batch took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Batch {
    /// Nanoseconds per switch.
    pub(super) switch_ns: f64,
    /// Nanoseconds per round of the yardstick, right after.
    pub(super) yardstick_ns: f64,
}

/// Two threads on one CPU: the caller, while it plays, and a partner.
pub(super) struct PingPong {
    cpu: u32,
    to: Option<PipeWriter>,
    from: PipeReader,
    to_self: PipeWriter,
    from_self: PipeReader,
    partner: Option<JoinHandle<()>>,
}

impl PingPong {
    /// Makes the partner, on `cpu` for good.
    pub(super) fn start(cpu: u32) -> io::Result<Self> {
        let (partner_from, to) = io::pipe()?;
        let (from, partner_to) = io::pipe()?;
        let (from_self, to_self) = io::pipe()?;
        // A thread begins where its maker may be.
        let _pinned = Pinned::to(cpu)?;
        let partner = std::thread::Builder::new()
            .name("calibration".to_owned())
            .spawn(move || answer(partner_from, partner_to))?;
        Ok(Self {
            cpu,
            to: Some(to),
            from,
            to_self,
            from_self,
            partner: Some(partner),
        })
    }

    /// Plays for `length`.
    pub(super) fn play(&mut self, length: Duration) -> io::Result<Vec<Batch>> {
        let _pinned = Pinned::to(self.cpu)?;
        let to = self.to.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut batches = Vec::with_capacity(1024);
        let start = Instant::now();
        let mut switches = own_switches();
        while start.elapsed() < length {
            let mut byte = [0];
            let begin = Instant::now();
            for _ in 0..ROUNDS {
                to.write_all(&byte)?;
                self.from.read_exact(&mut byte)?;
            }
            let elapsed = begin.elapsed();
            let now = own_switches();
            let count = now - switches;
            let begin = Instant::now();
            for _ in 0..YARDSTICK_ROUNDS {
                self.to_self.write_all(&byte)?;
                self.from_self.read_exact(&mut byte)?;
            }
            let yardstick = begin.elapsed();
            if count > 0 {
                batches.push(Batch {
                    switch_ns: elapsed.as_nanos() as f64 / count as f64,
                    yardstick_ns: yardstick.as_nanos() as f64 / YARDSTICK_ROUNDS as f64,
                });
            }
            switches = own_switches();
        }
        Ok(batches)
    }
}

impl Drop for PingPong {
    fn drop(&mut self) {
        // The partner reads its end.
        self.to = None;
        if let Some(partner) = self.partner.take() {
            // It does not panic; and there would be nothing to do about it.
            let _ = partner.join();
        }
    }
}

fn answer(mut from: PipeReader, mut to: PipeWriter) {
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
}

/// Switches away from this process's threads so far.
fn own_switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is writable, and zeroed in case the call fails.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw + usage.ru_nivcsw
}
