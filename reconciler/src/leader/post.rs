//! One bucket's place in a process's leadership, with everybody who is told when it changes: log and metric.

use k8s_openapi::api::coordination::v1::Lease;
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{Identity, leadership::Chair};

/// The bucket's place in [`Leadership`](super::Leadership), with everybody who is told when it changes.
#[derive(Clone)]
pub(super) struct Post {
    chair: Chair,
    identity: Identity,
    status: Option<IntGauge>,
}

impl Post {
    pub(super) fn new(chair: Chair, identity: Identity, status: Option<IntGauge>) -> Self {
        let post = Self { chair, identity, status };
        post.show();
        post
    }

    /// The name of the lease.
    pub(super) fn lease(&self) -> &str {
        self.chair.name()
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn leads(&self) -> bool {
        self.chair.leads()
    }

    /// The lease is ours until then.
    pub(super) fn lead(&self, until: Instant) {
        if self.chair.lead(until) {
            info!(lease = self.chair.name(), identity = %self.identity, "became leader");
            self.show();
        }
    }

    /// The lease is somebody else's.
    pub(super) fn elsewhere(&self, lease: &Lease) {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if self.chair.elsewhere() {
            info!(lease = self.chair.name(), identity = %self.identity, holder, "lease is held by another process");
            self.show();
        }
    }

    /// Leads no longer, by its own will.
    pub(super) fn resign(&self) {
        if self.chair.vacate() {
            info!(lease = self.chair.name(), identity = %self.identity, "stopped leading");
            self.show();
        }
    }

    /// Ends leadership whenever it was not renewed in time, whatever the attempts are waiting for.
    pub(super) async fn end_in_time(self) {
        loop {
            let until = self.chair.until().await;
            sleep_until(until).await;
            if self.chair.expire() {
                warn!(lease = self.chair.name(), identity = %self.identity,
                    "stopped leading: the lease was not renewed before the renew deadline");
                self.show();
            }
        }
    }

    fn show(&self) {
        if let Some(status) = &self.status {
            status.set(self.chair.leads().into());
        }
    }
}
