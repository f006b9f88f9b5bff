//! `mark CMD...`: runs a command between two marks of the oracle.
//!
//! A mark is the system call sethostname, given the name the host already has.
//! On stderr goes what the guest's own clock says of the window, which under
//! `-icount shift=0` is executed instructions and idle time, 1 ns each.

use std::env;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};
use std::time::Instant;

fn mark() -> io::Result<()> {
    let mut name = [0u8; 65];
    // SAFETY: the buffer is valid for its length, and one byte longer than the
    // longest name the kernel returns, so a zero byte follows the name.
    if unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let length = name.iter().position(|b| *b == 0).unwrap_or(name.len());
    // SAFETY: `name` is valid for `length` bytes.
    if unsafe { libc::sethostname(name.as_ptr().cast(), length) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut args = env::args_os().skip(1);
    let Some(program) = args.next() else {
        eprintln!("error: mark: no command\nhint: mark CMD [ARGS...]");
        return ExitCode::from(125);
    };
    let mut command = Command::new(&program);
    command.args(args);
    if let Err(error) = mark() {
        eprintln!("error: mark: cannot call sethostname: {error}");
        return ExitCode::from(125);
    }
    let start = Instant::now();
    let status = command.status();
    let elapsed = start.elapsed();
    if let Err(error) = mark() {
        eprintln!("error: mark: cannot call sethostname: {error}");
        return ExitCode::from(125);
    }
    eprintln!("mark: guest_ns={}", elapsed.as_nanos());
    match status {
        Ok(status) => {
            let code = status
                .code()
                .or_else(|| status.signal().map(|signal| 128 + signal))
                .and_then(|code| u8::try_from(code).ok());
            ExitCode::from(code.unwrap_or(125))
        }
        Err(error) => {
            eprintln!("error: mark: cannot run {}: {error}", program.display());
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            })
        }
    }
}
