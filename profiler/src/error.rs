//! Errors that say how to get past them.

use std::fmt;

/// An error with `hint:` lines: the cause, the current value, the command that
/// fixes it. Attach it with [`hinted`] and any `anyhow` context on top; the
/// command prints the chain after `error:` and the hints below it.
#[derive(Debug)]
pub struct Hinted {
    message: String,
    hints: Vec<String>,
    misuse: bool,
}

impl Hinted {
    /// The hints, one printed line each.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }
}

impl fmt::Display for Hinted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Hinted {}

/// An error whose text is `message`, followed when printed by the `hints`.
pub fn hinted<H: Into<String>>(
    message: impl Into<String>,
    hints: impl IntoIterator<Item = H>,
) -> anyhow::Error {
    anyhow::Error::new(Hinted {
        message: message.into(),
        hints: hints.into_iter().map(Into::into).collect(),
        misuse: false,
    })
}

/// As [`hinted`], where the command line itself makes no sense, whatever the
/// files and the machine are like.
pub fn misuse<H: Into<String>>(
    message: impl Into<String>,
    hints: impl IntoIterator<Item = H>,
) -> anyhow::Error {
    anyhow::Error::new(Hinted {
        message: message.into(),
        hints: hints.into_iter().map(Into::into).collect(),
        misuse: true,
    })
}

/// Whether the command line was at fault.
pub fn is_misuse(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<Hinted>())
        .any(|hinted| hinted.misuse)
}

/// Every hint found in the chain of `error`, outermost first.
pub fn hints(error: &anyhow::Error) -> Vec<String> {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<Hinted>())
        .flat_map(|hinted| hinted.hints.iter().cloned())
        .collect()
}
