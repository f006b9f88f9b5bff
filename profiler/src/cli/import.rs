//! `preemptprof import`: a recording of what another tool sampled.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use anyhow::Context as _;

use super::args::{ImportArgs, ImportKind};
use super::outputs;
use crate::error::{hinted, misuse};
use crate::import::{self, Imported, Known, folded, perf_script};
use crate::recording::{Header, Writer};
use crate::report::escape;

/// What is kept of what perf says on stderr, bytes.
const MAX_COMPLAINT: u64 = 4096;

/// Makes a recording of samples that another tool took.
pub(super) fn import(args: &ImportArgs) -> anyhow::Result<u8> {
    if args.weight.is_some() && args.kind != ImportKind::Folded {
        return Err(misuse(
            "--weight is of folded stacks",
            ["each sample that perf prints counts as one"],
        ));
    }
    let mut inputs = vec![args.file.as_path()];
    inputs.extend(args.config.as_deref());
    outputs::check(&[&args.output], &inputs, args.force)?;
    let config = args.config.as_deref().map(import::read_config);
    let stdin = args.file == Path::new("-");
    let tool = match args.kind {
        ImportKind::PerfScript => "perf script",
        ImportKind::PerfData => "perf record",
        ImportKind::Folded => "folded stacks",
    };
    let source = match stdin {
        true => tool.to_owned(),
        false => format!("{tool}, {}", args.file.display()),
    };
    let known = Known {
        source,
        config: config.transpose()?,
        release: args.kernel.clone(),
        event: args.event.clone(),
        hz: args.frequency,
        weight: args.weight,
    };
    let make_sink = |header: &Header| Writer::create(&args.output, args.force, header);
    let failed = || format!("cannot import {}", args.file.display());
    let imported = match (args.kind, stdin) {
        (ImportKind::PerfData, true) => {
            return Err(misuse(
                "perf-data cannot be read from stdin",
                ["perf script --header | preemptprof import perf-script - can"],
            ));
        }
        (ImportKind::PerfData, false) => perf_data(&args.file, &known, make_sink),
        (ImportKind::PerfScript, true) => {
            perf_script::import(io::stdin().lock(), &known, make_sink, Writer::discard)
        }
        (ImportKind::PerfScript, false) => {
            perf_script::import(open(&args.file)?, &known, make_sink, Writer::discard)
        }
        (ImportKind::Folded, true) => {
            folded::import(io::stdin().lock(), &known, make_sink, Writer::discard)
        }
        (ImportKind::Folded, false) => {
            folded::import(open(&args.file)?, &known, make_sink, Writer::discard)
        }
    }
    .with_context(failed)?;
    finish(imported, &known)
}

fn open(path: &Path) -> anyhow::Result<BufReader<File>> {
    let refused = |why: &dyn std::fmt::Display, hint: &str| {
        hinted(format!("cannot read {}: {why}", path.display()), [hint])
    };
    let file = File::open(path)
        .map_err(|error| refused(&error, "check the path and its permissions; - is stdin"))?;
    if file.metadata().is_ok_and(|meta| meta.is_dir()) {
        return Err(refused(&"it is a directory", "give the name of a file"));
    }
    Ok(BufReader::with_capacity(1 << 18, file))
}

fn finish(imported: Imported<Writer>, known: &Known) -> anyhow::Result<u8> {
    let finished = imported.sink.finish(&imported.trailer)?;
    let mut note = format!(
        "recorded: {}, {} samples of {}\n",
        finished.path.display(),
        imported.samples,
        escape(&imported.event)
    );
    let left_out: Vec<String> = imported
        .left_out
        .iter()
        .map(|(event, count)| format!("{count} of {}", escape(event)))
        .collect();
    if !left_out.is_empty() {
        note += &format!(
            "left out: samples of other events, {}\n",
            left_out.join(", ")
        );
    }
    if imported.strange_lines > 0 {
        note += &format!(
            "left out: {} lines that are nothing known\n",
            imported.strange_lines
        );
    }
    if known.config.is_none() {
        note += "no --config: which options are on is not known, so no time is given to one\n";
    }
    // Nothing is left to say when the terminal is gone.
    let _ = io::stderr().lock().write_all(note.as_bytes());
    Ok(0)
}

/// Has perf print its file, and reads that.
fn perf_data(
    path: &Path,
    known: &Known,
    make_sink: impl FnOnce(&Header) -> anyhow::Result<Writer>,
) -> anyhow::Result<Imported<Writer>> {
    // For the message: perf's own is about what it tried.
    open(path)?;
    let mut perf = Command::new("perf")
        .args(["script", "--header", "--show-lost-events"])
        .args(["-F", "+pid,+symoff", "-i"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => hinted(
                "perf is not installed",
                [
                    "where it is: perf script --header -F +pid,+symoff > a.txt",
                    "and here: preemptprof import perf-script a.txt -o a.pprec",
                ],
            ),
            _ => anyhow::Error::from(error).context("cannot run perf"),
        })?;
    let complaint = complaint(&mut perf);
    let stdout = perf.stdout.take().context("perf has no stdout")?;
    let imported = perf_script::import(
        BufReader::with_capacity(1 << 18, stdout),
        known,
        make_sink,
        Writer::discard,
    );
    if imported.is_err() {
        // It may still have much to say that nobody will read.
        let _ = perf.kill();
    }
    let status = perf.wait().context("waiting for perf")?;
    let complaint = complaint.join().unwrap_or_default();
    if !status.success() && (imported.is_ok() || !complaint.is_empty()) {
        let said: Vec<&str> = complaint.lines().take(3).collect();
        let said = escape(&said.join("; ")).into_owned();
        if let Ok(imported) = imported {
            imported.sink.discard();
        }
        return Err(hinted(
            format!("perf script ended with {status}"),
            [format!("it said: {said}")],
        ));
    }
    imported
}

/// Reads what perf says on stderr, so that it never waits for a reader.
fn complaint(perf: &mut Child) -> thread::JoinHandle<String> {
    let stderr = perf.stderr.take();
    thread::spawn(move || {
        let Some(mut stderr) = stderr else {
            return String::new();
        };
        let mut said = Vec::new();
        let _ = stderr.by_ref().take(MAX_COMPLAINT).read_to_end(&mut said);
        let _ = io::copy(&mut stderr, &mut io::sink());
        String::from_utf8_lossy(&said).into_owned()
    })
}
