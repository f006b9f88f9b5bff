//! The kernel's configuration: where it is found, how it is read, and what symbols
//! say where there is none.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::{Config, Kallsyms, root};

/// `config_source` of a configuration that was only inferred. It is incomplete: a
/// name it does not hold is unknown, not off.
pub const INFERRED: &str = "inferred from symbols";

/// A configuration is 300 KB of text.
const MAX_TEXT: u64 = 16 << 20;

impl Config {
    /// Reads the text of a `.config`. Strings lose their quotes; lines that set
    /// nothing are skipped.
    pub fn parse(text: &str) -> Self {
        let settings = text.lines().filter_map(|line| {
            let (name, value) = line.trim().split_once('=')?;
            let known = name.starts_with("CONFIG_") && value != "n" && !value.is_empty();
            known.then(|| (name.to_owned(), unquote(value)))
        });
        Self(settings.collect())
    }

    /// Whether `name` is `y` or `m`.
    pub fn is_set(&self, name: &str) -> bool {
        matches!(self.get(name), Some("y" | "m"))
    }
}

fn unquote(value: &str) -> String {
    let inner = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
    let Some(inner) = inner else {
        return value.to_owned();
    };
    // Kconfig escapes `"` and `\` with a backslash.
    let mut text = String::with_capacity(inner.len());
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    text
}

/// Finds the configuration of kernel `release` below `root`: `/proc/config.gz`
/// (`CONFIG_IKCONFIG_PROC`), `/boot/config-RELEASE`, `/lib/modules/RELEASE/config`,
/// `/lib/modules/RELEASE/build/.config`. Returns it with the path it came from.
pub fn find_config(root: &Path, release: &str) -> Option<(Config, String)> {
    // A release names a directory; anything else would lead elsewhere.
    let safe = !release.is_empty() && !release.contains('/') && release != "..";
    let by_release = [
        format!("/boot/config-{release}"),
        format!("/lib/modules/{release}/config"),
        format!("/lib/modules/{release}/build/.config"),
    ];
    std::iter::once("/proc/config.gz")
        .chain(by_release.iter().map(String::as_str).filter(|_| safe))
        .find_map(|path| {
            let bytes = root::read(root, path).ok()?;
            let config = Config::parse(&text_of(&bytes)?);
            (!config.is_empty()).then(|| (config, path.to_owned()))
        })
}

/// The text of a configuration, plain or compressed.
fn text_of(bytes: &[u8]) -> Option<String> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Some(String::from_utf8_lossy(bytes).into_owned());
    }
    let mut text = Vec::new();
    MultiGzDecoder::new(bytes)
        .take(MAX_TEXT)
        .read_to_end(&mut text)
        .ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A symbol that exists only where an option is on.
const TELLING: &[(&str, &str)] = &[
    // lib/smp_processor_id.c is built for nothing else.
    ("debug_smp_processor_id", "CONFIG_DEBUG_PREEMPT"),
    // kernel/locking/spinlock_rt.c
    ("rt_spin_lock", "CONFIG_PREEMPT_RT"),
    // kernel/sched/core.c; the first on x86 (static calls), the second on arm64
    // (static keys). Both since 5.12.
    ("__SCT__preempt_schedule", "CONFIG_PREEMPT_DYNAMIC"),
    ("dynamic_preempt_schedule", "CONFIG_PREEMPT_DYNAMIC"),
    // kernel/sched/core.c; preempt_schedule_irq is built without it too.
    ("preempt_schedule", "CONFIG_PREEMPTION"),
    // kernel/rcu/tree_plugin.h
    ("rcu_preempt_deferred_qs_irqrestore", "CONFIG_PREEMPT_RCU"),
    // kernel/trace/trace_preemptirq.c
    ("trace_preempt_on", "CONFIG_TRACE_PREEMPT_TOGGLE"),
    ("trace_hardirqs_on", "CONFIG_TRACE_IRQFLAGS"),
    // kernel/locking/lockdep.c
    ("lock_acquire", "CONFIG_LOCKDEP"),
    ("lock_contended", "CONFIG_LOCK_STAT"),
    // kernel/locking/spinlock_debug.c
    ("__raw_spin_lock_init", "CONFIG_DEBUG_SPINLOCK"),
    // lib/debugobjects.c
    ("debug_object_init", "CONFIG_DEBUG_OBJECTS"),
    // mm/kasan, mm/kmemleak.c, kernel/kcsan
    ("kasan_report", "CONFIG_KASAN"),
    ("kmemleak_alloc", "CONFIG_DEBUG_KMEMLEAK"),
    ("kcsan_setup_watchpoint", "CONFIG_KCSAN"),
    // kernel/sched/core.c
    ("hrtick", "CONFIG_SCHED_HRTICK"),
    // kernel/trace/ftrace.c, kernel/kprobes.c, kernel/trace/fprobe.c
    ("ftrace_modify_all_code", "CONFIG_DYNAMIC_FTRACE"),
    ("register_kprobe", "CONFIG_KPROBES"),
    ("register_fprobe", "CONFIG_FPROBE"),
];

/// What the symbols of a kernel without a readable configuration prove to be on.
pub fn infer_config(symbols: &Kallsyms) -> Config {
    let on: BTreeMap<String, String> = TELLING
        .iter()
        .filter(|(symbol, _)| {
            let mut found = symbols.variants(symbol);
            found.any(|symbol| symbol.module.is_empty())
        })
        .map(|&(_, option)| (option.to_owned(), "y".to_owned()))
        .collect();
    Config(on)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::*;

    const TEXT: &str = "# Automatically generated\nCONFIG_HZ=250\nCONFIG_PREEMPT=y\n\
        # CONFIG_PREEMPT_RT is not set\nCONFIG_X=m\nCONFIG_OFF=n\n\
        CONFIG_LSM=\"landlock,lockdown\"\nCONFIG_ESC=\"a \\\"b\\\" \\\\c\"\nnonsense\nFOO=y\n";

    #[test]
    fn only_what_is_set_is_kept() {
        let config = Config::parse(TEXT);
        assert_eq!(config.0.len(), 5);
        assert_eq!(config.get("CONFIG_HZ"), Some("250"));
        assert_eq!(config.get("CONFIG_LSM"), Some("landlock,lockdown"));
        assert_eq!(config.get("CONFIG_ESC"), Some("a \"b\" \\c"));
        assert!(config.is_set("CONFIG_X") && config.is_set("CONFIG_PREEMPT"));
        assert!(!config.is_set("CONFIG_PREEMPT_RT") && !config.is_set("CONFIG_OFF"));
    }

    fn put(root: &Path, path: &str, bytes: &[u8]) {
        let path = root::join(root, path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn places_are_searched_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let source = || find_config(root, "6.1.0-1-amd64").map(|(_, source)| source);
        assert_eq!(source(), None);
        for path in [
            "/lib/modules/6.1.0-1-amd64/build/.config",
            "/lib/modules/6.1.0-1-amd64/config",
            "/boot/config-6.1.0-1-amd64",
        ] {
            put(root, path, TEXT.as_bytes());
            assert_eq!(source().as_deref(), Some(path));
        }
        put(root, "/proc/config.gz", &gzip(TEXT));
        let (config, path) = find_config(root, "6.1.0-1-amd64").unwrap();
        assert_eq!(
            (config, path.as_str()),
            (Config::parse(TEXT), "/proc/config.gz")
        );
        // A damaged one is passed over, not trusted.
        put(root, "/proc/config.gz", &gzip(TEXT)[..30]);
        assert_eq!(source().as_deref(), Some("/boot/config-6.1.0-1-amd64"));
        assert_eq!(find_config(root, "../6.1.0-1-amd64"), None);
    }

    #[test]
    fn symbols_prove_options_but_their_absence_proves_nothing() {
        let text = b"ffffffff81000000 T debug_smp_processor_id\n\
                     ffffffff81000010 T __SCT__preempt_schedule\n\
                     ffffffff81000020 T preempt_schedule\n";
        let config = infer_config(&Kallsyms::parse(text));
        let names: Vec<&str> = config.0.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "CONFIG_DEBUG_PREEMPT",
                "CONFIG_PREEMPTION",
                "CONFIG_PREEMPT_DYNAMIC"
            ]
        );
    }

    proptest! {
        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), zip: bool) {
            let mut bytes = bytes;
            if zip {
                bytes.splice(..0, [0x1f, 0x8b, 8, 0]);
            }
            if let Some(text) = text_of(&bytes) {
                let _ = Config::parse(&text);
            }
        }

        #[test]
        fn what_is_written_is_read(settings in prop::collection::btree_map("CONFIG_[A-Z0-9_]{1,8}", "y|m|[1-9][0-9]{0,3}", 0..20)) {
            let text: String = settings.iter().map(|(n, v)| format!("{n}={v}\n")).collect();
            prop_assert_eq!(Config::parse(&text).0, settings);
        }
    }
}
