//! Builds the BPF object, without and with log lines, into `OUT_DIR`:
//! `preemptprof.bpf.o` and `preemptprof-log.bpf.o`.
//!
//! A cargo of our own does it, as the BPF target may need another compiler than
//! the host; see `build/toolchain.rs`. It has a target folder of its own, since
//! the outer cargo holds the lock of the usual one.

#[path = "build/toolchain.rs"]
mod toolchain;

use std::env;
use std::error::Error;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use toolchain::{Surroundings, Toolchain};

/// The package and binary that are the BPF object.
const PACKAGE: &str = "profiler-ebpf";
const BINARY: &str = "preemptprof-bpf";

/// Each object: its name in `OUT_DIR`, and the features it is built with.
const OBJECTS: [(&str, &str); 2] = [("preemptprof.bpf.o", ""), ("preemptprof-log.bpf.o", "log")];

/// Settings of cargo that say how to reach registries, not what to build.
const KEPT: [&str; 7] = [
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRIES_",
    "CARGO_REGISTRY_",
    "CARGO_SOURCE_",
    "CARGO_MAKEFLAGS",
];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let manifest_dir = PathBuf::from(required("CARGO_MANIFEST_DIR")?);
    let root = manifest_dir
        .parent()
        .ok_or("error: the package has no workspace above it")?;
    let ebpf = root.join(PACKAGE);
    for input in [
        manifest_dir.join("build.rs"),
        manifest_dir.join("build"),
        ebpf.join("Cargo.toml"),
        ebpf.join("src"),
        root.join("Cargo.toml"),
        root.join("Cargo.lock"),
    ] {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    println!("cargo::rerun-if-env-changed=PREEMPTPROF_BPF_RUSTC");

    let target = match required("CARGO_CFG_TARGET_ENDIAN")?.to_str() {
        Some("big") => "bpfeb-unknown-none",
        _ => "bpfel-unknown-none",
    };
    let around = Surroundings::of_process(target);
    let toolchain = toolchain::select(&around).map_err(|missing| missing.to_string())?;
    let linker = toolchain::linker(&around).map_err(|missing| missing.to_string())?;
    for tool in [&toolchain.compiler(), &linker] {
        println!("cargo::rerun-if-changed={}", tool.display());
    }

    let out_dir = PathBuf::from(required("OUT_DIR")?);
    // Both objects are linked to the same path, so another build must not come
    // between linking one and copying it.
    let folder = bpf_target_dir(root);
    let lock = folder.join("objects.lock");
    let lock = fs::create_dir_all(&folder)
        .and_then(|()| fs::File::create(&lock))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(|error| format!("error: {}: {error}", lock.display()))?;
    let mut shown = String::new();
    for (object, features) in OBJECTS {
        let (built, messages) = compile(&toolchain, &linker, root, target, features)?;
        replace_if_different(&built, &out_dir.join(object))?;
        // Warnings of the BPF programs would be lost with a build script's
        // output. Both objects mostly have the same ones.
        if messages != shown {
            for line in messages.lines() {
                println!("cargo::warning={line}");
            }
            shown = messages;
        }
    }
    drop(lock);
    Ok(())
}

/// The inner cargo's target folder: one for all profiles of the outer cargo, as
/// the object does not depend on them.
fn bpf_target_dir(root: &Path) -> PathBuf {
    // A relative one is relative to where the outer cargo was started, which
    // cannot be told from here; the root is the usual place.
    let outer = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    root.join(outer).join("bpf")
}

/// Runs the inner cargo and returns the path of what it linked, and what it said.
fn compile(
    toolchain: &Toolchain,
    linker: &Path,
    root: &Path,
    target: &str,
    features: &str,
) -> Result<(PathBuf, String), Box<dyn Error>> {
    let target_dir = bpf_target_dir(root);
    let mut command = toolchain.cargo_build(&required("CARGO")?);
    isolate(&mut command);
    command
        .current_dir(root)
        .args([
            "--quiet",
            "--release",
            "--package",
            PACKAGE,
            "--bin",
            BINARY,
        ])
        .args(["--target", target, "--features", features])
        .arg("--target-dir")
        .arg(&target_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags(linker)?)
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("error: cannot run {command:?}: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!(
            "{messages}\nerror: the BPF object was not built by {toolchain}: {}",
            output.status
        )
        .into());
    }
    let linked = target_dir.join(target).join("release").join(BINARY);
    Ok((linked, messages))
}

/// Takes out of the environment what the outer cargo, and the user for the
/// host's code, say about compilers, flags, profiles and folders.
fn isolate(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let Some(text) = name.to_str() else { continue };
        let kept = KEPT.iter().any(|kept| text.starts_with(kept));
        let ours = text.starts_with("CARGO") && !kept;
        if ours
            || matches!(
                text,
                "RUSTFLAGS" | "RUSTDOC" | "RUSTDOCFLAGS" | "RUSTC_LINKER" | "RUSTUP_TOOLCHAIN"
            )
        {
            command.env_remove(&name);
        }
    }
    // Empty, not absent: this also overrides a wrapper from a configuration file.
    command
        .env("RUSTC_WRAPPER", "")
        .env("RUSTC_WORKSPACE_WRAPPER", "");
}

/// The flags of the BPF target, in the form that cargo prefers to any other.
fn rustflags(linker: &Path) -> Result<OsString, Box<dyn Error>> {
    let arch = required("CARGO_CFG_TARGET_ARCH")?;
    // aya-ebpf has one set of bindings for all of riscv64.
    let arch = match arch.to_str() {
        Some(text) if text.starts_with("riscv64") => OsString::from("riscv64"),
        _ => arch,
    };
    let mut flags = OsString::from("-Clinker=");
    flags.push(linker);
    flags.push("\x1f-Clink-arg=--btf\x1f-Cpanic=abort\x1f-Cdebuginfo=2");
    flags.push("\x1f--cfg=bpf_target_arch=\"");
    flags.push(arch);
    flags.push("\"");
    Ok(flags)
}

/// Copies unless the bytes are the same, so that what embeds the object is not
/// compiled again for nothing.
fn replace_if_different(from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let new = fs::read(from).map_err(|error| format!("error: {}: {error}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == new) {
        return Ok(());
    }
    fs::write(to, new).map_err(|error| format!("error: {}: {error}", to.display()).into())
}

fn required(name: &str) -> Result<OsString, String> {
    env::var_os(name).ok_or_else(|| format!("error: cargo did not set {name}"))
}
