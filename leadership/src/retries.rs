//! The pace at which a process repeats failed attempts on its Leases.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The shortest pause before a retry: a process tries a Lease again less than twice a second.
const MIN_PAUSE: Duration = Duration::from_millis(550);
/// The shortest time between two retries of a process: it makes about nine in a second, for all of its Leases. So they
/// stay below ten even if a busy machine delays some into the next second.
const INTERVAL: Duration = Duration::from_millis(110);
/// The number of attempts that have to fit into the time before a deadline, however long the API server asks to wait.
const ATTEMPTS: u32 = 16;

/// The retries of a process. Clones share the budget.
#[derive(Clone, Debug)]
pub(crate) struct Retries(Arc<Mutex<Instant>>);

impl Default for Retries {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Retries {
    /// Waits until the budget of the process permits another retry. Retries are permitted in the order of the calls.
    pub(crate) async fn turn(&self) {
        let turn = {
            let mut next = self.0.lock();
            let turn = (*next).max(Instant::now());
            *next = turn + INTERVAL;
            turn
        };
        sleep_until(turn).await;
    }
}

/// Bounds the pause before a retry by the time that is left before a deadline.
pub(crate) fn pause_within(pause: Duration, left: Duration) -> Duration {
    pause.min(left / ATTEMPTS).max(MIN_PAUSE)
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_makes_nine_retries_a_second_and_the_first_at_once() {
        let (retries, start) = (Retries::default(), Instant::now());
        let turns = (0..21).map(|_| async {
            retries.turn().await;
            start.elapsed().as_millis()
        });
        let turns = join_all(turns).await;
        assert_eq!((turns[0], turns[20]), (0, 2200));
    }

    #[test]
    fn the_pause_that_the_server_asks_for_leaves_time_for_many_attempts() {
        let seconds = Duration::from_secs;
        assert_eq!(pause_within(seconds(1), seconds(30)), seconds(1));
        assert_eq!(pause_within(seconds(600), seconds(32)), seconds(2));
        assert_eq!(pause_within(seconds(600), seconds(1)), MIN_PAUSE);
    }
}
