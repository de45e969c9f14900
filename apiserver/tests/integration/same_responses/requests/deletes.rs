//! Deletions, their propagation policies, and finalizers.

use serde_json::{Value, json};

use super::{
    super::recorder::Recorder, ACCOUNTS, CONFIG_MAPS, GADGETS, JOBS, OTHER_UID, REPLICA_SETS,
    REPLICATION_CONTROLLERS, TestResult, WIDGETS, config_map, object_path, widget,
};

pub(super) async fn deletes(server: &mut Recorder) -> TestResult {
    let created = server.post(CONFIG_MAPS, config_map("going", json!({"k": "v"}))).await?;
    let path = object_path(CONFIG_MAPS, "going");
    server.delete(&path, json!({"preconditions": {"uid": OTHER_UID}})).await?;
    server.delete(&path, json!({"preconditions": {"resourceVersion": "1"}})).await?;
    let metadata = &created["metadata"];
    let met =
        json!({"preconditions": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}});
    server.delete(&path, json!({"dryRun": ["All"]})).await?;
    server.delete_by_query(&format!("{path}?dryRun=All")).await?;
    server.delete(&path, met).await?;
    server.delete(&path, json!({})).await?;
    server.post(WIDGETS, widget(json!({"name": "going"}), json!({}))).await?;
    server.delete(&object_path(WIDGETS, "going"), json!({})).await?;
    server.delete(&object_path(WIDGETS, "going"), json!({})).await?;
    server
        .post(ACCOUNTS, json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "going"}}))
        .await?;
    server.delete(&object_path(ACCOUNTS, "going"), json!({})).await?;
    for policy in ["Foreground", "Orphan", "Background", "Sideways"] {
        server.post(WIDGETS, widget(json!({"name": "policy"}), json!({}))).await?;
        server.delete(&object_path(WIDGETS, "policy"), json!({"propagationPolicy": policy})).await?;
        server
            .merge_patch(&object_path(WIDGETS, "policy"), json!({"metadata": {"finalizers": null}}))
            .await?;
    }
    server
        .delete_by_query(&format!("{}?propagationPolicy=Foreground", object_path(WIDGETS, "policy")))
        .await?;
    server.merge_patch(&object_path(WIDGETS, "policy"), json!({"metadata": {"finalizers": []}})).await?;
    server.get(&object_path(WIDGETS, "policy")).await?;
    changed_policies(server).await?;
    default_policies(server).await
}

/// Deletes an object again with another propagation policy, and one that has the finalizer of a policy.
pub(super) async fn changed_policies(server: &mut Recorder) -> TestResult {
    let path = object_path(WIDGETS, "repolicy");
    server
        .post(WIDGETS, widget(json!({"name": "repolicy", "finalizers": ["compare.reknit.dev/x"]}), json!({})))
        .await?;
    for policy in ["Foreground", "Foreground", "Orphan", "Background", "Orphan"] {
        server.delete(&path, json!({"propagationPolicy": policy})).await?;
    }
    server.delete(&path, json!({})).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": ["orphan"]}})).await?;
    server.delete(&path, json!({"propagationPolicy": "Background"})).await?;
    server.get(&path).await?;
    server.post(WIDGETS, widget(json!({"name": "repolicy", "finalizers": ["orphan"]}), json!({}))).await?;
    server.delete(&path, json!({})).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": []}})).await?;
    Ok(())
}

/// Deletes objects of Kinds that orphan their dependents by default, and of one that does not.
pub(super) async fn default_policies(server: &mut Recorder) -> TestResult {
    let template = json!({
        "metadata": {"labels": {"app": "a"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]},
    });
    let replicated = json!({
        "metadata": {"labels": {"app": "a"}},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    });
    let object = |api_version: &str, kind: &str, spec: Value| {
        json!({
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {"name": "policy", "labels": {"app": "a"}},
            "spec": spec,
        })
    };
    let selected =
        json!({"replicas": 0, "selector": {"matchLabels": {"app": "a"}}, "template": replicated.clone()});
    for (collection, object) in [
        (JOBS, object("batch/v1", "Job", json!({"template": template}))),
        (
            REPLICATION_CONTROLLERS,
            object("v1", "ReplicationController", json!({"replicas": 0, "template": replicated})),
        ),
        (REPLICA_SETS, object("apps/v1", "ReplicaSet", selected)),
    ] {
        let path = object_path(collection, "policy");
        for options in [json!({}), json!({"propagationPolicy": "Background"})] {
            server.post(collection, object.clone()).await?;
            server.compare_metadata_only();
            server.delete(&path, options).await?;
            server.compare_metadata_only();
            server.merge_patch(&path, json!({"metadata": {"finalizers": null}})).await?;
            server.compare_metadata_only();
            server.get(&path).await?;
        }
    }
    Ok(())
}

pub(super) async fn finalizers(server: &mut Recorder) -> TestResult {
    let held = json!({"name": "held", "finalizers": ["compare.reknit.dev/x", "compare.reknit.dev/y"]});
    server.post(WIDGETS, widget(held.clone(), json!({}))).await?;
    let path = object_path(WIDGETS, "held");
    server.delete(&path, json!({})).await?;
    server.delete(&path, json!({})).await?;
    server
        .merge_patch(
            &path,
            json!({"metadata": {"finalizers": ["compare.reknit.dev/x", "compare.reknit.dev/new"]}}),
        )
        .await?;
    server.merge_patch(&path, json!({"spec": {"still": "changes"}})).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": ["compare.reknit.dev/y"]}})).await?;
    server.post(WIDGETS, widget(held, json!({}))).await?;
    server.merge_patch(&path, json!({"metadata": {"finalizers": []}})).await?;
    server.get(&path).await?;
    server
        .post(CONFIG_MAPS, json!({"metadata": {"name": "held", "finalizers": ["compare.reknit.dev/x"]}}))
        .await?;
    server.delete(&object_path(CONFIG_MAPS, "held"), json!({})).await?;
    let mut last = server.get(&object_path(CONFIG_MAPS, "held")).await?;
    last["metadata"]["finalizers"] = json!([]);
    server.put(&object_path(CONFIG_MAPS, "held"), last).await?;
    server.get(&object_path(CONFIG_MAPS, "held")).await?;
    Ok(())
}

pub(super) async fn deletes_of_collections(server: &mut Recorder) -> TestResult {
    server.delete(&format!("{CONFIG_MAPS}?labelSelector=tier%3Dweb"), json!({})).await?;
    server.get(&format!("{CONFIG_MAPS}?labelSelector=tier")).await?;
    server
        .post(
            WIDGETS,
            widget(
                json!({"name": "kept", "labels": {"all": "yes"}, "finalizers": ["compare.reknit.dev/x"]}),
                json!({}),
            ),
        )
        .await?;
    server.post(WIDGETS, widget(json!({"name": "gone", "labels": {"all": "yes"}}), json!({}))).await?;
    server.delete_by_query(&format!("{WIDGETS}?labelSelector=all&dryRun=All")).await?;
    server.delete(&format!("{WIDGETS}?labelSelector=all"), json!({})).await?;
    server.get(&format!("{WIDGETS}?labelSelector=all")).await?;
    server.delete(&format!("{WIDGETS}?labelSelector=none"), json!({})).await?;
    server.delete(GADGETS, json!({})).await?;
    server.get(GADGETS).await?;
    Ok(())
}
