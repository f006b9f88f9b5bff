//! `preemptprof export`: a recording in the formats of other tools.

use std::io::{self, BufWriter, IntoInnerError, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::args::{ExportArgs, ExportFormat, Weight};
use super::{listen, outputs, saved, terminal};
use crate::catalog::Catalog;
use crate::error::misuse;
use crate::export::{By, csv, firefox, folded, openmetrics, pprof, speedscope, svg, trace};
use crate::model::{self, AnalyseOptions, Attribution, Knowledge, Report};
use crate::output;
use crate::recording::Recording;
use crate::report::html;

/// Endings of file names and the formats they mean. The first that fits counts.
const ENDINGS: [(&str, ExportFormat); 17] = [
    (".folded", ExportFormat::Folded),
    (".txt", ExportFormat::Folded),
    (".svg", ExportFormat::Svg),
    (".html", ExportFormat::Html),
    (".htm", ExportFormat::Html),
    (".pb", ExportFormat::Pprof),
    (".pprof", ExportFormat::Pprof),
    (".firefox.json", ExportFormat::Firefox),
    (".profile.json", ExportFormat::Firefox),
    (".speedscope.json", ExportFormat::Speedscope),
    (".speedscope", ExportFormat::Speedscope),
    (".trace.json", ExportFormat::Trace),
    (".perfetto.json", ExportFormat::Trace),
    (".callers.csv", ExportFormat::CallersCsv),
    (".csv", ExportFormat::Csv),
    (".prom", ExportFormat::Openmetrics),
    (".om", ExportFormat::Openmetrics),
];

/// Writes a recording in other formats.
pub(super) fn export(args: &ExportArgs) -> anyhow::Result<u8> {
    let outputs = wanted(args)?;
    if args.by == Weight::Rcu && !outputs.iter().any(|output| output.has_weights()) {
        return Err(misuse(
            "--by rcu would change nothing",
            ["folded, svg, pprof and speedscope have weights that can be time blocked"],
        ));
    }
    outputs::check(&args.output, &[&args.file], args.force)?;
    let recording = saved::load(&args.file, args.salvage)?;
    let knowledge = Knowledge::new(Catalog::builtin(), &recording.header.kernel);
    let attribution = Attribution::new(&recording, &knowledge);
    let by = match args.by {
        Weight::Time => By::Time,
        Weight::Rcu => By::Rcu,
    };
    let needs_report = |output: &Output<'_>| {
        !matches!(
            output.format,
            ExportFormat::Folded
                | ExportFormat::Pprof
                | ExportFormat::Firefox
                | ExportFormat::Speedscope
                | ExportFormat::Trace
        )
    };
    let report = if outputs.iter().any(needs_report) {
        let options = AnalyseOptions::default();
        model::analyse_with(&recording, &knowledge, &attribution, &options)
    } else {
        Report::default()
    };
    let source = Source {
        recording: &recording,
        attribution: &attribution,
        report: &report,
        by,
    };
    if let Some(address) = &args.listen {
        let mut metrics = Vec::new();
        openmetrics::write(&report, &mut metrics)?;
        listen::serve(address, metrics)?;
        return Ok(0);
    }
    for output in &outputs {
        match output.path {
            None => {
                let mut out = BufWriter::new(io::stdout().lock());
                source
                    .write(output, &mut out)
                    .and_then(|()| Ok(out.flush()?))
                    .map_err(|error| match error.is::<io::Error>() {
                        true => terminal::cannot_print(error),
                        false => error,
                    })?;
            }
            Some(path) => {
                output::write_with(path, args.force, |out| source.write(output, out))?;
            }
        }
    }
    Ok(0)
}

struct Source<'a> {
    recording: &'a Recording,
    attribution: &'a Attribution,
    report: &'a Report,
    by: By,
}

impl Source<'_> {
    fn write(&self, output: &Output<'_>, out: &mut dyn Write) -> anyhow::Result<()> {
        if !output.gzip {
            return self.write_plain(output.format, out);
        }
        let gzip = GzEncoder::new(out, Compression::fast());
        // Formats write a number at a time; to the compressor each piece is work.
        let mut gzip = BufWriter::with_capacity(1 << 16, gzip);
        self.write_plain(output.format, &mut gzip)?;
        let gzip = gzip.into_inner().map_err(IntoInnerError::into_error)?;
        gzip.finish()?;
        Ok(())
    }

    fn write_plain(&self, format: ExportFormat, out: &mut dyn Write) -> anyhow::Result<()> {
        let &Self {
            recording,
            attribution,
            report,
            by,
        } = self;
        match format {
            ExportFormat::Folded => folded::write(recording, attribution, by, out)?,
            ExportFormat::Svg => svg::write(recording, attribution, report, by, out)?,
            ExportFormat::Html => html::write(recording, attribution, report, out)?,
            ExportFormat::Pprof => pprof::write(recording, attribution, by, out)?,
            ExportFormat::Firefox => firefox::write(recording, attribution, out)?,
            ExportFormat::Speedscope => speedscope::write(recording, attribution, by, out)?,
            ExportFormat::Trace => trace::write(recording, attribution, out)?,
            ExportFormat::Csv => csv::write_options(report, out)?,
            ExportFormat::CallersCsv => csv::write_callers(report, out)?,
            ExportFormat::Openmetrics => openmetrics::write(report, out)?,
        }
        Ok(())
    }
}

/// One thing to write.
struct Output<'a> {
    /// Stdout when absent.
    path: Option<&'a Path>,
    format: ExportFormat,
    /// Whether to compress what the format does not compress itself.
    gzip: bool,
}

impl Output<'_> {
    /// Whether `--by` says what its weights are.
    fn has_weights(&self) -> bool {
        matches!(
            self.format,
            ExportFormat::Folded
                | ExportFormat::Svg
                | ExportFormat::Pprof
                | ExportFormat::Speedscope
        )
    }
}

/// What is to be written.
fn wanted(args: &ExportArgs) -> anyhow::Result<Vec<Output<'_>>> {
    let served = args.listen.as_ref().map(|_| ExportFormat::Openmetrics);
    if served.is_some() && args.format.is_some_and(|format| Some(format) != served) {
        return Err(misuse(
            "--listen serves metrics only",
            ["leave --format out, or give --format openmetrics"],
        ));
    }
    if args.output.is_empty() {
        let format = args.format.or(served).ok_or_else(|| which(None))?;
        return Ok(vec![Output {
            path: None,
            format,
            gzip: false,
        }]);
    }
    if args.format.is_some() && args.output.len() > 1 {
        return Err(misuse(
            "--format with more than one -o",
            ["leave it out: each -o is written in the format that its extension means"],
        ));
    }
    let output = |path: &'_ PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_ascii_lowercase();
        let plain = name.strip_suffix(".gz");
        let stem = plain.unwrap_or(&name);
        let by_name = ENDINGS
            .iter()
            .find(|(ending, _)| stem.ends_with(ending))
            .map(|&(_, format)| format);
        let format = args
            .format
            .or(by_name)
            .ok_or_else(|| which(Some(path.as_path())))?;
        anyhow::Ok((format, plain.is_some() && format != ExportFormat::Pprof))
    };
    args.output
        .iter()
        .map(|path| {
            let (format, gzip) = output(path)?;
            Ok(Output {
                path: Some(path),
                format,
                gzip,
            })
        })
        .collect()
}

fn which(path: Option<&Path>) -> anyhow::Error {
    let hint = "give --format, or an output ending in .svg, .html, .folded, .pb.gz, .firefox.json, \
                .speedscope.json, .trace.json, .csv, .callers.csv or .prom";
    match path {
        None => misuse("which format?", [hint]),
        Some(path) => misuse(format!("which format for {}?", path.display()), [hint]),
    }
}
