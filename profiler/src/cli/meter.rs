//! How far a series of runs is: a line before each, on a terminal only.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::collect::Kind;
use crate::diff;

/// Counts runs and says how long the rest will take.
pub(super) struct Meter {
    of: usize,
    made: usize,
    began: Instant,
    /// Runs made by this process, whose time is known.
    timed: usize,
    visible: bool,
}

impl Meter {
    pub(super) fn new(of: usize) -> Self {
        Self {
            of,
            made: 0,
            began: Instant::now(),
            timed: 0,
            visible: of > 1 && io::stderr().is_terminal(),
        }
    }

    /// Counts runs that were made before.
    pub(super) fn skip(&mut self, runs: usize) {
        self.made += runs;
    }

    /// Says that a run begins. The command prints below it, so that the line is
    /// drawn once and left.
    pub(super) fn begin(&self, kind: Kind, point: &BTreeMap<String, String>) {
        if !self.visible {
            return;
        }
        let bar = ProgressBar::with_draw_target(Some(self.of as u64), ProgressDrawTarget::stderr())
            .with_style(style())
            .with_position(self.made as u64)
            .with_message(self.text(kind, point));
        bar.abandon();
    }

    fn text(&self, kind: Kind, point: &BTreeMap<String, String>) -> String {
        let kind = match kind {
            Kind::Warmup => "warm-up",
            Kind::Unprofiled => "not profiled",
            Kind::Profiled => "profiled",
        };
        let mut text = match point.is_empty() {
            true => kind.to_owned(),
            false => format!("{}, {kind}", diff::name(point)),
        };
        if let Some(left) = self.left(self.began.elapsed()) {
            text += &format!(", about {} left", HumanDuration(left));
        }
        text
    }

    /// How long the rest takes when its runs take as long as those so far.
    fn left(&self, spent: Duration) -> Option<Duration> {
        let rest = u32::try_from(self.of.saturating_sub(self.made)).ok()?;
        let timed = u32::try_from(self.timed).ok().filter(|timed| *timed > 0)?;
        Some(spent / timed * rest)
    }

    /// Says that the run has ended.
    pub(super) fn end(&mut self) {
        self.made += 1;
        self.timed += 1;
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("[{bar:20}] run {human_pos}/{human_len}: {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was_made() {
        let mut meter = Meter::new(10);
        assert_eq!(meter.left(Duration::from_secs(5)), None);
        meter.skip(4);
        meter.end();
        meter.end();
        assert_eq!(
            meter.left(Duration::from_secs(6)),
            Some(Duration::from_secs(12))
        );
        let point = BTreeMap::from([("groups".to_owned(), "4".to_owned())]);
        let text = meter.text(Kind::Profiled, &point);
        assert!(text.starts_with("groups=4, profiled, about "), "{text}");
    }
}
