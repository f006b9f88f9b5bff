//! A command at several points: each recorded by itself, then all made one.
//!
//! With an output file the points' recordings are kept in `FILE.points` until the
//! last is there. A sweep that was interrupted, by whatever, goes on from them; the
//! point at hand is begun anew.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::args::MeasureArgs;
use super::measure::{MEMORY_LIMIT, Measured, measure, note_recording};
use super::repeat::Occasion;
use crate::collect::Ended;
use crate::error::hinted;
use crate::output;
use crate::recording::{self, MemorySink, Recording, Writer};

/// What makes two sweeps the same.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    command: Vec<String>,
    points: Vec<BTreeMap<String, String>>,
    runs: Option<u32>,
    warmup: u32,
    baseline: bool,
    hz: u64,
    metric: Option<String>,
}

/// Records a sweep: all of it, or without a file what was recorded until it was
/// interrupted; `None` when it is to be resumed.
pub(super) fn record(
    args: &MeasureArgs,
    verbose: u8,
    mut began: Instant,
    occasion: &mut Occasion,
    target: Option<(&Path, bool)>,
) -> anyhow::Result<Measured<(Option<Recording>, Ended)>> {
    let plan = Plan {
        command: args
            .workload
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
        points: occasion.points.clone(),
        runs: args.repeat.runs,
        warmup: args.repeat.warmup,
        baseline: !args.repeat.no_baseline,
        hz: args.frequency,
        metric: args.repeat.metric.clone(),
    };
    check(args, &plan)?;
    let folder = match target {
        Some((path, force)) => Some(open(path, force, args.repeat.resume, &plan)?),
        None if args.repeat.resume => {
            return Err(hinted(
                "--resume needs the file that the sweep is recorded to",
                ["give it with -o"],
            ));
        }
        None => None,
    };
    let steps = args.repeat.steps(true)?.len();
    let mut parts: Vec<Recording> = Vec::new();
    let mut ended = Ended::Stopped;
    let mut failed: Option<Ended> = None;
    let mut whole = true;
    for (index, point) in plan.points.iter().enumerate() {
        occasion.point.clone_from(point);
        let part = folder
            .as_ref()
            .map(|folder| folder.join(format!("{index:05}.pprec")));
        if let Some(part) = part.as_ref().filter(|part| part.exists()) {
            parts.push(recording::read(part)?);
            occasion.meter.skip(steps);
            continue;
        }
        let made = match &part {
            Some(part) => measure(
                args,
                verbose,
                began,
                occasion,
                |header| Writer::create(part, true, header),
                Writer::discard,
            )?
            .map(|(writer, series)| {
                let stays = is_whole(&series.ended, args, occasion);
                if !stays {
                    writer.discard();
                    return anyhow::Ok((None, series.ended, false));
                }
                writer.finish(&series.trailer)?;
                Ok((Some(recording::read(part)?), series.ended, true))
            }),
            None => measure(
                args,
                verbose,
                began,
                occasion,
                |header| Ok(MemorySink::new(header, MEMORY_LIMIT)),
                drop,
            )?
            .map(|(sink, series)| {
                let stays = is_whole(&series.ended, args, occasion);
                anyhow::Ok((Some(sink.finish(&series.trailer)), series.ended, stays))
            }),
        };
        let (part, how, stays) = match made {
            Measured::Done(done) => done?,
            Measured::Nothing(why) if parts.is_empty() => return Ok(Measured::Nothing(why)),
            Measured::Nothing(why) => (None, Ended::CannotStart(why), false),
        };
        parts.extend(part);
        if !matches!(&how, Ended::Exited(exit) if exit.status == 0) {
            failed.get_or_insert(how);
        } else {
            ended = how;
        }
        if !stays {
            whole = false;
            break;
        }
        began = Instant::now();
    }
    let ended = failed.unwrap_or(ended);
    let of = plan.points.len();
    let Some(folder) = folder else {
        let made = parts.len();
        let mut recording = recording::concat(parts)?;
        if !whole {
            recording
                .trailer
                .warnings
                .push(format!("The sweep ended early, at point {made} of {of}."));
        }
        return Ok(Measured::Done((Some(recording), ended)));
    };
    if !whole {
        let _ = writeln!(
            io::stderr(),
            "recorded {} of {of} points in {}; the same command with --resume goes on",
            parts.len(),
            folder.display()
        );
        return Ok(Measured::Done((None, ended)));
    }
    let recording = recording::concat(parts)?;
    if let Some((path, force)) = target {
        let finished = recording::save(&recording, path, force)?;
        note_recording(&finished.path, finished.complete);
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    Ok(Measured::Done((Some(recording), ended)))
}

/// Whether a point is done with: all its runs were made.
fn is_whole(ended: &Ended, args: &MeasureArgs, occasion: &Occasion) -> bool {
    let well = match ended {
        Ended::Exited(exit) => exit.status == 0 || args.repeat.ignore_failure,
        Ended::CannotStart(_) => false,
        Ended::Stopped => true,
    };
    well && !occasion.signals.came()
}

/// Refuses a sweep that sweeps nothing.
fn check(args: &MeasureArgs, plan: &Plan) -> anyhow::Result<()> {
    let repeat = &args.repeat;
    let others = [&repeat.prepare, &repeat.between].into_iter().flatten();
    let others = others.map(|command| command.to_string_lossy().into_owned());
    let texts: Vec<String> = plan.command.iter().cloned().chain(others).collect();
    for parameter in &repeat.sweep {
        let place = format!("{{{}}}", parameter.name);
        if !texts.iter().any(|text| text.contains(&place)) {
            return Err(hinted(
                format!(
                    "--sweep {}: the command does not contain {place}",
                    parameter.name
                ),
                [format!(
                    "put {place} where its values belong: -- CMD -x {place}"
                )],
            ));
        }
    }
    Ok(())
}

/// The folder of the points' recordings: a new one, or the one to go on from.
fn open(path: &Path, force: bool, resume: bool, plan: &Plan) -> anyhow::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(".points");
    let folder = PathBuf::from(name);
    let described = folder.join("sweep.json");
    if described.exists() && resume {
        let text =
            fs::read(&described).with_context(|| format!("reading {}", described.display()))?;
        let before: Plan = serde_json::from_slice(&text)
            .with_context(|| format!("{} is damaged", described.display()))?;
        if before != *plan {
            return Err(hinted(
                format!("{} is of another sweep", folder.display()),
                [
                    format!("it was: {}", before.command.join(" ")),
                    "give the same command and options, or begin anew with --force".to_owned(),
                ],
            ));
        }
        return Ok(folder);
    }
    if folder.exists() {
        if !described.exists() {
            return Err(hinted(
                format!("{} exists and is no sweep's", folder.display()),
                ["move it away, or choose another -o"],
            ));
        }
        if !force {
            return Err(hinted(
                format!("{} holds a sweep that was interrupted", folder.display()),
                ["--resume goes on with it, --force begins anew"],
            ));
        }
        fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
    output::chown_to_invoker(fs::File::open(&folder)?.as_fd())?;
    output::write_file(&described, false, &serde_json::to_vec_pretty(plan)?)?;
    Ok(folder)
}
