//! Namespaces that terminate, and the garbage collector.

use serde_json::{Value, json};

use super::{super::recorder::Recorder, TestResult, WIDGETS, config_map, object_path, widget};

const NAMESPACES: &str = "/api/v1/namespaces";
const CLOSING: &str = "/apis/compare.reknit.dev/v1/namespaces/closing/widgets";

/// Deletes a namespace while no controller runs, so that it keeps terminating.
pub(super) async fn namespaces(server: &mut Recorder) -> TestResult {
    let closing = object_path(NAMESPACES, "closing");
    server.post("/api/v1/namespaces/none/configmaps", config_map("a", json!({}))).await?;
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    server.apply("/api/v1/namespaces/none/configmaps/a?fieldManager=me", applied.clone()).await?;
    server
        .post(NAMESPACES, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closing"}}))
        .await?;
    // The label with its name and the finalizer stay whatever a write says.
    for labels in [json!({"a": "b"}), json!({"a": "c"}), json!({})] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "closing", "labels": labels}});
        server.apply(&format!("{closing}?fieldManager=me"), body).await?;
    }
    let unlabelled = json!({"metadata": {"labels": null}, "spec": {"finalizers": null}});
    server.merge_patch(&closing, unlabelled).await?;
    server.post(CLOSING, widget(json!({"name": "a"}), json!({}))).await?;
    server
        .post(CLOSING, widget(json!({"name": "held", "finalizers": ["compare.reknit.dev/x"]}), json!({})))
        .await?;
    server.delete(&closing, json!({})).await?;
    server.delete(&closing, json!({})).await?;
    server.post(CLOSING, widget(json!({"name": "b"}), json!({}))).await?;
    server.post(CLOSING, widget(json!({"generateName": "b-"}), json!({}))).await?;
    server.post("/api/v1/namespaces/closing/configmaps", config_map("b", json!({}))).await?;
    server.apply("/api/v1/namespaces/closing/configmaps/b?fieldManager=me", applied).await?;
    server.merge_patch(&object_path(CLOSING, "a"), json!({"spec": {"still": "changes"}})).await?;
    server.get(&closing).await?;
    server.delete(&object_path(NAMESPACES, "default"), json!({})).await?;
    Ok(())
}

/// Runs the controllers, and compares what they did to each object.
pub(super) async fn garbage(server: &mut Recorder) -> TestResult {
    let list = server.get(WIDGETS).await?;
    let start = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    server.run_controllers().await?;
    server.until_gone(&object_path(CLOSING, "a")).await?;
    server.merge_patch(&object_path(CLOSING, "held"), json!({"metadata": {"finalizers": null}})).await?;
    server.until_gone(&object_path(NAMESPACES, "closing")).await?;

    for policy in ["Background", "Foreground", "Orphan"] {
        let prefix = policy.to_lowercase();
        let owner = create(server, &format!("{prefix}-owner"), &[]).await?;
        let other = create(server, &format!("{prefix}-other"), &[]).await?;
        let child = create(server, &format!("{prefix}-child"), &[&owner]).await?;
        create(server, &format!("{prefix}-grandchild"), &[&child]).await?;
        create(server, &format!("{prefix}-shared"), &[&other, &owner]).await?;
        let path = object_path(WIDGETS, &format!("{prefix}-owner"));
        server.delete(&path, json!({"propagationPolicy": policy})).await?;
        server.until_gone(&path).await?;
        if policy != "Orphan" {
            server.until_gone(&object_path(WIDGETS, &format!("{prefix}-child"))).await?;
            server.until_gone(&object_path(WIDGETS, &format!("{prefix}-grandchild"))).await?;
            server.until_one_owner(&object_path(WIDGETS, &format!("{prefix}-shared"))).await?;
        }
    }
    let absent = json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "name": "x", "uid": super::OTHER_UID});
    create(server, "dangling", &[&absent]).await?;
    server.until_gone(&object_path(WIDGETS, "dangling")).await?;
    server.get(&format!("{WIDGETS}?labelSelector=owned")).await?;
    server.watch_by_object(&format!("{WIDGETS}?watch=true&labelSelector=owned&resourceVersion={start}")).await
}

/// Creates a widget with these owners, and returns a reference to it that blocks the deletion of the owner.
async fn create(
    server: &mut Recorder,
    name: &str,
    owners: &[&Value],
) -> Result<Value, Box<dyn std::error::Error>> {
    let metadata = json!({"name": name, "labels": {"owned": "yes"}, "ownerReferences": owners});
    let uid = server.post(WIDGETS, widget(metadata, json!({}))).await?["metadata"]["uid"].clone();
    Ok(json!({
        "apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "name": name, "uid": uid, "blockOwnerDeletion": true,
    }))
}
