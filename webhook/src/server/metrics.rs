//! The metrics of a webhook, under the names of controller-runtime where it has the same metric.

use std::time::Duration;

use axum::{http::StatusCode, response::Response};
use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};
use reknit_injection::internal::{register_durations, register_metric};

/// The label `webhook` has the path of the request, as in controller-runtime.
const PATH: &str = "webhook";

/// The metrics of one webhook.
#[derive(Clone)]
pub(crate) struct Metrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    in_flight: IntGaugeVec,
    admissions: IntCounterVec,
    pub(super) admission_panics: IntCounter,
    pub(super) conversion_panics: IntCounter,
    conversion_failures: IntCounter,
    pub(super) handshake_failures: IntCounter,
}

/// An extension of a response: the decision in its review.
#[derive(Clone, Copy)]
pub(crate) enum Decision {
    Admission { is_allowed: bool, code: u16 },
    Conversion { is_success: bool },
}

/// A request that is being answered.
pub(crate) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        let counters = |name, help, labels: &[&str]| {
            register_metric(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let counter = |name, help| register_metric(registry, IntCounter::new(name, help));
        let in_flight = Opts::new(
            "controller_runtime_webhook_requests_in_flight",
            "Current number of admission requests being served.",
        );
        Self {
            requests: counters(
                "controller_runtime_webhook_requests_total",
                "Total number of admission requests by HTTP status code.",
                &[PATH, "code"],
            ),
            seconds: register_durations(
                registry,
                "controller_runtime_webhook_latency_seconds",
                "Histogram of the latency of processing admission requests, from the arrival of the whole body",
                &[PATH, "code"],
            ),
            in_flight: register_metric(registry, IntGaugeVec::new(in_flight, &[PATH])),
            admissions: counters(
                "controller_runtime_webhook_admission_responses_total",
                "Total number of admission responses by status code and allowed status.",
                &[PATH, "allowed", "admission_code"],
            ),
            admission_panics: counter(
                "controller_runtime_webhook_panics_total",
                "Total number of webhook panics",
            ),
            conversion_panics: counter(
                "controller_runtime_conversion_webhook_panics_total",
                "Total number of conversion webhook panics",
            ),
            conversion_failures: counter(
                "reknit_webhook_conversion_failures_total",
                "Conversion reviews of which an object could not be converted",
            ),
            handshake_failures: counter(
                "reknit_webhook_handshake_failures_total",
                "TLS handshakes with the webhook that failed",
            ),
        }
    }

    /// Creates the series of a path, so that they exist before its first request.
    pub(crate) fn add_path(&self, path: &str) {
        for code in ["200", "500"] {
            self.requests.with_label_values(&[path, code]);
        }
        self.seconds.with_label_values(&[path, "200"]);
        self.in_flight.with_label_values(&[path]);
    }

    /// Creates the series of the answers to admission reviews of a path.
    pub(crate) fn add_admission(&self, path: &str) {
        for [allowed, code] in [["true", "200"], ["false", "403"]] {
            self.admissions.with_label_values(&[path, allowed, code]);
        }
    }

    pub(crate) fn start_request(&self, path: &str) -> InFlight {
        let in_flight = self.in_flight.with_label_values(&[path]);
        in_flight.inc();
        InFlight(in_flight)
    }

    /// Counts a response, and records its duration if the whole request had arrived.
    pub(crate) fn record_response(
        &self,
        path: &str,
        duration: Option<Duration>,
        response: Response,
    ) -> Response {
        let status = response.status();
        self.requests.with_label_values(&[path, status.as_str()]).inc();
        if let Some(duration) = duration {
            self.seconds.with_label_values(&[path, status.as_str()]).observe(duration.as_secs_f64());
        }
        match response.extensions().get().copied() {
            Some(Decision::Admission { is_allowed, code }) => {
                let allowed = if is_allowed { "true" } else { "false" };
                let code = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
                self.admissions.with_label_values(&[path, allowed, code.as_str()]).inc();
            }
            Some(Decision::Conversion { is_success: false }) => self.conversion_failures.inc(),
            Some(Decision::Conversion { is_success: true }) | None => {}
        }
        response
    }
}
