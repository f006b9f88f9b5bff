//! The calling thread on one CPU, for a while.

use std::io;

/// Words of a CPU set: 8192 CPUs, `NR_CPUS` at its largest.
const WORDS: usize = 128;

/// CPUs as the kernel has them in a set.
type Set = [u64; WORDS];

/// While it lives, the thread that made it stays on one CPU.
#[derive(Debug)]
pub(super) struct Pinned(Set);

impl Pinned {
    /// Moves the calling thread to `cpu`.
    pub(super) fn to(cpu: u32) -> io::Result<Self> {
        let mut before: Set = [0; WORDS];
        // SAFETY: the set is writable and its size is given.
        let status =
            unsafe { libc::sched_getaffinity(0, size_of::<Set>(), before.as_mut_ptr().cast()) };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut only: Set = [0; WORDS];
        let word = only
            .get_mut(cpu as usize / 64)
            .ok_or(io::ErrorKind::InvalidInput)?;
        *word = 1 << (cpu % 64);
        set(&only)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was the kernel's own answer; should all of its CPUs have gone, the
        // thread stays where it is.
        let _ = set(&self.0);
    }
}

fn set(cpus: &Set) -> io::Result<()> {
    // SAFETY: the set is readable and its size is given.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<Set>(), cpus.as_ptr().cast()) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Set {
        let mut set: Set = [0; WORDS];
        // SAFETY: the set is writable and its size is given.
        unsafe { libc::sched_getaffinity(0, size_of::<Set>(), set.as_mut_ptr().cast()) };
        set
    }

    #[test]
    fn the_thread_goes_back_to_where_it_may_be() {
        let before = allowed();
        let word = before.iter().position(|word| *word != 0).unwrap();
        let cpu = word as u32 * 64 + before[word].trailing_zeros();
        let pinned = Pinned::to(cpu).unwrap();
        let during = allowed();
        assert_eq!(during.iter().map(|word| word.count_ones()).sum::<u32>(), 1);
        assert_eq!(during[word], 1 << (cpu % 64));
        drop(pinned);
        assert_eq!(allowed(), before);
        assert!(Pinned::to(u32::MAX).is_err());
        assert_eq!(allowed(), before);
    }
}
