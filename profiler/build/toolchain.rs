//! Which compiler builds the BPF object: the one place where that is decided.
//!
//! `profiler/build.rs` and `cargo xtask` both include this file. In order:
//!
//! 1. the compiler named by `PREEMPTPROF_BPF_RUSTC`, when that is set;
//! 2. rustup's `nightly` with `rust-src`, which builds `core` itself;
//! 3. `/usr/bin/rustc` when its sysroot carries `core` for the BPF target, as
//!    Debian's `rustc-web` with `libstd-rust-web-dev-bpf` does.
//!
//! Linking needs `bpf-linker`, from `PATH` or cargo's own `bin` folder.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The command every hint ends with.
pub(crate) const SETUP: &str = "cargo xtask setup";

/// What the choice depends on, so that tests can fake it.
#[derive(Debug, Clone)]
pub(crate) struct Surroundings {
    /// `PATH`.
    pub(crate) path: OsString,
    /// Cargo's home folder, whose `bin` is searched after `PATH`.
    pub(crate) cargo_home: Option<PathBuf>,
    /// `PREEMPTPROF_BPF_RUSTC`.
    pub(crate) named_rustc: Option<PathBuf>,
    /// The distribution's compiler.
    pub(crate) system_rustc: PathBuf,
    /// The BPF target triple.
    pub(crate) target: String,
}

impl Surroundings {
    /// Those of this process, for `target`.
    pub(crate) fn of_process(target: &str) -> Self {
        let set = |name| env::var_os(name).filter(|value| !value.is_empty());
        Self {
            path: env::var_os("PATH").unwrap_or_default(),
            cargo_home: set("CARGO_HOME")
                .map(PathBuf::from)
                .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cargo"))),
            named_rustc: set("PREEMPTPROF_BPF_RUSTC").map(PathBuf::from),
            system_rustc: PathBuf::from("/usr/bin/rustc"),
            target: target.to_owned(),
        }
    }

    /// The first executable called `name`, in `PATH` and then in cargo's `bin`.
    fn find(&self, name: &str) -> Option<PathBuf> {
        env::split_paths(&self.path)
            .filter(|folder| !folder.as_os_str().is_empty())
            .chain(self.cargo_home.iter().map(|home| home.join("bin")))
            .map(|folder| folder.join(name))
            .find(|file| is_executable(file))
    }
}

/// The compiler chosen for the BPF target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Toolchain {
    /// rustup's nightly; `core` is built from `rust-src`.
    Nightly {
        /// The `rustup` to run it through.
        rustup: PathBuf,
        /// The sysroot of nightly.
        sysroot: PathBuf,
    },
    /// A compiler that carries `core` for the target. aya-ebpf's use of unstable
    /// features needs `RUSTC_BOOTSTRAP=1`.
    Rustc {
        /// The compiler.
        rustc: PathBuf,
    },
}

impl Toolchain {
    /// The file whose replacement means a new compiler.
    pub(crate) fn compiler(&self) -> PathBuf {
        match self {
            Self::Nightly { sysroot, .. } => sysroot.join("bin/rustc"),
            Self::Rustc { rustc } => rustc.clone(),
        }
    }

    /// A `cargo build` by this toolchain, up to and including the options that
    /// depend on it. `cargo` is the cargo used where the toolchain has none.
    #[allow(dead_code, reason = "xtask chooses and tests; only build.rs builds")]
    pub(crate) fn cargo_build(&self, cargo: &OsStr) -> Command {
        let mut command;
        match self {
            Self::Nightly { rustup, .. } => {
                command = Command::new(rustup);
                command
                    .args(["run", "nightly", "cargo", "build", "-Zbuild-std=core"])
                    .env_remove("RUSTC");
            }
            Self::Rustc { rustc } => {
                command = Command::new(cargo);
                command
                    .arg("build")
                    .env("RUSTC", rustc)
                    .env("RUSTC_BOOTSTRAP", "1");
            }
        }
        command
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nightly { .. } => f.write_str("rustup's nightly with rust-src"),
            Self::Rustc { rustc } => write!(f, "{}", rustc.display()),
        }
    }
}

/// What is not there, and how to get it.
#[derive(Debug)]
pub(crate) struct Missing {
    what: String,
    hints: Vec<String>,
}

impl Missing {
    /// The lines to print after `hint:`.
    #[allow(dead_code, reason = "build.rs prints the whole; xtask asks for them")]
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// The error without its hints.
    #[allow(dead_code, reason = "build.rs prints the whole; xtask asks for it")]
    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.what)?;
        self.hints
            .iter()
            .try_for_each(|hint| write!(f, "\nhint: {hint}"))
    }
}

/// Chooses the compiler, or says what was tried and why it did not do.
pub(crate) fn select(around: &Surroundings) -> Result<Toolchain, Missing> {
    let setup = format!("`{SETUP}` installs what is missing");
    if let Some(rustc) = &around.named_rustc {
        return match carries_core(rustc, &around.target) {
            Ok(()) => Ok(Toolchain::Rustc {
                rustc: rustc.clone(),
            }),
            Err(why) => Err(Missing {
                what: format!("PREEMPTPROF_BPF_RUSTC={}: {why}", rustc.display()),
                hints: vec!["unset it to have a compiler chosen".to_owned(), setup],
            }),
        };
    }
    let nightly = match nightly_with_source(around) {
        Ok(toolchain) => return Ok(toolchain),
        Err(why) => why,
    };
    let system = match carries_core(&around.system_rustc, &around.target) {
        Ok(()) => {
            return Ok(Toolchain::Rustc {
                rustc: around.system_rustc.clone(),
            });
        }
        Err(why) => why,
    };
    Err(Missing {
        what: format!("no compiler for the BPF target {}", around.target),
        hints: vec![
            format!("rustup: {nightly}"),
            format!("{}: {system}", around.system_rustc.display()),
            format!("{setup}; so does `rustup toolchain install nightly -c rust-src`"),
        ],
    })
}

/// Finds `bpf-linker`.
pub(crate) fn linker(around: &Surroundings) -> Result<PathBuf, Missing> {
    around.find("bpf-linker").ok_or_else(|| Missing {
        what: "no bpf-linker in PATH or in cargo's bin folder".to_owned(),
        hints: vec![format!("`{SETUP}` installs it")],
    })
}

/// rustup's nightly, if it can build `core`.
fn nightly_with_source(around: &Surroundings) -> Result<Toolchain, String> {
    let rustup = around.find("rustup").ok_or("not in PATH")?;
    let mut command = Command::new(&rustup);
    command.args(["run", "nightly", "rustc", "--print", "sysroot"]);
    let sysroot = sysroot_of(&mut command).map_err(|_| "it has no nightly toolchain")?;
    if !sysroot
        .join("lib/rustlib/src/rust/library/core/Cargo.toml")
        .is_file()
    {
        return Err("its nightly toolchain has no rust-src".to_owned());
    }
    Ok(Toolchain::Nightly { rustup, sysroot })
}

/// Whether the sysroot of `rustc` has `core` compiled for `target`.
fn carries_core(rustc: &Path, target: &str) -> Result<(), String> {
    if !is_executable(rustc) {
        return Err("no such compiler".to_owned());
    }
    let sysroot = sysroot_of(Command::new(rustc).args(["--print", "sysroot"]))?;
    let libraries = sysroot.join("lib/rustlib").join(target).join("lib");
    let found = std::fs::read_dir(&libraries).is_ok_and(|entries| {
        entries.flatten().any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with("libcore-") && name.ends_with(".rlib")
        })
    });
    if found {
        Ok(())
    } else {
        Err(format!("no core library in {}", libraries.display()))
    }
}

/// Runs a command that prints a sysroot. rustup must neither install anything
/// nor follow the toolchain of an outer cargo.
fn sysroot_of(command: &mut Command) -> Result<PathBuf, String> {
    let output = command
        .env("RUSTUP_AUTO_INSTALL", "0")
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("--print sysroot: {}", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.trim();
    if line.is_empty() {
        return Err("--print sysroot printed nothing".to_owned());
    }
    Ok(PathBuf::from(line))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
