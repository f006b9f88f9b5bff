//! Files to write, looked at before the first is written.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path};

use crate::error::misuse;
use crate::output;

/// Checks that every output can be written, is given once, and is none of the
/// files that are read: `--force` is not meant for those.
///
/// # Errors
///
/// When that is not so.
pub(super) fn check<P: AsRef<Path>>(
    outputs: &[P],
    inputs: &[&Path],
    force: bool,
) -> anyhow::Result<()> {
    // `./a` is `a`.
    let plain = |path: &Path| path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for (at, output) in outputs.iter().enumerate() {
        let output = output.as_ref();
        let same = |other: &P| plain(other.as_ref()) == plain(output);
        if outputs[..at].iter().any(same) {
            return Err(misuse(
                format!("-o {} is given twice", output.display()),
                ["each output is a file of its own"],
            ));
        }
        if inputs.iter().any(|input| are_same(input, output)) {
            return Err(misuse(
                format!("{} is read: it cannot be written", output.display()),
                ["choose another name for the output"],
            ));
        }
        output::check(output, force)?;
    }
    Ok(())
}

/// Whether both are one regular file, by whatever names.
fn are_same(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}
