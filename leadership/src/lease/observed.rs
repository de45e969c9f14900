//! The last observation of one Lease, and the write that it permits. These are the rules of the guard, without HTTP.

use std::mem;

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::MicroTime};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::LeaseState;

/// The `renewTime` that the lock reads for a lease that it may take: earlier than the time of any wall clock.
const EXPIRED: &str = "0001-01-01T00:00:00.000000Z";
/// The `renewTime` that the lock reads for a lease that it must not take: later than the time of any wall clock.
const VALID: &str = "9000-01-01T00:00:00.000000Z";
/// The highest number of transitions that the lock gets to see. The lock adds one to it, which must not overflow.
const MAX_TRANSITIONS: i64 = i32::MAX as i64 - 1;

/// A Lease as this process last observed it.
#[derive(Debug)]
pub(crate) struct ObservedLease {
    identity: String,
    last: Option<LeaseState>,
    permit: Option<WritePermit>,
    /// A state of the lease that the lock can read instead of the lease, if the lock has not read it yet: the answer to
    /// the last write of this process, or the state on which a refused write was based.
    known: Option<Value>,
    /// True after a write without a known result: the next read does not rely on the watch.
    is_doubtful: bool,
}

/// A state that the lock can read instead of the lease.
#[derive(Debug, PartialEq)]
pub(crate) enum KnownLease {
    Found(Value),
    Absent,
}

/// The write that the last read permits. Each permit allows one write.
#[derive(Debug, PartialEq, Eq)]
enum WritePermit {
    Create,
    Update { version: String, lease: Value },
}

impl ObservedLease {
    /// A lease that the process of this identity has not observed yet.
    pub(crate) fn new(identity: &str) -> Self {
        Self { identity: identity.into(), last: None, permit: None, known: None, is_doubtful: false }
    }

    /// Starts a read, which revokes the permit of an earlier one. Returns the known state, if any, which the lock can
    /// read instead of the lease: if another client has changed the lease since, the precondition of the next write
    /// fails. `watched` is the state that the watch has reported last, `None` without a watch.
    pub(crate) fn start_read(&mut self, watched: Option<Option<LeaseState>>) -> Option<KnownLease> {
        self.permit = None;
        let is_doubtful = mem::take(&mut self.is_doubtful);
        if let Some(known) = self.known.take() {
            return Some(KnownLease::Found(known));
        }
        match watched.filter(|_| !is_doubtful)? {
            None => self.last.is_none().then_some(KnownLease::Absent),
            Some(watched) => {
                self.adopt(watched.clone());
                self.last.as_ref().filter(|last| **last == watched)?;
                watched.to_json().map(KnownLease::Found)
            }
        }
    }

    /// Records that the API server refused a write that was based on this state, so that the next write needs no read.
    pub(crate) fn record_refusal(&mut self, lease: Value) {
        self.known = Some(lease);
        self.is_doubtful = false;
    }

    /// Records the answer to a successful write of this process.
    pub(crate) fn record_own_write(&mut self, lease: Value, now: Instant) {
        self.record_state(&lease, None, now);
        self.known = Some(lease);
        self.is_doubtful = false;
    }

    /// Takes over what the watch observed, unless this process has read a newer state. So even at its first
    /// read, a lease counts as expired once the watch has reported no change of it for its duration, or once its holder
    /// was proven dead.
    pub(crate) fn adopt(&mut self, watched: LeaseState) {
        let is_freed = |last: &LeaseState| {
            watched.freed.is_some() && (&last.uid, &last.spec) == (&watched.uid, &watched.spec)
        };
        if self.last.as_ref().is_none_or(|last| watched.since > last.since || is_freed(last)) {
            self.last = Some(watched);
        }
    }

    /// Records a read of the lease, and returns the lease for the lock: missing fields of a vacant lease are added, and
    /// the renewTime is set so that every wall clock decides as the monotonic clock did. `watched` is the state that the
    /// watch has reported last.
    pub(crate) fn record_found(
        &mut self,
        mut lease: Value,
        watched: Option<LeaseState>,
        now: Instant,
    ) -> Value {
        let version = lease["metadata"]["resourceVersion"].as_str();
        self.permit =
            version.map(|version| WritePermit::Update { version: version.into(), lease: lease.clone() });
        self.record_state(&lease, watched, now);
        let is_vacant = self.last.as_ref().is_none_or(|last| last.holder().is_none());
        let spec = spec_for_lock(&lease["spec"], is_vacant, self.is_taken(now));
        if let Value::Object(lease) = &mut lease {
            lease.insert("spec".into(), spec);
        }
        without_unreadable_times(lease)
    }

    /// Records the state of the lease, if it is a new one. The watch may have observed it earlier, even before the answer
    /// to a write of this process that came before it.
    fn record_state(&mut self, lease: &Value, watched: Option<LeaseState>, now: Instant) {
        // A lease that does not have the types of a Lease counts as vacant. The API server stores none.
        let lease: Lease =
            serde_json::from_value(without_unreadable_times(lease.clone())).unwrap_or_default();
        if !self.last.as_ref().is_some_and(|last| last.is_state_of(&lease)) {
            let watched = watched.filter(|watched| watched.is_state_of(&lease));
            self.last = Some(watched.unwrap_or_else(|| LeaseState::new(&lease, now)));
        }
    }

    /// Records that the lease does not exist. If it was deleted while another process held it, it may be created only
    /// after that holder's lease duration.
    pub(crate) fn record_absent(&mut self, now: Instant) {
        self.permit = (!self.is_taken(now)).then_some(WritePermit::Create);
    }

    /// Uses up the permit to create the lease. Returns false if there is none.
    pub(crate) fn take_create_permit(&mut self) -> bool {
        self.is_doubtful = true;
        self.permit.take_if(|permit| *permit == WritePermit::Create).is_some()
    }

    /// Uses up the permit. Returns the resourceVersion to use as the precondition of an update, with the state that has
    /// it, or `None` if no update is permitted.
    pub(crate) fn take_update_permit(&mut self) -> Option<(String, Value)> {
        self.is_doubtful = true;
        match self.permit.take() {
            Some(WritePermit::Update { version, lease }) => Some((version, lease)),
            _ => None,
        }
    }

    /// Returns true if another process holds the last observed lease, which has not expired.
    fn is_taken(&self, now: Instant) -> bool {
        let holder = self.last.as_ref().and_then(|last| last.live_holder(now));
        holder.is_some_and(|holder| holder != self.identity)
    }
}

/// Removes the times of a lease that cannot be read, such as the last day of the year 9999, by which somebody may mark a
/// lease as held for ever. Whether a lease is held does not depend on its times.
fn without_unreadable_times(mut lease: Value) -> Value {
    if let Some(spec) = lease.get_mut("spec").and_then(Value::as_object_mut) {
        let is_unreadable = |time: &Value| serde_json::from_value::<MicroTime>(time.clone()).is_err();
        for field in ["acquireTime", "renewTime"] {
            if spec.get(field).is_some_and(is_unreadable) {
                spec.remove(field);
            }
        }
    }
    lease
}

/// The spec that the lock gets to see.
fn spec_for_lock(spec: &Value, is_vacant: bool, is_taken: bool) -> Value {
    let transitions = spec["leaseTransitions"].as_i64().unwrap_or_default().clamp(0, MAX_TRANSITIONS);
    let mut rewritten = if spec.is_object() { spec.clone() } else { json!({}) };
    if is_vacant {
        rewritten["holderIdentity"] = json!("");
        rewritten["leaseDurationSeconds"] = json!(1);
    }
    rewritten["renewTime"] = json!(if is_taken { VALID } else { EXPIRED });
    rewritten["leaseTransitions"] = json!(transitions);
    rewritten
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn lease(spec: Value) -> Value {
        json!({"metadata": {"name": "l", "uid": "u", "resourceVersion": "7"}, "spec": spec})
    }

    fn held_by(holder: &str) -> Value {
        json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 2,
            "renewTime": "2020-01-01T00:00:00.000000Z", "acquireTime": "2020-01-01T00:00:00.000000Z"})
    }

    fn renew_time(observed: &mut ObservedLease, lease: &Value, now: Instant) -> String {
        observed.record_found(lease.clone(), None, now)["spec"]["renewTime"].as_str().unwrap().into()
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_expires_its_duration_after_it_was_observed_whatever_its_times_are() {
        let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
        let lease = lease(held_by("other"));
        assert_eq!(renew_time(&mut observed, &lease, start), VALID);
        assert_eq!(renew_time(&mut observed, &lease, after(start, 15)), VALID);
        assert_eq!(renew_time(&mut observed, &lease, after(start, 16)), EXPIRED);
    }

    #[test]
    fn a_lease_that_was_written_to_last_for_decades_is_held_for_ten_minutes() {
        let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
        let mut lease = lease(held_by("other"));
        lease["spec"]["leaseDurationSeconds"] = json!(i32::MAX);
        for (second, expected) in [(0, VALID), (600, VALID), (601, EXPIRED)] {
            assert_eq!(renew_time(&mut observed, &lease, after(start, second)), expected, "after {second} s");
        }
    }

    /// They are beyond the range of a timestamp.
    #[test]
    fn a_lease_whose_times_cannot_be_read_is_held_for_its_duration() {
        let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
        let mut lease = lease(held_by("other"));
        for time in ["acquireTime", "renewTime"] {
            lease["spec"][time] = json!("9999-12-31T23:59:59.999999Z");
        }
        for (second, expected) in [(0, VALID), (15, VALID), (16, EXPIRED)] {
            let found = observed.record_found(lease.clone(), None, after(start, second));
            assert_eq!(found["spec"]["renewTime"], expected, "after {second} s");
            assert!(serde_json::from_value::<Lease>(found).is_ok(), "the lock could not read it");
        }
    }

    #[test]
    fn a_changed_spec_or_uid_starts_the_duration_again() {
        for (field, section) in [("renewTime", "spec"), ("uid", "metadata")] {
            let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
            let mut lease = lease(held_by("other"));
            renew_time(&mut observed, &lease, start);
            lease[section][field] = json!("2021-01-01T00:00:00.000000Z");
            assert_eq!(renew_time(&mut observed, &lease, after(start, 10)), VALID);
            assert_eq!(renew_time(&mut observed, &lease, after(start, 20)), VALID);
            assert_eq!(renew_time(&mut observed, &lease, after(start, 26)), EXPIRED);
        }
    }

    /// The watch may report the next holder even before the answer to the release arrives.
    #[test]
    fn a_lease_that_another_process_took_after_a_release_expires_its_duration_after_the_watch_reported_it() {
        let start = Instant::now();
        let taken = lease(held_by("other"));
        for since in [start, after(start, 2)] {
            let mut observed = ObservedLease::new("me");
            observed.record_own_write(lease(json!({"holderIdentity": ""})), after(start, 1));
            let spec = serde_json::from_value(taken["spec"].clone()).unwrap();
            let watched = LeaseState {
                uid: Some("u".into()),
                version: None,
                spec,
                last_writes: None,
                since,
                freed: None,
            };
            // The first read returns the answer to the release, and the write that follows conflicts.
            let Some(KnownLease::Found(released)) = observed.start_read(None) else { panic!("unknown") };
            assert_eq!(renew_time(&mut observed, &released, after(start, 18)), EXPIRED);
            assert_eq!(observed.start_read(None), None);
            observed.adopt(watched.clone());
            let found = observed.record_found(taken.clone(), Some(watched), after(start, 18));
            assert_eq!(found["spec"]["renewTime"], EXPIRED);
        }
    }

    #[test]
    fn edited_labels_do_not_keep_a_dead_holder_alive() {
        let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
        let mut lease = lease(held_by("dead"));
        for second in 0..=15 {
            lease["metadata"]["labels"] = json!({"touched": second.to_string()});
            lease["metadata"]["resourceVersion"] = json!(second.to_string());
            assert_eq!(renew_time(&mut observed, &lease, after(start, second)), VALID);
        }
        assert_eq!(renew_time(&mut observed, &lease, after(start, 16)), EXPIRED);
    }

    #[test]
    fn the_lock_sees_a_vacant_lease_as_complete_and_expired() {
        let vacant = [
            Value::Null,
            json!({}),
            json!({"holderIdentity": null, "leaseDurationSeconds": 15}),
            json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
            json!({"holderIdentity": "other", "renewTime": "2020-01-01T00:00:00.000000Z"}),
        ];
        for spec in vacant {
            let rewritten = ObservedLease::new("me").record_found(lease(spec), None, Instant::now());
            assert_eq!(
                rewritten["spec"],
                json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0, "renewTime": EXPIRED})
            );
        }
    }

    #[test]
    fn transitions_are_capped_so_that_one_more_does_not_overflow() {
        let mut spec = held_by("other");
        spec["leaseTransitions"] = json!(i32::MAX);
        let rewritten = ObservedLease::new("me").record_found(lease(spec), None, Instant::now());
        assert_eq!(rewritten["spec"]["leaseTransitions"], json!(i32::MAX - 1));
    }

    #[test]
    fn one_read_permits_one_write() {
        let (mut observed, now) = (ObservedLease::new("me"), Instant::now());
        assert_eq!(observed.take_update_permit(), None);
        observed.record_found(lease(held_by("me")), None, now);
        assert_eq!(observed.take_update_permit().unwrap().0, "7");
        assert_eq!(observed.take_update_permit(), None);
    }

    #[test]
    fn a_failed_read_permits_no_write() {
        let (mut observed, now) = (ObservedLease::new("me"), Instant::now());
        observed.record_found(lease(held_by("me")), None, now);
        observed.start_read(None);
        assert_eq!(observed.take_update_permit(), None);
        assert!(!observed.take_create_permit());
    }

    #[test]
    fn an_absent_lease_may_be_created_once_and_not_updated() {
        let (mut observed, now) = (ObservedLease::new("me"), Instant::now());
        observed.record_absent(now);
        assert!(observed.take_create_permit());
        assert!(!observed.take_create_permit());
        observed.record_absent(now);
        assert_eq!(observed.take_update_permit(), None);
    }

    #[test]
    fn a_lease_deleted_while_another_process_held_it_is_not_created_before_it_would_have_expired() {
        let (mut observed, start) = (ObservedLease::new("me"), Instant::now());
        observed.record_found(lease(held_by("other")), None, start);
        observed.record_absent(after(start, 15));
        assert!(!observed.take_create_permit());
        observed.record_absent(after(start, 16));
        assert!(observed.take_create_permit());
    }

    #[test]
    fn a_lease_deleted_while_this_process_held_it_is_created_at_once() {
        let (mut observed, now) = (ObservedLease::new("me"), Instant::now());
        observed.record_found(lease(held_by("me")), None, now);
        observed.record_absent(now);
        assert!(observed.take_create_permit());
    }
}
