//! Creations, reads and updates.

use serde_json::json;

use super::{
    super::recorder::Recorder, CONFIG_MAPS, GADGETS, OTHER_UID, ROLES, TestResult, WIDGETS, config_map,
    object_path, widget,
};

pub(super) async fn creates(server: &mut Recorder) -> TestResult {
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

/// Roles may have names with spaces, which a path has encoded.
pub(super) async fn encoded_names(server: &mut Recorder) -> TestResult {
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles";
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "team a"}, "rules": [rule],
    });
    server.post(roles, role.clone()).await?;
    let path = object_path(roles, "team%20a");
    server.get(&path).await?;
    server.apply(&format!("{path}?fieldManager=me"), role.clone()).await?;
    server.apply(&format!("{}?fieldManager=me", object_path(roles, "team%20b")), role).await?;
    server.merge_patch(&path, json!({"metadata": {"labels": {"a": "b"}}})).await?;
    server.get(&format!("{roles}?fieldSelector=metadata.name%3Dteam+a")).await?;
    server.delete(&path, json!({})).await?;
    server.get(&path).await?;
    Ok(())
}

/// Selectors of names with characters that a selector has to escape.
pub(super) async fn escaped_selectors(server: &mut Recorder) -> TestResult {
    let rule = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]});
    for name in ["a,b", "a=b", r"a\b", "a", "b"] {
        let role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": [rule],
        });
        server.post(ROLES, role).await?;
    }
    for selector in [
        r"metadata.name=a\,b",
        r"metadata.name=a\=b",
        r"metadata.name==a\\b",
        r"metadata.name!=a\,b,metadata.name!=a\=b,,metadata.name!=a",
        "metadata.name=a,b",
        "metadata.name=a=b",
        "metadata.name!==b",
        r"metadata.name=a\b",
        r"metadata.name=a\",
        "metadata.name= a",
        "name,metadata.name=a",
    ] {
        let selector: String = form_urlencoded::byte_serialize(selector.as_bytes()).collect();
        server.get(&format!("{ROLES}?fieldSelector={selector}")).await?;
    }
    Ok(())
}

pub(super) async fn gets_and_lists(server: &mut Recorder) -> TestResult {
    server.get(&object_path(CONFIG_MAPS, "a")).await?;
    server.get(&object_path(CONFIG_MAPS, "none")).await?;
    server.get(&object_path(WIDGETS, "a")).await?;
    server.get(&object_path(WIDGETS, "none")).await?;
    server.get(&object_path(WIDGETS, "a/status")).await?;
    for (name, labels) in [
        ("one", json!({"tier": "web", "app": "shop", "number": "text"})),
        ("two", json!({"tier": "db", "number": "5"})),
        ("three", json!({})),
    ] {
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
        "labelSelector=tier+in(web,db)",
        "labelSelector=number%3E4",
        "labelSelector=number+%3C+7",
        "labelSelector=tier%3E4",
        "labelSelector=number%3Ex",
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

pub(super) async fn updates(server: &mut Recorder) -> TestResult {
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
