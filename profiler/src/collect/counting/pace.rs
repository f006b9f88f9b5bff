//! The pace of short kernel code: nanoseconds per instruction.
//!
//! A BPF program calls a helper over and over whose instructions are counted by
//! walking its code; the same loop without the call is taken off. Where the
//! kernel runs its own debug checks in that helper, they are part of what is
//! walked and of what is timed. Caches are warm and branches predicted, as they
//! are where checks are hot.

use profiler_ebpf::CALIBRATION_CALLS;

use super::price::difference;
use crate::kernel::Kallsyms;
use crate::kernel::text::{Conditions, Snapshot, walk};
use crate::probes::Session;
use crate::recording::Measured;

/// The helper behind bpf_get_prandom_u32 (kernel/bpf/core.c).
const HELPER: &str = "bpf_user_rnd_u32";
/// How often each loop is timed.
const TRIALS: usize = 24;
/// What the call itself takes: the call, and the result moved.
const CALL: f64 = 2.0;
/// No processor is as slow.
const SLOWEST_NS: f64 = 100.0;

/// The pace, and how it was measured.
pub(super) fn measure(
    session: &mut Session,
    snapshot: &Snapshot<'_>,
    symbols: &Kallsyms,
    conditions: &Conditions,
) -> Result<(Measured, String), String> {
    let helper = symbols
        .address(HELPER)
        .ok_or_else(|| format!("{HELPER} is not among the kernel's symbols"))?;
    let path = walk(snapshot, helper, conditions, &|_| false)
        .ok_or_else(|| format!("the code of {HELPER} is not understood"))?;
    let instructions = f64::from(path.instructions) + CALL;
    let mut time = |program: &str| -> Result<Vec<f64>, String> {
        session
            .time(program, TRIALS)
            .map_err(|error| format!("{program}: {error:#}"))
    };
    let mut calls = time("time_prandom")?;
    let mut nothing = time("time_nothing")?;
    let per_call = difference(&mut calls, &mut nothing).ok_or("nothing was timed")?;
    let scale = 1.0 / (f64::from(CALIBRATION_CALLS) * instructions);
    let pace = Measured {
        value: per_call.value * scale,
        low: (per_call.low * scale).max(0.0),
        high: per_call.high * scale,
    };
    if !(pace.value > 0.0 && pace.value < SLOWEST_NS) {
        return Err(format!(
            "{HELPER} takes {:.1} ns by the clock",
            per_call.value
        ));
    }
    let source = format!(
        "{CALIBRATION_CALLS} calls of {HELPER}, {} instructions each, timed in a BPF program",
        path.instructions
    );
    Ok((pace, source))
}
