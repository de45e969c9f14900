//! The requests of the comparison: every verb, on a built-in Kind, a custom resource and a cluster-scoped Kind.

use std::error::Error;

use serde_json::{Value, json};

use super::asked::Asked;

type Sent = Result<(), Box<dyn Error>>;

const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/shop/serviceaccounts";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles";
const WIDGETS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/widgets";
const GADGETS: &str = "/apis/compare.reknit.dev/v1/gadgets";
const WRONG: &str = "11111111-2222-3333-4444-555555555555";

pub(crate) async fn send(to: &mut Asked) -> Sent {
    creates(to).await?;
    gets_and_lists(to).await?;
    updates(to).await?;
    merge_patches(to).await?;
    json_patches(to).await?;
    statuses(to).await?;
    deletes(to).await?;
    finalizers(to).await?;
    applies(to).await?;
    applied_lists(to).await?;
    dry_runs(to).await?;
    cluster_scoped(to).await?;
    namespaces(to).await?;
    collections(to).await
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn widget(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "metadata": metadata, "spec": spec})
}

fn at(collection: &str, name: &str) -> String {
    format!("{collection}/{name}")
}

async fn creates(to: &mut Asked) -> Sent {
    to.post(MAPS, map("a", json!({"k": "v"}))).await?;
    to.post(MAPS, map("a", json!({"k": "v"}))).await?;
    let generated =
        json!({"generateName": "made-", "labels": {"made": "yes"}, "annotations": {}, "finalizers": []});
    to.post(MAPS, json!({"metadata": generated})).await?;
    to.post(MAPS, json!({"metadata": {}})).await?;
    to.post(MAPS, json!({"metadata": {"name": "b", "namespace": "other"}})).await?;
    to.post(MAPS, json!({"metadata": {"name": "b", "resourceVersion": "7"}})).await?;
    let foreign = json!({"name": "b", "uid": WRONG, "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 9,
        "deletionTimestamp": "2020-01-01T00:00:00Z", "selfLink": "/x"});
    to.post(MAPS, json!({"metadata": foreign})).await?;
    let mut first = widget(json!({"name": "a", "labels": {"tier": "web"}}), json!({"size": 1}));
    first["status"] = json!({"made": true});
    to.post(WIDGETS, first.clone()).await?;
    to.post(WIDGETS, first).await?;
    to.post(WIDGETS, widget(json!({}), json!({}))).await?;
    to.post(WIDGETS, widget(json!({"name": "b", "resourceVersion": "7"}), json!({}))).await?;
    to.post(WIDGETS, widget(json!({"name": "b", "namespace": "other"}), json!({}))).await?;
    to.post(
        WIDGETS,
        widget(json!({"name": "b", "annotations": {}, "finalizers": []}), json!({"size": null})),
    )
    .await?;
    Ok(())
}

async fn gets_and_lists(to: &mut Asked) -> Sent {
    to.get(&at(MAPS, "a")).await?;
    to.get(&at(MAPS, "none")).await?;
    to.get(&at(WIDGETS, "a")).await?;
    to.get(&at(WIDGETS, "none")).await?;
    to.get(&at(WIDGETS, "a/status")).await?;
    for (name, labels) in
        [("one", json!({"tier": "web", "app": "shop"})), ("two", json!({"tier": "db"})), ("three", json!({}))]
    {
        to.post(MAPS, json!({"metadata": {"name": name, "labels": labels}})).await?;
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
        to.get(&format!("{MAPS}?{query}")).await?;
    }
    to.get(&format!("{WIDGETS}?labelSelector=tier%3Dweb")).await?;
    to.get(&format!("{WIDGETS}?labelSelector=tier%3Dnone")).await?;
    to.post(WIDGETS, widget(json!({"name": "red"}), json!({"colour": "red"}))).await?;
    for query in [
        "metadata.name%3Da",
        "metadata.namespace%3Dshop,metadata.name!%3Da",
        "spec.colour%3Dred",
        "spec.size%3D1",
        "metadata.name%3Da,status.made%3Dtrue",
    ] {
        to.get(&format!("{WIDGETS}?fieldSelector={query}")).await?;
    }
    to.delete(&format!("{WIDGETS}?fieldSelector=spec.size%3D1"), json!({})).await?;
    to.get(&format!("{GADGETS}?fieldSelector=spec.colour%3Dred")).await?;
    to.get("/apis/compare.reknit.dev/v1/widgets").await?;
    to.get("/api/v1/configmaps?fieldSelector=metadata.namespace%3Dshop").await?;

    let mut page = to.get(&format!("{MAPS}?limit=2")).await?;
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let token = token.replace('=', "%3D");
        page = to.get(&format!("{MAPS}?limit=2&continue={token}")).await?;
    }
    to.get(&format!("{MAPS}?limit=3&labelSelector=tier")).await?;
    Ok(())
}

async fn updates(to: &mut Asked) -> Sent {
    let old = to.get(&at(MAPS, "a")).await?;
    let mut new = old.clone();
    to.put(&at(MAPS, "a"), old.clone()).await?;
    new["data"] = json!({"k": "w"});
    to.put(&at(MAPS, "a"), new.clone()).await?;
    to.put(&at(MAPS, "a"), new.clone()).await?;
    to.put(&at(MAPS, "a"), map("a", json!({"k": "without a version"}))).await?;
    to.put(&at(MAPS, "a"), map("other", json!({}))).await?;
    to.put(&at(MAPS, "none"), map("none", json!({}))).await?;
    to.put(&at(MAPS, "a"), json!({"metadata": {"name": "a", "uid": WRONG}})).await?;
    to.put(&at(MAPS, "a"), json!({"metadata": {"name": "a", "namespace": "other"}})).await?;
    to.put(&at(MAPS, "a"), json!({"data": {"k": "without a name"}})).await?;
    let fixed = json!({"name": "a", "creationTimestamp": "2020-01-01T00:00:00Z", "generation": 7, "deletionTimestamp": "2020-01-01T00:00:00Z"});
    to.put(&at(MAPS, "a"), json!({"metadata": fixed})).await?;

    let old = to.get(&at(WIDGETS, "a")).await?;
    to.put(&at(WIDGETS, "a"), old.clone()).await?;
    let mut new = old.clone();
    new["spec"]["size"] = json!(2);
    new["status"] = json!({"ready": true});
    to.put(&at(WIDGETS, "a"), new.clone()).await?;
    to.put(&at(WIDGETS, "a"), new.clone()).await?;
    to.put(&at(WIDGETS, "a"), widget(json!({"name": "a"}), json!({}))).await?;
    to.put(&at(WIDGETS, "none"), widget(json!({"name": "none"}), json!({}))).await?;
    new["metadata"]["resourceVersion"] = json!("1");
    new["metadata"]["uid"] = json!(WRONG);
    to.put(&at(WIDGETS, "a"), new).await?;
    let labelled = to.get(&at(WIDGETS, "a")).await?;
    let mut labelled = labelled;
    labelled["metadata"]["labels"] = json!({"tier": "db"});
    to.put(&at(WIDGETS, "a"), labelled).await?;
    Ok(())
}

async fn merge_patches(to: &mut Asked) -> Sent {
    let a = at(MAPS, "a");
    to.merge(&a, json!({"data": {"k": "x", "l": "y"}, "metadata": {"labels": {"p": "q"}}})).await?;
    to.merge(&a, json!({"data": {"k": "x"}})).await?;
    to.merge(&a, json!({"data": {"k": null}, "metadata": {"labels": null}})).await?;
    to.merge(&a, json!({"metadata": {"resourceVersion": "1"}, "data": {"k": "z"}})).await?;
    to.merge(&a, json!({"metadata": {"uid": WRONG}, "data": {"k": "z"}})).await?;
    to.merge(&a, json!({"metadata": {"name": "other"}})).await?;
    to.merge(&at(MAPS, "none"), json!({"data": {"k": "z"}})).await?;
    to.merge(&a, json!([1])).await?;
    let w = at(WIDGETS, "a");
    to.merge(&w, json!({"spec": {"deep": {"list": [1, 2], "gone": 1}}, "status": {"ready": true}})).await?;
    to.merge(&w, json!({"spec": {"deep": {"list": [3], "gone": null}}})).await?;
    to.merge(&w, json!({"metadata": {"annotations": {"note": "x"}}})).await?;
    to.merge(&w, json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 9}})).await?;
    to.merge(&w, json!({"metadata": {"generation": 99, "creationTimestamp": null}})).await?;
    let version = to.get(&w).await?["metadata"]["resourceVersion"].clone();
    to.merge(&w, json!({"metadata": {"resourceVersion": version}, "spec": {"size": 9}})).await?;
    to.merge(&w, json!({"spec": null})).await?;
    to.merge(&w, json!({"spec": {"size": 3}})).await?;
    Ok(())
}

async fn json_patches(to: &mut Asked) -> Sent {
    let w = at(WIDGETS, "a");
    to.json(&w, json!([{"op": "add", "path": "/spec/list", "value": [1, 2]}, {"op": "test", "path": "/spec/size", "value": 3}])).await?;
    to.json(&w, json!([{"op": "replace", "path": "/spec/list/0", "value": 7}, {"op": "remove", "path": "/spec/list/1"}])).await?;
    to.json(&w, json!([{"op": "copy", "from": "/spec/list", "path": "/spec/copy"}, {"op": "move", "from": "/spec/copy", "path": "/spec/moved"}])).await?;
    to.json(&w, json!([{"op": "test", "path": "/spec/size", "value": 4}])).await?;
    to.json(&w, json!([{"op": "remove", "path": "/spec/none"}])).await?;
    to.json(&w, json!({"op": "remove"})).await?;
    to.json(&at(WIDGETS, "a/status"), json!([{"op": "add", "path": "/status", "value": {"n": 1}}, {"op": "add", "path": "/spec/size", "value": 99}])).await?;
    to.json(&at(WIDGETS, "none"), json!([])).await?;
    to.json(&w, json!([])).await?;
    Ok(())
}

async fn statuses(to: &mut Asked) -> Sent {
    let status = at(WIDGETS, "a/status");
    to.merge(&status, json!({"spec": {"size": 77}, "status": {"ready": false, "n": null}, "metadata": {"labels": {"from": "status"}}})).await?;
    to.merge(&status, json!({"status": {"ready": false}})).await?;
    to.merge(&status, json!({"metadata": {"resourceVersion": "1"}, "status": {"ready": true}})).await?;
    let mut object = to.get(&status).await?;
    object["status"] = json!({"put": true});
    object["spec"] = json!({"size": 1000});
    object["metadata"]["annotations"] = json!({"from": "status"});
    to.put(&status, object.clone()).await?;
    to.put(&status, object).await?;
    to.merge(&at(WIDGETS, "none/status"), json!({"status": {}})).await?;
    to.apply(&format!("{status}?fieldManager=me"), json!({
        "apiVersion": "compare.reknit.dev/v1", "kind": "Widget", "metadata": {"name": "a"}, "status": {"applied": 1}})).await?;
    to.merge(&at(MAPS, "a/status"), json!({"status": {}})).await?;
    Ok(())
}

async fn deletes(to: &mut Asked) -> Sent {
    let made = to.post(MAPS, map("going", json!({"k": "v"}))).await?;
    let path = at(MAPS, "going");
    to.delete(&path, json!({"preconditions": {"uid": WRONG}})).await?;
    to.delete(&path, json!({"preconditions": {"resourceVersion": "1"}})).await?;
    let fields = &made["metadata"];
    let both = json!({"preconditions": {"uid": fields["uid"], "resourceVersion": fields["resourceVersion"]}});
    to.delete(&path, json!({"dryRun": ["All"]})).await?;
    to.delete_by_query(&format!("{path}?dryRun=All")).await?;
    to.delete(&path, both).await?;
    to.delete(&path, json!({})).await?;
    to.post(WIDGETS, widget(json!({"name": "going"}), json!({}))).await?;
    to.delete(&at(WIDGETS, "going"), json!({})).await?;
    to.delete(&at(WIDGETS, "going"), json!({})).await?;
    to.post(ACCOUNTS, json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "going"}}))
        .await?;
    to.delete(&at(ACCOUNTS, "going"), json!({})).await?;
    for policy in ["Foreground", "Orphan", "Background", "Sideways"] {
        to.post(WIDGETS, widget(json!({"name": "policy"}), json!({}))).await?;
        to.delete(&at(WIDGETS, "policy"), json!({"propagationPolicy": policy})).await?;
        to.merge(&at(WIDGETS, "policy"), json!({"metadata": {"finalizers": null}})).await?;
    }
    to.delete_by_query(&format!("{}?propagationPolicy=Foreground", at(WIDGETS, "policy"))).await?;
    to.merge(&at(WIDGETS, "policy"), json!({"metadata": {"finalizers": []}})).await?;
    to.get(&at(WIDGETS, "policy")).await?;
    Ok(())
}

async fn finalizers(to: &mut Asked) -> Sent {
    let held = json!({"name": "held", "finalizers": ["compare.reknit.dev/x", "compare.reknit.dev/y"]});
    to.post(WIDGETS, widget(held.clone(), json!({}))).await?;
    let path = at(WIDGETS, "held");
    to.delete(&path, json!({})).await?;
    to.delete(&path, json!({})).await?;
    to.merge(&path, json!({"metadata": {"finalizers": ["compare.reknit.dev/x", "compare.reknit.dev/new"]}}))
        .await?;
    to.merge(&path, json!({"spec": {"still": "changes"}})).await?;
    to.merge(&path, json!({"metadata": {"finalizers": ["compare.reknit.dev/y"]}})).await?;
    to.post(WIDGETS, widget(held, json!({}))).await?;
    to.merge(&path, json!({"metadata": {"finalizers": []}})).await?;
    to.get(&path).await?;
    to.post(MAPS, json!({"metadata": {"name": "held", "finalizers": ["compare.reknit.dev/x"]}})).await?;
    to.delete(&at(MAPS, "held"), json!({})).await?;
    let mut last = to.get(&at(MAPS, "held")).await?;
    last["metadata"]["finalizers"] = json!([]);
    to.put(&at(MAPS, "held"), last).await?;
    to.get(&at(MAPS, "held")).await?;
    Ok(())
}

async fn applies(to: &mut Asked) -> Sent {
    let path = at(MAPS, "applied");
    let by = |manager: &str| format!("{path}?fieldManager={manager}");
    to.apply(&by("me"), map("applied", json!({"mine": "1", "both": "2"}))).await?;
    to.apply(&by("me"), map("applied", json!({"mine": "1", "both": "2"}))).await?;
    to.apply(&by("you"), map("applied", json!({"yours": "1", "both": "2"}))).await?;
    to.apply(&by("you"), map("applied", json!({"yours": "1", "both": "3"}))).await?;
    to.apply(&by("you"), map("applied", json!({"mine": "2", "both": "3"}))).await?;
    to.apply(&by("me"), map("applied", json!({"mine": "1"}))).await?;
    to.apply(&by("me"), map("applied", json!({}))).await?;
    to.apply(&format!("{}&force=true", by("me")), map("applied", json!({"yours": "now mine"}))).await?;
    to.apply(&by("you"), map("applied", json!({"both": "2"}))).await?;
    to.merge(&by("hand"), json!({"data": {"yours": "by hand", "hand": "1"}})).await?;
    to.apply(&by("me"), map("applied", json!({"yours": "now mine"}))).await?;
    to.apply(&format!("{}&force=true", by("me")), map("applied", json!({"yours": "now mine"}))).await?;
    to.apply(&by("me"), map("applied", json!({}))).await?;
    to.apply(&path, map("applied", json!({}))).await?;
    to.apply(&by("me"), map("other", json!({}))).await?;
    to.apply(&by("me"), json!({"metadata": {"name": "applied"}})).await?;
    let version = to.get(&path).await?["metadata"]["resourceVersion"].clone();
    let mut stale = map("applied", json!({"k": "v"}));
    stale["metadata"]["resourceVersion"] = json!("1");
    to.apply(&by("me"), stale.clone()).await?;
    stale["metadata"]["resourceVersion"] = version;
    to.apply(&by("me"), stale).await?;
    let mut unknown = map("none", json!({}));
    unknown["metadata"]["uid"] = json!(WRONG);
    to.apply(&format!("{}?fieldManager=me", at(MAPS, "none")), unknown).await?;
    to.apply(&format!("{}?fieldManager=me&dryRun=All", at(MAPS, "dry")), map("dry", json!({"k": "v"})))
        .await?;
    to.get(&at(MAPS, "dry")).await?;

    let elsewhere = json!({"metadata": {"name": "elsewhere", "namespace": "other"}, "apiVersion": "v1", "kind": "ConfigMap"});
    to.apply(&format!("{}?fieldManager=me", at(MAPS, "elsewhere")), elsewhere).await?;
    let mut moved = map("applied", json!({"k": "v"}));
    moved["metadata"]["namespace"] = json!("other");
    to.apply(&by("me"), moved.clone()).await?;
    moved["metadata"]["namespace"] = json!("shop");
    to.apply(&by("me"), moved).await?;

    let path = format!("{}?fieldManager=me", at(WIDGETS, "applied"));
    let named = json!({"name": "applied"});
    to.apply(&path, widget(named.clone(), json!({"deep": {"a": 1, "b": [1, 2]}}))).await?;
    to.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    let mut with_status = widget(named.clone(), json!({"deep": {"b": [2]}}));
    with_status["status"] = json!({"ready": true});
    to.apply(&path, with_status).await?;
    to.merge(
        &format!("{}?fieldManager=hand", at(WIDGETS, "applied")),
        json!({"spec": {"deep": {"b": [9], "c": 1}}}),
    )
    .await?;
    to.apply(&path, widget(named.clone(), json!({"deep": {"b": [2], "c": 2}}))).await?;
    to.apply(&format!("{path}&force=true"), widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    to.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}, "more": {"x": 1}}))).await?;
    to.apply(&path, widget(named.clone(), json!({"deep": {"b": [2]}}))).await?;
    let mut other = widget(named, json!({"deep": {"b": [2]}}));
    other["metadata"]["uid"] = json!(WRONG);
    to.apply(&path, other).await?;
    let moved = widget(json!({"name": "applied", "namespace": "other"}), json!({"deep": {"b": [2]}}));
    to.apply(&path, moved).await?;
    to.strategic(&at(WIDGETS, "applied"), json!({"spec": {}})).await?;
    Ok(())
}

async fn applied_lists(to: &mut Asked) -> Sent {
    let by = |manager: &str| format!("{}?fieldManager={manager}", at(WIDGETS, "lists"));
    let held = |finalizers: &[&str], owner: &str| {
        let owner =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": format!("uid-of-{owner}")});
        widget(json!({"name": "lists", "finalizers": finalizers, "ownerReferences": [owner]}), json!({}))
    };
    to.apply(&by("me"), held(&["compare.reknit.dev/x"], "one")).await?;
    to.apply(&by("you"), held(&["compare.reknit.dev/y"], "two")).await?;
    to.apply(&by("me"), held(&["compare.reknit.dev/x", "compare.reknit.dev/y"], "one")).await?;
    to.apply(&by("me"), held(&[], "three")).await?;
    to.apply(&by("you"), widget(json!({"name": "lists"}), json!({}))).await?;

    let account = |secrets: &[&str], pulls: &[&str]| {
        let named = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>();
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "lists"},
            "secrets": named(secrets), "imagePullSecrets": named(pulls)})
    };
    let by = |manager: &str| format!("{}?fieldManager={manager}", at(ACCOUNTS, "lists"));
    to.apply(&by("me"), account(&["a", "b"], &["p"])).await?;
    to.apply(&by("you"), account(&["c"], &["p"])).await?;
    to.apply(&by("me"), account(&["b"], &["p"])).await?;

    let role = |verbs: &[&str]| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "lists"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]})
    };
    let by = |manager: &str| format!("{}?fieldManager={manager}", at(ROLES, "lists"));
    to.apply(&by("me"), role(&["get", "list"])).await?;
    to.apply(&by("you"), role(&["get"])).await?;
    to.apply(&by("me"), role(&["get"])).await?;
    Ok(())
}

async fn dry_runs(to: &mut Asked) -> Sent {
    to.post(&format!("{MAPS}?dryRun=All"), map("dry", json!({"k": "v"}))).await?;
    to.get(&at(MAPS, "dry")).await?;
    to.merge(&format!("{}?dryRun=All", at(WIDGETS, "a")), json!({"spec": {"dry": true}})).await?;
    to.get(&at(WIDGETS, "a")).await?;
    Ok(())
}

async fn cluster_scoped(to: &mut Asked) -> Sent {
    let gadget = json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gadget", "metadata": {"name": "g"}, "spec": {"n": 1}});
    to.post(GADGETS, gadget.clone()).await?;
    to.get(&at(GADGETS, "g")).await?;
    to.get(GADGETS).await?;
    to.merge(&at(GADGETS, "g"), json!({"spec": {"n": 2}})).await?;
    to.delete(&at(GADGETS, "g"), json!({})).await?;
    to.get(GADGETS).await?;
    to.apply(&format!("{}?fieldManager=me", at(GADGETS, "g")), gadget.clone()).await?;
    let mut nowhere = gadget;
    nowhere["metadata"]["namespace"] = json!("shop");
    to.apply(&format!("{}?fieldManager=me", at(GADGETS, "g")), nowhere.clone()).await?;
    nowhere["metadata"]["name"] = json!("h");
    to.apply(&format!("{}?fieldManager=me", at(GADGETS, "h")), nowhere).await?;
    Ok(())
}

async fn namespaces(to: &mut Asked) -> Sent {
    let labels = json!({"paged": "yes"});
    to.post(WIDGETS, widget(json!({"name": "x", "labels": labels}), json!({}))).await?;
    let beside = "/apis/compare.reknit.dev/v1/namespaces/shop-a/widgets";
    to.post(beside, widget(json!({"name": "y", "labels": labels}), json!({}))).await?;
    let pages = "/apis/compare.reknit.dev/v1/widgets?labelSelector=paged&limit=1";
    let mut page = to.get(pages).await?;
    while let Some(token) = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()) {
        let token = token.replace('=', "%3D");
        page = to.get(&format!("{pages}&continue={token}")).await?;
    }
    Ok(())
}

async fn collections(to: &mut Asked) -> Sent {
    to.delete(&format!("{MAPS}?labelSelector=tier%3Dweb"), json!({})).await?;
    to.get(&format!("{MAPS}?labelSelector=tier")).await?;
    to.post(
        WIDGETS,
        widget(
            json!({"name": "kept", "labels": {"all": "yes"}, "finalizers": ["compare.reknit.dev/x"]}),
            json!({}),
        ),
    )
    .await?;
    to.post(WIDGETS, widget(json!({"name": "gone", "labels": {"all": "yes"}}), json!({}))).await?;
    to.delete_by_query(&format!("{WIDGETS}?labelSelector=all&dryRun=All")).await?;
    to.delete(&format!("{WIDGETS}?labelSelector=all"), json!({})).await?;
    to.get(&format!("{WIDGETS}?labelSelector=all")).await?;
    to.delete(&format!("{WIDGETS}?labelSelector=none"), json!({})).await?;
    to.delete(GADGETS, json!({})).await?;
    to.get(GADGETS).await?;
    Ok(())
}
