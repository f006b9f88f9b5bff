//! A recording of a million samples, the same on every run.

use profiler::recording::{Recording, Sample};

use super::{Builder, TARGET, USER, messaging};

const SAMPLES: u64 = 1_000_000;
const STACKS: u32 = 4_000;
const DEPTH: u32 = 24;

/// A million samples with a few thousand stacks, each in all of forty tasks, a
/// twelfth of them the option's.
pub fn million() -> Recording {
    let mut builder = Builder::new();
    builder.recording = messaging();
    let mut recording = Builder::new();
    recording.recording.header = builder.recording.header;
    recording.recording.trailer = builder.recording.trailer;
    let stacks: Vec<u32> = (0..STACKS)
        .map(|stack| {
            let mut words: Vec<String> = (0..DEPTH)
                .map(|depth| {
                    // The outer frames are shared, the inner ones differ.
                    let shared = stack % (DEPTH - depth).pow(2);
                    format!("kernel_function_{depth}_{shared}+0x{:x}", 5 + shared % 64)
                })
                .collect();
            if stack % 12 == 0 {
                words.insert(0, "preempt_count_add+0x1b".to_owned());
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            recording.stack(&words)
        })
        .collect();
    for task in 0..40 {
        recording.comm(&format!("worker/{task}"));
    }
    recording.recording.samples = (0..SAMPLES)
        .map(|index| {
            // A full-period generator: the same recording on every run.
            let random = (index.wrapping_mul(6_364_136_223_846_793_005) >> 33) as u32;
            let user = random.is_multiple_of(5);
            Sample {
                time_ns: index * 1_003_009,
                comm: random / STACKS % 40,
                pid: random / STACKS % 40,
                kernel_stack: if user {
                    0
                } else {
                    stacks[(random % STACKS) as usize]
                },
                flags: TARGET | if user { USER } else { 0 },
                ..Sample::default()
            }
        })
        .collect();
    recording.recording
}
