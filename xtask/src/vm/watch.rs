//! What a kernel's console tells about its health.

use super::Echo;

/// Text after which a kernel is of no more use. RCU stalls and lock-ups are
/// among them: what runs after one is not what was to be tested.
const FATAL: [(&str, &str); 6] = [
    ("Kernel panic - not syncing", "the kernel panicked"),
    ("watchdog: BUG: soft lockup", "soft lockup"),
    ("NMI watchdog: BUG: soft lockup", "soft lockup"),
    ("Watchdog detected hard LOCKUP", "hard lockup"),
    ("self-detected stall on CPU", "RCU stall"),
    ("detected stalls on CPUs", "RCU stall"),
];

/// Text of a defect that the kernel survived.
const COMPLAINTS: [&str; 7] = [
    "WARNING: ",
    "BUG: ",
    "Oops: ",
    "general protection fault",
    "UBSAN: ",
    "INFO: possible",
    "blocked for more than",
];

/// The console as it grows.
#[derive(Debug)]
pub(super) struct Console {
    text: String,
    partial: Vec<u8>,
    fatal: Option<&'static str>,
    complaints: Vec<String>,
    echo: Echo,
}

impl Console {
    pub(super) fn new(echo: Echo) -> Self {
        Self {
            text: String::new(),
            partial: Vec::new(),
            fatal: None,
            complaints: Vec::new(),
            echo,
        }
    }

    /// Takes what arrived since the last call.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            self.line(line.trim_end());
        }
    }

    fn line(&mut self, line: &str) {
        if self.echo == Echo::All {
            eprintln!("kernel: {line}");
        }
        self.text.push_str(line);
        self.text.push('\n');
        let fatal = FATAL.iter().find(|(text, _)| line.contains(text));
        if let Some((_, what)) = fatal {
            self.fatal.get_or_insert(what);
        } else if COMPLAINTS.iter().any(|text| line.contains(text)) {
            self.complaints.push(line.to_owned());
        }
    }

    /// What ended the kernel, if something did.
    pub(super) fn fatal(&self) -> Option<&'static str> {
        self.fatal
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.partial.is_empty()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// All lines, and those that are complaints.
    pub(super) fn into_parts(mut self) -> (String, Vec<String>) {
        let rest = String::from_utf8_lossy(&self.partial).into_owned();
        self.text.push_str(&rest);
        (self.text, self.complaints)
    }
}

/// The last `count` lines of `text`.
pub(super) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Console {
        let mut console = Console::new(Echo::Nothing);
        for portion in text.as_bytes().chunks(7) {
            console.push(portion);
        }
        console
    }

    #[test]
    fn knows_what_is_fatal() {
        for (line, what) in [
            (
                "[    1.2] Kernel panic - not syncing: VFS: Unable",
                "the kernel panicked",
            ),
            (
                "[   44.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s!",
                "soft lockup",
            ),
            (
                "[   60.1] rcu: INFO: rcu_preempt self-detected stall on CPU",
                "RCU stall",
            ),
            (
                "[   60.1] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
                "RCU stall",
            ),
        ] {
            assert_eq!(read(&format!("{line}\r\n")).fatal(), Some(what), "{line}");
        }
        assert_eq!(read("[ 0.1] Booting SMP configuration\r\n").fatal(), None);
    }

    #[test]
    fn keeps_complaints_and_strips_carriage_returns() {
        let console = read("fine\r\nWARNING: CPU: 0 PID: 1 at kernel/x.c:1\r\ncut");
        let (text, complaints) = console.into_parts();
        assert_eq!(text, "fine\nWARNING: CPU: 0 PID: 1 at kernel/x.c:1\ncut");
        assert_eq!(complaints, ["WARNING: CPU: 0 PID: 1 at kernel/x.c:1"]);
    }

    #[test]
    fn tail_is_the_end() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }
}
