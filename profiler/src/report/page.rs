//! Lines of text that fit a terminal.

use anstyle::{AnsiColor, Style};
use textwrap::WordSplitter;
use textwrap::core::display_width;

/// The first result, option names.
pub(super) const STRONG: Style = Style::new().bold();
/// What is less important.
pub(super) const FAINT: Style = Style::new().dimmed();
/// Column headings and labels.
pub(super) const LABEL: Style = AnsiColor::Cyan.on_default();
/// A share that is worth acting upon.
pub(super) const COST: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();

/// Narrower than this a line is not worth wrapping into.
const MIN_WRAP: usize = 20;

/// A space at which no line is broken. Names cannot contain it: it is one of the
/// characters that are escaped.
const GLUE: char = '\u{a0}';

/// Binds numbers to their units.
fn glue_units(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut words = text.split(' ').peekable();
    while let Some(word) = words.next() {
        out.push_str(word);
        let Some(next) = words.peek() else { break };
        let unit = next.trim_end_matches(|c: char| c.is_ascii_punctuation() && c != '%');
        let bound = word.ends_with(|c: char| c.is_ascii_digit())
            && matches!(unit, "%" | "s" | "ms" | "us" | "ns" | "Hz");
        out.push(if bound { GLUE } else { ' ' });
    }
    out
}

/// A page under construction. `width` absent means no wrapping.
pub(super) struct Page {
    out: String,
    width: Option<usize>,
    color: bool,
}

/// One cell of a table row.
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) style: Style,
}

impl Cell {
    pub(super) fn new(text: impl Into<String>, style: Style) -> Self {
        Self {
            text: text.into(),
            style,
        }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(text, Style::new())
    }
}

impl Page {
    pub(super) fn new(width: Option<usize>, color: bool) -> Self {
        Self {
            out: String::new(),
            width,
            color,
        }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    pub(super) fn blank(&mut self) {
        self.out.push('\n');
    }

    fn styled(&self, text: &str, style: Style) -> String {
        if self.color && !text.is_empty() && style != Style::new() {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }

    fn wrap(&self, text: &str, indent: usize) -> Vec<String> {
        match self.width {
            Some(width) => {
                let width = width.saturating_sub(indent).max(MIN_WRAP);
                textwrap::wrap(
                    &glue_units(text),
                    textwrap::Options::new(width).word_splitter(WordSplitter::NoHyphenation),
                )
                .into_iter()
                .map(|line| line.replace(GLUE, " "))
                .collect()
            }
            None => vec![text.to_owned()],
        }
    }

    /// A line, wrapped under its own start at `indent`.
    pub(super) fn line(&mut self, indent: usize, text: &str, style: Style) {
        for line in self.wrap(text, indent) {
            let line = self.styled(&line, style);
            self.push(&format!("{:indent$}{line}", ""));
        }
    }

    /// A label in a column of `column` and what it says, wrapped beside it.
    pub(super) fn labelled(&mut self, column: usize, label: &str, text: &str, style: Style) {
        let mut head = self.styled(label, LABEL);
        let gap = column.saturating_sub(display_width(label)).max(1);
        for line in self.wrap(text, column) {
            let line = self.styled(&line, style);
            self.push(&format!("{head}{:gap$}{line}", ""));
            head = " ".repeat(column.saturating_sub(gap));
        }
    }

    /// A table. The last column is wrapped, or moved to a line of its own where
    /// little room is left beside the others. `after` writes what follows a row.
    pub(super) fn table(
        &mut self,
        headings: &[&str],
        rows: &[Vec<Cell>],
        mut after: impl FnMut(&mut Self, usize),
    ) {
        let last = headings.len().saturating_sub(1);
        let widths: Vec<usize> = (0..last)
            .map(|column| {
                rows.iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| display_width(&cell.text))
                    .chain([display_width(headings[column])])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let start: usize = widths.iter().map(|width| width + 2).sum();
        let below = self.width.is_some_and(|width| width < start + MIN_WRAP);
        let head: Vec<Cell> = headings
            .iter()
            .map(|heading| Cell::new(*heading, LABEL))
            .collect();
        self.row(&head, &widths, start, below);
        for (index, row) in rows.iter().enumerate() {
            self.row(row, &widths, start, below);
            after(self, index);
        }
    }

    fn row(&mut self, row: &[Cell], widths: &[usize], start: usize, below: bool) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(&self.styled(&cell.text, cell.style));
            let gap = width.saturating_sub(display_width(&cell.text)) + 2;
            line.extend(std::iter::repeat_n(' ', gap));
        }
        let Some(wrapped) = row.get(widths.len()) else {
            self.push(&line);
            return;
        };
        if below {
            self.push(&line);
            self.line(4, &wrapped.text, wrapped.style);
            return;
        }
        for part in self.wrap(&wrapped.text, start) {
            let part = self.styled(&part, wrapped.style);
            self.push(&format!("{line}{part}"));
            line = " ".repeat(start);
        }
    }

    fn push(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }
}
