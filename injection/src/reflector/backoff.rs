//! The backoff after failed lists and watches.

use std::time::Duration;

const INITIAL: Duration = Duration::from_millis(500);
const MAX: Duration = Duration::from_secs(30);

/// An exponential backoff from half a second to thirty seconds, reduced at random by up to a half, so that many
/// processes do not retry at the same time. The field is the number of failures since the last reset.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// Resets the backoff after a success.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Returns true if nothing has failed since the last reset.
    pub(crate) fn is_fresh(&self) -> bool {
        self.0 == 0
    }

    /// Counts a failure and returns the time to wait, at most `limit`.
    pub(crate) fn next(&mut self, limit: Duration) -> Duration {
        let doubled = INITIAL.saturating_mul(1 << self.0.min(16));
        self.0 = self.0.saturating_add(1);
        jittered(doubled.min(MAX).min(limit), 0.5)
    }
}

/// Reduces a wait at random by up to this part of it, so that many processes do not act at the same time.
pub fn jittered(wait: Duration, part: f64) -> Duration {
    let shorter = wait.as_secs_f64() * rand::random_range(1.0 - part..=1.0);
    Duration::try_from_secs_f64(shorter).unwrap_or(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_limit_and_resets() {
        let mut backoff = Backoff::default();
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
            (0..20).map(|_| Backoff::default().next(Duration::MAX)).collect();
        assert!(waits.len() > 1);
    }

    #[test]
    fn a_wait_is_jittered_by_a_part_of_it_whatever_its_length() {
        let wait = jittered(Duration::from_secs(100), 0.1).as_secs_f64();
        assert!((90.0..=100.0).contains(&wait), "{wait}");
        assert_eq!(jittered(Duration::ZERO, 0.1), Duration::ZERO);
        assert!(jittered(Duration::MAX, 0.1) > Duration::MAX / 2);
    }
}
