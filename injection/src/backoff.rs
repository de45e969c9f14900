//! How long to wait after a failure.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Doubles with each failure in a row, from half a second to thirty, less up to a half of it by chance, so that a
/// thousand processes do not all come back at once.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// All is well: the next failure is the first again.
    pub(crate) fn reset(&mut self) {
        self.0 = 0;
    }

    /// Whether nothing has failed since it was well.
    pub(crate) fn is_fresh(&self) -> bool {
        self.0 == 0
    }

    /// How long to wait now, but no longer than `most`.
    pub(crate) fn next(&mut self, most: Duration) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.0.min(16));
        self.0 = self.0.saturating_add(1);
        doubled.min(LONGEST).min(most).mul_f64(rand::random_range(0.5..=1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_its_limit_and_starts_again() {
        let mut backoff = Backoff::default();
        for most in [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0].map(Duration::from_secs_f64) {
            let wait = backoff.next(Duration::MAX);
            assert!(most / 2 <= wait && wait <= most, "{wait:?} is not within half of {most:?}");
        }
        assert!(backoff.next(Duration::from_secs(2)) <= Duration::from_secs(2));
        backoff.reset();
        assert!(backoff.next(Duration::MAX) <= FIRST);
    }

    #[test]
    fn it_differs_from_time_to_time() {
        let waits: std::collections::HashSet<_> =
            (0..20).map(|_| Backoff::default().next(Duration::MAX)).collect();
        assert!(waits.len() > 1);
    }
}
