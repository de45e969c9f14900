//! Lists at a resourceVersion, compaction, and objects of which only the metadata is asked for.

use serde_json::json;

use super::{
    super::recorder::Recorder, CONFIG_MAPS, GADGETS, TestResult, WIDGETS, config_map, object_path, widget,
};

pub(super) async fn metadata(server: &mut Recorder) -> TestResult {
    server.post(CONFIG_MAPS, config_map("whole", json!({"k": "v"}))).await?;
    server.post(WIDGETS, widget(json!({"name": "whole"}), json!({"size": 1}))).await?;
    for path in [
        object_path(CONFIG_MAPS, "whole"),
        object_path(WIDGETS, "whole"),
        object_path(WIDGETS, "none"),
        format!("{CONFIG_MAPS}?limit=2"),
        format!("{WIDGETS}?fieldSelector=metadata.name%3Dwhole"),
        GADGETS.to_owned(),
    ] {
        server.get_metadata(&path).await?;
    }
    Ok(())
}

pub(super) async fn lists(server: &mut Recorder) -> TestResult {
    let before = server.post(WIDGETS, widget(json!({"name": "old"}), json!({"size": 1}))).await?;
    let before = before["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    server.post(WIDGETS, widget(json!({"name": "older"}), json!({}))).await?;
    server.merge_patch(&object_path(WIDGETS, "old"), json!({"spec": {"size": 2}})).await?;
    server.delete(&object_path(WIDGETS, "whole"), json!({})).await?;
    for query in [
        "resourceVersion=0".to_owned(),
        format!("resourceVersion={before}"),
        format!("limit=100&resourceVersion={before}"),
        format!("resourceVersionMatch=Exact&resourceVersion={before}"),
        format!("resourceVersionMatch=NotOlderThan&resourceVersion={before}"),
        "resourceVersionMatch=Exact".to_owned(),
        "resourceVersion=x".to_owned(),
    ] {
        server.get(&format!("{WIDGETS}?{query}")).await?;
    }
    // The pages of a list show the objects as they were at the first page.
    let page = server.get(&format!("{WIDGETS}?limit=1")).await?;
    server.merge_patch(&object_path(WIDGETS, "old"), json!({"spec": {"size": 3}})).await?;
    server.delete(&object_path(WIDGETS, "older"), json!({})).await?;
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().replace('=', "%3D");
    server.get(&format!("{WIDGETS}?limit=100&continue={token}")).await?;
    Ok(())
}

pub(super) async fn compaction(server: &mut Recorder) -> TestResult {
    let page = server.get(&format!("{CONFIG_MAPS}?limit=1")).await?;
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().replace('=', "%3D");
    server.merge_patch(&object_path(CONFIG_MAPS, "whole"), json!({"data": {"k": "w"}})).await?;
    server.merge_patch(&object_path(CONFIG_MAPS, "whole"), json!({"data": {"k": "x"}})).await?;
    server.compact().await?;
    let watch = |query: &str| format!("{CONFIG_MAPS}?watch=true&{query}");
    server.watches(&[watch("resourceVersion=1")]).await?;
    server.get(&format!("{CONFIG_MAPS}?resourceVersionMatch=Exact&resourceVersion=1")).await?;
    let page = server.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}")).await?;
    let token = page["metadata"]["continue"].as_str().unwrap_or_default().replace('=', "%3D");
    server.get(&format!("{CONFIG_MAPS}?limit=1&continue={token}")).await?;
    Ok(())
}
