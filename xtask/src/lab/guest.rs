//! Runs a list of commands in a guest under `-icount`, with the oracle watching
//! what lies between marks.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::oracle::{self, Tools, Window};
use super::table;
use crate::error::hinted;
use crate::host;
use crate::kernels::Kernel;
use crate::vm::{GuestFile, Vm};

/// The longest a boot may take, and each command after it: emulation runs at
/// some 50 to 200 million instructions a second, and the machine may be shared.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
const STEP_LIMIT: Duration = Duration::from_secs(180);

/// One command of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Names it in messages and its files in the guest.
    pub(crate) name: String,
    /// The command, for a shell.
    pub(crate) command: String,
    /// It runs `mark` once.
    pub(crate) marked: bool,
    /// A file that it writes in its working folder, to be brought back.
    pub(crate) file: Option<String>,
}

impl Step {
    /// A command that is counted from its start to its end.
    pub(crate) fn marked(name: impl Into<String>, command: &str) -> Self {
        Self {
            name: name.into(),
            command: format!("mark {command}"),
            marked: true,
            file: None,
        }
    }
}

/// What a step left behind.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// Its standard output.
    pub(crate) stdout: String,
    /// Guest time between its marks.
    pub(crate) guest_ns: Option<u64>,
    /// Counts between its marks.
    pub(crate) window: Option<Window>,
    /// The content of [`Step::file`].
    pub(crate) file: Option<String>,
}

/// What is booted, and how it is seeded.
#[derive(Clone, Debug)]
pub(crate) struct Guest<'a> {
    /// The kernel.
    pub(crate) kernel: &'a Kernel,
    /// The plugin and the guest's programs.
    pub(crate) tools: &'a Tools,
    /// Whether perf is among the programs. It makes the boot slower.
    pub(crate) perf: bool,
    /// What QEMU draws the guest's random numbers from. The same seed gives
    /// the same run, nearly always to the instruction.
    pub(crate) seed: u64,
}

impl Guest<'_> {
    /// Boots, runs the steps in their order, and powers off.
    ///
    /// # Errors
    ///
    /// When the guest does not boot or a step fails or is never over, with what
    /// it said; when the marks do not fit the steps.
    pub(crate) fn run(&self, steps: &[Step]) -> Result<Vec<Done>> {
        let folder = tempfile::Builder::new()
            .prefix("preemptprof-lab-")
            .tempdir()
            .context("a temporary folder")?;
        let share = folder.path().join("share");
        fs::create_dir(&share).with_context(|| format!("creating {}", share.display()))?;
        let out = folder.path().join("oracle.json");

        let mut vm = Vm::new(self.kernel.clone()).with_icount();
        vm.append = "nokaslr".to_owned();
        vm.files = vec![
            GuestFile::at(&self.tools.mark, "/usr/bin/mark"),
            GuestFile::at(&self.tools.preemptprof, "/usr/bin/preemptprof"),
        ];
        if self.perf {
            vm.files.push(perf()?);
        }
        vm.root = Some(share.clone());
        vm.timeout = BOOT_LIMIT + STEP_LIMIT * u32::try_from(steps.len())?;
        let map = table::system_map(self.kernel)?;
        vm.qemu_args = [
            // Idle time passes at once instead of in real time.
            "-icount".into(),
            "sleep=off".into(),
            // Nothing of the host's clock or chance reaches the guest.
            "-rtc".into(),
            "base=2026-01-01,clock=vm".into(),
            "-seed".into(),
            self.seed.to_string().into(),
            "-plugin".into(),
            plugin_argument(&self.tools.plugin, map, &out)?.into(),
        ]
        .to_vec();
        let outcome = vm.run(&script(steps))?;
        if outcome.status != 0 {
            return Err(hinted(
                format!(
                    "{}: a step failed with status {}:\n{}",
                    self.kernel.name,
                    outcome.status,
                    outcome.output.trim_end()
                ),
                ["the guest has what the lab gave it and busybox, nothing else"],
            ));
        }
        collect(&share, steps, oracle::read(&out)?.windows)
    }
}

/// QEMU ends an argument of a plugin at a comma.
fn plugin_argument(plugin: &Path, map: &Path, out: &Path) -> Result<String> {
    let mut parts = Vec::new();
    for path in [plugin, map, out] {
        let text = path
            .to_str()
            .filter(|text| !text.contains(','))
            .with_context(|| {
                format!(
                    "{}: QEMU takes no such path (a comma, or not UTF-8)",
                    path.display()
                )
            })?;
        parts.push(text);
    }
    Ok(format!("{},map={},out={}", parts[0], parts[1], parts[2]))
}

/// The guest's script. Output goes to files: a console would add interrupts to
/// what is counted.
fn script(steps: &[Step]) -> String {
    let mut script = String::new();
    for Step { name, command, .. } in steps {
        script.push_str(&format!(
            "{command} >{name}.out 2>{name}.err || \
             {{ status=$?; echo '{name}: {command}'; cat {name}.out {name}.err; exit $status; }}\n"
        ));
    }
    script
}

fn collect(share: &Path, steps: &[Step], windows: Vec<Window>) -> Result<Vec<Done>> {
    let marked = steps.iter().filter(|step| step.marked).count();
    if windows.len() != marked {
        bail!(
            "the oracle saw {} windows where the guest made {marked}",
            windows.len()
        );
    }
    let read = |name: &str| {
        let path = share.join(name);
        fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .with_context(|| format!("the guest sent back no {name}"))
    };
    let mut windows = windows.into_iter();
    steps
        .iter()
        .map(|step| {
            let stderr = read(&format!("{}.err", step.name))?;
            let (guest_ns, window) = if step.marked {
                let time = guest_ns(&stderr)
                    .with_context(|| format!("{}: mark said no time: {stderr}", step.name))?;
                (Some(time), windows.next())
            } else {
                (None, None)
            };
            Ok(Done {
                stdout: read(&format!("{}.out", step.name))?,
                guest_ns,
                window,
                file: step.file.as_deref().map(read).transpose()?,
            })
        })
        .collect()
}

/// What `mark` says of its window.
fn guest_ns(stderr: &str) -> Option<u64> {
    stderr
        .lines()
        .find_map(|line| line.strip_prefix("mark: guest_ns="))?
        .parse()
        .ok()
}

/// perf of this machine.
///
/// # Errors
///
/// When there is none.
fn perf() -> Result<GuestFile> {
    host::find("perf")
        .map(|perf| GuestFile::at(perf, "/usr/bin/perf"))
        .ok_or_else(|| hinted("no perf for the guest", ["apt-get install linux-perf"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_ends_the_script_with_its_status() {
        let steps = [
            Step::marked("first", "true"),
            Step {
                name: "second".to_owned(),
                command: "sh -c 'echo oops >&2; exit 7'".replace('\'', "\""),
                marked: false,
                file: None,
            },
            Step::marked("third", "false"),
        ];
        let folder = tempfile::tempdir().unwrap();
        let output = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("mark() {{ \"$@\"; }}\n{}", script(&steps)))
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(7));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("second: ") && text.contains("oops"), "{text}");
        assert!(!folder.path().join("third.out").exists());
    }

    #[test]
    fn windows_go_to_the_marked_steps() {
        let folder = tempfile::tempdir().unwrap();
        let steps = [
            Step {
                name: "a".to_owned(),
                command: "x".to_owned(),
                marked: false,
                file: Some("a.json".to_owned()),
            },
            Step::marked("b", "y"),
        ];
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a.out", "hello");
        write("a.err", "");
        write("a.json", "{}");
        write("b.out", "");
        write("b.err", "noise\nmark: guest_ns=42\n");
        let mut window = Window::default();
        window.instructions.total = 5;
        let done = collect(folder.path(), &steps, vec![window.clone()]).unwrap();
        assert_eq!(done[0].stdout, "hello");
        assert_eq!(done[0].file.as_deref(), Some("{}"));
        assert!(done[0].window.is_none());
        assert_eq!(done[1].guest_ns, Some(42));
        assert_eq!(done[1].window, Some(window));
        assert!(collect(folder.path(), &steps, Vec::new()).is_err());
    }

    #[test]
    fn paths_that_qemu_would_misread() {
        let good = Path::new("/a/b.so");
        assert_eq!(
            plugin_argument(good, good, good).unwrap(),
            "/a/b.so,map=/a/b.so,out=/a/b.so"
        );
        assert!(plugin_argument(good, Path::new("/a,b"), good).is_err());
    }
}
