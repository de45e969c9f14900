//! The requests of the comparison: every verb, on a built-in Kind, a custom resource and a cluster-scoped Kind.

use std::error::Error;

use serde_json::{Value, json};

use super::recorder::Recorder;

type TestResult = Result<(), Box<dyn Error>>;

const CONFIG_MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/shop/serviceaccounts";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles";
const JOBS: &str = "/apis/batch/v1/namespaces/shop/jobs";
const REPLICATION_CONTROLLERS: &str = "/api/v1/namespaces/shop/replicationcontrollers";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/shop/replicasets";
const WIDGETS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/widgets";
const GADGETS: &str = "/apis/compare.reknit.dev/v1/gadgets";
const OTHER_UID: &str = "11111111-2222-3333-4444-555555555555";

pub(crate) async fn send(server: &mut Recorder) -> TestResult {
    creates(server).await?;
    gets_and_lists(server).await?;
    updates(server).await?;
    merge_patches(server).await?;
    json_patches(server).await?;
    status_writes(server).await?;
    deletes(server).await?;
    finalizers(server).await?;
    applies(server).await?;
    applied_lists(server).await?;
    dry_runs(server).await?;
    cluster_scoped(server).await?;
    lists_across_namespaces(server).await?;
    deletes_of_collections(server).await
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn widget(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "metadata": metadata, "spec": spec})
}

/// The path of an object in a collection.
fn object_path(collection: &str, name: &str) -> String {
    format!("{collection}/{name}")
}

async fn creates(server: &mut Recorder) -> TestResult {
    server.post(CONFIG_MAPS, config_map("a", json!({"k": "v"}))).await?;
    server.post(CONFIG_MAPS, config_map("a", json!({"k": "v"}))).await?;
    let generated =
        json!({"generateName": "made-", "labels": {"made": "yes"}, "annotations": {}, "finalizers": []});
    server.post(CONFIG_MAPS, json!({"metadata": generated})).await?;
    server.post(CONFIG_MAPS, json!({"metadata": {}})).await?;
    server.post(CONFIG_MAPS, json!({"metadata": {"name": "b", "namespace": "other"}})).await?;
    server.post(CONFIG_MAPS, json!({"metadata": {"name": "b", "resourceVersion": "7"}})).await?;
    let read_only = json!({"name": "b", "uid": OTHER_UID, "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9,
        "deletionTimestamp": "2020-01-01T00:00:00Z", "selfLink": "/x"});
    server.post(CONFIG_MAPS, json!({"metadata": read_only})).await?;
    let mut with_status = widget(json!({"name": "a", "labels": {"tier": "web"}}), json!({"size": 1}));
    with_status["status"] = json!({"made": true});
    server.post(WIDGETS, with_status.clone()).await?;
    server.post(WIDGETS, with_status).await?;
    server.post(WIDGETS, widget(json!({}), json!({}))).await?;
    server.post(WIDGETS, widget(json!({"name": "b", "resourceVersion": "7"}), json!({}))).await?;
    server.post(WIDGETS, widget(json!({"name": "b", "namespace": "other"}), json!({}))).await?;
    server
        .post(
            WIDGETS,
            widget(json!({"name": "b", "annotations": {}, "finalizers": []}), json!({"size": null})),
        )
        .await?;
    Ok(())
}

async fn gets_and_lists(server: &mut Recorder) -> TestResult {
    server.get(&object_path(CONFIG_MAPS, "a")).await?;
    server.get(&object_path(CONFIG_MAPS, "none")).await?;
    server.get(&object_path(WIDGETS, "a")).await?;
    server.get(&object_path(WIDGETS, "none")).await?;
    server.get(&object_path(WIDGETS, "a/status")).await?;
    for (name, labels) in
        [("one", json!({"tier": "web", "app": "shop"})), ("two", json!({"tier": "db"})), ("three", json!({}))]
    {
        server.post(CONFIG_MAPS, json!({"metadata": {"name": name, "labels": labels}})).await?;
    }
    for query in [
        "labelSelector=tier",
        "labelSelector=tier%3Dweb",
        "labelSelector=tier%3D%3Dweb",
        "labelSelector=tier!%3Dweb",
        "labelSelector=!tier",
        "labelSelector=tier+in+(web,+db)",
        "labelSelector=tier%20notin%20(web)",
        "labelSelector=tier%3Dweb,app%3Dshop",
        "labelSelector=tier+in+(web),!app",
        "labelSelector=none%3D1",
        "fieldSelector=metadata.name%3Done",
        "fieldSelector=metadata.name!%3Done,metadata.namespace%3Dshop",
        "labelSelector=a+b",
    ] {
        server.get(&format!("{CONFIG_MAPS}?{query}")).await?;
    }
    server.get(&format!("{WIDGETS}?labelSelector=tier%3Dweb")).await?;
    server.get(&format!("{WIDGETS}?labelSelector=tier%3Dnone")).await?;
    server.post(WIDGETS, widget(json!({"name": "red"}), json!({"colour": "red"}))).await?;
    for query in [
        "metadata.name%3Da",
        "metadata.namespace%3Dshop,metadata.name!%3Da",
        "spec.colour%3Dred",
        "spec.size%3D1",
        "metadata.name%3Da,status.made%3Dtrue",
    ] {
        server.get(&format!("{WIDGETS}?fieldSelector={query}")).await?;
    }
    server.delete(&format!("{WIDGETS}?fieldSelector=spec.size%3D1"), json!({})).await?;
    server.get(&format!("{GADGETS}?fieldSelector=spec.colour%3Dred")).await?;
    server.get("/apis/compare.reknit.dev/v1/widgets").await?;
    server.get("/api/v1/configmaps?fieldSelector=metadata.namespace%3Dshop").await?;

    let mut page = server.get(&format!("{CONFIG_MAPS}?limit=2")).await?;
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let token = token.replace('=', "%3D");
        page = server.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await?;
    }
    server.get(&format!("{CONFIG_MAPS}?limit=3&labelSelector=tier")).await?;
    Ok(())
}

async fn updates(server: &mut Recorder) -> TestResult {
    let old = server.get(&object_path(CONFIG_MAPS, "a")).await?;
    let mut new = old.clone();
    server.put(&object_path(CONFIG_MAPS, "a"), old.clone()).await?;
    new["data"] = json!({"k": "w"});
    server.put(&object_path(CONFIG_MAPS, "a"), new.clone()).await?;
    server.put(&object_path(CONFIG_MAPS, "a"), new.clone()).await?;
    server.put(&object_path(CONFIG_MAPS, "a"), config_map("a", json!({"k": "without a version"}))).await?;
    server.put(&object_path(CONFIG_MAPS, "a"), config_map("other", json!({}))).await?;
    server.put(&object_path(CONFIG_MAPS, "none"), config_map("none", json!({}))).await?;
    server.put(&object_path(CONFIG_MAPS, "a"), json!({"metadata": {"name": "a", "uid": OTHER_UID}})).await?;
    server
        .put(&object_path(CONFIG_MAPS, "a"), json!({"metadata": {"name": "a", "namespace": "other"}}))
        .await?;
    server.put(&object_path(CONFIG_MAPS, "a"), json!({"data": {"k": "without a name"}})).await?;
    let fixed_fields = json!({"name": "a", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"});
    server.put(&object_path(CONFIG_MAPS, "a"), json!({"metadata": fixed_fields})).await?;

    let old = server.get(&object_path(WIDGETS, "a")).await?;
    server.put(&object_path(WIDGETS, "a"), old.clone()).await?;
    let mut new = old.clone();
    new["spec"]["size"] = json!(2);
    new["status"] = json!({"ready": true});
    server.put(&object_path(WIDGETS, "a"), new.clone()).await?;
    server.put(&object_path(WIDGETS, "a"), new.clone()).await?;
    server.put(&object_path(WIDGETS, "a"), widget(json!({"name": "a"}), json!({}))).await?;
    server.put(&object_path(WIDGETS, "none"), widget(json!({"name": "none"}), json!({}))).await?;
    new["metadata"]["resourceVersion"] = json!("1");
    new["metadata"]["uid"] = json!(OTHER_UID);
    server.put(&object_path(WIDGETS, "a"), new).await?;
    let mut labelled = server.get(&object_path(WIDGETS, "a")).await?;
    labelled["metadata"]["labels"] = json!({"tier": "db"});
    server.put(&object_path(WIDGETS, "a"), labelled).await?;
    Ok(())
}

async fn merge_patches(server: &mut Recorder) -> TestResult {
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

async fn json_patches(server: &mut Recorder) -> TestResult {
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

async fn status_writes(server: &mut Recorder) -> TestResult {
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

async fn deletes(server: &mut Recorder) -> TestResult {
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
async fn changed_policies(server: &mut Recorder) -> TestResult {
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
async fn default_policies(server: &mut Recorder) -> TestResult {
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

async fn finalizers(server: &mut Recorder) -> TestResult {
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

async fn applies(server: &mut Recorder) -> TestResult {
    let path = object_path(CONFIG_MAPS, "applied");
    let by = |manager: &str| format!("{path}?fieldManager={manager}");
    server.apply(&by("me"), config_map("applied", json!({"mine": "1", "both": "2"}))).await?;
    server.apply(&by("me"), config_map("applied", json!({"mine": "1", "both": "2"}))).await?;
    server.apply(&by("you"), config_map("applied", json!({"yours": "1", "both": "2"}))).await?;
    server.apply(&by("you"), config_map("applied", json!({"yours": "1", "both": "3"}))).await?;
    server.apply(&by("you"), config_map("applied", json!({"mine": "2", "both": "3"}))).await?;
    server.apply(&by("me"), config_map("applied", json!({"mine": "1"}))).await?;
    server.apply(&by("me"), config_map("applied", json!({}))).await?;
    server
        .apply(&format!("{}&force=true", by("me")), config_map("applied", json!({"yours": "now mine"})))
        .await?;
    server.apply(&by("you"), config_map("applied", json!({"both": "2"}))).await?;
    server.merge_patch(&by("hand"), json!({"data": {"yours": "by hand", "hand": "1"}})).await?;
    server.apply(&by("me"), config_map("applied", json!({"yours": "now mine"}))).await?;
    server
        .apply(&format!("{}&force=true", by("me")), config_map("applied", json!({"yours": "now mine"})))
        .await?;
    server.apply(&by("me"), config_map("applied", json!({}))).await?;
    server.apply(&path, config_map("applied", json!({}))).await?;
    server.apply(&by("me"), config_map("other", json!({}))).await?;
    server.apply(&by("me"), json!({"metadata": {"name": "applied"}})).await?;
    let version = server.get(&path).await?["metadata"]["resourceVersion"].clone();
    let mut stale = config_map("applied", json!({"k": "v"}));
    stale["metadata"]["resourceVersion"] = json!("1");
    server.apply(&by("me"), stale.clone()).await?;
    stale["metadata"]["resourceVersion"] = version;
    server.apply(&by("me"), stale).await?;
    let mut unknown = config_map("none", json!({}));
    unknown["metadata"]["uid"] = json!(OTHER_UID);
    server.apply(&format!("{}?fieldManager=me", object_path(CONFIG_MAPS, "none")), unknown).await?;
    server
        .apply(
            &format!("{}?fieldManager=me&dryRun=All", object_path(CONFIG_MAPS, "dry")),
            config_map("dry", json!({"k": "v"})),
        )
        .await?;
    server.get(&object_path(CONFIG_MAPS, "dry")).await?;

    let elsewhere = json!({"metadata": {"name": "elsewhere", "namespace": "other"}, "apiVersion": "v1", "kind": "ConfigMap"});
    server.apply(&format!("{}?fieldManager=me", object_path(CONFIG_MAPS, "elsewhere")), elsewhere).await?;
    let mut moved = config_map("applied", json!({"k": "v"}));
    moved["metadata"]["namespace"] = json!("other");
    server.apply(&by("me"), moved.clone()).await?;
    moved["metadata"]["namespace"] = json!("shop");
    server.apply(&by("me"), moved).await?;

    let path = format!("{}?fieldManager=me", object_path(WIDGETS, "applied"));
    let named = json!({"name": "applied"});
    server.apply(&path, widget(named.clone(), json!({"deep": {"a": 1, "b": [1, 2]}}))).await?;
    server.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    let mut with_status = widget(named.clone(), json!({"deep": {"b": [2]}}));
    with_status["status"] = json!({"ready": true});
    server.apply(&path, with_status).await?;
    server
        .merge_patch(
            &format!("{}?fieldManager=hand", object_path(WIDGETS, "applied")),
            json!({"spec": {"deep": {"b": [9], "c": 1}}}),
        )
        .await?;
    server.apply(&path, widget(named.clone(), json!({"deep": {"b": [2], "c": 2}}))).await?;
    server.apply(&format!("{path}&force=true"), widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    server.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}, "more": {"x": 1}}))).await?;
    server.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    let mut other = widget(named, json!({"deep": {"b": [2]}}));
    other["metadata"]["uid"] = json!(OTHER_UID);
    server.apply(&path, other).await?;
    let moved = widget(json!({"name": "applied", "namespace": "other"}), json!({"deep": {"b": [2]}}));
    server.apply(&path, moved).await?;
    server.strategic_merge_patch(&object_path(WIDGETS, "applied"), json!({"spec": {}})).await?;
    Ok(())
}

async fn applied_lists(server: &mut Recorder) -> TestResult {
    let by = |manager: &str| format!("{}?fieldManager={manager}", object_path(WIDGETS, "lists"));
    let with_lists = |finalizers: &[&str], owner: &str| {
        let owner =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": format!("uid-of-{owner}")});
        widget(json!({"name": "lists", "finalizers": finalizers, "ownerReferences": [owner]}), json!({}))
    };
    server.apply(&by("me"), with_lists(&["compare.reknit.dev/x"], "one")).await?;
    server.apply(&by("you"), with_lists(&["compare.reknit.dev/y"], "two")).await?;
    server.apply(&by("me"), with_lists(&["compare.reknit.dev/x", "compare.reknit.dev/y"], "one")).await?;
    server.apply(&by("me"), with_lists(&[], "three")).await?;
    server.apply(&by("you"), widget(json!({"name": "lists"}), json!({}))).await?;

    let account = |secrets: &[&str], pulls: &[&str]| {
        let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "lists"},
            "secrets": named(secrets), "imagePullSecrets": named(pulls)})
    };
    let by = |manager: &str| format!("{}?fieldManager={manager}", object_path(ACCOUNTS, "lists"));
    server.apply(&by("me"), account(&["a", "b"], &["p"])).await?;
    server.apply(&by("you"), account(&["c"], &["p"])).await?;
    server.apply(&by("me"), account(&["b"], &["p"])).await?;

    let role = |verbs: &[&str]| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "lists"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
    };
    let by = |manager: &str| format!("{}?fieldManager={manager}", object_path(ROLES, "lists"));
    server.apply(&by("me"), role(&["get", "list"])).await?;
    server.apply(&by("you"), role(&["get"])).await?;
    server.apply(&by("me"), role(&["get"])).await?;
    Ok(())
}

async fn dry_runs(server: &mut Recorder) -> TestResult {
    server.post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("dry", json!({"k": "v"}))).await?;
    server.get(&object_path(CONFIG_MAPS, "dry")).await?;
    server
        .merge_patch(&format!("{}?dryRun=All", object_path(WIDGETS, "a")), json!({"spec": {"dry": true}}))
        .await?;
    server.get(&object_path(WIDGETS, "a")).await?;
    Ok(())
}

async fn cluster_scoped(server: &mut Recorder) -> TestResult {
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

async fn lists_across_namespaces(server: &mut Recorder) -> TestResult {
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

async fn deletes_of_collections(server: &mut Recorder) -> TestResult {
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
