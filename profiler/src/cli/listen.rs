//! `preemptprof export --listen`: metrics over HTTP, for Prometheus to scrape.
//!
//! As much of HTTP/1.1 (RFC 9112) as a scraper needs: one request a connection,
//! GET and HEAD, no bodies. Whoever reaches the port may send anything, for as
//! long as it likes: what a request may take of memory and time is bounded, and
//! so is the number of connections at once.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::collect::Signals;
use crate::error::{hinted, misuse};
use crate::export::openmetrics::CONTENT_TYPE;

/// Bytes of a request line with its headers.
const LONGEST_HEAD: usize = 8 << 10;
/// What is read of a refused request, so that the answer is not lost with it.
const LONGEST_REST: usize = 64 << 10;
/// From the connection to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections at once; the ones after them are told to come again.
const MOST: usize = 32;
/// The pause when connections cannot be taken (no descriptors left).
const PAUSE: Duration = Duration::from_millis(100);
const PATH: &str = "/metrics";

/// Serves `metrics` on `address` until a signal comes.
pub(super) fn serve(address: &str, metrics: Vec<u8>) -> anyhow::Result<()> {
    // Before a port is open: from then on the end is an orderly one.
    let signals = Signals::block()?;
    let listener = TcpListener::bind(address).map_err(|error| cannot_listen(address, &error))?;
    listener.set_nonblocking(true)?;
    let local = listener.local_addr()?;
    let said = format!("metrics of the recording at http://{local}{PATH} until Ctrl-C\n");
    // Nothing is lost when stderr is gone.
    let _ = io::stderr().write_all(said.as_bytes());
    let metrics = Arc::new(metrics);
    // What is alive of it besides this one are connections.
    let connections = Arc::new(());
    loop {
        wait(&listener, &signals)?;
        if signals.came() {
            return Ok(());
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                    thread::sleep(PAUSE);
                }
                continue;
            }
        };
        let connection = Connection {
            stream,
            ends: Instant::now() + PATIENCE,
        };
        if Arc::strong_count(&connections) > MOST {
            connection.turn_away();
            continue;
        }
        let (metrics, guard) = (Arc::clone(&metrics), Arc::clone(&connections));
        // Without a thread for it the connection is closed.
        let _ = thread::Builder::new()
            .name("preemptprof-http".to_owned())
            .spawn(move || {
                // A client that went away is no concern of the others.
                let _ = connection.answer(&metrics);
                drop(guard);
            });
    }
}

fn cannot_listen(address: &str, error: &io::Error) -> anyhow::Error {
    let hint = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there: take another port, or 0 for any free one \
             (ss -ltnp names the process)"
        }
        io::ErrorKind::PermissionDenied => "ports below 1024 are root's: take a higher one",
        io::ErrorKind::AddrNotAvailable => "this machine does not have that address",
        _ => "give an address and a port, as 127.0.0.1:9464, [::1]:9464 or 0.0.0.0:9464",
    };
    let what = format!("cannot listen on `{address}`: {error}");
    match error.kind() {
        io::ErrorKind::InvalidInput => misuse(what, [hint]),
        _ => hinted(what, [hint]),
    }
}

/// Waits for a connection or a signal.
fn wait(listener: &TcpListener, signals: &Signals) -> io::Result<()> {
    let poll = |fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [poll(listener.as_raw_fd()), poll(signals.fd().as_raw_fd())];
    // SAFETY: both descriptors are open, and `fds` has as many entries as is said.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, -1) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

/// One connection, which ends in time whatever the other side does.
struct Connection {
    stream: TcpStream,
    ends: Instant,
}

impl Connection {
    /// The time left; an error when there is none.
    fn left(&self) -> io::Result<Duration> {
        let left = self.ends.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(left),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says that there are too many, without waiting for anything.
    fn turn_away(mut self) {
        if self.stream.set_nonblocking(true).is_ok() {
            let answer = Answer::refusal(503, "Service Unavailable", "too many connections");
            let _ = self.stream.write(&answer.bytes(true));
        }
    }

    fn answer(mut self, metrics: &[u8]) -> io::Result<()> {
        // On some systems what is accepted is as the listener is.
        self.stream.set_nonblocking(false)?;
        let mut head = Vec::new();
        let mut buffer = [0; 1024];
        let whole = loop {
            if head_end(&head) {
                break true;
            }
            if head.len() > LONGEST_HEAD {
                break false;
            }
            match self.read(&mut buffer) {
                // It went away, or said half a request.
                Ok(0) => return Ok(()),
                Ok(read) => head.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        let (answer, with_body) = match whole {
            true => respond(&head, metrics),
            false => {
                let status = "Request Header Fields Too Large";
                (
                    Answer::refusal(431, status, "the request is too long"),
                    true,
                )
            }
        };
        self.write(&answer.bytes(with_body))?;
        // Closing with bytes unread resets the connection, and the answer is
        // lost if it is still on its way.
        self.stream.shutdown(Shutdown::Write)?;
        let mut rest = 0;
        while rest < LONGEST_REST {
            match self.read(&mut buffer)? {
                0 => break,
                read => rest += read,
            }
        }
        Ok(())
    }
}

/// Whether the empty line that ends a request's headers is there.
fn head_end(head: &[u8]) -> bool {
    memchr::memmem::find(head, b"\r\n\r\n").is_some()
        || memchr::memmem::find(head, b"\n\n").is_some()
}

struct Answer<'m> {
    status: u16,
    reason: &'static str,
    kind: &'static str,
    body: &'m [u8],
}

impl<'m> Answer<'m> {
    fn refusal(status: u16, reason: &'static str, why: &'static str) -> Self {
        Self {
            status,
            reason,
            kind: "text/plain; charset=utf-8",
            body: why.as_bytes(),
        }
    }

    /// What goes over the wire. The length is the body's even when only the head
    /// is asked for.
    fn bytes(&self, with_body: bool) -> Vec<u8> {
        let allow = match self.status {
            405 => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let mut bytes = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.status,
            self.reason,
            self.kind,
            self.body.len()
        )
        .into_bytes();
        if with_body {
            bytes.extend_from_slice(self.body);
        }
        bytes
    }
}

/// The answer to a request, and whether its body is wanted.
fn respond<'m>(head: &[u8], metrics: &'m [u8]) -> (Answer<'m>, bool) {
    let bad = Answer::refusal(400, "Bad Request", "this is not a request of HTTP/1.1");
    let line = head.split(|&b| b == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let Ok(line) = std::str::from_utf8(line) else {
        return (bad, true);
    };
    let words: Vec<&str> = line.split(' ').collect();
    let &[method, target, version] = words.as_slice() else {
        return (bad, true);
    };
    if !version.starts_with("HTTP/1.") || method.is_empty() {
        return (bad, true);
    }
    let with_body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => {
            let why = "metrics are only read: GET or HEAD";
            return (Answer::refusal(405, "Method Not Allowed", why), true);
        }
    };
    // A proxy may be sent the whole address.
    let path = match target.strip_prefix("http://") {
        Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]),
        None => target,
    };
    if path.split('?').next() != Some(PATH) {
        let why = "nothing is here: metrics are at /metrics\n";
        return (Answer::refusal(404, "Not Found", why), with_body);
    }
    let answer = Answer {
        status: 200,
        reason: "OK",
        kind: CONTENT_TYPE,
        body: metrics,
    };
    (answer, with_body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn status(request: &str) -> (u16, bool) {
        let (answer, with_body) = respond(request.as_bytes(), b"m");
        (answer.status, with_body)
    }

    #[test]
    fn requests_and_their_answers() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", (200, true)),
            ("GET /metrics?x=1 HTTP/1.0\n\n", (200, true)),
            ("GET http://a:1/metrics HTTP/1.1\r\n\r\n", (200, true)),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", (200, false)),
            ("GET / HTTP/1.1\r\n\r\n", (404, true)),
            ("GET http://a HTTP/1.1\r\n\r\n", (404, true)),
            ("GET /metrics/../x HTTP/1.1\r\n\r\n", (404, true)),
            ("POST /metrics HTTP/1.1\r\n\r\n", (405, true)),
            ("GET /metrics\r\n\r\n", (400, true)),
            ("GET /metrics HTTP/2.0\r\n\r\n", (400, true)),
            ("GET  /metrics HTTP/1.1\r\n\r\n", (400, true)),
            ("\r\n\r\n", (400, true)),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer(head in any::<Vec<u8>>()) {
            let (answer, with_body) = respond(&head, b"m");
            let bytes = answer.bytes(with_body);
            prop_assert!(bytes.starts_with(b"HTTP/1.1 "));
            prop_assert!(head_end(&bytes));
        }
    }
}
