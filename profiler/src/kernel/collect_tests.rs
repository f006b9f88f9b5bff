use super::*;
use crate::kernel::{LockdownState, Model};

const KALLSYMS: &str = include_str!("../../tests/fixtures/kernel/kallsyms");

fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root::join(dir.path(), path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn wanted(symbols: &[&str], knobs: &[&str]) -> Wanted {
    Wanted {
        symbols: symbols.iter().map(|&name| name.to_owned()).collect(),
        knobs: knobs.iter().map(|&path| path.to_owned()).collect(),
    }
}

#[test]
fn a_debian_kernel_is_described() {
    let dir = machine(&[
        ("/proc/sys/kernel/osrelease", "6.1.0-57-cloud-amd64\n"),
        (
            "/proc/sys/kernel/version",
            "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1\n",
        ),
        ("/proc/sys/kernel/arch", "x86_64\n"),
        ("/proc/cmdline", "root=/dev/vda preempt=full\n"),
        ("/proc/kallsyms", KALLSYMS),
        (
            "/proc/modules",
            "nf_tables 1 0 - Live 0x0\nfat 1 0 - Live 0x0\n",
        ),
        (
            "/proc/self/mountinfo",
            "1 0 0:7 / /debug rw - debugfs debugfs rw\n2 0 0:8 / /sec rw - securityfs s rw\n",
        ),
        ("/debug/sched/preempt", "none (voluntary) full \n"),
        ("/debug/sched/features", "PLACE_LAG NO_HRTICK\n"),
        ("/sec/lockdown", "[none] integrity confidentiality\n"),
        (
            "/boot/config-6.1.0-57-cloud-amd64",
            "CONFIG_HZ=250\nCONFIG_PREEMPT_VOLUNTARY=y\nCONFIG_PREEMPT_DYNAMIC=y\n",
        ),
        (
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
            "tsc\n",
        ),
        ("/sys/devices/system/cpu/online", "0-2\n"),
        ("/sys/devices/system/cpu/possible", "0-3\n"),
        (
            "/sys/devices/system/cpu/vulnerabilities/srso",
            "Mitigation: Safe RET\n",
        ),
        ("/sys/devices/system/cpu/smt/control", "on\n"),
        ("/proc/sys/kernel/sched_schedstats", "0\n"),
    ]);
    let wanted = wanted(
        &[
            "task_work",
            "schedule",
            "nf_hook",
            "absent",
            "bpf_trampoline_6442450944",
        ],
        &[
            "/proc/sys/kernel/sched_schedstats",
            "/sys/kernel/debug/sched/features",
            "/sys/kernel/absent",
            "/sys/devices",
        ],
    );
    let facts = collect(dir.path(), &wanted, None);
    let kernel = facts.kernel;
    assert_eq!(kernel.release, "6.1.0-57-cloud-amd64");
    assert_eq!(kernel.arch, "x86_64");
    assert_eq!(kernel.config_source, "/boot/config-6.1.0-57-cloud-amd64");
    assert_eq!(kernel.preempt_model.active, Model::Voluntary);
    assert_eq!(kernel.preempt_model.source, "/debug/sched/preempt");
    assert_eq!(kernel.hz, Some(250));
    assert_eq!(kernel.clock, "tsc");
    assert_eq!(kernel.lockdown.state, LockdownState::None);
    assert_eq!(kernel.lockdown.source, "/sec/lockdown");
    assert_eq!(kernel.symbols_hidden, None);
    assert_eq!(kernel.modules, Some(2));
    let present: Vec<_> = kernel.present_symbols.iter().map(String::as_str).collect();
    assert_eq!(present, ["nf_hook", "schedule", "task_work"]);
    let knobs: Vec<_> = kernel
        .knobs
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    assert_eq!(
        knobs,
        [
            ("/proc/sys/kernel/sched_schedstats", "0"),
            ("/sys/kernel/debug/sched/features", "PLACE_LAG NO_HRTICK"),
        ]
    );
    assert_eq!(
        (facts.machine.possible_cpus, facts.machine.online_cpus),
        (4, 3)
    );
    assert_eq!(facts.machine.smt, "on");
    assert_eq!(facts.machine.mitigations["srso"], "Mitigation: Safe RET");
}

#[test]
fn without_a_configuration_symbols_speak() {
    let dir = machine(&[
        ("/proc/sys/kernel/osrelease", "6.6.0\n"),
        ("/proc/sys/kernel/version", "#1 SMP PREEMPT_DYNAMIC\n"),
        ("/proc/cmdline", "preempt=voluntary\n"),
        ("/proc/kallsyms", KALLSYMS),
    ]);
    let kernel = collect(dir.path(), &Wanted::default(), None).kernel;
    assert_eq!(kernel.config_source, INFERRED);
    assert_eq!(kernel.config.get("CONFIG_DEBUG_PREEMPT"), Some("y"));
    assert_eq!(kernel.preempt_model.active, Model::Voluntary);
    assert_eq!(
        kernel.preempt_model.source,
        "boot parameter preempt=voluntary"
    );
    assert_eq!(kernel.hz, None);
}

#[test]
fn an_empty_machine_is_described_without_failing() {
    let dir = machine(&[]);
    let facts = collect(dir.path(), &wanted(&["schedule"], &["/proc/x"]), None);
    assert_eq!(facts.kernel.preempt_model.active, Model::Unknown);
    assert_eq!(facts.kernel.lockdown.state, LockdownState::Unknown);
    assert!(facts.kernel.config.is_empty() && facts.kernel.present_symbols.is_empty());
    assert_ne!(facts.kernel.config_source, INFERRED);
    assert!(
        facts
            .kernel
            .symbols_hidden
            .unwrap()
            .starts_with("/proc/kallsyms: ")
    );
}

#[test]
fn hidden_addresses_are_explained_with_the_way_to_see_them() {
    let zeroed = "0000000000000000 T _stext\n0000000000000000 T schedule\n";
    let explain = |restrict: &str, caps: &str| {
        let dir = machine(&[
            ("/proc/kallsyms", zeroed),
            ("/proc/sys/kernel/kptr_restrict", restrict),
            ("/proc/self/status", caps),
        ]);
        let kernel = collect(dir.path(), &wanted(&["schedule"], &[]), None).kernel;
        // Names are visible all the same.
        assert_eq!(kernel.present_symbols.len(), 1);
        kernel.symbols_hidden.unwrap()
    };
    let start = "/proc/kallsyms shows every address as zero: kernel.kptr_restrict is ";
    assert_eq!(
        explain("2\n", "CapEff:\t000001ffffffffff\n"),
        format!(
            "{start}2, which hides them from everyone; show them with: sysctl -w kernel.kptr_restrict=1"
        )
    );
    assert_eq!(
        explain("1\n", "CapEff:\t0000000000000000\n"),
        format!("{start}1, and CAP_SYSLOG is missing; run as root, or with that capability")
    );
}

#[test]
fn the_running_kernel_is_described() {
    let root = Path::new("/");
    if !root.join("proc/sys/kernel/osrelease").exists() {
        eprintln!("skipped: no /proc");
        return;
    }
    let facts = collect(root, &wanted(&["schedule"], &[]), None);
    eprintln!(
        "{:#?}",
        (
            KernelFacts {
                config: Config::default(),
                ..facts.kernel.clone()
            },
            &facts.machine
        )
    );
    assert!(!facts.kernel.release.is_empty() && !facts.kernel.version.is_empty());
    assert_eq!(facts.kernel.arch, build_arch());
    assert!(facts.machine.online_cpus >= 1);
    assert!(facts.machine.possible_cpus >= facts.machine.online_cpus);
    assert!(!facts.kernel.preempt_model.source.is_empty());
    assert!(!facts.kernel.lockdown.source.is_empty());
    // Where both say it, what is inferred must be what was configured.
    if let (Some(configured), Some(inferred)) = (
        facts.kernel.config.get("CONFIG_HZ"),
        find_hz(root, &Config::default()),
    ) {
        assert_eq!(configured, inferred.to_string());
    }
    if facts.kernel.config_source != INFERRED && !facts.kernel.config.is_empty() {
        for (name, value) in infer_config(&facts.symbols).0 {
            assert_eq!(
                facts.kernel.config.get(&name),
                Some(value.as_str()),
                "{name}"
            );
        }
    }
}
