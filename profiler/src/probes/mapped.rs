//! A BPF array in this process's memory: what programs write is read without
//! system calls. Minimum kernel 5.5 (`BPF_F_MMAPABLE`).

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Map, MapData};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The elements of an array map.
#[derive(Debug)]
pub struct Mapped<T> {
    elements: NonNull<T>,
    count: usize,
    bytes: usize,
    /// Keeps the map.
    _map: MapData,
}

// SAFETY: the mapping belongs to this value; what other CPUs change in it is
// read and written as volatile.
unsafe impl<T: Send> Send for Mapped<T> {}

impl<T: FromBytes + IntoBytes + Immutable + Copy> Mapped<T> {
    /// Takes the array `name` of `count` elements out of `ebpf` and maps it.
    ///
    /// # Errors
    ///
    /// When there is no such array, or it cannot be mapped.
    pub(super) fn take(ebpf: &mut Ebpf, name: &str, count: usize) -> anyhow::Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let map = ebpf
            .take_map(name)
            .with_context(|| format!("the BPF object has no map {name}"))?;
        let Map::Array(map) = map else {
            anyhow::bail!("map {name} is no array");
        };
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let bytes = (count * size_of::<T>()).next_multiple_of(page);
        // SAFETY: a new shared mapping of the map, checked below.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error()).with_context(|| format!("mapping {name}"));
        }
        Ok(Self {
            elements: NonNull::new(address.cast()).context("mapping at address 0")?,
            count,
            bytes,
            _map: map,
        })
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// An element as it is now.
    pub fn get(&self, index: usize) -> Option<T> {
        // SAFETY: the element is within the mapping, and every bit pattern is one.
        (index < self.count).then(|| unsafe { self.elements.add(index).read_volatile() })
    }

    /// Changes an element.
    pub fn set(&mut self, index: usize, value: T) {
        if index < self.count {
            // SAFETY: the element is within the mapping.
            unsafe { self.elements.add(index).write_volatile(value) };
        }
    }

    /// Changes one word of an element, at a multiple of 8 bytes from its start,
    /// and nothing that programs may be writing beside it.
    pub fn set_word(&mut self, index: usize, offset: usize, value: u64) {
        if index < self.count && offset.is_multiple_of(8) && offset < size_of::<T>() {
            // SAFETY: the word is within the mapping and aligned, and whoever else
            // uses it does so a word at a time.
            let word = unsafe {
                AtomicU64::from_ptr(
                    self.elements
                        .add(index)
                        .cast::<u64>()
                        .as_ptr()
                        .add(offset / 8),
                )
            };
            word.store(value, Ordering::Release);
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `take`, with the same size.
        unsafe { libc::munmap(self.elements.as_ptr().cast(), self.bytes) };
    }
}
