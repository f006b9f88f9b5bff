//! Recordings of a million samples, the same on every run.

use profiler::recording::{Frame, Recording, Sample, Symbol};

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

/// Functions of the harder recording, and tasks with a name of their own.
const FUNCTIONS: u64 = 3_000;
const TASKS: u32 = 5_000;

/// The next number of a full-period generator.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// A million samples, nearly each with a stack of its own, 20 to 63 frames deep,
/// of five thousand tasks: what an export that holds a tree of them, or a line
/// each, is worst at.
pub fn hard() -> Recording {
    let messaging = messaging();
    let mut recording = Recording {
        header: messaging.header,
        trailer: messaging.trailer,
        complete: true,
        stacks: vec![Box::default()],
        ..Recording::default()
    };
    for function in 0..FUNCTIONS {
        recording.symbols.push(Symbol {
            name: match function % 100 {
                0 => "preempt_count_add".to_owned(),
                _ => format!("subsystem_{}_function_{function}", function % 17),
            },
            module: String::new(),
        });
        for call in 0..3_u64 {
            recording.frames.push(Frame {
                addr: 0xffff_ffff_8100_0000 + function * 0x400 + call * 0x10,
                symbol: function as u32,
                offset: 16 * call as u32,
            });
        }
    }
    recording.comms = (0..TASKS)
        .map(|task| format!("kworker/u{task}:1"))
        .collect();
    let mut state = 1;
    for index in 0..SAMPLES {
        let depth = 20 + next(&mut state) % 44;
        let mut function = 1;
        let mut stack: Vec<u32> = (0..depth)
            .map(|level| {
                let call = match next(&mut state) % 100 {
                    0..85 => 0,
                    85..95 => 1,
                    _ => 2,
                };
                let frame = function * 3 + call;
                // What a function calls at a place is always the same.
                function = (frame * 2_654_435_761 + level) % FUNCTIONS;
                frame as u32
            })
            .collect();
        stack.reverse();
        let user = index.is_multiple_of(5);
        let task = next(&mut state) as u32 % (4 * TASKS);
        let id = recording.stacks.len() as u32;
        recording.stacks.push(stack.into_boxed_slice());
        recording.samples.push(Sample {
            time_ns: index * 1_003_009,
            cpu: index as u32 % 64,
            comm: task % TASKS,
            pid: task,
            tgid: task,
            kernel_stack: if user { 0 } else { id },
            user_stack: if user { id } else { 0 },
            flags: TARGET | if user { USER } else { 0 },
            ..Sample::default()
        });
    }
    recording
}
