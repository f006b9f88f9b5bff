//! The `preemptprof` program, run as its users run it.
#![allow(dead_code, reason = "not every test uses every part")]
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code"
)]

use std::fs::{self, OpenOptions};
use std::io::{Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_preemptprof");
/// Longer than anything here takes on the slowest and busiest machine.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Says that `test` cannot run here. The test runner counts it as skipped.
pub fn skip(test: &str, why: &str) {
    eprintln!("skipped: {why}");
    if let Some(path) = std::env::var_os("PREEMPTPROF_SKIP_LOG") {
        let mut log = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap();
        log.write_all(format!("{test}: {why}\n").as_bytes())
            .unwrap();
    }
}

/// Whether this process is root.
pub fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// Whether runs can be measured here; notes the skip when not.
pub fn can_measure(test: &str) -> bool {
    static READY: OnceLock<Option<String>> = OnceLock::new();
    let why = READY.get_or_init(|| {
        if !is_root() {
            return Some("it needs root".to_owned());
        }
        // The machine, not the program: that a failing program is not taken for
        // a lacking machine, the kernel is asked, not `doctor`.
        for path in [
            "/sys/kernel/btf/vmlinux",
            "/proc/sys/kernel/perf_event_paranoid",
        ] {
            if !Path::new(path).exists() {
                return Some(format!("this kernel has no {path}"));
            }
        }
        aya::programs::loaded_programs()
            .next()
            .and_then(Result::err)
            .map(|error| format!("bpf(2) is refused: {error}"))
    });
    if let Some(why) = why {
        skip(test, why);
    }
    why.is_none()
}

/// Whether a program is installed; notes the skip when not.
pub fn has(test: &str, program: &str) -> bool {
    let found = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"]
        .iter()
        .any(|directory| Path::new(directory).join(program).exists());
    if !found {
        skip(test, &format!("{program} is not installed"));
    }
    found
}

/// `preemptprof` with these arguments.
pub fn preemptprof<I>(arguments: I) -> Command
where
    I: IntoIterator,
    I::Item: AsRef<std::ffi::OsStr>,
{
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("NO_COLOR")
        .env_remove("COLUMNS")
        .env_remove("SUDO_UID")
        .env_remove("SUDO_GID");
    command
}

/// What came of a process.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Finished {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Asserts the exit status.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(
            self.status.code(),
            Some(code),
            "{}: {}",
            self.status,
            self.err()
        );
        self
    }

    /// Asserts a refusal with this status: one error that says `what`, and a
    /// hint below it.
    #[track_caller]
    pub fn refuses(self, code: i32, what: &str) -> Self {
        let this = self.exits(code);
        let text = this.err();
        assert!(text.contains("error: "), "{text}");
        assert!(text.contains(what), "{what:?} is not in: {text}");
        assert!(!text.contains("panicked"), "{text}");
        this
    }

    /// As [`refuses`](Self::refuses), with a hint.
    #[track_caller]
    pub fn refuses_with_hint(self, code: i32, what: &str) -> Self {
        let this = self.refuses(code, what);
        assert!(this.err().contains("\nhint: "), "{}", this.err());
        this
    }
}

/// A running process whose output is read meanwhile.
pub struct Running {
    pub child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

/// Starts a command.
#[track_caller]
pub fn start(mut command: Command) -> Running {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = reader(child.stdout.take().unwrap());
    let stderr = reader(child.stderr.take().unwrap());
    Running {
        child,
        stdout: Some(stdout),
        stderr: Some(stderr),
    }
}

fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

impl Running {
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// Sends it a signal.
    #[track_caller]
    pub fn signal(&self, signal: i32) {
        kill(self.pid(), signal);
    }

    /// Waits for its end and the end of its output.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        let status = self.wait();
        Finished {
            status,
            stdout: self.stdout.take().unwrap().join().unwrap(),
            stderr: self.stderr.take().unwrap().join().unwrap(),
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if begin.elapsed() > PATIENCE {
                let _ = self.child.kill();
                panic!("process {} does not end", self.pid());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Ended already in a test that passes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command to its end.
#[track_caller]
pub fn finish(command: Command) -> Finished {
    start(command).finish()
}

/// Runs `preemptprof` with these arguments to its end.
#[track_caller]
pub fn run<I>(arguments: I) -> Finished
where
    I: IntoIterator,
    I::Item: AsRef<std::ffi::OsStr>,
{
    finish(preemptprof(arguments))
}

/// A rate that makes many samples, as far as the kernel permits: it lowers the
/// limit by itself on a busy machine.
pub fn high_rate() -> String {
    let limit = fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate")
        .ok()
        .and_then(|rate| rate.trim().parse::<u64>().ok());
    limit.map_or(997, |limit| limit.min(10_000)).to_string()
}

/// Sends a signal to a process.
#[track_caller]
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: kill takes numbers.
    let status = unsafe { libc::kill(pid, signal) };
    assert_eq!(status, 0, "kill {pid}: {}", std::io::Error::last_os_error());
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < PATIENCE, "{what} does not come about");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder of the test's own, which anyone may enter.
pub fn folder() -> TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Makes a command run as nobody, without capabilities.
pub fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(65534).gid(65534)
}

/// A copy of the program where anyone may execute it.
pub fn program_for_all(folder: &Path) -> PathBuf {
    let path = folder.join("preemptprof");
    fs::copy(PROGRAM, &path).unwrap();
    path
}

/// A report as JSON, checked against its schema.
#[track_caller]
pub fn valid_report(document: &[u8]) -> Value {
    let schema: Value = serde_json::from_str(include_str!("../../schema/report-1.json")).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.set_default_draft(boon::Draft::V2020_12);
    compiler.add_resource("report-1.json", schema).unwrap();
    let index = compiler.compile("report-1.json", &mut schemas).unwrap();
    let value: Value = serde_json::from_slice(document).unwrap();
    if let Err(error) = schemas.validate(&value, index) {
        panic!("{error:#}");
    }
    value
}

/// Runs a workload with these options and returns its output and the report.
#[track_caller]
pub fn measure(options: &[&str], workload: &[&str]) -> (Finished, Value) {
    let folder = folder();
    let report = folder.path().join("report.json");
    let mut command = preemptprof(["run", "--format", "json", "--report"]);
    command.arg(&report).args(options);
    if !workload.is_empty() {
        command.arg("--").args(workload);
    }
    let finished = finish(command);
    let Ok(document) = fs::read(&report) else {
        panic!("no report; {}: {}", finished.status, finished.err());
    };
    (finished, valid_report(&document))
}

/// The first integer after `name` in a status file of /proc.
#[track_caller]
pub fn field(status: &str, name: &str) -> u64 {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap_or_else(|| panic!("no {name} in {status}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// How a process ended by a signal, as `ExitStatus` has it.
pub fn signal_of(status: ExitStatus) -> Option<i32> {
    status.signal()
}
