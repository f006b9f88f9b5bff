//! Folded stacks: `comm;outer;...;inner weight`, one line a stack, as preemptprof
//! exports them and stackcollapse-perf.pl, bpftrace and BCC's profile write them.
//!
//! They have neither times nor addresses, and mark kernel frames in several ways
//! or not at all. A frame is the kernel's when it carries `_[k]`, when it is
//! within a frame that only the kernel's entry code has, when it is after BCC's
//! delimiter (`-` or `--`), or when the stack ends in the frame of an option,
//! as preemptprof's own do.

use std::io::BufRead;

use anyhow::Context as _;

use super::facts::kernel_facts;
use super::lines::Lines;
use super::stacks::{Interner, MAX_DEPTH, Printed, Stacks, UNKNOWN};
use super::{Imported, Known, UNKNOWN_EVENT, evidence, header, probes};
use crate::catalog::is_entry_frame;
use crate::error::hinted;
use crate::recording::{Header, Sample, SampleFlags, Sampling, Sink, Trailer};

/// Samples an import makes at most: a weight is a number in a text file.
const MAX_SAMPLES: u64 = 10_000_000;

/// Reads folded stacks into the sink that `make_sink` makes. When the import fails
/// after that, the sink is given to `discard`.
///
/// # Errors
///
/// When the input cannot be read, has no stack, has a weight that is no whole
/// number, or adds up to more than ten million samples.
pub fn import<S: Sink>(
    input: impl BufRead,
    known: &Known,
    make_sink: impl FnOnce(&Header) -> anyhow::Result<S>,
    discard: impl FnOnce(S),
) -> anyhow::Result<Imported<S>> {
    let event = known.event.clone().unwrap_or(UNKNOWN_EVENT.to_owned());
    let mut header = header(known);
    header.kernel = kernel_facts(known, "", "");
    header.sampling = Sampling {
        evidence: evidence(&event, ""),
        event: event.clone(),
        hz: known.hz.unwrap_or(0),
        cpus: String::new(),
    };
    let mut sink = make_sink(&header)?;
    let unit = known.weight.unwrap_or(1).max(1);
    let totals = match read(input, unit, &mut sink) {
        Ok(totals) => totals,
        Err(error) => {
            discard(sink);
            return Err(error);
        }
    };
    let mut trailer = Trailer {
        probes: probes("a folded file"),
        ..Trailer::default()
    };
    trailer.warnings.push(
        "The samples were imported from folded stacks: their times, CPUs and call sites are not \
         known, nor what was lost."
            .to_owned(),
    );
    if totals.carry > 0 {
        trailer.warnings.push(format!(
            "A weight of {} is left over: less than the {unit} that make a sample.",
            totals.carry
        ));
    }
    Ok(Imported {
        sink,
        trailer,
        event,
        samples: totals.samples,
        left_out: [].into(),
        strange_lines: totals.strange,
    })
}

#[derive(Default)]
struct Totals {
    samples: u64,
    strange: u64,
    /// What is left of weights that are no whole number of samples.
    carry: u64,
}

fn read(input: impl BufRead, unit: u64, sink: &mut impl Sink) -> anyhow::Result<Totals> {
    let mut lines = Lines::new(input);
    let mut reader = Reader::default();
    let mut number = 0_u64;
    let mut totals = Totals::default();
    while let Some(line) = lines.next().context("cannot read the folded stacks")? {
        number += 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let weighted = line
            .rsplit_once(' ')
            .and_then(|(stack, weight)| Some((stack, weight.parse::<u64>().ok()?)));
        let Some((stack, weight)) = weighted else {
            totals.strange += 1;
            continue;
        };
        let weight = totals.carry.saturating_add(weight);
        totals.carry = weight % unit;
        let count = weight / unit;
        totals.samples = totals.samples.saturating_add(count);
        if totals.samples > MAX_SAMPLES {
            return Err(hinted(
                format!("line {number}: the weights add up to more than {MAX_SAMPLES} samples"),
                [
                    "--weight N makes one sample of each N, e.g. 1000000 where weights are \
                     nanoseconds",
                ],
            ));
        }
        let sample = reader.sample(sink, stack.trim_end());
        for _ in 0..count {
            sink.sample(&sample);
        }
    }
    if totals.samples == 0 {
        return Err(hinted(
            match number {
                0 => "there is nothing in it".to_owned(),
                _ => format!("no folded stack in {number} lines"),
            },
            ["each line is `comm;outer;...;inner weight`"],
        ));
    }
    Ok(totals)
}

#[derive(Default)]
struct Reader {
    interner: Interner,
    stacks: Stacks,
}

impl Reader {
    fn sample(&mut self, sink: &mut impl Sink, stack: &str) -> Sample {
        let (comm, rest) = stack.split_once(';').unwrap_or((stack, ""));
        let mut frames: Vec<&str> = rest.split(';').filter(|name| !name.is_empty()).collect();
        // What preemptprof adds for the reader.
        let owned = frames
            .pop_if(|name| name.starts_with("[CONFIG_") && name.ends_with(']'))
            .is_some();
        let no_user_stack = frames.last() == Some(&"[user]");
        if no_user_stack || frames.last() == Some(&"[no stack]") {
            frames.pop();
        }
        let user_frames = if no_user_stack {
            frames.len()
        } else {
            boundary(&frames, owned)
        };
        self.stacks.clear();
        for (depth, frame) in frames.iter().enumerate().rev().take(MAX_DEPTH) {
            if is_delimiter(frame) {
                continue;
            }
            let (name, module) = bare(frame);
            let name = unescape(name);
            let printed = Printed {
                symbol: &name,
                // No module is the kernel.
                module: if depth < user_frames { UNKNOWN } else { module },
                ..Printed::default()
            };
            let id = self.interner.frame(sink, &printed);
            if depth < user_frames {
                self.stacks.user.push(id);
            } else {
                self.stacks.kernel.push(id);
            }
        }
        let (kernel_stack, user_stack) = self.stacks.intern(sink);
        let user_mode = no_user_stack || (kernel_stack == 0 && user_stack != 0);
        let comm = match comm.strip_prefix("\\x23") {
            Some(rest) => format!("#{}", unescape(rest)),
            None => unescape(comm),
        };
        Sample {
            comm: sink.intern_comm(&comm),
            kernel_stack,
            user_stack,
            flags: SampleFlags::TARGET | if user_mode { SampleFlags::USER_MODE } else { 0 },
            ..Sample::default()
        }
    }
}

/// How many of the frames, outermost first, are user mode's.
fn boundary(frames: &[&str], owned: bool) -> usize {
    if let Some(at) = frames.iter().position(|name| name.ends_with("_[k]")) {
        return at;
    }
    if let Some(at) = frames.iter().position(|name| is_delimiter(name)) {
        return at;
    }
    match frames.iter().position(|name| is_entry_frame(bare(name).0)) {
        Some(at) => at,
        None if owned => 0,
        None => frames.len(),
    }
}

/// BCC's `profile -d` separates user from kernel frames.
fn is_delimiter(name: &str) -> bool {
    matches!(name, "-" | "--")
}

/// A frame without what tools append to it: its name, and `bpf` where that shows.
fn bare(frame: &str) -> (&str, &'static str) {
    let name = ["_[k]", "_[i]", "_[j]", "_[w]"]
        .iter()
        .find_map(|mark| frame.strip_suffix(mark))
        .unwrap_or(frame);
    let module = if name.starts_with("bpf_prog_") {
        "bpf"
    } else {
        ""
    };
    (name, module)
}

/// Undoes the escapes of an export.
fn unescape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (c, length) = one_escape(rest).unwrap_or(('\\', 1));
        out.push(c);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}

/// The character that an escape at the start of `text` stands for, and the
/// escape's length.
fn one_escape(text: &str) -> Option<(char, usize)> {
    let code = |digits: &str| char::from_u32(u32::from_str_radix(digits, 16).ok()?);
    match text.as_bytes().get(1)? {
        b'\\' => Some(('\\', 2)),
        b'n' => Some(('\n', 2)),
        b't' => Some(('\t', 2)),
        b'r' => Some(('\r', 2)),
        b'x' => Some((code(text.get(2..4)?)?, 4)),
        b'u' => {
            let digits = text.get(2..)?.strip_prefix('{')?;
            let (digits, _) = digits.split_once('}')?;
            Some((code(digits)?, digits.len() + 4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::recording::{MemorySink, Recording};

    fn read(text: &str, known: &Known) -> anyhow::Result<Recording> {
        let imported = import(
            text.as_bytes(),
            known,
            |header| Ok(MemorySink::new(header, 1 << 24)),
            drop,
        )?;
        Ok(imported.sink.finish(&imported.trailer))
    }

    /// The names of a stack, innermost first.
    fn names(recording: &Recording, stack: u32) -> Vec<&str> {
        recording.stacks[stack as usize]
            .iter()
            .map(|&frame| {
                let symbol = recording.frames[frame as usize].symbol;
                recording.symbols[symbol as usize].name.as_str()
            })
            .collect()
    }

    /// No module is the kernel, which other tools would then show.
    #[test]
    fn user_frames_are_in_no_kernel() {
        let text = "a;main;write;entry_SYSCALL_64_after_hwframe;ksys_write 1\n";
        let recording = read(text, &Known::default()).unwrap();
        let modules: Vec<(&str, &str)> = recording
            .symbols
            .iter()
            .map(|symbol| (symbol.name.as_str(), symbol.module.as_str()))
            .collect();
        assert!(modules.contains(&("main", "[unknown]")), "{modules:?}");
        assert!(modules.contains(&("ksys_write", "")), "{modules:?}");
    }

    #[test]
    fn kernel_frames_are_found() {
        for (line, user, kernel) in [
            (
                "dd;main;write;entry_SYSCALL_64;ksys_write 1",
                "write main",
                "ksys_write entry_SYSCALL_64",
            ),
            (
                "dd;main;write;do_syscall_64_[k];ksys_write_[k] 1",
                "write main",
                "ksys_write do_syscall_64",
            ),
            ("dd;main;--;a;b 1", "main", "b a"),
            (
                "kworker/0:1;ret_from_fork_asm;worker_thread 1",
                "",
                "worker_thread ret_from_fork_asm",
            ),
            ("dd;a;b;[CONFIG_X] 1", "", "b a"),
            ("dd;main;[user] 1", "main", ""),
            ("dd;[no stack] 1", "", ""),
            ("dd;main;f 1", "f main", ""),
        ] {
            let recording = read(line, &Known::default()).unwrap();
            let sample = recording.samples[0];
            assert_eq!(
                names(&recording, sample.user_stack).join(" "),
                user,
                "{line}"
            );
            assert_eq!(
                names(&recording, sample.kernel_stack).join(" "),
                kernel,
                "{line}"
            );
        }
    }

    #[test]
    fn weights_are_samples() {
        let text = "# comment\na;b 3\n\nnonsense\na;c 2\na;d x\n";
        assert_eq!(read(text, &Known::default()).unwrap().samples.len(), 5);
        let known = Known {
            weight: Some(2),
            ..Known::default()
        };
        let recording = read(text, &known).unwrap();
        assert_eq!(recording.samples.len(), 2);
        assert_eq!(recording.trailer.warnings.len(), 2);
        let error = read("a;b 99999999999", &Known::default()).unwrap_err();
        assert!(error.to_string().contains("line 1"), "{error}");
        assert!(read("", &Known::default()).is_err());
        assert!(read("nonsense\n", &Known::default()).is_err());
    }

    proptest! {
        #[test]
        fn escapes_are_undone(name in any::<String>()) {
            prop_assert_eq!(unescape(&crate::report::escape(&name)), name);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = import(&bytes[..], &Known::default(), |header| {
                Ok(MemorySink::new(header, 1 << 20))
            }, drop);
        }
    }
}
