//! The brake of a queue, which paces the changes that no cause from outside asked for.
//!
//! A pass that is not [prompted](CurrentPass::is_prompted) takes a token for each change that it makes. While there is no
//! token, a key whose pass would not be prompted is held in a lane of its own, before its pass begins, so it occupies no
//! worker. A pass that has begun ends, so it may leave the bucket in debt. A held key to which a cause is added is queued
//! again, and so runs at once if the cause is a prompt.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use reknit_apis::Key;
use reknit_injection::internal::{CurrentPass, LogLimit};
use tokio::time::Instant;

use super::{Queue, lanes::Lane, token_bucket::TokenBucket};

const MINUTE: Duration = Duration::from_secs(60);

/// The limit of changes by passes that were not prompted.
pub(super) struct Brake {
    bucket: TokenBucket,
    /// The number of changes by such passes so far, which the transport counts.
    changes: Arc<AtomicU64>,
    /// The number of changes for which tokens are taken.
    paid: u64,
    per_minute: u32,
    reports: LogLimit<()>,
}

impl Brake {
    /// A tenth of the changes of a minute may be made at once.
    fn new(per_minute: u32, now: Instant) -> Self {
        let per_minute = per_minute.max(1);
        Self {
            bucket: TokenBucket::new(MINUTE / per_minute, (per_minute / 10).max(1), now),
            changes: Arc::default(),
            paid: 0,
            per_minute,
            reports: LogLimit::default(),
        }
    }

    /// Returns true if a pass that is not prompted may begin.
    pub(super) fn allows(&mut self, now: Instant) -> bool {
        let changes = self.changes.load(Ordering::Relaxed);
        let unpaid = u32::try_from(changes - self.paid).unwrap_or(u32::MAX);
        self.paid = changes;
        self.bucket.spend(unpaid, now);
        self.bucket.has_token(now)
    }

    /// Returns the number of changes per minute if a held key is to be reported now.
    fn report(&mut self) -> Option<u32> {
        self.reports.allows(&()).then_some(self.per_minute)
    }

    /// The time of the next token, if there is none now.
    pub(super) fn next_release(&self, now: Instant) -> Option<Instant> {
        (!self.bucket.has_token(now)).then(|| self.bucket.next_token())
    }
}

impl Queue {
    /// Limits the changes by passes that are not prompted.
    pub(crate) fn set_brake(&self, per_minute: u32) {
        self.0.state.lock().brake = Some(Brake::new(per_minute, Instant::now()));
    }

    /// Returns true if changes by passes that are not prompted are limited.
    pub(crate) fn has_brake(&self) -> bool {
        self.0.state.lock().brake.is_some()
    }

    /// Returns the key that the brake has held for the longest time, and the limit in changes per minute, if they are to be
    /// reported now. They are reported when the brake begins to hold keys, and then once a minute.
    pub(crate) fn held_to_report(&self) -> Option<(Arc<Key>, u32)> {
        let mut state = self.0.state.lock();
        let state = &mut *state;
        let brake = state.brake.as_mut().filter(|_| state.lanes.len_of(Lane::HeldByBrake) > 0)?;
        let per_minute = brake.report()?;
        let held = state.lanes.queued().filter(|(_, lane, ..)| *lane == Lane::HeldByBrake);
        let (key, ..) = held.min_by_key(|(_, _, queued_at, _)| *queued_at)?;
        Some((key.clone(), per_minute))
    }

    /// Makes the changes of a pass count.
    pub(crate) fn count_changes_of(&self, pass: &CurrentPass) {
        if let Some(brake) = &self.0.state.lock().brake {
            pass.count_changes_in(&brake.changes);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;
    use crate::queue::Cause;

    /// Runs the passes that can begin now, each of which makes a change, and returns their keys.
    async fn run_passes(queue: &Queue) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(Some(claimed)) = queue.next().now_or_never() {
            let Some(claimed) = queue.begin_or_hold(claimed) else { continue };
            let prompted = claimed.causes.is_prompted();
            let pass = CurrentPass::begin(&"web".into(), &claimed.key, prompted);
            queue.count_changes_of(&pass);
            pass.count_change();
            names.push(claimed.name.clone());
        }
        names
    }

    #[tokio::test(start_paused = true)]
    async fn two_thousand_keys_that_nothing_prompted_make_a_hundred_changes_a_minute_and_others_run_at_once()
    {
        let queue = Queue::new();
        queue.set_brake(100);
        (0..2000).for_each(|n| queue.add_slow_for(Key::new("shop", &n.to_string()), Cause::Start));
        assert_eq!(run_passes(&queue).await.len(), 10, "a tenth at once");
        assert_eq!(queue.state().held, 1990);
        let mut ended = 10;
        for minute in 0..19 {
            for second in 0..60 {
                tokio::time::advance(Duration::from_secs(1)).await;
                let prompted = Key::new("users", &format!("{minute}-{second}"));
                queue.add(prompted.clone());
                let names = run_passes(&queue).await;
                assert!(names.contains(&prompted.name), "what is prompted runs at once: {names:?}");
                ended += names.len() - 1;
            }
            assert_eq!(ended, 10 + 100 * (minute + 1));
        }
        queue.add(Key::new("shop", "1999"));
        assert_eq!(run_passes(&queue).await, ["1999"], "a held key that becomes prompted runs at once");
        assert_eq!(queue.state().held, 89);
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_key_is_claimed_when_the_debt_of_a_pass_is_paid() {
        let queue = Queue::new();
        queue.set_brake(60);
        queue.add_slow_for(Key::new("shop", "a"), Cause::Start);
        let claimed = queue.begin_or_hold(queue.next().await.unwrap()).unwrap();
        let pass = CurrentPass::begin(&"web".into(), &claimed.key, false);
        queue.count_changes_of(&pass);
        (0..100).for_each(|_| pass.count_change());
        drop(claimed);
        queue.add_slow_for(Key::new("shop", "b"), Cause::Start);
        assert!(queue.begin_or_hold(queue.next().await.unwrap()).is_none(), "it is held");
        assert_eq!(queue.held_to_report(), Some((Arc::new(Key::new("shop", "b")), 60)));
        let start = Instant::now();
        let claimed = queue.begin_or_hold(queue.next().await.unwrap()).unwrap();
        assert_eq!((claimed.name.as_str(), start.elapsed().as_secs()), ("b", 95));
    }

    #[tokio::test(start_paused = true)]
    async fn a_held_key_is_reported_once_a_minute_for_as_long_as_keys_wait() {
        let queue = Queue::new();
        queue.set_brake(60);
        (0..200).for_each(|n| queue.add_slow_for(Key::new("shop", &n.to_string()), Cause::Start));
        let mut reports = 0;
        for _ in 0..150 {
            run_passes(&queue).await;
            reports += usize::from(queue.held_to_report().is_some());
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(queue.state().held > 0);
        assert_eq!(reports, 3);
    }
}
