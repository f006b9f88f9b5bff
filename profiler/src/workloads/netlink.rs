//! The few rtnetlink requests that the veth benchmark makes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

/// Attribute of `IFLA_INFO_DATA` that describes the other end
/// (include/uapi/linux/veth.h).
const VETH_INFO_PEER: u16 = 1;
const NLMSG_HDR: usize = 16;

/// A socket to the kernel's network configuration.
pub(super) struct Netlink {
    socket: File,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the current network namespace.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_ROUTE,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) }.into();
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Creates a pair of virtual Ethernet devices.
    pub(super) fn create_veth(&mut self, name: &str, peer: &str) -> io::Result<()> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mut message = Message::new(libc::RTM_NEWLINK, flags, false);
        message.name(name);
        message.nest(libc::IFLA_LINKINFO, |info| {
            info.attribute(libc::IFLA_INFO_KIND, b"veth");
            info.nest(libc::IFLA_INFO_DATA, |data| {
                data.nest(VETH_INFO_PEER, |end| {
                    end.interface(false);
                    end.name(peer);
                });
            });
        });
        self.request(message)
    }

    /// Brings a device up.
    pub(super) fn set_up(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_NEWLINK, 0, true);
        message.name(name);
        self.request(message)
    }

    /// Deletes a device, and with it the other end of its pair.
    pub(super) fn delete(&mut self, name: &str) -> io::Result<()> {
        let mut message = Message::new(libc::RTM_DELLINK, 0, false);
        message.name(name);
        self.request(message)
    }

    /// Sends a request and waits for the kernel's answer to it.
    fn request(&mut self, message: Message) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        self.socket.write_all(&message.seal(self.sequence))?;
        loop {
            let mut answer = [0; 4096];
            let len = match self.socket.read(&mut answer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            };
            if let Some(result) = acknowledgement(&answer[..len], self.sequence) {
                return result;
            }
        }
    }
}

/// What `answer` says about request `sequence`, if that is what it is about.
fn acknowledgement(answer: &[u8], sequence: u32) -> Option<io::Result<()>> {
    let word = |at: usize| {
        let bytes = answer.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let kind = u16::try_from(word(4)? & 0xffff).ok()?;
    // On both byte orders the type is the first half of that word.
    let kind = if cfg!(target_endian = "little") {
        kind
    } else {
        u16::try_from(word(4)? >> 16).ok()?
    };
    if i32::from(kind) != libc::NLMSG_ERROR || word(8)? != sequence {
        return None;
    }
    Some(match word(NLMSG_HDR)?.cast_signed() {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.wrapping_neg())),
    })
}

/// A request being put together.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: i32, up: bool) -> Self {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut message = Self(vec![0; NLMSG_HDR]);
        message.0[4..6].copy_from_slice(&kind.to_ne_bytes());
        message.0[6..8].copy_from_slice(&flags.to_ne_bytes());
        message.interface(up);
        message
    }

    /// A `struct ifinfomsg` that names no index.
    fn interface(&mut self, up: bool) {
        let flags = if up { libc::IFF_UP as u32 } else { 0 };
        self.0.extend([0; 8]);
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
    }

    fn name(&mut self, name: &str) {
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        self.attribute(libc::IFLA_IFNAME, &bytes);
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nest(kind, |message| message.0.extend(value));
    }

    fn nest(&mut self, kind: u16, contents: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 4]);
        contents(self);
        let len = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn seal(mut self, sequence: u32) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn attributes_are_padded_and_nested() {
        let mut message = Message::new(libc::RTM_DELLINK, 0, false);
        message.nest(18, |info| info.attribute(1, b"veth1"));
        let bytes = message.seal(7);
        assert_eq!(bytes.len(), 16 + 16 + 4 + 12);
        assert_eq!(bytes[..4], 48_u32.to_ne_bytes());
        // The outer attribute holds the inner one with its padding.
        assert_eq!(bytes[32..34], 16_u16.to_ne_bytes());
        assert_eq!(bytes[36..38], 9_u16.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn any_answer_is_understood_or_passed_over(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = acknowledgement(&bytes, 1);
        }
    }

    #[test]
    fn errors_carry_their_number() {
        let mut answer = [0; 36];
        answer[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        answer[8..12].copy_from_slice(&5_u32.to_ne_bytes());
        assert!(acknowledgement(&answer, 4).is_none());
        assert!(acknowledgement(&answer, 5).unwrap().is_ok());
        answer[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
        let error = acknowledgement(&answer, 5).unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        answer[16..20].copy_from_slice(&i32::MIN.to_ne_bytes());
        assert!(acknowledgement(&answer, 5).unwrap().is_err());
    }
}
