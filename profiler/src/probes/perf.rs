//! The sampler's perf events.
//!
//! Opened here rather than by aya, which leaves them without close-on-exec (a
//! workload would inherit the sampler) and drops their descriptors, through
//! which throttling is read.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use aya_obj::generated::{
    PERF_EVENT_IOC_DISABLE, PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC,
    perf_event_attr, perf_event_mmap_page, perf_hw_id, perf_sw_ids, perf_type_id,
};

use crate::recording::Evidence;

/// What drives the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The hardware's cycle counter, whose overflow is an NMI.
    Cycles,
    /// A high-resolution timer, whose interrupt waits while interrupts are off.
    CpuClock,
}

impl Event {
    /// The name perf has for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }

    /// What its samples are evidence of.
    pub const fn evidence(self) -> Evidence {
        match self {
            Self::Cycles => Evidence::SampledNmi,
            Self::CpuClock => Evidence::SampledTimer,
        }
    }
}

/// The system call, so that machines that are not at hand can be played.
pub trait Opener {
    /// Opens a disabled event of `hz` samples a second on `cpu`.
    fn open(&self, event: Event, cpu: u32, hz: u64) -> io::Result<OwnedFd>;
}

/// The running kernel.
pub struct Kernel;

impl Opener for Kernel {
    fn open(&self, event: Event, cpu: u32, hz: u64) -> io::Result<OwnedFd> {
        // SAFETY: the structure is plain numbers, for which zero means unset.
        let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
        attr.size = size_of::<perf_event_attr>() as u32;
        (attr.type_, attr.config) = match event {
            Event::Cycles => (
                perf_type_id::PERF_TYPE_HARDWARE as u32,
                perf_hw_id::PERF_COUNT_HW_CPU_CYCLES as u64,
            ),
            Event::CpuClock => (
                perf_type_id::PERF_TYPE_SOFTWARE as u32,
                perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK as u64,
            ),
        };
        attr.set_freq(1);
        attr.__bindgen_anon_1.sample_freq = hz;
        attr.set_disabled(1);
        // SAFETY: `attr` is a valid attribute structure of the size it states.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                -1,
                cpu as libc::c_int,
                -1,
                libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor the kernel just made for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// Why the hardware event is not used, by the error of opening it; `None` when
/// the error is not about the hardware.
fn no_hardware(error: &io::Error) -> Option<String> {
    let reason = match error.raw_os_error()? {
        libc::ENOENT => "no PMU driver knows the event",
        libc::EOPNOTSUPP => "the PMU cannot sample",
        libc::ENODEV | libc::ENXIO => "no PMU",
        libc::EINVAL => "the PMU refuses the event",
        _ => return None,
    };
    Some(format!("cycles: {reason} ({error})"))
}

/// The event in use, a descriptor of it for each CPU, and why it is not the
/// hardware's.
pub type Opened = (Event, Vec<(u32, OwnedFd)>, Option<String>);

/// Opens one event on each of `cpus`: the hardware's where it works on all of
/// them, else the timer's. Returns also why it is not the hardware's.
///
/// # Errors
///
/// The first CPU's error when the timer's event cannot be opened either, or the
/// hardware's when it is about privileges or limits.
pub fn open_all(opener: &dyn Opener, cpus: &[u32], hz: u64) -> Result<Opened, (u32, io::Error)> {
    match open_each(opener, Event::Cycles, cpus, hz) {
        Ok(fds) => Ok((Event::Cycles, fds, None)),
        Err((cpu, error)) => {
            let why = no_hardware(&error).ok_or((cpu, error))?;
            let fds = open_each(opener, Event::CpuClock, cpus, hz)?;
            Ok((Event::CpuClock, fds, Some(why)))
        }
    }
}

fn open_each(
    opener: &dyn Opener,
    event: Event,
    cpus: &[u32],
    hz: u64,
) -> Result<Vec<(u32, OwnedFd)>, (u32, io::Error)> {
    cpus.iter()
        .map(|&cpu| match opener.open(event, cpu, hz) {
            Ok(fd) => Ok((cpu, fd)),
            Err(error) => Err((cpu, error)),
        })
        .collect()
}

/// A sampler on one CPU. Dropping it detaches the program.
#[derive(Debug)]
pub struct Sampler {
    /// Unmapped before the event is closed.
    throttle: Option<ThrottleRing>,
    fd: OwnedFd,
}

impl Sampler {
    /// Gives the event its program and its ring of throttling records; the event
    /// stays disabled.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the program. Without the ring (no memory may be
    /// locked) throttling goes unseen, which is no error.
    pub fn attach(fd: OwnedFd, program: BorrowedFd<'_>) -> io::Result<Self> {
        ioctl(&fd, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
        Ok(Self {
            throttle: ThrottleRing::new(&fd).ok(),
            fd,
        })
    }

    /// Starts sampling.
    ///
    /// # Errors
    ///
    /// `ENODEV` and the like when the CPU has gone.
    pub fn enable(&self) -> io::Result<()> {
        ioctl(&self.fd, PERF_EVENT_IOC_ENABLE, 0)
    }

    /// Stops sampling.
    ///
    /// # Errors
    ///
    /// As for [`enable`](Self::enable).
    pub fn disable(&self) -> io::Result<()> {
        ioctl(&self.fd, PERF_EVENT_IOC_DISABLE, 0)
    }

    /// How often the kernel throttled this sampler since it was last asked;
    /// `None` when that cannot be seen.
    pub fn throttled(&mut self) -> Option<u64> {
        self.throttle.as_mut().map(ThrottleRing::drain)
    }
}

pub(super) fn ioctl(fd: &OwnedFd, request: u32, argument: i32) -> io::Result<()> {
    // SAFETY: these requests take an integer and touch no memory of ours.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

const PERF_RECORD_THROTTLE: u32 = 5;

/// The perf ring buffer of a sampler. The program returns 0, so no samples go
/// there and one page holds what is left: throttling.
#[derive(Debug)]
struct ThrottleRing {
    control: NonNull<perf_event_mmap_page>,
    page: usize,
}

// SAFETY: the mapping belongs to this value and is accessed through it alone.
unsafe impl Send for ThrottleRing {}

impl ThrottleRing {
    fn new(fd: &OwnedFd) -> io::Result<Self> {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // SAFETY: a new shared mapping of the event, checked below.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let control = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { control, page })
    }

    fn drain(&mut self) -> u64 {
        // SAFETY: the first page of the mapping is the control page; the kernel
        // writes `data_head`, we write `data_tail` (linux/perf_event.h).
        let (head, tail) = unsafe {
            let control = self.control.as_ptr();
            (
                (&raw const (*control).data_head).read_volatile(),
                (&raw const (*control).data_tail).read_volatile(),
            )
        };
        fence(Ordering::Acquire);
        let mut throttled = 0;
        let mut at = tail;
        while at < head {
            // Records are 8-aligned, so their 8-byte headers never wrap.
            let offset = self.page + at as usize % self.page;
            // SAFETY: within the second page of the mapping, and 8-aligned.
            let header: [u32; 2] = unsafe {
                self.control
                    .as_ptr()
                    .byte_add(offset)
                    .cast::<[u32; 2]>()
                    .read_volatile()
            };
            let [kind, misc_size] = header;
            throttled += u64::from(kind == PERF_RECORD_THROTTLE);
            at += u64::from(misc_size >> 16).max(8);
        }
        fence(Ordering::Release);
        // SAFETY: as above.
        unsafe {
            (&raw mut (*self.control.as_ptr()).data_tail).write_volatile(head);
        }
        throttled
    }
}

impl Drop for ThrottleRing {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, with the same size.
        unsafe { libc::munmap(self.control.as_ptr().cast(), 2 * self.page) };
    }
}

/// The highest rate `perf_event_open` accepts, samples a second.
///
/// # Errors
///
/// When `/proc/sys/kernel/perf_event_max_sample_rate` cannot be read.
pub fn max_sample_rate() -> io::Result<u64> {
    use std::io::Read as _;
    let mut text = String::new();
    File::open("/proc/sys/kernel/perf_event_max_sample_rate")?.read_to_string(&mut text)?;
    text.trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A machine on which each event fails with an errno, or works.
    struct Fake {
        cycles: Option<i32>,
        cpu_clock: Option<i32>,
        opened: RefCell<Vec<(Event, u32)>>,
    }

    impl Opener for Fake {
        fn open(&self, event: Event, cpu: u32, _hz: u64) -> io::Result<OwnedFd> {
            let errno = match event {
                Event::Cycles => self.cycles,
                Event::CpuClock => self.cpu_clock,
            };
            match errno {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => {
                    self.opened.borrow_mut().push((event, cpu));
                    Ok(File::open("/dev/null")?.into())
                }
            }
        }
    }

    fn fake(cycles: Option<i32>, cpu_clock: Option<i32>) -> Fake {
        Fake {
            cycles,
            cpu_clock,
            opened: RefCell::default(),
        }
    }

    #[test]
    fn a_pmu_is_used_on_every_cpu() {
        let machine = fake(None, None);
        let (event, fds, why) = open_all(&machine, &[0, 2], 997).unwrap();
        assert_eq!((event, fds.len(), why), (Event::Cycles, 2, None));
        assert_eq!(
            *machine.opened.borrow(),
            [(Event::Cycles, 0), (Event::Cycles, 2)]
        );
        assert_eq!(event.evidence(), Evidence::SampledNmi);
    }

    #[test]
    fn every_way_a_pmu_can_be_missing_falls_back_to_the_timer() {
        for errno in [
            libc::ENOENT,
            libc::EOPNOTSUPP,
            libc::ENODEV,
            libc::ENXIO,
            libc::EINVAL,
        ] {
            let (event, fds, why) = open_all(&fake(Some(errno), None), &[0, 1], 997).unwrap();
            assert_eq!((event, fds.len()), (Event::CpuClock, 2));
            assert!(why.unwrap().starts_with("cycles: "), "errno {errno}");
        }
    }

    #[test]
    fn privileges_and_limits_are_not_a_missing_pmu() {
        for errno in [libc::EACCES, libc::EPERM, libc::EMFILE, libc::EBUSY] {
            let (cpu, error) = open_all(&fake(Some(errno), None), &[3], 997).unwrap_err();
            assert_eq!((cpu, error.raw_os_error()), (3, Some(errno)));
        }
    }

    #[test]
    fn without_a_timer_there_is_no_sampler() {
        let machine = fake(Some(libc::ENOENT), Some(libc::ENOSYS));
        let (_, error) = open_all(&machine, &[0], 997).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
