//! The running kernel's text, read through a BPF program that is run on request.
//! Minimum kernel 5.10; refused under lockdown=confidentiality.

use std::ops::Range;

use anyhow::{Context as _, bail};
use aya::Ebpf;
use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _};
use profiler_ebpf::{TEXT_PAGE, TEXT_PAGES};
use zerocopy::IntoBytes as _;

use super::mapped::Mapped;
use super::object::{self, Settings};

/// One page as it is read: in words, as what is mapped is read piece by piece.
type Page = [u64; TEXT_PAGE / 8];

/// Longer text than this no kernel has.
const LONGEST: u64 = 256 << 20;

/// Reads the text in `range`, whose start is on a page. Pages that cannot be
/// read are zero, as init text is once it has been freed.
///
/// # Errors
///
/// When BPF programs cannot read kernel memory here, or nothing of the range can
/// be read.
pub fn read_text(range: Range<u64>) -> anyhow::Result<Vec<u8>> {
    let length = range.end.saturating_sub(range.start);
    if length == 0 || length > LONGEST {
        bail!(
            "the kernel's text from {:#x} to {:#x} makes no sense",
            range.start,
            range.end
        );
    }
    let mut ebpf = object::open(&Settings::smallest())?;
    let pages: Mapped<Page> = Mapped::take(&mut ebpf, "TEXT", TEXT_PAGES as usize)?;
    program(&mut ebpf)?.load()?;

    let step = u64::from(TEXT_PAGES) * TEXT_PAGE as u64;
    let mut text = Vec::with_capacity(length as usize);
    let mut readable = false;
    let mut at = range.start;
    while at < range.end {
        let wanted = (range.end - at).min(step);
        let count = wanted.div_ceil(TEXT_PAGE as u64);
        let failed = run(&mut ebpf, at, count)?;
        for page in 0..count {
            // Which pages failed is only asked when some did.
            let lost = failed > 0 && run(&mut ebpf, at + page * TEXT_PAGE as u64, 1)? > 0;
            let from = if failed > 0 { 0 } else { page as usize };
            match pages.get(from).filter(|_| !lost) {
                Some(words) => {
                    readable = true;
                    text.extend_from_slice(words.as_bytes());
                }
                None => text.resize(text.len() + TEXT_PAGE, 0),
            }
        }
        at += count * TEXT_PAGE as u64;
    }
    if !readable {
        bail!("bpf_probe_read_kernel of the kernel's text failed");
    }
    text.truncate(length as usize);
    Ok(text)
}

fn program(ebpf: &mut Ebpf) -> anyhow::Result<&mut RawTracePoint> {
    Ok(ebpf
        .program_mut("read_text")
        .context("the BPF object has no program read_text")?
        .try_into()?)
}

/// Reads pages into the map; how many could not be read.
fn run(ebpf: &mut Ebpf, address: u64, pages: u64) -> anyhow::Result<u32> {
    let mut options = RawTracePointRunOptions::new();
    options.args[0] = address;
    options.args[1] = pages;
    Ok(program(ebpf)?.test_run(options)?.return_value)
}
