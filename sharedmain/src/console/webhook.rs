//! The view of the webhook: requests and refusals of each path, and its certificate.
use serde_json::{Value, json};

use super::State;

pub(super) fn view(state: &State) -> Value {
    let metrics = state.gather();
    let value = |name| metrics.value(name, &[]);
    let in_flight = metrics.by("controller_runtime_webhook_requests_in_flight", &[], "webhook");
    let path = |(path, in_flight): (String, f64)| {
        let labels = &[("webhook", &*path)][..];
        json!({
            "path": path,
            "in_flight": in_flight,
            "requests": metrics.by("controller_runtime_webhook_requests_total", labels, "code"),
            "answers": metrics.by("controller_runtime_webhook_admission_responses_total", labels, "allowed"),
            "seconds": metrics.histogram("controller_runtime_webhook_latency_seconds", labels),
        })
    };
    json!({
        "paths": in_flight.into_iter().map(path).collect::<Vec<_>>(),
        "certificate_expires_in_seconds": value("reknit_webhook_certificate_expiry_seconds"),
        "certificate_read_errors": value("certwatcher_read_certificate_errors_total"),
        "handshake_failures": value("reknit_webhook_handshake_failures_total"),
        "conversion_failures": value("reknit_webhook_conversion_failures_total"),
        "panics": value("controller_runtime_webhook_panics_total"),
    })
}
