//! Tests of eventing: single passes, its webhook, and a simulation.

mod container_source;
mod simulations;
mod sink_binding;
mod trigger;

use kube::Resource;
use reknit::apis::DuckStatus;
use serde_json::{Value, json};

/// The condition of this type, as it is stored.
fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

/// Places the object in the namespace `shop`, with a uid and generation 1.
fn stored<K: Resource>(mut object: K) -> K {
    let meta = object.meta_mut();
    meta.namespace = Some("shop".into());
    meta.uid = Some(format!("uid-of-{}", meta.name.as_deref().unwrap_or_default()));
    meta.generation = Some(1);
    object
}

/// Asserts the status, reason and message of some conditions.
fn assert_conditions(status: &DuckStatus, expected: &[(&str, &str, &str, &str)]) {
    for (kind, status_text, reason, message) in expected {
        let actual = status.condition(kind).unwrap_or_else(|| panic!("{kind} is missing in {status:?}"));
        let texts =
            (actual.reason.as_deref().unwrap_or_default(), actual.message.as_deref().unwrap_or_default());
        assert_eq!((actual.status.as_str(), texts), (*status_text, (*reason, *message)), "{kind}");
    }
}
