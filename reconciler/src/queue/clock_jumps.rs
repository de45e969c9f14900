//! Forward jumps of the wall clock, which the monotonic clock does not show: it stops while the machine is suspended, and
//! nobody sets it.
//!
//! A reconciler computes most waits from a time, such as the renewal of a certificate. Measured by the monotonic clock
//! alone, such a wait would end late, by as long as the machine was suspended.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use reknit_injection::internal::now;
use tokio::time::Instant;

/// The interval at which a queue with delayed keys looks for a jump.
pub(super) const INTERVAL: Duration = Duration::from_secs(60);
/// The shortest jump that counts. Less is not worth a change of the due times.
const MIN_JUMP: Duration = Duration::from_secs(10);

/// The last moment at which both clocks were compared, by either of them.
#[derive(Debug)]
pub(super) struct ClockJumps {
    monotonic: Instant,
    wall: Timestamp,
}

impl ClockJumps {
    pub(super) fn new() -> Self {
        Self { monotonic: Instant::now(), wall: now() }
    }

    /// Returns the time by which the wall clock has jumped forward since the last jump, if it has.
    pub(super) fn take(&mut self) -> Option<Duration> {
        let passed = self.monotonic.elapsed();
        // Negative if the wall clock was set back: the monotonic clock alone counts then.
        let by_wall = Duration::try_from(now().duration_since(self.wall));
        let jump = by_wall.ok().and_then(|by_wall| by_wall.checked_sub(passed));
        if jump.is_none_or(|jump| jump >= MIN_JUMP) {
            *self = Self::new();
        }
        jump.filter(|jump| *jump >= MIN_JUMP)
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use reknit_apis::{
        Key,
        internal::{Environment, within},
    };
    use tokio::time::advance;

    use super::*;
    use crate::queue::Queue;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A machine whose wall clock shows the time of the monotonic clock, and what it has jumped.
    struct Machine {
        start: Instant,
        jumped: Cell<Duration>,
    }

    impl Environment for Machine {
        fn now(&self) -> Timestamp {
            Timestamp::UNIX_EPOCH + self.start.elapsed() + self.jumped.get()
        }

        fn random(&self, _: &str) -> u64 {
            0
        }
    }

    /// Runs a test on a paused clock. The function that it gets sets how far the wall clock is ahead.
    fn run(test: impl AsyncFnOnce(&dyn Fn(Duration))) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let start = runtime.block_on(async { Instant::now() });
        let machine = Rc::new(Machine { start, jumped: Cell::default() });
        let environment: Rc<dyn Environment> = machine.clone();
        within(&environment, || runtime.block_on(test(&|jumped| machine.jumped.set(jumped))));
    }

    /// The time until a worker gets the next key.
    async fn time_to_next(queue: &Queue) -> Duration {
        let start = Instant::now();
        queue.next().await.unwrap();
        start.elapsed()
    }

    #[test]
    fn a_delay_includes_the_time_in_which_the_machine_was_suspended() {
        run(async |set_ahead| {
            let queue = Queue::new();
            queue.add_after(Key::new("shop", "a"), 10 * HOUR);
            queue.add_after(Key::new("shop", "b"), 12 * HOUR);
            advance(HOUR).await;
            set_ahead(9 * HOUR); // the machine wakes up
            assert!(time_to_next(&queue).await <= INTERVAL, "nine of ten hours were slept");
            let rest = time_to_next(&queue).await;
            assert!(rest <= 2 * HOUR && rest + INTERVAL >= 2 * HOUR, "{rest:?}");
        });
    }

    #[test]
    fn a_worker_that_waits_notices_a_jump() {
        run(async |set_ahead| {
            let queue = Queue::new();
            queue.add_after(Key::new("shop", "a"), 10 * HOUR);
            let waiting = time_to_next(&queue);
            let jump = async {
                tokio::time::sleep(HOUR).await;
                set_ahead(10 * HOUR);
            };
            let (waited, ()) = tokio::join!(waiting, jump);
            assert!(waited <= HOUR + INTERVAL, "{waited:?}");
        });
    }

    #[test]
    fn a_key_that_is_added_after_a_jump_waits_for_its_whole_delay() {
        run(async |set_ahead| {
            let queue = Queue::new();
            set_ahead(9 * HOUR);
            queue.add_after(Key::new("shop", "a"), 10 * HOUR);
            assert_eq!(time_to_next(&queue).await, 10 * HOUR);
        });
    }

    #[test]
    fn a_clock_that_is_set_back_delays_no_key() {
        run(async |set_ahead| {
            set_ahead(9 * HOUR);
            let queue = Queue::new();
            queue.add_after(Key::new("shop", "a"), 10 * HOUR);
            set_ahead(Duration::ZERO);
            assert_eq!(time_to_next(&queue).await, 10 * HOUR);
        });
    }

    #[test]
    fn a_clock_that_is_corrected_by_little_changes_nothing() {
        run(async |set_ahead| {
            let queue = Queue::new();
            queue.add_after(Key::new("shop", "a"), HOUR);
            set_ahead(MIN_JUMP / 2);
            assert_eq!(time_to_next(&queue).await, HOUR);
        });
    }
}
