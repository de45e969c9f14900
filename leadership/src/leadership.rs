//! The keys that this process leads, for a controller to check before and during every pass.

use std::{future::Future, sync::Arc};

use reknit_apis::Key;

use super::{
    Ring,
    bucket::{BucketState, BucketStates, BucketWriter, Leader, PassGuard},
};
use reknit_injection::internal::sleep_until_optional;

/// The buckets of one controller that this process leads. Cheap to clone. [`changed`](Self::changed) of a clone reports
/// the changes that the original had not reported when it was cloned.
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

#[derive(Clone, Debug)]
struct Buckets {
    ring: Arc<Ring>,
    names: Arc<[Arc<str>]>,
    states: BucketStates,
}

impl Leadership {
    /// Creates the leadership of a process that leads every key for all its life, without leader election
    /// (`--disable-ha`).
    pub fn always() -> Self {
        Self { buckets: None, seen: Vec::new() }
    }

    /// Creates a leadership in which a bucket is led only while its writer records so. Returns one writer per bucket.
    #[doc(hidden)]
    pub fn elected(names: Vec<Arc<str>>) -> (Self, Vec<BucketWriter>) {
        let (states, writers) = BucketWriter::create_all(&names);
        (Self::new(names, states), writers)
    }

    /// Creates the leadership of a process that always leads the bucket with this index. Other processes lead the other
    /// buckets.
    pub(super) fn fixed(names: Vec<Arc<str>>, led: usize) -> Self {
        let state = |bucket| if bucket == led { BucketState::ALWAYS_LED } else { BucketState::LED_BY_OTHER };
        let states = tokio::sync::watch::Sender::new((0..names.len()).map(state).collect());
        Self::new(names, Arc::new(states))
    }

    fn new(names: Vec<Arc<str>>, states: BucketStates) -> Self {
        let ring = Arc::new(Ring::new(names.iter().map(|name| &**name)));
        let seen = vec![None; names.len()];
        Self { buckets: Some(Buckets { ring, names: names.into(), states }), seen }
    }

    /// Returns true if this process leads the bucket that owns the key, at this moment.
    pub fn leads(&self, key: &Key) -> bool {
        self.leader(key) == Leader::ThisProcess
    }

    /// The name of the bucket that owns the key; `None` if every key is always led.
    #[doc(hidden)]
    pub fn bucket(&self, key: &Key) -> Option<&Arc<str>> {
        self.buckets.as_ref().and_then(|buckets| buckets.names.get(buckets.owner_index(key)))
    }

    /// The leader of the bucket that owns the key; this process if every key is always led.
    #[doc(hidden)]
    pub fn leader(&self, key: &Key) -> Leader {
        let Some(buckets) = &self.buckets else { return Leader::ThisProcess };
        buckets.state(buckets.owner_index(key)).leader()
    }

    /// Starts a pass of the key, which counts as running until the returned value is dropped. Returns `None` if this
    /// process does not lead the key, or hands its bucket over.
    #[doc(hidden)]
    pub fn start_pass(&self, key: &Key) -> Option<PassGuard> {
        match &self.buckets {
            Some(buckets) => PassGuard::start(&buckets.states, buckets.owner_index(key)),
            None => Some(PassGuard::uncounted()),
        }
    }

    /// Resolves when the term ends in which this process now leads the key's bucket, and at once if it does not lead
    /// the bucket. Never resolves for a process that leads [always](Self::always).
    ///
    /// ```
    /// # use reknit_apis::Key;
    /// # use reknit_leadership::Leadership;
    /// # async fn pass() {}
    /// # async fn example(leadership: Leadership, key: Key) {
    /// tokio::select! {
    ///     () = leadership.lost(&key) => {} // the pass is dropped
    ///     () = pass() => {}
    /// }
    /// # }
    /// ```
    pub fn lost(&self, key: &Key) -> impl Future<Output = ()> + Send + use<> {
        let current = self.buckets.clone().map(|buckets| {
            let index = buckets.owner_index(key);
            let term = buckets.state(index).current_term();
            (buckets, index, term)
        });
        async move {
            match current {
                None => std::future::pending().await,
                Some((_, _, None)) => {}
                Some((buckets, index, Some(term))) => buckets.wait_for_end(index, term).await,
            }
        }
    }

    /// Waits until a bucket was gained or lost since the last call, and returns which. The first call counts every led
    /// bucket as gained. A bucket that was lost and gained again between two calls is gained, since its keys may have
    /// been skipped in between.
    ///
    /// Never resolves once nothing can change, as without leader election. Cancel safe.
    pub async fn changed(&mut self) -> Change {
        let Some(buckets) = &self.buckets else { return std::future::pending().await };
        let mut states = buckets.states.subscribe();
        loop {
            let terms: Vec<_> = states.borrow_and_update().iter().map(BucketState::current_term).collect();
            let change = buckets.change(&self.seen, &terms);
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
        let is_known = |state: &BucketState| !matches!(state.leader(), Leader::Unknown { .. });
        self.buckets.as_ref().is_none_or(|buckets| buckets.states.borrow().iter().all(is_known))
    }

    /// Returns true if the keys are divided into buckets: false for a process that leads [always](Self::always).
    pub fn has_buckets(&self) -> bool {
        self.buckets.is_some()
    }

    /// The names of the buckets that this process leads at this moment. Empty without leader election.
    pub fn led_buckets(&self) -> Vec<Arc<str>> {
        let Some(buckets) = &self.buckets else { return Vec::new() };
        let states = buckets.states.borrow();
        let named = buckets.names.iter().zip(states.iter());
        named.filter(|(_, state)| state.current_term().is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Returns true if the bucket of this name owns the key, whichever process leads the bucket. Without leader
    /// election, returns true for every name.
    pub fn bucket_owns(&self, bucket: &str, key: &Key) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.ring.owner(key) == bucket)
    }
}

impl Buckets {
    /// The index of the bucket that owns the key.
    fn owner_index(&self, key: &Key) -> usize {
        let owner = self.ring.owner(key);
        self.names.iter().position(|name| &**name == owner).unwrap_or_default()
    }

    fn state(&self, index: usize) -> BucketState {
        self.states.borrow().get(index).copied().unwrap_or_default()
    }

    /// Compares the terms at the last call with the current ones.
    fn change(&self, seen: &[Option<u64>], now: &[Option<u64>]) -> Change {
        let mut change = Change::default();
        for ((name, seen), now) in self.names.iter().zip(seen).zip(now) {
            match now {
                _ if seen == now => {}
                Some(_) => change.gained.push(name.clone()),
                None => change.lost.push(name.clone()),
            }
        }
        change
    }

    /// Waits for the end of the term. A renewal moves its deadline without a notification, so the deadline is read
    /// again when it is reached.
    async fn wait_for_end(self, index: usize, term: u64) {
        let mut states = self.states.subscribe();
        loop {
            let state = states.borrow_and_update().get(index).copied().unwrap_or_default();
            if state.current_term() != Some(term) {
                return;
            }
            tokio::select! {
                _ = states.changed() => {}
                () = sleep_until_optional(state.deadline()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn elected<const N: usize>() -> (Leadership, [BucketWriter; N]) {
        let names = (0..N).map(|bucket| format!("bucket-{bucket}").into()).collect();
        let (leadership, writers) = Leadership::elected(names);
        (leadership, writers.try_into().unwrap())
    }

    /// Waits for the end of leadership. Panics if it does not end within ten terms.
    async fn wait_for(lost: impl Future<Output = ()>) {
        tokio::time::timeout(TERM * 10, lost).await.expect("leadership ends in time");
    }

    fn key() -> Key {
        Key::new("default", "web")
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_ends_at_its_deadline_without_a_notification() {
        let (leadership, [writer]) = elected();
        assert!(!leadership.leads(&key()));
        writer.set_leading(Instant::now() + TERM);
        assert!(leadership.leads(&key()));
        let (start, lost) = (Instant::now(), leadership.lost(&key()));
        wait_for(lost).await;
        assert_eq!(start.elapsed().as_secs(), TERM.as_secs());
        assert!(!leadership.leads(&key()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_moves_the_deadline_without_a_notification() {
        let (mut leadership, [writer]) = elected();
        writer.set_leading(Instant::now() + TERM);
        leadership.changed().await;
        let (start, lost) = (Instant::now(), leadership.lost(&key()));
        tokio::time::advance(TERM / 2).await;
        writer.set_leading(Instant::now() + TERM);
        assert_eq!(leadership.changed().now_or_never(), None);
        wait_for(lost).await;
        assert_eq!(start.elapsed().as_secs(), (TERM * 3 / 2).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_lost_even_if_the_next_one_has_started() {
        let (mut leadership, [writer]) = elected();
        writer.set_leading(Instant::now() + TERM);
        assert_eq!(leadership.changed().await.gained, ["bucket-0".into()]);
        let lost = leadership.lost(&key());
        writer.set_led_by_other();
        writer.set_leading(Instant::now() + TERM);
        assert_eq!(lost.now_or_never(), Some(()));
        let change = leadership.changed().await;
        assert_eq!(change, Change { gained: vec!["bucket-0".into()], lost: vec![] });
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_after_the_deadline_is_a_new_term() {
        let (mut leadership, [writer]) = elected();
        writer.set_leading(Instant::now() + TERM);
        leadership.changed().await;
        tokio::time::advance(TERM).await;
        assert!(!leadership.leads(&key()));
        assert!(writer.set_leading(Instant::now() + TERM));
        assert_eq!(leadership.changed().await.gained.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_that_another_process_takes_over_is_lost_at_once() {
        let (mut leadership, [writer]) = elected();
        writer.set_leading(Instant::now() + TERM);
        leadership.changed().await;
        let lost = leadership.lost(&key());
        assert!(writer.replace_by_other().is_some());
        assert_eq!(lost.now_or_never(), Some(()));
        assert_eq!(leadership.changed().await.lost, ["bucket-0".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_keys_of_the_led_bucket_are_led() {
        let (leadership, [_zero, one, _two]) = elected();
        one.set_leading(Instant::now() + TERM);
        let keys: Vec<_> = (0..100).map(|number| Key::new("default", &number.to_string())).collect();
        let led = keys.iter().filter(|key| leadership.leads(key)).count();
        assert!((1..100).contains(&led), "{led} of 100");
        for key in &keys {
            assert_eq!(leadership.leads(key), leadership.bucket_owns("bucket-1", key));
            assert_eq!(leadership.lost(key).now_or_never().is_none(), leadership.leads(key));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leadership_is_known_while_every_bucket_has_a_leader() {
        let (leadership, [zero, one]) = elected();
        zero.set_leading(Instant::now() + TERM);
        assert!(!leadership.has_known_leaders());
        one.set_led_by_other();
        assert!(leadership.has_known_leaders());
        tokio::time::advance(TERM).await;
        assert!(!leadership.has_known_leaders());
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_of_a_key_is_unknown_until_it_is_observed() {
        let (leadership, [writer]) = elected();
        assert_eq!(leadership.leader(&key()), Leader::Unknown { this_process_led_before: false });
        writer.set_leading(Instant::now() + TERM);
        assert_eq!(leadership.leader(&key()), Leader::ThisProcess);
        tokio::time::advance(TERM).await;
        assert_eq!(leadership.leader(&key()), Leader::Unknown { this_process_led_before: true });
        writer.set_unknown();
        assert_eq!(leadership.leader(&key()), Leader::Unknown { this_process_led_before: true });
        writer.set_led_by_other();
        assert_eq!(leadership.leader(&key()), Leader::Other);
    }

    #[tokio::test(start_paused = true)]
    async fn each_clone_reports_the_buckets_that_were_gained_before_its_first_call() {
        let (leadership, [writer]) = elected();
        writer.set_leading(Instant::now() + TERM);
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
        assert_eq!(leadership.lost(&key()).now_or_never(), None);
        assert_eq!(leadership.changed().now_or_never(), None);
    }
}
