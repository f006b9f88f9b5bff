//! The price of a clock reading, which the programs' own timing contains.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use profiler_ebpf::{CALIBRATION_CALLS, CLOCK_READINGS};

use crate::cpu;

/// Nanoseconds that `CLOCK_READINGS` readings take.
#[inline(always)]
pub(crate) fn on_clock() -> i32 {
    let begin = cpu::now();
    // From reading to reading is one reading, so the last one is `end`.
    for _ in 1..CLOCK_READINGS {
        core::hint::black_box(cpu::now());
    }
    let end = cpu::now();
    (end - begin) as i32
}

/// Nanoseconds that `CALIBRATION_CALLS` calls of a helper take.
macro_rules! time {
    ($call:expr) => {{
        let begin = cpu::now();
        // The loop is the same around each helper, so it is no part of a
        // difference.
        for _ in 0..CALIBRATION_CALLS {
            core::hint::black_box($call);
        }
        (cpu::now() - begin) as i32
    }};
}

#[inline(always)]
pub(crate) fn on_prandom() -> i32 {
    // SAFETY: the helper takes nothing and always succeeds.
    time!(unsafe { bpf_get_prandom_u32() })
}

#[inline(always)]
pub(crate) fn on_nothing() -> i32 {
    time!(0_u32)
}
