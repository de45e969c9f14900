//! Admission and conversion reviews as an API server sends them.

use serde_json::{Value, json};

fn torch() -> Value {
    json!({
        "apiVersion": "fuzz.reknit.dev/v1", "kind": "Torch",
        "metadata": {
            "name": "x", "namespace": "default", "uid": "5a2f", "generation": 1, "resourceVersion": "7",
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b"}, "annotations": {"c": "d"},
            "finalizers": ["torches.fuzz.reknit.dev"],
            "managedFields": [{"manager": "kubectl", "operation": "Apply", "apiVersion": "fuzz.reknit.dev/v1",
                "time": "2026-01-02T03:04:05Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:room": {}}}}],
        },
        "spec": {
            "room": "hall", "bulbs": [{"lumens": 1.5}, {"lumens": 2, "port": "http"}, {"lumens": 3, "port": 80}],
            "volts": 230, "shade": {"sheets": 3}, "tags": {"a/b~c": {"lumens": 1}}, "any": {"x": [1, null]},
        },
    })
}

fn deployment(namespace: &str) -> Value {
    let containers =
        json!([{"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}, {"name": "COLOR"}]}]);
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace, "labels": {"a": "b"}},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {"a": namespace}}, "spec": {"containers": containers}}},
    })
}

/// Lines of a watch, as the API server sends them.
pub fn watches() -> Vec<String> {
    let line = |event: &str, object: Value| json!({"type": event, "object": object}).to_string() + "\n";
    let bookmark = json!({"kind": "Torch", "metadata": {"resourceVersion": "8"}});
    let status =
        json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "metadata": {}});
    let mut torches = line("ADDED", torch()) + &line("MODIFIED", torch()) + &line("DELETED", torch());
    torches +=
        "{\"object\": {\"metadata\": {\"name\": \"\\u0061\", \"namespace\": null}}, \"type\": \"ADDED\"}\n";
    vec![torches, line("BOOKMARK", bookmark), line("ERROR", status)]
}

/// Pages of lists, the last of which is an error.
pub fn pages() -> Vec<String> {
    let escaped = "{\"metadata\": {\"name\": \"\\u0061\", \"namespace\": null}}";
    let list = json!({
        "kind": "TorchList", "apiVersion": "fuzz.reknit.dev/v1",
        "metadata": {"resourceVersion": "8", "continue": "next"}, "items": [torch(), torch()],
    });
    let items_first = format!("{{\"items\": [{escaped}, {}], \"metadata\": {{}}}}", torch());
    let status = json!({"kind": "Status", "status": "Failure", "code": 410, "metadata": {}});
    vec![
        list.to_string(),
        items_first,
        json!({"metadata": {}, "items": null}).to_string(),
        status.to_string(),
    ]
}

/// URLs and references to resolve.
pub const URLS: [&str; 6] = [
    "http://web.default.svc.cluster.local/api/?a=b#c\n../health?full=1",
    "https://user:password@[::1]:8080/%2e%2e/x\n//evil/x",
    "mailto:a@b\nx",
    "http://h\n./..//x",
    "a:///b\n?q",
    "/relative\n#f",
];

fn review(group_version_kind: [&str; 3], operation: &str, object: Value, old: Value) -> Value {
    let [group, version, kind] = group_version_kind;
    let resource = format!("{}s", kind.to_lowercase());
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": kind},
        "resource": {"group": group, "version": version, "resource": resource},
        "requestKind": {"group": group, "version": version, "kind": kind},
        "requestResource": {"group": group, "version": version, "resource": resource},
        "name": "x", "namespace": "default", "operation": operation,
        "userInfo": {"username": "alice", "uid": "1", "groups": ["system:authenticated"], "extra": {"a": ["b"]}},
        "object": object, "oldObject": old, "dryRun": false,
        "options": {"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"},
    }})
}

/// The reviews that the fuzzer edits.
pub fn seeds() -> Vec<Value> {
    let deployment_kind = ["apps", "v1", "Deployment"];
    let torch_kind = ["fuzz.reknit.dev", "v1", "Torch"];
    let mut generated = torch();
    generated["metadata"] = json!({"generateName": "x-"});
    let mut changed = torch();
    changed["spec"]["watts"] = json!(50);
    let mut status = review(torch_kind, "UPDATE", torch(), torch());
    status["request"]["subResource"] = json!("status");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "config-features", "annotations": {"knative.dev/example-checksum": "47c04e6b"}},
        "data": {"fast": "true", "_example": "fast: true"},
    });
    let older = json!({"apiVersion": "fuzz.reknit.dev/v1alpha1", "kind": "Torch", "metadata": {"name": "y"},
        "spec": {"kilowatts": 0.04}});
    let convert = |version: &str| {
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": {
            "uid": "705ab4f5", "desiredAPIVersion": format!("fuzz.reknit.dev/{version}"), "objects": [torch(), older],
        }})
    };
    vec![
        review(torch_kind, "CREATE", torch(), Value::Null),
        review(torch_kind, "CREATE", generated, Value::Null),
        review(torch_kind, "UPDATE", changed, torch()),
        review(torch_kind, "DELETE", Value::Null, torch()),
        status,
        review(torch_kind, "CONNECT", Value::Null, Value::Null),
        review(["", "v1", "ConfigMap"], "UPDATE", map, Value::Null),
        convert("v1"),
        convert("v1alpha1"),
        review(deployment_kind, "CREATE", deployment("default"), Value::Null),
        review(deployment_kind, "UPDATE", deployment("secret"), deployment("default")),
    ]
}
