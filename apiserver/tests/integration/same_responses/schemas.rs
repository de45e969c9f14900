//! The requests on a Kind with a schema: validation, pruning, defaults and the merging of lists.

use serde_json::{Value, json};

use super::{TestResult, recorder::Recorder};

const GIZMOS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/gizmos";

pub(crate) async fn send(server: &mut Recorder) -> TestResult {
    pruning_and_defaults(server).await?;
    invalid_values(server).await?;
    updates(server).await?;
    status_writes(server).await?;
    applied_lists(server).await?;
    refused_applies(server).await
}

fn gizmo(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gizmo", "metadata": {"name": name}, "spec": spec})
}

async fn pruning_and_defaults(server: &mut Recorder) -> TestResult {
    server.post(GIZMOS, gizmo("defaulted", json!({"size": 1}))).await?;
    let with_unknown = json!({
        "size": 1, "unknown": {"a": 1}, "limits": {"unknown": 1}, "labels": {"any": "kept"}, "port": "http",
        "free": {"unknown": {"b": 1}, "known": {"a": "x", "unknown": 1}},
        "parts": [{"name": "a", "unknown": 1}], "whole": {"a": "x", "c": "y"},
    });
    let mut unknown = gizmo("pruned", with_unknown);
    unknown["extra"] = json!(1);
    unknown["status"] = json!({"ready": true});
    server.post(GIZMOS, unknown).await?;
    let nulls = json!({"size": 1, "colour": null, "note": null, "enabled": null, "limits": {"depth": null}, "labels": null});
    server.post(GIZMOS, gizmo("nulls", nulls)).await?;
    Ok(())
}

async fn invalid_values(server: &mut Recorder) -> TestResult {
    for spec in [
        json!({}),
        json!({"size": "1"}),
        json!({"size": 1.5}),
        json!({"size": true}),
        json!({"size": {}}),
        json!({"size": []}),
        json!({"size": 0}),
        json!({"size": 10}),
        json!({"size": 1, "weight": 0}),
        json!({"size": 1, "weight": "1"}),
        json!({"size": 1, "colour": "blue"}),
        json!({"size": 1, "colour": 1}),
        json!({"size": 1, "note": "a"}),
        json!({"size": 1, "note": "abcde"}),
        json!({"size": 1, "enabled": "yes"}),
        json!({"size": 1, "port": 1.5}),
        json!({"size": 1, "labels": {"a": 1}}),
        json!({"size": 1, "labels": []}),
        json!({"size": 1, "plain": []}),
        json!({"size": 1, "plain": [1, 2, 3]}),
        json!({"size": 1, "plain": [1, "2"]}),
        json!({"size": 1, "plain": {}}),
        json!({"size": 1, "unique": ["a", "a"]}),
        json!({"size": 1, "parts": [{"count": 1}]}),
        json!({"size": 1, "parts": [{"name": "a"}, {"name": "a"}]}),
        json!("text"),
    ] {
        server.post(GIZMOS, gizmo("invalid", spec)).await?;
    }
    let without_spec =
        json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gizmo", "metadata": {"name": "invalid"}});
    server.post(GIZMOS, without_spec).await?;
    Ok(())
}

async fn updates(server: &mut Recorder) -> TestResult {
    server.post(GIZMOS, gizmo("updated", json!({"size": 1}))).await?;
    let path = format!("{GIZMOS}/updated");
    server.merge_patch(&path, json!({"spec": {"size": 2, "unknown": 1}})).await?;
    server.merge_patch(&path, json!({"spec": {"unknown": 1}})).await?;
    server.merge_patch(&path, json!({"spec": {"size": 99}})).await?;
    server.merge_patch(&path, json!({"spec": {"size": null}})).await?;
    server.merge_patch(&path, json!({"spec": {"colour": null}})).await?;
    server.json_patch(&path, json!([{"op": "add", "path": "/spec/plain", "value": ["x"]}])).await?;
    let mut object = server.get(&path).await?;
    object["spec"]["colour"] = json!("blue");
    server.put(&path, object.clone()).await?;
    object["spec"] = json!({"size": 4, "unknown": 1});
    server.put(&path, object).await?;
    Ok(())
}

async fn status_writes(server: &mut Recorder) -> TestResult {
    let path = format!("{GIZMOS}/updated/status");
    server.merge_patch(&path, json!({"status": {"ready": true, "unknown": 1}})).await?;
    server.merge_patch(&path, json!({"status": {"ready": "yes"}})).await?;
    server.merge_patch(&path, json!({"status": {"conditions": [{"type": "Ready"}]}})).await?;
    let condition = |kind: &str| {
        json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gizmo", "metadata": {"name": "updated"},
        "status": {"conditions": [{"type": kind, "status": "True"}]}})
    };
    server.apply(&format!("{path}?fieldManager=me"), condition("Ready")).await?;
    server.apply(&format!("{path}?fieldManager=you"), condition("Sunny")).await?;
    Ok(())
}

async fn applied_lists(server: &mut Recorder) -> TestResult {
    let by = |manager: &str| format!("{GIZMOS}/lists?fieldManager={manager}");
    let parts = |parts: Value| gizmo("lists", json!({"size": 1, "parts": parts}));
    server.apply(&by("me"), parts(json!([{"name": "a", "count": 1}, {"name": "b"}]))).await?;
    server.apply(&by("you"), parts(json!([{"name": "c", "protocol": "UDP"}]))).await?;
    server
        .apply(&by("you"), parts(json!([{"name": "c", "protocol": "UDP"}, {"name": "a", "count": 2}])))
        .await?;
    server.apply(&by("me"), parts(json!([{"name": "a", "protocol": "TCP", "count": 3}]))).await?;
    server.apply(&by("me"), parts(json!([]))).await?;
    let spec = |spec: Value| gizmo("lists", spec);
    server.apply(&by("me"), spec(json!({"size": 1, "unique": ["x", "y"], "plain": [1]}))).await?;
    server.apply(&by("you"), spec(json!({"size": 1, "unique": ["y", "z"]}))).await?;
    server.apply(&by("you"), spec(json!({"size": 1, "plain": [2]}))).await?;
    server.apply(&by("me"), spec(json!({"size": 1, "whole": {"a": "1"}, "labels": {"a": "1"}}))).await?;
    server.apply(&by("you"), spec(json!({"size": 1, "whole": {"b": "1"}, "labels": {"b": "1"}}))).await?;
    server.apply(&by("you"), spec(json!({"size": 1, "labels": {"b": "1"}}))).await?;
    Ok(())
}

async fn refused_applies(server: &mut Recorder) -> TestResult {
    let by = |name: &str| format!("{GIZMOS}/{name}?fieldManager=me");
    for spec in [
        json!({"size": 1, "unknown": 1}),
        json!({"size": "1"}),
        json!({"size": 0}),
        json!({"colour": "red"}),
        json!({"size": 1, "parts": [{"count": 1}]}),
    ] {
        server.apply(&by("refused"), gizmo("refused", spec.clone())).await?;
        server.apply(&by("lists"), gizmo("lists", spec)).await?;
    }
    Ok(())
}
