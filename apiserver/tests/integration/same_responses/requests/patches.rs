//! Merge patches, JSON patches and writes of the status.

use serde_json::json;

use super::{super::recorder::Recorder, CONFIG_MAPS, OTHER_UID, TestResult, WIDGETS, object_path};

pub(super) async fn merge_patches(server: &mut Recorder) -> TestResult {
    let config_map_path = object_path(CONFIG_MAPS, "a");
    server
        .merge_patch(
            &config_map_path,
            json!({"data": {"k": "x", "l": "y"}, "metadata": {"labels": {"p": "q"}}}),
        )
        .await?;
    server.merge_patch(&config_map_path, json!({"data": {"k": "x"}})).await?;
    server.merge_patch(&config_map_path, json!({"data": {"k": null}, "metadata": {"labels": null}})).await?;
    server
        .merge_patch(&config_map_path, json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "z"}}))
        .await?;
    server.merge_patch(&config_map_path, json!({"metadata": {"uid": OTHER_UID}, "data": {"k": "z"}})).await?;
    server.merge_patch(&config_map_path, json!({"metadata": {"name": "other"}})).await?;
    server.merge_patch(&object_path(CONFIG_MAPS, "none"), json!({"data": {"k": "z"}})).await?;
    server.merge_patch(&config_map_path, json!([1])).await?;
    let widget_path = object_path(WIDGETS, "a");
    server
        .merge_patch(
            &widget_path,
            json!({"spec": {"deep": {"list": [1, 2], "gone": 1}}, "status": {"ready": true}}),
        )
        .await?;
    server.merge_patch(&widget_path, json!({"spec": {"deep": {"list": [3], "gone": null}}})).await?;
    server.merge_patch(&widget_path, json!({"metadata": {"annotations": {"note": "x"}}})).await?;
    server
        .merge_patch(&widget_path, json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 9}}))
        .await?;
    server
        .merge_patch(&widget_path, json!({"metadata": {"generation": 99, "creationTimestamp": null}}))
        .await?;
    let version = server.get(&widget_path).await?["metadata"]["resourceVersion"].clone();
    server
        .merge_patch(&widget_path, json!({"metadata": {"resourceVersion": version}, "spec": {"size": 9}}))
        .await?;
    server.merge_patch(&widget_path, json!({"spec": null})).await?;
    server.merge_patch(&widget_path, json!({"spec": {"size": 3}})).await?;
    Ok(())
}

pub(super) async fn json_patches(server: &mut Recorder) -> TestResult {
    let widget_path = object_path(WIDGETS, "a");
    server.json_patch(&widget_path, json!([{"op": "add", "path": "/spec/list", "value": [1, 2]}, {"op": "test", "path": "/spec/size", "value": 3}])).await?;
    server.json_patch(&widget_path, json!([{"op": "replace", "path": "/spec/list/0", "value": 7}, {"op": "remove", "path": "/spec/list/1"}])).await?;
    server.json_patch(&widget_path, json!([{"op": "copy", "from": "/spec/list", "path": "/spec/copy"}, {"op": "move", "from": "/spec/copy", "path": "/spec/moved"}])).await?;
    server.json_patch(&widget_path, json!([{"op": "test", "path": "/spec/size", "value": 4}])).await?;
    server.json_patch(&widget_path, json!([{"op": "remove", "path": "/spec/none"}])).await?;
    server.json_patch(&widget_path, json!({"op": "remove"})).await?;
    server.json_patch(&object_path(WIDGETS, "a/status"), json!([{"op": "add", "path": "/status", "value": {"n": 1}}, {"op": "add", "path": "/spec/size", "value": 99}])).await?;
    server.json_patch(&object_path(WIDGETS, "none"), json!([])).await?;
    server.json_patch(&widget_path, json!([])).await?;
    Ok(())
}

pub(super) async fn status_writes(server: &mut Recorder) -> TestResult {
    let status = object_path(WIDGETS, "a/status");
    server.merge_patch(&status, json!({"spec": {"size": 77}, "status": {"ready": false, "n": null}, "metadata": {"labels": {"from": "status"}}})).await?;
    server.merge_patch(&status, json!({"status": {"ready": false}})).await?;
    server
        .merge_patch(&status, json!({"metadata": {"resourceVersion": "1"}, "status": {"ready": true}}))
        .await?;
    let mut object = server.get(&status).await?;
    object["status"] = json!({"put": true});
    object["spec"] = json!({"size": 1000});
    object["metadata"]["annotations"] = json!({"from": "status"});
    server.put(&status, object.clone()).await?;
    server.put(&status, object).await?;
    server.merge_patch(&object_path(WIDGETS, "none/status"), json!({"status": {}})).await?;
    server.apply(&format!("{status}?fieldManager=me"), json!({
        "apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"applied": 1}})).await?;
    server.merge_patch(&object_path(CONFIG_MAPS, "a/status"), json!({"status": {}})).await?;
    Ok(())
}
