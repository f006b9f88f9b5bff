//! Execution breakpoints: the processor's debug registers, by perf events. They
//! reach kernel text that takes no other probe, change no byte of it, and are
//! moved from place to place in some microseconds.
//!
//! The kernel refuses (EINVAL) what would hang it: `.noinstr.text`, entry text
//! and what is on the kprobe blacklist (arch/x86/kernel/hw_breakpoint.c,
//! `arch_build_bp_info`); without CONFIG_KPROBES it refuses all of its text.
//! Breakpoints are off while one is being handled (`local_db_save`, since 5.8).
//! Needs CAP_SYS_ADMIN.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use aya_obj::generated::{
    HW_BREAKPOINT_X, PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE,
    PERF_EVENT_IOC_MODIFY_ATTRIBUTES, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC,
    perf_event_attr, perf_type_id,
};
use profiler_ebpf::BREAKPOINTS;

use super::perf::ioctl;

/// The breakpoints of one CPU that are free, armed and disarmed together.
/// Dropping it gives them back.
pub struct Breakpoints {
    /// The first is the group's leader: with it off, all are.
    events: Vec<(OwnedFd, perf_event_attr)>,
}

// The attributes are plain numbers; the addresses among them are not followed.
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Breakpoints {}

impl Breakpoints {
    /// Takes the breakpoints of `cpu` that nobody has, to run `program` at each
    /// hit. They are disarmed, and aimed at `places`, as many as are needed.
    ///
    /// # Errors
    ///
    /// When there is none: `ENOSPC` when others have all of them, `EINVAL` for a
    /// place that may have none, `EACCES` without the privilege, `EOPNOTSUPP`
    /// where the machine has no such breakpoints.
    pub fn open(cpu: u32, program: BorrowedFd<'_>, places: &[u64]) -> io::Result<Self> {
        let mut events: Vec<(OwnedFd, perf_event_attr)> = Vec::new();
        for &place in places.iter().take(BREAKPOINTS) {
            let leader = events.first().map(|(fd, _)| fd.as_raw_fd());
            match open(cpu, place, leader) {
                Ok((fd, attr)) => {
                    ioctl(&fd, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
                    events.push((fd, attr));
                }
                // Fewer will do.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && leader.is_some() => {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if events.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { events })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.events.len()
    }

    /// Aims one of them, while they are disarmed.
    ///
    /// # Errors
    ///
    /// `EINVAL` when there may be no breakpoint at that place.
    pub fn aim(&mut self, index: usize, place: u64) -> io::Result<()> {
        let Some((fd, attr)) = self.events.get_mut(index) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut wanted = *attr;
        wanted.__bindgen_anon_3.bp_addr = place;
        // SAFETY: the attributes are valid for the size they state.
        let status = unsafe {
            libc::ioctl(
                fd.as_raw_fd(),
                PERF_EVENT_IOC_MODIFY_ATTRIBUTES as _,
                &raw const wanted,
            )
        };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        *attr = wanted;
        Ok(())
    }

    /// Arms all of them.
    ///
    /// # Errors
    ///
    /// `ENODEV` and the like when the CPU has gone.
    pub fn arm(&self) -> io::Result<()> {
        ioctl(&self.events[0].0, PERF_EVENT_IOC_ENABLE, 0)
    }

    /// Disarms all of them.
    ///
    /// # Errors
    ///
    /// As for [`arm`](Self::arm).
    pub fn disarm(&self) -> io::Result<()> {
        ioctl(&self.events[0].0, PERF_EVENT_IOC_DISABLE, 0)
    }
}

fn open(cpu: u32, place: u64, leader: Option<i32>) -> io::Result<(OwnedFd, perf_event_attr)> {
    // SAFETY: the structure is plain numbers, for which zero means unset.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.size = size_of::<perf_event_attr>() as u32;
    attr.type_ = perf_type_id::PERF_TYPE_BREAKPOINT as u32;
    attr.bp_type = HW_BREAKPOINT_X;
    attr.__bindgen_anon_3.bp_addr = place;
    // What an execution breakpoint's length has to be: sizeof(long).
    attr.__bindgen_anon_4.bp_len = size_of::<libc::c_long>() as u64;
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_disabled(u64::from(leader.is_none()));
    // SAFETY: `attr` is a valid attribute structure of the size it states.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            -1,
            cpu as libc::c_int,
            leader.unwrap_or(-1),
            libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor the kernel just made for us.
    Ok((unsafe { OwnedFd::from_raw_fd(fd as i32) }, attr))
}
