//! How far windows are apart, and how much of the run each stands for.

/// The pause after a window is random up to this at the least.
pub(super) const LEAST_PAUSE_NS: f64 = 200_000.0;
/// Windows after which a change of what they take has come through.
const LATELY: f64 = 32.0;

/// How far windows are apart. It follows from what windows took lately, not from what
/// the last one did: after a window full of hits the workload would else be left alone
/// for as long as it is at the same thing, and a burst of work be seen less than the
/// calm after it. Over longer times the limit holds, and then windows during work that
/// is dear are further apart, and weigh more for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spacing {
    /// What a window takes of the time there is, lately: at the limit, the distance
    /// from one to the next.
    distance_ns: f64,
    /// All that windows took so far.
    due_ns: f64,
    /// The latest pause, on average over chance.
    pause_ns: f64,
}

impl Spacing {
    /// How long to pause when what windows took so far is due to take `due_ns` at the
    /// limit, and `passed_ns` have passed.
    pub(super) fn pause(&mut self, due_ns: f64, passed_ns: f64) -> f64 {
        let took = due_ns - self.due_ns;
        self.due_ns = due_ns;
        // The window that is over counts from the next pause on.
        self.pause_ns = (self.distance_ns + (due_ns - passed_ns) / LATELY).max(0.0);
        self.distance_ns = if self.distance_ns > 0.0 {
            self.distance_ns + (took - self.distance_ns) / LATELY
        } else {
            took
        };
        self.pause_ns
    }

    /// How much of the run the next window stands for: as long as it is since the one
    /// before it.
    pub(super) fn weight(&self) -> f64 {
        self.pause_ns + LEAST_PAUSE_NS / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload that is at work for so long, and then idle for as long. Windows take
    /// more while it is at work: the share of them that meet it, by weight and by
    /// number, and what they took of the limit.
    fn play(turn_ns: f64) -> (f64, f64, f64) {
        let mut spacing = Spacing::default();
        let mut random = fastrand::Rng::with_seed(7);
        let (mut now, mut due) = (0.0, 0.0);
        let (mut met, mut all) = ([0.0; 2], [0.0; 2]);
        while now < 60e9 {
            let at_work = ((now / turn_ns) as u64).is_multiple_of(2);
            for (sum, more) in all.iter_mut().zip([spacing.weight(), 1.0]) {
                *sum += more;
            }
            if at_work {
                for (sum, more) in met.iter_mut().zip([spacing.weight(), 1.0]) {
                    *sum += more;
                }
            }
            due += if at_work { 8e6 } else { 2e6 };
            let pause = spacing.pause(due, now);
            now += 100e3 + 0.5 * pause + random.f64() * (pause + LEAST_PAUSE_NS);
        }
        (met[0] / all[0], met[1] / all[1], due / now)
    }

    #[test]
    fn bursts_are_seen_as_often_as_the_calm_after_them() {
        for turn_ns in [1e6, 10e6, 100e6, 1e9, 5e9] {
            let (by_weight, by_number, spent) = play(turn_ns);
            assert!(
                (by_weight - 0.5).abs() < 0.04,
                "{turn_ns} {by_weight} {by_number}"
            );
            assert!((spent - 1.0).abs() < 0.05, "{turn_ns} {spent}");
        }
        // By number they would not be.
        assert!(play(5e9).1 < 0.3);
    }
}
