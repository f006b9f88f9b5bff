//! Pieces of HTML.

use crate::report::escape;

/// The page so far.
#[derive(Default)]
pub(super) struct Html(pub(super) String);

impl Html {
    /// Appends what is HTML already.
    pub(super) fn raw(&mut self, html: &str) {
        self.0.push_str(html);
    }

    /// Appends text from anywhere.
    pub(super) fn text(&mut self, text: &str) {
        self.0.push_str(&quote(text));
    }

    /// Appends an entry of a description list.
    pub(super) fn item(&mut self, term: &str, text: &str) {
        self.raw("<div><dt>");
        self.text(term);
        self.raw("</dt><dd>");
        self.text(text);
        self.raw("</dd></div>\n");
    }
}

/// Text from anywhere as HTML, in elements and in quoted attributes.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    for c in escape(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A cell; on narrow screens its label stands beside it.
pub(super) fn cell(label: &str, class: &str, text: &str) -> String {
    format!(
        "<td data-label=\"{}\" class=\"{class}\">{}</td>",
        quote(label),
        quote(text)
    )
}

/// A row of cells: class and text.
pub(super) fn row(cells: &[(&str, &str)]) -> String {
    let cells: Vec<String> = cells
        .iter()
        .map(|(class, text)| format!("<td class=\"{class}\">{}</td>", quote(text)))
        .collect();
    format!("<tr>{}</tr>\n", cells.join(""))
}
