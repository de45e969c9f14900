//! Watches.

use serde_json::json;

use super::{super::recorder::Recorder, CONFIG_MAPS, GADGETS, TestResult, WIDGETS, object_path, widget};

pub(super) async fn watches(server: &mut Recorder) -> TestResult {
    let list = server.get(CONFIG_MAPS).await?;
    let start = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
    change_config_maps(server).await?;
    change_widgets(server).await?;
    server.watches(&from(&start)).await?;
    server.watches(&refused(&start)).await?;
    let metadata = format!("watch=true&labelSelector=watched&resourceVersion={start}");
    server.metadata_watches(&[format!("{CONFIG_MAPS}?{metadata}"), format!("{WIDGETS}?{metadata}")]).await?;
    let initial = "watch=true&labelSelector=watched&allowWatchBookmarks=true\
        &sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    server.metadata_watches(&[format!("{WIDGETS}?{initial}")]).await
}

async fn change_config_maps(server: &mut Recorder) -> TestResult {
    let path = object_path(CONFIG_MAPS, "moves");
    let labels = |tier: &str| json!({"watched": "yes", "tier": tier});
    server.post(CONFIG_MAPS, json!({"metadata": {"name": "stays", "labels": labels("web")}})).await?;
    server
        .post(
            CONFIG_MAPS,
            json!({"metadata": {"name": "moves", "labels": labels("web")}, "data": {"k": "1"}}),
        )
        .await?;
    server.merge_patch(&path, json!({"data": {"k": "2"}})).await?;
    server.merge_patch(&path, json!({"data": {"k": "2"}})).await?;
    server.merge_patch(&path, json!({"metadata": {"labels": labels("db")}, "data": {"k": "3"}})).await?;
    server.merge_patch(&path, json!({"data": {"k": "4"}})).await?;
    server.merge_patch(&path, json!({"metadata": {"labels": labels("web")}})).await?;
    server.delete(&path, json!({})).await?;
    let held = json!({"name": "moves", "labels": labels("web"), "finalizers": ["compare.reknit.dev/x"]});
    server.post(CONFIG_MAPS, json!({"metadata": held})).await?;
    server.delete(&path, json!({})).await?;
    server.merge_patch(&path, json!({"data": {"last": "1"}, "metadata": {"finalizers": []}})).await?;
    server
        .post(
            &format!("{CONFIG_MAPS}?dryRun=All"),
            json!({"metadata": {"name": "dry", "labels": labels("web")}}),
        )
        .await?;
    let configuration =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"labels": labels("web")}});
    server.apply(&format!("{}?fieldManager=me", object_path(CONFIG_MAPS, "applied")), configuration).await?;
    Ok(())
}

async fn change_widgets(server: &mut Recorder) -> TestResult {
    let labels = json!({"watched": "yes"});
    let path = object_path(WIDGETS, "moves");
    server
        .post(WIDGETS, widget(json!({"name": "moves", "labels": labels}), json!({"colour": "red"})))
        .await?;
    server.merge_patch(&path, json!({"spec": {"colour": "green"}})).await?;
    server.merge_patch(&format!("{path}/status"), json!({"status": {"n": 1}})).await?;
    server.merge_patch(&path, json!({"spec": {"colour": "red"}})).await?;
    let other_namespace = "/apis/compare.reknit.dev/v1/namespaces/shop-a/widgets";
    server
        .post(other_namespace, widget(json!({"name": "moves", "labels": labels}), json!({"colour": "red"})))
        .await?;
    server.delete(&format!("{other_namespace}?labelSelector=watched"), json!({})).await?;
    server.delete(&path, json!({"propagationPolicy": "Foreground"})).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": null}})).await?;
    let gadget = json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gadget", "metadata": {"name": "watched", "labels": labels}});
    server.post(GADGETS, gadget).await?;
    server.merge_patch(&object_path(GADGETS, "watched"), json!({"spec": {"n": 2}})).await?;
    server.delete(&object_path(GADGETS, "watched"), json!({})).await?;
    for name in ["b", "a", "c"] {
        server
            .post(WIDGETS, widget(json!({"name": format!("watched-{name}"), "labels": labels}), json!({})))
            .await?;
    }
    server.merge_patch(&object_path(WIDGETS, "watched-a"), json!({"spec": {"size": 1}})).await?;
    Ok(())
}

/// Watches from this version, and of the current objects.
fn from(start: &str) -> Vec<String> {
    let all_widgets = "/apis/compare.reknit.dev/v1/widgets";
    let since = format!("watch=true&resourceVersion={start}");
    let initial =
        "watch=true&labelSelector=watched&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    vec![
        format!("{CONFIG_MAPS}?{since}"),
        format!("{CONFIG_MAPS}?{since}&labelSelector=tier%3Dweb"),
        format!("{CONFIG_MAPS}?{since}&labelSelector=tier!%3Dweb"),
        format!("{CONFIG_MAPS}?{since}&labelSelector=tier%3Dnone"),
        format!("{CONFIG_MAPS}?{since}&fieldSelector=metadata.name%3Dmoves"),
        format!("{CONFIG_MAPS}?{since}&fieldSelector=metadata.name%3Dmoves&labelSelector=tier%3Ddb"),
        format!("{}?{since}", object_path(CONFIG_MAPS, "moves")),
        format!("/api/v1/configmaps?{since}&labelSelector=watched"),
        format!("{WIDGETS}?{since}"),
        format!("{WIDGETS}?{since}&fieldSelector=spec.colour%3Dred"),
        format!("{all_widgets}?{since}&labelSelector=watched"),
        format!("{all_widgets}?{since}&fieldSelector=metadata.namespace%3Dshop-a"),
        format!("{GADGETS}?{since}"),
        format!("{CONFIG_MAPS}?watch=true&labelSelector=watched"),
        format!("{CONFIG_MAPS}?watch=1&labelSelector=watched&resourceVersion=0"),
        format!("{all_widgets}?watch=true&labelSelector=watched"),
        format!("{CONFIG_MAPS}?{initial}&sendInitialEvents=true"),
        format!("{CONFIG_MAPS}?{initial}&sendInitialEvents=true&resourceVersion={start}"),
        format!("{CONFIG_MAPS}?{initial}&sendInitialEvents=false&resourceVersion={start}"),
        format!("{WIDGETS}?{initial}&sendInitialEvents=true"),
        format!("{WIDGETS}?{initial}&sendInitialEvents=false"),
    ]
}

/// Watches with invalid parameters.
fn refused(start: &str) -> Vec<String> {
    [
        "resourceVersion=x".to_owned(),
        "labelSelector=a+b".to_owned(),
        "sendInitialEvents=true".to_owned(),
        "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=0".to_owned(),
        format!("resourceVersionMatch=NotOlderThan&resourceVersion={start}"),
    ]
    .map(|query| format!("{CONFIG_MAPS}?watch=true&{query}"))
    .into()
}
