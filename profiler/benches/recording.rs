//! How long it takes to read and to write a million samples.

use criterion::{Criterion, criterion_group, criterion_main};
use profiler::recording::{Frame, Header, Sample, Sink, Symbol, Trailer, Writer, read};

const SAMPLES: u64 = 1_000_000;

fn write(path: &std::path::Path) {
    let mut writer = Writer::create(path, true, &Header::default()).expect("a writable directory");
    let comm = writer.intern_comm("bench");
    for n in 0..SAMPLES {
        let mut frames = [0; 12];
        for (depth, id) in (0_u64..).zip(&mut frames) {
            let place = (n / 7 + depth * 31) % 500;
            let symbol = writer.intern_symbol(&Symbol {
                name: format!("function_{place}"),
                module: String::new(),
            });
            *id = writer.intern_frame(&Frame {
                addr: place << 6,
                symbol,
                offset: 8,
            });
        }
        let kernel_stack = writer.intern_stack(&frames);
        writer.sample(&Sample {
            time_ns: n,
            comm,
            kernel_stack,
            ..Sample::default()
        });
    }
    writer
        .finish(&Trailer::default())
        .expect("space on the disk");
}

fn recording(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("million.rec");
    write(&path);
    let mut group = c.benchmark_group("recording");
    group.sample_size(10);
    group.bench_function("read_1M_samples", |b| {
        b.iter(|| read(&path).expect("a recording"))
    });
    group.bench_function("write_1M_samples", |b| b.iter(|| write(&path)));
    group.finish();
}

criterion_group!(benches, recording);
criterion_main!(benches);
