//! Facts of the machine that change what a benchmark measures.

use std::collections::BTreeMap;
use std::path::Path;

use super::{CpuList, MachineFacts, ProcStat, cgroup_cpu_limit, hypervisor, root};

/// The machine's facts, as far as they can be read; `steal` is left for the end of
/// the run.
pub fn machine_facts(root: &Path) -> MachineFacts {
    let read = |path: &str| root::read_text(root, path).ok();
    let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
    let online = count(root, "/sys/devices/system/cpu/online")
        .or_else(|| u32::try_from(ProcStat::load(root).ok()?.cpus.len()).ok())
        .unwrap_or_default();
    MachineFacts {
        cpu_model: cpu_model(root, &cpuinfo),
        possible_cpus: count(root, "/sys/devices/system/cpu/possible").unwrap_or(online),
        online_cpus: online,
        hypervisor: hypervisor(root),
        mitigations: mitigations(root),
        smt: read("/sys/devices/system/cpu/smt/control").unwrap_or_else(|| "unknown".to_owned()),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
            .unwrap_or_else(|| "none".to_owned()),
        cgroup_cpu_limit: cgroup_cpu_limit(root),
        steal: None,
    }
}

fn count(root: &Path, path: &str) -> Option<u32> {
    let cpus = CpuList::load(root, path).ok()?.len();
    u32::try_from(cpus).ok().filter(|&cpus| cpus > 0)
}

/// The model of the first CPU, from the field each architecture has for it.
fn cpu_model(root: &Path, cpuinfo: &str) -> String {
    let field = |name: &str| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            let value = value.trim();
            (key.trim() == name && !value.is_empty()).then(|| value.to_owned())
        })
    };
    // x86, loongarch, some arm64; powerpc; riscv.
    let named = ["model name", "Model Name", "cpu", "uarch"]
        .into_iter()
        .find_map(field);
    let arm = || {
        let implementer = field("CPU implementer")?;
        let part = field("CPU part")?;
        Some(format!("arm implementer {implementer} part {part}"))
    };
    let device_tree = || {
        let model = root::read_text(root, "/proc/device-tree/model").ok()?;
        Some(model.trim_end_matches('\0').to_owned())
    };
    named
        .or_else(arm)
        .or_else(device_tree)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// What each file of `vulnerabilities` (since 4.15) says.
fn mitigations(root: &Path) -> BTreeMap<String, String> {
    const PATH: &str = "/sys/devices/system/cpu/vulnerabilities";
    let Ok(files) = std::fs::read_dir(root::join(root, PATH)) else {
        return BTreeMap::new();
    };
    files
        .flatten()
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let text = root::read_text(root, &format!("{PATH}/{name}")).ok()?;
            Some((name, text))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_names_its_cpu() {
        let root = Path::new("/nonexistent");
        for (cpuinfo, model) in [
            (
                "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC\n",
                "AMD EPYC",
            ),
            (
                "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
                "arm implementer 0x41 part 0xd0c",
            ),
            (
                "processor\t: 0\nuarch\t\t: sifive,u74-mc\n",
                "sifive,u74-mc",
            ),
            ("cpu\t\t: POWER9 (raw)\n", "POWER9 (raw)"),
            ("", "unknown"),
        ] {
            assert_eq!(cpu_model(root, cpuinfo), model);
        }
    }

    #[test]
    fn a_machine_without_files_has_no_invented_facts() {
        let facts = machine_facts(Path::new("/nonexistent"));
        assert_eq!(
            facts,
            MachineFacts {
                cpu_model: "unknown".into(),
                hypervisor: "unknown".into(),
                smt: "unknown".into(),
                governor: "none".into(),
                ..MachineFacts::default()
            }
        );
    }
}
