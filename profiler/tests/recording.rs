//! The recording file: what goes in comes out, and nothing else is believed.

#![allow(
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    reason = "helpers of tests are tests too"
)]

mod recording_common;

use std::fs;
use std::path::{Path, PathBuf};

use profiler::error::hints;
use profiler::recording::{
    Epoch, Frame, Header, Loss, MemorySink, RcuEvent, Recording, Sample, Sink, SwitchCounts,
    Symbol, Target, TaskSwitches, Trailer, Writer, read, salvage, save,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use recording_common::{feed, temporary};

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z_:;<> \n]{0,12}", ".{0,6}"]
}

fn switches() -> impl Strategy<Value = SwitchCounts> {
    any::<(u64, u64)>().prop_map(|(voluntary, preempted)| SwitchCounts {
        voluntary,
        preempted,
    })
}

fn header() -> impl Strategy<Value = Header> {
    (
        vec(name(), 0..4),
        name(),
        any::<[u64; 3]>(),
        vec(any::<u32>(), 0..3),
    )
        .prop_map(|(command, release, [epoch_ns, unix, mono], pids)| {
            let mut header = Header {
                tool_version: "0.1.0".into(),
                command,
                target: Target::Pids { pids },
                epoch_ns,
                started_unix_ns: unix,
                started_mono_ns: mono,
                imported: None,
                ..Header::default()
            };
            header
                .kernel
                .config
                .0
                .insert("CONFIG_HZ".into(), release.clone());
            header.kernel.release = release;
            header.machine.steal = Some(0.1 + 0.2);
            header
        })
}

fn trailer() -> impl Strategy<Value = Trailer> {
    let number = prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO;
    let losses = vec((any::<u32>(), name(), any::<u64>()), 0..3);
    (
        number,
        proptest::option::of(switches()),
        losses,
        vec((name(), switches()), 0..4),
    )
        .prop_map(|(wall_s, switches, losses, tasks)| {
            let mut trailer = Trailer {
                switches,
                losses: losses
                    .into_iter()
                    .map(|(cpu, reason, count)| Loss { cpu, reason, count })
                    .collect(),
                task_switches: tasks
                    .into_iter()
                    .map(|(comm, counts)| TaskSwitches {
                        pid: 7,
                        comm,
                        counts,
                    })
                    .collect(),
                ..Trailer::default()
            };
            trailer.run.wall_s = wall_s;
            trailer.run.exit_code = Some(-1);
            trailer
        })
}

prop_compose! {
    fn recording()(
        header in header(),
        trailer in trailer(),
        comms in vec(name(), 1..5),
        symbols in vec((name(), name()), 1..6),
        frames in vec(any::<(u64, prop::sample::Index, u32)>(), 1..8),
        stacks in vec(vec(any::<prop::sample::Index>(), 0..6), 0..6),
        samples in vec((any::<[u64; 3]>(), any::<[u32; 4]>(), any::<[prop::sample::Index; 3]>()), 0..40),
        epochs in vec((any::<[u64; 3]>(), switches(), switches(), btree_map(name(), any::<u64>(), 0..3)), 0..6),
        rcu in vec((any::<[u64; 2]>(), any::<[u32; 2]>(), any::<[prop::sample::Index; 2]>(), any::<bool>()), 0..6),
        complete in any::<bool>(),
    ) -> Recording {
        let symbols: Vec<_> =
            symbols.into_iter().map(|(name, module)| Symbol { name, module }).collect();
        let id = |index: &prop::sample::Index, len: usize| index.index(len) as u32;
        let frames: Vec<_> = frames
            .iter()
            .map(|(addr, symbol, offset)| Frame { addr: *addr, symbol: id(symbol, symbols.len()), offset: *offset })
            .collect();
        let mut all: Vec<Box<[u32]>> = vec![Box::default()];
        all.extend(stacks.iter().map(|stack| {
            stack.iter().map(|frame| id(frame, frames.len())).collect::<Box<[u32]>>()
        }));
        let stacks = all;
        let samples = samples.iter().map(|([time_ns, ip, cgroup_id], [cpu, pid, tgid, flags], ids)| Sample {
            time_ns: *time_ns, ip: *ip, cgroup_id: *cgroup_id, cpu: *cpu, pid: *pid, tgid: *tgid,
            comm: id(&ids[0], comms.len()),
            kernel_stack: id(&ids[1], stacks.len()),
            user_stack: id(&ids[2], stacks.len()),
            flags: *flags,
        }).collect();
        let epochs = epochs.into_iter().map(|([time_ns, hits, idle], switches, other, losses)| Epoch {
            cpu: hits as u32, time_ns, switches, other_switches: other,
            sampler_hits: hits, idle_samples: idle, losses,
        }).collect();
        let rcu = rcu.iter().map(|([time_ns, duration_ns], [pid, tgid], ids, target)| RcuEvent {
            time_ns: *time_ns, duration_ns: *duration_ns, pid: *pid, tgid: *tgid,
            comm: id(&ids[0], comms.len()), kernel_stack: id(&ids[1], stacks.len()), target: *target,
        }).collect();
        Recording { header, trailer, comms, symbols, frames, stacks, samples, epochs, rcu, complete }
    }
}

fn small(dir: &Path) -> (PathBuf, Vec<u8>) {
    let path = dir.join("small.rec");
    let mut writer = Writer::create(&path, true, &Header::default()).unwrap();
    feed(&mut writer, 5);
    writer.flush();
    feed(&mut writer, 2);
    assert!(writer.finish(&Trailer::default()).unwrap().complete);
    let bytes = fs::read(&path).unwrap();
    (path, bytes)
}

/// Whether `part` is what the first chunks of `whole` hold.
fn is_prefix(part: &Recording, whole: &Recording) -> bool {
    whole.comms.starts_with(&part.comms)
        && whole.symbols.starts_with(&part.symbols)
        && whole.frames.starts_with(&part.frames)
        && whole.stacks.starts_with(&part.stacks)
        && whole.samples.starts_with(&part.samples)
        && whole.epochs.starts_with(&part.epochs)
        && whole.rcu.starts_with(&part.rcu)
        && part.header == whole.header
        && (part.trailer == whole.trailer || part.trailer == Trailer::default())
        && !part.complete
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn arbitrary_recordings_round_trip(recording in recording()) {
        let dir = temporary();
        let path = dir.path().join("r");
        save(&recording, &path, false).unwrap();
        prop_assert_eq!(read(&path).unwrap(), recording.clone());
        let salvaged = salvage(&path).unwrap();
        prop_assert_eq!(salvaged.problem, None);
        prop_assert_eq!(salvaged.recording, recording);
    }

    #[test]
    fn random_bytes_are_refused(
        mut bytes in vec(any::<u8>(), 0..600),
        start in 0_usize..3,
    ) {
        let dir = temporary();
        let (_, good) = small(dir.path());
        // Also behind a good prologue, and behind a good header chunk.
        let header_len = u32::from_le_bytes(good[20..24].try_into().unwrap()) as usize;
        let mut input = good[..[0, 16, 28 + header_len][start]].to_vec();
        input.append(&mut bytes);
        let path = dir.path().join("random");
        fs::write(&path, &input).unwrap();
        prop_assert!(read(&path).is_err());
        let _ = salvage(&path);
    }

    #[test]
    fn scrambled_payloads_with_good_checksums_never_panic(
        at in any::<prop::sample::Index>(), value in any::<u32>(), kind in 1_u32..11,
    ) {
        let dir = temporary();
        let (path, mut bytes) = small(dir.path());
        let whole = read(&path).unwrap();
        // Overwrites a word in one chunk, and corrects its checksum.
        let mut chunk = 16;
        loop {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let len = word(chunk + 4) as usize;
            if word(chunk) == kind && len >= 4 {
                let word = chunk + 12 + at.index(len - 3);
                bytes[word..word + 4].copy_from_slice(&value.to_le_bytes());
                let mut crc = crc32fast::Hasher::new();
                crc.update(&bytes[chunk..chunk + 8]);
                crc.update(&bytes[chunk + 12..chunk + 12 + len]);
                let crc = crc.finalize().to_le_bytes();
                bytes[chunk + 8..chunk + 12].copy_from_slice(&crc);
                break;
            }
            chunk += 12 + len;
        }
        fs::write(&path, &bytes).unwrap();
        if let Ok(found) = salvage(&path) {
            let r = &found.recording;
            for sample in &r.samples {
                prop_assert!((sample.kernel_stack as usize) < r.stacks.len());
                prop_assert!((sample.comm as usize) < r.comms.len());
            }
            for stack in &r.stacks {
                prop_assert!(stack.iter().all(|frame| (*frame as usize) < r.frames.len()));
            }
            prop_assert!(r.frames.iter().all(|frame| (frame.symbol as usize) < r.symbols.len()));
            prop_assert!(r.samples.len() <= whole.samples.len());
        }
    }
}

#[test]
fn any_single_byte_changed_is_noticed() {
    let dir = temporary();
    let (path, bytes) = small(dir.path());
    let whole = read(&path).unwrap();
    let mut salvaged = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            fs::write(&path, &damaged).unwrap();
            assert!(read(&path).is_err(), "byte {at} ^ {flip:#x}");
            if let Ok(found) = salvage(&path) {
                assert!(found.problem.is_some(), "byte {at} ^ {flip:#x}");
                assert!(is_prefix(&found.recording, &whole), "byte {at} ^ {flip:#x}");
                salvaged += 1;
            }
        }
    }
    assert!(salvaged > bytes.len());
}

#[test]
fn any_truncation_is_noticed() {
    let dir = temporary();
    let (path, bytes) = small(dir.path());
    let whole = read(&path).unwrap();
    let mut most = 0;
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).unwrap();
        let error = read(&path).unwrap_err();
        assert!(!hints(&error).is_empty(), "{len}: {error:#}");
        if let Ok(found) = salvage(&path) {
            assert!(is_prefix(&found.recording, &whole), "{len}");
            assert!(found.recording.samples.len() >= most);
            most = found.recording.samples.len();
        }
    }
    // Without its last byte the file still gives every sample.
    assert_eq!(most, whole.samples.len());
    let mut longer = bytes;
    longer.push(0);
    fs::write(&path, &longer).unwrap();
    assert!(
        read(&path)
            .unwrap_err()
            .to_string()
            .contains("1 bytes follow")
    );
}

#[test]
fn what_is_no_recording_is_refused_with_a_reason() {
    let dir = temporary();
    let path = dir.path().join("f");
    let expect = |path: &Path, text: &str| {
        let error = read(path).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        assert!(!hints(&error).is_empty(), "{error}");
    };
    expect(&path, "No such file");
    expect(Path::new("-"), "standard input");
    expect(dir.path(), "directory");
    expect(Path::new("/dev/zero"), "not a regular file");
    fs::write(&path, b"").unwrap();
    expect(&path, "empty");
    fs::write(&path, b"PERFILE2 and much more of it").unwrap();
    expect(&path, "not a preemptprof recording");
    let fifo = dir.path().join("fifo");
    let fifo_c = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(fifo_c.as_ptr(), 0o600) }, 0);
    expect(&fifo, "pipe");

    let (small, mut bytes) = small(dir.path());
    bytes[8] = 2;
    fs::write(&small, &bytes).unwrap();
    expect(&small, "version 2; this preemptprof");
    // A length field alone makes nobody allocate.
    bytes[8] = 1;
    bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    fs::write(&small, &bytes).unwrap();
    expect(&small, "chunk 0 (header) at offset 16");
}

#[test]
fn file_and_memory_give_the_same_recording() {
    let dir = temporary();
    let path = dir.path().join("r");
    let mut header = Header::default();
    header.command = vec!["true".into()];
    let trailer = Trailer::default();
    let mut writer = Writer::create(&path, false, &header).unwrap();
    let mut memory = MemorySink::new(&header, MemorySink::DEFAULT_LIMIT);
    for sink in [&mut writer as &mut dyn Sink, &mut memory] {
        feed(sink, 20_000);
        // Ids that nobody gave out.
        sink.sample(&Sample {
            comm: 99,
            ..Sample::default()
        });
        assert_eq!(sink.intern_stack(&[1_000_000]), 0);
        assert_eq!(sink.lost(), 1);
    }
    assert!(!path.exists());
    let finished = writer.finish(&trailer).unwrap();
    assert!(finished.complete);
    assert_eq!(finished.samples, 20_000);
    assert_eq!(finished.bytes, fs::metadata(&path).unwrap().len());
    let recording = read(&path).unwrap();
    assert_eq!(recording, memory.finish(&trailer));
    assert_eq!(recording.stacks.len(), 51);
    assert_eq!(recording.trailer.losses[0].reason, "bad_id");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn names_and_stacks_without_end_are_cut() {
    let mut memory = MemorySink::new(&Header::default(), MemorySink::DEFAULT_LIMIT);
    let comm = memory.intern_comm(&"ä".repeat(40_000));
    let symbol = memory.intern_symbol(&Symbol {
        name: "x".repeat(70_000),
        module: String::new(),
    });
    let frame = memory.intern_frame(&Frame {
        addr: 1,
        symbol,
        offset: 0,
    });
    let stack = memory.intern_stack(&vec![frame; 100_000]);
    let recording = memory.finish(&Trailer::default());
    assert_eq!(recording.comms[comm as usize].len(), 65_536);
    assert_eq!(recording.symbols[symbol as usize].name.len(), 65_536);
    assert_eq!(recording.stacks[stack as usize].len(), 16_384);
}

#[test]
fn an_unfinished_recording_is_refused_and_salvaged() {
    let dir = temporary();
    let path = dir.path().join("r");
    let mut writer = Writer::create(&path, false, &Header::default()).unwrap();
    let partial = writer.partial_path().to_owned();
    feed(&mut writer, 300);
    writer.flush();
    // What a run that was killed leaves, and what a live one shows.
    let error = read(&partial).unwrap_err();
    assert!(error.to_string().contains("footer"), "{error}");
    assert!(hints(&error)[0].contains("report --salvage"));
    let found = salvage(&partial).unwrap();
    assert_eq!(found.recording.samples.len(), 300);
    drop(writer);
    assert_eq!(salvage(&partial).unwrap(), found);
    let error = read(&path).unwrap_err();
    assert!(hints(&error)[0].contains(".partial"));
    let error = Writer::create(&path, false, &Header::default()).unwrap_err();
    assert!(hints(&error).iter().any(|hint| hint.contains("--force")));
    let writer = Writer::create(&path, true, &Header::default()).unwrap();
    writer.finish(&Trailer::default()).unwrap();
    let error = Writer::create(&path, false, &Header::default()).unwrap_err();
    assert!(hints(&error)[0].contains("--force"), "{error}");
}

#[test]
fn saving_refuses_ids_out_of_range() {
    let dir = temporary();
    let path = dir.path().join("r");
    let bad = Recording {
        stacks: vec![Box::default(), Box::new([3])],
        ..Recording::default()
    };
    assert!(save(&bad, &path, false).is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
