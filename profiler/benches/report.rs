//! A report of a million samples, from the recording in memory.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::{Builder, TARGET, USER};
use criterion::{Criterion, criterion_group, criterion_main};
use profiler::catalog::Catalog;
use profiler::export::{By, folded, svg};
use profiler::model::{AnalyseOptions, Attribution, Knowledge, analyse};
use profiler::recording::{Recording, Sample};
use profiler::report::text::{self, TextOptions};

const SAMPLES: u64 = 1_000_000;
const STACKS: u32 = 4_000;
const DEPTH: u32 = 24;

/// A million samples with a few thousand stacks, a twelfth of them the option's.
fn million() -> Recording {
    let mut builder = Builder::new();
    builder.recording = common::messaging();
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
                comm: random % 40,
                pid: random % 40,
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

fn report(c: &mut Criterion) {
    let recording = million();
    let catalog = Catalog::builtin();
    let mut group = c.benchmark_group("million samples");
    group.sample_size(10);
    group.bench_function("report", |b| {
        b.iter(|| {
            let report = analyse(black_box(&recording), catalog, &AnalyseOptions::default());
            text::render(&report, &TextOptions::default())
        });
    });
    let knowledge = Knowledge::new(catalog, &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    group.bench_function("folded", |b| {
        b.iter(|| {
            let mut out = Vec::new();
            folded::write(black_box(&recording), &attribution, By::Time, &mut out)
                .expect("a vector takes everything");
            out
        });
    });
    let analysed = analyse(&recording, catalog, &AnalyseOptions::default());
    group.bench_function("svg", |b| {
        b.iter(|| {
            let mut out = Vec::new();
            svg::write(
                black_box(&recording),
                &attribution,
                &analysed,
                By::Time,
                &mut out,
            )
            .expect("there is something to draw");
            out
        });
    });
    group.finish();
}

criterion_group!(benches, report);
criterion_main!(benches);
