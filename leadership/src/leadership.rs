//! The keys that this process leads, for a controller to check before and during every pass.

use std::{sync::Arc, time::Duration};

use reknit_apis::Key;

use crate::bucket::{Bucket, BucketState, Buckets, LedPass};

/// Tells which keys of one controller this process leads. Cheap to clone. Each clone reports changes by
/// [`changed`](Self::changed) on its own, from those on that the original had reported when it was cloned.
///
/// A bucket is led from the moment its lease was acquired until, at most, the renew deadline counted from the start of
/// the last successful renewal. [`leads`](Self::leads) compares the clock itself, so it is false after the deadline
/// even if no other task of the process has run since.
///
/// ```
/// use reknit_apis::Key;
/// use reknit_leadership::Leadership;
///
/// let leadership = Leadership::always();
/// assert!(leadership.leads(&Key::new("default", "web")));
/// assert!(leadership.has_known_leaders());
/// ```
#[derive(Clone, Debug)]
pub struct Leadership {
    /// `None` if every key is always led.
    buckets: Option<Buckets>,
    /// The time after which another process takes over a Lease that is not renewed.
    lease_duration: Duration,
    /// The term of each bucket when [`changed`](Self::changed) last returned.
    seen: Vec<Option<u64>>,
}

/// The buckets gained and lost since the last call of [`Leadership::changed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The buckets that this process leads in a new term. Every key that they own has to be reconciled.
    pub gained: Vec<Arc<str>>,
    /// The buckets that this process led at the last call and leads no longer.
    pub lost: Vec<Arc<str>>,
}

impl Leadership {
    /// Creates the leadership of a process that leads every key for all its life, without leader election
    /// (`--disable-ha`).
    pub fn always() -> Self {
        Self { buckets: None, lease_duration: Duration::ZERO, seen: Vec::new() }
    }

    /// Creates the leadership of a process that leads a bucket while its state says so.
    pub(crate) fn of(buckets: Buckets, lease_duration: Duration) -> Self {
        let seen = vec![None; buckets.names().len()];
        Self { buckets: Some(buckets), lease_duration, seen }
    }

    /// Returns true if this process leads the bucket that owns the key, at this moment.
    pub fn leads(&self, key: &Key) -> bool {
        matches!(self.state(key), BucketState::Led { .. })
    }

    /// Returns the state of the bucket that owns the key, at this moment.
    #[doc(hidden)]
    pub fn state(&self, key: &Key) -> BucketState {
        let Some(buckets) = &self.buckets else { return BucketState::Led { until: None } };
        let owner = buckets.owner(key);
        buckets.read()[owner].state()
    }

    /// Starts a pass of the key, which counts as running until the returned value is dropped. Returns `None` if this
    /// process does not lead the key, or hands its bucket over.
    #[doc(hidden)]
    pub fn start_pass(&self, key: &Key) -> Option<LedPass> {
        match &self.buckets {
            Some(buckets) => buckets.start_pass(key),
            None => Some(LedPass::always_led()),
        }
    }

    /// Starts a pass of the key as [`start_pass`](Self::start_pass) does, but only while this process hands its bucket
    /// over, for work that the next leader may not know of. The handover waits for the pass, up to the renew deadline.
    #[doc(hidden)]
    pub fn start_pass_during_handover(&self, key: &Key) -> Option<LedPass> {
        self.buckets.as_ref().and_then(|buckets| buckets.start_pass_during_handover(key))
    }

    /// Returns the time after which another process takes over a Lease that is not renewed. Zero without Leases.
    #[doc(hidden)]
    pub fn lease_duration(&self) -> Duration {
        self.lease_duration
    }

    /// Waits until a bucket was gained or lost since the last call, and returns which. The first call counts every led
    /// bucket as gained. A bucket that was lost and gained again between two calls is gained, since its keys may have
    /// been skipped in between.
    ///
    /// Never resolves once nothing can change, as without leader election. Cancel safe.
    pub async fn changed(&mut self) -> Change {
        let Some(buckets) = &self.buckets else { return std::future::pending().await };
        let mut states = buckets.subscribe();
        loop {
            let terms: Vec<_> = states.borrow_and_update().iter().map(Bucket::term).collect();
            let mut change = Change::default();
            for ((name, seen), now) in buckets.names().iter().zip(&self.seen).zip(&terms) {
                match now {
                    _ if seen == now => {}
                    Some(_) => change.gained.push(name.clone()),
                    None => change.lost.push(name.clone()),
                }
            }
            if change != Change::default() {
                self.seen = terms;
                return change;
            }
            // Never fails: `self` holds the sender.
            states.changed().await.ok();
        }
    }

    /// Returns true if the leader of every bucket is known, be it this process or another. Readiness checks this.
    pub fn has_known_leaders(&self) -> bool {
        let is_known = |bucket: &Bucket| !matches!(bucket.state(), BucketState::Unknown { .. });
        self.buckets.as_ref().is_none_or(|buckets| buckets.read().iter().all(is_known))
    }

    /// Returns why the leader of a bucket is unknown: the error of the last attempt on its lease. `None` if all leaders
    /// are known, or if no attempt has failed.
    pub fn reason_unknown(&self) -> Option<String> {
        let states = self.buckets.as_ref()?.read();
        states.iter().find_map(Bucket::reason_unknown).map(str::to_owned)
    }

    /// Returns true if the keys are divided into buckets: false for a process that leads [always](Self::always).
    pub fn has_buckets(&self) -> bool {
        self.buckets.is_some()
    }

    /// Returns the names of the buckets that this process leads at this moment, also those that it hands over. Empty without leader election.
    pub fn led_buckets(&self) -> Vec<Arc<str>> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let states = buckets.read();
        let named = buckets.names().iter().zip(states.iter());
        named.filter(|(_, bucket)| bucket.term().is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the names of all buckets with their states at this moment. Empty without leader election.
    #[doc(hidden)]
    pub fn buckets(&self) -> Vec<(Arc<str>, BucketState)> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let states = buckets.read();
        buckets.names().iter().cloned().zip(states.iter().map(Bucket::state)).collect()
    }

    /// Returns true if the bucket of this name owns the key, whichever process leads the bucket. Without leader
    /// election, returns true for every name.
    pub fn bucket_owns(&self, bucket: &str, key: &Key) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.is_owner(bucket, key))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        bucket::BucketWriter,
        moment::{Moment, tests::Machine},
    };

    const TERM: Duration = Duration::from_secs(10);

    fn elected<const N: usize>() -> (Leadership, [BucketWriter; N]) {
        let names = (0..N).map(|bucket| format!("bucket-{bucket}").into()).collect();
        let (leadership, writers) = crate::internal::elected(names);
        (leadership, writers.try_into().unwrap())
    }

    /// Waits until the pass is lost. Panics if it is not within ten terms.
    async fn wait_until_lost(pass: &LedPass) {
        tokio::time::timeout(TERM * 10, pass.lost()).await.expect("leadership ends in time");
    }

    fn key() -> Key {
        Key::new("default", "web")
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_at_its_deadline_without_a_notification() {
        let (leadership, [writer]) = elected();
        assert!(!leadership.leads(&key()));
        writer.lead(Instant::now() + TERM, "test");
        assert!(leadership.leads(&key()));
        let (start, pass) = (Instant::now(), leadership.start_pass(&key()).unwrap());
        wait_until_lost(&pass).await;
        assert_eq!(start.elapsed().as_secs(), TERM.as_secs());
        assert!(!leadership.leads(&key()));
    }

    #[test]
    fn leadership_ends_while_the_machine_is_suspended_and_its_clock_stands() {
        Machine::run(async |suspend| {
            suspend(TERM * 9);
            let (leadership, [writer]) = elected();
            writer.lead(Moment::now().after(TERM), "test");
            let pass = leadership.start_pass(&key()).unwrap();
            suspend(TERM / 2);
            assert!(leadership.leads(&key()));
            writer.lead(Moment::now().after(TERM), "test");
            suspend(TERM / 2);
            assert!(leadership.leads(&key()), "the renewal counts from the last suspension on");
            tokio::time::advance(TERM / 2).await;
            assert!(!leadership.leads(&key()));
            assert_eq!(pass.lost().now_or_never(), Some(()));

            let sent = Moment::now();
            suspend(TERM);
            writer.lead(sent.after(TERM), "test");
            assert!(!leadership.leads(&key()), "the request was sent before the suspension");
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_moves_the_deadline_without_a_notification() {
        let (mut leadership, [writer]) = elected();
        writer.lead(Instant::now() + TERM, "test");
        leadership.changed().await;
        let (start, pass) = (Instant::now(), leadership.start_pass(&key()).unwrap());
        tokio::time::advance(TERM / 2).await;
        writer.lead(Instant::now() + TERM, "test");
        assert_eq!(leadership.changed().now_or_never(), None);
        wait_until_lost(&pass).await;
        assert_eq!(start.elapsed().as_secs(), (TERM * 3 / 2).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_lost_even_if_the_next_one_has_started() {
        let (mut leadership, [writer]) = elected();
        writer.lead(Instant::now() + TERM, "test");
        assert_eq!(leadership.changed().await.gained, ["bucket-0".into()]);
        let pass = leadership.start_pass(&key()).unwrap();
        writer.follow("other");
        writer.lead(Instant::now() + TERM, "test");
        assert_eq!(pass.lost().now_or_never(), Some(()));
        let change = leadership.changed().await;
        assert_eq!(change, Change { gained: vec!["bucket-0".into()], lost: vec![] });
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_after_the_deadline_is_a_new_term() {
        let (mut leadership, [writer]) = elected();
        writer.lead(Instant::now() + TERM, "test");
        leadership.changed().await;
        tokio::time::advance(TERM).await;
        assert!(!leadership.leads(&key()));
        writer.lead(Instant::now() + TERM, "test");
        assert_eq!(leadership.changed().await.gained.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_that_another_process_takes_over_is_lost_at_once() {
        let (mut leadership, [writer]) = elected();
        writer.lead(Instant::now() + TERM, "test");
        leadership.changed().await;
        let pass = leadership.start_pass(&key()).unwrap();
        writer.follow("other");
        assert_eq!(pass.lost().now_or_never(), Some(()));
        assert_eq!(leadership.changed().await.lost, ["bucket-0".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_keys_of_the_led_bucket_are_led() {
        let (leadership, [_zero, one, _two]) = elected();
        one.lead(Instant::now() + TERM, "test");
        let keys: Vec<_> = (0..100).map(|number| Key::new("default", &number.to_string())).collect();
        let led = keys.iter().filter(|key| leadership.leads(key)).count();
        assert!((1..100).contains(&led), "{led} of 100");
        for key in &keys {
            assert_eq!(leadership.leads(key), leadership.bucket_owns("bucket-1", key));
            assert_eq!(leadership.start_pass(key).is_some(), leadership.leads(key));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_is_known_while_every_bucket_has_a_leader() {
        let (leadership, [zero, one]) = elected();
        zero.lead(Instant::now() + TERM, "test");
        assert!(!leadership.has_known_leaders());
        one.follow("other");
        assert!(leadership.has_known_leaders());
        tokio::time::advance(TERM).await;
        assert!(!leadership.has_known_leaders());
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_of_a_key_is_unknown_until_it_is_observed() {
        let (leadership, [writer]) = elected();
        assert_eq!(leadership.state(&key()), BucketState::Unknown { was_led: false });
        writer.lead(Instant::now() + TERM, "test");
        assert!(matches!(leadership.state(&key()), BucketState::Led { .. }));
        tokio::time::advance(TERM).await;
        assert_eq!(leadership.state(&key()), BucketState::Unknown { was_led: true });
        writer.resign();
        assert_eq!(leadership.state(&key()), BucketState::Unknown { was_led: true });
        writer.follow("other");
        assert_eq!(leadership.state(&key()), BucketState::Other);
    }

    #[tokio::test(start_paused = true)]
    async fn each_clone_reports_the_buckets_that_were_gained_before_its_first_call() {
        let (leadership, [writer]) = elected();
        writer.lead(Instant::now() + TERM, "test");
        assert_eq!(leadership.clone().changed().await.gained.len(), 1);
        assert_eq!(leadership.clone().changed().await.gained.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_election_every_key_is_led_and_nothing_changes() {
        let mut leadership = Leadership::always();
        assert!(
            leadership.leads(&key())
                && leadership.has_known_leaders()
                && leadership.bucket_owns("any", &key())
        );
        assert_eq!(leadership.start_pass(&key()).unwrap().lost().now_or_never(), None);
        assert_eq!(leadership.changed().now_or_never(), None);
    }
}
