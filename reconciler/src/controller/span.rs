//! The tracing span of a pass, whose fields are on every line logged in it.

use reknit_apis::Key;
use reknit_injection::internal::random_uuid;
use tracing::{Span, field::Empty};

use crate::{metrics::PassResult, queue::Causes};

/// Creates a span with Knative's fields. A controller without a Kind has no field for it. The level is error, so that every
/// log line has the fields, whatever the log level.
pub(crate) fn pass_span(controller: &str, kind: &str, key: &Key, causes: &Causes) -> Span {
    tracing::error_span!(
        "reconcile",
        "knative.dev/controller" = controller,
        "knative.dev/key" = %key,
        "knative.dev/traceid" = random_uuid(format_args!("trace/{controller}/{key}")),
        "knative.dev/namespace" = key.namespace,
        "knative.dev/name" = key.name,
        "knative.dev/kind" = (!kind.is_empty()).then_some(kind),
        causes = (!causes.is_empty()).then(|| display(causes)),
        result = Empty,
        otel.status_code = Empty,
    )
}

/// Records the result of the pass in the current span.
pub(crate) fn record_result(result: PassResult) {
    let span = Span::current();
    span.record("result", result.name());
    if result.is_failure() {
        span.record("otel.status_code", "ERROR");
    }
}
