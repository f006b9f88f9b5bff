//! What may be attached, in one place.
//!
//! A kernel that accepts an attachment can still hang on it. So probes on kernel
//! functions are attached by allow-list: a target, a method, and the kernel lines
//! on which the virtual-machine matrix has shown it to be safe. Tracepoints are
//! made to be attached to and are free.

use crate::kernel::Release;

/// A way to attach to a kernel function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// fentry and fexit: a BPF trampoline.
    Fentry,
    /// kprobe and kretprobe.
    Kprobe,
}

impl Method {
    const fn name(self) -> &'static str {
        match self {
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
        }
    }
}

/// Accepted by some kernels, and then the machine hangs. Never tried, on any
/// kernel, whatever the allow-list says.
const DANGEROUS: [(Method, &str); 3] = [
    // Seen on 6.1; refused since 6.4 (commit a0c109dcafb1).
    (Method::Fentry, "__rcu_read_lock"),
    (Method::Fentry, "__rcu_read_unlock"),
    // Seen on 7.1 and 7.3.
    (Method::Fentry, "rcu_read_unlock_special"),
];

/// Lines on which the matrix, or the boots its table comes from, attached both
/// methods to rcu_barrier and called it.
const RCU_BARRIER_LINES: [Release; 10] = [
    Release::new(5, 10),
    Release::new(6, 1),
    Release::new(6, 12),
    Release::new(6, 16),
    Release::new(6, 17),
    Release::new(6, 18),
    Release::new(6, 19),
    Release::new(7, 0),
    Release::new(7, 1),
    Release::new(7, 3),
];

/// Lines on which the matrix attached both methods to the other blocking RCU
/// calls and called them.
const SYNCHRONIZE_LINES: [Release; 5] = [
    Release::new(5, 10),
    Release::new(6, 1),
    Release::new(6, 12),
    Release::new(6, 18),
    Release::new(7, 3),
];

/// Lines on which virtual machines of two CPUs armed execution breakpoints at
/// checks, and at the places that call them, some thousand times each, with
/// hundreds of thousands of hits, beside probes that patch kernel text.
const BREAKPOINT_LINES: [Release; 5] = [
    Release::new(5, 10),
    Release::new(6, 1),
    Release::new(6, 12),
    Release::new(6, 18),
    Release::new(7, 3),
];

/// The same of realtime kernels.
const REALTIME_BREAKPOINT_LINES: [Release; 2] = [Release::new(6, 1), Release::new(7, 3)];

/// Whether execution breakpoints may be put into kernel text on `release`; if
/// not, why. The kernel itself refuses the text that handles them.
///
/// # Errors
///
/// The reason, for the status table.
pub fn breakpoints(release: Option<Release>, realtime: bool) -> Result<(), String> {
    // Since 5.8 they are off while one is handled.
    const FIRST: Release = Release::new(5, 8);
    let (lines, kind) = if realtime {
        (&REALTIME_BREAKPOINT_LINES[..], "realtime Linux")
    } else {
        (&BREAKPOINT_LINES[..], "Linux")
    };
    match release {
        Some(release) if lines.contains(&release) => Ok(()),
        Some(release) if release < FIRST => Err(format!(
            "breakpoint: before Linux {}.{} they can meet themselves",
            FIRST.major, FIRST.minor
        )),
        Some(Release { major, minor }) => Err(format!(
            "breakpoint: not proven safe on {kind} {major}.{minor}"
        )),
        None => Err("breakpoint: needs a kernel release that can be read".to_owned()),
    }
}

/// The allow-list.
const ALLOWED: [(Method, &str, &[Release]); 10] = [
    (Method::Fentry, "rcu_barrier", &RCU_BARRIER_LINES),
    (Method::Kprobe, "rcu_barrier", &RCU_BARRIER_LINES),
    (Method::Fentry, "synchronize_rcu", &SYNCHRONIZE_LINES),
    (Method::Kprobe, "synchronize_rcu", &SYNCHRONIZE_LINES),
    (
        Method::Fentry,
        "synchronize_rcu_expedited",
        &SYNCHRONIZE_LINES,
    ),
    (
        Method::Kprobe,
        "synchronize_rcu_expedited",
        &SYNCHRONIZE_LINES,
    ),
    (Method::Fentry, "synchronize_srcu", &SYNCHRONIZE_LINES),
    (Method::Kprobe, "synchronize_srcu", &SYNCHRONIZE_LINES),
    (
        Method::Fentry,
        "synchronize_srcu_expedited",
        &SYNCHRONIZE_LINES,
    ),
    (
        Method::Kprobe,
        "synchronize_srcu_expedited",
        &SYNCHRONIZE_LINES,
    ),
];

/// Whether `target` may be attached to by `method` on `release`; if not, why.
///
/// # Errors
///
/// The reason, for the status table.
pub fn check(method: Method, target: &str, release: Option<Release>) -> Result<(), String> {
    let name = method.name();
    if DANGEROUS.contains(&(method, target)) {
        return Err(format!(
            "{name} on {target} hangs some kernels and is never tried"
        ));
    }
    let Some((_, _, lines)) = ALLOWED
        .iter()
        .find(|(m, t, _)| (*m, *t) == (method, target))
    else {
        return Err(format!("{name} on {target} is not on the allow-list"));
    };
    match release {
        Some(release) if lines.contains(&release) => Ok(()),
        Some(Release { major, minor }) => Err(format!(
            "{name} on {target} is not proven safe on Linux {major}.{minor}"
        )),
        None => Err(format!(
            "{name} on {target} needs a kernel release that can be read"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_danger_list_is_refused_on_every_line() {
        for (method, target) in DANGEROUS {
            for major in 4..9 {
                for minor in 0..25 {
                    let refusal = check(method, target, Some(Release::new(major, minor)));
                    assert!(refusal.unwrap_err().contains("never tried"));
                }
            }
        }
    }

    #[test]
    fn breakpoints_are_armed_on_proven_lines_only() {
        let line = |major, minor| Some(Release::new(major, minor));
        assert_eq!(breakpoints(line(6, 1), false), Ok(()));
        assert_eq!(breakpoints(line(6, 1), true), Ok(()));
        assert!(breakpoints(line(6, 12), true).is_err());
        assert!(breakpoints(line(6, 14), false).is_err());
        let old = breakpoints(line(5, 4), false).unwrap_err();
        assert!(old.contains("meet themselves"), "{old}");
        assert!(breakpoints(None, false).is_err());
    }

    #[test]
    fn nothing_dangerous_is_on_the_allow_list() {
        for (method, target, _) in ALLOWED {
            assert!(!DANGEROUS.contains(&(method, target)), "{target}");
        }
    }

    #[test]
    fn only_listed_targets_on_proven_lines_pass() {
        let line = |major, minor| Some(Release::new(major, minor));
        assert_eq!(check(Method::Fentry, "rcu_barrier", line(6, 1)), Ok(()));
        assert_eq!(check(Method::Kprobe, "rcu_barrier", line(7, 3)), Ok(()));
        assert!(check(Method::Fentry, "rcu_barrier", line(6, 6)).is_err());
        assert!(check(Method::Fentry, "rcu_barrier", None).is_err());
        // Ordinary functions that nobody asked for.
        assert!(check(Method::Kprobe, "schedule", line(6, 1)).is_err());
        assert!(check(Method::Kprobe, "__rcu_read_lock", line(6, 1)).is_err());
    }
}
