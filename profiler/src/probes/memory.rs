//! Reads of the running kernel's memory, through a BPF program that is run on
//! request and attached to nothing. Minimum kernel 5.10; refused under
//! lockdown=confidentiality.

use std::cell::RefCell;
use std::{fmt, io};

use anyhow::Context as _;
use aya::Ebpf;
use aya::programs::{RawTracePoint, RawTracePointRunOptions, TestRun as _};
use profiler_ebpf::PEEK_BYTES;

use super::object::{self, Maps, Settings};
use crate::kernel::KernelMemory;

/// The running kernel's memory. The program is loaded at the first read.
#[derive(Default)]
pub struct Memory(RefCell<State>);

#[derive(Default)]
enum State {
    #[default]
    Untried,
    Loaded(Box<(Ebpf, Maps)>),
    Refused(String),
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}

impl KernelMemory for Memory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if matches!(*state, State::Untried) {
            *state = match load() {
                Ok(loaded) => State::Loaded(Box::new(loaded)),
                Err(error) => State::Refused(format!("{error:#}")),
            };
        }
        let (ebpf, maps) = match &mut *state {
            State::Loaded(loaded) => &mut **loaded,
            State::Refused(why) => return Err(io::Error::other(why.clone())),
            State::Untried => return Err(io::ErrorKind::Other.into()),
        };
        for (index, chunk) in buffer.chunks_mut(PEEK_BYTES).enumerate() {
            let at = address.wrapping_add((index * PEEK_BYTES) as u64);
            let bytes = peek(ebpf, maps, at).map_err(io::Error::other)?;
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        Ok(())
    }
}

fn load() -> anyhow::Result<(Ebpf, Maps)> {
    let mut ebpf = object::open(&Settings::smallest())?;
    let program: &mut RawTracePoint = peek_program(&mut ebpf)?;
    program.load()?;
    let maps = Maps::take(&mut ebpf, false)?;
    Ok((ebpf, maps))
}

fn peek_program(ebpf: &mut Ebpf) -> anyhow::Result<&mut RawTracePoint> {
    Ok(ebpf
        .program_mut("peek")
        .context("the BPF object has no program peek")?
        .try_into()?)
}

fn peek(ebpf: &mut Ebpf, maps: &Maps, address: u64) -> anyhow::Result<[u8; PEEK_BYTES]> {
    let mut options = RawTracePointRunOptions::new();
    options.args[0] = address;
    let result = peek_program(ebpf)?.test_run(options)?;
    if result.return_value != 0 {
        anyhow::bail!("bpf_probe_read_kernel of {address:#x} failed");
    }
    Ok(maps.peek.get(&0, 0)?)
}
