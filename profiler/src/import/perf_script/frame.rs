//! A line of a call chain: `address symbol+0xoffset (object)`.

use super::super::stacks::{Printed, UNKNOWN};

/// Whose code a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The kernel's that was measured.
    Kernel,
    /// User mode's, or a guest's.
    Other,
}

/// Kernel addresses have the highest bit set, wherever Linux runs.
const KERNEL_HALF: u64 = 1 << 63;

/// Reads a line; absent when it is none.
pub(super) fn parse(line: &str) -> Option<(Printed<'_>, Owner)> {
    let line = line.trim();
    let (address, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let digits = address.strip_prefix("0x").unwrap_or(address);
    // `u64` would take a sign.
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let addr = u64::from_str_radix(digits, 16).ok()?;
    let (symbol, object) = split_object(rest.trim());
    let (symbol, offset) = split_offset(symbol);
    let symbol = if symbol == "[unknown]" { "" } else { symbol };
    let (owner, module) = place(addr, object);
    let printed = Printed {
        addr,
        symbol,
        offset,
        module,
    };
    Some((printed, owner))
}

/// Takes `(object)` off the end. An object's path can have spaces and brackets,
/// and so can a symbol: the last group in balanced brackets after a space is it.
fn split_object(text: &str) -> (&str, &str) {
    let Some(inner_end) = text.len().checked_sub(1).filter(|_| text.ends_with(')')) else {
        return (text, "");
    };
    let mut depth = 0_usize;
    let open = text.bytes().enumerate().rev().find_map(|(at, byte)| {
        match byte {
            b')' => depth += 1,
            b'(' => depth = depth.saturating_sub(1),
            _ => {}
        }
        let alone = at == 0 || text.as_bytes()[at - 1] == b' ';
        (byte == b'(' && depth == 0 && alone).then_some(at)
    });
    // Brackets that do not match: the last that follows a space.
    let open = open.or_else(|| text.rfind(" (").map(|at| at + 1));
    match open {
        Some(open) => (text[..open].trim_end(), &text[open + 1..inner_end]),
        None => (text, ""),
    }
}

/// Takes `+0xoffset` off the end.
fn split_offset(text: &str) -> (&str, u32) {
    let split = text.rsplit_once("+0x").and_then(|(name, digits)| {
        let offset = u64::from_str_radix(digits, 16).ok()?;
        Some((name, u32::try_from(offset).unwrap_or(u32::MAX)))
    });
    split.unwrap_or((text, 0))
}

/// Whose code an address of an object is, and the module's name in a recording.
fn place(addr: u64, object: &str) -> (Owner, &str) {
    // perf 6.9 can append the offset within the object.
    let object = match object.rsplit_once("+0x") {
        Some((name, digits)) if u64::from_str_radix(digits, 16).is_ok() => name,
        _ => object,
    };
    if object.starts_with("bpf_prog_") || object == "bpf_trampoline" {
        return (Owner::Kernel, "bpf");
    }
    if object.starts_with("[guest.") {
        return (Owner::Other, object);
    }
    if object.starts_with("[kernel.") || matches!(object, "[kernel]" | "[vmlinux]") {
        return (Owner::Kernel, "");
    }
    let by_address = if addr & KERNEL_HALF == 0 {
        Owner::Other
    } else {
        Owner::Kernel
    };
    match object {
        "[vsyscall]" | "[vdso]" | "[vdso32]" | "[stack]" | "[heap]" => (Owner::Other, object),
        // No module is the kernel.
        "" | "[unknown]" | "inlined" if by_address == Owner::Other => (Owner::Other, UNKNOWN),
        "" | "[unknown]" | "inlined" => (Owner::Kernel, ""),
        _ => match kernel_object(object) {
            Some(module) => (Owner::Kernel, module),
            None if by_address == Owner::Kernel => (Owner::Kernel, ""),
            None => (Owner::Other, object),
        },
    }
}

/// The module's name for `[xfs]`, `/lib/modules/.../xfs.ko.xz`, and the empty one
/// for `/usr/lib/debug/.../vmlinux`.
fn kernel_object(object: &str) -> Option<&str> {
    if let Some(name) = object.strip_prefix('[').and_then(|o| o.strip_suffix(']')) {
        let module = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        return (!name.is_empty() && name.chars().all(module)).then_some(name);
    }
    let file = object.rsplit('/').next()?;
    if file == "vmlinux" || file.starts_with("vmlinux-") {
        return Some("");
    }
    let plain = [".gz", ".xz", ".zst"]
        .iter()
        .find_map(|ending| file.strip_suffix(ending))
        .unwrap_or(file);
    plain.strip_suffix(".ko")
}
