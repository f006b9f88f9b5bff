//! What `perf script --header` prints before the samples.

/// The parts that a recording has a place for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) release: String,
    pub(super) arch: String,
    pub(super) cpu_model: String,
    /// 0 when it is not known.
    pub(super) cpus: u32,
    pub(super) command: Vec<String>,
    pub(super) whole_machine: bool,
    pub(super) hz: Option<u64>,
}

impl Info {
    /// Takes a line without its `#`.
    pub(super) fn line(&mut self, line: &str) {
        let Some((name, value)) = line.split_once(':') else {
            return;
        };
        let value = value.trim();
        match name.trim() {
            "os release" => self.release = value.to_owned(),
            "arch" => self.arch = value.to_owned(),
            "cpudesc" => self.cpu_model = value.to_owned(),
            "nrcpus online" => self.cpus = value.parse().unwrap_or(0).min(1 << 16),
            "cmdline" => self.command_line(value),
            "event" => self.hz = self.hz.or_else(|| frequency(value)),
            _ => {}
        }
    }

    /// `perf record OPTIONS -- COMMAND`; perf does not quote.
    fn command_line(&mut self, text: &str) {
        let mut words = text.split_whitespace();
        for word in words.by_ref() {
            match word {
                "--" => break,
                "-a" | "--all-cpus" => self.whole_machine = true,
                // `-ag`, but not `--call-graph`.
                _ if word.starts_with('-')
                    && !word.starts_with("--")
                    && word
                        .bytes()
                        .skip(1)
                        .all(|b| matches!(b, b'a' | b'g' | b'v' | b'q')) =>
                {
                    self.whole_machine |= word.contains('a');
                }
                _ => {}
            }
        }
        self.command = words.map(str::to_owned).collect();
    }
}

/// `..., { sample_period, sample_freq } = 997, ..., freq = 1, ...`.
fn frequency(attributes: &str) -> Option<u64> {
    let (_, rest) = attributes.split_once("sample_freq } = ")?;
    let (value, rest) = rest.split_once(',')?;
    if !rest
        .split(',')
        .any(|attribute| attribute.trim() == "freq = 1")
    {
        return None;
    }
    value.trim().parse().ok()
}
