//! What several tests of the recording use.

use std::collections::BTreeMap;

use profiler::recording::{Epoch, Frame, RcuEvent, Sample, Sink, Symbol};

/// A small recording made the way a run makes one.
pub(crate) fn feed(sink: &mut dyn Sink, samples: u64) {
    for n in 0..samples {
        let comm = sink.intern_comm(if n % 3 == 0 {
            "sched-messaging"
        } else {
            "kworker/0:1"
        });
        let frames: Vec<_> = (0..4 + n % 5)
            .map(|depth| {
                let symbol = sink.intern_symbol(&Symbol {
                    name: format!("function_{}", (n + depth) % 50),
                    module: String::new(),
                });
                sink.intern_frame(&Frame {
                    addr: 0xffff_ffff_8100_0000 + (n + depth) % 50 * 64,
                    symbol,
                    offset: 12,
                })
            })
            .collect();
        let kernel_stack = sink.intern_stack(&frames);
        sink.sample(&Sample {
            time_ns: n * 1_003_009,
            cpu: (n % 2) as u32,
            pid: 4711,
            comm,
            kernel_stack,
            ..Sample::default()
        });
        if n % 100 == 0 {
            let losses = BTreeMap::from([("ring_full".to_owned(), n)]);
            sink.epoch(&Epoch {
                time_ns: n,
                losses,
                ..Epoch::default()
            });
            sink.rcu(&RcuEvent {
                time_ns: n,
                comm,
                kernel_stack,
                ..RcuEvent::default()
            });
        }
    }
}

/// A directory in memory where there is one: these tests write thousands of
/// files and wait for each.
pub(crate) fn temporary() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}
