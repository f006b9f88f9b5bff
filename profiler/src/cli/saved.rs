//! `preemptprof report`: from a file, without root.

use std::io::{self, Write as _};
use std::path::Path;

use super::args::{Format, ReportArgs};
use super::{outputs, terminal};
use crate::catalog::Catalog;
use crate::model::{self, AnalyseOptions, Attribution, Knowledge};
use crate::output;
use crate::recording::{self, Recording};
use crate::report::{html, json, text};

/// Prints the report of a recording, or writes it as a page.
pub(super) fn report(args: &ReportArgs) -> anyhow::Result<u8> {
    if let Some(page) = &args.html {
        outputs::check(&[page], &[&args.file], args.force)?;
    }
    let recording = load(&args.file, args.salvage)?;
    let knowledge = Knowledge::new(Catalog::builtin(), &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    let options = AnalyseOptions {
        // The page folds them away.
        callers: args.html.is_none().then_some(args.callers),
    };
    let report = model::analyse_with(&recording, &knowledge, &attribution, &options);
    if let Some(page) = &args.html {
        output::write_with(page, args.force, |out| {
            html::write(&recording, &attribution, &report, out)
        })?;
        return Ok(0);
    }
    let layout = terminal::layout(&io::stdout(), args.callers);
    let rendered = match args.format {
        Format::Text => text::render(&report, &layout),
        Format::Json => json::render(&report)?,
    };
    terminal::print(&rendered)?;
    Ok(0)
}

/// Reads a recording, or what is whole of it.
pub(super) fn load(path: &Path, salvage: bool) -> anyhow::Result<Recording> {
    if !salvage {
        return recording::read(path);
    }
    let salvaged = recording::salvage(path)?;
    if let Some(problem) = &salvaged.problem {
        let _ = writeln!(io::stderr(), "salvaged what comes before: {problem}");
    }
    Ok(salvaged.recording)
}
