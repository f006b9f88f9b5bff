//! Where an idle CPU waits: time there is nobody's.

use std::ops::Range;

use super::kallsyms::{Kallsyms, Section};
use super::symbol_names::base_name;

/// Functions that wait for an interrupt, or poll for work. Most are in
/// `.cpuidle.text`; out of it are `amd_e400_idle`, which has `default_idle` inlined
/// (arch/x86/kernel/process.c, before 6.3), `pv_native_safe_halt`, which every
/// kernel that can be a Xen PV guest halts in (arch/x86/kernel/paravirt.c, since
/// 6.2), and what is in modules (drivers/acpi/processor_idle.c).
const WAITS: [&str; 16] = [
    "default_idle",
    "native_safe_halt",
    "pv_native_safe_halt",
    "amd_e400_idle",
    "mwait_idle",
    "mwait_idle_with_hints",
    "poll_idle",
    "cpu_do_idle",
    "intel_idle",
    "intel_idle_irq",
    "intel_idle_ibrs",
    "intel_idle_xstate",
    "acpi_idle_do_entry",
    "acpi_safe_halt",
    "xen_safe_halt",
    "tdx_safe_halt",
];

/// Whether a function waits for work and does nothing else.
pub fn waits_for_work(symbol: &str) -> bool {
    WAITS.contains(&base_name(symbol))
}

/// The text that an idle CPU waits in, in at most `most` pieces: the section, and
/// the functions outside of it. Empty where the kernel's symbols do not tell.
pub fn idle_texts(symbols: &Kallsyms, most: usize) -> Vec<Range<u64>> {
    let mut texts: Vec<Range<u64>> = symbols.section(Section::CpuIdle).into_iter().collect();
    for name in WAITS {
        for symbol in symbols.variants(name) {
            let text = symbol.range();
            let is_known = |known: &Range<u64>| known.contains(&text.start);
            if text.is_empty() || symbols.hidden() || texts.iter().any(is_known) {
                continue;
            }
            match texts.iter_mut().find(|known| known.end == text.start) {
                Some(before) => before.end = text.end,
                None => texts.push(text),
            }
        }
    }
    texts.truncate(most);
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_outside_of_the_section_are_idle_too() {
        let symbols = Kallsyms::parse(
            b"ffffffff81000000 T _stext\n\
              ffffffff8102bcc0 t amd_e400_idle\n\
              ffffffff8102bd00 T arch_cpu_idle\n\
              ffffffff8154e660 T __cpuidle_text_start\n\
              ffffffff8154e660 T default_idle\n\
              ffffffff8154e680 t mwait_idle\n\
              ffffffff8154e700 T __cpuidle_text_end\n\
              ffffffff8154e700 T pv_native_safe_halt\n\
              ffffffff8154e710 T schedule\n\
              ffffffff81600000 T _etext\n\
              ffffffffc0001000 t acpi_idle_do_entry\t[processor]\n\
              ffffffffc0001040 t acpi_idle_enter\t[processor]\n",
        );
        let texts = idle_texts(&symbols, 4);
        assert_eq!(
            texts,
            [
                0xffff_ffff_8154_e660..0xffff_ffff_8154_e710,
                0xffff_ffff_8102_bcc0..0xffff_ffff_8102_bd00,
                0xffff_ffff_c000_1000..0xffff_ffff_c000_1040,
            ]
        );
        assert_eq!(idle_texts(&symbols, 1).len(), 1);
        assert!(idle_texts(&Kallsyms::parse(b""), 4).is_empty());
    }

    #[test]
    fn suffixes_of_the_compiler_do_not_matter() {
        assert!(waits_for_work("mwait_idle_with_hints.constprop.0"));
        assert!(!waits_for_work("do_idle"));
    }
}
