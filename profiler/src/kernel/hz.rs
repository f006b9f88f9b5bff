//! `CONFIG_HZ`, and how to see it on a kernel whose configuration cannot be read.

use std::path::Path;

use super::{Config, root};

/// Rates that `kernel/Kconfig.hz` and the architectures' own Kconfig files offer.
const RATES: [u32; 12] = [24, 48, 64, 100, 128, 200, 250, 256, 300, 500, 1000, 1024];

/// The tick does not run from the first moment of the monotonic clock, and jiffies
/// are caught up late on an idle machine: seconds to allow for.
const SLACK_S: f64 = 2.0;

/// The tick rate: from the configuration, else from `/proc/timer_list`, which only
/// root may read. `None` when neither says.
pub fn find_hz(root: &Path, config: &Config) -> Option<u32> {
    let configured = config.get("CONFIG_HZ").and_then(|hz| hz.parse().ok());
    configured.filter(|&hz| hz > 0).or_else(|| {
        let text = root::read(root, "/proc/timer_list").ok()?;
        hz_from_timer_list(&String::from_utf8_lossy(&text))
    })
}

/// Infers HZ from a `now at N nsecs` line and the `jiffies: N` behind it.
///
/// Jiffies start at -300 * HZ, cut to 32 bits (`INITIAL_JIFFIES`,
/// include/linux/jiffies.h), at the same time as the clock; so both give HZ, unless
/// the machine has been up for about 300 seconds, when jiffies are near 2^32
/// whatever the rate.
fn hz_from_timer_list(text: &str) -> Option<u32> {
    let now = text.lines().find_map(|line| {
        let now = line.trim().strip_prefix("now at ")?;
        now.strip_suffix(" nsecs")?.parse::<u64>().ok()
    })?;
    // The CPU that updated them last is the one to ask.
    let jiffies = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("jiffies: ")?.parse::<u64>().ok())
        .max()?;
    let uptime = now as f64 / 1e9;
    let ticks = jiffies as f64 - 4_294_967_296.0;
    let mut fitting = RATES.into_iter().filter(|&hz| {
        let seconds = ticks / f64::from(hz) + 300.0;
        (seconds - uptime).abs() < SLACK_S
    });
    let hz = fitting.next()?;
    fitting.next().is_none().then_some(hz)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIMER_LIST: &str = include_str!("../../tests/fixtures/kernel/timer_list");

    #[test]
    fn the_configuration_decides() {
        let config = Config::parse("CONFIG_HZ=1000\nCONFIG_HZ_1000=y");
        assert_eq!(find_hz(Path::new("/nonexistent"), &config), Some(1000));
        assert_eq!(find_hz(Path::new("/nonexistent"), &Config::default()), None);
    }

    #[test]
    fn the_timer_list_of_a_kernel_with_hz_250_gives_250() {
        assert_eq!(hz_from_timer_list(TIMER_LIST), Some(250));
    }

    #[test]
    fn near_the_wrap_of_jiffies_there_is_no_answer() {
        let at = |hz: u64, ms: u64| {
            let jiffies = (1u64 << 32) - 300 * hz + hz * ms / 1000;
            hz_from_timer_list(&format!(
                "Timer List Version: v0.10\nnow at {} nsecs\n\ncpu: 0\njiffies: {jiffies}\n",
                ms * 1_000_000 + 40_000_000
            ))
        };
        for hz in [100, 250, 300, 1000] {
            assert_eq!(at(hz, 3_600_000), Some(hz as u32));
            assert_eq!(at(hz, 120_000), Some(hz as u32));
            assert_eq!(at(hz, 300_500), None);
        }
    }

    proptest! {
        #[test]
        fn hostile_text_never_panics(now in any::<u64>(), jiffies in any::<u64>(), junk in "\\PC{0,40}") {
            let _ = hz_from_timer_list(&format!("{junk}\nnow at {now} nsecs\njiffies: {jiffies}\n{junk}"));
            let _ = hz_from_timer_list(&junk);
        }
    }
}
