//! What one process saw of one Lease and may therefore do to it: the rules of the guard, without HTTP.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

/// Shown as `renewTime` of a lease that may be taken: long ago by any clock.
const EXPIRED: &str = "0001-01-01T00:00:00.000000Z";
/// Shown as `renewTime` of a lease that may not be taken: far away by any clock.
const VALID: &str = "9000-01-01T00:00:00.000000Z";
/// Whoever takes a lease adds one to its transitions, which must not overflow.
const TRANSITIONS: i64 = i32::MAX as i64 - 1;

/// The Lease as this process last saw it, and what that entitles it to.
///
/// Expiry is judged by the local monotonic clock since uid or spec were last seen to change, never by the times
/// written in the lease. Its resourceVersion does not count: an edited label must not keep a dead holder alive.
#[derive(Debug)]
pub(super) struct Sightings {
    identity: String,
    last: Option<Sighting>,
    licence: Option<Licence>,
}

#[derive(Debug)]
struct Sighting {
    uid: Value,
    spec: Value,
    since: Instant,
}

/// One read entitles to one write, of what was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Licence {
    Create,
    Update { version: String },
}

impl Sightings {
    /// For the process of this identity, which has seen nothing yet.
    pub(super) fn new(identity: &str) -> Self {
        Self { identity: identity.into(), last: None, licence: None }
    }

    /// A read began: what earlier ones entitled to is over.
    pub(super) fn begin(&mut self) {
        self.licence = None;
    }

    /// The lease was read. Returns it as the lock has to see it: vacant leases filled in, and a renewTime that
    /// says by any wall clock what the monotonic one says.
    pub(super) fn read(&mut self, mut lease: Value, now: Instant) -> Value {
        let version = lease["metadata"]["resourceVersion"].as_str();
        self.licence = version.map(|version| Licence::Update { version: version.into() });
        self.remember(&lease, now);
        let spec = shown(&lease["spec"], self.taken(now));
        if let Value::Object(lease) = &mut lease {
            lease.insert("spec".into(), spec);
        }
        lease
    }

    /// There is no such lease. One that somebody else held a moment ago, and that was deleted under him, is only
    /// created anew once its time has run out.
    pub(super) fn absent(&mut self, now: Instant) {
        self.licence = (!self.taken(now)).then_some(Licence::Create);
    }

    /// Uses up the licence to create.
    pub(super) fn create(&mut self) -> bool {
        self.licence.take_if(|licence| *licence == Licence::Create).is_some()
    }

    /// Uses up the licence to update: the version that has to be the precondition of the write.
    pub(super) fn update(&mut self) -> Option<String> {
        match self.licence.take() {
            Some(Licence::Update { version }) => Some(version),
            _ => None,
        }
    }

    fn remember(&mut self, lease: &Value, now: Instant) {
        let (uid, spec) = (&lease["metadata"]["uid"], &lease["spec"]);
        if self.last.as_ref().is_none_or(|last| last.uid != *uid || last.spec != *spec) {
            self.last = Some(Sighting { uid: uid.clone(), spec: spec.clone(), since: now });
        }
    }

    /// Whether somebody else holds the lease last seen, and his time has not run out.
    fn taken(&self, now: Instant) -> bool {
        self.last.as_ref().is_some_and(|last| {
            held(&last.spec).is_some_and(|(holder, duration)| {
                holder != self.identity && now.saturating_duration_since(last.since) <= duration
            })
        })
    }
}

/// Who holds a lease and for how long without renewing it; none for a vacant one.
fn held(spec: &Value) -> Option<(&str, Duration)> {
    let holder = spec["holderIdentity"].as_str().filter(|holder| !holder.is_empty())?;
    let seconds = spec["leaseDurationSeconds"].as_u64().filter(|seconds| *seconds > 0)?;
    Some((holder, Duration::from_secs(seconds)))
}

fn shown(spec: &Value, taken: bool) -> Value {
    let transitions = spec["leaseTransitions"].as_i64().unwrap_or_default().clamp(0, TRANSITIONS);
    let mut shown = spec.as_object().cloned().unwrap_or_else(Map::new);
    if held(spec).is_none() {
        shown.insert("holderIdentity".into(), json!(""));
        shown.insert("leaseDurationSeconds".into(), json!(1));
    }
    shown.insert("renewTime".into(), json!(if taken { VALID } else { EXPIRED }));
    shown.insert("leaseTransitions".into(), json!(transitions));
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(spec: Value) -> Value {
        json!({"metadata": {"name": "l", "uid": "u", "resourceVersion": "7"}, "spec": spec})
    }

    fn held_by(holder: &str) -> Value {
        json!({"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 2,
            "renewTime": "2020-01-01T00:00:00.000000Z", "acquireTime": "2020-01-01T00:00:00.000000Z"})
    }

    fn renew_time(seen: &mut Sightings, lease: &Value, now: Instant) -> String {
        seen.read(lease.clone(), now)["spec"]["renewTime"].as_str().unwrap().into()
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_valid_for_its_holders_duration_after_it_was_first_seen_whatever_its_times_say() {
        let (mut seen, start) = (Sightings::new("me"), Instant::now());
        let lease = lease(held_by("other"));
        assert_eq!(renew_time(&mut seen, &lease, start), VALID);
        assert_eq!(renew_time(&mut seen, &lease, after(start, 15)), VALID);
        assert_eq!(renew_time(&mut seen, &lease, after(start, 16)), EXPIRED);
    }

    #[test]
    fn a_changed_spec_or_uid_starts_the_duration_again() {
        for (field, section) in [("renewTime", "spec"), ("uid", "metadata")] {
            let (mut seen, start) = (Sightings::new("me"), Instant::now());
            let mut lease = lease(held_by("other"));
            renew_time(&mut seen, &lease, start);
            lease[section][field] = json!("2021-01-01T00:00:00.000000Z");
            assert_eq!(renew_time(&mut seen, &lease, after(start, 10)), VALID);
            assert_eq!(renew_time(&mut seen, &lease, after(start, 20)), VALID);
            assert_eq!(renew_time(&mut seen, &lease, after(start, 26)), EXPIRED);
        }
    }

    #[test]
    fn edited_labels_do_not_keep_a_dead_holder_alive() {
        let (mut seen, start) = (Sightings::new("me"), Instant::now());
        let mut lease = lease(held_by("dead"));
        for second in 0..=15 {
            lease["metadata"]["labels"] = json!({"touched": second.to_string()});
            lease["metadata"]["resourceVersion"] = json!(second.to_string());
            assert_eq!(renew_time(&mut seen, &lease, after(start, second)), VALID);
        }
        assert_eq!(renew_time(&mut seen, &lease, after(start, 16)), EXPIRED);
    }

    #[test]
    fn a_vacant_lease_is_shown_whole_and_expired() {
        let vacant = [
            Value::Null,
            json!({}),
            json!({"holderIdentity": null, "leaseDurationSeconds": 15}),
            json!({"holderIdentity": "", "leaseDurationSeconds": 1}),
            json!({"holderIdentity": "other", "renewTime": "2020-01-01T00:00:00.000000Z"}),
        ];
        for spec in vacant {
            let shown = Sightings::new("me").read(lease(spec), Instant::now());
            assert_eq!(
                shown["spec"],
                json!({"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0, "renewTime": EXPIRED})
            );
        }
    }

    #[test]
    fn transitions_leave_room_for_one_more() {
        let mut spec = held_by("other");
        spec["leaseTransitions"] = json!(i32::MAX);
        let shown = Sightings::new("me").read(lease(spec), Instant::now());
        assert_eq!(shown["spec"]["leaseTransitions"], json!(i32::MAX - 1));
    }

    #[test]
    fn one_read_entitles_to_one_write() {
        let (mut seen, now) = (Sightings::new("me"), Instant::now());
        assert_eq!(seen.update(), None);
        seen.read(lease(held_by("me")), now);
        assert_eq!(seen.update().as_deref(), Some("7"));
        assert_eq!(seen.update(), None);
    }

    #[test]
    fn a_read_that_failed_entitles_to_nothing() {
        let (mut seen, now) = (Sightings::new("me"), Instant::now());
        seen.read(lease(held_by("me")), now);
        seen.begin();
        assert_eq!(seen.update(), None);
        assert!(!seen.create());
    }

    #[test]
    fn an_absent_lease_may_be_created_once_and_not_updated() {
        let (mut seen, now) = (Sightings::new("me"), Instant::now());
        seen.absent(now);
        assert!(seen.create());
        assert!(!seen.create());
        seen.absent(now);
        assert_eq!(seen.update(), None);
    }

    #[test]
    fn a_lease_deleted_under_its_holder_is_not_created_before_its_time_ran_out() {
        let (mut seen, start) = (Sightings::new("me"), Instant::now());
        seen.read(lease(held_by("other")), start);
        seen.absent(after(start, 15));
        assert!(!seen.create());
        seen.absent(after(start, 16));
        assert!(seen.create());
    }

    #[test]
    fn a_lease_deleted_under_us_is_created_at_once() {
        let (mut seen, now) = (Sightings::new("me"), Instant::now());
        seen.read(lease(held_by("me")), now);
        seen.absent(now);
        assert!(seen.create());
    }
}
