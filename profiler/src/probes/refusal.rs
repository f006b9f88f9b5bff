//! What the kernel said when it refused something, in few words.

use std::error::Error as StdError;

use aya::programs::ProgramError;

/// The chain of an error on one line; of a verifier's log the last word.
pub(super) fn brief(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let line = match load_error(cause) {
            Some((errno, log)) => match last_word(&log) {
                Some(word) => format!("BPF_PROG_LOAD: {errno}: {word}"),
                None => format!("BPF_PROG_LOAD: {errno}"),
            },
            None => {
                let text = cause.to_string();
                let line = text.lines().next().unwrap_or_default();
                without_number(line).trim().to_owned()
            }
        };
        if !parts.iter().any(|part| part.contains(&line)) {
            parts.push(line);
        }
    }
    parts.join(": ")
}

/// Everything there is to an error, the verifier's log included.
pub(super) fn full(error: &anyhow::Error) -> String {
    format!("{error:#}").trim_end().to_owned()
}

/// What would make a leg work, as far as the error tells.
pub(super) fn fix(error: &anyhow::Error) -> Option<&'static str> {
    let refused_by_verifier = error
        .chain()
        .filter_map(load_error)
        .any(|(_, log)| last_word(&log).is_some());
    if refused_by_verifier {
        return None;
    }
    // aya asks there for the type of perf's kprobe events.
    if error
        .chain()
        .any(|cause| cause.to_string().contains("event_source/devices/kprobe"))
    {
        return Some("a kernel with CONFIG_KPROBE_EVENTS");
    }
    match errno(error)? {
        // Privileges are checked before any leg is tried.
        libc::EPERM | libc::EACCES => Some(
            "privileges are not what is missing: a security policy refuses it (a patched kernel, \
             a security module, a BPF LSM program) and would have to permit this kind of BPF program",
        ),
        _ => None,
    }
}

/// The errno at the root of an error.
pub(super) fn errno(error: &anyhow::Error) -> Option<i32> {
    error.chain().find_map(|cause| {
        if let Some(ProgramError::LoadError { io_error, .. }) = cause.downcast_ref() {
            return io_error.raw_os_error();
        }
        cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
    })
}

/// The errno's text and the verifier's log of a program that did not load.
fn load_error(cause: &(dyn StdError + 'static)) -> Option<(String, String)> {
    match cause.downcast_ref()? {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => Some((
            without_number(&io_error.to_string()).to_owned(),
            verifier_log.to_string(),
        )),
        _ => None,
    }
}

/// Rust's text for an errno without its number.
fn without_number(text: &str) -> &str {
    match text.split_once(" (os error ") {
        Some((before, after)) if after.ends_with(')') => before,
        _ => text,
    }
}

/// The line of a verifier's log that says why: the last, but for statistics.
fn last_word(log: &str) -> Option<&str> {
    log.lines()
        .map(|line| line.trim().trim_end_matches('\0'))
        .rfind(|line| !line.is_empty() && !is_statistics(line))
}

fn is_statistics(line: &str) -> bool {
    [
        "processed ",
        "verification time ",
        "stack depth ",
        "mark_precise",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::anyhow;
    use aya_obj::VerifierLog;

    use super::*;

    fn refused(errno: i32, log: &str) -> anyhow::Error {
        ProgramError::LoadError {
            io_error: io::Error::from_raw_os_error(errno),
            verifier_log: VerifierLog::new(log.to_owned()),
        }
        .into()
    }

    #[test]
    fn a_refusal_before_the_verifier_is_the_errno() {
        let error = refused(libc::EPERM, "");
        assert_eq!(brief(&error), "BPF_PROG_LOAD: Operation not permitted");
        assert_eq!(errno(&error), Some(libc::EPERM));
        assert!(fix(&error).unwrap().contains("security policy"));
    }

    #[test]
    fn of_a_verifier_log_the_reason_is_told_and_privileges_are_not_blamed() {
        let log = "0: R1=ctx() R10=fp0\n; some source\n3: (79) r6 = *(u64 *)(r1 +32)\n\
                   invalid bpf_context access off=32 size=8\n\
                   processed 4 insns (limit 1000000) max_states_per_insn 0\n";
        let error = refused(libc::EACCES, log).context("switch");
        assert_eq!(
            brief(&error),
            "switch: BPF_PROG_LOAD: Permission denied: invalid bpf_context access off=32 size=8"
        );
        assert_eq!(fix(&error), None);
        assert!(full(&error).contains("r6 = *(u64 *)(r1 +32)"));
    }

    #[test]
    fn an_error_is_told_on_one_line_without_repeats() {
        let repeated = anyhow!("no such thing").context("reading: no such thing\nat all");
        assert_eq!(brief(&repeated), "reading: no such thing");
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        let missing =
            anyhow::Error::new(missing).context("`/sys/bus/event_source/devices/kprobe/type`");
        assert_eq!(
            brief(&missing),
            "`/sys/bus/event_source/devices/kprobe/type`: No such file or directory"
        );
        assert_eq!(fix(&missing), Some("a kernel with CONFIG_KPROBE_EVENTS"));
        assert_eq!(fix(&anyhow!("anything")), None);
    }
}
