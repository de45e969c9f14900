use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams},
};

use super::*;

fn map(fields: Value) -> ConfigMap {
    serde_json::from_value(fields).unwrap()
}

fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::namespaced(server.client(), "default")
}

fn code(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        other => panic!("no answer of the server: {other}"),
    }
}

async fn created(server: &ApiServer, name: &str) -> ConfigMap {
    maps(server).create(&PostParams::default(), &map(json!({"metadata": {"name": name}}))).await.unwrap()
}

async fn merge(server: &ApiServer, name: &str, patch: Value) -> Result<ConfigMap, kube::Error> {
    maps(server).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await
}

#[tokio::test]
async fn a_created_object_has_what_every_object_has() {
    let server = ApiServer::new();
    let made = created(&server, "a").await;
    assert_eq!(made.metadata.namespace.as_deref(), Some("default"));
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
    let generated = map(json!({"metadata": {"generateName": "a-"}}));
    let generated = maps(&server).create(&PostParams::default(), &generated).await.unwrap();
    assert!(generated.metadata.name.unwrap().len() > 2);
    let named = map(json!({"metadata": {"name": "a"}}));
    let again = maps(&server).create(&PostParams::default(), &named).await.unwrap_err();
    assert_eq!(code(again), (409, "configmaps \"a\" already exists".into()));
}

#[tokio::test]
async fn only_a_change_raises_the_version() {
    let server = ApiServer::new();
    let version = |map: &ConfigMap| map.metadata.resource_version.clone().unwrap();
    let made = created(&server, "a").await;
    let same = merge(&server, "a", json!({"data": null})).await.unwrap();
    assert_eq!(version(&same), version(&made));
    let changed = merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    assert_ne!(version(&changed), version(&made));
}

#[tokio::test]
async fn a_stale_version_or_another_uid_is_a_conflict() {
    let server = ApiServer::new();
    let made = created(&server, "a").await;
    merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    let stale = json!({"metadata": {"resourceVersion": made.metadata.resource_version}, "data": {"k": "w"}});
    let (status, message) = code(merge(&server, "a", stale).await.unwrap_err());
    assert_eq!(status, 409);
    assert!(message.contains("the object has been modified"), "{message}");
    let other = json!({"metadata": {"uid": "another"}});
    assert_eq!(code(merge(&server, "a", other).await.unwrap_err()).0, 422, "a patch may not change it");
    assert_eq!(code(maps(&server).replace("a", &PostParams::default(), &made).await.unwrap_err()).0, 409);
}

#[tokio::test]
async fn finalizers_hold_a_deleted_object_until_the_last_is_gone() {
    let server = ApiServer::new();
    server.hold(&map(
        json!({"metadata": {"name": "a", "namespace": "default", "finalizers": ["x.io/a", "x.io/b"]}}),
    ));
    maps(&server).delete("a", &DeleteParams::default()).await.unwrap();
    assert!(maps(&server).get("a").await.unwrap().metadata.deletion_timestamp.is_some());
    merge(&server, "a", json!({"metadata": {"finalizers": ["x.io/b"]}})).await.unwrap();
    assert!(server.object::<ConfigMap>(Some("default"), "a").is_some());
    merge(&server, "a", json!({"metadata": {"finalizers": []}})).await.unwrap();
    assert_eq!(code(maps(&server).get("a").await.unwrap_err()), (404, "configmaps \"a\" not found".into()));
}

#[tokio::test]
async fn the_status_is_separate_from_the_rest() {
    let server = ApiServer::new();
    let all: Api<Deployment> = Api::namespaced(server.client(), "default");
    let made: Deployment =
        serde_json::from_value(json!({"metadata": {"name": "a"}, "status": {"replicas": 3}})).unwrap();
    let made = all.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(made.status, None, "nobody creates a status");
    let both = Patch::Merge(
        json!({"spec": {"paused": true, "selector": {}, "template": {}}, "status": {"replicas": 4}}),
    );
    let main = all.patch("a", &PatchParams::default(), &both).await.unwrap();
    assert_eq!((main.status, main.metadata.generation), (None, Some(2)));
    let change = Patch::Merge(json!({"spec": {"paused": false}, "status": {"replicas": 5}}));
    let status = all.patch_status("a", &PatchParams::default(), &change).await.unwrap();
    assert_eq!(status.status.unwrap().replicas, Some(5));
    assert_eq!((status.spec.unwrap().paused, status.metadata.generation), (Some(true), Some(2)));
}

#[tokio::test]
async fn applied_finalizers_are_each_managers_own() {
    let server = ApiServer::new();
    server
        .hold(&map(json!({"metadata": {"name": "a", "namespace": "default", "finalizers": ["other.io/x"]}})));
    let apply = async |finalizers: Value| {
        let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "finalizers": finalizers}});
        let applied = maps(&server).patch("a", &PatchParams::apply("me"), &Patch::Apply(body)).await.unwrap();
        applied.metadata.finalizers.unwrap_or_default()
    };
    assert_eq!(apply(json!(["mine.io/y"])).await, ["other.io/x", "mine.io/y"]);
    assert_eq!(apply(json!([])).await, ["other.io/x"]);
}

#[tokio::test]
async fn an_applied_field_that_another_manager_changed_is_refused_unless_forced() {
    let server = ApiServer::new();
    let by = |manager: &str| PatchParams::apply(manager);
    let apply = |value: &str| {
        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": value, "mine": "1"}}))
    };
    maps(&server).patch("a", &by("me"), &apply("v")).await.unwrap();
    merge(&server, "a", json!({"data": {"k": "by hand", "other": "2"}})).await.unwrap();
    let (status, message) = code(maps(&server).patch("a", &by("me"), &apply("v")).await.unwrap_err());
    let said = "Apply failed with 1 conflict: conflict with \"unknown\" using v1: .data.k";
    assert_eq!((status, message.as_str()), (409, said));
    maps(&server).patch("a", &by("me").force(), &apply("v")).await.unwrap();
    let nothing = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap"}));
    let left = maps(&server).patch("a", &by("me"), &nothing).await.unwrap();
    assert_eq!(left.data.unwrap(), [("other".to_owned(), "2".to_owned())].into());
}

#[tokio::test]
async fn unsupported_requests_are_named() {
    let server = ApiServer::new();
    created(&server, "a").await;
    let strategic = Patch::Strategic(json!({"data": {}}));
    let refused = maps(&server).patch("a", &PatchParams::default(), &strategic).await.unwrap_err();
    let (status, message) = code(refused);
    assert_eq!(status, 501);
    assert!(message.contains("strategic merge patches, here of configmaps"), "{message}");
    let all: Api<Deployment> = Api::namespaced(server.client(), "default");
    let (status, message) = code(all.get_scale("a").await.unwrap_err());
    assert_eq!(status, 501);
    assert!(message.contains("deployments/scale"), "{message}");
    let watch = http::Request::get("/api/v1/configmaps?watch=true").body(Body::empty()).unwrap();
    let (head, _) = server.client().send(watch).await.unwrap().into_parts();
    assert_eq!(head.status.as_u16(), 501);
}

#[tokio::test]
async fn lists_select_by_label_and_namespace_and_dry_runs_store_nothing() {
    let server = ApiServer::new();
    for (namespace, name, tier) in [("a", "one", "web"), ("a", "two", "db"), ("b", "three", "web")] {
        let labels = json!({"tier": tier, "app": "shop"});
        server.hold(&map(json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}})));
    }
    let names = async |api: Api<ConfigMap>, labels: &str| {
        let found = api.list(&ListParams::default().labels(labels)).await.unwrap();
        found.items.into_iter().map(|map| map.metadata.name.unwrap()).collect::<Vec<_>>()
    };
    let (all, a) = (Api::all(server.client()), Api::namespaced(server.client(), "a"));
    assert_eq!(names(all.clone(), "tier=web,app").await, ["one", "three"]);
    assert_eq!(names(all.clone(), "tier notin (web, other)").await, ["two"]);
    assert_eq!(names(all.clone(), "tier in (db),!gone").await, ["two"]);
    assert_eq!(names(a, "tier!=db").await, ["one"]);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    maps(&server).create(&dry, &map(json!({"metadata": {"name": "dry"}}))).await.unwrap();
    assert_eq!(names(all, "").await.len(), 3);
}

#[tokio::test]
async fn pages_cover_namespaces_with_a_common_prefix() {
    let server = ApiServer::new();
    for (namespace, name) in [("team", "x"), ("team-a", "y"), ("team0", "z")] {
        server.hold(&map(json!({"metadata": {"name": name, "namespace": namespace}})));
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
async fn requests_that_are_made_to_fail_fail_and_are_recorded() {
    let server = ApiServer::new();
    server.fail_times(Verb::Create, "configmaps", 503, 0);
    server.fail_times(Verb::Patch, "configmaps", 500, 1);
    created(&server, "a").await;
    assert_eq!(code(merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap_err()).0, 500);
    merge(&server, "a", json!({"data": {"k": "v"}})).await.unwrap();
    let tape: Vec<_> = server.writes().iter().map(ToString::to_string).collect();
    assert_eq!(
        tape,
        ["create configmaps default/a", "patch configmaps default/a", "patch configmaps default/a"]
    );
    assert!(server.writes().is_empty());
}

#[tokio::test]
async fn unsupported_requests_are_recorded_and_can_be_made_to_fail() {
    let server = ApiServer::new();
    created(&server, "a").await;
    let strategic = Patch::Strategic(json!({"data": {"k": "v"}}));
    maps(&server).patch("a", &PatchParams::default(), &strategic).await.unwrap_err();
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    assert_eq!(code(pods.evict("x", &EvictParams::default()).await.unwrap_err()).0, 501);
    server.fail(Verb::Create, "pods/eviction", 429);
    assert_eq!(code(pods.evict("x", &EvictParams::default()).await.unwrap_err()).0, 429);
    let nowhere =
        http::Request::put("/api/v1/namespaces/default/pods").body(Body::from(b"{}".to_vec())).unwrap();
    assert_eq!(server.client().send(nowhere).await.unwrap().status().as_u16(), 501);
    let writes = server.writes();
    let tape: Vec<_> = writes.iter().map(ToString::to_string).collect();
    assert_eq!(
        tape,
        [
            "create configmaps default/a",
            "patch configmaps default/a",
            "create pods/eviction default/x",
            "create pods/eviction default/x",
            "update pods default/",
        ]
    );
    assert_eq!(writes[1].body, json!({"data": {"k": "v"}}));
    assert!(writes[1..].iter().all(|write| write.meant.is_none()));
}

#[tokio::test]
async fn a_failure_has_the_reason_that_clients_match_on() {
    let server = ApiServer::new();
    server.fail(Verb::Create, "configmaps", 409);
    server.fail_times(Verb::Patch, "configmaps", 409, 1);
    server.fail(Verb::Patch, "configmaps", 418);
    let status = |error| match error {
        kube::Error::Api(status) => status,
        other => panic!("no answer of the server: {other}"),
    };
    let taken = maps(&server).create(&PostParams::default(), &map(json!({"metadata": {"name": "a"}}))).await;
    assert!(status(taken.unwrap_err()).is_already_exists());
    let changed = status(merge(&server, "a", json!({})).await.unwrap_err());
    assert!(changed.is_conflict() && !changed.is_already_exists());
    assert_eq!(status(merge(&server, "a", json!({})).await.unwrap_err()).reason, "");
}
