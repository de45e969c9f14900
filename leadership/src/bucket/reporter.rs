//! Writes the state of one bucket, and reports each change in the log and as a metric.

use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::{BucketWriter, state::Holder};
use crate::{Identity, metrics::BucketMetrics};

#[derive(Clone)]
pub(crate) struct BucketReporter {
    bucket: BucketWriter,
    identity: Identity,
    metrics: Option<BucketMetrics>,
}

impl BucketReporter {
    pub(crate) fn new(bucket: BucketWriter, identity: Identity, metrics: Option<BucketMetrics>) -> Self {
        let reporter = Self { bucket, identity, metrics };
        reporter.update_status();
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

    /// Starts a term, or moves the deadline of the current one. `reason` says why the lease could be acquired.
    pub(crate) fn set_leading(&self, until: Instant, reason: &str) {
        if self.bucket.set_leading(until) {
            info!(lease = self.lease(), identity = %self.identity, reason, "became leader");
            self.record_handover();
        }
    }

    pub(crate) fn set_led_by_other(&self, holder: &str) {
        match self.bucket.replace_by_other() {
            None => return,
            Some(Holder::ThisProcess(_)) => {
                let reason = "another process holds the lease";
                warn!(lease = self.lease(), identity = %self.identity, reason, holder, "lost leadership");
            }
            Some(_) => {
                info!(lease = self.lease(), identity = %self.identity, holder, "lease is held by another process");
            }
        }
        self.update_status();
    }

    /// Stops leading at the end of the process.
    pub(crate) fn resign(&self) {
        if self.bucket.set_unknown() {
            self.report_handover("the process stops");
        }
    }

    /// Stops leading so that another member can lead.
    pub(crate) fn hand_over(&self, reason: &str) {
        if self.leads() && self.bucket.replace_by_other().is_some() {
            self.report_handover(reason);
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
                let reason = "the lease was not renewed before the renew deadline";
                warn!(lease = self.lease(), identity = %self.identity, reason, "lost leadership");
                self.update_status();
            }
        }
    }

    fn report_handover(&self, reason: &str) {
        info!(lease = self.lease(), identity = %self.identity, reason, "handed over");
        self.record_handover();
    }

    fn record_handover(&self) {
        self.update_status();
        if let Some(metrics) = &self.metrics {
            metrics.record_handover();
        }
    }

    fn update_status(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.set_leading(self.leads());
        }
    }
}
