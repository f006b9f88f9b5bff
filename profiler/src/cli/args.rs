//! Every command and flag, defined once.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};

use super::diff::DiffArgs;
use super::repeat::RepeatArgs;
use crate::kernel::CpuList;
use crate::workloads;

/// What this kernel's debug and preemption options cost your benchmark.
#[derive(Debug, Parser)]
#[command(
    name = "preemptprof",
    version,
    max_term_width = 100,
    // Its own, below: what fits a screen, for -h and --help alike.
    disable_help_flag = true,
    after_help = "\
Examples:
  sudo preemptprof run                         the built-in messaging benchmark
  sudo preemptprof run -- make -j8             a command and everything it starts
  sudo preemptprof run -a --duration 10        the whole machine, for 10 seconds
  sudo preemptprof record -o a.pprec -- CMD    record now,
  preemptprof report a.pprec                   report later, without root
  preemptprof export a.pprec -o a.svg          a flame graph, options coloured
  sudo preemptprof record -n 5 -o b.pprec -- CMD   on another kernel, then
  preemptprof diff a.pprec --vs b.pprec        what changed, and what explains it"
)]
pub struct Cli {
    /// Say more; -vv adds the log lines of the BPF programs
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 1000)]
    pub verbose: u8,
    /// Print help
    #[arg(short, long, global = true, action = clap::ArgAction::HelpShort, display_order = 1001)]
    pub help: Option<bool>,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Record a command or something running, then report to stderr
    Run(RunArgs),
    /// Record a command or something running to a file
    Record(RecordArgs),
    /// Show the last seconds, live
    Top(TopArgs),
    /// Report a recording
    Report(ReportArgs),
    /// Compare recordings of two kernels
    Diff(DiffArgs),
    /// Write a recording in other formats
    Export(ExportArgs),
    /// Make a recording of what another tool sampled
    Import(ImportArgs),
    /// Say what can be measured here, what not, and how to change that
    #[command(after_help = "\
Examples:
  sudo preemptprof doctor                  ends with status 1 when nothing can be measured
  preemptprof doctor --format json | jq .probes")]
    Doctor(FormatArgs),
    /// List the catalogue of kernel options with their state on this kernel
    #[command(after_help = "\
Examples:
  preemptprof options
  preemptprof options --format json | jq '.options[].name'")]
    Options(FormatArgs),
    /// Run a built-in benchmark
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them to a directory
    Man(ManArgs),
}

/// The two shapes of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// How calls are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Count {
    /// In short windows, within --max-overhead
    #[default]
    Auto,
    /// All the time, whatever that disturbs; the report says how much
    Exact,
    /// Not at all: costs are what samples show
    Off,
}

/// What is measured and how.
#[derive(Args, Clone, Debug)]
pub struct MeasureArgs {
    /// Samples per second and CPU
    #[arg(short = 'F', long = "freq", value_name = "HZ", default_value_t = DEFAULT_HZ)]
    pub frequency: u64,
    /// Measure the whole machine
    #[arg(short, long, conflicts_with_all = ["pid", "cgroup"])]
    pub all: bool,
    /// Measure running processes and what they start (comma-separated)
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "cgroup"
    )]
    pub pid: Vec<u32>,
    /// Measure a cgroup (version 2) and those below it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Measure on these CPUs only, e.g. 0-3,6
    #[arg(short = 'C', long = "cpu", value_name = "CPULIST")]
    pub cpus: Option<CpuList>,
    /// Stop measuring after this long: 10, 1.5s, 500ms, 2m; a command goes on
    /// unmeasured and is waited for
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Record user stacks too
    #[arg(long)]
    pub user_stacks: bool,
    /// Size of the ring buffer, e.g. 4M; by default by CPUs and rate
    #[arg(long, value_name = "BYTES", value_parser = parse_size)]
    pub ring_size: Option<u32>,
    /// Count calls: auto, exact (all the time), off
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub count: Count,
    /// The most that counting may take, in percent of a CPU
    #[arg(
        long,
        value_name = "PERCENT",
        default_value_t = DEFAULT_MAX_OVERHEAD,
        value_parser = parse_percent
    )]
    pub max_overhead: f64,
    /// Own cost by the kernel's BPF statistics; they slow all programs
    #[arg(long)]
    pub bpf_stats: bool,
    /// Keep the ledger: what preemption costs and what it buys
    #[arg(long)]
    pub ledger: bool,
    /// How often.
    #[command(flatten)]
    pub repeat: RepeatArgs,
    /// The command to measure, with its arguments
    #[arg(last = true, value_name = "CMD", help_heading = "Arguments")]
    pub workload: Vec<OsString>,
}

/// The heading of what is written, and how.
const OUTPUT: &str = "Output";
/// Samples per second and CPU when nobody says otherwise. A prime, so that work
/// that repeats at a round rate is not always caught at the same place.
const DEFAULT_HZ: u64 = 997;
/// What counting calls may take when nobody says otherwise, in percent.
const DEFAULT_MAX_OVERHEAD: f64 = 1.0;

impl Default for MeasureArgs {
    fn default() -> Self {
        Self {
            frequency: DEFAULT_HZ,
            all: false,
            pid: Vec::new(),
            cgroup: None,
            cpus: None,
            duration: None,
            user_stacks: false,
            ring_size: None,
            bpf_stats: false,
            count: Count::default(),
            max_overhead: DEFAULT_MAX_OVERHEAD,
            repeat: RepeatArgs::default(),
            ledger: false,
            workload: Vec::new(),
        }
    }
}

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo preemptprof run -- perf bench sched messaging -g 16 -l 1000
  sudo preemptprof run -p 1234 --duration 10 --report r.json --format json
  sudo preemptprof run -a -F 199 --user-stacks -o a.pprec -- make -j8")]
pub struct RunArgs {
    /// What is measured and how.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Keep the recording in this file
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
    /// Write the report to this file, not to stderr
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,
    /// Shape of the report
    #[arg(long, value_enum, default_value_t, help_heading = OUTPUT)]
    pub format: Format,
    /// Call sites to show under each option
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = OUTPUT)]
    pub callers: usize,
    /// Replace existing files
    #[arg(long, help_heading = OUTPUT)]
    pub force: bool,
}

/// Arguments of `record`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo preemptprof record -o a.pprec -- perf bench sched pipe
  sudo preemptprof record -o a.pprec --cgroup system.slice/x --duration 30")]
pub struct RecordArgs {
    /// What is measured and how.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// The recording
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: PathBuf,
    /// Replace an existing file
    #[arg(long, help_heading = OUTPUT)]
    pub force: bool,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: q quits, up and down choose an option, + and - change the time, p pauses.

Examples:
  sudo preemptprof top                     the whole machine
  sudo preemptprof top --ledger            with wake-up latency
  sudo preemptprof top -p 1234 --window 30 a process and what it starts")]
pub struct TopArgs {
    /// Samples per second and CPU
    #[arg(short = 'F', long = "freq", value_name = "HZ", default_value_t = DEFAULT_HZ)]
    pub frequency: u64,
    /// Watch running processes and what they start (comma-separated), not the whole machine
    #[arg(
        short,
        long,
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "cgroup"
    )]
    pub pid: Vec<u32>,
    /// Watch a cgroup (version 2) and those below it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Watch these CPUs only, e.g. 0-3,6
    #[arg(short = 'C', long = "cpu", value_name = "CPULIST")]
    pub cpus: Option<CpuList>,
    /// Seconds to show, 1 to 60
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub window: u64,
    /// Show how long woken tasks wait for a CPU; dearer than the rest
    #[arg(long)]
    pub ledger: bool,
    /// End after this long: 10, 1.5s, 500ms, 2m
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
}

/// Arguments of `report`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof report a.pprec --callers 10
  preemptprof report a.pprec --html a.html
  preemptprof report a.pprec --format json | jq .options[0].cpu_share")]
pub struct ReportArgs {
    /// The recording
    pub file: PathBuf,
    /// Shape of the report
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Call sites to show under each option
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub callers: usize,
    /// Write the report as one page for the browser to this file instead
    #[arg(long, value_name = "OUT", conflicts_with = "format")]
    pub html: Option<PathBuf>,
    /// Replace an existing file (--html)
    #[arg(long, requires = "html")]
    pub force: bool,
    /// Read what is whole of a recording that has no end
    #[arg(long)]
    pub salvage: bool,
}

/// Formats of `export`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// One line a stack, for flamegraph.pl and inferno [.folded .txt]
    Folded,
    /// A flame graph for the browser [.svg]
    Svg,
    /// The report as one page for the browser [.html]
    Html,
    /// For `go tool pprof` and Pyroscope [.pb.gz .pprof]
    Pprof,
    /// For profiler.firefox.com, in time order [.firefox.json]
    Firefox,
    /// For speedscope.app [.speedscope.json]
    Speedscope,
    /// For ui.perfetto.dev: switches and samples by epoch [.trace.json]
    Trace,
    /// The options as a table [.csv]
    Csv,
    /// The call sites that led into options, as a table [.callers.csv]
    CallersCsv,
    /// Metrics for Prometheus [.prom .om]
    Openmetrics,
}

/// What the weights of an export are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Weight {
    /// Samples: time on a CPU
    #[default]
    Time,
    /// Nanoseconds blocked in rcu_barrier
    Rcu,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
#[command(after_help = "\
Formats, by --format or by the extension of each -o; a further .gz compresses:
  folded       .folded .txt        one line a stack, for flamegraph.pl and inferno
  svg          .svg                a flame graph, options coloured
  html         .html               the whole report as one page
  pprof        .pb.gz .pprof       for go tool pprof
  firefox      .firefox.json       for profiler.firefox.com, in time order
  speedscope   .speedscope.json    for speedscope.app
  trace        .trace.json         for ui.perfetto.dev: switches and samples by epoch
  csv          .csv                the options as a table
  callers-csv  .callers.csv        the call sites that led into options
  openmetrics  .prom .om           metrics for Prometheus

Examples:
  preemptprof export a.pprec -o a.svg -o a.pb.gz      a flame graph, and for go tool pprof
  preemptprof export a.pprec -o a.firefox.json.gz     for profiler.firefox.com
  preemptprof export a.pprec --format folded | grep memcg
  preemptprof export a.pprec --listen 127.0.0.1:9464  metrics over HTTP, for Prometheus")]
pub struct ExportArgs {
    /// The recording
    pub file: PathBuf,
    /// Format; by default the output's extension tells
    #[arg(long, value_enum, hide_possible_values = true)]
    pub format: Option<ExportFormat>,
    /// A file to write, repeatable; by default stdout
    #[arg(short, long, value_name = "OUT")]
    pub output: Vec<PathBuf>,
    /// Serve openmetrics at http://ADDR:PORT/metrics until Ctrl-C; port 0 is any
    /// free one
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "output")]
    pub listen: Option<String>,
    /// What the weights are (folded, svg, pprof, speedscope)
    #[arg(long, value_enum, default_value_t)]
    pub by: Weight,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
    /// Read what is whole of a recording that has no end
    #[arg(long)]
    pub salvage: bool,
}

/// Arguments of `import`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof import perf-data perf.data -o a.pprec --config /boot/config-6.1
  perf script --header | preemptprof import perf-script - -o a.pprec
  preemptprof import folded a.folded -o a.pprec --kernel 6.1.0 --config .config")]
pub struct ImportArgs {
    /// What the input is
    #[arg(value_enum)]
    pub kind: ImportKind,
    /// The input; - is stdin (not for perf-data)
    pub file: PathBuf,
    /// The recording to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The kernel's configuration: without it no option is known to be on
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The kernel's release (uname -r)
    #[arg(long, value_name = "RELEASE", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub kernel: Option<String>,
    /// The event to take; by default the first that measures time
    #[arg(long, value_name = "NAME")]
    pub event: Option<String>,
    /// Samples per second and CPU, where the input does not say
    #[arg(short = 'F', long = "freq", value_name = "HZ", value_parser = clap::value_parser!(u64).range(1..))]
    pub frequency: Option<u64>,
    /// Weight that makes one sample (folded)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub weight: Option<u64>,
    /// Replace an existing file
    #[arg(long)]
    pub force: bool,
}

/// What can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImportKind {
    /// What `perf script` prints, best with --header
    PerfScript,
    /// A file of `perf record`; perf must be installed
    PerfData,
    /// Folded stacks
    Folded,
}

/// Arguments of commands that only take a format.
#[derive(Args, Debug)]
pub struct FormatArgs {
    /// Shape of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof completions bash > ~/.local/share/bash-completion/completions/preemptprof
  preemptprof completions zsh > ~/.zfunc/_preemptprof
  preemptprof completions fish > ~/.config/fish/completions/preemptprof.fish")]
pub struct CompletionsArgs {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// Arguments of `man`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof man | man -l -
  sudo preemptprof man /usr/local/share/man/man1")]
pub struct ManArgs {
    /// Write preemptprof.1 and a page for each command to this directory
    pub directory: Option<PathBuf>,
    /// Replace existing files
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  preemptprof bench messaging -g 4
  preemptprof bench pipe --format json
  sudo preemptprof run -n 5 -- preemptprof bench spawn")]
pub struct BenchArgs {
    /// Shape of the result
    #[arg(long, value_enum, default_value_t, global = true)]
    pub format: Format,
    /// Which benchmark.
    #[command(subcommand)]
    pub name: Bench,
}

/// The built-in benchmarks.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Periodic wake-ups beside a busy background
    Latency(workloads::latency::Args),
    /// Groups of senders and receivers, as `perf bench sched messaging`
    Messaging(workloads::messaging::Args),
    /// Two tasks passing a token, as `perf bench sched pipe`
    Pipe(workloads::pipe::Args),
    /// Processes started one after the other
    Spawn(workloads::spawn::Args),
    /// A chain of short waits
    Timers(workloads::timers::Args),
    /// Pairs of veth devices created and deleted
    Veth(workloads::veth::Args),
}

/// The command line. A value that begins like a negative number is a value that is
/// wrong, not an option nobody knows.
pub(super) fn command() -> clap::Command {
    fn numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(
                |arg| match arg.get_action().takes_values() && !arg.is_positional() {
                    true => arg.allow_negative_numbers(true),
                    false => arg,
                },
            )
            .mut_subcommands(numbers)
    }
    numbers(Cli::command())
}

/// Reads `10`, `1.5s`, `500ms`, `2m`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, factor) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1e-3)
    } else if let Some(number) = text.strip_suffix('s') {
        (number, 1.0)
    } else if let Some(number) = text.strip_suffix('m') {
        (number, 60.0)
    } else {
        (text, 1.0)
    };
    number
        .parse::<f64>()
        .ok()
        .and_then(|number| Duration::try_from_secs_f64(number * factor).ok())
        .filter(|duration| !duration.is_zero() && *duration < Duration::from_secs(366 * 86_400))
        .ok_or_else(|| "not a time above 0, such as 10, 1.5s, 500ms or 2m".to_owned())
}

/// Reads a percentage above 0.
fn parse_percent(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .unwrap_or(text)
        .parse::<f64>()
        .ok()
        .filter(|percent| *percent > 0.0 && *percent <= 100.0)
        .ok_or_else(|| "not a percentage above 0 and up to 100, such as 1 or 0.5".to_owned())
}

/// Reads `65536`, `512K`, `4M`.
fn parse_size(text: &str) -> Result<u32, String> {
    let (number, factor) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|size| (4096..=1 << 30).contains(size))
        .map(|size| size as u32)
        .ok_or_else(|| "not a size from 4K to 1G, such as 65536, 512K or 4M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        command().debug_assert();
    }

    #[test]
    fn durations_and_sizes() {
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "0", "-1", "nan", "inf", "1e300", "s", "ten", "1h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("4M"), Ok(4 << 20));
        for wrong in ["", "0", "K", "5G", "-4K", "99999999999999999999", "4T"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
