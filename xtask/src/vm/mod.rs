//! Virtual machines: a kernel, an initramfs, one command, its result.
//!
//! QEMU runs with `-accel tcg`, always. Where a `/dev/kvm` exists it may not work
//! (nested guests), and only TCG can make guest time an instruction count.

mod cpio;
mod guest;
mod watch;

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

pub use guest::{GuestFile, SHARE};

use crate::error::hinted;
use crate::host;
use crate::kernels::Kernel;
use guest::Control;
use watch::Console;

/// How often the guest's ports are looked at.
const POLL: Duration = Duration::from_millis(20);

/// How long a guest that has sent everything may take to power off.
const POWER_OFF: Duration = Duration::from_secs(10);

/// What of a guest's output appears while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Echo {
    /// Nothing.
    #[default]
    Nothing,
    /// The command's output on standard output, the kernel's console on standard
    /// error with `kernel: ` before each line.
    All,
}

/// A virtual machine to be run. Make one with [`Vm::new`] and change what differs.
#[derive(Debug, Clone)]
pub struct Vm {
    /// The kernel.
    pub kernel: Kernel,
    /// Virtual CPUs; `icount` allows one only.
    pub smp: u32,
    /// Guest time is the count of executed instructions, one nanosecond each.
    pub icount: bool,
    /// The CPU model, as QEMU's `-cpu` takes it.
    pub cpu: String,
    /// Memory in MiB.
    pub mem_mib: u32,
    /// More kernel parameters.
    pub append: String,
    /// Programs, with the libraries they load, and other files.
    pub files: Vec<GuestFile>,
    /// A folder that is copied to [`SHARE`] in the guest, and into which files
    /// created or changed there are copied back. Deletions are not.
    pub root: Option<PathBuf>,
    /// The longest the whole may take.
    pub timeout: Duration,
    /// More arguments of QEMU.
    pub qemu_args: Vec<OsString>,
    /// What appears while it runs.
    pub echo: Echo,
}

/// What came of a guest.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit status of the script.
    pub status: i32,
    /// What the script printed, standard output and error together.
    pub output: String,
    /// What the kernel printed on its console.
    pub console: String,
    /// The files that came back into [`Vm::root`], relative to it.
    pub files: Vec<PathBuf>,
    /// Lines of the console that tell of a defect which did not stop the guest:
    /// warnings and oopses.
    pub complaints: Vec<String>,
    /// From the start of QEMU to the start of the script.
    pub boot: Duration,
    /// When the output arrived: from so many bytes on, so long after the start of
    /// QEMU.
    pub arrivals: Vec<(usize, Duration)>,
    /// What QEMU used of this machine's CPUs.
    pub cpu_time: Duration,
    /// From the start of QEMU to its end.
    pub total: Duration,
}

/// Why a guest did not come to its end; in the chain of the error of [`Vm::run`]
/// (`downcast_ref`), with what there was of it.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What happened, with the kernel's name.
    pub what: String,
    /// What the script had printed.
    pub output: String,
    /// What the kernel had printed.
    pub console: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Vm {
    /// A machine with two CPUs and 1 GiB, that may take two minutes.
    pub fn new(kernel: Kernel) -> Self {
        Self {
            kernel,
            smp: 2,
            icount: false,
            cpu: "max".to_owned(),
            mem_mib: 1024,
            append: String::new(),
            files: Vec::new(),
            root: None,
            timeout: Duration::from_secs(120),
            qemu_args: Vec::new(),
            echo: Echo::Nothing,
        }
    }

    /// One CPU, and guest time that counts instructions.
    #[must_use]
    pub fn with_icount(mut self) -> Self {
        self.icount = true;
        self.smp = 1;
        self
    }

    /// Boots, runs `script` in busybox's shell, and powers off. Note that this
    /// shell runs its own applets before it looks into `PATH`: call other programs
    /// of such a name by their path.
    ///
    /// # Errors
    ///
    /// If QEMU is missing or refuses its arguments, the kernel does not reach its
    /// `/init`, panics, locks up or stalls, or the time is over. The error has
    /// the end of the console. A script that fails is no error: see
    /// [`Outcome::status`].
    pub fn run(&self, script: &str) -> Result<Outcome> {
        if self.icount && self.smp != 1 {
            return Err(hinted(
                format!("{} CPUs with an instruction clock", self.smp),
                ["--icount needs one CPU: leave --smp out"],
            ));
        }
        self.kernel.check()?;
        let folder = tempfile::Builder::new()
            .prefix("preemptprof-vm-")
            .tempdir()
            .context("a temporary folder")?;
        let archive = guest::initramfs(script, &self.files, self.root.as_deref())?;
        let initrd = folder.path().join("initramfs");
        fs::write(&initrd, archive).with_context(|| format!("writing {}", initrd.display()))?;

        let mut command = self.command(folder.path(), &initrd)?;
        let started = Instant::now();
        let child = command
            .spawn()
            .with_context(|| format!("cannot run `{}`", host::shown(&command)))?;
        let mut running = Running {
            child: Reaped(child),
            folder: folder.path(),
            console: Console::new(self.echo),
            output: Port::new(folder.path().join("output")),
            control_port: Port::new(folder.path().join("control")),
            console_port: Port::new(folder.path().join("console")),
            control: Control::default(),
            text: Vec::new(),
            arrivals: Vec::new(),
            started,
            boot: None,
            cpu_time: Duration::default(),
        };
        running.watch(self, started)?;
        let files = match &self.root {
            Some(root) if !running.control.archive.is_empty() => {
                unpack(&running.control.archive, folder.path(), root)?
            }
            _ => Vec::new(),
        };
        let (console, complaints) = running.console.into_parts();
        Ok(Outcome {
            status: running.control.status.unwrap_or(-1),
            output: String::from_utf8_lossy(&running.text).into_owned(),
            console,
            files,
            complaints,
            boot: running.boot.unwrap_or_default(),
            arrivals: running.arrivals,
            cpu_time: running.cpu_time,
            total: started.elapsed(),
        })
    }

    /// The command line of QEMU.
    fn command(&self, folder: &Path, initrd: &Path) -> Result<Command> {
        let qemu = host::find("qemu-system-x86_64").ok_or_else(|| {
            hinted(
                "no qemu-system-x86_64",
                ["`cargo xtask setup` installs it (Debian's qemu-system-x86)"],
            )
        })?;
        let mut command = Command::new(qemu);
        if self.icount {
            command.args(["-accel", "tcg,thread=single", "-icount", "shift=0"]);
        } else {
            // One host thread for all CPUs. With one for each, on a busy host, guests
            // executed the breakpoint instruction of a text patch (static keys,
            // static calls) that was long over, and panicked.
            command.args(["-accel", "tcg,thread=single"]);
        }
        command
            .args(["-cpu", &self.cpu, "-smp", &self.smp.to_string()])
            .args(["-m", &self.mem_mib.to_string()])
            .args([
                "-nodefaults",
                "-no-reboot",
                "-display",
                "none",
                "-monitor",
                "none",
            ]);
        for port in ["console", "output", "control"] {
            let file = folder.join(port);
            File::create(&file).with_context(|| format!("creating {}", file.display()))?;
            let mut argument = OsString::from("file:");
            argument.push(&file);
            command.arg("-serial").arg(argument);
        }
        // At level 5 the console has the kernel's warnings and not its chatter.
        let append = format!("console=ttyS0 panic=-1 loglevel=5 {}", self.append);
        command
            .arg("-kernel")
            .arg(&self.kernel.image)
            .arg("-initrd")
            .arg(initrd)
            .args(["-append", append.trim_end()])
            .args(&self.qemu_args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("stderr")).context("a file for QEMU's errors")?);
        // SAFETY: prctl and getppid are async-signal-safe and touch no memory.
        unsafe {
            // QEMU must not outlive a killed xtask.
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Ok(command)
    }
}

/// A child that is killed and waited for when it goes out of scope.
struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        // Both fail only if it ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file into which QEMU writes what a serial port sends.
struct Port {
    path: PathBuf,
    file: Option<File>,
}

impl Port {
    fn new(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    /// What came since the last call.
    fn read(&mut self) -> Result<Vec<u8>> {
        let name = || format!("reading {}", self.path.display());
        if self.file.is_none() {
            self.file = Some(File::open(&self.path).with_context(name)?);
        }
        let mut bytes = Vec::new();
        if let Some(file) = &mut self.file {
            file.read_to_end(&mut bytes).with_context(name)?;
        }
        Ok(bytes)
    }
}

/// A guest under way.
struct Running<'a> {
    child: Reaped,
    folder: &'a Path,
    console: Console,
    console_port: Port,
    output: Port,
    control_port: Port,
    control: Control,
    text: Vec<u8>,
    arrivals: Vec<(usize, Duration)>,
    started: Instant,
    boot: Option<Duration>,
    cpu_time: Duration,
}

impl Running<'_> {
    /// Follows the guest to its end.
    fn watch(&mut self, vm: &Vm, started: Instant) -> Result<()> {
        let name = &vm.kernel.name;
        let mut done_at = None;
        loop {
            // Before it is waited for, which ends the record.
            self.cpu_time = host::cpu_time(self.child.0.id()).unwrap_or(self.cpu_time);
            let ended = self.child.0.try_wait().context("waiting for QEMU")?;
            self.take(vm.echo)?;
            if self.control.ready && self.boot.is_none() {
                self.boot = Some(started.elapsed());
            }
            if let Some(what) = self.console.fatal() {
                // The rest of the report is on its way.
                thread::sleep(Duration::from_millis(500));
                self.take(vm.echo)?;
                return Err(self.failure(format!("{name}: {what}"), &[]));
            }
            if let Some(status) = ended {
                if self.control.done {
                    return Ok(());
                }
                return Err(self.ended_early(name, &status.to_string()));
            }
            if self.control.done {
                let since = *done_at.get_or_insert_with(Instant::now);
                if since.elapsed() > POWER_OFF {
                    self.ask_to_end();
                }
                if since.elapsed() > 2 * POWER_OFF {
                    return Ok(());
                }
            }
            if started.elapsed() > vm.timeout && !self.control.done {
                return Err(self.timed_out(name, vm.timeout));
            }
            thread::sleep(POLL);
        }
    }

    /// Reads the ports. Control comes last: what it announces as sent before it
    /// has then been read.
    fn take(&mut self, echo: Echo) -> Result<()> {
        let control = self.control_port.read()?;
        self.console.push(&self.console_port.read()?);
        let output = self.output.read()?;
        if echo == Echo::All && !output.is_empty() {
            use std::io::Write as _;
            let mut stdout = std::io::stdout().lock();
            stdout
                .write_all(&output)
                .and_then(|()| stdout.flush())
                .context("writing to standard output")?;
        }
        if !output.is_empty() {
            self.arrivals
                .push((self.text.len(), self.started.elapsed()));
        }
        self.text.extend_from_slice(&output);
        self.control.push(&control)
    }

    /// QEMU writes what plugins have to say when it ends in good order.
    fn ask_to_end(&self) {
        if let Ok(id) = libc::pid_t::try_from(self.child.0.id()) {
            // SAFETY: the child has not been waited for, so the id is its own.
            unsafe { libc::kill(id, libc::SIGTERM) };
        }
    }

    fn ended_early(&self, name: &str, status: &str) -> anyhow::Error {
        let said = fs::read_to_string(self.folder.join("stderr")).unwrap_or_default();
        let said = said.trim();
        if !said.is_empty() && !self.control.ready {
            return hinted(
                format!("QEMU ended ({status}): {said}"),
                ["the arguments come from the options of this command"],
            );
        }
        if self.control.ready {
            self.failure(
                format!("{name}: the machine went down before the command ended"),
                &["it powered off or reset itself, or the kernel crashed silently"],
            )
        } else {
            self.failure(
                format!("{name}: the kernel went down before its /init ran"),
                &["more is said with --append 'earlyprintk=ttyS0 loglevel=8'"],
            )
        }
    }

    fn timed_out(&self, name: &str, limit: Duration) -> anyhow::Error {
        let seconds = limit.as_secs();
        if self.control.ready {
            return self.failure(
                format!("{name}: the command did not end within {seconds} s"),
                &["--timeout S allows more"],
            );
        }
        let hint = if self.console.is_empty() {
            "the console stayed silent: is this an x86-64 kernel with a serial console built in?"
        } else {
            "it boots, but needs longer (--timeout S), or hangs"
        };
        self.failure(
            format!("{name}: the kernel did not reach its /init within {seconds} s"),
            &[hint],
        )
    }

    /// An error with the end of what guest and kernel said.
    fn failure(&self, what: String, hints: &[&str]) -> anyhow::Error {
        let output = String::from_utf8_lossy(&self.text).into_owned();
        let console = self.console.text().to_owned();
        let mut said = String::new();
        for (title, text) in [("output", &output), ("console", &console)] {
            let tail = watch::tail(text, 40);
            if tail.is_empty() {
                said.push_str(&format!("\n(nothing on the {title})"));
            } else {
                said.push_str(&format!("\n--- end of the {title}\n{tail}\n---"));
            }
        }
        hinted(said, hints.iter().copied()).context(Failure {
            what,
            output,
            console,
        })
    }
}

/// Unpacks what the guest sent into `root`, and lists it.
fn unpack(archive: &[u8], folder: &Path, root: &Path) -> Result<Vec<PathBuf>> {
    let file = folder.join("returned");
    fs::write(&file, archive).with_context(|| format!("writing {}", file.display()))?;
    // It is there: the guest's own came from it.
    let cpio = |option: &str| {
        let mut command = Command::new(host::find("busybox").unwrap_or_else(|| "busybox".into()));
        command
            .args(["cpio", option, "-F"])
            .arg(&file)
            .current_dir(root);
        host::read(&mut command)
    };
    let list = cpio("-t")?;
    cpio("-idu").with_context(|| format!("into {}", root.display()))?;
    Ok(list
        .lines()
        .map(|line| PathBuf::from(line.trim_start_matches("./")))
        .collect())
}
