//! The line that begins a sample: `comm pid/tid [cpu] time: period event: ...`.

/// What the line says. Parts that are not there are absent or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'l> {
    pub(super) comm: &'l str,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) cpu: Option<u32>,
    pub(super) time_ns: u64,
    pub(super) period: Option<u64>,
    pub(super) event: &'l str,
    pub(super) rest: &'l str,
}

impl<'l> Head<'l> {
    /// Reads a line; absent when it does not begin a sample. The first time with
    /// an id before it counts: what follows is free text with some events.
    pub(super) fn parse(line: &'l str) -> Option<Self> {
        let mut before: [Option<Word<'l>>; 2] = [None, None];
        for word in words(line) {
            let [older, newer] = before;
            if let Some(time_ns) = time(word.text) {
                // `pid [cpu] time:` or `pid time:`.
                let cpu = newer.and_then(|word| cpu(word.text));
                let ids = if cpu.is_some() { older } else { newer };
                if let Some(ids_word) = ids
                    && let Some((pid, tid)) = ids_of(ids_word.text)
                {
                    let head = Self {
                        comm: line[..ids_word.start].trim(),
                        pid,
                        tid,
                        cpu,
                        time_ns,
                        period: None,
                        event: "",
                        rest: "",
                    };
                    return Some(head.with_event(line[word.end()..].trim()));
                }
            }
            before = [newer, Some(word)];
        }
        None
    }

    /// Takes `period event: rest`, each of which can be missing.
    fn with_event(mut self, text: &'l str) -> Self {
        let (first, after) = split(text);
        let mut text = text;
        if let Ok(period) = first.parse() {
            self.period = Some(period);
            text = after;
        }
        let (event, after) = split(text);
        match event.strip_suffix(':') {
            Some(event) if !event.is_empty() => (self.event, self.rest) = (event, after),
            // Records that are no samples have no colon.
            _ if event.starts_with("PERF_RECORD_") => (self.event, self.rest) = (event, after),
            _ => self.rest = text,
        }
        self
    }
}

#[derive(Clone, Copy)]
struct Word<'l> {
    start: usize,
    text: &'l str,
}

impl Word<'_> {
    const fn end(&self) -> usize {
        self.start + self.text.len()
    }
}

fn words(line: &str) -> impl Iterator<Item = Word<'_>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = line.get(at..)?;
        let start = at + rest.len() - rest.trim_start().len();
        let (text, _) = split(line.get(start..)?);
        at = start + text.len();
        (!text.is_empty()).then_some(Word { start, text })
    })
}

/// The first word and what comes after it.
fn split(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim()),
        None => (text, ""),
    }
}

/// `11844.205559:` or, with `--ns`, `11844.205559939:`, in nanoseconds.
fn time(word: &str) -> Option<u64> {
    let (seconds, fraction) = word.strip_suffix(':')?.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(seconds) || !digits(fraction) {
        return None;
    }
    let scale = match fraction.len() {
        6 => 1_000,
        9 => 1,
        _ => return None,
    };
    let fraction = fraction.parse::<u64>().ok()? * scale;
    let seconds: u64 = seconds.parse().ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// `[003]`.
fn cpu(word: &str) -> Option<u32> {
    word.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// `7870/7871`, or the thread alone. What has no id has -1, as unsigned.
fn ids_of(word: &str) -> Option<(u32, u32)> {
    let id = |text: &str| match text {
        "-1" => Some(u32::MAX),
        _ => text.parse::<u32>().ok(),
    };
    match word.split_once('/') {
        Some((pid, tid)) => Some((id(pid)?, id(tid)?)),
        None => id(word).map(|tid| (tid, tid)),
    }
}
