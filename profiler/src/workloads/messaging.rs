//! `perf bench sched messaging`: groups of senders and receivers, all to all.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::process::{Channel, Children, channel, set_name, wait_readable};
use super::total_time;
use crate::error::hinted;
use crate::recording::Metric;

/// Senders in a group, and receivers.
const PER_GROUP: u64 = 20;
/// Length of a message.
const MESSAGE: usize = 100;

/// Options of the messaging benchmark; those of `perf bench sched messaging`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Groups of 20 senders and 20 receivers
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    pub group: u64,
    /// Messages from each sender to each receiver of its group
    #[arg(
        short = 'l',
        long = "nr_loops",
        visible_alias = "nr-loops",
        value_name = "N",
        default_value_t = 100
    )]
    pub loops: u64,
    /// Use pipes instead of socket pairs
    #[arg(short, long)]
    pub pipe: bool,
    /// Use threads instead of processes
    #[arg(short, long)]
    pub thread: bool,
}

/// Runs the benchmark; the metric is the total time in seconds.
///
/// # Errors
/// When an argument is 0, when the system's limits do not allow so many
/// processes or files, or when a process of the benchmark fails.
pub fn run(args: &Args) -> Result<Metric> {
    let messages = check(args)?;
    set_name(c"sched-messaging");
    let (elapsed, received) = if args.thread {
        run_threads(args)?
    } else {
        run_processes(args)?
    };
    if received != messages {
        return Err(anyhow!("{received} of {messages} messages arrived"));
    }
    Ok(total_time(elapsed))
}

/// Prints what perf prints.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, metric: &Metric) -> io::Result<()> {
    let kind = if args.thread { "threads" } else { "processes" };
    writeln!(out, "# Running 'sched/messaging' benchmark:")?;
    writeln!(out, "# {PER_GROUP} sender and receiver {kind} per group")?;
    let (groups, tasks) = (args.group, args.group * 2 * PER_GROUP);
    writeln!(out, "# {groups} groups == {tasks} {kind} run\n")?;
    writeln!(out, " {:>14}: {:.3} [sec]", "Total time", metric.value)
}

/// Checks the arguments against the system's limits; how many messages there
/// will be.
fn check(args: &Args) -> Result<u64> {
    if args.group == 0 || args.loops == 0 {
        let option = if args.group == 0 { "-g" } else { "-l" };
        return Err(hinted(
            format!("{option} 0: nothing to measure"),
            [format!("give {option} a number of at least 1")],
        ));
    }
    let too_many = || {
        hinted(
            format!("-g {} -l {}: too many messages", args.group, args.loops),
            ["use fewer groups (-g) or loops (-l)"],
        )
    };
    let messages = PER_GROUP
        .checked_pow(2)
        .and_then(|pairs| pairs.checked_mul(args.group))
        .and_then(|pairs| pairs.checked_mul(args.loops))
        .ok_or_else(too_many)?;
    let tasks = args.group.checked_mul(2 * PER_GROUP).ok_or_else(too_many)?;
    for path in ["/proc/sys/kernel/threads-max", "/proc/sys/kernel/pid_max"] {
        let limit = fs::read_to_string(path).ok();
        let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
        if let Some(limit) = limit.filter(|limit| *limit <= tasks) {
            return Err(hinted(
                format!("-g {} needs {tasks} processes or threads", args.group),
                [
                    format!("this system allows {limit} ({path})"),
                    format!(
                        "use at most -g {}",
                        limit.saturating_sub(1) / (2 * PER_GROUP)
                    ),
                ],
            ));
        }
    }
    if args.thread {
        // Threads share one table of files: two for each receiver.
        allow_files(args, args.group * 2 * PER_GROUP + 64)?;
    }
    Ok(messages)
}

/// Raises the soft limit of open files as far as needed and allowed.
fn allow_files(args: &Args, wanted: u64) -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error()).context("cannot read the limit of open files");
    }
    if limit.rlim_cur >= wanted {
        return Ok(());
    }
    let hard = limit.rlim_max;
    limit.rlim_cur = wanted;
    // SAFETY: `limit` outlives the call.
    if wanted > hard || unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(hinted(
            format!("-g {} with threads needs {wanted} open files", args.group),
            [
                format!("the limit is {hard} (`ulimit -Hn`)"),
                "leave out -t, raise the limit, or use fewer groups (-g)".to_owned(),
            ],
        ));
    }
    Ok(())
}

/// Tells that this worker is ready, and waits for the start.
fn ready(mut ready: &File, start: &File) -> io::Result<()> {
    ready.write_all(b"R")?;
    // The byte is never read: one wakes all.
    while !wait_readable(start, -1)? {}
    Ok(())
}

fn send(outputs: &[File], loops: u64) -> io::Result<()> {
    let message = [b'S'; MESSAGE];
    for _ in 0..loops {
        for mut output in outputs {
            output.write_all(&message)?;
        }
    }
    Ok(())
}

fn receive(mut input: &File, messages: u64) -> io::Result<()> {
    let mut message = [0; MESSAGE];
    for _ in 0..messages {
        input.read_exact(&mut message)?;
    }
    Ok(())
}

fn run_processes(args: &Args) -> Result<(Duration, u64)> {
    let report = channel(args.pipe)?;
    let start = channel(args.pipe)?;
    let received = SharedCounter::new()?;
    let mut children = Children::new();
    for _ in 0..args.group {
        let mut outputs = Vec::with_capacity(PER_GROUP as usize);
        for _ in 0..PER_GROUP {
            let Channel { rx, tx } = channel(args.pipe)?;
            let mut ends = Some((rx, tx));
            children.fork(|| {
                // Only the senders keep the sending end open.
                let Some((rx, _)) = ends.take() else {
                    return Ok(());
                };
                ready(&report.tx, &start.rx)?;
                receive(&rx, PER_GROUP * args.loops)?;
                received
                    .get()
                    .fetch_add(PER_GROUP * args.loops, Ordering::Relaxed);
                Ok(())
            })?;
            let Some((rx, tx)) = ends else { continue };
            drop(rx);
            outputs.push(tx);
        }
        for _ in 0..PER_GROUP {
            children.fork(|| {
                ready(&report.tx, &start.rx)?;
                send(&outputs, args.loops)
            })?;
        }
    }
    await_ready(&report.rx, args.group * 2 * PER_GROUP, || children.check())?;
    let begin = Instant::now();
    (&start.tx).write_all(b"G")?;
    children.wait_all()?;
    Ok((begin.elapsed(), received.get().load(Ordering::Relaxed)))
}

/// Waits for `workers` bytes, looking now and then whether a worker has failed.
fn await_ready(
    mut report: &File,
    workers: u64,
    mut check: impl FnMut() -> Result<()>,
) -> Result<()> {
    let mut missing = workers;
    while missing > 0 {
        if !wait_readable(report, 100)? {
            check()?;
            continue;
        }
        report
            .read_exact(&mut [0])
            .context("cannot read the workers' reports")?;
        missing -= 1;
    }
    Ok(())
}

/// A counter that parent and children see alike.
struct SharedCounter(std::ptr::NonNull<AtomicU64>);

impl SharedCounter {
    fn new() -> Result<Self> {
        // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<AtomicU64>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).context("cannot map a page to count in");
        }
        std::ptr::NonNull::new(page.cast())
            .map(Self)
            .context("cannot map a page to count in")
    }

    fn get(&self) -> &AtomicU64 {
        // SAFETY: the mapping is page-aligned, zeroed, lives as long as self,
        // and is only used through this atomic.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for SharedCounter {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; no reference outlives self.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<AtomicU64>()) };
    }
}

/// What the worker threads share.
struct Shared {
    report: Channel,
    start: Channel,
    /// Not all threads could be started: end at the start signal.
    abort: AtomicBool,
}

/// Workers that can be waited for in the order in which they end.
struct Workers {
    shared: Arc<Shared>,
    sender: mpsc::Sender<io::Result<u64>>,
    results: mpsc::Receiver<io::Result<u64>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    fn spawn(&mut self, body: impl FnOnce() -> io::Result<u64> + Send + 'static) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let sender = self.sender.clone();
        let work = move || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                ready(&shared.report.tx, &shared.start.rx)?;
                if shared.abort.load(Ordering::Relaxed) {
                    return Ok(0);
                }
                body()
            }));
            // Nobody listens any more once another worker has failed.
            let _ = sender.send(result.unwrap_or_else(|_| Err(io::Error::other("it panicked"))));
        };
        // perf's threads have small stacks too: a million pages add up.
        let builder = thread::Builder::new().stack_size(64 << 10);
        match builder.spawn(work) {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                let running = self.threads.len();
                self.shared.abort.store(true, Ordering::Relaxed);
                if (&self.shared.start.tx).write_all(b"G").is_ok() {
                    for thread in self.threads.drain(..) {
                        let _ = thread.join();
                    }
                }
                let limits = format!(
                    "{running} threads are running; limits: `ulimit -u`, \
                     /proc/sys/kernel/threads-max, pids.max of the cgroup"
                );
                Err(hinted(
                    format!("cannot start another thread: {error}"),
                    [limits, "use fewer groups (-g)".to_owned()],
                ))
            }
        }
    }

    /// Waits for all; the first failure is an error. The others may then be
    /// blocked for good and are left to the end of the process.
    fn wait_all(self) -> Result<u64> {
        let mut received = 0;
        for _ in 0..self.threads.len() {
            received += self
                .results
                .recv()
                .context("a thread of the benchmark ended without a result")?
                .context("a thread of the benchmark failed")?;
        }
        for thread in self.threads {
            let _ = thread.join();
        }
        Ok(received)
    }
}

fn run_threads(args: &Args) -> Result<(Duration, u64)> {
    let shared = Arc::new(Shared {
        report: channel(args.pipe)?,
        start: channel(args.pipe)?,
        abort: AtomicBool::new(false),
    });
    let (sender, results) = mpsc::channel();
    let mut workers = Workers {
        shared: Arc::clone(&shared),
        sender,
        results,
        threads: Vec::new(),
    };
    let loops = args.loops;
    // All ends stay open until the clock has stopped, as in perf.
    let mut open = Vec::new();
    let mut all_outputs = Vec::new();
    for _ in 0..args.group {
        let mut outputs = Vec::with_capacity(PER_GROUP as usize);
        for _ in 0..PER_GROUP {
            let Channel { rx, tx } = channel(args.pipe)?;
            outputs.push(tx);
            let rx = Arc::new(rx);
            open.push(Arc::clone(&rx));
            workers.spawn(move || {
                receive(&rx, PER_GROUP * loops)?;
                Ok(PER_GROUP * loops)
            })?;
        }
        let outputs = Arc::new(outputs);
        all_outputs.push(Arc::clone(&outputs));
        for _ in 0..PER_GROUP {
            let outputs = Arc::clone(&outputs);
            workers.spawn(move || send(&outputs, loops).map(|()| 0))?;
        }
    }
    await_ready(&shared.report.rx, args.group * 2 * PER_GROUP, || Ok(()))?;
    let begin = Instant::now();
    (&shared.start.tx).write_all(b"G")?;
    let received = workers.wait_all()?;
    let elapsed = begin.elapsed();
    drop((open, all_outputs));
    Ok((elapsed, received))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    fn args(group: u64, loops: u64) -> Args {
        Args {
            group,
            loops,
            pipe: false,
            thread: false,
        }
    }

    #[test]
    fn absurd_arguments_are_refused_before_anything_starts() {
        for (group, loops) in [(0, 1), (1, 0), (1 << 40, 1), (u64::MAX, 2), (2, u64::MAX)] {
            let error = run(&args(group, loops)).unwrap_err();
            assert!(!hints(&error).is_empty(), "{error}");
        }
        let threads = Args {
            thread: true,
            ..args(60_000, 1)
        };
        // Refused for the number of threads or of files, by the system's limits.
        assert!(run(&threads).is_err());
        assert_eq!(check(&args(3, 7)).unwrap(), 3 * 20 * 20 * 7);
    }

    #[test]
    fn prints_as_perf_does() {
        let metric = total_time(Duration::from_micros(23_400));
        let mut text = Vec::new();
        print(&mut text, &args(16, 1000), &metric).unwrap();
        let expected = "# Running 'sched/messaging' benchmark:\n\
                        # 20 sender and receiver processes per group\n\
                        # 16 groups == 640 processes run\n\n     Total time: 0.023 [sec]\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }
}
