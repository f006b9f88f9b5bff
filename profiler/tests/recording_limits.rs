//! What a recording does when the disk or the memory ends.

#![allow(
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    reason = "helpers of tests are tests too"
)]

mod recording_common;
mod skip;

use std::fs;
use std::path::Path;

use profiler::error::hints;
use profiler::recording::{
    Frame, Header, MemorySink, Sample, Sink, StackId, Symbol, TaskSwitches, Trailer, Writer, read,
};
use recording_common::{feed, temporary};

/// Runs `test` in a thread that sees a tmpfs of `bytes` at a directory of its
/// own, in a mount namespace that goes with the thread.
fn on_small_disk(bytes: u64, test: impl FnOnce(&Path) + Send) {
    let dir = temporary();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let target = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
            let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
            let none = std::ptr::null();
            // SAFETY: all strings are NUL-terminated and outlive the calls;
            // the namespace is this thread's own.
            let mounted = unsafe {
                libc::unshare(libc::CLONE_NEWNS) == 0
                    && libc::mount(
                        none,
                        c"/".as_ptr(),
                        none,
                        libc::MS_REC | libc::MS_PRIVATE,
                        none.cast(),
                    ) == 0
                    && libc::mount(
                        c"tmpfs".as_ptr(),
                        target.as_ptr(),
                        c"tmpfs".as_ptr(),
                        0,
                        options.as_ptr().cast(),
                    ) == 0
            };
            if mounted {
                test(dir.path());
            } else {
                let error = std::io::Error::last_os_error();
                let thread = std::thread::current();
                let why = format!("mounting a tmpfs needs CAP_SYS_ADMIN ({error})");
                skip::skip(thread.name().unwrap_or("recording_limits"), &why);
            }
        });
        if let Err(panic) = run.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

#[test]
fn a_full_disk_ends_the_recording_in_order() {
    for others in [0, 100_000] {
        on_small_disk(2 << 20, |dir| {
            let path = dir.join("r");
            fs::write(dir.join("other"), vec![0; others]).unwrap();
            let mut writer = Writer::create(&path, false, &Header::default()).unwrap();
            let total = 60_000;
            feed(&mut writer, total);
            assert_eq!(writer.stopped(), Some("disk_full"));
            // Others take the last free byte: the end was reserved.
            let mut filler = fs::File::create(dir.join("filler")).unwrap();
            while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
            let lost = writer.lost();
            let mut trailer = Trailer::default();
            trailer.task_switches = vec![TaskSwitches::default(); 1_000];
            let finished = writer.finish(&trailer).unwrap();
            assert!(!finished.complete);
            let recording = read(&path).unwrap();
            assert!(!recording.complete);
            assert!(
                recording.samples.len() > 10_000,
                "{}",
                recording.samples.len()
            );
            assert!(
                recording
                    .samples
                    .windows(2)
                    .all(|pair| pair[0].time_ns < pair[1].time_ns)
            );
            let kept = recording.samples.len() + recording.epochs.len() + recording.rcu.len();
            assert_eq!(kept as u64 + lost, total + 2 * total / 100);
            let counted: u64 = recording
                .trailer
                .losses
                .iter()
                .map(|loss| {
                    assert_eq!(loss.reason, "disk_full");
                    loss.count
                })
                .sum();
            assert_eq!(counted, lost);
            assert_eq!(recording.trailer.task_switches.len(), 1_000);
        });
    }
}

#[test]
fn a_trailer_too_long_for_a_full_disk_is_cut() {
    on_small_disk(1 << 20, |dir| {
        let path = dir.join("r");
        let mut writer = Writer::create(&path, false, &Header::default()).unwrap();
        feed(&mut writer, 40_000);
        let mut trailer = Trailer::default();
        trailer.task_switches = vec![TaskSwitches::default(); 20_000];
        assert!(!writer.finish(&trailer).unwrap().complete);
        let recording = read(&path).unwrap();
        assert!(recording.trailer.task_switches.len() > 1_000);
        assert!(recording.trailer.warnings[0].contains("cut short"));
    });
}

#[test]
fn a_disk_too_small_for_anything_is_an_error_at_the_start() {
    on_small_disk(128 << 10, |dir| {
        let error = Writer::create(&dir.join("r"), false, &Header::default()).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
        assert!(!hints(&error).is_empty());
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    });
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn distinct_stacks(sink: &mut dyn Sink, count: u32) -> StackId {
    let frames: Vec<_> = (0..100_000_u64)
        .map(|n| {
            let symbol = sink.intern_symbol(&Symbol {
                name: format!("symbol_number_{n}"),
                module: String::new(),
            });
            sink.intern_frame(&Frame {
                addr: n,
                symbol,
                offset: 0,
            })
        })
        .collect();
    let comm = sink.intern_comm("many");
    let mut last = 0;
    for n in 0..count as usize {
        let stack: [_; 24] = std::array::from_fn(|depth| frames[(n + depth * n / 7) % 100_000]);
        let kernel_stack = sink.intern_stack(&stack);
        assert!(kernel_stack > last, "ids are unique");
        last = kernel_stack;
        sink.sample(&Sample {
            comm,
            kernel_stack,
            ..Sample::default()
        });
    }
    last
}

#[test]
fn a_limit_on_file_sizes_is_a_full_disk() {
    if !alone("a_limit_on_file_sizes_is_a_full_disk") {
        return;
    }
    let limit = libc::rlimit {
        rlim_cur: 700_000,
        rlim_max: 700_000,
    };
    // SAFETY: `limit` outlives the call.
    let done = unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    assert_eq!(done, 0);
    let dir = temporary();
    let path = dir.path().join("r");
    let mut writer = Writer::create(&path, false, &Header::default()).unwrap();
    feed(&mut writer, 50_000);
    assert_eq!(writer.stopped(), Some("disk_full"));
    assert!(!writer.finish(&Trailer::default()).unwrap().complete);
    assert!(read(&path).unwrap().samples.len() > 5_000);
}

/// Whether this is the process for the test `name` alone; runs it otherwise.
fn alone(name: &str) -> bool {
    if std::env::var_os("PREEMPTPROF_TEST_ALONE").is_some() {
        return true;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env("PREEMPTPROF_TEST_ALONE", "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

// Alone in its process: other tests would add to the memory it measures.
#[test]
fn a_million_stacks_take_a_few_mib() {
    if !alone("a_million_stacks_take_a_few_mib") {
        return;
    }
    let dir = temporary();
    let path = dir.path().join("r");
    let mut writer = Writer::create(&path, false, &Header::default()).unwrap();
    let before = resident_kib();
    let last = distinct_stacks(&mut writer, 1_000_000);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB");
    writer.finish(&Trailer::default()).unwrap();
    let recording = read(&path).unwrap();
    assert_eq!(recording.stacks.len(), last as usize + 1);
    assert_eq!(recording.samples.len(), 1_000_000);
    drop(recording);
    // A minute at 997 Hz on 2 CPUs, every second stack a new one.
    let before = resident_kib();
    let mut memory = MemorySink::new(&Header::default(), MemorySink::DEFAULT_LIMIT);
    for _ in 0..2 {
        distinct_stacks(&mut memory, 60_000);
    }
    assert_eq!(memory.stopped(), None);
    let grown = resident_kib().saturating_sub(before);
    assert!(grown < 40 << 10, "{grown} KiB");
    assert_eq!(memory.finish(&Trailer::default()).samples.len(), 120_000);
}

#[test]
fn full_memory_ends_the_recording_in_order() {
    let mut memory = MemorySink::new(&Header::default(), 100_000);
    feed(&mut memory, 5_000);
    assert_eq!(memory.stopped(), Some("memory_full"));
    let lost = memory.lost();
    let recording = memory.finish(&Trailer::default());
    assert!(!recording.complete);
    let kept = recording.samples.len() + recording.epochs.len() + recording.rcu.len();
    assert_eq!(kept as u64 + lost, 5_100);
    assert!(
        recording
            .samples
            .iter()
            .all(|s| (s.kernel_stack as usize) < recording.stacks.len())
    );
    assert!(recording.trailer.warnings[0].contains("memory_full"));
}
