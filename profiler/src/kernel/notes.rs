//! The ELF notes of the running kernel.

use std::path::Path;

use super::root;

const NT_GNU_BUILD_ID: u32 = 3;

/// The GNU build id of vmlinux in lower-case hex, from `/sys/kernel/notes`; `None`
/// when the kernel was linked without one.
pub fn kernel_build_id(root: &Path) -> Option<String> {
    let bytes = root::read(root, "/sys/kernel/notes").ok()?;
    build_id(&bytes)
}

/// Finds the build id among notes: three words (bytes of the name, bytes of the
/// contents, type), the name and the contents, each filled up to four bytes.
fn build_id(mut notes: &[u8]) -> Option<String> {
    loop {
        let (header, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let (name_len, desc_len, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let (name, rest) = split_padded(rest, name_len)?;
        let (desc, rest) = split_padded(rest, desc_len)?;
        if kind == NT_GNU_BUILD_ID && name == b"GNU\0" && !desc.is_empty() {
            return Some(desc.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = rest;
    }
}

/// `length` bytes, and what is behind their padding, which the last may lack.
fn split_padded(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    let (head, _) = bytes.split_at_checked(length)?;
    let padded = length.checked_next_multiple_of(4)?.min(bytes.len());
    Some((head, bytes.get(padded..)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn note(name: &[u8], kind: u32, desc: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [name.len() as u32, desc.len() as u32, kind] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for part in [name, desc] {
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn the_build_id_is_found_among_other_notes() {
        let xen = note(b"Xen\0", 3, b"\x01\x02");
        let linux = note(b"Linux\0", 0x101, b"6.1.0-1\0");
        let gnu = note(b"GNU\0", 3, &[0xab, 0x01, 0xff]);
        assert_eq!(
            build_id(&[xen.clone(), linux.clone(), gnu].concat()).as_deref(),
            Some("ab01ff")
        );
        assert_eq!(build_id(&[xen, linux].concat()), None);
        assert_eq!(build_id(&[]), None);
        assert_eq!(build_id(&[0xff; 40]), None);
    }

    proptest! {
        #[test]
        fn hostile_notes_end(bytes in prop::collection::vec(any::<u8>(), 0..200), small: bool) {
            let mut bytes = bytes;
            if small {
                bytes.iter_mut().for_each(|byte| *byte &= 3);
            }
            let _ = build_id(&bytes);
        }
    }
}
