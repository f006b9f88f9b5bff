//! Direct calls and jumps of x86-64.

use memchr::memchr2_iter;

const CALL: u8 = 0xe8;
const JMP: u8 = 0xe9;

/// Every `call rel32` and `jmp rel32`, at any byte: instructions have no
/// alignment.
pub(super) fn branches(bytes: &[u8], base: u64, each: &mut dyn FnMut(u64, u64, bool)) {
    for at in memchr2_iter(CALL, JMP, bytes) {
        let Some(distance) = bytes.get(at + 1..at + 5) else {
            break;
        };
        let mut number = [0; 4];
        number.copy_from_slice(distance);
        let address = base.wrapping_add(at as u64);
        let to = address
            .wrapping_add(5)
            .wrapping_add_signed(i64::from(i32::from_le_bytes(number)));
        each(address, to, bytes[at] == JMP);
    }
}
