//! The API server as its clients see it.

mod garbage;
mod watches;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};

use serde_json::{Value, json};

use crate::ApiServer;

fn config_map(fields: Value) -> ConfigMap {
    serde_json::from_value(fields).unwrap()
}

fn config_maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::namespaced(server.client(), "default")
}

/// The code and the message of the `Status` that the server returned.
fn code_and_message(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("not a response of the server: {other}"),
    }
}

async fn create(server: &ApiServer, name: &str) -> ConfigMap {
    config_maps(server)
        .create(&PostParams::default(), &config_map(json!({"metadata": {"name": name}})))
        .await
        .unwrap()
}

async fn merge(server: &ApiServer, name: &str, patch: Value) -> Result<ConfigMap, kube::Error> {
    config_maps(server).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

#[tokio::test]
async fn a_created_object_gets_a_name_a_uid_and_a_creation_time() {
    let server = ApiServer::new();
    let created = create(&server, "a").await;
    assert_eq!(created.metadata.namespace.as_deref(), Some("default"));
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    let generated = config_map(json!({"metadata": {"generateName": "a-"}}));
    let generated = config_maps(&server).create(&PostParams::default(), &generated).await.unwrap();
    assert!(generated.metadata.name.unwrap().len() > 2);
    let duplicate = config_map(json!({"metadata": {"name": "a"}}));
    let error = config_maps(&server).create(&PostParams::default(), &duplicate).await.unwrap_err();
    assert_eq!(code_and_message(error), (409, "configmaps \"a\" already exists".into()));
}

#[tokio::test]
async fn only_a_change_raises_the_resource_version() {
    let server = ApiServer::new();
    let version = |map: &ConfigMap| map.metadata.resource_version.clone().unwrap();
    let created = create(&server, "a").await;
    let unchanged = merge(&server, "a", json!({"data": null})).await.unwrap();
    assert_eq!(version(&unchanged), version(&created));
    let changed = merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    assert_ne!(version(&changed), version(&created));
}

#[tokio::test]
async fn a_change_raises_the_version_of_an_object_of_another_server() {
    let (first, second) = (ApiServer::new(), ApiServer::new());
    create(&first, "a").await;
    let changed = merge(&first, "a", json!({"data": {"k": "v"}})).await.unwrap();
    second.insert(&changed);
    let again = merge(&second, "a", json!({"data": {"k": "w"}})).await.unwrap();
    let version = |map: &ConfigMap| map.metadata.resource_version.as_ref().unwrap().parse::<u64>().unwrap();
    assert!(version(&again) > version(&changed));
}

#[tokio::test]
async fn a_stale_resource_version_or_another_uid_is_refused() {
    let server = ApiServer::new();
    let created = create(&server, "a").await;
    merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    let stale =
        json!({"metadata": {"resourceVersion": created.metadata.resource_version}, "data": {"k": "w"}});
    let (code, message) = code_and_message(merge(&server, "a", stale).await.unwrap_err());
    assert_eq!(code, 409);
    assert!(message.contains("the object has been modified"), "{message}");
    let other_uid = json!({"metadata": {"uid": "another"}});
    assert_eq!(
        code_and_message(merge(&server, "a", other_uid).await.unwrap_err()).0,
        422,
        "the uid is immutable"
    );
    assert_eq!(
        code_and_message(
            config_maps(&server).replace("a", &PostParams::default(), &created).await.unwrap_err()
        )
        .0,
        409
    );
}

#[tokio::test]
async fn only_an_owner_that_a_test_inserted_without_a_uid_is_referenced_without_one() {
    let server = ApiServer::new();
    server.insert(&config_map(json!({"metadata": {"name": "owner", "namespace": "shop"}})));
    let owned = |owner: &str| {
        let reference = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": ""});
        config_map(json!({"metadata": {"name": "child", "ownerReferences": [reference]}}))
    };
    let error = config_maps(&server).create(&PostParams::default(), &owned("another")).await.unwrap_err();
    let (code, message) = code_and_message(error);
    assert!(code == 422 && message.contains("metadata.ownerReferences.uid"), "{code} {message}");
    config_maps(&server).create(&PostParams::default(), &owned("owner")).await.unwrap();
}

#[tokio::test]
async fn finalizers_keep_a_deleted_object_until_the_last_one_is_removed() {
    let server = ApiServer::new();
    server.insert(&config_map(
        json!({"metadata": {"name": "a", "namespace": "default", "finalizers": ["x.io/a", "x.io/b"]}}),
    ));
    config_maps(&server).delete("a", &DeleteParams::default()).await.unwrap();
    assert!(config_maps(&server).get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    merge(&server, "a", json!({"metadata": {"finalizers": ["x.io/b"]}})).await.unwrap();
    assert!(server.object::<ConfigMap>(Some("default"), "a").is_some());
    merge(&server, "a", json!({"metadata": {"finalizers": []}})).await.unwrap();
    assert_eq!(
        code_and_message(config_maps(&server).get("a").await.unwrap_err()),
        (404, "configmaps \"a\" not found".into())
    );
}

#[tokio::test]
async fn only_the_status_subresource_writes_the_status() {
    let server = ApiServer::new();
    let deployments: Api<Deployment> = Api::namespaced(server.client(), "default");
    let deployment: Deployment =
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"replicas": 3}})).unwrap();
    let created = deployments.create(&PostParams::default(), &deployment).await.unwrap();
    assert_eq!(created.status, None, "a create does not set the status");
    let both = Patch::Merge(
        json!({"spec": {"paused": true, "selector": {}, "template": {}}, "status": {"replicas": 4}}),
    );
    let patched = deployments.patch("a", &PatchParams::default(), &both).await.unwrap();
    assert_eq!((patched.status, patched.metadata.generation), (None, Some(2)));
    let both = Patch::Merge(json!({"spec": {"paused": false}, "status": {"replicas": 5}}));
    let patched = deployments.patch_status("a", &PatchParams::default(), &both).await.unwrap();
    assert_eq!(patched.status.unwrap().replicas, Some(5));
    assert_eq!((patched.spec.unwrap().paused, patched.metadata.generation), (Some(true), Some(2)));
}

#[tokio::test]
async fn each_manager_owns_the_finalizers_that_it_applied() {
    let server = ApiServer::new();
    server.insert(&config_map(
        json!({"metadata": {"name": "a", "namespace": "default", "finalizers": ["other.io/x"]}}),
    ));
    let apply = async |finalizers: Value| {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
        let applied =
            config_maps(&server).patch("a", &PatchParams::apply("me"), &Patch::Apply(body)).await.unwrap();
        applied.metadata.finalizers.unwrap_or_default()
    };
    assert_eq!(apply(json!(["mine.io/y"])).await, ["other.io/x", "mine.io/y"]);
    assert_eq!(apply(json!([])).await, ["other.io/x"]);
}

#[tokio::test]
async fn an_applied_field_that_another_manager_changed_is_refused_unless_forced() {
    let server = ApiServer::new();
    let params = PatchParams::apply("me");
    let configuration = |value: &str| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value, "mine": "1"}}))
    };
    config_maps(&server).patch("a", &params, &configuration("v")).await.unwrap();
    merge(&server, "a", json!({"data": {"k": "by hand", "other": "2"}})).await.unwrap();
    let (code, message) =
        code_and_message(config_maps(&server).patch("a", &params, &configuration("v")).await.unwrap_err());
    let expected = "Apply failed with 1 conflict: conflict with \"unknown\" using v1: .data.k";
    assert_eq!((code, message.as_str()), (409, expected));
    config_maps(&server).patch("a", &params.clone().force(), &configuration("v")).await.unwrap();
    let nothing = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    let remaining = config_maps(&server).patch("a", &params, &nothing).await.unwrap();
    assert_eq!(remaining.data.unwrap(), [("other".to_owned(), "2".to_owned())].into());
}

#[tokio::test]
async fn unsupported_requests_get_a_message_that_names_the_feature() {
    let server = ApiServer::new();
    create(&server, "a").await;
    let strategic = Patch::Strategic(json!({"data": {}}));
    let error = config_maps(&server).patch("a", &PatchParams::default(), &strategic).await.unwrap_err();
    let (code, message) = code_and_message(error);
    assert_eq!(code, 415);
    assert!(message.contains("strategic merge patches, here of configmaps"), "{message}");
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    let (code, message) = code_and_message(pods.get_ephemeral_containers("a").await.unwrap_err());
    assert_eq!(code, 501);
    assert!(message.contains("pods/ephemeralcontainers"), "{message}");
}

#[tokio::test]
async fn lists_select_by_label_and_namespace_and_dry_runs_store_nothing() {
    let server = ApiServer::new();
    for (namespace, name, tier) in [("a", "one", "web"), ("a", "two", "db"), ("b", "three", "web")] {
        let labels = json!({"tier": tier, "app": "shop"});
        server.insert(&config_map(
            json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}}),
        ));
    }
    let names = async |api: Api<ConfigMap>, labels: &str| {
        let list = api.list(&ListParams::default().labels(labels)).await.unwrap();
        list.items.into_iter().map(|map| map.metadata.name.unwrap()).collect::<Vec<_>>()
    };
    let all = Api::all(server.client());
    assert_eq!(names(all.clone(), "tier=web,app").await, ["one", "three"]);
    assert_eq!(names(all.clone(), "tier notin (web, other)").await, ["two"]);
    assert_eq!(names(all.clone(), "tier in (db),!gone").await, ["two"]);
    assert_eq!(names(Api::namespaced(server.client(), "a"), "tier!=db").await, ["one"]);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    config_maps(&server).create(&dry, &config_map(json!({"metadata": {"name": "dry"}}))).await.unwrap();
    assert_eq!(names(all, "").await.len(), 3);
}

#[tokio::test]
async fn pages_cover_namespaces_with_a_common_prefix() {
    let server = ApiServer::new();
    for (namespace, name) in [("team", "x"), ("team-a", "y"), ("team0", "z")] {
        server.insert(&config_map(json!({"metadata": {"name": name, "namespace": namespace}})));
    }
    let all: Api<ConfigMap> = Api::all(server.client());
    let (mut names, mut params) = (Vec::new(), ListParams::default().limit(1));
    loop {
        let page = all.list(&params).await.unwrap();
        names.extend(page.items.into_iter().map(|map| map.metadata.name.unwrap()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["y", "x", "z"]);
}

#[tokio::test]
async fn writes_that_are_made_to_fail_are_recorded_and_not_stored() {
    let server = ApiServer::new();
    server.fail_times("create", "configmaps", 503, 0);
    server.fail_times("patch", "configmaps", 500, 1);
    create(&server, "a").await;
    assert_eq!(code_and_message(merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap_err()).0, 500);
    merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    let recorded: Vec<_> = server.take_writes().iter().map(ToString::to_string).collect();
    assert_eq!(
        recorded,
        ["create configmaps default/a", "patch configmaps default/a", "patch configmaps default/a"]
    );
    assert!(server.take_writes().is_empty());
}

#[tokio::test]
async fn unsupported_requests_are_recorded_and_can_be_made_to_fail() {
    let server = ApiServer::new();
    create(&server, "a").await;
    let strategic = Patch::Strategic(json!({"data": {"k": "v"}}));
    config_maps(&server).patch("a", &PatchParams::default(), &strategic).await.unwrap_err();
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    assert_eq!(code_and_message(pods.evict("x", &EvictParams::default()).await.unwrap_err()).0, 501);
    server.fail("create", "pods/eviction", 429);
    assert_eq!(code_and_message(pods.evict("x", &EvictParams::default()).await.unwrap_err()).0, 429);
    let put_without_name =
        http::Request::put("/api/v1/namespaces/default/pods").body(Body::from(b"{}".to_vec())).unwrap();
    assert_eq!(server.client().send(put_without_name).await.unwrap().status().as_u16(), 501);
    let writes = server.take_writes();
    let recorded: Vec<_> = writes.iter().map(ToString::to_string).collect();
    assert_eq!(
        recorded,
        [
            "create configmaps default/a",
            "patch configmaps default/a",
            "create pods/eviction default/x",
            "create pods/eviction default/x",
            "update pods default/",
        ]
    );
    assert_eq!(writes[1].body, json!({"data": {"k": "v"}}));
    assert!(writes[1..].iter().all(|write| write.result.is_none()));
}

#[tokio::test]
async fn an_injected_failure_has_the_reason_that_clients_match_on() {
    let server = ApiServer::new();
    server.fail("create", "configmaps", 409);
    server.fail_times("patch", "configmaps", 409, 1);
    server.fail("patch", "configmaps", 418);
    let status = |error| match error {
        kube::Error::Api(status) => status,
        other => panic!("not a response of the server: {other}"),
    };
    let created = config_maps(&server)
        .create(&PostParams::default(), &config_map(json!({"metadata": {"name": "a"}})))
        .await;
    assert!(status(created.unwrap_err()).is_already_exists());
    let patched = status(merge(&server, "a", json!({})).await.unwrap_err());
    assert!(patched.is_conflict() && !patched.is_already_exists());
    assert_eq!(status(merge(&server, "a", json!({})).await.unwrap_err()).reason, "");
}
