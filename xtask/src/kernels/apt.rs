//! Fetches kernels through an apt root of our own, so that the system's apt knows
//! nothing of foreign suites. Needs no root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::mirror::Mirror;
use super::{Entry, table};
use crate::error::hinted;
use crate::host;

/// Package lists older than this are fetched anew before they are relied on.
const FRESH: Duration = Duration::from_secs(24 * 3600);

/// Where a kernel and its config are in packages, old and new.
const WANTED: [&str; 4] = [
    "./boot/vmlinuz-*",
    "./boot/config-*",
    "./usr/lib/modules/*/vmlinuz",
    "./usr/lib/modules/*/config",
];

/// A package at a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Candidate {
    package: String,
    version: String,
    suite: String,
}

/// The private root.
pub(super) struct Root {
    folder: PathBuf,
}

impl Root {
    /// Makes the root in the cache, if it is not there, for the suites of the
    /// table.
    pub(super) fn open() -> Result<Self> {
        for program in ["apt-get", "apt-cache", "dpkg-deb"] {
            if host::find(program).is_none() {
                return Err(hinted(
                    format!("no {program} to fetch Debian kernels with"),
                    ["on another distribution, give `cargo xtask vm` the path of a bzImage"],
                ));
            }
        }
        let folder = host::cache()?.join("apt");
        for below in [
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/trusted.gpg.d",
            "var/lib/dpkg",
            "var/lib/apt/lists/partial",
            "var/cache/apt/archives/partial",
        ] {
            let below = folder.join(below);
            fs::create_dir_all(&below).with_context(|| format!("creating {}", below.display()))?;
        }
        let status = folder.join("var/lib/dpkg/status");
        if !status.exists() {
            fs::write(&status, "").with_context(|| format!("writing {}", status.display()))?;
        }
        let root = Self { folder };
        root.write_sources()?;
        Ok(root)
    }

    fn write_sources(&self) -> Result<()> {
        let mirror = Mirror::of_system()?;
        let keyring = ["gpg", "pgp"]
            .map(|kind| format!("/usr/share/keyrings/debian-archive-keyring.{kind}"))
            .into_iter()
            .find(|file| Path::new(file).exists())
            .ok_or_else(|| {
                hinted(
                    "no Debian keyring in /usr/share/keyrings",
                    ["install debian-archive-keyring"],
                )
            })?;
        let mut suites: Vec<String> = table()?.into_iter().map(|entry| entry.suite).collect();
        suites.sort();
        suites.dedup();
        let text: String = suites
            .iter()
            .map(|suite| {
                let address = mirror.of_suite(suite);
                format!("deb [signed-by={keyring}] {address} {suite} main\n")
            })
            .collect();
        let file = self.folder.join("etc/sources.list");
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            return Ok(());
        }
        // Lists of other sources say nothing about these.
        let _ = fs::remove_file(self.stamp());
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
    }

    /// A file as old as the package lists.
    fn stamp(&self) -> PathBuf {
        self.folder.join("updated")
    }

    /// An apt program that works in this root. Proxies and the like come from the
    /// system's configuration.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let folder = self.folder.display();
        for option in [
            format!("Dir={folder}"),
            format!("Dir::Etc={folder}/etc"),
            format!("Dir::State::status={folder}/var/lib/dpkg/status"),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }

    /// Fetches the package lists, unless that was done lately.
    fn update(&self, even_if_fresh: bool) -> Result<()> {
        let fresh = fs::metadata(self.stamp())
            .and_then(|data| data.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age < FRESH));
        if fresh && !even_if_fresh {
            return Ok(());
        }
        eprintln!("kernels: fetching package lists");
        // Without the option a mirror out of reach is only a warning.
        host::read(self.apt("apt-get").args([
            "-o",
            "APT::Update::Error-Mode=any",
            "-q",
            "update",
        ]))
        .map_err(|error| {
            hinted(
                format!("{error:#}"),
                ["is the mirror of the system's apt sources in reach? a bzImage by its path needs none"],
            )
        })?;
        fs::write(self.stamp(), "").context("the age of the package lists")
    }

    /// Fetches the kernel of `entry` into `folder`: `vmlinuz`, `config`, and
    /// `origin`, which says what it is.
    pub(super) fn fetch(&self, entry: &Entry, folder: &Path) -> Result<()> {
        self.update(false)?;
        match self.try_fetch(entry, folder) {
            Ok(()) => Ok(()),
            // A package may have been replaced since the lists were fetched.
            Err(first) => {
                self.update(true)?;
                self.try_fetch(entry, folder)
                    .with_context(|| format!("{first:#}; then, with fresh package lists"))
            }
        }
    }

    fn try_fetch(&self, entry: &Entry, folder: &Path) -> Result<()> {
        let image = self.choose(entry)?;
        let mut packages = vec![image.clone()];
        if let Some(rest) = image.package.strip_prefix("linux-binary-") {
            packages.push(Candidate {
                package: format!("linux-base-{rest}"),
                ..image.clone()
            });
        }
        let parent = folder.parent().context("a cache without a parent")?;
        fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        let work = tempfile::Builder::new()
            .prefix(".fetching-")
            .tempdir_in(parent)
            .with_context(|| format!("a temporary folder in {}", parent.display()))?;
        let wanted: Vec<String> = packages
            .iter()
            .map(|one| format!("{}={}", one.package, one.version))
            .collect();
        eprintln!("kernels: {}: fetching {}", entry.name, wanted.join(" "));
        host::read(
            self.apt("apt-get")
                .args(["-q", "download"])
                .args(&wanted)
                .current_dir(work.path()),
        )?;
        let tree = work.path().join("tree");
        fs::create_dir(&tree).context("a folder to unpack into")?;
        for file in fs::read_dir(work.path()).context("what was fetched")? {
            let file = file.context("what was fetched")?.path();
            if file.extension().is_some_and(|kind| kind == "deb") {
                unpack(&file, &tree)?;
            }
        }
        let result = work.path().join("result");
        fs::create_dir(&result).context("a folder for the kernel")?;
        for (kind, name) in [("vmlinuz", "vmlinuz"), ("config", "config")] {
            let found =
                find(&tree, kind).with_context(|| format!("no {kind} in {}", wanted.join(" ")))?;
            fs::rename(&found, result.join(name)).with_context(|| format!("moving the {kind}"))?;
        }
        let pinned = image.package == entry.package && image.version == entry.version;
        let mut origin = format!("{} {} ({})", image.package, image.version, image.suite);
        if !pinned {
            origin.push_str(&format!(
                ", as {} {} has left the mirror",
                entry.package, entry.version
            ));
            eprintln!("kernels: {}: {origin}", entry.name);
        }
        fs::write(result.join("origin"), format!("{origin}\n")).context("the kernel's origin")?;
        match fs::rename(&result, folder) {
            Ok(()) => Ok(()),
            // Another process was faster.
            Err(_) if folder.join("vmlinuz").exists() => Ok(()),
            Err(error) => Err(error).with_context(|| format!("moving to {}", folder.display())),
        }
    }

    /// The pinned package, or the newest of its line.
    fn choose(&self, entry: &Entry) -> Result<Candidate> {
        let names = host::read(self.apt("apt-cache").args(["pkgnames", &entry.prefix]))?;
        let names: Vec<&str> = names
            .lines()
            .filter(|name| name.ends_with(&entry.suffix))
            .collect();
        if names.is_empty() {
            return Err(self.none(entry));
        }
        let text = host::read(self.apt("apt-cache").arg("madison").args(&names))?;
        let mut candidates: Vec<Candidate> = parse_madison(&text)
            .into_iter()
            .filter(|candidate| candidate.suite == entry.suite)
            .collect();
        let pinned = candidates
            .iter()
            .position(|one| one.package == entry.package && one.version == entry.version);
        if let Some(index) = pinned {
            return Ok(candidates.swap_remove(index));
        }
        let mut newest: Option<Candidate> = None;
        for candidate in candidates {
            let newer = match &newest {
                None => true,
                Some(best) => is_newer(&candidate.version, &best.version)?,
            };
            if newer {
                newest = Some(candidate);
            }
        }
        newest.ok_or_else(|| self.none(entry))
    }

    fn none(&self, entry: &Entry) -> anyhow::Error {
        hinted(
            format!(
                "no package {}*{} in {}",
                entry.prefix, entry.suffix, entry.suite
            ),
            ["the line has left this suite: correct xtask/kernels.toml"],
        )
    }
}

/// Reads `apt-cache madison`: package | version | address suite/component ...
fn parse_madison(text: &str) -> Vec<Candidate> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim);
            let (package, version, source) = (fields.next()?, fields.next()?, fields.next()?);
            let suite = source.split_whitespace().nth(1)?.split('/').next()?;
            (!package.is_empty() && source.ends_with("Packages")).then(|| Candidate {
                package: package.to_owned(),
                version: version.to_owned(),
                suite: suite.to_owned(),
            })
        })
        .collect()
}

/// Compares versions as Debian does.
fn is_newer(version: &str, than: &str) -> Result<bool> {
    let status = Command::new("dpkg")
        .args(["--compare-versions", version, "gt", than])
        .status()
        .context("cannot run `dpkg --compare-versions`")?;
    Ok(status.success())
}

/// Unpacks the wanted files of a package, and not hundreds of megabytes of modules.
fn unpack(package: &Path, tree: &Path) -> Result<()> {
    let mut archive = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run `dpkg-deb`")?;
    let stream = archive.stdout.take().context("the output of dpkg-deb")?;
    // tar complains about each pattern that is not in this package.
    let tar = Command::new("tar")
        .args(["-x", "--wildcards", "-C"])
        .arg(tree)
        .args(WANTED)
        .stdin(stream)
        .stderr(Stdio::null())
        .status();
    let status = archive.wait().context("waiting for dpkg-deb")?;
    tar.context("cannot run `tar`")?;
    if !status.success() {
        bail!("`dpkg-deb --fsys-tarfile {}`: {status}", package.display());
    }
    Ok(())
}

/// The first file below `folder` that is called `kind` or begins with `kind-`.
fn find(folder: &Path, kind: &str) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).ok()?.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if path.is_dir() {
                folders.push(path);
            } else if name == kind || name.starts_with(&format!("{kind}-")) {
                return Some(path);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_madison() {
        let text = "linux-image-6.1.0-50-cloud-amd64 | 6.1.176-1 | http://a.example/debian bookworm/main amd64 Packages\n\
            linux-image-x | 1.0-1 | http://a.example/debian-security bullseye-security/main amd64 Packages\n\
            linux-signed-amd64 | 6.1.176+1 | http://a.example/debian bookworm/main Sources\n\
            nonsense\n";
        let found = parse_madison(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].package, "linux-image-6.1.0-50-cloud-amd64");
        assert_eq!(found[0].version, "6.1.176-1");
        assert_eq!(found[0].suite, "bookworm");
        assert_eq!(found[1].suite, "bullseye-security");
    }

    #[test]
    fn finds_a_kernel_in_either_layout() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("usr/lib/modules/7.3");
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("vmlinuz"), "").unwrap();
        fs::write(folder.path().join("config-7.3"), "").unwrap();
        assert_eq!(find(folder.path(), "vmlinuz"), Some(deep.join("vmlinuz")));
        assert_eq!(
            find(folder.path(), "config"),
            Some(folder.path().join("config-7.3"))
        );
        assert_eq!(find(folder.path(), "System.map"), None);
    }
}
