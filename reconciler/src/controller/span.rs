//! The tracing span of a pass, whose fields are on every line logged in it.

use reknit_apis::Key;
use tracing::{Span, field::Empty};

use crate::uuid::random_uuid;

/// A span with Knative's fields. Its level is error, so that its fields are on every line that is logged at all.
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

/// Records the result of the pass in the current span.
pub(crate) fn ended(result: &'static str, failed: bool) {
    let span = Span::current();
    span.record("result", result);
    if failed {
        span.record("otel.status_code", "ERROR");
    }
}
