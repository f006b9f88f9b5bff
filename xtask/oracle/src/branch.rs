//! Recognises the direct calls and jumps of x86-64 code.

/// What a single instruction does to the flow of control, as far as the oracle
/// counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    /// `call rel32`.
    Call(u64),
    /// `jmp rel32`: a tail call when it leaves the function.
    Jump(u64),
    /// `int3`: on a live kernel a kprobe, standing for the call it replaced.
    Breakpoint,
}

/// Decodes the one instruction in `bytes` at `address`.
///
/// A `cs` prefix is skipped: compilers use it to pad calls that may be patched.
/// Conditional jumps are not counted, since executing one says nothing of
/// whether it was taken.
pub(crate) fn decode(address: u64, bytes: &[u8]) -> Option<Branch> {
    let body = match bytes {
        [0x2e, rest @ ..] => rest,
        all => all,
    };
    let relative = |raw: [u8; 4]| {
        let end = address.wrapping_add(bytes.len() as u64);
        end.wrapping_add_signed(i64::from(i32::from_le_bytes(raw)))
    };
    match *body {
        [0xe8, a, b, c, d] => Some(Branch::Call(relative([a, b, c, d]))),
        [0xe9, a, b, c, d] => Some(Branch::Jump(relative([a, b, c, d]))),
        [0xcc] => Some(Branch::Breakpoint),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forward_and_backward() {
        assert_eq!(
            decode(0xffff_ffff_8100_0000, &[0xe8, 0x10, 0, 0, 0]),
            Some(Branch::Call(0xffff_ffff_8100_0015))
        );
        assert_eq!(
            decode(0xffff_ffff_8100_0000, &[0xe9, 0xfb, 0xff, 0xff, 0xff]),
            Some(Branch::Jump(0xffff_ffff_8100_0000))
        );
    }

    #[test]
    fn prefix_counts_towards_the_end() {
        assert_eq!(
            decode(0x1000, &[0x2e, 0xe8, 0, 0, 0, 0]),
            Some(Branch::Call(0x1006))
        );
    }

    #[test]
    fn others_are_none() {
        assert_eq!(decode(0, &[0x0f, 0x84, 0, 0, 0, 0]), None);
        assert_eq!(decode(0, &[0xe8, 0, 0]), None);
        assert_eq!(decode(0, &[]), None);
        assert_eq!(decode(0, &[0xcc]), Some(Branch::Breakpoint));
    }

    proptest! {
        #[test]
        fn encoding_round_trips(address in 0x1000_0000u64..0x7000_0000, target in 0x1000_0000u64..0x7000_0000) {
            let rel = (target as i64 - (address as i64 + 5)) as i32;
            let mut bytes = vec![0xe8];
            bytes.extend(rel.to_le_bytes());
            prop_assert_eq!(decode(address, &bytes), Some(Branch::Call(target)));
        }

        #[test]
        fn never_panics(address: u64, bytes in proptest::collection::vec(any::<u8>(), 0..16)) {
            let _ = decode(address, &bytes);
        }
    }
}
