use proptest::prelude::*;

use super::frame::{Owner, parse};
use super::*;
use crate::kernel::Config;
use crate::recording::{Evidence, MemorySink, Recording};

fn read(text: &[u8], known: &Known) -> anyhow::Result<(Recording, Imported<()>)> {
    let imported = import(
        text,
        known,
        |header| Ok(MemorySink::new(header, 1 << 26)),
        drop,
    )?;
    let recording = imported.sink.finish(&imported.trailer);
    let rest = Imported {
        sink: (),
        trailer: imported.trailer,
        event: imported.event,
        samples: imported.samples,
        left_out: imported.left_out,
        strange_lines: imported.strange_lines,
    };
    Ok((recording, rest))
}

fn names(recording: &Recording, stack: u32) -> String {
    let names: Vec<&str> = recording.stacks[stack as usize]
        .iter()
        .map(|&frame| {
            let symbol = recording.frames[frame as usize].symbol;
            recording.symbols[symbol as usize].name.as_str()
        })
        .collect();
    names.join(" ")
}

#[test]
fn heads() {
    let head = |line| {
        Head::parse(line).map(|h| {
            (
                h.comm, h.pid, h.tid, h.cpu, h.time_ns, h.period, h.event, h.rest,
            )
        })
    };
    for (line, expected) in [
        (
            "dd  7870 11844.205559:    1003009 cpu-clock: ",
            (
                "dd",
                7870,
                7870,
                None,
                11_844_205_559_000,
                Some(1_003_009),
                "cpu-clock",
                "",
            ),
        ),
        (
            "Web Content  123/456   [003]  1.000000001:     250000 cycles:ppp: ",
            (
                "Web Content",
                123,
                456,
                Some(3),
                1_000_000_001,
                Some(250_000),
                "cycles:ppp",
                "",
            ),
        ),
        (
            "         swapper     0 [001] 5.000001: sched:sched_switch: prev_comm=a 1 [000] 2.000000: x",
            (
                "swapper",
                0,
                0,
                Some(1),
                5_000_001_000,
                None,
                "sched:sched_switch",
                "prev_comm=a 1 [000] 2.000000: x",
            ),
        ),
        (
            "[kworker/0:1] x: 7 [000]  5.000001:   1 cpu/event=0x3c/u:  ffffffff81000000 f+0x1 ([kernel.kallsyms])",
            (
                "[kworker/0:1] x:",
                7,
                7,
                Some(0),
                5_000_001_000,
                Some(1),
                "cpu/event=0x3c/u",
                "ffffffff81000000 f+0x1 ([kernel.kallsyms])",
            ),
        ),
        (
            "a -1/-1 1.000000: ",
            ("a", u32::MAX, u32::MAX, None, 1_000_000_000, None, "", ""),
        ),
        (
            "x 1/1 [000] 1.000000: PERF_RECORD_LOST lost 12",
            (
                "x",
                1,
                1,
                Some(0),
                1_000_000_000,
                None,
                "PERF_RECORD_LOST",
                "lost 12",
            ),
        ),
    ] {
        assert_eq!(head(line), Some(expected), "{line}");
    }
    for line in [
        "",
        "\tffffffff8160eda2 __mmap_region+0x92 ([kernel.kallsyms])",
        "dd 11844.205559: cpu-clock:",
        "dd 1 99999999999999999999.000000: cycles:",
        "dd 1 1.5: cycles:",
    ] {
        assert_eq!(head(line), None, "{line}");
    }
}

#[test]
fn frames() {
    use Owner::{Kernel, Other};
    for (line, symbol, offset, module, owner) in [
        (
            "\tffffffff8160eda2 __mmap_region+0x92 ([kernel.kallsyms])",
            "__mmap_region",
            0x92,
            "",
            Kernel,
        ),
        (
            "\tffffffffc0a01234 xfs_read+0x4 ([xfs])",
            "xfs_read",
            4,
            "xfs",
            Kernel,
        ),
        (
            "\tffffffffc0a01234 f+0x4 (/lib/modules/6.1/kernel/fs/xfs/xfs.ko.xz)",
            "f",
            4,
            "xfs",
            Kernel,
        ),
        (
            "\tffffffffc0a01234 f+0x4 (/usr/lib/debug/boot/vmlinux-6.1)",
            "f",
            4,
            "",
            Kernel,
        ),
        (
            "\tffffffff81000000 memcg_charge (inlined)",
            "memcg_charge",
            0,
            "",
            Kernel,
        ),
        (
            "\t   4005d6 std::vector<int, std::allocator<int> >::push_back(int const&)+0x1a (/tmp/my (copy)/a b)",
            "std::vector<int, std::allocator<int> >::push_back(int const&)",
            0x1a,
            "/tmp/my (copy)/a b",
            Other,
        ),
        (
            "\t   4005d6 f(int)+0x1 (/memfd:x (deleted))",
            "f(int)",
            1,
            "/memfd:x (deleted)",
            Other,
        ),
        (
            "\t   4005d6 operator()(int) const (inlined)",
            "operator()(int) const",
            0,
            "[unknown]",
            Other,
        ),
        (
            "\t     5729 [unknown] (/usr/bin/dd)",
            "",
            0,
            "/usr/bin/dd",
            Other,
        ),
        (
            "\tffffffffffffffff [unknown] ([unknown])",
            "",
            0,
            "",
            Kernel,
        ),
        (
            "\tffffffff81000000 f+0x1 ([guest.kernel.kallsyms])",
            "f",
            1,
            "[guest.kernel.kallsyms]",
            Other,
        ),
        (
            "\tffffffffff600000 f+0x0 ([vsyscall])",
            "f",
            0,
            "[vsyscall]",
            Other,
        ),
        (
            "\tffffffffc0001000 bpf_prog_1234_x+0x8 (bpf_prog_1234_x)",
            "bpf_prog_1234_x",
            8,
            "bpf",
            Kernel,
        ),
        ("\tffffffff81000000 no_dso+0x8", "no_dso", 8, "", Kernel),
        ("\tffffffff81000000", "", 0, "", Kernel),
        ("\tffffffff81000000 a);(b (", "a);(b (", 0, "", Kernel),
        (
            "\t    7f0000000000 f+0x1 (/lib/libc.so.6+0x123)",
            "f",
            1,
            "/lib/libc.so.6",
            Other,
        ),
    ] {
        let (printed, found) = parse(line).unwrap();
        assert_eq!(
            (printed.symbol, printed.offset, printed.module, found),
            (symbol, offset, module, owner),
            "{line}"
        );
    }
    for line in ["", "\tmain.c:12", "\t+12 f", "\t12345678901234567 f", "\té"] {
        assert_eq!(parse(line), None, "{line}");
    }
}

const TEXT: &str = "\
# os release : 6.1.0-test
# arch : x86_64
# nrcpus online : 4
# cpudesc : Some CPU
# cmdline : /usr/bin/perf record -a -g -F 997 -- make -j8
# event : name = cycles, , id = { 1 }, { sample_period, sample_freq } = 4000, sample_type = IP, freq = 1, x = 1
#
sh 10/11 [002] 100.000000: 1 sched:sched_switch: prev_comm=sh prev_pid=11
\tffffffff81000010 schedule+0x10 ([kernel.kallsyms])

sh 10/11 [002] 100.000100: 250000 cycles:P: 
\tffffffff81000012 preempt_count_add+0x12 ([kernel.kallsyms])
\tffffffff81000123 _raw_spin_lock+0x13 ([kernel.kallsyms])
\tffffffff81000223 entry_SYSCALL_64_after_hwframe+0x76 ([kernel.kallsyms])
\t          f8350 __GI___libc_write+0x10 (/usr/lib/libc.so.6)

swapper 0/0 [001] 100.000200: 250000 cycles:P: 
\tffffffff81000300 intel_idle+0x5 ([kernel.kallsyms])

swapper 0/0 [001] 100.000300: 250000 cycles:P: 
\tffffffff81000012 preempt_count_add+0x12 ([kernel.kallsyms])
\tffffffff81000303 asm_sysvec_apic_timer_interrupt+0x5 ([kernel.kallsyms])
\tffffffff81000300 intel_idle+0x5 ([kernel.kallsyms])

evil \u{1b}[31m;\"<b>\" 12/12 [000] 100.100100: 250000 cycles:P: 
\t          f8350 [unknown] (/usr/bin/x)
x 1/1 [000] 100.200000: PERF_RECORD_LOST lost 12
sh 10/11 [002] 99.000000: 250000 cycles:P: 
\tffffffff81000012 guest_code+0x12 ([guest.kernel.kallsyms])
";

#[test]
fn a_recording_of_it() {
    let known = Known {
        config: Some((
            Config::parse("CONFIG_HZ=250\nCONFIG_DEBUG_PREEMPT=y\n"),
            "c".into(),
        )),
        ..Known::default()
    };
    let (recording, imported) = read(TEXT.as_bytes(), &known).unwrap();
    let header = &recording.header;
    assert_eq!(header.kernel.release, "6.1.0-test");
    assert_eq!(header.kernel.hz, Some(250));
    assert_eq!(header.machine.cpu_model, "Some CPU");
    assert_eq!(header.sampling.hz, 4000);
    assert_eq!(header.sampling.cpus, "0-3");
    assert_eq!(header.sampling.evidence, Evidence::SampledNmi);
    assert_eq!(header.command, ["make", "-j8"]);
    assert_eq!(header.target, Target::Machine);
    assert_eq!(imported.event, "cycles:P");
    assert_eq!(
        imported.left_out,
        [("sched:sched_switch".to_owned(), 1)].into()
    );
    assert_eq!(recording.trailer.idle_samples, 1);
    assert_eq!(recording.trailer.losses[0].count, 12);
    assert_eq!(recording.samples.len(), 4);
    assert_eq!(imported.samples, 4);

    let first = recording.samples[0];
    assert_eq!(
        (first.tgid, first.pid, first.cpu, first.time_ns),
        (10, 11, 2, 0)
    );
    assert_eq!(
        names(&recording, first.kernel_stack),
        "preempt_count_add _raw_spin_lock entry_SYSCALL_64_after_hwframe"
    );
    assert_eq!(names(&recording, first.user_stack), "__GI___libc_write");
    let interrupt = recording.samples[1];
    assert_eq!(interrupt.pid, 0);
    assert_eq!(interrupt.flags, SampleFlags::TARGET);
    let evil = recording.samples[2];
    assert_eq!(
        recording.comms[evil.comm as usize],
        "evil \u{1b}[31m;\"<b>\""
    );
    assert_eq!(names(&recording, evil.user_stack), "[unknown]");
    assert!(evil.flags & SampleFlags::USER_MODE != 0);
    let guest = recording.samples[3];
    assert_eq!(guest.kernel_stack, 0);
    assert_eq!(names(&recording, guest.user_stack), "guest_code");
    assert_eq!(guest.time_ns, 0);
}

#[test]
fn other_events_when_asked_for() {
    let known = Known {
        event: Some("sched:sched_switch".to_owned()),
        ..Known::default()
    };
    let (recording, _) = read(TEXT.as_bytes(), &known).unwrap();
    assert_eq!(recording.samples.len(), 1);
    let known = Known {
        event: Some("instructions".to_owned()),
        ..Known::default()
    };
    let error = read(TEXT.as_bytes(), &known).unwrap_err();
    assert!(error.to_string().contains("instructions"), "{error}");
    assert!(crate::error::hints(&error)[0].contains("cycles:P"));
}

#[test]
fn without_call_chains() {
    let text = "\
              dd  7870 11844.205559:    1003009 cpu-clock:  ffffffff8160eda2 __mmap_region+0x92 ([kernel.kallsyms])
             abc  7870 11844.207119:    1003009 cpu-clock:      f8356 __GI___libc_write+0x16 (/usr/lib/libc.so.6)
";
    let (recording, _) = read(text.as_bytes(), &Known::default()).unwrap();
    assert_eq!(recording.samples.len(), 2);
    assert_eq!(recording.header.sampling.hz, 997);
    assert_eq!(recording.header.sampling.evidence, Evidence::SampledTimer);
    assert_eq!(
        names(&recording, recording.samples[0].kernel_stack),
        "__mmap_region"
    );
    assert_eq!(recording.comms, ["dd", "abc"]);
}

#[test]
fn what_is_no_output_of_perf() {
    for text in [
        "",
        "\n\n",
        "hello\nworld\n",
        "# only\n# comments\n",
        "{\"a\":1}",
    ] {
        let error = read(text.as_bytes(), &Known::default()).unwrap_err();
        assert_eq!(crate::error::hints(&error).len(), 1, "{error}");
    }
}

#[test]
fn a_deep_stack_is_cut() {
    let mut text = String::from("a 1/1 1.000000: 1 cycles: \n");
    for depth in 0..20_000 {
        text.push_str(&format!(
            "\tffffffff8{depth:07x} f+0x1 ([kernel.kallsyms])\n"
        ));
    }
    let (recording, _) = read(text.as_bytes(), &Known::default()).unwrap();
    let sample = recording.samples[0];
    assert_eq!(
        recording.stacks[sample.kernel_stack as usize].len(),
        MAX_DEPTH
    );
    assert!(sample.flags & SampleFlags::KERNEL_TRUNCATED != 0);
}

#[test]
fn what_perf_printed_here() {
    let text = include_bytes!("../../../tests/fixtures/import/perf-script.txt");
    let (recording, imported) = read(text, &Known::default()).unwrap();
    let heads = text
        .split(|b| *b == b'\n')
        .filter(|line| line.windows(11).any(|w| w == b" cpu-clock:"));
    assert_eq!(imported.samples, heads.count() as u64);
    assert_eq!(recording.samples.len() as u64, imported.samples);
    assert_eq!(imported.strange_lines, 0);
    assert!(recording.header.kernel.release.starts_with("6."));
    assert_eq!(recording.header.sampling.hz, 997);
}

proptest! {
    #[test]
    fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read(&bytes, &Known::default());
    }

    #[test]
    fn no_line_panics(
        comm in any::<String>(),
        symbol in any::<String>(),
        object in any::<String>(),
        junk in "[ -~\t]{0,40}",
    ) {
        let text = format!(
            "{comm} 1/2 [003] 1.000000: 5 cycles: \n\tffffffff81000000 {symbol}+0x1 ({object})\n{junk}\n"
        );
        let _ = read(text.as_bytes(), &Known::default());
    }

    #[test]
    fn names_survive(comm in "[a-z][a-z;<>\"'\\[\\]() :.]{0,14}[a-z]", symbol in "[a-z][a-z;<>\"' :&*]{0,30}[a-z]") {
        let text = format!("{comm} 1/2 [003] 1.000000: 5 cycles: \n\tffffffff81000000 {symbol}+0x1 ([kernel.kallsyms])\n");
        let (recording, _) = read(text.as_bytes(), &Known::default()).unwrap();
        prop_assert_eq!(&recording.comms[0], &comm);
        prop_assert_eq!(names(&recording, recording.samples[0].kernel_stack), symbol);
    }
}
