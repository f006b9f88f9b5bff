//! Reads of the kernel's text on request.

use aya_ebpf::{helpers::generated::bpf_probe_read_kernel, macros::map, maps::Array};
use profiler_ebpf::{TEXT_PAGE, TEXT_PAGES};

/// `BPF_F_MMAPABLE`: what was read is taken without another copy.
const MMAPABLE: u32 = 1 << 10;

/// What was read last.
#[map]
static TEXT: Array<[u8; TEXT_PAGE]> = Array::with_max_entries(TEXT_PAGES, MMAPABLE);

/// Reads `pages` pages from `address` on; how many of them could not be read.
#[inline(always)]
pub(crate) fn on_read(address: u64, pages: u64) -> i32 {
    let mut failed = 0;
    for page in 0..TEXT_PAGES {
        if u64::from(page) >= pages {
            break;
        }
        let Some(bytes) = TEXT.get_ptr_mut(page) else {
            return -1;
        };
        let from = address + u64::from(page) * TEXT_PAGE as u64;
        // SAFETY: the map's value is writable, its size is given, and the helper
        // checks the address.
        let status =
            unsafe { bpf_probe_read_kernel(bytes.cast(), TEXT_PAGE as u32, from as *const _) };
        if status != 0 {
            failed += 1;
        }
    }
    failed
}
