//! `cargo xtask setup`: installs what is missing, and says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::error::hinted;
use crate::host;
use crate::toolchain::{self, Surroundings, Toolchain};

/// The release of bpf-linker that the object is known to link with.
const LINKER_VERSION: &str = "0.13.0";

/// The target of the BPF object.
const BPF_TARGET: &str = "bpfel-unknown-none";

/// Debian's compiler with `core` for BPF targets.
const COMPILER_PACKAGES: [&str; 2] = ["rustc-web", "libstd-rust-web-dev-bpf"];

/// What the tests run in virtual machines: the Debian package and the program
/// whose presence shows that it is there.
const VM_PROGRAMS: [(&str, &str); 4] = [
    ("qemu-system-x86", "qemu-system-x86_64"),
    ("busybox-static", "busybox"),
    ("iproute2", "ip"),
    ("linux-perf", "perf"),
];

/// Installs what is missing of the BPF toolchain and, with `vm`, of what the
/// virtual machines need. Does nothing, in well under a second, when all is there.
///
/// # Errors
///
/// If something is missing and cannot be installed: no apt, no root, no package.
pub fn setup(vm: bool) -> Result<()> {
    let mut packages: Vec<String> = Vec::new();
    let around = Surroundings::of_process(BPF_TARGET);

    let compiler = toolchain::select(&around);
    match &compiler {
        Ok(toolchain) => say(&format!("BPF compiler: {toolchain}")),
        Err(missing) => {
            if around.named_rustc.is_some() {
                return Err(hinted(missing.what(), missing.hints()));
            }
            say(&format!(
                "BPF compiler: missing, {}",
                COMPILER_PACKAGES.join(" and ")
            ));
            packages.extend(COMPILER_PACKAGES.map(str::to_owned));
        }
    }
    let linker = toolchain::linker(&around);
    match &linker {
        Ok(path) => say(&format!("bpf-linker: {}", path.display())),
        Err(_) => say(&format!("bpf-linker: missing, version {LINKER_VERSION}")),
    }
    if vm {
        for (package, program) in VM_PROGRAMS {
            match host::find(program) {
                Some(path) => say(&format!("{program}: {}", path.display())),
                None => {
                    say(&format!("{program}: missing, {package}"));
                    packages.push(package.to_owned());
                }
            }
        }
    }

    let mut apt = Apt { updated: false };
    apt.install(&packages)?;
    if linker.is_err() {
        let compiler = toolchain::select(&around)
            .map_err(|missing| hinted(missing.what(), missing.hints()))?;
        install_linker(&mut apt, &compiler)?;
        toolchain::linker(&around).map_err(|missing| hinted(missing.what(), missing.hints()))?;
    }
    // What a package manager calls success need not be what was wanted.
    toolchain::select(&around).map_err(|missing| hinted(missing.what(), missing.hints()))?;
    if vm
        && let Some((package, program)) = VM_PROGRAMS
            .into_iter()
            .find(|(_, program)| host::find(program).is_none())
    {
        return Err(hinted(
            format!("still no {program}, with {package} installed"),
            [format!(
                "is it in PATH? `dpkg -L {package}` lists its files"
            )],
        ));
    }
    say("all is there");
    Ok(())
}

/// Builds bpf-linker against the LLVM of the compiler's own major version: an
/// older one cannot read the compiler's bitcode.
fn install_linker(apt: &mut Apt, compiler: &Toolchain) -> Result<()> {
    let major = llvm_major(compiler)?;
    if !(21..=23).contains(&major) {
        return Err(hinted(
            format!("bpf-linker {LINKER_VERSION} cannot be built for LLVM {major} of {compiler}"),
            ["it knows LLVM 21 to 23; name another compiler in PREEMPTPROF_BPF_RUSTC"],
        ));
    }
    let prefix = PathBuf::from(format!("/usr/lib/llvm-{major}"));
    if !prefix.join("bin/llvm-config").exists() {
        say(&format!(
            "LLVM {major} for bpf-linker: missing, llvm-{major}-dev"
        ));
        apt.install(&[format!("llvm-{major}-dev")])?;
    }
    let target_dir = host::target_dir()?.join("bpf-linker");
    let mut command = host::cargo();
    command
        .args([
            "install",
            "bpf-linker",
            "--version",
            LINKER_VERSION,
            "--locked",
        ])
        .args([
            "--no-default-features",
            "--features",
            &format!("llvm-{major}"),
        ])
        .arg("--target-dir")
        .arg(&target_dir)
        .env("LLVM_PREFIX", &prefix)
        .env_remove("RUSTC")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS");
    run_shown(&mut command).map_err(|error| {
        hinted(
            format!("bpf-linker was not installed: {error:#}"),
            ["a bpf-linker from elsewhere does as well, if it is in PATH"],
        )
    })
}

/// The major version of the LLVM inside a compiler.
fn llvm_major(compiler: &Toolchain) -> Result<u32> {
    let text = host::read(Command::new(compiler.compiler()).arg("-vV"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("LLVM version: "))
        .and_then(|version| version.split('.').next())
        .and_then(|major| major.trim().parse().ok())
        .with_context(|| {
            format!(
                "`{} -vV` names no LLVM version",
                compiler.compiler().display()
            )
        })
}

/// apt, whose package lists are fetched at most once and only if needed.
struct Apt {
    updated: bool,
}

impl Apt {
    fn install(&mut self, packages: &[String]) -> Result<()> {
        if packages.is_empty() {
            return Ok(());
        }
        let list = packages.join(" ");
        let (Some(apt), true) = (
            host::find("apt-get"),
            Path::new("/etc/debian_version").exists(),
        ) else {
            return Err(hinted(
                format!("missing, and this is no Debian with apt to install from: {list}"),
                [
                    format!(
                        "it is {}; install their equivalents by hand",
                        distribution()
                    ),
                    "for the BPF compiler: `rustup toolchain install nightly -c rust-src`"
                        .to_owned(),
                    "QEMU, busybox, iproute2 and perf serve the tests: `--no-vm` does without"
                        .to_owned(),
                ],
            ));
        };
        if !self.updated {
            run_shown(host::as_root(&apt)?.args(["-q", "update"]))?;
            self.updated = true;
        }
        let mut command = host::as_root("env")?;
        command
            .arg("DEBIAN_FRONTEND=noninteractive")
            .arg(&apt)
            .args(["-q", "install", "-y", "--no-install-recommends"])
            .args(packages);
        run_shown(&mut command).map_err(|error| {
            hinted(
                format!("not installed: {list}: {error:#}"),
                ["a Debian without these packages can use `rustup toolchain install nightly -c rust-src` for the BPF compiler"],
            )
        })
    }
}

/// The distribution's name for itself.
fn distribution() -> String {
    fs::read_to_string("/etc/os-release")
        .ok()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("PRETTY_NAME="))
                .map(|name| name.trim_matches('"').to_owned())
        })
        .unwrap_or_else(|| "an unknown system".to_owned())
}

/// Runs a command after saying so.
fn run_shown(command: &mut Command) -> Result<()> {
    say(&format!("$ {}", host::shown(command)));
    let status = command
        .stdin(std::process::Stdio::inherit())
        .status()
        .with_context(|| format!("cannot run `{}`", host::shown(command)))?;
    if !status.success() {
        bail!("`{}`: {status}", host::shown(command));
    }
    Ok(())
}

fn say(line: &str) {
    eprintln!("setup: {line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A folder with the programs and sysroots a test needs.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn path(&self, below: &str) -> PathBuf {
            self.0.path().join(below)
        }

        fn file(&self, below: &str) -> PathBuf {
            let path = self.path(below);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            path
        }

        fn program(&self, below: &str, script: &str) -> PathBuf {
            let path = self.file(below);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        /// A compiler whose sysroot is `name`, with `core` for BPF if `bpf`.
        fn compiler(&self, name: &str, bpf: bool) -> PathBuf {
            if bpf {
                self.file(&format!(
                    "{name}/lib/rustlib/{BPF_TARGET}/lib/libcore-0123.rlib"
                ));
            }
            let sysroot = self.path(name);
            self.program(
                &format!("{name}/bin/rustc"),
                &format!("echo {}", sysroot.display()),
            )
        }

        /// A rustup that knows a nightly, with its sources if `source`.
        fn rustup(&self, source: bool) -> PathBuf {
            if source {
                self.file("nightly/lib/rustlib/src/rust/library/core/Cargo.toml");
            }
            let sysroot = self.path("nightly");
            self.program(
                "bin/rustup",
                &format!(
                    "[ \"$1 $2 $3\" = 'run nightly rustc' ] && [ \"$RUSTUP_AUTO_INSTALL\" = 0 ] \
                     && [ -z \"$RUSTUP_TOOLCHAIN\" ] && echo {}",
                    sysroot.display()
                ),
            )
        }

        fn around(&self) -> Surroundings {
            Surroundings {
                path: self.path("bin").into_os_string(),
                cargo_home: Some(self.path("cargo")),
                named_rustc: None,
                system_rustc: self.path("system/bin/rustc"),
                target: BPF_TARGET.to_owned(),
            }
        }
    }

    #[test]
    fn nightly_with_source_comes_first() {
        let fake = Fake::new();
        let rustup = fake.rustup(true);
        fake.compiler("system", true);
        let chosen = toolchain::select(&fake.around()).unwrap();
        let sysroot = fake.path("nightly");
        assert_eq!(
            chosen,
            Toolchain::Nightly {
                rustup: rustup.clone(),
                sysroot
            }
        );
        let command = chosen.cargo_build("cargo".as_ref());
        assert_eq!(command.get_program(), rustup);
        let arguments: Vec<_> = command.get_args().collect();
        assert_eq!(
            arguments,
            ["run", "nightly", "cargo", "build", "-Zbuild-std=core"]
        );
        let removed = command
            .get_envs()
            .any(|(name, value)| name == "RUSTC" && value.is_none());
        assert!(removed, "the outer compiler must not be used");
    }

    #[test]
    fn nightly_without_source_gives_way_to_the_system() {
        let fake = Fake::new();
        fake.rustup(false);
        let rustc = fake.compiler("system", true);
        let chosen = toolchain::select(&fake.around()).unwrap();
        assert_eq!(
            chosen,
            Toolchain::Rustc {
                rustc: rustc.clone()
            }
        );
        let command = chosen.cargo_build("/c/cargo".as_ref());
        assert_eq!(
            shown_environment(&command, "RUSTC"),
            rustc.to_string_lossy()
        );
        assert_eq!(shown_environment(&command, "RUSTC_BOOTSTRAP"), "1");
        assert_eq!(command.get_program(), "/c/cargo");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["build"]);
    }

    #[test]
    fn a_named_compiler_is_taken_or_refused_but_never_passed_over() {
        let fake = Fake::new();
        fake.rustup(true);
        let mut around = fake.around();
        let rustc = fake.compiler("mine", true);
        around.named_rustc = Some(rustc.clone());
        assert_eq!(
            toolchain::select(&around).unwrap(),
            Toolchain::Rustc { rustc }
        );
        around.named_rustc = Some(fake.compiler("bare", false));
        let missing = toolchain::select(&around).unwrap_err();
        assert!(missing.what().contains("no core library in"), "{missing}");
    }

    #[test]
    fn nothing_there_names_every_attempt_and_the_way_out() {
        let fake = Fake::new();
        let text = toolchain::select(&fake.around()).unwrap_err().to_string();
        assert!(
            text.starts_with("error: no compiler for the BPF target"),
            "{text}"
        );
        assert!(text.contains("hint: rustup: not in PATH"), "{text}");
        assert!(
            text.contains("system/bin/rustc: no such compiler"),
            "{text}"
        );
        assert!(text.contains("cargo xtask setup"), "{text}");

        fake.rustup(false);
        fake.compiler("system", false);
        let text = toolchain::select(&fake.around()).unwrap_err().to_string();
        assert!(
            text.contains("its nightly toolchain has no rust-src"),
            "{text}"
        );
        assert!(text.contains("no core library in"), "{text}");
        fake.program("bin/rustup", "exit 1");
        let text = toolchain::select(&fake.around()).unwrap_err().to_string();
        assert!(text.contains("it has no nightly toolchain"), "{text}");
    }

    #[test]
    fn the_linker_is_found_in_path_and_then_in_cargos_folder() {
        let fake = Fake::new();
        let missing = toolchain::linker(&fake.around()).unwrap_err();
        assert!(missing.hints()[0].contains("cargo xtask setup"));
        let in_cargo = fake.program("cargo/bin/bpf-linker", "");
        assert_eq!(toolchain::linker(&fake.around()).unwrap(), in_cargo);
        let in_path = fake.program("bin/bpf-linker", "");
        assert_eq!(toolchain::linker(&fake.around()).unwrap(), in_path);
        fs::set_permissions(&in_path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(toolchain::linker(&fake.around()).unwrap(), in_cargo);
    }

    fn shown_environment(command: &Command, name: &str) -> String {
        command
            .get_envs()
            .find(|(key, _)| *key == name)
            .and_then(|(_, value)| value)
            .map(|value| value.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}
