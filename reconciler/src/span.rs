//! The span of a pass: what every line that is logged within it says of where it comes from.

use reknit_apis::Key;
use tracing::{Span, field::Empty};

/// Knative's fields, the controller and key first. At the level of errors, so that they stand on every line that is
/// logged at all.
pub(crate) fn of_pass(controller: &str, kind: &str, key: &Key) -> Span {
    let span = tracing::error_span!(
        "reconcile",
        "knative.dev/controller" = controller,
        "knative.dev/key" = Empty,
        "knative.dev/traceid" = Empty,
        "knative.dev/namespace" = key.namespace,
        "knative.dev/name" = key.name,
        "knative.dev/kind" = kind,
    );
    if !span.is_disabled() {
        span.record("knative.dev/key", tracing::field::display(key));
        span.record("knative.dev/traceid", trace_id());
    }
    span
}

/// A random UUID (version 4), as Knative gives each pass.
fn trace_id() -> String {
    let bits: u128 = rand::random();
    let bits = bits & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_id_is_a_random_uuid() {
        let (one, other) = (trace_id(), trace_id());
        assert_ne!(one, other);
        let parts: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert!(one[14..].starts_with('4') && "89ab".contains(&one[19..20]), "{one}");
    }
}
