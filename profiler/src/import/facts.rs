//! What is known of the kernel that imported samples come from.

use std::fs::File;
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use anyhow::Result;
use flate2::bufread::MultiGzDecoder;

use super::Known;
use crate::error::hinted;
use crate::kernel::{
    BootParameters, Config, Kallsyms, KernelFacts, ModelInputs, PreemptModel, preempt_model,
};

/// A configuration is 300 KB of text.
const MAX_CONFIG: u64 = 16 << 20;

/// Reads a kernel configuration, plain or compressed by gzip.
///
/// # Errors
///
/// When the file cannot be read or sets no option.
pub fn read_config(path: &Path) -> Result<(Config, String)> {
    let failed = |error: io::Error| {
        hinted(
            format!(
                "cannot read the kernel configuration {}: {error}",
                path.display()
            ),
            ["it is the .config of the build, /boot/config-RELEASE or /proc/config.gz"],
        )
    };
    let mut input = BufReader::new(File::open(path).map_err(failed)?);
    let compressed = io::BufRead::fill_buf(&mut input)
        .map_err(failed)?
        .starts_with(&[0x1f, 0x8b]);
    let mut bytes = Vec::new();
    if compressed {
        MultiGzDecoder::new(input)
            .take(MAX_CONFIG)
            .read_to_end(&mut bytes)
    } else {
        input.take(MAX_CONFIG).read_to_end(&mut bytes)
    }
    .map_err(failed)?;
    let config = Config::parse(&String::from_utf8_lossy(&bytes));
    if config.is_empty() {
        return Err(hinted(
            format!("{} sets no option of a kernel", path.display()),
            ["it is the .config of the build, /boot/config-RELEASE or /proc/config.gz"],
        ));
    }
    Ok((config, path.display().to_string()))
}

/// The facts of a kernel that is not at hand.
pub(super) fn kernel_facts(known: &Known, release: &str, arch: &str) -> KernelFacts {
    let release = known.release.as_deref().unwrap_or(release);
    let (config, config_source) = match &known.config {
        Some((config, source)) => (config.clone(), source.clone()),
        None => (
            Config::default(),
            "none: an import has none unless --config gives it".to_owned(),
        ),
    };
    let preempt_model = if config.is_empty() {
        PreemptModel::default()
    } else {
        preempt_model(&ModelInputs {
            release,
            version: "",
            arch,
            debugfs: None,
            realtime: None,
            config: &config,
            config_source: &config_source,
            boot: &BootParameters::default(),
            symbols: &Kallsyms::default(),
            memory: None,
        })
    };
    KernelFacts {
        release: release.to_owned(),
        arch: arch.to_owned(),
        preempt_model,
        hz: config.get("CONFIG_HZ").and_then(|hz| hz.parse().ok()),
        config_source,
        config,
        ..KernelFacts::default()
    }
}
