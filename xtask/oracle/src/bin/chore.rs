//! `chore NAME COUNT`: small workloads that no common benchmark offers, each a
//! fixed amount of work.
//!
//! - `spawn`: starts a process that exits at once and waits for it.
//! - `timers`: waits 1 ms in the kernel, in units of its timer tick.
//! - `veth`: creates a pair of virtual network devices and deletes it.

use std::env;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, ExitCode};
use std::time::Duration;

fn spawn(count: u32) -> io::Result<()> {
    let own = env::current_exe()?;
    for _ in 0..count {
        let status = Command::new(&own).arg("nothing").arg("0").status()?;
        if !status.success() {
            return Err(io::Error::other(format!("the child: {status}")));
        }
    }
    Ok(())
}

/// A receive time-out is a `schedule_timeout` of whole jiffies, unlike poll and
/// nanosleep, which use high-resolution timers.
fn timers(count: u32) -> io::Result<()> {
    let (socket, _other) = UnixDatagram::pair()?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    for _ in 0..count {
        match socket.recv(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(io::Error::other("data that nobody sent")),
        }
    }
    Ok(())
}

/// A request to rtnetlink, as bytes.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// `nlmsghdr` and `ifinfomsg`, both without content but type and flags.
    fn new(kind: u16, flags: i32) -> Self {
        let flags = flags as u16 | libc::NLM_F_REQUEST as u16 | libc::NLM_F_ACK as u16;
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 8 + INTERFACE]);
        Self(bytes)
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        let length = (4 + value.len()) as u16;
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.attribute(kind, &inner.0);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Size of `ifinfomsg`.
const INTERFACE: usize = 16;
/// `VETH_INFO_PEER` of linux/veth.h.
const PEER: u16 = 1;

fn create() -> Vec<u8> {
    let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    message.attribute(libc::IFLA_IFNAME, b"chore0\0");
    message.nested(libc::IFLA_LINKINFO, |info| {
        info.attribute(libc::IFLA_INFO_KIND, b"veth");
        info.nested(libc::IFLA_INFO_DATA, |data| {
            data.nested(PEER, |peer| {
                peer.0.extend([0; INTERFACE]);
                peer.attribute(libc::IFLA_IFNAME, b"chore1\0");
            });
        });
    });
    message.finish()
}

fn delete() -> Vec<u8> {
    let mut message = Message::new(libc::RTM_DELLINK, 0);
    message.attribute(libc::IFLA_IFNAME, b"chore0\0");
    message.finish()
}

/// Sends a request and waits for its acknowledgement.
fn request(socket: i32, message: &[u8]) -> io::Result<()> {
    // SAFETY: the buffer is valid for its length.
    if unsafe { libc::send(socket, message.as_ptr().cast(), message.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 512];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::recv(socket, answer.as_mut_ptr().cast(), answer.len(), 0) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    // An `nlmsgerr` follows the 16 bytes of header: a negative errno, or 0.
    let Some(code) = answer[..length as usize].get(16..20) else {
        return Err(io::Error::other("a short answer from rtnetlink"));
    };
    match i32::from_ne_bytes([code[0], code[1], code[2], code[3]]) {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

fn veth(count: u32) -> io::Result<()> {
    // SAFETY: no pointers are passed.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    for _ in 0..count {
        request(socket, &create())?;
        request(socket, &delete())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let count = args.get(1).and_then(|count| count.parse().ok());
    let (Some(name), Some(count)) = (args.first(), count) else {
        eprintln!("error: chore: not `spawn`, `timers` or `veth` with a count");
        return ExitCode::from(2);
    };
    let done = match name.as_str() {
        "nothing" => Ok(()),
        "spawn" => spawn(count),
        "timers" => timers(count),
        "veth" => veth(count),
        other => Err(io::Error::other(format!("no chore `{other}`"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: chore: {name}: {error}");
            ExitCode::FAILURE
        }
    }
}
