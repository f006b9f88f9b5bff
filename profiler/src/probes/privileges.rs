//! Refusals by the kernel, explained.

use super::refusal;
use crate::error::hinted;

/// Adds hints to an error of loading BPF programs or maps.
pub(super) fn explain(error: anyhow::Error) -> anyhow::Error {
    let hints: &[&str] = match refusal::errno(&error) {
        Some(libc::EPERM | libc::EACCES) => &[
            "BPF programs need root, or CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before 5.8): sudo preemptprof ...",
            "as root this means lockdown=confidentiality, a security module or a container's seccomp filter",
        ],
        Some(libc::ENOSYS) => &["this kernel has no BPF (CONFIG_BPF_SYSCALL)"],
        Some(libc::EINVAL) => &["Linux 5.8 is the oldest kernel with the BPF ring buffer"],
        Some(libc::EMFILE) => {
            &["programs, maps and each CPU's sampler take a file descriptor each: ulimit -n 1024"]
        }
        Some(libc::ENOMEM) => &["less memory is needed with a smaller --ring-size"],
        _ => &[],
    };
    hinted(refusal::brief(&error), hints.iter().copied())
}
