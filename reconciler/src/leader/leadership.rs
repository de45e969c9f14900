//! Which keys this process may write: what a controller asks before and during every pass.

use std::{future::Future, sync::Arc};

use reknit_apis::Key;
use tokio::{sync::watch, time::Instant};

use super::Ring;

/// Which buckets of one controller this process leads. Cheap to clone; a clone has seen the changes that its
/// original has.
///
/// A bucket is led from the moment its lease was acquired, and never beyond the renew deadline counted from the
/// instant before the last successful renewal began: [`leads`](Self::leads) looks at the clock itself, so it
/// answers no even where nothing else in the process got to run in time.
///
/// ```
/// use reknit_apis::Key;
/// use reknit_reconciler::leader::Leadership;
///
/// let leadership = Leadership::always();
/// assert!(leadership.leads(&Key::new("default", "web")));
/// assert!(leadership.known());
/// ```
#[derive(Clone, Debug)]
pub struct Leadership {
    /// None: every key, for good.
    buckets: Option<Buckets>,
    /// The term in which each bucket was led when `changed` last answered.
    seen: Vec<Option<u64>>,
}

/// The buckets that were gained and lost since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Led now, in a term that is new: every key they own has to be looked at.
    pub gained: Vec<Arc<str>>,
    /// Led the last time, and not any more.
    pub lost: Vec<Arc<str>>,
}

#[derive(Clone, Debug)]
struct Buckets {
    ring: Arc<Ring>,
    names: Arc<[Arc<str>]>,
    seats: watch::Receiver<Vec<Seat>>,
}

/// What is known of one bucket.
#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    standing: Standing,
    /// How often the bucket was promoted.
    term: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Unknown,
    Elsewhere,
    /// Until that instant; for good without one.
    Led(Option<Instant>),
}

/// Who leads a key, at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lead {
    Here,
    Elsewhere,
    /// Nobody that this process knows of.
    Nobody {
        /// Whether this process was the last that did.
        here_before: bool,
    },
}

impl Seat {
    fn lead(&self) -> Lead {
        match (self.term(), self.standing) {
            (Some(_), _) => Lead::Here,
            (None, Standing::Elsewhere) => Lead::Elsewhere,
            (None, _) => Lead::Nobody { here_before: self.term > 0 },
        }
    }

    /// The term in which this process leads the bucket, if it does.
    fn term(&self) -> Option<u64> {
        match self.standing {
            Standing::Led(until) if until.is_none_or(|until| Instant::now() < until) => Some(self.term),
            _ => None,
        }
    }
}

impl Leadership {
    /// Leads every key, for good: a process without leader election (`--disable-ha`).
    pub fn always() -> Self {
        Self { buckets: None, seen: Vec::new() }
    }

    /// Nothing is led yet; the chairs, one a bucket, decide.
    pub(crate) fn contended(names: Vec<Arc<str>>) -> (Self, Vec<Chair>) {
        let (sender, seats) = watch::channel(vec![Seat::default(); names.len()]);
        let sender = Arc::new(sender);
        let chair =
            |(bucket, name): (_, &Arc<str>)| Chair { bucket, name: name.clone(), seats: sender.clone() };
        let chairs = names.iter().enumerate().map(chair).collect();
        (Self::of(names, seats), chairs)
    }

    /// The bucket of this index is led for good, and the others are elsewhere.
    pub(super) fn fixed(names: Vec<Arc<str>>, led: usize) -> Self {
        let seat = |bucket| match bucket == led {
            true => Seat { standing: Standing::Led(None), term: 1 },
            false => Seat { standing: Standing::Elsewhere, term: 0 },
        };
        let (_, seats) = watch::channel((0..names.len()).map(seat).collect());
        Self::of(names, seats)
    }

    fn of(names: Vec<Arc<str>>, seats: watch::Receiver<Vec<Seat>>) -> Self {
        let ring = Arc::new(Ring::new(names.iter().map(|name| &**name)));
        let seen = vec![None; names.len()];
        Self { buckets: Some(Buckets { ring, names: names.into(), seats }), seen }
    }

    /// Whether this process leads the bucket that owns the key, at this moment.
    pub fn leads(&self, key: &Key) -> bool {
        self.lead(key) == Lead::Here
    }

    /// The bucket that owns the key; none where every key is led for good.
    pub(crate) fn bucket(&self, key: &Key) -> Option<&Arc<str>> {
        self.buckets.as_ref().and_then(|buckets| buckets.names.get(buckets.owner(key)))
    }

    /// Who leads the bucket that owns the key.
    pub(crate) fn lead(&self, key: &Key) -> Lead {
        self.buckets.as_ref().map_or(Lead::Here, |buckets| buckets.lead(buckets.owner(key)))
    }

    /// Resolves when the key's bucket is not led, or not any longer in the term of this call; never for a process
    /// that leads [always](Self::always).
    ///
    /// ```
    /// # use reknit_apis::Key;
    /// # use reknit_reconciler::leader::Leadership;
    /// # async fn pass() {}
    /// # async fn example(leadership: Leadership, key: Key) {
    /// tokio::select! {
    ///     () = leadership.lost(&key) => {} // the pass is dropped where it stands
    ///     () = pass() => {}
    /// }
    /// # }
    /// ```
    pub fn lost(&self, key: &Key) -> impl Future<Output = ()> + Send + use<> {
        let led = self.buckets.clone().map(|buckets| {
            let owner = buckets.owner(key);
            let term = buckets.term(owner);
            (buckets, owner, term)
        });
        async move {
            match led {
                None => std::future::pending().await,
                Some((_, _, None)) => {}
                Some((buckets, owner, Some(term))) => buckets.ended(owner, term).await,
            }
        }
    }

    /// Waits until a bucket was promoted or demoted since the last answer, and says which. What was led before
    /// the first call counts as gained by it. A bucket that was lost and gained again between two calls is gained:
    /// what was skipped in between has to be looked at.
    ///
    /// Never resolves where nothing can change. Safe to drop and call again.
    pub async fn changed(&mut self) -> Change {
        let Some(buckets) = &mut self.buckets else { return std::future::pending().await };
        loop {
            let now = buckets.terms();
            let change = buckets.change(&self.seen, &now);
            if change != Change::default() {
                self.seen = now;
                return change;
            }
            if buckets.seats.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Whether every bucket is either led here or known to be held by somebody else: what readiness asks.
    pub fn known(&self) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| {
            buckets
                .seats
                .borrow()
                .iter()
                .all(|seat| seat.standing == Standing::Elsewhere || seat.term().is_some())
        })
    }

    /// Whether the bucket of this name owns the key, whoever leads it.
    pub fn owns(&self, bucket: &str, key: &Key) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.ring.owner(key) == bucket)
    }
}

impl Buckets {
    fn owner(&self, key: &Key) -> usize {
        let owner = self.ring.owner(key);
        self.names.iter().position(|name| &**name == owner).unwrap_or_default()
    }

    fn lead(&self, bucket: usize) -> Lead {
        self.seats.borrow().get(bucket).copied().unwrap_or_default().lead()
    }

    fn term(&self, bucket: usize) -> Option<u64> {
        self.seats.borrow().get(bucket).and_then(Seat::term)
    }

    fn terms(&mut self) -> Vec<Option<u64>> {
        self.seats.borrow_and_update().iter().map(Seat::term).collect()
    }

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

    /// Waits for the end of the term. A renewal only moves the end, so it wakes nobody.
    async fn ended(mut self, bucket: usize, term: u64) {
        let mut open = true;
        loop {
            let seat = self.seats.borrow_and_update().get(bucket).copied().unwrap_or_default();
            let Standing::Led(until) = seat.standing else { return };
            if seat.term() != Some(term) {
                return;
            }
            tokio::select! {
                changed = self.seats.changed(), if open => open = changed.is_ok(),
                () = reached(until) => {}
            }
        }
    }
}

async fn reached(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// The writing end of one bucket, held by its elector.
#[derive(Clone, Debug)]
pub(crate) struct Chair {
    bucket: usize,
    name: Arc<str>,
    seats: Arc<watch::Sender<Vec<Seat>>>,
}

impl Chair {
    /// The bucket's name, which is its lease's.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the bucket is led, at this moment.
    pub(super) fn leads(&self) -> bool {
        self.seats.borrow().get(self.bucket).is_some_and(|seat| seat.term().is_some())
    }

    /// The lease is ours until then. True where that is a promotion; that the end of a term moves wakes nobody.
    pub(crate) fn lead(&self, until: Instant) -> bool {
        self.change(|seat| {
            let promoted = seat.term().is_none();
            if promoted {
                seat.term += 1;
            }
            seat.standing = Standing::Led(Some(until));
            promoted
        })
    }

    /// Somebody else holds the lease. True where that is a change.
    pub(crate) fn elsewhere(&self) -> bool {
        self.change(|seat| std::mem::replace(&mut seat.standing, Standing::Elsewhere) != Standing::Elsewhere)
    }

    /// Not led any longer, and nobody knows by whom instead. True where it was led before.
    pub(crate) fn vacate(&self) -> bool {
        self.change(|seat| {
            let led = matches!(seat.standing, Standing::Led(_));
            if led {
                seat.standing = Standing::Unknown;
            }
            led
        })
    }

    /// Ends the term if its time has come. True where it has.
    pub(super) fn expire(&self) -> bool {
        self.change(|seat| {
            let over = matches!(seat.standing, Standing::Led(_)) && seat.term().is_none();
            if over {
                seat.standing = Standing::Unknown;
            }
            over
        })
    }

    /// Waits until the bucket is led, and says when that ends unless it is renewed.
    pub(super) async fn until(&self) -> Instant {
        let mut seats = self.seats.subscribe();
        loop {
            if let Some(Seat { standing: Standing::Led(Some(until)), .. }) =
                seats.borrow_and_update().get(self.bucket)
            {
                return *until;
            }
            if seats.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Seat) -> bool) -> bool {
        self.seats.send_if_modified(|seats| seats.get_mut(self.bucket).is_some_and(change))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    const TERM: Duration = Duration::from_secs(10);

    fn contended<const N: usize>() -> (Leadership, [Chair; N]) {
        let names = (0..N).map(|bucket| format!("bucket-{bucket}").into()).collect();
        let (leadership, chairs) = Leadership::contended(names);
        (leadership, chairs.try_into().unwrap())
    }

    async fn in_time(lost: impl Future<Output = ()>) {
        tokio::time::timeout(TERM * 10, lost).await.expect("leadership ends in time");
    }

    fn key() -> Key {
        Key::new("default", "web")
    }

    #[tokio::test(start_paused = true)]
    async fn a_bucket_is_led_until_its_time_ends_even_if_nobody_says_so() {
        let (leadership, [chair]) = contended();
        assert!(!leadership.leads(&key()));
        chair.lead(Instant::now() + TERM);
        assert!(leadership.leads(&key()));
        let (began, lost) = (Instant::now(), leadership.lost(&key()));
        in_time(lost).await;
        assert_eq!(began.elapsed().as_secs(), TERM.as_secs());
        assert!(!leadership.leads(&key()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_moves_the_end_and_wakes_nobody() {
        let (mut leadership, [chair]) = contended();
        chair.lead(Instant::now() + TERM);
        leadership.changed().await;
        let (began, lost) = (Instant::now(), leadership.lost(&key()));
        tokio::time::advance(TERM / 2).await;
        chair.lead(Instant::now() + TERM);
        assert_eq!(leadership.changed().now_or_never(), None);
        in_time(lost).await;
        assert_eq!(began.elapsed().as_secs(), (TERM * 3 / 2).as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_is_lost_even_if_the_next_one_has_begun() {
        let (mut leadership, [chair]) = contended();
        chair.lead(Instant::now() + TERM);
        assert_eq!(leadership.changed().await.gained, ["bucket-0".into()]);
        let lost = leadership.lost(&key());
        chair.elsewhere();
        chair.lead(Instant::now() + TERM);
        assert_eq!(lost.now_or_never(), Some(()));
        let change = leadership.changed().await;
        assert_eq!(change, Change { gained: vec!["bucket-0".into()], lost: vec![] });
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_after_the_end_is_a_new_term() {
        let (mut leadership, [chair]) = contended();
        chair.lead(Instant::now() + TERM);
        leadership.changed().await;
        tokio::time::advance(TERM).await;
        assert!(!leadership.leads(&key()));
        assert!(chair.lead(Instant::now() + TERM));
        assert_eq!(leadership.changed().await.gained.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_demotion_ends_passes_and_is_told() {
        let (mut leadership, [chair]) = contended();
        chair.lead(Instant::now() + TERM);
        leadership.changed().await;
        let lost = leadership.lost(&key());
        assert!(chair.elsewhere());
        assert_eq!(lost.now_or_never(), Some(()));
        assert_eq!(leadership.changed().await.lost, ["bucket-0".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_keys_of_the_led_bucket_are_led() {
        let (leadership, [_zero, one, _two]) = contended();
        one.lead(Instant::now() + TERM);
        let keys: Vec<_> = (0..100).map(|number| Key::new("default", &number.to_string())).collect();
        let led = keys.iter().filter(|key| leadership.leads(key)).count();
        assert!((1..100).contains(&led), "{led} of 100");
        for key in &keys {
            assert_eq!(leadership.leads(key), leadership.owns("bucket-1", key));
            assert_eq!(leadership.lost(key).now_or_never().is_none(), leadership.leads(key));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_knows_who_leads_every_bucket_or_says_no() {
        let (leadership, [zero, one]) = contended();
        zero.lead(Instant::now() + TERM);
        assert!(!leadership.known());
        one.elsewhere();
        assert!(leadership.known());
        tokio::time::advance(TERM).await;
        assert!(!leadership.known());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_leads_a_key_until_somebody_is_known_to() {
        let (leadership, [chair]) = contended();
        assert_eq!(leadership.lead(&key()), Lead::Nobody { here_before: false });
        chair.lead(Instant::now() + TERM);
        assert_eq!(leadership.lead(&key()), Lead::Here);
        tokio::time::advance(TERM).await;
        assert_eq!(leadership.lead(&key()), Lead::Nobody { here_before: true });
        chair.vacate();
        assert_eq!(leadership.lead(&key()), Lead::Nobody { here_before: true });
        chair.elsewhere();
        assert_eq!(leadership.lead(&key()), Lead::Elsewhere);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clone_hears_of_what_was_led_before_it_asked() {
        let (leadership, [chair]) = contended();
        chair.lead(Instant::now() + TERM);
        assert_eq!(leadership.clone().changed().await.gained.len(), 1);
        assert_eq!(leadership.clone().changed().await.gained.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn without_electors_nothing_changes_and_everything_is_led() {
        let mut leadership = Leadership::always();
        assert!(leadership.leads(&key()) && leadership.known() && leadership.owns("any", &key()));
        assert_eq!(leadership.lost(&key()).now_or_never(), None);
        assert_eq!(leadership.changed().now_or_never(), None);
    }
}
