//! `cargo xtask dist`: one static binary that runs on a host with no toolchain.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::host;

/// What is shipped.
#[derive(Debug, Clone)]
pub struct Dist {
    /// The binary.
    pub binary: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal.
    pub sha256: String,
}

/// Builds the static binary into `dist/preemptprof` of cargo's target folder,
/// with its checksum beside it.
///
/// # Errors
///
/// If the build fails, or what it makes is not static.
pub fn dist() -> Result<Dist> {
    let target_dir = host::target_dir()?;
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // An explicit target, as proc macros and build scripts cannot be static; a
    // target folder of its own, as other flags would throw out the usual one.
    let built = host::cargo_build(
        host::cargo()
            .args(["build", "--profile", "dist", "--package", "profiler"])
            .args(["--bin", "preemptprof", "--target", &triple])
            .arg("--target-dir")
            .arg(target_dir.join("static"))
            .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static"),
    )?;
    let bytes = fs::read(&built).with_context(|| format!("reading {}", built.display()))?;
    if let Some(interpreter) = interpreter(&bytes)? {
        bail!(
            "{} is not static: it asks for {interpreter}",
            built.display()
        );
    }
    let folder = target_dir.join("dist");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let binary = folder.join("preemptprof");
    let sha256 = hexadecimal(&Sha256::digest(&bytes));
    if !fs::read(&binary).is_ok_and(|old| old == bytes) {
        // Not in place: the old one may be running.
        let fresh = folder.join("preemptprof.new");
        fs::copy(&built, &fresh)
            .and_then(|_| fs::rename(&fresh, &binary))
            .with_context(|| format!("writing {}", binary.display()))?;
    }
    let sums = folder.join("preemptprof.sha256");
    fs::write(&sums, format!("{sha256}  preemptprof\n"))
        .with_context(|| format!("writing {}", sums.display()))?;
    Ok(Dist {
        binary,
        size: bytes.len() as u64,
        sha256,
    })
}

/// The program interpreter that a 64-bit little-endian ELF file asks for; none
/// if it is static.
fn interpreter(elf: &[u8]) -> Result<Option<String>> {
    const PT_INTERP: u64 = 3;
    let number = |offset: usize, size: usize| -> Result<u64> {
        let bytes = offset
            .checked_add(size)
            .and_then(|end| elf.get(offset..end))
            .context("a truncated ELF file")?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    if elf.get(..6) != Some(b"\x7fELF\x02\x01") {
        bail!("not a 64-bit little-endian ELF file");
    }
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let header = usize::try_from(table.saturating_add(index * size))?;
        if number(header, 4)? != PT_INTERP {
            continue;
        }
        let start = usize::try_from(number(header.saturating_add(8), 8)?)?;
        let length = usize::try_from(number(header.saturating_add(32), 8)?)?;
        let name = start
            .checked_add(length)
            .and_then(|end| elf.get(start..end))
            .context("a truncated ELF file")?;
        let name = String::from_utf8_lossy(name);
        return Ok(Some(name.trim_end_matches('\0').to_owned()));
    }
    Ok(None)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prints what was made, as `sha256sum` would and then in words.
pub fn print(dist: &Dist) {
    println!("{}  {}", dist.sha256, dist.binary.display());
    println!("{} bytes, static, stripped", dist.size);
}

/// Whether a file is a static program, and so needs no libraries in a guest.
///
/// # Errors
///
/// If it cannot be read or is no ELF file.
pub fn is_static(file: &Path) -> Result<bool> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(interpreter(&bytes)?.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_static_from_dynamic() {
        // This test is itself a dynamic program unless built static.
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let asked = interpreter(&own).unwrap();
        if cfg!(target_feature = "crt-static") {
            assert_eq!(asked, None);
        } else {
            assert!(asked.unwrap().contains("ld-linux"));
        }
    }

    #[test]
    fn refuses_what_is_no_elf_or_cut_short() {
        assert!(interpreter(b"#!/bin/sh\n").is_err());
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(interpreter(&own[..60]).is_err());
        let mut absurd = own[..64].to_vec();
        absurd[32..40].fill(0xff);
        assert!(interpreter(&absurd).is_err());
    }

    #[test]
    fn checksum_is_lower_case_hexadecimal() {
        assert_eq!(
            hexadecimal(&Sha256::digest(b"abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
