//! The tables of docs/accuracy.md, which `lab score --write` regenerates.

use std::fs;

use anyhow::{Context as _, Result, bail};

use super::score::Score;
use super::score_report as report;
use crate::host;

/// Replaces the table of the score's pair in docs/accuracy.md, or adds one.
///
/// # Errors
///
/// When the file cannot be read or written, or a marker has lost its partner.
pub(crate) fn write(scored: &Score) -> Result<()> {
    let path = host::root().join("docs/accuracy.md");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = replaced(&text, &scored.pair, &markdown(scored))
        .with_context(|| format!("{}", path.display()))?;
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// The score as a Markdown table.
fn markdown(scored: &Score) -> String {
    let mut text = format!(
        "`{}`: `{}` against `{}`\n\n| {} |\n|{}\n",
        scored.option,
        scored.with,
        scored.without,
        report::SCORE_TITLES.join(" | "),
        " --- |".repeat(report::SCORE_TITLES.len())
    );
    for workload in &scored.workloads {
        text.push_str(&format!(
            "| {} |\n",
            report::score_cells(workload).join(" | ")
        ));
    }
    let rows = report::pooled_rows(scored);
    if !rows.is_empty() {
        text.push_str(&format!(
            "\n| {} |\n|{}\n",
            report::POOLED_TITLES.join(" | "),
            " --- |".repeat(report::POOLED_TITLES.len())
        ));
    }
    for row in rows {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
    }
    text
}

fn replaced(text: &str, pair: &str, table: &str) -> Result<String> {
    let begin = format!("<!-- score: {pair} -->\n");
    let end = "<!-- end of score -->\n";
    let section = format!("{begin}\n{table}\n{end}");
    let Some((before, rest)) = text.split_once(&begin) else {
        return Ok(format!("{}\n\n{section}", text.trim_end()));
    };
    let Some((_, after)) = rest.split_once(end) else {
        bail!("the score of {pair} has no `{}`", end.trim_end());
    };
    Ok(format!("{before}{section}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_added_and_then_replaced() {
        let first = replaced("# Accuracy\n\ntext\n", "p", "old\n").unwrap();
        let both = replaced(&first, "q", "other\n").unwrap();
        let after = replaced(&both, "p", "new\n").unwrap();
        assert!(after.contains("new") && !after.contains("old"), "{after}");
        assert!(after.contains("other") && after.starts_with("# Accuracy\n\ntext\n"));
        assert_eq!(replaced(&after, "p", "new\n").unwrap(), after);
        assert!(replaced("<!-- score: p -->\n", "p", "x").is_err());
    }
}
