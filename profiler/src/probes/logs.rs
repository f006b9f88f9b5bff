//! The programs' log lines, with `-vv`: aya-log's, on stderr.

use std::io::Write as _;

use anyhow::Context as _;
use aya::Ebpf;
use aya_log::EbpfLogger;

/// Log lines of the programs of the object that writes some. Lines that find
/// the kernel's buffer full (128 KiB) are lost without a trace.
pub struct Logs(EbpfLogger<Stderr>);

impl Logs {
    /// Takes the map of lines out of `ebpf`.
    ///
    /// # Errors
    ///
    /// When there is none: the object is the one without log lines.
    pub(super) fn take(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let logger = EbpfLogger::init_with_logger(ebpf, Stderr)
            .context("reading the programs' log lines")?;
        Ok(Self(logger))
    }

    /// Writes the lines that have come.
    pub fn flush(&mut self) {
        self.0.flush();
    }
}

struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        // Where stderr is gone nobody reads it.
        let _ = writeln!(std::io::stderr(), "bpf: {}", record.args());
    }

    fn flush(&self) {}
}
