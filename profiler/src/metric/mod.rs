//! A benchmark's own result, taken from what it prints.
//!
//! [`Choice`] is what the user wants, [`Choice::for_command`] what comes of it
//! for a command, [`Reader::read`] the number.

mod builtin;

use std::ffi::OsString;

use regex::bytes::Regex;

use crate::error::hinted;
use crate::recording::Metric;

pub use builtin::NAMES;
use builtin::{Benchmark, find, of_command};

/// The name of the metric that every run has.
pub const WALL_TIME: &str = "wall time";

/// Where a run's result is to come from.
#[derive(Clone, Debug, Default)]
pub enum Choice {
    /// The output, when the command is a benchmark that is known.
    #[default]
    Auto,
    /// The clock.
    Wall,
    /// The output, read by these patterns.
    Output(Reader),
}

/// Reads a result from a benchmark's output.
#[derive(Clone, Debug)]
pub struct Reader(Patterns);

#[derive(Clone, Debug)]
enum Patterns {
    Known(&'static Benchmark),
    Given {
        regex: Regex,
        name: String,
        unit: String,
        better: &'static str,
    },
}

impl Choice {
    /// Reads `wall`, the name of a known benchmark, or
    /// `NAME[:lower|higher][:UNIT]=REGEX`.
    ///
    /// # Errors
    ///
    /// When it is none of these, or the regular expression is wrong or has no
    /// group.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let Some((label, pattern)) = text.split_once('=') else {
            if text == "wall" {
                return Ok(Self::Wall);
            }
            return find(text)
                .map(|known| Self::Output(Reader(Patterns::Known(known))))
                .ok_or_else(|| {
                    hinted(
                        format!("--metric {text}: no such metric"),
                        [
                            format!("known are wall, {}", NAMES.join(", ")),
                            "or give a pattern: --metric 'tps:higher=tps = ([0-9.]+)'".to_owned(),
                        ],
                    )
                });
        };
        let mut parts = label.split(':').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let mut better = "lower";
        let mut unit = "";
        for part in parts {
            match part {
                "lower" => better = "lower",
                "higher" => better = "higher",
                other if unit.is_empty() && !other.is_empty() => unit = other,
                other => {
                    return Err(hinted(
                        format!("--metric {text}: what does {other:?} mean?"),
                        ["the form is NAME[:lower|higher][:UNIT]=REGEX"],
                    ));
                }
            }
        }
        if name.is_empty() {
            return Err(hinted(
                format!("--metric {text}: the metric has no name"),
                ["the form is NAME[:lower|higher][:UNIT]=REGEX"],
            ));
        }
        // `^` and `$` are a line's, as with grep.
        let regex = Regex::new(&format!("(?m){pattern}")).map_err(|error| {
            hinted(
                format!("--metric {name}: not a regular expression: {error}"),
                ["the syntax is that of Rust's regex crate, much like Perl's"],
            )
        })?;
        if regex.captures_len() < 2 {
            return Err(hinted(
                format!("--metric {name}: the pattern has no group, so no number can be taken"),
                [format!(
                    "put the number in parentheses: --metric '{label}={}'",
                    if pattern.is_empty() {
                        "tps = ([0-9.]+)".to_owned()
                    } else {
                        format!("{pattern} ([0-9.]+)")
                    }
                )],
            ));
        }
        Ok(Self::Output(Reader(Patterns::Given {
            regex,
            name: name.to_owned(),
            unit: unit.to_owned(),
            better,
        })))
    }

    /// What reads this command's output; `None` when the clock is to tell.
    pub fn for_command(&self, command: &[OsString]) -> Option<Reader> {
        match self {
            Self::Auto => of_command(command).map(|known| Reader(Patterns::Known(known))),
            Self::Wall => None,
            Self::Output(reader) => Some(reader.clone()),
        }
    }
}

impl Reader {
    /// The result in this output; of several the last. `None` when there is none.
    pub fn read(&self, output: &[u8]) -> Option<Metric> {
        match &self.0 {
            Patterns::Known(known) => known.read(output),
            Patterns::Given {
                regex,
                name,
                unit,
                better,
            } => {
                let found = regex.captures_iter(output).filter_map(|captures| {
                    let group = captures.iter().skip(1).flatten().next()?;
                    number(group.as_bytes())
                });
                Some(Metric {
                    name: name.clone(),
                    value: found.last()?,
                    unit: unit.clone(),
                    better: (*better).to_owned(),
                })
            }
        }
    }

    /// What is looked for, for a message.
    pub fn name(&self) -> &str {
        match &self.0 {
            Patterns::Known(known) => known.name,
            Patterns::Given { name, .. } => name,
        }
    }
}

/// A number as benchmarks print it: `1234.5`, `1,234.5`, `12.3k`.
fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim().replace(',', "");
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'M' => (&text[..text.len() - 1], 1e6),
        b'G' => (&text[..text.len() - 1], 1e9),
        _ => (text.as_str(), 1.0),
    };
    let value = digits.parse::<f64>().ok()? * factor;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reader(text: &str) -> Reader {
        let Choice::Output(reader) = Choice::parse(text).unwrap() else {
            panic!("{text} reads no output");
        };
        reader
    }

    #[test]
    fn a_pattern_of_one_s_own() {
        let metric = reader("my tps:higher:1/s=tps = ([0-9.,]+)")
            .read(b"tps = 5\nbla\ntps = 1,234.5\nend")
            .unwrap();
        assert_eq!(metric.name, "my tps");
        assert_eq!((metric.value, metric.unit.as_str()), (1234.5, "1/s"));
        assert_eq!(metric.better, "higher");
        let lower = reader("t=^took (?:(\\d+) ms|(\\d+) us)$");
        assert_eq!(lower.read(b"x\ntook 7 us\n").unwrap().value, 7.0);
        assert_eq!(lower.read(b"x took 7 us\n"), None);
        assert_eq!(reader("a=(x+)").read(b"xxx"), None, "not a number");
        assert_eq!(reader("a==(\\d)").read(b"=4").unwrap().value, 4.0);
    }

    #[test]
    fn what_cannot_be_a_metric_is_refused_with_a_hint() {
        for (text, what) in [
            ("tps=tps = [0-9.]+", "no group"),
            ("tps=([0-9", "not a regular expression"),
            ("tps:best:better=(.)", "what does \"better\" mean"),
            ("=(.)", "no name"),
            ("nonsense", "no such metric"),
            ("", "no such metric"),
        ] {
            let error = Choice::parse(text).unwrap_err();
            assert!(error.to_string().contains(what), "{text}: {error}");
            assert!(!crate::error::hints(&error).is_empty(), "{text}");
        }
        assert!(matches!(Choice::parse("wall").unwrap(), Choice::Wall));
    }

    proptest! {
        #[test]
        fn no_output_is_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for name in NAMES {
                if let Some(metric) = reader(name).read(&bytes) {
                    prop_assert!(metric.value.is_finite());
                }
            }
        }

        #[test]
        fn no_choice_is_too_strange(text in ".{0,40}") {
            let _ = Choice::parse(&text);
        }
    }
}
