//! Announces this process to the other replicas, by a Lease of its own.

use std::{collections::BTreeSet, future::Future, pin::pin, sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Client, api::DeleteParams};
use kube_leader_election::{LeaseLock, LeaseLockResult};
use parking_lot::Mutex;
use reknit_injection::internal::LogLimit;
use serde_json::json;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{Announcement, balance::TICK};
use crate::{
    Identity, LeaderElectionConfig,
    config::is_lease_name,
    lease::{Guard, LeaseError, LeaseWatch},
};

/// The time to delete the lease at the end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of characters at the end of an identity that make it unique.
const UUID_LENGTH: usize = 36;

/// A process that announces itself, so that the replicas of a component can divide the buckets among them.
///
/// The process has a Lease of its own, named `<component>.member.<identity>`. Its annotations hold the number of buckets
/// and the names of the controllers that run. It is deleted when the process stops, and with the Pod that owns it.
#[must_use = "other replicas do not know of this process unless the member runs"]
pub struct Member {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) component: String,
    pub(crate) identity: Identity,
    pub(crate) config: LeaderElectionConfig,
    pub(crate) watch: LeaseWatch,
    pub(crate) owner: Option<OwnerReference>,
    /// The controllers whose electors run.
    pub(crate) controllers: watch::Receiver<BTreeSet<String>>,
    pub(crate) valid_until: Arc<Mutex<Option<Instant>>>,
}

impl Member {
    /// Announces the controllers whose electors run, until `stopping` resolves. Then deletes the lease.
    ///
    /// Announces nothing while leases cannot be watched, since this process would not know of the other members.
    pub async fn run(self, stopping: impl Future<Output = ()> + Send) {
        let mut stopping = pin!(stopping);
        tokio::select! {
            () = self.announce() => {}
            () = &mut stopping => {}
        }
        if self.valid_until.lock().take().is_some() && timeout(LEAVE_TIMEOUT, self.leave()).await.is_err() {
            warn!(lease = self.lease_name(), "the lease of this member was not deleted in time, and expires");
        }
    }

    /// Renews the lease at each retry period, and at once if other controllers run. Deletes the leases of members that
    /// died meanwhile. Never resolves.
    async fn announce(&self) {
        self.watch.synced().await;
        let mut controllers = self.controllers.clone();
        let mut log_limit = LogLimit::default();
        loop {
            let running = controllers.borrow_and_update().clone();
            let lock = self.lock(&running);
            while !running.is_empty() {
                self.attempt(&lock, &mut log_limit).await;
                // An API server that does not answer must not delay the next renewal for long.
                timeout(self.config.retry_period, self.delete_dead_members()).await.ok();
                tokio::select! {
                    () = sleep_until(self.next_attempt()) => {}
                    _ = controllers.changed() => break,
                }
            }
            if running.is_empty() && controllers.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The end of the retry period, or the time at which the lease of another member expires and has to be deleted.
    fn next_attempt(&self) -> Instant {
        let retry = Instant::now() + self.config.retry_period;
        let expiry = self.watch.next_member_expiry(&self.component);
        expiry.map_or(retry, |expiry| retry.min(expiry + TICK))
    }

    /// Acquires or renews the lease once.
    async fn attempt(&self, lock: &LeaseLock, log_limit: &mut LogLimit<LeaseError>) {
        let start = Instant::now();
        match lock.try_acquire_or_renew().await {
            Ok(LeaseLockResult::Acquired(_)) => {
                *self.valid_until.lock() = Some(start + self.config.renew_deadline);
                log_limit.reset();
            }
            Ok(LeaseLockResult::NotAcquired(_)) => {
                warn!(lease = self.lease_name(), "the lease of this member is held by another process");
            }
            Err(error) => {
                let error = LeaseError::from(&error);
                if log_limit.allows(&error) {
                    warn!(lease = self.lease_name(), namespace = self.namespace, "{error}");
                }
            }
        }
    }

    fn lock(&self, controllers: &BTreeSet<String>) -> LeaseLock {
        let announcement = Announcement {
            component: self.component.clone(),
            buckets: self.config.buckets,
            controllers: controllers.clone(),
        };
        let mut metadata = announcement.metadata();
        if let Some(owner) = &self.owner {
            metadata["ownerReferences"] = json!([owner]);
        }
        let guard = Guard {
            client: self.client.clone(),
            identity: self.identity.to_string(),
            lease: self.lease_name(),
            watch: LeaseWatch::none(),
            metadata,
        };
        guard.lock(&self.namespace, &self.config)
    }

    /// Deletes the expired leases of members, such as those of killed processes. A process that starts now cannot know
    /// that such a lease has expired, and would count its member as alive. A member that comes back creates its lease
    /// again. If a member has renewed its lease although the watch did not report that, the API server refuses.
    async fn delete_dead_members(&self) {
        let dead = self.watch.dead_members(&self.component);
        for (name, preconditions) in dead.into_iter().filter(|(name, _)| *name != self.lease_name()) {
            let deletion = DeleteParams { preconditions: Some(preconditions), ..Default::default() };
            if let Err(error) = self.leases().delete(&name, &deletion).await {
                debug!(lease = name, %error, "the lease of a dead member was not deleted");
            }
        }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn leave(&self) {
        let leases = self.leases();
        if let Err(error) = leases.delete(&self.lease_name(), &DeleteParams::default()).await {
            debug!(lease = self.lease_name(), %error, "the lease of this member was not deleted, and expires");
        }
    }

    /// The name of the lease: with the identity, or with its unique part alone if the host name is no part of a name.
    fn lease_name(&self) -> String {
        let name =
            |part: &str| format!("{}.member.{}", self.component, part.replace('_', "-")).to_lowercase();
        let (whole, identity) = (name(self.identity.as_str()), self.identity.as_str());
        let unique = identity.get(identity.len().saturating_sub(UUID_LENGTH)..).unwrap_or_default();
        if is_lease_name(&whole) { whole } else { name(unique) }
    }
}
