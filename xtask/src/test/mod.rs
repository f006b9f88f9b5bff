//! `cargo xtask test`: every check there is, and one line that counts them.

mod cargo;
mod checks;
mod ledger;
mod matrix;
mod product;
mod recording;
mod runs;
mod tally;

use anyhow::Result;

pub use checks::{Check, Section, Subject};
pub use tally::Tally;

use crate::{lab, setup};

/// What of it all is to run.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Leave out the virtual machines.
    pub no_vm: bool,
    /// Only what has this in its name; for cargo's tests, their own filter.
    pub filter: Option<String>,
}

impl Selection {
    /// Whether what is called `name` is to run.
    fn takes(&self, name: &str) -> bool {
        self.filter
            .as_deref()
            .is_none_or(|filter| name.contains(filter))
    }
}

/// Sets up what is missing and runs the tests: format, lints, cargo's tests, and
/// the kernels of the matrix, one after the other. Prints a line per result as it
/// comes; the caller prints the count.
///
/// # Errors
///
/// Never for a test that fails; see [`Tally::failed`].
pub fn test(selection: &Selection) -> Result<Tally> {
    let mut tally = Tally::default();
    if let Err(error) = setup::setup(!selection.no_vm) {
        tally.failed_with("setup", &error);
        return Ok(tally);
    }
    cargo::format(selection, &mut tally);
    cargo::lint(selection, &mut tally);
    cargo::tests(selection, &mut tally)?;
    if selection.no_vm {
        tally.skipped("vm", "--no-vm");
    } else {
        matrix::run(selection, &mut tally)?;
        score(selection, &mut tally);
    }
    Ok(tally)
}

/// The lab's small score. CI never builds kernels for it.
fn score(selection: &Selection, tally: &mut Tally) {
    let name = "lab score";
    if !selection.takes(name) {
        return;
    }
    match lab::small_score() {
        Ok(Some(())) => tally.ok(name),
        Ok(None) => {
            println!("skipped: no lab kernels");
            tally.skipped(name, "no lab kernels");
        }
        Err(error) => tally.failed_with(name, &error),
    }
}
