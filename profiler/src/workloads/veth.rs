//! Pairs of virtual Ethernet devices: created, brought up, deleted. A container
//! runtime does it for every container; the deletion waits for RCU.

use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::netlink::Netlink;
use super::{per_operation, print_per_operation};
use crate::error::hinted;
use crate::recording::Metric;

/// Options of the veth benchmark.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Pairs to create and delete, one after the other
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    pub count: u64,
    /// Use the current network namespace instead of a fresh one; a run that is
    /// killed can leave a device behind
    #[arg(long)]
    pub shared_netns: bool,
    /// Make a fresh network namespace for each pair, as for a container
    #[arg(long, conflicts_with = "shared_netns")]
    pub netns_each: bool,
}

/// Runs the benchmark; the metric is microseconds per pair. Needs
/// CAP_NET_ADMIN, and CAP_SYS_ADMIN for the fresh namespace.
///
/// # Errors
/// When the count is 0, a capability is missing, or the kernel has no veth.
pub fn run(args: &Args) -> Result<Metric> {
    if args.count == 0 {
        return Err(hinted(
            "-n 0: nothing to measure",
            ["give -n a number of at least 1"],
        ));
    }
    // A namespace belongs to a thread, and goes with it.
    let elapsed = thread::scope(|scope| {
        scope
            .spawn(|| {
                if !args.shared_netns {
                    fresh_namespace()?;
                }
                if !args.netns_each {
                    return pairs(args.count);
                }
                let begin = Instant::now();
                for at in 0..args.count {
                    // The first has been made; each ends when the next begins.
                    if at > 0 {
                        fresh_namespace()?;
                    }
                    pairs(1)?;
                }
                Ok(begin.elapsed())
            })
            .join()
            .unwrap_or_else(|_| Err(anyhow!("the benchmark's thread panicked")))
    })?;
    Ok(per_operation("time per pair", elapsed, args.count))
}

/// Prints the result in perf's manner.
///
/// # Errors
/// When `out` cannot be written to.
pub fn print(out: &mut dyn Write, args: &Args, metric: &Metric) -> io::Result<()> {
    writeln!(out, "# Running 'veth' benchmark:")?;
    writeln!(
        out,
        "# Created, brought up and deleted {} veth pairs, one after the other\n",
        args.count
    )?;
    print_per_operation(out, metric, args.count)
}

fn fresh_namespace() -> Result<()> {
    // SAFETY: changes only this thread's namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => "run it as root (CAP_SYS_ADMIN), or with --shared-netns",
        Some(libc::EINVAL) => "this kernel has no CONFIG_NET_NS: use --shared-netns",
        _ => "use --shared-netns",
    };
    Err(hinted(
        format!("cannot make a network namespace: {error}"),
        [hint],
    ))
}

fn failed(what: &str, error: &io::Error) -> anyhow::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "run it as root (CAP_NET_ADMIN)",
        Some(libc::EOPNOTSUPP) => "this kernel has no veth (CONFIG_VETH): try `modprobe veth`",
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT) => {
            "this kernel has no rtnetlink (CONFIG_NET)"
        }
        Some(libc::EEXIST) => "a killed run left it: delete it with `ip link del`",
        _ => "`ip link add type veth` says whether veth works here at all",
    };
    hinted(format!("cannot {what}: {error}"), [hint])
}

fn pairs(count: u64) -> Result<Duration> {
    let mut netlink =
        Netlink::open().map_err(|error| failed("open an rtnetlink socket", &error))?;
    // 15 characters are the most; a process number has 7 at most.
    let name = format!("ppv{}a", std::process::id());
    let peer = format!("ppv{}b", std::process::id());
    let begin = Instant::now();
    for _ in 0..count {
        netlink
            .create_veth(&name, &peer)
            .map_err(|error| failed(&format!("create the veth pair {name}"), &error))?;
        let up = netlink
            .set_up(&name)
            .and_then(|()| netlink.set_up(&peer))
            .map_err(|error| failed(&format!("bring the veth pair {name} up"), &error));
        let deleted = netlink
            .delete(&name)
            .map_err(|error| failed(&format!("delete the veth pair {name}"), &error));
        up.and(deleted)?;
    }
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::hints;

    #[test]
    fn nothing_to_do_is_refused() {
        let error = run(&Args {
            count: 0,
            shared_netns: false,
            netns_each: false,
        })
        .unwrap_err();
        assert!(!hints(&error).is_empty(), "{error}");
    }

    #[test]
    fn pairs_come_and_go() {
        let args = Args {
            count: 3,
            shared_netns: false,
            netns_each: false,
        };
        match run(&args) {
            Ok(metric) => assert!(metric.value > 0.0, "{metric:?}"),
            Err(error) => {
                // Without the capabilities, or in a container without veth.
                assert!(!hints(&error).is_empty(), "{error}");
                eprintln!("skipped: {error}");
            }
        }
    }
}
