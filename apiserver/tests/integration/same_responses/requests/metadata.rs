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
        json!({"name": "m", "generateName": "Upper-"}),
        json!({"name": "m", "generateName": "-"}),
        json!({"name": "m4", "uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 7}),
    ] {
        server.post(WIDGETS, widget(metadata.clone(), json!({}))).await?;
        server.post(CONFIG_MAPS, json!({"metadata": metadata})).await?;
    }
    server.post(WIDGETS, widget(json!({"name": "m2", "finalizers": ["a b"]}), json!({}))).await?;
    names(server).await?;
    owners(server).await?;
    changes(server).await
}

async fn owners(server: &mut Recorder) -> TestResult {
    let owner = |name: &str| {
        let uid = format!("uid-{name}");
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid, "controller": true})
    };
    let without = |field: &str| {
        let mut owner = owner("a");
        owner[field] = json!("");
        owner
    };
    let event = json!({"apiVersion": "v1", "kind": "Event", "name": "e", "uid": "u"});
    let fields = ["apiVersion", "kind", "name", "uid"];
    let invalid = fields.map(|field| json!([without(field)])).into_iter();
    let further = [json!([owner("a"), owner("b")]), json!([{}]), json!([event])];
    for owners in invalid.chain(further) {
        let metadata = json!({"name": "owned", "ownerReferences": owners});
        server.post(WIDGETS, widget(metadata.clone(), json!({}))).await?;
        server.post(CONFIG_MAPS, json!({"metadata": metadata})).await?;
    }
    server.post(WIDGETS, widget(json!({"name": "owned"}), json!({}))).await?;
    let path = object_path(WIDGETS, "owned");
    for owners in [json!([owner("a"), owner("b")]), json!([without("uid")]), json!([owner("a")])] {
        server.merge_patch(&path, json!({"metadata": {"ownerReferences": owners}})).await?;
        let applied = widget(json!({"ownerReferences": owners}), json!({}));
        server.apply(&format!("{path}?fieldManager=me"), applied).await?;
    }
    server.delete(&path, json!({})).await?;
    Ok(())
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
    for metadata in [
        json!({"uid": "another"}),
        json!({"creationTimestamp": "2020-01-01T00:00:00Z"}),
        json!({"deletionTimestamp": "2020-01-01T00:00:00Z"}),
        json!({"deletionGracePeriodSeconds": 7}),
        json!({"generation": 7}),
        json!({"generateName": "other-"}),
        json!({"selfLink": "/x"}),
        json!({"name": "other"}),
        json!({"namespace": "other"}),
    ] {
        server.merge_patch(&path, json!({"metadata": metadata})).await?;
    }
    server.delete(&path, json!({})).await?;
    Ok(())
}
