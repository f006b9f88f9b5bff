//! `preemptprof report` and `preemptprof export`: from a file, without root.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use super::args::{ExportArgs, ExportFormat, Format, ReportArgs, Weight};
use super::terminal;
use crate::catalog::Catalog;
use crate::error::hinted;
use crate::export::{By, folded, svg};
use crate::model::{self, AnalyseOptions, Attribution, Knowledge};
use crate::output;
use crate::recording::{self, Recording};
use crate::report::{json, text};

/// Prints the report of a recording.
pub(super) fn report(args: &ReportArgs) -> anyhow::Result<u8> {
    let recording = load(&args.file, args.salvage)?;
    let options = AnalyseOptions {
        callers: Some(args.callers),
    };
    let report = model::analyse(&recording, Catalog::builtin(), &options);
    let layout = terminal::layout(&io::stdout(), args.callers);
    let rendered = match args.format {
        Format::Text => text::render(&report, &layout),
        Format::Json => json::render(&report)?,
    };
    terminal::print(&rendered)?;
    Ok(0)
}

/// Writes a recording in another format.
pub(super) fn export(args: &ExportArgs) -> anyhow::Result<u8> {
    let format = format(args)?;
    let recording = load(&args.file, args.salvage)?;
    let knowledge = Knowledge::new(Catalog::builtin(), &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    let by = match args.by {
        Weight::Time => By::Time,
        Weight::Rcu => By::Rcu,
    };
    let write = |out: &mut dyn io::Write| -> anyhow::Result<()> {
        match format {
            ExportFormat::Folded => folded::write(&recording, &attribution, by, out)?,
            ExportFormat::Svg => {
                let options = AnalyseOptions::default();
                let report = model::analyse_with(&recording, &knowledge, &attribution, &options);
                svg::write(&recording, &attribution, &report, by, out)?;
            }
        }
        Ok(())
    };
    match &args.output {
        None => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out)
                .and_then(|()| Ok(out.flush()?))
                .map_err(|error| match error.is::<io::Error>() {
                    true => terminal::cannot_print(error),
                    false => error,
                })?;
        }
        Some(path) => {
            let mut bytes = Vec::new();
            write(&mut bytes)?;
            output::write_file(path, args.force, &bytes)?;
        }
    }
    Ok(0)
}

/// The format asked for, or the one that the output's extension means.
fn format(args: &ExportArgs) -> anyhow::Result<ExportFormat> {
    if let Some(format) = args.format {
        return Ok(format);
    }
    let extension = args
        .output
        .as_deref()
        .and_then(Path::extension)
        .and_then(|extension| extension.to_str());
    match extension {
        Some("svg") => Ok(ExportFormat::Svg),
        Some("folded" | "txt") => Ok(ExportFormat::Folded),
        _ => Err(hinted(
            "which format?",
            ["give --format folded or --format svg, or an output ending in .folded or .svg"],
        )),
    }
}

fn load(path: &Path, salvage: bool) -> anyhow::Result<Recording> {
    if !salvage {
        return recording::read(path);
    }
    let salvaged = recording::salvage(path)?;
    if let Some(problem) = &salvaged.problem {
        let _ = writeln!(io::stderr(), "salvaged what comes before: {problem}");
    }
    Ok(salvaged.recording)
}
