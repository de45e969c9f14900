//! Server-side apply and dry runs.

use serde_json::json;

use super::{
    super::recorder::Recorder, ACCOUNTS, CONFIG_MAPS, OTHER_UID, ROLES, TestResult, WIDGETS, config_map,
    object_path, widget,
};

pub(super) async fn applies(server: &mut Recorder) -> TestResult {
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

pub(super) async fn applied_lists(server: &mut Recorder) -> TestResult {
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

pub(super) async fn dry_runs(server: &mut Recorder) -> TestResult {
    server.post(&format!("{CONFIG_MAPS}?dryRun=All"), config_map("dry", json!({"k": "v"}))).await?;
    server.get(&object_path(CONFIG_MAPS, "dry")).await?;
    server
        .merge_patch(&format!("{}?dryRun=All", object_path(WIDGETS, "a")), json!({"spec": {"dry": true}}))
        .await?;
    server.get(&object_path(WIDGETS, "a")).await?;
    Ok(())
}
