//! Metrics over HTTP: by a client of our own, by rude ones, and by Prometheus.
#![allow(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod command;
mod common;
mod tools;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use command::{kill, preemptprof, skip};
use profiler::recording::save;
use serde_json::Value;
use tempfile::TempDir;
use tools::installed;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that does not outlive its test.
struct Server {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recording = folder.path().join("a.pprec");
        save(&common::messaging(), &recording, false).unwrap();
        let mut child = preemptprof(["export", "--listen", "127.0.0.1:0"])
            .arg(&recording)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let (_, rest) = line.split_once("http://").unwrap();
        let address = rest.split_once("/metrics").unwrap().0.parse().unwrap();
        Self {
            child,
            address,
            _folder: folder,
        }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    fn ask(&self, request: &[u8]) -> String {
        ask(self.address, request)
    }

    fn metrics(&self) -> String {
        self.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a request and reads to the end. A reset is the end, too.
fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

#[test]
fn metrics_are_served_until_a_signal_comes() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut server = Server::start();
        let answer = server.metrics();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        let length = format!("Content-Length: {}", body.len());
        for line in [
            "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8",
            &length,
            "Connection: close",
        ] {
            assert!(head.lines().any(|l| l == line), "no {line}: {head}");
        }
        assert!(body.starts_with("# TYPE preemptprof_"), "{body}");
        assert!(body.ends_with("\n# EOF\n"), "{body}");
        let head = server.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(
            head.contains(&length) && head.ends_with("\r\n\r\n"),
            "{head}"
        );
        assert!(
            server
                .ask(b"GET / HTTP/1.1\r\n\r\n")
                .starts_with("HTTP/1.1 404 ")
        );
        let post = server.ask(b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx");
        assert!(post.starts_with("HTTP/1.1 405 "), "{post}");
        assert!(post.contains("\r\nAllow: GET, HEAD\r\n"), "{post}");
        kill(server.pid(), signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert!(TcpStream::connect(server.address).is_err());
    }
}

#[test]
fn rude_clients_do_not_stop_it() {
    let mut server = Server::start();
    for (request, status) in [
        (&b"\0\0\0\0\r\n\r\n"[..], "400"),
        (b"\xff\xfe / HTTP/1.1\r\n\r\n", "400"),
        (b"GET /metrics HTTP/1.1 and more\r\n\r\n", "400"),
        (b"GET /\x1b[31m HTTP/1.1\r\n\r\n", "404"),
    ] {
        let answer = server.ask(request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // Headers without end.
    let answer = server.ask(&b"X-Filler: aaaaaaaaaaaaaaaa\r\n".repeat(400));
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    server.ask(&vec![b'a'; 4 << 20]);
    // Half a request, then silence or the end.
    drop(TcpStream::connect(server.address).unwrap());
    let silent: Vec<TcpStream> = (0..100)
        .filter_map(|_| TcpStream::connect(server.address).ok())
        .collect();
    for mut stream in &silent {
        // The ones beyond the bound have been turned away.
        let _ = stream.write_all(b"GET /met");
    }
    let began = Instant::now();
    while !server.metrics().starts_with("HTTP/1.1 200 ") {
        assert!(began.elapsed() < PATIENCE, "it serves no longer");
        thread::sleep(Duration::from_millis(100));
    }
    drop(silent);
    assert!(server.child.try_wait().unwrap().is_none());
    kill(server.pid(), libc::SIGTERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("a.pprec");
    save(&common::messaging(), &recording, false).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    let file = recording.to_str().unwrap();
    let run = |more: &[&str]| command::run(["export", file, "--listen"].iter().chain(more));
    run(&[&taken]).refuses_with_hint(1, "cannot listen on");
    run(&["nonsense"]).refuses_with_hint(2, "`nonsense`");
    run(&["192.0.2.1:0"]).refuses_with_hint(1, "192.0.2.1");
    run(&["127.0.0.1:0", "--format", "svg"]).refuses_with_hint(2, "--listen serves metrics only");
    let both = run(&["127.0.0.1:0", "-o", "a.prom"]);
    assert_eq!(both.status.code(), Some(2), "{}", both.err());
}

/// `preemptprof_samples{owner="CONFIG_DEBUG_PREEMPT"}`, as in an address.
const OF_OPTION: &str = "preemptprof_samples%7Bowner%3D%22CONFIG_DEBUG_PREEMPT%22%7D";

/// Asks Prometheus; absent while it does not answer.
fn query(address: SocketAddr, expression: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // 1.0: the answer is not in chunks.
    let request =
        format!("GET /api/v1/query?query={expression} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.starts_with("HTTP/1.0 200 ") {
        return None;
    }
    let mut answer: Value = serde_json::from_str(body).unwrap();
    assert_eq!(answer["status"], "success", "{answer}");
    Some(answer["data"]["result"].take())
}

fn prometheus(program: &Path, folder: &Path, scraped: SocketAddr, own: SocketAddr) -> Child {
    let config = folder.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n  \
         - job_name: preemptprof\n    static_configs: [{{targets: ['{scraped}']}}]\n"
    );
    fs::write(&config, text).unwrap();
    Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.join("data").display()
        ))
        .arg(format!("--web.listen-address={own}"))
        .arg("--log.level=error")
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.join("log")).unwrap())
        .spawn()
        .unwrap()
}

#[test]
fn prometheus_scrapes_it() {
    let Some(program) = installed("prometheus") else {
        return skip("prometheus_scrapes_it", "prometheus is not installed");
    };
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    // Free a moment ago.
    let own = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    // Stopped with the test.
    let child = prometheus(&program, folder.path(), server.address, own);
    let mut prometheus = Server {
        child,
        address: own,
        _folder: folder,
    };
    let began = Instant::now();
    let sum = loop {
        let result = query(own, "sum(preemptprof_samples)");
        if let Some(value) = result.as_ref().and_then(|r| r[0]["value"][1].as_str()) {
            break value.to_owned();
        }
        let log = fs::read_to_string(prometheus._folder.path().join("log")).unwrap();
        assert!(prometheus.child.try_wait().unwrap().is_none(), "{log}");
        assert!(began.elapsed() < PATIENCE, "no samples: {log}");
        thread::sleep(Duration::from_millis(200));
    };
    assert_eq!(sum, "10000");
    let up = query(own, "up").unwrap();
    assert_eq!(up[0]["value"][1], "1", "{up}");
    let of_option = query(own, OF_OPTION).unwrap();
    assert_eq!(of_option[0]["value"][1], "570", "{of_option}");
    let info = query(own, "preemptprof_run_info").unwrap();
    assert_eq!(info[0]["metric"]["release"], "6.1.192", "{info}");
}
