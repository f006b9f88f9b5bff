//! The price of a clock reading, which the programs' own timing contains.

use profiler_ebpf::CLOCK_READINGS;

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
