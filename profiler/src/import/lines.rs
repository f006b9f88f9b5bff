//! Lines of a stream that nobody vouches for.

use std::io::{self, BufRead};

use memchr::memchr;

/// Longer lines are cut; no name or stack of a sane tool comes near.
const MAX_LINE: usize = 1 << 20;

/// Reads line by line within a bounded memory.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    bytes: Vec<u8>,
    text: String,
}

impl<R: BufRead> Lines<R> {
    pub(super) const fn new(input: R) -> Self {
        Self {
            input,
            bytes: Vec::new(),
            text: String::new(),
        }
    }

    /// The next line without its end; absent after the last. A byte that is not
    /// UTF-8 stands there as `\xNN`, so that different names stay different.
    pub(super) fn next(&mut self) -> io::Result<Option<&str>> {
        self.bytes.clear();
        let mut ended = false;
        let mut some = false;
        while !ended {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                break;
            }
            some = true;
            let newline = memchr(b'\n', chunk);
            ended = newline.is_some();
            let line = &chunk[..newline.unwrap_or(chunk.len())];
            let room = MAX_LINE.saturating_sub(self.bytes.len()).min(line.len());
            self.bytes.extend_from_slice(&line[..room]);
            let used = newline.map_or(chunk.len(), |at| at + 1);
            self.input.consume(used);
        }
        if !some {
            return Ok(None);
        }
        if self.bytes.last() == Some(&b'\r') {
            self.bytes.pop();
        }
        self.text.clear();
        for chunk in self.bytes.utf8_chunks() {
            self.text.push_str(chunk.valid());
            for byte in chunk.invalid() {
                self.text.push_str(&format!("\\x{byte:02x}"));
            }
        }
        Ok(Some(&self.text))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read as _};

    use super::*;

    #[test]
    fn lines_end_and_bytes_survive() {
        let mut lines = Lines::new(&b"one\r\ntwo \xff\xfe\n\nlast"[..]);
        assert_eq!(lines.next().unwrap(), Some("one"));
        assert_eq!(lines.next().unwrap(), Some("two \\xff\\xfe"));
        assert_eq!(lines.next().unwrap(), Some(""));
        assert_eq!(lines.next().unwrap(), Some("last"));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn an_endless_line_takes_no_endless_memory() {
        let endless = io::repeat(b'x').take(64 << 20).chain(&b"\nnext"[..]);
        let mut lines = Lines::new(BufReader::new(endless));
        assert_eq!(lines.next().unwrap().unwrap().len(), MAX_LINE);
        assert_eq!(lines.next().unwrap(), Some("next"));
        assert!(lines.bytes.capacity() <= 2 * MAX_LINE);
    }
}
