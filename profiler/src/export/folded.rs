//! Folded stacks: `comm;outer;...;inner;[CONFIG_X] weight`, one line for each
//! distinct stack, as flamegraph.pl, inferno and speedscope read them.
//!
//! User frames come first, kernel frames inside them. A stack that an option
//! owns ends in a frame that names it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::By;
use super::group::{Key, NO_STACK, USER, groups};
use crate::fast_map::FastMap;
use crate::model::{Attribution, comm, frame_name, frames};
use crate::recording::Recording;
use crate::report::{needs_escape, push_escaped};

/// Writes the workload's folded stacks, sorted. The weights add up to the
/// workload's samples, or to the nanoseconds it was blocked.
///
/// # Errors
///
/// Whatever `out` fails with.
pub fn write(
    recording: &Recording,
    attribution: &Attribution,
    by: By,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (line, weight) in fold(recording, attribution, by, &|_| "") {
        writeln!(out, "{line} {weight}")?;
    }
    Ok(())
}

/// The folded stacks with their weights. Each frame that an option owns gets
/// `mark(option)` appended to its name.
pub(super) fn fold(
    recording: &Recording,
    attribution: &Attribution,
    by: By,
    mark: &dyn Fn(usize) -> &'static str,
) -> BTreeMap<String, u64> {
    let mut names = Names {
        recording,
        escaped: FastMap::default(),
    };
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (key, weight) in groups(recording, by) {
        let line = names.line(key, attribution, by, mark);
        let sum = lines.entry(line).or_default();
        *sum = sum.saturating_add(weight);
    }
    lines
}

/// Names, escaped once each.
struct Names<'r> {
    recording: &'r Recording,
    escaped: FastMap<&'r str, Cow<'r, str>>,
}

impl<'r> Names<'r> {
    fn push(&mut self, line: &mut String, name: &'r str) {
        line.push_str(self.escaped.entry(name).or_insert_with(|| frame(name)));
    }

    fn line(
        &mut self,
        key: Key,
        attribution: &Attribution,
        by: By,
        mark: &dyn Fn(usize) -> &'static str,
    ) -> String {
        let recording = self.recording;
        let mut line = String::new();
        let task = comm(recording, key.comm);
        // A line that begins with `#` is a comment to the tools.
        if let Some(rest) = task.strip_prefix('#') {
            line.push_str("\\x23");
            line.push_str(&frame(rest));
        } else {
            self.push(&mut line, task);
        }
        let user = frames(recording, key.user_stack);
        for &id in user.iter().rev() {
            line.push(';');
            self.push(&mut line, frame_name(recording, id));
        }
        if key.user_mode {
            if user.is_empty() {
                line.push(';');
                line.push_str(USER);
            }
            return line;
        }
        let kernel = frames(recording, key.kernel_stack);
        if kernel.is_empty() {
            line.push(';');
            line.push_str(NO_STACK);
            return line;
        }
        let owned = match by {
            By::Time => attribution.owner(key.kernel_stack),
            // Time blocked is not time in an option's code.
            By::Rcu => None,
        };
        for (depth, &id) in kernel.iter().enumerate().rev() {
            line.push(';');
            self.push(&mut line, frame_name(recording, id));
            if let Some(owned) = owned
                && (owned.inner..owned.outer).contains(&depth)
            {
                line.push_str(mark(owned.option));
            }
        }
        if let Some(owned) = owned {
            line.push_str(";[");
            line.push_str(&frame(attribution.option(owned.option)));
            line.push(']');
            line.push_str(mark(owned.option));
        }
        line
    }
}

/// A name as one frame: nothing in it separates frames, ends the line, is
/// trimmed away, or reads as a weight. Different names stay different.
pub(super) fn frame(name: &str) -> Cow<'_, str> {
    // A last word that begins like a number would be taken for the first of two
    // weights of a differential profile.
    let number = name.rfind(' ').filter(|&space| {
        name[space + 1..].starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
    });
    let end = name.len().saturating_sub(1);
    let escaped = |at: usize, c: char| {
        c == ';' || needs_escape(c) || (c == ' ' && (at == 0 || at == end || Some(at) == number))
    };
    if !name.char_indices().any(|(at, c)| escaped(at, c)) {
        return Cow::Borrowed(name);
    }
    let mut out = String::with_capacity(name.len() + 8);
    for (at, c) in name.char_indices() {
        push_escaped(&mut out, c, escaped(at, c));
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames_keep_to_themselves() {
        for (name, escaped) in [
            ("preempt_count_add", "preempt_count_add"),
            ("Web Content", "Web Content"),
            ("a;b", "a\\x3bb"),
            ("a\nb", "a\\nb"),
            (" lead", "\\x20lead"),
            ("trail ", "trail\\x20"),
            ("worker 12", "worker\\x2012"),
            ("worker 1 2", "worker 1\\x202"),
            ("v 1.5x", "v\\x201.5x"),
            ("\\x3b", "\\\\x3b"),
        ] {
            assert_eq!(frame(name), escaped);
        }
    }

    proptest! {
        #[test]
        fn different_names_stay_different(a in any::<String>(), b in any::<String>()) {
            let (left, right) = (frame(&a), frame(&b));
            prop_assert!(!left.contains([';', '\n']));
            prop_assert_eq!(left.trim(), &*left);
            prop_assert_eq!(left == right, a == b);
        }
    }
}
