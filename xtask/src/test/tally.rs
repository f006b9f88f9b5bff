//! Results, printed as they come and counted.

use std::fmt;

use crate::error::hints;

/// How many tests passed, failed and were skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that could not run here; each with a reason.
    pub skipped: u64,
}

impl Tally {
    /// Records and prints that `name` passed.
    pub fn ok(&mut self, name: &str) {
        self.passed += 1;
        println!("ok {name}");
    }

    /// Records and prints that `name` failed.
    pub fn failed(&mut self, name: &str, why: &str) {
        self.failed += 1;
        println!("FAILED {name}: {why}");
    }

    /// Records and prints that `name` failed, with the hints of the error.
    pub fn failed_with(&mut self, name: &str, error: &anyhow::Error) {
        self.failed(name, &format!("{error:#}"));
        for hint in hints(error) {
            println!("hint: {hint}");
        }
    }

    /// Records and prints that `name` was skipped.
    pub fn skipped(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        println!("skipped {name}: {why}");
    }

    /// Records the result of a check.
    pub fn record(&mut self, name: &str, result: Result<(), anyhow::Error>) {
        match result {
            Ok(()) => self.ok(name),
            Err(error) => self.failed_with(name, &error),
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let mut tally = Tally::default();
        tally.ok("a");
        tally.record("b", Ok(()));
        tally.record("c", Err(anyhow::anyhow!("no")));
        tally.skipped("d", "not here");
        assert_eq!(tally.to_string(), "2 passed, 1 failed, 1 skipped");
    }
}
