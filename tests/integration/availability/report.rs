//! A report from the audit log of the API server: who led, who wrote, and the time until each change was reconciled.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use reknit::reconciler::Key;

use super::{
    audit::{ADDRESSABLES, Write},
    cluster::Cluster,
    history::{History, Term},
    load::Load,
};

/// The time within which the API server receives what a replica was about to send before it was paused or its term ended, or
/// what a silent link held back.
const TIME_TO_SEND_ON: SignedDuration = SignedDuration::from_millis(250);

pub(super) struct Report {
    namespace: String,
    pub history: History,
    /// The time of the report.
    made: Timestamp,
    /// The writes of AddressableServices by the name of the object, in the order in which they took effect.
    writes: BTreeMap<String, Vec<Write>>,
}

/// A change by the test, and the time until a replica had reconciled it.
#[derive(Debug)]
pub(super) struct Reconciled {
    pub name: String,
    pub changed: Timestamp,
    pub took: Duration,
    /// The replica that reconciled the change.
    pub by: String,
}

/// A time in which a key had no leader.
#[derive(Debug)]
pub(super) struct Gap {
    pub key: String,
    /// The term before the gap.
    pub last: Term,
    /// The time at which the next leader started. The time of the report if there is none yet.
    pub end: Timestamp,
    pub length: Duration,
}

impl Report {
    pub(super) fn new(cluster: &Cluster) -> Self {
        let made = Timestamp::now();
        let all = cluster.writes();
        let history = History::new(&all, cluster.durations.renew_deadline);
        let mut writes: BTreeMap<String, Vec<Write>> = BTreeMap::new();
        for write in all.into_iter().filter(|write| write.resource == ADDRESSABLES) {
            writes.entry(write.name.clone()).or_default().push(write);
        }
        Self { namespace: cluster.objects.namespace.clone(), history, made, writes }
    }

    /// Stops the load, waits until its objects are reconciled, and makes the report.
    pub(super) async fn after(load: Load, cluster: &Cluster) -> Self {
        load.stop().await.wait_until_reconciled(&cluster.objects).await;
        Self::new(cluster)
    }

    /// Checks that each object had one leader at a time, and that no other replica wrote it. `resumptions` is that of
    /// [`assert_only_leaders_wrote`](Self::assert_only_leaders_wrote).
    pub(super) fn assert_led_by_one(&self, resumptions: &[(String, Timestamp)]) {
        self.assert_one_leader_at_a_time();
        self.assert_only_leaders_wrote(resumptions);
    }

    pub(super) fn key(&self, name: &str) -> Key {
        Key::new(self.namespace.as_str(), name)
    }

    /// Panics if the terms of two leaders of one key overlap.
    fn assert_one_leader_at_a_time(&self) {
        assert!(!self.history.terms().is_empty(), "no bucket was led");
        for name in self.writes.keys() {
            let terms = self.history.terms_of(&self.key(name));
            for pair in terms.windows(2) {
                assert!(pair[0].until <= pair[1].from, "two leaders of {name}: {pair:#?}");
            }
        }
    }

    /// Panics if the API server received a write from a replica that did not lead the object. Writes right after one of
    /// `resumptions`, the times at which replicas or links resumed, are counted apart: they were sent, or about to be
    /// sent, before. So are writes that arrive right after the term, before another replica leads.
    fn assert_only_leaders_wrote(&self, resumptions: &[(String, Timestamp)]) {
        let is_leader =
            |write: &Write| self.history.is_leader(&write.sender, &self.key(&write.name), write.received);
        let was_held_back = |write: &Write| {
            let mut of_sender = resumptions.iter().filter(|(replica, _)| *replica == write.sender);
            let key = self.key(&write.name);
            of_sender.any(|(_, time)| (*time..*time + TIME_TO_SEND_ON).contains(&write.received))
                || self.history.has_just_led(&write.sender, &key, write.received, TIME_TO_SEND_ON)
        };
        let (held_back, wrong): (Vec<_>, Vec<_>) = self
            .writes_of_replicas()
            .filter(|write| !is_leader(write))
            .partition(|write| was_held_back(write));
        let first = wrong.first().map(|write| self.describe(write));
        assert!(
            wrong.is_empty(),
            "{} writes without leadership, the first: {}",
            wrong.len(),
            first.unwrap_or_default()
        );
        println!(
            "{} writes of replicas; of those by a replica that no longer led the object, all {} were held back, and the \
             API server accepted {}",
            self.writes_of_replicas().count(),
            held_back.len(),
            held_back.iter().filter(|write| write.is_accepted()).count()
        );
    }

    /// A write, and the terms of the leaders of its object.
    fn describe(&self, write: &Write) -> String {
        let Write { sender, verb, subresource, name, received, .. } = write;
        let (terms, accepted) = (self.history.terms_of(&self.key(name)), write.is_accepted());
        format!("{sender} {verb} {name} {subresource} at {received}, accepted: {accepted}; terms: {terms:#?}")
    }

    pub(super) fn writes_of_replicas(&self) -> impl Iterator<Item = &Write> {
        self.writes.values().flatten().filter(|write| !write.is_by_test())
    }

    /// The times in which a key had no leader, after its first leader and up to now.
    pub(super) fn gaps(&self) -> Vec<Gap> {
        self.writes.keys().flat_map(|name| self.gaps_of(name)).collect()
    }

    fn gaps_of(&self, name: &str) -> Vec<Gap> {
        let terms = self.history.terms_of(&self.key(name));
        let starts = terms.iter().skip(1).map(|term| term.from).chain([self.made]);
        let gap = |(term, end): (&&Term, Timestamp)| {
            let length = Duration::try_from(end.duration_since(term.until)).ok()?;
            Some(Gap { key: name.to_owned(), last: Term::clone(term), end, length })
        };
        terms.iter().zip(starts).filter_map(gap).collect()
    }

    /// The changes by the test. An object that was deleted before a replica had written it is left out, and so is a change
    /// whose last step the log does not show.
    pub(super) fn reconciled(&self) -> Vec<Reconciled> {
        self.writes
            .values()
            .filter(|writes| !is_deleted_at_once(writes))
            .flat_map(|writes| reconciled(writes))
            .collect()
    }

    /// Panics if it took longer than `limit` until one of the changes since `from` was reconciled. On a busy machine
    /// everything takes longer, so the limit is higher by ten times the median of the changes before `from`.
    pub(super) fn assert_reconciled_within(&self, limit: Duration, from: Timestamp) {
        let (since, before): (Vec<_>, Vec<_>) =
            self.reconciled().into_iter().partition(|change| change.changed >= from);
        let longest = since.into_iter().max_by_key(|change| change.took).expect("a change");
        let mut undisturbed: Vec<_> = before.iter().map(|change| change.took).collect();
        undisturbed.sort();
        let median = undisturbed[undisturbed.len() / 2];
        let limit = limit + 10 * median;
        println!(
            "the longest time until a change was reconciled: {:?}, median {median:?} before, limit {limit:?}",
            longest.took
        );
        let terms = self.history.terms_of(&self.key(&longest.name));
        assert!(longest.took <= limit, "{longest:#?} took longer than {limit:?}; terms: {terms:#?}");
    }
}

/// Returns true if the API server deleted the object when the test requested it, since it had no finalizer yet.
fn is_deleted_at_once(writes: &[Write]) -> bool {
    writes.iter().any(|write| write.verb == "delete" && write.object["kind"] == "Status")
}

/// The changes of one object by the test.
fn reconciled(writes: &[Write]) -> Vec<Reconciled> {
    let changes = writes.iter().filter(|write| write.is_by_test() && write.is_accepted());
    changes.filter_map(|change| time_to_reconcile(change, writes)).collect()
}

/// Returns `None` if a write without a clear response may have completed the reconcile. Panics if none has.
fn time_to_reconcile(change: &Write, writes: &[Write]) -> Option<Reconciled> {
    let Some(completing) = writes.iter().find(|write| write.completes(change)) else {
        let may_complete =
            |write: &Write| !write.is_by_test() && write.is_unclear() && write.received >= change.received;
        assert!(writes.iter().any(may_complete), "never reconciled: {change:#?}; the writes: {writes:#?}");
        return None;
    };
    let took = completing.answered.duration_since(change.answered);
    Some(Reconciled {
        name: change.name.clone(),
        changed: change.answered,
        took: Duration::try_from(took).unwrap_or_default(),
        by: completing.sender.clone(),
    })
}
