//! The metrics of the certificate that a webhook serves.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{
    GaugeVec, IntCounter, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};
use reknit_injection::internal::{now, register_metric};

/// The metrics of one serving certificate. Two have the names of controller-runtime's certificate watcher.
pub(super) struct CertificateMetrics {
    reads: IntCounter,
    errors: IntCounter,
    expiry: Expiry,
}

impl CertificateMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| register_metric(registry, IntCounter::new(name, help));
        Self {
            reads: counter("certwatcher_read_certificate_total", "Total number of certificate reads"),
            errors: counter(
                "certwatcher_read_certificate_errors_total",
                "Total number of certificate read errors",
            ),
            expiry: register_metric(registry, Expiry::new()),
        }
    }

    /// Records a certificate that was read. `not_after` is its expiry, or `None` if it cannot be served.
    pub(super) fn record_read(&self, not_after: Option<Timestamp>) {
        self.reads.inc();
        match not_after {
            Some(not_after) => *self.expiry.not_after.lock() = Some(not_after),
            None => self.errors.inc(),
        }
    }
}

/// Computes the time until the served certificate expires, at each scrape.
#[derive(Clone)]
struct Expiry {
    not_after: Arc<Mutex<Option<Timestamp>>>,
    seconds: GaugeVec,
}

impl Expiry {
    fn new() -> prometheus::Result<Self> {
        let help = "Seconds until the certificate that the webhook serves expires, negative after that";
        let seconds = GaugeVec::new(Opts::new("reknit_webhook_certificate_expiry_seconds", help), &[])?;
        Ok(Self { not_after: Arc::default(), seconds })
    }
}

impl Collector for Expiry {
    fn desc(&self) -> Vec<&Desc> {
        self.seconds.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(not_after) = *self.not_after.lock() {
            let seconds = not_after.duration_since(now()).as_secs_f64();
            self.seconds.with_label_values::<&str>(&[]).set(seconds);
        }
        self.seconds.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_expiry_is_that_of_the_last_certificate_that_could_be_read() {
        let registry = Registry::new();
        let metrics = CertificateMetrics::new(&registry);
        let expiry = || {
            let families = registry.gather();
            let name = "reknit_webhook_certificate_expiry_seconds";
            let family = families.iter().find(|family| family.name() == name)?;
            Some(family.get_metric()[0].get_gauge().get_value())
        };
        assert_eq!(expiry(), None, "no certificate");
        metrics.record_read(Some(now() + Duration::from_secs(1000)));
        metrics.record_read(None);
        assert!(expiry().is_some_and(|seconds| seconds > 900.0 && seconds <= 1000.0), "{:?}", expiry());
        metrics.record_read(Some(now() - Duration::from_secs(10)));
        assert!(expiry().is_some_and(|seconds| seconds <= -10.0), "{:?}", expiry());
        assert_eq!((metrics.reads.get(), metrics.errors.get()), (3, 1));
    }
}
