//! Direct calls and jumps of arm64.

/// The six upper bits, and what they are in `bl` and `b`.
const OPCODE: u32 = 0xfc00_0000;
const BL: u32 = 0x9400_0000;
const B: u32 = 0x1400_0000;

/// Every `bl` and `b`: words whose lower 26 bits are the distance in words.
pub(super) fn branches(bytes: &[u8], base: u64, each: &mut dyn FnMut(u64, u64, bool)) {
    let skip = base.wrapping_neg() as usize & 3;
    for (index, word) in bytes
        .get(skip..)
        .unwrap_or_default()
        .chunks_exact(4)
        .enumerate()
    {
        let mut number = [0; 4];
        number.copy_from_slice(word);
        let word = u32::from_le_bytes(number);
        let tail = match word & OPCODE {
            BL => false,
            B => true,
            _ => continue,
        };
        // Sign-extended from 26 bits, times four.
        let distance = i64::from((word << 6) as i32 >> 6) * 4;
        let address = base.wrapping_add((skip + 4 * index) as u64);
        each(address, address.wrapping_add_signed(distance), tail);
    }
}
