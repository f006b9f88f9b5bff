//! JSON documents, indented, with a newline at the end.

use serde::Serialize;

/// The document as text.
///
/// # Errors
///
/// A value that JSON cannot hold, such as an infinite number.
pub fn render<T: Serialize>(document: &T) -> anyhow::Result<String> {
    let mut text = serde_json::to_string_pretty(document)?;
    text.push('\n');
    Ok(text)
}
