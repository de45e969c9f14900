//! Tells whether a child differs from what was applied only because of the API server: an admission webhook or a policy has
//! changed the request that created it.
//!
//! Such a child must not be replaced, since the next one would be like it. And if its fields are immutable, the API server
//! refuses the same content from then on.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use serde_json::{Map, Value};

/// The fields of a body that no manager owns.
const UNOWNED: [&str; 2] = ["apiVersion", "kind"];
/// The fields of the metadata that no manager owns.
const UNOWNED_METADATA: [&str; 3] = ["name", "namespace", "uid"];

/// Returns true if this manager still owns every field that it has applied with this body, and no other manager has
/// written the content of the object. The values of the fields are then those that the API server has stored for the
/// requests of this manager: admission does not change who owns a field.
pub(super) fn is_as_admitted<T: Resource>(live: &T, manager: &str, body: &Value) -> bool {
    let entries = live.meta().managed_fields.as_deref().unwrap_or_default();
    let mut entries = entries.iter().filter(|entry| entry.subresource.is_none());
    let is_own = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Apply")
    };
    let (own, others): (Vec<_>, Vec<_>) = entries.by_ref().partition(is_own);
    let is_of_version = |own: &ManagedFieldsEntry| body["apiVersion"].as_str() == own.api_version.as_deref();
    let owns =
        |own: &ManagedFieldsEntry| own.fields_v1.as_ref().is_some_and(|fields| owns_body(&fields.0, body));
    own.iter().any(|own| is_of_version(own) && owns(own)) && !others.into_iter().any(writes_content)
}

/// Returns true if the entry has fields outside the metadata and the status.
fn writes_content(entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.as_object());
    fields.into_iter().flat_map(Map::keys).any(|name| !matches!(&**name, "f:metadata" | "f:status"))
}

fn owns_body(owned: &Value, body: &Value) -> bool {
    let fields = |value: &Value, unowned: &[&str]| -> Map<String, Value> {
        let fields = value.as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| !unowned.contains(&name.as_str()));
        fields.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let mut content = fields(body, &UNOWNED);
    content["metadata"] = fields(&body["metadata"], &UNOWNED_METADATA).into();
    owns(owned, &content.into())
}

/// Returns true if a tree of owned fields covers this value. A field without a subtree is owned as a whole.
fn owns(owned: &Value, value: &Value) -> bool {
    let Some(owned) = owned.as_object().filter(|owned| owned.keys().any(|key| key != ".")) else {
        return true;
    };
    match value {
        Value::Object(fields) => fields.iter().all(|(name, value)| {
            let field = owned.get(&format!("f:{name}"));
            value.is_null() || field.is_some_and(|owned| owns(owned, value))
        }),
        Value::Array(items) => {
            items.iter().all(|item| owned.iter().any(|(key, owned)| is_item(key, item) && owns(owned, item)))
        }
        _ => true,
    }
}

/// Returns true if the key of an owned item of a list is that of this item. Keys that the item lacks have defaults.
fn is_item(key: &str, item: &Value) -> bool {
    let parse = |json| serde_json::from_str::<Value>(json).ok();
    match key.split_once(':') {
        Some(("v", value)) => parse(value).as_ref() == Some(item),
        Some(("k", keys)) => parse(keys).and_then(|keys| keys.as_object().cloned()).is_some_and(|keys| {
            keys.iter().all(|(name, value)| item.get(name).is_none_or(|own| own == value))
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::batch::v1::Job;
    use serde_json::json;

    use super::*;

    fn body() -> Value {
        let ports = json!([{"containerPort": 80}]);
        json!({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": "x", "namespace": "shop", "labels": {"a": "b"}, "finalizers": ["x.dev/y"]},
            "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "nginx", "args": ["a"], "ports": ports}]}}},
        })
    }

    fn own_fields() -> Value {
        let port = json!({"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}});
        let container = json!({".": {}, "f:name": {}, "f:image": {}, "f:args": {}, "f:ports": port});
        json!({
            "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x.dev/y\"": {}}},
            "f:spec": {"f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"main\"}": container}}}},
        })
    }

    fn entry(manager: &str, operation: &str, fields: &Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "batch/v1", "fieldsV1": fields})
    }

    fn is_admitted(entries: &[Value]) -> bool {
        let job: Job = serde_json::from_value(json!({"metadata": {"managedFields": entries}})).unwrap();
        is_as_admitted(&job, "me", &body())
    }

    #[test]
    fn a_child_of_which_only_its_manager_has_written_the_content_is_as_admitted() {
        let own = entry("me", "Apply", &own_fields());
        assert!(is_admitted(std::slice::from_ref(&own)));
        let mut status = entry("job-controller", "Update", &json!({"f:status": {"f:active": {}}}));
        let label = entry("kubectl", "Update", &json!({"f:metadata": {"f:labels": {"f:c": {}}}}));
        assert!(is_admitted(&[own.clone(), status.clone(), label]));
        status["subresource"] = json!("status");
        assert!(is_admitted(&[own, status]));
    }

    #[test]
    fn a_child_whose_content_another_client_has_changed_is_not() {
        let own = own_fields();
        for lost in [
            "/f:spec/f:template/f:spec/f:containers/k:{\"name\":\"main\"}/f:image",
            "/f:spec/f:template/f:spec/f:containers/k:{\"name\":\"main\"}/f:ports",
            "/f:spec/f:template",
            "/f:metadata/f:labels/f:a",
            "/f:metadata/f:finalizers/v:\"x.dev~1y\"",
        ] {
            let (parent, name) = lost.rsplit_once('/').unwrap();
            let mut rest = own.clone();
            let parent = rest.pointer_mut(parent).unwrap().as_object_mut().unwrap();
            assert!(parent.remove(&name.replace("~1", "/")).is_some(), "{lost}");
            parent.insert("f:other".into(), json!({}));
            assert!(!is_admitted(&[entry("me", "Apply", &rest)]), "{lost}");
        }
        let suspended = entry("kueue", "Update", &json!({"f:spec": {"f:suspend": {}}}));
        assert!(!is_admitted(&[entry("me", "Apply", &own), suspended]));
        assert!(!is_admitted(&[entry("me", "Update", &own)]));
        assert!(!is_admitted(&[entry("you", "Apply", &own)]));
        let mut of_other_version = entry("me", "Apply", &own);
        of_other_version["apiVersion"] = json!("batch/v2");
        assert!(!is_admitted(&[of_other_version]));
        assert!(!is_admitted(&[]));
    }
}
