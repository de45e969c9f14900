use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit_apis::Key;
use serde_json::{Value, json};

use kube::client::Body;

use crate::{
    Context, Informer, Metadata, select,
    testing::{Asked, Server, Stream, map, server},
};

/// A process that watches ConfigMaps, and one of them is there.
struct Process {
    maps: Informer<ConfigMap>,
    names: Informer<Metadata<ConfigMap>>,
    api: Api<ConfigMap>,
    client: Client,
    server: Server,
    reported: Arc<Mutex<Vec<String>>>,
    _watches: [Stream; 2],
}

impl Process {
    async fn start() -> Self {
        let (client, mut server) = server();
        let cx = Context::new("test", client);
        let (maps, names) = (cx.get::<Informer<ConfigMap>>(), cx.get::<Informer<Metadata<ConfigMap>>>());
        let reported = Arc::new(Mutex::new(Vec::new()));
        let words = reported.clone();
        maps.on(move |change| {
            let states = change.objects().map(|o| o.metadata.resource_version.clone().unwrap());
            words.lock().unwrap().push(states.collect::<Vec<_>>().join(">"));
        });
        cx.informers().start();
        server.list().await.items("10", &[map("a", "5")]);
        server.list().await.items("10", &[map("a", "5")]);
        let _watches = [server.watch("10").await.stream(), server.watch("10").await.stream()];
        maps.synced().await;
        names.synced().await;
        reported.lock().unwrap().clear();
        let client = cx.client();
        let api = Api::namespaced(client.clone(), "n");
        Self { maps, names, api, client, server, reported, _watches }
    }

    /// Lets the server answer what is asked meanwhile.
    async fn answering<T>(&mut self, write: impl Future<Output = T>, answer: impl FnOnce(Asked)) -> T {
        let (written, asked) = tokio::join!(write, async {
            let asked = self.server.next().await;
            let method = asked.method.clone();
            answer(asked);
            method
        });
        assert_ne!(asked, http::Method::GET);
        written
    }

    fn held(&self, name: &str) -> Option<String> {
        let key = Key::new("n", name);
        let version = self.maps.get(&key).map(|map| map.metadata.resource_version.clone().unwrap());
        let named = self.names.get(&key).map(|map| map.metadata.resource_version.clone().unwrap());
        assert_eq!(version, named, "the informer of metadata follows too");
        version
    }

    fn reported(&self) -> Vec<String> {
        std::mem::take(&mut self.reported.lock().unwrap())
    }
}

fn typed(object: Value) -> ConfigMap {
    serde_json::from_value(object).unwrap()
}

fn merge() -> Patch<Value> {
    Patch::Merge(json!({"data": {"x": "y"}}))
}

#[tokio::test]
async fn created_updated_and_patched_objects_are_cached_when_the_write_returns() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let created = typed(map("b", ""));
    let params = PostParams::default();
    let create = api.create(&params, &created);
    assert_eq!(
        process
            .answering(create, |asked| asked.answer(201, map("b", "11")))
            .await
            .unwrap()
            .data
            .unwrap()
            .len(),
        1
    );
    assert_eq!(process.held("b").as_deref(), Some("11"));
    let replaced = typed(map("b", "11"));
    let replace = api.replace("b", &params, &replaced);
    process.answering(replace, |asked| asked.answer(200, map("b", "12"))).await.unwrap();
    assert_eq!(process.held("b").as_deref(), Some("12"));
    let (params, merge) = (PatchParams::default(), merge());
    let patch = api.patch_status("b", &params, &merge);
    process.answering(patch, |asked| asked.answer(200, map("b", "13"))).await.unwrap();
    assert_eq!(process.held("b").as_deref(), Some("13"));
    assert_eq!(process.reported(), ["11", "11>12", "12>13"]);
}

#[tokio::test]
async fn a_deleted_object_is_gone_when_the_deletion_returns() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = DeleteParams::default();
    let said = json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {},
        "details": {"name": "a", "kind": "configmaps", "uid": "uid-a"}});
    let delete = api.delete("a", &params);
    assert!(process.answering(delete, |asked| asked.answer(200, said)).await.unwrap().is_right());
    assert_eq!((process.held("a"), process.reported()), (None, vec!["5".into()]));
}

#[tokio::test]
async fn the_object_in_the_answer_to_a_deletion_shows_whether_it_is_gone() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = DeleteParams::default();
    let mut going = map("a", "11");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    going["metadata"]["finalizers"] = json!(["example.com/wait"]);
    let answer = going.clone();
    process.answering(api.delete("a", &params), |asked| asked.answer(200, answer)).await.unwrap();
    assert_eq!(process.held("a").as_deref(), Some("11"), "it is going, but there");

    let mut gone = going.clone();
    gone["metadata"]["finalizers"] = json!([]);
    let (params, merge) = (PatchParams::default(), merge());
    process.answering(api.patch("a", &params, &merge), |asked| asked.answer(200, gone)).await.unwrap();
    assert_eq!(process.held("a"), None, "its last finalizer went");
    assert_eq!(process.reported(), ["5>11", "11"]);

    process.maps.insert(&typed(map("c", "12"))).unwrap();
    process.names.insert(&serde_json::from_value(map("c", "12")).unwrap()).unwrap();
    let params = DeleteParams::default();
    process.answering(api.delete("c", &params), |asked| asked.answer(200, map("c", "20"))).await.unwrap();
    assert_eq!(process.held("c"), None, "nothing held it back");
}

#[tokio::test]
async fn dry_runs_and_failed_writes_change_nothing() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let (dry, merge) = (PatchParams { dry_run: true, ..PatchParams::default() }, merge());
    process.answering(api.patch("a", &dry, &merge), |asked| asked.answer(200, map("a", "11"))).await.unwrap();
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    process.answering(api.delete("a", &dry), |asked| asked.answer(200, map("a", "11"))).await.unwrap();
    let params = PatchParams::default();
    let failed = process
        .answering(api.patch("a", &params, &merge), |asked| asked.fail(409, "try again"))
        .await
        .unwrap_err();
    assert!(
        matches!(failed, kube::Error::Api(status) if status.code == 409 && status.message == "try again")
    );
    assert_eq!((process.held("a").as_deref(), process.reported().len()), (Some("5"), 0));
}

#[tokio::test]
async fn a_write_by_a_field_manager_whose_name_holds_dry_run_is_cached() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = PatchParams { field_manager: Some("dryRunner".into()), ..PatchParams::default() };
    let merge = merge();
    process
        .answering(api.patch("a", &params, &merge), |asked| asked.answer(200, map("a", "11")))
        .await
        .unwrap();
    assert_eq!(process.held("a").as_deref(), Some("11"));
}

/// Answers a write, and then the list by which it is read back; answers what that asked for.
async fn answer_and_list(server: &mut Server, said: Value, version: &str, items: &[Value]) -> String {
    server.next().await.answer(200, said);
    let asked = server.next().await;
    let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": version},
        "items": items});
    assert_eq!(asked.method, http::Method::GET);
    let fields = asked.query.get("fieldSelector").cloned().unwrap_or_default();
    let asked_for = format!("{} {fields}", asked.path);
    asked.answer(200, list);
    asked_for
}

#[tokio::test]
async fn an_object_that_an_answer_does_not_show_is_read_back() {
    let mut process = Process::start().await;
    let client = process.client.clone();
    let scale =
        json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "a", "namespace": "n"}});
    let request = http::Request::put("/api/v1/namespaces/n/configmaps/a/scale").body(Vec::new()).unwrap();
    let items = [map("a", "11")];
    let (got, listed) = tokio::join!(
        client.request::<Value>(request),
        answer_and_list(&mut process.server, scale.clone(), "12", &items)
    );
    assert_eq!(got.unwrap(), scale, "the answer reaches the caller");
    assert_eq!(listed, "/api/v1/namespaces/n/configmaps metadata.name=a");
    assert_eq!(process.held("a").as_deref(), Some("11"));

    let deleted = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [map("a", "11"), map("b", "3")]});
    let (delete, list, all) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let items = [map("other", "15")];
    let (gone, _) = tokio::join!(
        all.delete_collection(&delete, &list),
        answer_and_list(&mut process.server, deleted, "20", &items)
    );
    gone.unwrap();
    assert_eq!((process.held("a"), process.held("other")), (None, None), "only what was deleted is news");
    assert_eq!(process.reported(), ["5>11", "11"]);
}

#[tokio::test]
async fn an_object_that_no_page_of_a_read_back_shows_is_gone() {
    let mut process = Process::start().await;
    for name in ["b", "c"] {
        process.maps.insert(&typed(map(name, "6"))).unwrap();
    }
    let all = ["a", "b", "c"].map(|name| map(name, "11"));
    let deleted = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": all});
    let (delete, list, api) = (DeleteParams::default(), ListParams::default(), process.api.clone());
    let server = &mut process.server;
    let (gone, ()) = tokio::join!(api.delete_collection(&delete, &list), async {
        server.next().await.answer(200, deleted);
        server.list().await.page("20", "more", &[map("a", "12")]);
        let last = server.list().await;
        assert_eq!(last.query.get("continue").map(String::as_str), Some("more"));
        last.items("20", &[map("c", "13")]);
    });
    gone.unwrap();
    let held = ["a", "b", "c"].map(|name| process.maps.get(&Key::new("n", name)));
    let versions = held.map(|held| held.and_then(|map| map.metadata.resource_version.clone()));
    assert_eq!(versions, [Some("12".into()), None, Some("13".into())]);
}

#[tokio::test]
async fn a_failed_read_back_is_left_to_the_watch() {
    let mut process = Process::start().await;
    let (all, delete, list) = (process.api.clone(), DeleteParams::default(), ListParams::default());
    let deleted =
        json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [map("a", "5")]});
    let server = &mut process.server;
    let (gone, ()) = tokio::join!(all.delete_collection(&delete, &list), async {
        server.next().await.answer(200, deleted);
        server.next().await.fail(403, "no");
    });
    gone.unwrap();
    assert_eq!((process.held("a").as_deref(), process.reported().len()), (Some("5"), 0));
}

#[tokio::test]
async fn an_object_that_leaves_a_selection_is_deleted_only_there() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let chosen = cx.informer::<ConfigMap>(select().label("chosen", "yes"));
    let fielded = cx.informer::<ConfigMap>(select().field("data.version", "5"));
    let all = cx.informer::<ConfigMap>(select());
    for informer in [&chosen, &fielded, &all] {
        let mut object = typed(map("a", "5"));
        object.metadata.labels = Some([("chosen".into(), "yes".into())].into());
        informer.insert(&object).unwrap();
    }
    let api: Api<ConfigMap> = Api::namespaced(cx.client(), "n");
    let (params, merge) = (PatchParams::default(), merge());
    let patch = api.patch("a", &params, &merge);
    let (patched, ()) = tokio::join!(patch, async { server.next().await.answer(200, map("a", "11")) });
    patched.unwrap();
    let version =
        |of: &Informer<ConfigMap>| of.list().next().map(|o| o.metadata.resource_version.clone().unwrap());
    assert_eq!(version(&chosen), None);
    assert_eq!(version(&all).as_deref(), Some("11"));
    assert_eq!(version(&fielded).as_deref(), Some("5"), "only the server can judge: left to the watch");
}

#[tokio::test]
async fn streams_pass_through_unbuffered() {
    let mut process = Process::start().await;
    let client = process.client.clone();
    let request =
        http::Request::post("/api/v1/namespaces/n/configmaps/a/proxy/tail").body(Body::empty()).unwrap();
    let (answer, stream) = tokio::join!(client.send(request), async { process.server.next().await.stream() });
    let mut body = answer.unwrap().into_body();
    stream.chunk("one");
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one", "while the answer goes on");
}

#[tokio::test]
async fn a_truncated_answer_is_an_error_of_the_write() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let (params, merge) = (PatchParams::default(), merge());
    let patch = api.patch("a", &params, &merge);
    let patched = process.answering(patch, |asked| {
        let stream = asked.stream();
        stream.chunk(r#"{"apiVersion":"v1","kind":"#);
        stream.cut();
    });
    assert!(patched.await.is_err());
    assert_eq!(process.held("a").as_deref(), Some("5"), "the watch will tell");
}

#[tokio::test]
async fn preloaded_informers_hold_the_given_and_the_written_objects() {
    let (client, mut server) = server();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": []}});
    pod["spec"]["nodeName"] = json!("one");
    let cx = Context::preloaded("test", client, vec![map("a", "1"), pod]);
    let (maps, reported) = (cx.get::<Informer<ConfigMap>>(), Arc::new(Mutex::new(0)));
    maps.synced().await;
    let count = reported.clone();
    maps.on(move |_| *count.lock().unwrap() += 1);
    assert_eq!(
        (maps.len(), *reported.lock().unwrap()),
        (1, 0),
        "handlers are not called for objects that were given"
    );
    assert_eq!(cx.informer::<Pod>(select().field("spec.nodeName", "one")).len(), 1);
    assert_eq!(cx.informer::<Pod>(select().field("spec.nodeName", "two")).len(), 0);
    assert_eq!(cx.informer::<Pod>(select().namespace("elsewhere")).len(), 0);

    let api: Api<ConfigMap> = Api::namespaced(cx.client(), "n");
    let mut sent = typed(map("b", ""));
    sent.metadata.resource_version = None;
    let params = PostParams::default();
    let mut echo = map("b", "");
    echo["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (created, ()) =
        tokio::join!(api.create(&params, &sent), async { server.next().await.answer(201, echo) });
    created.unwrap();
    assert_eq!(
        (maps.len(), *reported.lock().unwrap()),
        (2, 1),
        "without a version too: there is no watch to wait for"
    );
    let (params, said) = (DeleteParams::default(), json!({"kind": "Status", "status": "Success"}));
    let (deleted, ()) =
        tokio::join!(api.delete("b", &params), async { server.next().await.answer(200, said) });
    deleted.unwrap();
    assert_eq!((maps.len(), *reported.lock().unwrap()), (1, 2));
}

#[tokio::test]
async fn an_object_read_by_name_is_cached_unless_it_is_older() {
    let mut process = Process::start().await;
    for (name, answered, held) in [
        ("a", "12", Some("12")),
        ("a", "11", Some("12")),
        ("b", "9", None), // the watch has come further than that: it has been deleted since
    ] {
        let (api, server) = (process.api.clone(), &mut process.server);
        let (read, ()) =
            tokio::join!(api.get(name), async { server.next().await.answer(200, map(name, answered)) });
        read.unwrap();
        assert_eq!(process.held(name).as_deref(), held);
    }
    assert_eq!(process.reported(), ["5>12"]);
}
