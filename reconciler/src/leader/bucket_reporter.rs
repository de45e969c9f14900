//! Writes the state of one bucket, and reports each change in the log and as a metric.

use k8s_openapi::api::coordination::v1::Lease;
use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{Identity, bucket_state::BucketWriter};

#[derive(Clone)]
pub(super) struct BucketReporter {
    bucket: BucketWriter,
    identity: Identity,
    gauge: Option<IntGauge>,
}

impl BucketReporter {
    pub(super) fn new(bucket: BucketWriter, identity: Identity, gauge: Option<IntGauge>) -> Self {
        let reporter = Self { bucket, identity, gauge };
        reporter.set_gauge();
        reporter
    }

    /// The name of the lease.
    pub(super) fn lease(&self) -> &str {
        self.bucket.name()
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(super) fn leads(&self) -> bool {
        self.bucket.leads()
    }

    pub(super) fn set_leading(&self, until: Instant) {
        if self.bucket.set_leading(until) {
            info!(lease = self.lease(), identity = %self.identity, "became leader");
            self.set_gauge();
        }
    }

    pub(super) fn set_led_by_other(&self, lease: &Lease) {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
        if self.bucket.set_led_by_other() {
            info!(lease = self.lease(), identity = %self.identity, holder, "lease is held by another process");
            self.set_gauge();
        }
    }

    pub(super) fn resign(&self) {
        if self.bucket.set_unknown() {
            info!(lease = self.lease(), identity = %self.identity, "stopped leading");
            self.set_gauge();
        }
    }

    /// Ends each term at its deadline, independently of the attempts to renew. Never returns.
    pub(super) async fn expire_terms(self) {
        loop {
            sleep_until(self.bucket.deadline().await).await;
            if self.bucket.expire() {
                warn!(lease = self.lease(), identity = %self.identity,
                    "stopped leading: the lease was not renewed before the renew deadline");
                self.set_gauge();
            }
        }
    }

    fn set_gauge(&self) {
        if let Some(gauge) = &self.gauge {
            gauge.set(self.leads().into());
        }
    }
}
