//! The kernels that tests and labs boot, by name.

mod apt;
mod mirror;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::error::hinted;
use crate::host;

/// The table of the matrix.
const TABLE: &str = include_str!("../../kernels.toml");

/// A kernel that can be booted.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// The name it was asked for by, for messages.
    pub name: String,
    /// Its bzImage.
    pub image: PathBuf,
    /// Its `.config`, where known.
    pub config: Option<PathBuf>,
    /// Its symbols, where known. Debian's kernels come without.
    pub system_map: Option<PathBuf>,
}

impl Kernel {
    /// The kernel in a file, with `System.map` and config beside it by the usual
    /// names: `X.bzImage` with `X.System.map`, `vmlinuz-X` with `System.map-X`.
    pub fn from_image(name: impl Into<String>, image: impl Into<PathBuf>) -> Self {
        let image = image.into();
        let beside = |kind: &str| {
            let file = image.file_name()?.to_str()?;
            let sibling = match (file.strip_suffix(".bzImage"), file.strip_prefix("vmlinuz-")) {
                (Some(stem), _) => format!("{stem}.{kind}"),
                (None, Some(release)) => format!("{kind}-{release}"),
                (None, None) => return None,
            };
            Some(image.with_file_name(sibling)).filter(|path| path.is_file())
        };
        Self {
            name: name.into(),
            config: beside("config"),
            system_map: beside("System.map"),
            image,
        }
    }

    /// Checks that QEMU could boot the image.
    ///
    /// # Errors
    ///
    /// If it cannot be read or has not the header of an x86 boot image
    /// (Documentation/arch/x86/boot.rst).
    pub fn check(&self) -> Result<()> {
        let mut header = [0; 0x206];
        File::open(&self.image)
            .with_context(|| format!("reading {}", self.image.display()))?
            .read_exact(&mut header)
            .ok()
            .filter(|()| header[0x1fe..0x200] == [0x55, 0xaa] && header[0x202..] == *b"HdrS")
            .ok_or_else(|| {
                hinted(
                    format!("{} is not an x86 bzImage", self.image.display()),
                    ["a vmlinux or a compressed package cannot be booted: give arch/x86/boot/bzImage or a vmlinuz-* file"],
                )
            })
    }
}

/// A line of the table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name in the matrix.
    pub name: String,
    /// The Debian suite that carries it.
    pub suite: String,
    /// The pinned package.
    pub package: String,
    /// The pinned version.
    pub version: String,
    /// What the names of packages of this line begin with.
    pub prefix: String,
    /// What they end with.
    pub suffix: String,
    /// The preemption models offered at run time, sorted by name.
    pub models: Vec<String>,
}

impl Entry {
    /// Whether this is a kernel with `CONFIG_PREEMPT_RT`.
    pub fn is_rt(&self) -> bool {
        self.suffix.starts_with("-rt-")
    }

    /// The folder of the cache that this kernel is or will be in.
    fn folder(&self) -> Result<PathBuf> {
        let name = format!("{}_{}", self.package, self.version);
        Ok(host::cache()?.join("kernels").join(name))
    }

    /// The kernel, if it is in the cache.
    fn cached(&self) -> Result<Option<Kernel>> {
        let folder = self.folder()?;
        let image = folder.join("vmlinuz");
        Ok(image.is_file().then(|| Kernel {
            name: self.name.clone(),
            image,
            config: Some(folder.join("config")).filter(|path| path.is_file()),
            system_map: None,
        }))
    }

    /// The kernel, fetched if need be. Says so on standard error.
    ///
    /// # Errors
    ///
    /// If it must be fetched and cannot be.
    pub fn fetch(&self) -> Result<Kernel> {
        if let Some(kernel) = self.cached()? {
            return Ok(kernel);
        }
        let folder = self.folder()?;
        apt::Root::open()?
            .fetch(self, &folder)
            .with_context(|| format!("fetching the kernel {}", self.name))?;
        self.cached()?
            .with_context(|| format!("{} came without a kernel", self.package))
    }

    /// What is in the cache for this entry: the package and its version.
    pub fn origin(&self) -> Option<String> {
        let text = fs::read_to_string(self.folder().ok()?.join("origin")).ok()?;
        Some(text.trim().to_owned())
    }
}

/// The matrix.
///
/// # Errors
///
/// If the table does not parse.
pub fn table() -> Result<Vec<Entry>> {
    #[derive(Deserialize)]
    struct Table {
        kernel: Vec<Entry>,
    }
    let table: Table = toml::from_str(TABLE).context("xtask/kernels.toml")?;
    Ok(table.kernel)
}

/// The folders in which lab kernels are looked for, as `NAME.bzImage` with
/// `NAME.System.map` and `NAME.config`: `PREEMPTPROF_LAB`, then `lab` in the cache.
pub fn lab_folders() -> Vec<PathBuf> {
    host::variable("PREEMPTPROF_LAB")
        .map(PathBuf::from)
        .into_iter()
        .chain(host::cache().ok().map(|cache| cache.join("lab")))
        .collect()
}

/// The lab kernel of this name, if there is one.
pub fn lab(name: &str) -> Option<Kernel> {
    lab_folders()
        .into_iter()
        .map(|folder| folder.join(format!("{name}.bzImage")))
        .find(|image| image.is_file())
        .map(|image| Kernel::from_image(name, image))
}

/// The kernel that `name` means: one of the matrix, fetched if need be, a lab
/// kernel, or the path of a bzImage.
///
/// # Errors
///
/// If it means none, or fetching fails.
pub fn resolve(name: &str) -> Result<Kernel> {
    let table = table()?;
    if let Some(entry) = table.iter().find(|entry| entry.name == name) {
        return entry.fetch();
    }
    if let Some(kernel) = lab(name) {
        return Ok(kernel);
    }
    let path = Path::new(name);
    if path.is_file() {
        let kernel = Kernel::from_image(name, path);
        kernel.check()?;
        return Ok(kernel);
    }
    let names: Vec<&str> = table.iter().map(|entry| entry.name.as_str()).collect();
    let lab: Vec<String> = lab_names();
    let lab = if lab.is_empty() {
        "none found; PREEMPTPROF_LAB names their folder".to_owned()
    } else {
        lab.join(" ")
    };
    Err(hinted(
        format!("no kernel {name:?}"),
        [
            format!("of the matrix: {}", names.join(" ")),
            format!("lab kernels: {lab}"),
            "or the path of a bzImage".to_owned(),
        ],
    ))
}

/// The names of the lab kernels that are there.
pub fn lab_names() -> Vec<String> {
    let mut names: Vec<String> = lab_folders()
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".bzImage").map(str::to_owned)
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        let table = table().unwrap();
        let mut names: Vec<&str> = table.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(
            names,
            ["5.10", "6.1", "6.12", "6.18", "7.3", "6.1-rt", "7.3-rt"]
        );
        names.dedup();
        assert_eq!(names.len(), table.len());
        for entry in &table {
            assert!(entry.package.starts_with(&entry.prefix), "{}", entry.name);
            assert!(entry.package.ends_with(&entry.suffix), "{}", entry.name);
            assert_eq!(entry.is_rt(), entry.name.ends_with("-rt"));
            assert!(entry.models.is_sorted(), "{}", entry.name);
        }
    }

    #[test]
    fn finds_what_lies_beside_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let touch = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "").unwrap();
            path
        };
        let image = touch("x.bzImage");
        assert_eq!(Kernel::from_image("x", &image).config, None);
        let (config, map) = (touch("x.config"), touch("x.System.map"));
        let kernel = Kernel::from_image("x", &image);
        assert_eq!(
            (kernel.config, kernel.system_map),
            (Some(config), Some(map))
        );
        let image = touch("vmlinuz-6.1");
        let map = touch("System.map-6.1");
        assert_eq!(Kernel::from_image("y", image).system_map, Some(map));
    }

    #[test]
    fn refuses_what_is_no_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, vec![0; 4096]).unwrap();
        let error = Kernel::from_image("file", &file).check().unwrap_err();
        assert!(error.to_string().contains("not an x86 bzImage"), "{error}");
        let error = resolve("4.4-nonesuch").unwrap_err();
        assert!(
            crate::error::hints(&error)[0].contains("5.10 6.1"),
            "{error}"
        );
    }
}
