//! The program eventing, and its objects.

#[path = "../../eventing/main.rs"]
#[allow(dead_code, unreachable_pub, unused_imports, reason = "a program, of which tests use only parts")]
pub(crate) mod program;

use serde_json::{Value, json};

use self::program::{ContainerSource, SinkBinding, Trigger};

/// The ContainerSource of this name, with one container, whose events go to this sink.
pub(crate) fn container_source(name: &str, sink: Value) -> ContainerSource {
    let container = json!({"name": "source", "image": "example.com/source"});
    let spec = json!({"sink": sink, "template": {"spec": {"containers": [container]}}});
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

/// The SinkBinding of this name and spec.
pub(crate) fn sink_binding(name: &str, spec: Value) -> SinkBinding {
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

/// The Trigger of this name and spec.
pub(crate) fn trigger(name: &str, spec: Value) -> Trigger {
    object(json!({"metadata": {"name": name}, "spec": spec}))
}

/// Decodes an object, to which the API version and the Kind are added.
pub(crate) fn object<K>(mut object: Value) -> K
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    serde_json::from_value(object).unwrap()
}
