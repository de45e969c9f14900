//! Objects as JSON.

use std::any::Any;

use kube::{
    Resource,
    core::{GroupVersionKind, TypeMeta},
    discovery::ApiResource,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Returns the resource of an object: of its type, or of the apiVersion and the kind of a `DynamicObject`. The plural of
/// a `DynamicObject` is the one that kube derives from its kind.
///
/// # Panics
///
/// Panics if it is a `DynamicObject` without apiVersion and kind.
#[expect(clippy::expect_used, reason = "a mistake in a test panics")]
pub fn resource_of<K: Resource + Serialize>(object: &K) -> ApiResource {
    if let Some(fixed) = (&() as &dyn Any).downcast_ref::<K::DynamicType>() {
        return ApiResource::erase::<K>(fixed);
    }
    let types: TypeMeta =
        serde_json::from_value(to_json(object)).expect("a dynamic object in a test has apiVersion and kind");
    let kind = GroupVersionKind::try_from(&types).expect("the apiVersion of a dynamic object is valid");
    ApiResource::from_gvk(&kind)
}

#[expect(clippy::expect_used, reason = "objects of Kubernetes are JSON, and this is for tests")]
pub(crate) fn to_json<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}

/// Returns the metadata of an object. Adds it if there is none.
pub(crate) fn metadata(value: &mut Value) -> &mut Map<String, Value> {
    if !value["metadata"].is_object() {
        value["metadata"] = json!({});
    }
    match &mut value["metadata"] {
        Value::Object(metadata) => metadata,
        _ => unreachable!("metadata was set to an object above"),
    }
}

/// Removes nulls and empty lists and maps, which the API server does not store.
pub(crate) fn remove_empty(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        value => !value.is_null(),
    });
}

pub(crate) fn increment_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
    metadata(object).insert("generation".into(), json!(generation));
}

/// Returns true if a finalizer keeps the object. A namespace has finalizers in its spec too.
pub(crate) fn has_finalizers(object: &Value) -> bool {
    let has_some =
        |part: &str| object[part]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
    has_some("metadata") || (is_namespace(object) && has_some("spec"))
}

pub(crate) fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|other| other == finalizer))
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

pub(crate) fn is_namespace(object: &Value) -> bool {
    object["kind"] == "Namespace" && object["apiVersion"] == "v1"
}

/// Returns the string, or an empty one if the value is not a string.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
