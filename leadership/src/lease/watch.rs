//! The watch of the Leases in the system namespace, which all electors of a process share.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{ResourceExt, api::Preconditions};
use reknit_injection::{Change, Informer, InformerState};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{LeaseState, Leases};

#[derive(Clone)]
pub(crate) struct LeaseWatch {
    leases: Arc<watch::Sender<Leases>>,
    source: Source,
}

#[derive(Clone)]
enum Source {
    /// Leases are not watched.
    None,
    Informer(Informer<Lease>),
    /// The fake API server of a test, which is always synced.
    #[cfg(test)]
    Fake,
}

impl LeaseWatch {
    /// Creates the watch of a process that does not watch leases. Its electors poll.
    pub(crate) fn none() -> Self {
        Self { leases: Arc::default(), source: Source::None }
    }

    /// Creates the watch of a test, which has to call [`record`](Self::record).
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        Self { leases: Arc::default(), source: Source::Fake }
    }

    /// Creates the watch from an informer of the system namespace that is not started yet.
    pub(crate) fn of(informer: Informer<Lease>) -> Self {
        let watch = Self { leases: Arc::default(), source: Source::Informer(informer.clone()) };
        // The handler must not hold the informer, which holds the handler.
        let recorder = Self { source: Source::None, ..watch.clone() };
        informer.on(move |change| match change {
            Change::Deleted { last } => recorder.record_deletion(&last.name_any()),
            Change::Added(lease) | Change::Updated { new: lease, .. } => recorder.record(lease),
        });
        watch
    }

    pub(crate) fn record(&self, lease: &Lease) {
        self.leases.send_if_modified(|leases| leases.record(lease, Instant::now()));
    }

    pub(crate) fn record_deletion(&self, name: &str) {
        self.leases.send_modify(|leases| leases.record_deletion(name, Instant::now()));
    }

    /// Returns true if leases are watched and the first list has arrived.
    pub(crate) fn is_synced(&self) -> bool {
        match &self.source {
            Source::None => false,
            Source::Informer(informer) => matches!(informer.state(), InformerState::Synced { .. }),
            #[cfg(test)]
            Source::Fake => true,
        }
    }

    /// Waits for the first list, for at most this time.
    pub(crate) async fn wait_until_synced(&self, limit: Duration) {
        if let Source::Informer(informer) = &self.source
            && timeout(limit, informer.handle().synced()).await.is_err()
        {
            tracing::warn!(
                "leases are not watched, which requires list and watch on leases: a lease is taken with a delay of up \
                 to the retry period, and replicas do not share buckets"
            );
        }
    }

    /// Waits for the first list. Never resolves if leases are not watched.
    pub(crate) async fn synced(&self) {
        match &self.source {
            Source::None => std::future::pending().await,
            Source::Informer(informer) => informer.handle().synced().await,
            #[cfg(test)]
            Source::Fake => {}
        }
    }

    /// The leases of dead members at this moment, from [`Leases::dead_members`].
    pub(crate) fn dead_members(&self, component: &str) -> Vec<(String, Preconditions)> {
        self.leases.borrow().dead_members(component, Instant::now())
    }

    /// The time at which the next member's lease expires, from [`Leases::next_member_expiry`].
    pub(crate) fn next_member_expiry(&self, component: &str) -> Option<Instant> {
        self.leases.borrow().next_member_expiry(component, Instant::now())
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Leases> {
        self.leases.subscribe()
    }

    /// The last observed state of the lease, if any.
    pub(crate) fn state(&self, name: &str) -> Option<LeaseState> {
        self.leases.borrow().get(name).cloned()
    }
}
