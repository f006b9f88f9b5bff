//! What is in a symbol's name.

/// Suffixes compilers append to a function they cloned, split or renamed: GCC's
/// `.isra.0`, `.constprop.0`, `.part.0`, `.cold`, `.lto_priv.0`, `.localalias`,
/// and LLVM's `.llvm.<hash>`.
const SUFFIXES: [&str; 8] = [
    "isra",
    "constprop",
    "part",
    "cold",
    "llvm",
    "lto_priv",
    "localalias",
    "clone",
];

/// The name of the function in the source: `name` up to the first suffix that a
/// compiler appended.
///
/// Other dots stay: a static variable's `descriptor.3` is a name of its own.
pub fn base_name(name: &str) -> &str {
    let mut from = 1;
    while let Some(dot) = name
        .get(from..)
        .and_then(|rest| rest.find('.'))
        .map(|at| at + from)
    {
        let rest = name.get(dot + 1..).unwrap_or_default();
        let word = rest.split('.').next().unwrap_or_default();
        if SUFFIXES.contains(&word) {
            return name.get(..dot).unwrap_or(name);
        }
        from = dot + 1;
    }
    name
}

/// Whether `name` is not a function but a mark the linker script sets in the text
/// (`include/asm-generic/vmlinux.lds.h` and the architectures' `vmlinux.lds.S`).
pub(super) fn is_section_marker(name: &str) -> bool {
    matches!(
        name,
        "_text" | "_stext" | "_sinittext" | "__indirect_thunk_start"
    ) || name.starts_with("__") && name.ends_with("_text_start")
        || name.starts_with("__") && name.ends_with("text_begin")
        || is_section_end(name)
}

/// Whether `name` marks where text ends, so that no function starts there.
pub(super) fn is_section_end(name: &str) -> bool {
    matches!(
        name,
        "_etext" | "_einittext" | "_end" | "__indirect_thunk_end"
    ) || name.starts_with("__") && name.ends_with("text_end")
}

pub(super) fn leading_underscores(name: &str) -> usize {
    name.bytes().take_while(|&byte| byte == b'_').count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn compiler_suffixes_are_removed_and_other_dots_kept() {
        for (name, base) in [
            ("schedule", "schedule"),
            ("task_work.isra.0", "task_work"),
            ("task_work.constprop.0.isra.0.cold", "task_work"),
            ("foo.part.12", "foo"),
            ("foo.cold", "foo"),
            ("foo.llvm.1234567890", "foo"),
            ("foo.lto_priv.0", "foo"),
            ("descriptor.3", "descriptor.3"),
            ("__func__.7.cold", "__func__.7"),
            (".cold", ".cold"),
            ("colder.colder", "colder.colder"),
            ("", ""),
        ] {
            assert_eq!(base_name(name), base, "{name}");
        }
    }

    proptest! {
        #[test]
        fn base_name_is_a_prefix_and_stable(name in "\\PC*(\\.(isra|cold|part|x)(\\.[0-9]+)?)*") {
            let base = base_name(&name);
            prop_assert!(name.starts_with(base));
            prop_assert_eq!(base_name(base), base);
        }
    }
}
