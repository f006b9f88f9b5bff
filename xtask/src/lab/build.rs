//! Builds a lab kernel from Debian's sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use super::table::{self, Config, Table};
use crate::error::hinted;
use crate::host;
use crate::kernels::Kernel;

/// Programs a kernel build runs, and the Debian package of each.
const PROGRAMS: [(&str, &str); 8] = [
    ("gcc", "gcc"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("pahole", "dwarves"),
    ("xz", "xz-utils"),
    ("dpkg-deb", "dpkg"),
];

/// Headers the build's own tools include, and the Debian package of each.
const HEADERS: [(&str, &str); 2] = [
    ("/usr/include/libelf.h", "libelf-dev"),
    ("/usr/include/openssl/opensslv.h", "libssl-dev"),
];

/// Builds kernel `name` of the table unless the cache has it, and returns it:
/// `NAME.bzImage`, `NAME.System.map` and `NAME.config` in `lab` of the cache.
///
/// `jobs` is given to make. What make prints goes to a log in `lab-build` of the
/// cache, where the sources are kept too.
///
/// # Errors
///
/// When the table has no such kernel, a program is missing, the sources cannot
/// be downloaded, an option does not survive Kconfig, or the build fails.
pub(crate) fn build(table: &Table, name: &str, jobs: usize) -> Result<Kernel> {
    let wanted = table.config(name)?;
    let package = table.source_package(name)?;
    check_programs()?;
    let version = candidate_version(package)?;
    let key = key(package, &version, &table::config_text(&wanted));
    let cache = host::cache()?;
    let (home, scratch) = (cache.join("lab"), cache.join("lab-build"));
    for folder in [&home, &scratch] {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let key_file = home.join(format!("{name}.key"));
    if fs::read_to_string(&key_file).is_ok_and(|text| text == key) {
        return table::find(table, name, &[home]);
    }
    let source = unpack(package, &version, &scratch)?;
    let work = scratch.join(name);
    fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let log = scratch.join(format!("{name}.log"));
    fs::write(&log, "").with_context(|| format!("cannot write {}", log.display()))?;
    eprintln!(
        "{name}: building {package} {version} with {jobs} jobs, log in {}",
        log.display()
    );
    configure(&source, &work, &wanted, &log)?;
    make(&source, &work, &log, &[&format!("-j{jobs}"), "bzImage"])?;

    // The key comes last: it says that the files are complete.
    let _ = fs::remove_file(&key_file);
    for (from, kind) in [
        ("arch/x86/boot/bzImage", "bzImage"),
        ("System.map", "System.map"),
        (".config", "config"),
    ] {
        let from = work.join(from);
        fs::copy(&from, home.join(format!("{name}.{kind}")))
            .with_context(|| format!("the build made no {}", from.display()))?;
    }
    fs::write(&key_file, key).with_context(|| format!("cannot write {}", key_file.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))?;
    table::find(table, name, &[home])
}

/// Names a kernel by what goes into it.
fn key(package: &str, version: &str, request: &str) -> String {
    let mut hash = Sha256::new();
    for part in [package, version, request] {
        hash.update(part);
        hash.update([0]);
    }
    hash.finalize()[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

fn check_programs() -> Result<()> {
    let programs = PROGRAMS
        .iter()
        .filter(|(program, _)| host::find(program).is_none());
    let headers = HEADERS.iter().filter(|(path, _)| !Path::new(path).exists());
    let missing: Vec<&(&str, &str)> = programs.chain(headers).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (things, packages): (Vec<&str>, Vec<&str>) = missing
        .into_iter()
        .map(|(thing, package)| (*thing, *package))
        .unzip();
    Err(hinted(
        format!("cannot build a kernel without {}", things.join(", ")),
        [format!("apt-get install {}", packages.join(" "))],
    ))
}

/// The version of `package` that apt would download.
fn candidate_version(package: &str) -> Result<String> {
    let text = host::read(
        Command::new("apt-cache")
            .args(["policy", package])
            .env("LC_ALL", "C"),
    )?;
    text.lines()
        .find_map(|line| line.trim().strip_prefix("Candidate: "))
        .filter(|version| *version != "(none)")
        .map(str::to_owned)
        .ok_or_else(|| {
            hinted(
                format!("apt has no package {package}"),
                [
                    "apt-get update",
                    "Debian 12 and its security archive have it",
                ],
            )
        })
}

/// Downloads and unpacks the sources, once for each version. Nothing is
/// installed.
fn unpack(package: &str, version: &str, folder: &Path) -> Result<PathBuf> {
    // An epoch's colon would end the name of a make target.
    let source = folder.join(format!("{package}-{}", version.replace(':', "_")));
    if source.is_dir() {
        return Ok(source);
    }
    let scratch = tempfile::Builder::new()
        .prefix("unpack-")
        .tempdir_in(folder)
        .with_context(|| format!("cannot create a folder in {}", folder.display()))?;
    let scratch = scratch.path();
    eprintln!("downloading {package} {version}");
    host::read(
        Command::new("apt-get")
            .args(["-o", "APT::Sandbox::User=root", "download"])
            .arg(format!("{package}={version}"))
            .current_dir(scratch),
    )?;
    let deb = fs::read_dir(scratch)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .with_context(|| format!("apt-get downloaded no {package}"))?;
    host::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(scratch))?;
    let archive = scratch.join(format!("usr/src/{package}.tar.xz"));
    let tree = scratch.join("tree");
    fs::create_dir(&tree)?;
    host::run(
        Command::new("tar")
            .arg("-xJf")
            .arg(&archive)
            .args(["--strip-components=1", "-C"])
            .arg(&tree),
    )?;
    fs::rename(&tree, &source)
        .with_context(|| format!("cannot rename {} to {}", tree.display(), source.display()))?;
    Ok(source)
}

/// Writes `.config` and lets Kconfig complete it.
///
/// # Errors
///
/// Also when Kconfig did not keep what was asked for, with every such option.
fn configure(source: &Path, work: &Path, wanted: &Config, log: &Path) -> Result<()> {
    let path = work.join(".config");
    fs::write(&path, table::config_text(wanted))
        .with_context(|| format!("cannot write {}", path.display()))?;
    make(source, work, log, &["olddefconfig"])?;
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let unmet = table::unmet(wanted, &table::parse_config(&text));
    if !unmet.is_empty() {
        return Err(hinted(
            format!(
                "Kconfig did not keep what xtask/lab.toml asks for: {}",
                unmet.join(", ")
            ),
            [
                "a fragment lacks what the option depends on, or the option has another name in these sources",
            ],
        ));
    }
    Ok(())
}

fn make(source: &Path, work: &Path, log: &Path, targets: &[&str]) -> Result<()> {
    let file = fs::File::options()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new("make");
    command
        .arg("-C")
        .arg(source)
        .arg(format!("O={}", work.display()))
        // One build of the same sources is like the other.
        .args([
            "ARCH=x86_64",
            "KBUILD_BUILD_TIMESTAMP=1970-01-01",
            "KBUILD_BUILD_USER=preemptprof",
            "KBUILD_BUILD_HOST=lab",
        ])
        .args(targets)
        .stdin(std::process::Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    if host::find("ccache").is_some() {
        command.args(["CC=ccache gcc", "HOSTCC=ccache gcc"]);
    }
    let status = command.status().context("cannot run make")?;
    if !status.success() {
        let text = fs::read_to_string(log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        bail!(
            "make {}: {status}; the end of {}:\n{tail}",
            targets.join(" "),
            log.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_depends_on_every_part() {
        let base = key("p", "1", "c");
        assert_eq!(base.len(), 12);
        assert_eq!(base, key("p", "1", "c"));
        for other in [
            key("q", "1", "c"),
            key("p", "2", "c"),
            key("p", "1", "d"),
            key("p1", "", "c"),
        ] {
            assert_ne!(base, other);
        }
    }
}
