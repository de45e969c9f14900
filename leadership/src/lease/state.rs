//! An observed state of one Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{config::MAX_LEASE_DURATION, last_writes::LAST_WRITES};

/// Added to the expiry of a lease by those who wait for it: a lease is held up to and including its expiry.
pub(crate) const TICK: Duration = Duration::from_millis(1);

/// A state of one Lease, and the time at which this process first observed it.
///
/// Expiry is measured by the local monotonic clock since that time, never by the times in the lease. A change of the
/// metadata alone does not make a new state: an edited label must not keep a dead holder's lease valid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseState {
    pub(crate) uid: Option<String>,
    /// The resourceVersion, which also changes with the metadata.
    pub(crate) version: Option<String>,
    pub(crate) spec: LeaseSpec,
    /// The annotation with the last writes of the holder that released the lease.
    pub(crate) last_writes: Option<String>,
    pub(crate) since: Instant,
    /// The time from which the lease is free although it has not expired: its holder was proven dead.
    pub(crate) freed: Option<Instant>,
}

impl LeaseState {
    /// The state of a lease that was observed at this time.
    pub(crate) fn new(lease: &Lease, since: Instant) -> Self {
        let last_writes = lease.annotations().get(LAST_WRITES).cloned();
        let Lease { metadata, spec } = lease.clone();
        Self {
            uid: metadata.uid,
            version: metadata.resource_version,
            spec: spec.unwrap_or_default(),
            last_writes,
            since,
            freed: None,
        }
    }

    /// The lease in this state, as far as a write of it needs it. `None` without a resourceVersion.
    pub(crate) fn to_json(&self) -> Option<Value> {
        let mut metadata = json!({"uid": self.uid, "resourceVersion": self.version.as_ref()?});
        if let Some(last_writes) = &self.last_writes {
            metadata["annotations"] = json!({ LAST_WRITES: last_writes });
        }
        Some(json!({"metadata": metadata, "spec": self.spec}))
    }

    pub(crate) fn is_state_of(&self, lease: &Lease) -> bool {
        self.uid == lease.metadata.uid && self.spec == lease.spec.clone().unwrap_or_default()
    }

    /// Returns true if the lease names this holder, even if it has expired.
    pub(crate) fn names(&self, holder: &str) -> bool {
        self.spec.holder_identity.as_deref() == Some(holder)
    }

    /// The time for which the lease was written to last. `None` if it is not positive.
    fn stored_duration(&self) -> Option<Duration> {
        let seconds = self.spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs)
    }

    /// The stored duration, if no replica writes such a long one. Then somebody edited the lease.
    pub(crate) fn excessive_duration(&self) -> Option<Duration> {
        self.stored_duration().filter(|duration| *duration > MAX_LEASE_DURATION)
    }

    /// The holder and the time at which the lease expires or is free. `None` for a vacant lease.
    ///
    /// A lease lasts for the [`MAX_LEASE_DURATION`] at most, so whoever writes a longer duration cannot hold a lease for
    /// longer than it can write.
    pub(crate) fn holder(&self) -> Option<(&str, Instant)> {
        let holder = self.spec.holder_identity.as_deref().filter(|holder| !holder.is_empty())?;
        let expiry = self.since + self.stored_duration()?.min(MAX_LEASE_DURATION);
        Some((holder, self.freed.map_or(expiry, |freed| freed.min(expiry))))
    }

    /// The holder, if the lease has not expired.
    pub(crate) fn live_holder(&self, now: Instant) -> Option<&str> {
        self.holder().filter(|(_, expiry)| now <= *expiry).map(|(holder, _)| holder)
    }

    /// The time since which the lease may be taken: its release or its expiry. For a held lease, it lies in the future.
    pub(crate) fn free_since(&self) -> Instant {
        self.holder().map_or(self.since, |(_, expiry)| expiry)
    }
}
