//! The backoff after failed lists and watches.

use std::{fmt::Display, time::Duration};

use reknit_apis::internal::random_range;

const INITIAL: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_secs(30);

/// An exponential backoff from half a second to thirty seconds, reduced at random by up to a half, so that many
/// processes do not retry at the same time.
pub(crate) struct Backoff {
    /// The stream of the random numbers.
    stream: String,
    /// The number of failures since the last reset.
    failures: u32,
}

impl Backoff {
    pub(crate) fn new(stream: String) -> Self {
        Self { stream, failures: 0 }
    }

    /// Resets the backoff after a success.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Returns true if nothing has failed since the last reset.
    pub(crate) fn is_fresh(&self) -> bool {
        self.failures == 0
    }

    /// Counts a failure and returns the time to wait, at most `limit`.
    pub(crate) fn next(&mut self, limit: Duration) -> Duration {
        let doubled = INITIAL.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        jittered(&self.stream, doubled.min(MAX).min(limit), 0.5)
    }
}

/// Reduces a wait at random by up to this part of it, so that many processes do not act at the same time. The random
/// number is the next of this stream.
pub fn jittered(stream: impl Display, wait: Duration, part: f64) -> Duration {
    let shorter = wait.as_secs_f64() * random_range(stream, 1.0 - part..=1.0);
    Duration::try_from_secs_f64(shorter).unwrap_or(wait)
}

#[cfg(test)]
mod tests {
    use reknit_apis::internal::{Seeded, within};

    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_limit_and_resets() {
        let mut backoff = Backoff::new("test".into());
        for full in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0].map(Duration::from_secs_f64) {
            let wait = backoff.next(Duration::MAX);
            assert!(full / 2 <= wait && wait <= full, "{wait:?} is not within half of {full:?}");
        }
        assert!(backoff.next(Duration::from_secs(2)) <= Duration::from_secs(2));
        backoff.reset();
        assert!(backoff.next(Duration::MAX) <= INITIAL);
    }

    #[test]
    fn the_backoff_is_randomized() {
        let waits: std::collections::HashSet<_> =
            (0..20).map(|_| Backoff::new("test".into()).next(Duration::MAX)).collect();
        assert!(waits.len() > 1);
    }

    #[test]
    fn the_waits_of_a_simulation_depend_on_its_seed() {
        let waits = |seed| {
            within(&Seeded::environment(seed), || {
                let mut backoff = Backoff::new("test".into());
                [(); 3].map(|()| backoff.next(Duration::MAX))
            })
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn a_wait_is_jittered_by_a_part_of_it_whatever_its_length() {
        let wait = jittered("test", Duration::from_secs(100), 0.1).as_secs_f64();
        assert!((90.0..=100.0).contains(&wait), "{wait}");
        assert_eq!(jittered("test", Duration::ZERO, 0.1), Duration::ZERO);
        assert!(jittered("test", Duration::MAX, 0.1) > Duration::MAX / 2);
    }
}
