//! The span of a pass: what every line that is logged within it says of where it comes from, and what a trace shows.

use reknit_apis::Key;
use tracing::{Span, field::Empty};

use crate::uuid::random_uuid;

/// Knative's fields, the controller and key first. At the level of errors, so that they stand on every line that is
/// logged at all.
pub(crate) fn of_pass(controller: &str, kind: &str, key: &Key) -> Span {
    tracing::error_span!(
        "reconcile",
        "knative.dev/controller" = controller,
        "knative.dev/key" = %key,
        "knative.dev/traceid" = random_uuid(),
        "knative.dev/namespace" = key.namespace,
        "knative.dev/name" = key.name,
        "knative.dev/kind" = kind,
        result = Empty,
        otel.status_code = Empty,
    )
}

/// Says in the span how the pass ended. Nothing is logged in it any more.
pub(crate) fn ended(result: &'static str, failed: bool) {
    let span = Span::current();
    span.record("result", result);
    if failed {
        span.record("otel.status_code", "ERROR");
    }
}
