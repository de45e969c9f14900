//! Names, labels, annotations and finalizers that the API server refuses.

use serde_json::{Value, json};

use super::{
    super::recorder::Recorder, ACCOUNTS, CONFIG_MAPS, GADGETS, ROLES, TestResult, WIDGETS, object_path,
    widget,
};

pub(super) async fn invalid_metadata(server: &mut Recorder) -> TestResult {
    let long = "a".repeat(64);
    for metadata in [
        json!({"name": "Upper"}),
        json!({"name": "a..b"}),
        json!({"name": "a/b"}),
        json!({"name": "a".repeat(254)}),
        json!({"name": "m", "labels": {"key": long}}),
        json!({"name": "m", "labels": {"key": "a b"}}),
        json!({"name": "m", "labels": {"key": "-"}}),
        json!({"name": "m", "labels": {&long: "value"}}),
        json!({"name": "m", "labels": {"a/b/c": "value"}}),
        json!({"name": "m", "labels": {"/b": "value"}}),
        json!({"name": "m", "labels": {"A.com/b": "value"}}),
        json!({"name": "m", "labels": {"a.com/": "value"}}),
        json!({"name": "m", "annotations": {"a b": "value"}}),
        json!({"name": "m", "annotations": {"a.com/UPPER": "any\nvalue"}}),
        json!({"name": "m", "annotations": {"large": "a".repeat(256 * 1024)}}),
        json!({"name": "m", "annotations": {"a/b/c": "value"}}),
        json!({"name": "m3", "labels": {"key": "a b"}, "annotations": {"a b": ""}}),
    ] {
        server.post(WIDGETS, widget(metadata.clone(), json!({}))).await?;
        server.post(CONFIG_MAPS, json!({"metadata": metadata})).await?;
    }
    server.post(WIDGETS, widget(json!({"name": "m2", "finalizers": ["a b"]}), json!({}))).await?;
    names(server).await?;
    changes(server).await
}

/// The rules for names differ between the Kinds.
async fn names(server: &mut Recorder) -> TestResult {
    for name in ["a.b", "Upper"] {
        server.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await?;
    }
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    for name in ["a.b", "Upper", "a:b", "a%b", &"a".repeat(64)] {
        let metadata = json!({"name": name});
        server.post(ROLES, json!({"metadata": metadata, "rules": rules})).await?;
        server.post(ACCOUNTS, json!({"metadata": metadata})).await?;
        server.post(GADGETS, gadget(&metadata)).await?;
    }
    const SERVICES: &str = "/api/v1/namespaces/shop/services";
    for name in ["a.b", "Upper", "a:b", &"a".repeat(64)] {
        let spec = json!({"ports": [{"port": 80}]});
        let service =
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        server.post(SERVICES, service).await?;
    }
    Ok(())
}

fn gadget(metadata: &Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gadget", "metadata": metadata})
}

async fn changes(server: &mut Recorder) -> TestResult {
    server.post(WIDGETS, widget(json!({"name": "labelled"}), json!({}))).await?;
    let path = object_path(WIDGETS, "labelled");
    let invalid = json!({"metadata": {"labels": {"key": "a b"}}});
    server.merge_patch(&path, invalid.clone()).await?;
    server.merge_patch(&path, json!({"metadata": {"annotations": {"a b": "value"}}})).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": ["a b"]}})).await?;
    server.merge_patch(&object_path(WIDGETS, "labelled/status"), invalid).await?;
    server
        .apply(&format!("{path}?fieldManager=me"), widget(json!({"labels": {"key": "a b"}}), json!({})))
        .await?;
    for metadata in [json!({"name": "applied", "labels": {"key": "a b"}}), json!({"name": "Upper"})] {
        let path = object_path(WIDGETS, metadata["name"].as_str().unwrap_or_default());
        server.apply(&format!("{path}?fieldManager=me"), widget(metadata, json!({"size": 1}))).await?;
    }
    server.delete(&path, json!({})).await?;
    Ok(())
}
