//! Names from elsewhere, made safe to print.

use std::borrow::Cow;
use std::fmt::Write as _;

/// `name` with everything escaped that could move the cursor, colour the
/// terminal, reorder the line or hide in it: control characters, escape
/// sequences, line separators, bidirectional controls and invisible characters.
/// Backslashes are doubled, so that different names stay different.
///
/// Task names, command lines and user symbols are chosen by whoever runs a
/// program; a report printed by root must not let them write to its terminal.
pub fn escape(name: &str) -> Cow<'_, str> {
    if !name.chars().any(needs_escape) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len() + 8);
    for c in name.chars() {
        push_escaped(&mut out, c, needs_escape(c));
    }
    Cow::Owned(out)
}

/// Appends `c`, escaped if so wished.
pub(crate) fn push_escaped(out: &mut String, c: char, escaped: bool) {
    match c {
        _ if !escaped => out.push(c),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\t' => out.push_str("\\t"),
        '\r' => out.push_str("\\r"),
        c if u32::from(c) < 0x100 => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        c => {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        }
    }
}

/// Whether `c` must not reach a terminal as it is.
pub(crate) fn needs_escape(c: char) -> bool {
    c == '\\'
        || c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c,
            // Soft hyphen, Arabic letter mark, zero-width and direction marks.
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            // Embeddings, overrides, isolates; invisible operators.
            | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            // Not characters, and not allowed in XML.
            | '\u{fffe}' | '\u{ffff}'
            // Tags: invisible copies of ASCII.
            | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hostile_names() {
        for (name, escaped) in [
            ("kworker/0:1", "kworker/0:1"),
            ("Web Content", "Web Content"),
            ("größe", "größe"),
            ("a\u{1b}[31mred", "a\\x1b[31mred"),
            ("a\u{9b}31m", "a\\x9b31m"),
            ("two\nlines\r", "two\\nlines\\r"),
            ("C:\\x", "C:\\\\x"),
            ("exe\u{202e}gpj", "exe\\u{202e}gpj"),
            ("\u{7f}\0", "\\x7f\\x00"),
        ] {
            assert_eq!(escape(name), escaped);
        }
    }

    proptest! {
        #[test]
        fn nothing_dangerous_is_left_and_names_stay_apart(a in any::<String>(), b in any::<String>()) {
            let (left, right) = (escape(&a), escape(&b));
            prop_assert!(!left.chars().any(|c| c != '\\' && needs_escape(c)));
            prop_assert_eq!(left == right, a == b);
        }
    }
}
