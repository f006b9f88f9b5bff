//! Reads of kernel memory on request.

use aya_ebpf::{helpers::generated::bpf_probe_read_kernel, macros::map, maps::Array};
use profiler_ebpf::PEEK_BYTES;

/// What was read last.
#[map]
static PEEK: Array<[u8; PEEK_BYTES]> = Array::with_max_entries(1, 0);

/// Reads `PEEK_BYTES` at `address`; the helper's status.
#[inline(always)]
pub(crate) fn on_peek(address: u64) -> i32 {
    let Some(bytes) = PEEK.get_ptr_mut(0) else {
        return -1;
    };
    // SAFETY: the map's value is writable, its size is given, and the helper
    // checks the address.
    unsafe { bpf_probe_read_kernel(bytes.cast(), PEEK_BYTES as u32, address as *const _) as i32 }
}
