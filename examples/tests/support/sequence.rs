//! The program sequence, and its objects.

#[path = "../../sequence/main.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use serde_json::{Value, json};

use self::program::{InMemoryChannel, InMemoryChannelSpec, Sequence, Subscription};

/// The Sequence of this name and spec.
pub(crate) fn sequence(name: &str, spec: Value) -> Sequence {
    object("flows.knative.dev/v1", "Sequence", name, spec)
}

/// The Subscription of this name and spec.
pub(crate) fn subscription(name: &str, spec: Value) -> Subscription {
    object("messaging.knative.dev/v1", "Subscription", name, spec)
}

pub(crate) fn channel(name: &str) -> InMemoryChannel {
    InMemoryChannel::new(name, InMemoryChannelSpec::default())
}

fn object<K: serde::de::DeserializeOwned>(api_version: &str, kind: &str, name: &str, spec: Value) -> K {
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    serde_json::from_value(object).unwrap()
}
