//! `preemptprof diff`: two kernels compared, from files, without root.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{outputs, terminal};
use crate::catalog::Catalog;
use crate::diff::{self, Input, flame};
use crate::error::misuse;
use crate::output;
use crate::recording;
use crate::report::{diff as text, diff_markdown, json};

/// The shapes of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// For a page on the web
    Markdown,
}

/// Arguments of `diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof diff base.pprec --vs new.pprec
  preemptprof diff a1.pprec a2.pprec --vs b1.pprec b2.pprec -o diff.svg
  preemptprof diff base.pprec --vs new.pprec --fail-above 2    status 1 when NEW is worse")]
pub struct DiffArgs {
    /// Recordings of the kernel that is compared against
    #[arg(required = true, value_name = "BASE")]
    pub base: Vec<PathBuf>,
    /// Recordings of the kernel that is compared
    #[arg(long, required = true, num_args = 1.., value_name = "NEW")]
    pub vs: Vec<PathBuf>,
    /// Shape of the result
    #[arg(long, value_enum, default_value_t)]
    pub format: DiffFormat,
    /// Callers to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub callers: usize,
    /// End with status 1 when NEW is worse by more than this many per cent
    #[arg(long, value_name = "PCT", value_parser = parse_percentage)]
    pub fail_above: Option<f64>,
    /// Compare also what differs in workload or machine
    #[arg(long)]
    pub unequal: bool,
    /// Write here, and where the name ends in .svg draw a flame graph of the
    /// difference; repeatable
    #[arg(short, long, value_name = "OUT")]
    pub output: Vec<PathBuf>,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

/// Compares, prints, and judges when asked to.
pub(super) fn diff(args: &DiffArgs) -> anyhow::Result<u8> {
    for path in &args.output {
        format_of(path)?;
    }
    let inputs: Vec<&Path> = args.base.iter().chain(&args.vs).map(|p| &**p).collect();
    outputs::check(&args.output, &inputs, args.force)?;
    let base = load(&args.base)?;
    let new = load(&args.vs)?;
    let catalog = Catalog::builtin();
    let document = diff::compare(&base, &new, catalog, args.unequal)?;
    for path in &args.output {
        let rendered = match format_of(path)? {
            Some(format) => {
                let mut layout = terminal::layout(&io::stdout(), args.callers);
                (layout.width, layout.color) = (None, false);
                render(&document, format, &layout)?.into_bytes()
            }
            None => {
                let mut svg = Vec::new();
                flame::write(&base, &new, catalog, &mut svg)?;
                svg
            }
        };
        output::write_file(path, args.force, &rendered)?;
    }
    let layout = terminal::layout(&io::stdout(), args.callers);
    terminal::print(&render(&document, args.format, &layout)?)?;
    match args.fail_above {
        Some(limit) if diff::fails(&document, limit / 100.0)? => Ok(1),
        _ => Ok(0),
    }
}

fn render(
    document: &diff::Diff,
    format: DiffFormat,
    layout: &crate::report::text::TextOptions,
) -> anyhow::Result<String> {
    Ok(match format {
        DiffFormat::Text => text::render(document, layout),
        DiffFormat::Json => json::render(document)?,
        DiffFormat::Markdown => diff_markdown::render(document),
    })
}

/// What a file's name says; `None` for a flame graph.
fn format_of(path: &Path) -> anyhow::Result<Option<DiffFormat>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("svg") => Ok(None),
        Some("json") => Ok(Some(DiffFormat::Json)),
        Some("md") => Ok(Some(DiffFormat::Markdown)),
        Some("txt") => Ok(Some(DiffFormat::Text)),
        _ => Err(misuse(
            format!("{}: which format?", path.display()),
            ["the output's name ends in .svg, .json, .md or .txt"],
        )),
    }
}

fn load(paths: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    paths
        .iter()
        .map(|path| {
            Ok(Input {
                name: path.display().to_string(),
                recording: recording::read(path)?,
            })
        })
        .collect()
}

fn parse_percentage(text: &str) -> Result<f64, String> {
    text.trim_end_matches('%')
        .trim_end()
        .parse::<f64>()
        .ok()
        .filter(|percent| (0.0..=1e6).contains(percent))
        .ok_or_else(|| "not a percentage of 0 or more, such as 2 or 0.5".to_owned())
}
