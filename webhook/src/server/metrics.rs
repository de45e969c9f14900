//! The metrics of a webhook.

use std::time::Duration;

use axum::{http::StatusCode, response::Response};
use prometheus::{
    HistogramVec, IntCounter, IntCounterVec, Registry, register_histogram_vec_with_registry,
    register_int_counter_vec_with_registry, register_int_counter_with_registry,
};

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
    /// Registers the metrics. Fails if the registry already has a metric of the same name.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: register_int_counter_vec_with_registry!(
                "reknit_webhook_requests_total",
                "Requests answered by the webhook",
                &["path", "code", "allowed"],
                registry
            )?,
            seconds: register_histogram_vec_with_registry!(
                "reknit_webhook_request_seconds",
                "Time to answer a request, from the arrival of its whole body",
                &["path"],
                BUCKETS.to_vec(),
                registry
            )?,
            panics: register_int_counter_vec_with_registry!(
                "reknit_webhook_panics_total",
                "Requests that failed because code of a Kind panicked",
                &["path"],
                registry
            )?,
            handshake_failures: register_int_counter_with_registry!(
                "reknit_webhook_handshake_failures_total",
                "TLS handshakes with the webhook that failed",
                registry
            )?,
        })
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
