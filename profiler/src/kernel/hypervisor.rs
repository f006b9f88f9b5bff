//! Which hypervisor, if any, the kernel runs on.

use std::path::Path;

use super::root;

/// What hypervisors answer in CPUID leaf 0x40000000, and what they are called.
const SIGNATURES: [(&str, &str); 12] = [
    ("KVMKVMKVM", "kvm"),
    ("Linux KVM Hv", "kvm"),
    ("Microsoft Hv", "hyperv"),
    ("VMwareVMware", "vmware"),
    ("XenVMMXenVMM", "xen"),
    ("TCGTCGTCGTCG", "qemu-tcg"),
    ("VBoxVBoxVBox", "virtualbox"),
    ("bhyve bhyve ", "bhyve"),
    ("ACRNACRNACRN", "acrn"),
    ("QNXQVMBSQG", "qnx"),
    (" lrpepyh vr", "parallels"),
    ("prl hyperv", "parallels"),
];

/// What firmware says of the machine, where that can only be a virtual one.
const PRODUCTS: [(&str, &str); 9] = [
    ("QEMU", "qemu"),
    ("KVM", "kvm"),
    ("VMware", "vmware"),
    ("VirtualBox", "virtualbox"),
    ("Bochs", "bochs"),
    ("Virtual Machine", "hyperv"),
    ("HVM domU", "xen"),
    ("Google Compute Engine", "kvm"),
    ("Apple Virtualization", "apple"),
];

/// The hypervisor's vendor; `none` where the CPU says there is none; `unknown` where
/// nothing says either.
///
/// Sources: CPUID (x86, only of the machine this runs on), `/sys/hypervisor/type`
/// (Xen), the device tree (arm64), firmware's product name.
pub fn hypervisor(root: &Path) -> String {
    if root::is_live(root)
        && let Some(answer) = cpuid()
    {
        return answer;
    }
    let read = |path: &str| root::read_text(root, path).ok();
    if let Some(kind) = read("/sys/hypervisor/type").filter(|kind| !kind.is_empty()) {
        return kind;
    }
    if let Some(compatible) = read("/proc/device-tree/hypervisor/compatible") {
        // A list of `vendor,model`, each ended by a zero byte.
        let first = compatible.split('\0').next().unwrap_or_default();
        return match first.strip_prefix("linux,") {
            Some(model) => model.to_owned(),
            None => first.split(',').next().unwrap_or_default().to_owned(),
        };
    }
    let names = ["product_name", "sys_vendor"]
        .map(|name| read(&format!("/sys/class/dmi/id/{name}")).unwrap_or_default());
    for (part, vendor) in PRODUCTS {
        if names.iter().any(|name| name.contains(part)) {
            return vendor.to_owned();
        }
    }
    match x86_flag(&read("/proc/cpuinfo").unwrap_or_default()) {
        Some(false) => "none".to_owned(),
        Some(true) | None => "unknown".to_owned(),
    }
}

/// Whether the flags of the first CPU have `hypervisor`; `None` where there are no
/// flags as x86 has them.
fn x86_flag(cpuinfo: &str) -> Option<bool> {
    let line = cpuinfo.lines().find(|line| line.starts_with("flags"))?;
    let (_, flags) = line.split_once(':')?;
    Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

/// The name for a signature; one that is not known stands for itself.
#[cfg_attr(
    not(any(target_arch = "x86_64", test)),
    expect(dead_code, reason = "only x86 has CPUID")
)]
fn signature_name(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end_matches('\0');
    match SIGNATURES.iter().find(|(signature, _)| *signature == text) {
        Some((_, name)) => (*name).to_owned(),
        None if text.trim().is_empty() => "unknown".to_owned(),
        None => text.trim().to_owned(),
    }
}

#[cfg(target_arch = "x86_64")]
fn cpuid() -> Option<String> {
    use std::arch::x86_64::__cpuid;

    // Leaf 1, bit 31 of ECX is set by hypervisors and clear on hardware.
    if __cpuid(1).ecx >> 31 == 0 {
        return Some("none".to_owned());
    }
    let signature = |leaf| {
        let answer = __cpuid(leaf);
        let bytes: Vec<u8> = [answer.ebx, answer.ecx, answer.edx]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        signature_name(&bytes)
    };
    let first = signature(0x4000_0000);
    // KVM and Xen move up to make room for Hyper-V's leaves when they imitate it.
    let second = signature(0x4000_0100);
    if first == "hyperv" && matches!(second.as_str(), "kvm" | "xen") {
        return Some(second);
    }
    Some(first)
}

#[cfg(not(target_arch = "x86_64"))]
fn cpuid() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_names() {
        assert_eq!(signature_name(b"KVMKVMKVM\0\0\0"), "kvm");
        assert_eq!(signature_name(b"TCGTCGTCGTCG"), "qemu-tcg");
        assert_eq!(signature_name(b"NewNewNewNew"), "NewNewNewNew");
        assert_eq!(signature_name(&[0; 12]), "unknown");
    }

    #[test]
    fn files_tell_where_cpuid_cannot() {
        let find = |files: &[(&str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root::join(dir.path(), path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            hypervisor(dir.path())
        };
        let flags = ("/proc/cpuinfo", "processor: 0\nflags\t\t: fpu hypervisor\n");
        let bare = ("/proc/cpuinfo", "processor: 0\nflags\t\t: fpu vme\n");
        let arm = ("/proc/cpuinfo", "processor: 0\nFeatures\t: fp\n");
        assert_eq!(find(&[bare]), "none");
        assert_eq!(find(&[flags]), "unknown");
        assert_eq!(find(&[arm]), "unknown");
        assert_eq!(find(&[flags, ("/sys/hypervisor/type", "xen\n")]), "xen");
        let product = ("/sys/class/dmi/id/product_name", "Standard PC (Q35)\n");
        let vendor = ("/sys/class/dmi/id/sys_vendor", "QEMU\n");
        assert_eq!(find(&[arm, product, vendor]), "qemu");
        let tree = ("/proc/device-tree/hypervisor/compatible", "linux,kvm\0");
        assert_eq!(find(&[arm, tree]), "kvm");
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn cpuid_and_cpuinfo_agree() {
        let Ok(cpuinfo) = std::fs::read_to_string("/proc/cpuinfo") else {
            eprintln!("skipped: no /proc/cpuinfo");
            return;
        };
        assert_eq!(x86_flag(&cpuinfo), Some(cpuid().unwrap() != "none"));
    }
}
