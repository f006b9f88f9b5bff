//! `preemptprof run` and `preemptprof record`.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;

use super::args::{Format, MeasureArgs, RecordArgs, RunArgs};
use super::attach::{EPOCH, attach, chosen_cpus, count};
use super::repeat::{Occasion, Progress, nothing_profiled};
use super::sweep;
use super::terminal;
use crate::catalog::Catalog;
use crate::collect::workload::{self, CannotStart, Workload};
use crate::collect::{
    Calibration, Capture, Copying, Ended, Kind, Prices, Run, Series, Watched, unprofiled,
};
use crate::error::hinted;
use crate::host::Host;
use crate::kernel::CpuList;
use crate::metric::{Choice, Reader};
use crate::model::{self, AnalyseOptions};
use crate::output;
use crate::probes::target::{self, Family, Scope};
use crate::probes::{Session, perf};
use crate::recording::{
    Header, MemorySink, Metric, Recording, Sampling, Sink, Target, Trailer, Writer,
};
use crate::report::{json, text};

/// Memory a run without a file may take for its records, bytes.
pub(super) const MEMORY_LIMIT: usize = 1 << 30;

/// `preemptprof run`: record, then report.
pub(super) fn run(args: &RunArgs, verbose: u8, began: Instant) -> anyhow::Result<u8> {
    for path in [&args.output, &args.report].into_iter().flatten() {
        output::check(path, args.force)?;
    }
    if let (Some(recording), Some(report)) = (&args.output, &args.report)
        && is_same_file(recording, report)
    {
        return Err(hinted(
            format!("-o and --report name the same file: {}", report.display()),
            ["the recording and the report of it are two files"],
        ));
    }
    let mut occasion = Occasion::begin(&args.measure.repeat)?;
    if occasion.is_sweep() {
        let target = args.output.as_deref().map(|path| (path, args.force));
        let sweep = sweep::record(&args.measure, verbose, began, &mut occasion, target)?;
        let (recording, ended) = match sweep {
            Measured::Done(done) => done,
            Measured::Nothing(why) => return Ok(refuse(&why)),
        };
        if let Some(recording) = &recording {
            write_report(args, recording)?;
        }
        return Ok(status(&ended));
    }
    let measured = if let Some(path) = &args.output {
        let measured = measure(
            &args.measure,
            verbose,
            began,
            &mut occasion,
            |header| Writer::create(path, args.force, header),
            Writer::discard,
        )?;
        measured.map(|(writer, series)| {
            let finished = writer.finish(&series.trailer)?;
            note_recording(&finished.path, finished.complete);
            let recording = crate::recording::read(path)?;
            anyhow::Ok((recording, series))
        })
    } else {
        let measured = measure(
            &args.measure,
            verbose,
            began,
            &mut occasion,
            |header| Ok(MemorySink::new(header, MEMORY_LIMIT)),
            drop,
        )?;
        measured.map(|(sink, series)| {
            let recording = sink.finish(&series.trailer);
            anyhow::Ok((recording, series))
        })
    };
    let (recording, series) = match measured {
        Measured::Done(result) => result?,
        Measured::Nothing(why) => return Ok(refuse(&why)),
    };
    write_report(args, &recording)?;
    Ok(status(&series.ended))
}

/// `preemptprof record`: record to a file.
pub(super) fn record(args: &RecordArgs, verbose: u8, began: Instant) -> anyhow::Result<u8> {
    output::check(&args.output, args.force)?;
    let mut occasion = Occasion::begin(&args.measure.repeat)?;
    if occasion.is_sweep() {
        let target = Some((args.output.as_path(), args.force));
        return Ok(
            match sweep::record(&args.measure, verbose, began, &mut occasion, target)? {
                Measured::Done((_, ended)) => status(&ended),
                Measured::Nothing(why) => refuse(&why),
            },
        );
    }
    let measured = measure(
        &args.measure,
        verbose,
        began,
        &mut occasion,
        |header| Writer::create(&args.output, args.force, header),
        Writer::discard,
    )?;
    match measured {
        Measured::Done((writer, series)) => {
            let finished = writer.finish(&series.trailer)?;
            note_recording(&finished.path, finished.complete);
            Ok(status(&series.ended))
        }
        Measured::Nothing(why) => Ok(refuse(&why)),
    }
}

/// What was measured, or why nothing was.
pub(super) enum Measured<T> {
    Done(T),
    Nothing(CannotStart),
}

impl<T> Measured<T> {
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Measured<U> {
        match self {
            Self::Done(value) => Measured::Done(f(value)),
            Self::Nothing(why) => Measured::Nothing(why),
        }
    }
}

/// The exit status of a run.
fn status(ended: &Ended) -> u8 {
    match ended {
        Ended::Exited(exit) => u8::try_from(exit.status).unwrap_or(u8::MAX),
        Ended::CannotStart(refused) => refuse(refused),
        Ended::Stopped => 0,
    }
}

fn refuse(refused: &CannotStart) -> u8 {
    terminal::print_error(&refused.error);
    u8::try_from(refused.status).unwrap_or(u8::MAX)
}

/// Whether two names of files that need not exist mean the same one.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let folder = |path: &Path| {
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        fs::canonicalize(parent.unwrap_or(Path::new("."))).ok()
    };
    a.file_name() == b.file_name() && folder(a) == folder(b)
}

pub(super) fn note_recording(path: &Path, complete: bool) {
    let state = if complete { "" } else { " (incomplete)" };
    let _ = writeln!(io::stderr(), "recorded: {}{state}", path.display());
}

fn write_report(args: &RunArgs, recording: &Recording) -> anyhow::Result<()> {
    let report = model::analyse(
        recording,
        Catalog::builtin(),
        &AnalyseOptions {
            callers: Some(args.callers),
        },
    );
    let mut layout = terminal::layout(&io::stderr(), args.callers);
    if args.report.is_some() {
        (layout.width, layout.color) = (None, false);
    }
    let rendered = match args.format {
        Format::Text => text::render(&report, &layout),
        Format::Json => json::render(&report)?,
    };
    match &args.report {
        Some(path) => output::write_file(path, args.force, rendered.as_bytes()),
        None => io::stderr()
            .lock()
            .write_all(rendered.as_bytes())
            .context("writing the report to stderr"),
    }
}

/// What is measured, decided from the arguments.
struct Subject {
    command: Vec<OsString>,
    target: Target,
    scope: Scope,
    /// Running processes to watch, with what they started.
    family: Option<Family>,
}

impl Subject {
    fn of(args: &MeasureArgs) -> anyhow::Result<Self> {
        let mut command = args.workload.clone();
        let (target, scope, family) = if args.all {
            (Target::Machine, Scope::machine(), None)
        } else if let Some(path) = &args.cgroup {
            let target = Target::Cgroup {
                path: path.display().to_string(),
            };
            (target, Scope::cgroup(path)?, None)
        } else if !args.pid.is_empty() {
            let family = target::family(Path::new("/proc"), &args.pid)?;
            let target = Target::Pids {
                pids: args.pid.clone(),
            };
            (target, Scope::tasks()?, Some(family))
        } else {
            if command.is_empty() {
                command = built_in()?;
            }
            (Target::Command, Scope::tasks()?, None)
        };
        Ok(Self {
            command,
            target,
            scope,
            family,
        })
    }

    /// The tasks that are the target when a run begins.
    fn targets(&mut self, workload: Option<&Workload>) -> Family {
        let mut targets = self.family.take().unwrap_or_default();
        if let (Target::Command, Some(workload)) = (&self.target, workload) {
            targets.processes.insert(workload.pid());
            targets.threads.insert(workload.pid());
        }
        targets
    }
}

/// The built-in workload, as a command.
fn built_in() -> anyhow::Result<Vec<OsString>> {
    let me = std::env::current_exe().context("finding the preemptprof program itself")?;
    Ok(vec![me.into(), "bench".into(), "messaging".into()])
}

/// Measures what the arguments say into the sink that `make_sink` makes. When
/// nothing was profiled after all, the sink is given to `discard`.
///
/// From one run to the next, [`Place`] keeps what holds of the kernel and
/// [`Series`] what holds of the recording: its origin of times, what its counters
/// have come to, the trailers so far. All else, the session first, is made anew
/// for each profiled run and gone before the next run of any kind begins.
pub(super) fn measure<S: Sink>(
    args: &MeasureArgs,
    verbose: u8,
    mut began: Instant,
    occasion: &mut Occasion,
    make_sink: impl Fn(&Header) -> anyhow::Result<S>,
    discard: impl FnOnce(S),
) -> anyhow::Result<Measured<(S, Finished)>> {
    check_frequency(args.frequency)?;
    let mut subject = Subject::of(args)?;
    let steps = args.repeat.steps(!subject.command.is_empty())?;
    let command = occasion.command(&subject.command);
    let choice = (args.repeat.metric.as_deref()).map_or(Ok(Choice::Auto), Choice::parse)?;
    let reader = choice.for_command(&command);
    if let Some(program) = command.first()
        && let Err(refused) = workload::resolve(program)
    {
        return Ok(Measured::Nothing(refused));
    }
    Host::check_privileges()?;
    let signals = &occasion.signals;
    let last_profiled = steps.iter().rposition(|step| step.kind == Kind::Profiled);
    let mut series = Series::default();
    let mut progress = Progress::new(args.repeat.ignore_failure, steps.len());
    let mut place: Option<Place> = None;
    let mut sink: Option<S> = None;

    for (index, step) in steps.iter().enumerate() {
        let point = occasion.point.clone();
        if !args.repeat.before(index == 0, &point, signals)? {
            progress.interrupted();
            break;
        }
        occasion.meter.begin(step.kind, &point);
        if index > 0 {
            began = Instant::now();
        }
        // Before anything is opened that it must not inherit, and while there is
        // one thread.
        let (outputs, capture) = match &reader {
            Some(_) => Capture::open()
                .map(|(outputs, capture)| (Some(outputs), Some(capture)))
                .context("reading what the command prints")?,
            None => (None, None),
        };
        let workload = if command.is_empty() {
            None
        } else {
            Some(Workload::spawn(&command, &signals.original, outputs)?)
        };
        let ended = match (step.kind, workload) {
            (Kind::Warmup | Kind::Unprofiled, Some(workload)) => {
                let copying = copy(capture)?;
                series.origin_ns();
                let (exit, wall) = unprofiled(workload, signals)?;
                let metric = result(reader.as_ref(), copying);
                if let (Kind::Unprofiled, Ok(exit)) = (step.kind, &exit) {
                    series.unprofiled(exit.status, wall, metric, point);
                }
                exit.map_or_else(Ended::CannotStart, Ended::Exited)
            }
            (_, workload) => {
                let place = match &mut place {
                    Some(place) => place,
                    none => none.insert(Place::find(args)?),
                };
                // The prices of the first run are those of all.
                let mut calibration =
                    (place.prices.is_none()).then(|| Calibration::begin(&place.cpus));
                let (host, cpus) = (&place.host, &place.cpus);
                let mut session = attach(args, verbose, host, subject.scope, cpus, &mut || {
                    if let Some(calibration) = &mut calibration {
                        calibration.before_switch();
                    }
                })?;
                if verbose > 0 {
                    for refusal in session.refusals() {
                        let _ = writeln!(io::stderr(), "refused: {refusal}");
                    }
                }
                if Some(index) == last_profiled {
                    place.host.forget_btf();
                }
                let own_tgid = match subject.scope.pid_namespace {
                    None => std::process::id(),
                    Some(_) => session.own_tgid().unwrap_or(0),
                };
                let pidfds = pidfds(&args.pid)?;
                let sink = match &mut sink {
                    Some(sink) => sink,
                    none => none.insert(make_sink(&header(args, &subject, place, &session))?),
                };
                let targets = subject.targets(workload.as_ref());
                progress
                    .refused(session.add_targets(&targets, subject.scope.pid_namespace.is_some()));
                if let Some(calibration) = calibration {
                    let prices = calibration.finish(&mut session, &perf::Kernel)?;
                    if verbose > 0 {
                        let _ = writeln!(io::stderr(), "calibrated in {:?}", prices.spent);
                    }
                    place.prices = Some(prices);
                }
                let counting = count(args, &mut session, &place.host, &place.cpus);
                let copying = copy(capture)?;
                let run = Run {
                    counting,
                    hot: &place.hot,
                    session,
                    watched: match workload {
                        Some(workload) => Watched::Command(workload),
                        None if !args.pid.is_empty() => Watched::Processes(pidfds),
                        None => Watched::Forever,
                    },
                    // A recording of one run begins with it.
                    origin_ns: (steps.len() > 1).then(|| series.origin_ns()),
                    sink: &mut series.sink(sink),
                    kallsyms: &place.host.facts.symbols,
                    signals,
                    duration: args.duration,
                    all_cpus: args.cpus.is_none(),
                    own_tgid,
                    prices: place.prices.unwrap_or_default(),
                    began,
                    bpf_stats: args.bpf_stats,
                };
                let mut outcome = run.go()?;
                if let Some(counting) = &outcome.trailer.counting {
                    place.hot = counting.hot_functions(&place.host.facts.symbols);
                }
                let metric = result(reader.as_ref(), copying);
                outcome.trailer.machine = crate::kernel::MachineFacts {
                    steal: outcome.trailer.machine.steal,
                    ..place.host.facts.machine.clone()
                };
                series.profiled(outcome, metric, point)
            }
        };
        occasion.meter.end();
        if !progress.go_on(ended) {
            break;
        }
    }

    let (ended, mut warnings) = progress.finish();
    if let (Choice::Output(reader), false) = (&choice, series.has_metric()) {
        warnings.push(format!(
            "The command printed no result that --metric {} finds: the wall time stands for it.",
            reader.name()
        ));
    }
    let (trailer, detach) = series.finish();
    let (sink, mut trailer) = match (sink, trailer) {
        (Some(sink), Some(trailer)) => (sink, trailer),
        (sink, _) => {
            sink.map(discard);
            return Ok(Measured::Nothing(nothing_profiled(ended)));
        }
    };
    trailer.warnings.extend(warnings);
    if verbose > 0 {
        let _ = writeln!(io::stderr(), "detached in {detach:?}");
        if let Some(counting) = &trailer.counting {
            let _ = writeln!(io::stderr(), "counted: {}", counting.summary());
            if verbose > 1 {
                for site in &counting.sites {
                    let ns: f64 = site.seen.iter().map(|s| s.ns).sum();
                    let hits: f64 = site.seen.iter().flat_map(|s| s.hits).sum();
                    let _ = writeln!(
                        io::stderr(),
                        "site {}+{:#x} {} ns {ns:.0} hits {hits:.1} refused {}",
                        site.function,
                        site.offset,
                        counting.targets[site.target as usize].symbol,
                        site.out_of_reach
                    );
                }
            }
        }
    }
    Ok(Measured::Done((sink, Finished { ended, trailer })))
}

fn copy(capture: Option<Capture>) -> anyhow::Result<Option<Copying>> {
    let copying = capture.map(Capture::start).transpose();
    copying.context("copying what the command prints")
}

/// The result in what a run printed.
fn result(reader: Option<&Reader>, copying: Option<Copying>) -> Option<Metric> {
    // Whatever becomes of it, it is copied to its end.
    let output = copying.map(Copying::finish)?;
    reader?.read(&output)
}

/// A series of runs that was made.
pub(super) struct Finished {
    /// How the command ended: the first time that was not well, else the last.
    pub(super) ended: Ended,
    pub(super) trailer: Trailer,
}

/// What is found out once for all runs.
struct Place {
    host: Host,
    cpus: Vec<u32>,
    prices: Option<Prices>,
    /// Functions that the last profiled run saw call checks.
    hot: Vec<u64>,
}

impl Place {
    fn find(args: &MeasureArgs) -> anyhow::Result<Self> {
        let host = Host::gather();
        let cpus = chosen_cpus(args.cpus.as_ref(), &host)?;
        Ok(Self {
            host,
            cpus,
            prices: None,
            hot: Vec::new(),
        })
    }
}

/// What is known when the first run has been attached.
fn header(args: &MeasureArgs, subject: &Subject, place: &Place, session: &Session) -> Header {
    let facts = &place.host.facts;
    let event = session.event();
    Header {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: facts.kernel.clone(),
        machine: facts.machine.clone(),
        command: subject
            .command
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        target: subject.target.clone(),
        sampling: Sampling {
            event: event.name().to_owned(),
            evidence: event.evidence(),
            hz: args.frequency,
            cpus: CpuList::from_iter(place.cpus.iter().copied()).to_string(),
        },
        epoch_ns: EPOCH.as_nanos() as u64,
        started_unix_ns: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos() as u64),
        started_mono_ns: 0,
        imported: None,
    }
}

fn check_frequency(hz: u64) -> anyhow::Result<()> {
    let max = perf::max_sample_rate().unwrap_or(100_000);
    if hz == 0 {
        return Err(hinted(
            "-F 0: nothing would be sampled",
            ["the default is -F 997"],
        ));
    }
    if hz > max {
        return Err(hinted(
            format!("-F {hz}: this kernel allows at most {max} samples a second"),
            [
                format!("kernel.perf_event_max_sample_rate is {max}"),
                format!(
                    "sysctl kernel.perf_event_max_sample_rate={hz} raises it; each sample costs some microseconds"
                ),
            ],
        ));
    }
    Ok(())
}

/// Descriptors that tell when processes have ended. One that has ended already
/// is left out.
fn pidfds(pids: &[u32]) -> anyhow::Result<Vec<OwnedFd>> {
    let mut fds = Vec::new();
    for &pid in pids {
        // SAFETY: pidfd_open takes numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
        if fd >= 0 {
            // SAFETY: a descriptor the kernel just made for us.
            fds.push(unsafe { OwnedFd::from_raw_fd(fd as i32) });
            continue;
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ESRCH) {
            return Err(error).with_context(|| format!("watching process {pid}"));
        }
    }
    Ok(fds)
}
