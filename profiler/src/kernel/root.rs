//! Reading the files a kernel shows, below a root that is `/` on a live machine
//! and a directory of fixtures in tests.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// No file of `/proc` or `/sys` read here comes near this.
const LIMIT: u64 = 256 << 20;

/// `path` below `root`.
pub(super) fn join(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// Whether `root` is the machine this runs on, so that system calls and CPU
/// instructions speak of the same machine as its files.
pub(super) fn is_live(root: &Path) -> bool {
    root == Path::new("/")
}

/// The bytes of a file. Sizes reported for files of `/proc` mean nothing, so it is
/// read to its end, within a limit.
pub(super) fn read(root: &Path, path: &str) -> io::Result<Vec<u8>> {
    let file = File::open(join(root, path))?;
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        return Err(io::Error::other(format!("larger than {LIMIT} bytes")));
    }
    Ok(bytes)
}

/// The text of a file, white space at both ends removed; bytes that are no UTF-8
/// are replaced.
pub(super) fn read_text(root: &Path, path: &str) -> io::Result<String> {
    let bytes = read(root, path)?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}
