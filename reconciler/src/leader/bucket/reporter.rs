//! Writes the state of one bucket, and reports each change in the log and as a metric.

use prometheus::IntGauge;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::BucketWriter;
use crate::leader::Identity;

#[derive(Clone)]
pub(crate) struct BucketReporter {
    bucket: BucketWriter,
    identity: Identity,
    gauge: Option<IntGauge>,
}

impl BucketReporter {
    pub(crate) fn new(bucket: BucketWriter, identity: Identity, gauge: Option<IntGauge>) -> Self {
        let reporter = Self { bucket, identity, gauge };
        reporter.set_gauge();
        reporter
    }

    /// The name of the lease.
    pub(crate) fn lease(&self) -> &str {
        self.bucket.name()
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn leads(&self) -> bool {
        self.bucket.leads()
    }

    pub(crate) fn set_leading(&self, until: Instant) {
        if self.bucket.set_leading(until) {
            info!(lease = self.lease(), identity = %self.identity, "became leader");
            self.set_gauge();
        }
    }

    pub(crate) fn set_led_by_other(&self, holder: &str) {
        if self.bucket.set_led_by_other() {
            info!(lease = self.lease(), identity = %self.identity, holder, "lease is held by another process");
            self.set_gauge();
        }
    }

    /// Stops leading at the end of the process.
    pub(crate) fn resign(&self) {
        if self.bucket.set_unknown() {
            info!(lease = self.lease(), identity = %self.identity, "stopped leading: the process stops");
            self.set_gauge();
        }
    }

    /// Stops leading so that another member can lead.
    pub(crate) fn hand_over(&self, reason: &str) {
        if self.leads() {
            self.bucket.set_led_by_other();
            info!(lease = self.lease(), identity = %self.identity, reason, "handed over");
            self.set_gauge();
        }
    }

    pub(crate) fn bucket(&self) -> &BucketWriter {
        &self.bucket
    }

    /// Ends each term at its deadline, independently of the attempts to renew. Never returns.
    pub(crate) async fn expire_terms(self) {
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
