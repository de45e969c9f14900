//! The watch of the Leases in the system namespace, which all electors of a process share.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use reknit_injection::{Change, Informer, internal::watch};
use tokio::time::{Instant, timeout};

use super::{LeaseState, Leases};

/// The Leases that a process observes. The default watches none.
#[derive(Clone, Default)]
pub(crate) struct LeaseWatch {
    leases: Arc<watch::Sender<Leases>>,
    /// `None` if leases are not watched. The electors poll then.
    informer: Option<Informer<Lease>>,
}

impl LeaseWatch {
    /// Creates the watch from an informer of the system namespace that is not started yet.
    pub(crate) fn of(informer: Informer<Lease>) -> Self {
        let leases: Arc<watch::Sender<Leases>> = Arc::default();
        let recorded = leases.clone(); // the handler must not hold the informer, which holds the handler
        informer.on(move |change| {
            let now = Instant::now();
            recorded.send_if_modified(|leases| match change {
                Change::Deleted { last } => leases.record_deletion(&last.name_any(), now),
                Change::Added(lease) | Change::Updated { new: lease, .. } => leases.record(lease, now),
            });
        });
        Self { leases, informer: Some(informer) }
    }

    /// Returns true if leases are watched and the first list has arrived.
    pub(crate) fn is_synced(&self) -> bool {
        let is_synced = |informer: &Informer<Lease>| informer.state().is_synced();
        self.informer.as_ref().is_some_and(is_synced)
    }

    /// Waits for the first list, for at most this time.
    pub(crate) async fn wait_until_synced(&self, limit: Duration) {
        if self.informer.is_some() && timeout(limit, self.synced()).await.is_err() {
            tracing::warn!(
                "leases are not watched, which requires list and watch on leases: a lease is taken with a delay of up \
                 to the retry period, and replicas do not share buckets"
            );
        }
    }

    /// Waits for the first list. Never resolves if leases are not watched.
    pub(crate) async fn synced(&self) {
        match &self.informer {
            Some(informer) => informer.synced().await,
            None => std::future::pending().await,
        }
    }

    /// The leases at this moment. The watch reports no change while the result is held.
    pub(crate) fn read(&self) -> watch::Ref<'_, Leases> {
        self.leases.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Leases> {
        self.leases.subscribe()
    }

    /// Records that a holder was proven dead, and wakes the electors.
    pub(crate) fn record_death(&self, holder: &str, free: Instant) {
        self.leases.send_modify(|leases| leases.record_death(holder, free));
    }

    /// Wakes the electors, as a change of a lease does.
    pub(crate) fn wake(&self) {
        self.leases.send_modify(|_| {});
    }

    /// The last observed state of the lease, if any.
    pub(crate) fn state(&self, name: &str) -> Option<LeaseState> {
        self.read().get(name).cloned()
    }
}
