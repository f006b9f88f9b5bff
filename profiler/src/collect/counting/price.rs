//! What a hit of a breakpoint costs, measured on the running kernel before a
//! run: reads of nothing, with a breakpoint in their way and without.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::collect::pin::Pinned;
use crate::probes::breakpoint::Breakpoints;
use crate::recording::Measured;

/// Reads in one batch: short, so that most batches are nobody else's too.
const READS: usize = 40;
/// Batches with and without the breakpoint, in turns.
const BATCHES: usize = 15;

/// The price on `cpu`, nanoseconds. `place` is executed once by each read of a
/// file: the entry of vfs_read.
///
/// # Errors
///
/// When the thread may not run there, there is no breakpoint to be had, or it
/// costs nothing: then it is not hit.
pub(super) fn hit_price(cpu: u32, program: BorrowedFd<'_>, place: u64) -> io::Result<Measured> {
    let _pinned = Pinned::to(cpu)?;
    let breakpoints = Breakpoints::open(cpu, program, &[place])?;
    let mut zeros = File::open("/dev/zero")?;
    let mut batch = || -> io::Result<f64> {
        let mut byte = [0];
        let begin = Instant::now();
        for _ in 0..READS {
            zeros.read_exact(&mut byte)?;
        }
        Ok(begin.elapsed().as_nanos() as f64 / READS as f64)
    };
    batch()?;
    let mut bare = Vec::new();
    let mut armed = Vec::new();
    for _ in 0..BATCHES {
        bare.push(batch()?);
        breakpoints.arm()?;
        armed.push(batch());
        breakpoints.disarm()?;
    }
    let mut armed = armed.into_iter().collect::<io::Result<Vec<f64>>>()?;
    difference(&mut armed, &mut bare)
        .filter(|price| price.value > 0.0)
        .ok_or_else(|| io::Error::other("the breakpoint on vfs_read is not hit"))
}

/// How much more the one takes than the other: between their lower quartiles,
/// as what disturbs a measurement makes it longer.
pub(super) fn difference(more: &mut [f64], less: &mut [f64]) -> Option<Measured> {
    if more.is_empty() || less.is_empty() {
        return None;
    }
    more.sort_unstable_by(f64::total_cmp);
    less.sort_unstable_by(f64::total_cmp);
    let at = |values: &[f64], share: usize| values[(values.len() - 1) * share / 4];
    Some(Measured {
        value: at(more, 1) - at(less, 1),
        low: at(more, 0) - at(less, 2),
        high: at(more, 2) - at(less, 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_disturbs_a_few_batches_changes_no_price() {
        let mut bare: Vec<f64> = (0..15).map(|index| 100.0 + f64::from(index % 3)).collect();
        let mut armed: Vec<f64> = (0..15)
            .map(|index| 1_400.0 + f64::from(index % 4))
            .collect();
        bare[3] = 9_000.0;
        armed[7] = 50_000.0;
        let price = difference(&mut armed, &mut bare).unwrap();
        assert!((price.value - 1_300.0).abs() < 4.0, "{price:?}");
        assert!(price.low <= price.value && price.value <= price.high);
        assert_eq!(difference(&mut [], &mut bare), None);
    }
}
