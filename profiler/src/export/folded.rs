//! Folded stacks: `comm;outer;...;inner;[CONFIG_X] weight`, one line for each
//! distinct stack, as flamegraph.pl, inferno and speedscope read them.
//!
//! User frames come first, kernel frames inside them. A stack that an option
//! owns ends in a frame that names it.

use std::borrow::Cow;
use std::io::{self, Write};

use super::By;
use super::tree::{Limits, Step, Tree, Visitor};
use crate::model::Attribution;
use crate::recording::Recording;
use crate::report::{needs_escape, push_escaped};

/// Stands for all tasks that are left out.
const TOO_SMALL: &str = "[tasks too small to be drawn]";

/// Writes the workload's folded stacks, sorted by their frames. The weights add up to the
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
    let limits = Limits {
        options: false,
        ..Limits::NONE
    };
    let mark = |_| "";
    fold(recording, attribution, by, limits, mark, |line, weight| {
        writeln!(out, "{line} {weight}")
    })
}

/// Hands each folded stack to `write` with its weight. Each frame that an option
/// owns gets `mark(option)` appended to its name. What is left out counts for the
/// frame around it.
pub(super) fn fold(
    recording: &Recording,
    attribution: &Attribution,
    by: By,
    limits: Limits,
    mark: impl Fn(usize) -> &'static str,
    write: impl FnMut(&str, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut tree = Tree::new(recording, attribution, by);
    let mut lines = Lines {
        names: tree.names.iter().map(|name| frame(name)).collect(),
        attribution,
        mark,
        write,
        line: String::new(),
        ends: Vec::new(),
    };
    tree.walk(limits, &mut lines)
}

/// Writes a line for each node that something ends at.
struct Lines<'r, M, W> {
    /// Names, escaped.
    names: Vec<Cow<'r, str>>,
    attribution: &'r Attribution,
    mark: M,
    write: W,
    /// The path to the node entered last.
    line: String,
    /// Where each node of it ends.
    ends: Vec<usize>,
}

impl<M, W> Visitor for Lines<'_, M, W>
where
    M: Fn(usize) -> &'static str,
    W: FnMut(&str, u64) -> io::Result<()>,
{
    fn enter(&mut self, depth: usize, step: Step, _: u64) -> io::Result<()> {
        self.ends.truncate(depth);
        self.line.truncate(self.ends.last().copied().unwrap_or(0));
        if depth > 0 {
            self.line.push(';');
        }
        match step {
            Step::Name(name, option) => {
                let name = &*self.names[name as usize];
                // A line that begins with `#` is a comment to the tools.
                match name.strip_prefix('#').filter(|_| depth == 0) {
                    Some(rest) => {
                        self.line.push_str("\\x23");
                        self.line.push_str(rest);
                    }
                    None => self.line.push_str(name),
                }
                if let Some(option) = option {
                    self.line.push_str((self.mark)(option.into()));
                }
            }
            Step::Owner(option) => {
                let option = usize::from(option);
                self.line.push('[');
                self.line.push_str(&frame(self.attribution.option(option)));
                self.line.push(']');
                self.line.push_str((self.mark)(option));
            }
        }
        self.ends.push(self.line.len());
        Ok(())
    }

    fn ends(&mut self, depth: usize, own: u64, left_out: u64) -> io::Result<()> {
        let line = match depth {
            0 => TOO_SMALL,
            _ => &self.line,
        };
        (self.write)(line, own.saturating_add(left_out))
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
