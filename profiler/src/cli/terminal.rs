//! What is known of stdout and stderr, and how errors are printed on it.

use std::env;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};

use crate::error::{hinted, hints};
use crate::report::escape;
use crate::report::text::TextOptions;

/// How to lay text out on `stream`.
pub(super) fn layout<S: AsFd>(stream: &S, callers: usize) -> TextOptions {
    let terminal = stream.as_fd().is_terminal();
    // https://no-color.org: any value but the empty one.
    let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || env::var_os("TERM").is_some_and(|term| term == "dumb");
    TextOptions {
        width: if terminal { width(stream) } else { None },
        color: terminal && !refused,
        callers,
    }
}

/// Columns of a terminal; `COLUMNS` is for the rare one that does not say.
fn width<S: AsFd>(stream: &S) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: `size` is writable and of the type the request fills in.
    let status =
        unsafe { libc::ioctl(stream.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    if status == 0 && size.ws_col > 0 {
        return Some(usize::from(size.ws_col));
    }
    env::var("COLUMNS").ok()?.parse().ok()
}

/// Prints to stdout.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| cannot_print(error.into()))
}

/// Says that stdout took no more.
pub(super) fn cannot_print(error: anyhow::Error) -> anyhow::Error {
    let hint = "what stdout goes to is full or gone; -o or a redirection to another place helps";
    hinted(format!("cannot write to stdout: {error:#}"), [hint])
}

/// Prints an error with its hints.
pub(super) fn print_error(error: &anyhow::Error) {
    let mut text = format!("error: {}\n", one_line(&format!("{error:#}")));
    for hint in hints(error).into_iter().chain(descriptors(error)) {
        text.push_str(&format!("hint: {}\n", one_line(&hint)));
    }
    // Nothing is left to say when the terminal is gone.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Prints what the parser of the command line has to say, in the form of all
/// other errors.
pub(super) fn print_usage_error(error: &clap::Error) {
    let text = error.render().to_string();
    let text = text.replace("\n  tip: ", "\nhint: ").replace(
        "For more information, try '--help'.",
        "hint: --help lists what there is, with examples",
    );
    // Nothing is left to say when the terminal is gone.
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// What helps wherever descriptors ran out.
fn descriptors(error: &anyhow::Error) -> Option<String> {
    let errno = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())?;
    match errno {
        libc::EMFILE => Some(
            "programs, maps and each CPU's sampler take a file descriptor each: ulimit -n 1024"
                .to_owned(),
        ),
        libc::ENFILE => Some("the whole machine is out of them: sysctl fs.file-max".to_owned()),
        _ => None,
    }
}

/// Names in an error come from files and arguments: line by line, nothing in
/// them may reach the terminal as a control sequence.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(escape).collect();
    lines.join("\n  ")
}
