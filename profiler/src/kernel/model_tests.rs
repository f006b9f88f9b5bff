use std::io;

use proptest::prelude::*;

use super::*;

#[derive(Debug)]
struct Mode(i32);

impl KernelMemory for Mode {
    fn read(&self, _: u64, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&self.0.to_le_bytes());
        Ok(())
    }
}

/// A trampoline that jumps to the symbol at `0xffffffff81000200`.
#[derive(Debug)]
struct Jumps;

impl KernelMemory for Jumps {
    fn read(&self, address: u64, buffer: &mut [u8]) -> io::Result<()> {
        let offset = 0xffff_ffff_8100_0200u64.wrapping_sub(address + 5) as i32;
        buffer[0] = 0xe9;
        buffer[1..5].copy_from_slice(&offset.to_le_bytes());
        Ok(())
    }
}

#[derive(Default)]
struct Kernel {
    release: &'static str,
    version: &'static str,
    debugfs: Option<&'static str>,
    realtime: Option<&'static str>,
    config: &'static str,
    boot: &'static str,
    symbols: &'static str,
    memory: Option<&'static dyn KernelMemory>,
}

impl Kernel {
    fn model(&self) -> PreemptModel {
        preempt_model(&ModelInputs {
            release: self.release,
            version: self.version,
            arch: "x86_64",
            debugfs: self.debugfs.map(|text| (text, "/d/sched/preempt")),
            realtime: self.realtime,
            config: &Config::parse(self.config),
            config_source: "/boot/config",
            boot: &BootParameters::parse(self.boot),
            symbols: &Kallsyms::parse(self.symbols.as_bytes()),
            memory: self.memory,
        })
    }

    #[track_caller]
    fn assert(&self, model: Model, source: &str) {
        let found = self.model();
        assert_eq!((found.active, found.source.as_str()), (model, source));
    }
}

const DEBIAN_6_1: Kernel = Kernel {
    release: "6.1.0-57-cloud-amd64",
    version: "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1 (2026-09-01)",
    config: "CONFIG_PREEMPT_BUILD=y\nCONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_DYNAMIC=y",
    debugfs: None,
    realtime: None,
    boot: "root=/dev/vda quiet",
    symbols: "",
    memory: None,
};

const DEBIAN_7_3: Kernel = Kernel {
    release: "7.3.4+deb13-cloud-amd64",
    config: "CONFIG_PREEMPT_LAZY=y\nCONFIG_ARCH_HAS_PREEMPT_LAZY=y\nCONFIG_PREEMPT_DYNAMIC=y",
    ..DEBIAN_6_1
};

#[test]
fn debugfs_is_believed() {
    let kernel = Kernel {
        debugfs: Some("none voluntary (full) \n"),
        boot: "preempt=none",
        ..DEBIAN_6_1
    };
    kernel.assert(Model::Full, "/d/sched/preempt");
    assert_eq!(
        kernel.model().available,
        [Model::None, Model::Voluntary, Model::Full]
    );
    // The kernel prints this while the mode is not set; nothing is in parentheses.
    for text in ["none voluntary full", "(none) (full)", "(zany)", ""] {
        Kernel {
            debugfs: Some(text),
            ..DEBIAN_6_1
        }
        .assert(
            Model::Voluntary,
            "CONFIG_PREEMPT_VOLUNTARY=y in /boot/config, the default at boot",
        );
    }
}

#[test]
fn a_realtime_kernel_is_one_whatever_debugfs_shows() {
    let config = "CONFIG_PREEMPT_RT=y\nCONFIG_PREEMPT_LAZY=y\nCONFIG_PREEMPT_DYNAMIC=y\n\
                  CONFIG_ARCH_HAS_PREEMPT_LAZY=y";
    let kernel = Kernel {
        release: "6.18.5-rt",
        debugfs: Some("full (lazy) "),
        config,
        ..DEBIAN_6_1
    };
    kernel.assert(Model::Rt, "CONFIG_PREEMPT_RT=y in /boot/config");
    assert_eq!(kernel.model().available, [Model::Full, Model::Lazy]);
    // Debian's 6.1-rt: a PREEMPT_LAZY of another meaning, no PREEMPT_DYNAMIC.
    let kernel = Kernel {
        release: "6.1.0-57-rt-amd64",
        version: "#1 SMP PREEMPT_RT Debian 6.1.192-1",
        realtime: Some("1\n"),
        config: "CONFIG_PREEMPT_RT=y\nCONFIG_PREEMPT_LAZY=y",
        ..DEBIAN_6_1
    };
    kernel.assert(Model::Rt, "/sys/kernel/realtime");
    assert_eq!(kernel.model().available, []);
    Kernel {
        realtime: None,
        config: "",
        ..kernel
    }
    .assert(Model::Rt, "PREEMPT_RT in uname -v");
}

#[test]
fn memory_beats_what_was_asked_for_at_boot() {
    let kernel = Kernel {
        boot: "preempt=full",
        symbols: "ffffffff81a00000 D preempt_dynamic_mode\n",
        memory: Some(&Mode(0)),
        ..DEBIAN_6_1
    };
    kernel.assert(
        Model::None,
        "variable preempt_dynamic_mode in kernel memory",
    );
}

#[test]
fn memory_that_leaves_two_models_is_completed_by_the_release_or_boot() {
    let symbols = "ffffffff81000200 T preempt_schedule_thunk\n\
                   ffffffff81000800 T __SCT__preempt_schedule\nffffffff81000808 T _etext\n";
    let live = "target of __SCT__preempt_schedule in kernel memory";
    let old = Kernel {
        symbols,
        memory: Some(&Jumps),
        ..DEBIAN_6_1
    };
    old.assert(Model::Full, live);
    let new = Kernel {
        symbols,
        memory: Some(&Jumps),
        boot: "preempt=full",
        ..DEBIAN_7_3
    };
    new.assert(Model::Full, &format!("{live}; boot parameter preempt=full"));
    // Booted with none, switched since: only memory knows, and not to which of two.
    let switched = Kernel {
        release: "6.18.1",
        config: "CONFIG_PREEMPT_NONE=y\nCONFIG_ARCH_HAS_PREEMPT_LAZY=y\nCONFIG_PREEMPT_DYNAMIC=y",
        symbols,
        memory: Some(&Jumps),
        ..DEBIAN_6_1
    };
    switched.assert(Model::Unknown, &format!("{live} leaves full or lazy"));
}

#[test]
fn the_boot_parameter_counts_only_where_the_kernel_heeds_it() {
    let with = |kernel: Kernel, boot| Kernel { boot, ..kernel };
    with(DEBIAN_6_1, "preempt=none preempt=full")
        .assert(Model::Full, "boot parameter preempt=full");
    // The last value that is valid wins, as each is handled in turn.
    with(DEBIAN_6_1, "preempt=none preempt=lazy")
        .assert(Model::None, "boot parameter preempt=none");
    let ignored = "CONFIG_PREEMPT_LAZY=y in /boot/config, the default at boot \
                   (boot parameter preempt=none is ignored: this kernel does not offer it)";
    with(DEBIAN_7_3, "preempt=none").assert(Model::Lazy, ignored);
    with(DEBIAN_7_3, "preempt=full").assert(Model::Full, "boot parameter preempt=full");
    assert_eq!(DEBIAN_7_3.model().available, [Model::Full, Model::Lazy]);
    let lazy_6_18 = Kernel {
        release: "6.18.15",
        ..DEBIAN_7_3
    };
    assert_eq!(
        lazy_6_18.model().available,
        [Model::None, Model::Voluntary, Model::Full, Model::Lazy]
    );
    with(lazy_6_18, "preempt=none").assert(Model::None, "boot parameter preempt=none");
    // 5.10 has no PREEMPT_DYNAMIC.
    let old = Kernel {
        release: "5.10.0-30-amd64",
        version: "#1 SMP Debian 5.10.218-1",
        config: "CONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_HZ=250",
        boot: "preempt=full",
        ..DEBIAN_6_1
    };
    old.assert(
        Model::Voluntary,
        "CONFIG_PREEMPT_VOLUNTARY=y in /boot/config \
         (boot parameter preempt=full is ignored: CONFIG_PREEMPT_DYNAMIC is off)",
    );
    assert_eq!(old.model().available, []);
}

#[test]
fn without_a_config_the_version_says_what_it_can() {
    let bare = |release, version| Kernel {
        release,
        version,
        ..Kernel::default()
    };
    let source = "uname -v says PREEMPT_DYNAMIC, which is any model";
    bare("6.1.0", "#1 SMP PREEMPT_DYNAMIC Thu").assert(Model::Unknown, source);
    bare("6.1.0", "#1 SMP PREEMPT Thu").assert(Model::Full, "PREEMPT in uname -v");
    let source = "uname -v says PREEMPT, which is full or lazy";
    bare("6.18.0", "#1 SMP PREEMPT Thu").assert(Model::Unknown, source);
    let source = "uname -v does not say PREEMPT, so none or voluntary";
    bare("5.10.0", "#1 SMP Thu").assert(Model::Unknown, source);
    bare("", "").assert(Model::Unknown, "no source could be read");
    // The parameter is heeded where uname -v says that the kernel is dynamic.
    Kernel {
        boot: "preempt=voluntary",
        ..bare("6.1.0", "#1 SMP PREEMPT_DYNAMIC Thu")
    }
    .assert(Model::Voluntary, "boot parameter preempt=voluntary");
}

proptest! {
    #[test]
    fn debugfs_text_is_read_or_refused(text in "[()a-z ]{0,40}|(none |voluntary |full |\\(full\\) |\\(lazy\\) ){0,5}") {
        if let Some((active, all)) = parse_debugfs(&text) {
            prop_assert!(all.contains(&active));
            let marked = format!("({active})");
            prop_assert!(text.contains(&marked), "{}", text);
        }
    }
}
