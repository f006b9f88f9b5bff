//! A report of a million samples, from the recording in memory.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;

use common::million::million;
use criterion::{Criterion, criterion_group, criterion_main};
use profiler::catalog::Catalog;
use profiler::export::{By, folded, svg};
use profiler::model::{AnalyseOptions, Attribution, Knowledge, analyse};
use profiler::report::text::{self, TextOptions};

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
