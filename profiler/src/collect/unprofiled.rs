//! A run that nothing is attached to.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::run::{pass_on, watch};
use super::signals::Signals;
use super::workload::{CannotStart, Exit, Workload};

/// Lets the workload run and waits for it; signals are passed on. How it ended
/// and how long it took, by the clocks and in the order of a profiled run.
///
/// # Errors
///
/// When its end cannot be waited for.
pub fn unprofiled(
    mut workload: Workload,
    signals: &Signals,
) -> anyhow::Result<(Result<Exit, CannotStart>, Duration)> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("starting the event loop")?
        .block_on(async {
            let child = watch(workload.pidfd().try_clone()?)?;
            let came = watch(signals.fd().try_clone()?)?;
            let start = Instant::now();
            workload.release();
            while !workload.has_ended() {
                tokio::select! {
                    biased;
                    guard = child.readable() => drop(guard?),
                    guard = came.readable() => {
                        guard?.clear_ready();
                        pass_on(signals, &workload);
                    }
                }
            }
            let wall = start.elapsed();
            Ok((workload.wait(), wall))
        })
}
