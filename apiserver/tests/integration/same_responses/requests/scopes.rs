//! Cluster-scoped objects, and lists across namespaces.

use serde_json::json;

use super::{super::recorder::Recorder, GADGETS, TestResult, WIDGETS, object_path, widget};

pub(super) async fn cluster_scoped(server: &mut Recorder) -> TestResult {
    let gadget = json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"n": 1}});
    server.post(GADGETS, gadget.clone()).await?;
    server.get(&object_path(GADGETS, "g")).await?;
    server.get(GADGETS).await?;
    server.merge_patch(&object_path(GADGETS, "g"), json!({"spec": {"n": 2}})).await?;
    server.delete(&object_path(GADGETS, "g"), json!({})).await?;
    server.get(GADGETS).await?;
    server.apply(&format!("{}?fieldManager=me", object_path(GADGETS, "g")), gadget.clone()).await?;
    let mut with_namespace = gadget;
    with_namespace["metadata"]["namespace"] = json!("shop");
    server.apply(&format!("{}?fieldManager=me", object_path(GADGETS, "g")), with_namespace.clone()).await?;
    with_namespace["metadata"]["name"] = json!("h");
    server.apply(&format!("{}?fieldManager=me", object_path(GADGETS, "h")), with_namespace).await?;
    Ok(())
}

pub(super) async fn lists_across_namespaces(server: &mut Recorder) -> TestResult {
    let labels = json!({"paged": "yes"});
    server.post(WIDGETS, widget(json!({"name": "x", "labels": labels}), json!({}))).await?;
    let other_namespace = "/apis/compare.reknit.dev/v1/namespaces/shop-a/widgets";
    server.post(other_namespace, widget(json!({"name": "y", "labels": labels}), json!({}))).await?;
    let all_namespaces = "/apis/compare.reknit.dev/v1/widgets?labelSelector=paged&limit=1";
    let mut page = server.get(all_namespaces).await?;
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let token = token.replace('=', "%3D");
        page = server.get(&format!("{all_namespaces}&continue={token}")).await?;
    }
    Ok(())
}
