//! The metrics of a webhook.

use std::time::Duration;

use axum::{http::StatusCode, response::Response};
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use reknit_injection::internal::register_metric;

/// The buckets of the histogram, in seconds.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// The metrics of one webhook.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    pub(super) panics: IntCounterVec,
    pub(super) handshake_failures: IntCounter,
}

/// An extension of a response that tells whether the review allowed the request.
#[derive(Clone, Copy)]
pub(crate) struct Allowed(pub(crate) bool);

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counter = |name, help, labels: &[&str]| {
            register_metric(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let seconds = HistogramOpts::new(
            "reknit_webhook_request_seconds",
            "Time to answer a request, from the arrival of its whole body",
        );
        let handshake_failures = IntCounter::new(
            "reknit_webhook_handshake_failures_total",
            "TLS handshakes with the webhook that failed",
        );
        Self {
            requests: counter(
                "reknit_webhook_requests_total",
                "Requests answered by the webhook",
                &["path", "code", "allowed"],
            ),
            seconds: register_metric(registry, HistogramVec::new(seconds.buckets(BUCKETS.into()), &["path"])),
            panics: counter(
                "reknit_webhook_panics_total",
                "Requests that failed because code of a Kind panicked",
                &["path"],
            ),
            handshake_failures: register_metric(registry, handshake_failures),
        }
    }

    /// Counts a response, and records its duration if it contains a review.
    pub(crate) fn record_response(
        &self,
        path: &str,
        duration: Option<Duration>,
        response: Response,
    ) -> Response {
        let (code, decision) = (response.status(), response.extensions().get());
        let allowed = decision.map_or("", |Allowed(allowed)| if *allowed { "true" } else { "false" });
        self.requests.with_label_values(&[path, code.as_str(), allowed]).inc();
        if let Some(duration) = duration.filter(|_| code == StatusCode::OK) {
            self.seconds.with_label_values(&[path]).observe(duration.as_secs_f64());
        }
        response
    }
}
