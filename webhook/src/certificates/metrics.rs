//! The metrics of the certificate that a webhook serves.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use reknit_injection::internal::{now, register_metric, register_scraped};

/// The metrics of one serving certificate. Two have the names of controller-runtime's certificate watcher.
pub(super) struct CertificateMetrics {
    reads: IntCounter,
    errors: IntCounter,
    unusable: IntGauge,
    /// The expiry of the certificate that is served, from which each scrape computes the remaining time.
    not_after: Arc<Mutex<Option<Timestamp>>>,
}

impl CertificateMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let counter = |name, help| register_metric(registry, IntCounter::new(name, help));
        let not_after: Arc<Mutex<Option<Timestamp>>> = Arc::default();
        let help = "Seconds until the certificate that the webhook serves expires, negative after that";
        let (expiry, served) =
            (("reknit_webhook_certificate_expiry_seconds", help, &[][..]), not_after.clone());
        register_scraped(registry, [expiry], move |[seconds]| {
            if let Some(not_after) = *served.lock() {
                let left = not_after.duration_since(now()).as_secs_f64();
                seconds.with_label_values::<&str>(&[]).set(left);
            }
        });
        Self {
            reads: counter("certwatcher_read_certificate_total", "Total number of certificate reads"),
            errors: counter(
                "certwatcher_read_certificate_errors_total",
                "Total number of certificate read errors",
            ),
            unusable: register_metric(
                registry,
                IntGauge::new(
                    "reknit_webhook_certificate_unusable",
                    "1 if the certificate in the Secret of the webhook cannot be served, or is gone; otherwise 0",
                ),
            ),
            not_after,
        }
    }

    /// Records a certificate that was read. `not_after` is its expiry, or `None` if it cannot be served.
    pub(super) fn record_read(&self, not_after: Option<Timestamp>) {
        self.reads.inc();
        self.unusable.set(not_after.is_none().into());
        match not_after {
            Some(not_after) => *self.not_after.lock() = Some(not_after),
            None => self.errors.inc(),
        }
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
        let value = |name: &str| {
            let families = registry.gather();
            let metric = families.iter().find(|family| family.name() == name)?.get_metric()[0].clone();
            Some(metric.get_gauge().get_value() + metric.get_counter().get_value())
        };
        let expiry = || value("reknit_webhook_certificate_expiry_seconds");
        let unusable = || value("reknit_webhook_certificate_unusable");
        assert_eq!((expiry(), unusable()), (None, Some(0.0)), "no certificate");
        metrics.record_read(Some(now() + Duration::from_secs(1000)));
        assert_eq!(unusable(), Some(0.0));
        metrics.record_read(None);
        assert_eq!(unusable(), Some(1.0));
        assert!(expiry().is_some_and(|seconds| seconds > 900.0 && seconds <= 1000.0), "{:?}", expiry());
        metrics.record_read(Some(now() - Duration::from_secs(10)));
        assert!(expiry().is_some_and(|seconds| seconds <= -10.0), "{:?}", expiry());
        assert_eq!(unusable(), Some(0.0));
        assert_eq!(value("certwatcher_read_certificate_total"), Some(3.0));
        assert_eq!(value("certwatcher_read_certificate_errors_total"), Some(1.0));
    }
}
