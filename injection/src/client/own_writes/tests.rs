mod read_back;

use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit_apis::Key;
use serde_json::{Value, json};

use crate::{
    Context, Informer, Metadata,
    client::writers::{Writers, WrittenState},
    informer::writers,
    pass::CurrentPass,
    select,
    testing::{PendingRequest, Server, Stream, map, server},
};

/// A process with two informers of ConfigMaps, whose caches hold the ConfigMap `a` at version 5.
struct Process {
    maps: Informer<ConfigMap>,
    names: Informer<Metadata<ConfigMap>>,
    api: Api<ConfigMap>,
    client: Client,
    server: Server,
    /// The resourceVersions of each reported change: of the old and the new state, such as `5>11`, or of the only
    /// state.
    reported: Arc<Mutex<Vec<String>>>,
    writers: Writers,
    _watches: [Stream; 2],
}

impl Process {
    async fn start() -> Self {
        let (client, mut server) = server();
        let cx = Context::new("test", client);
        let (maps, names) = (cx.get::<Informer<ConfigMap>>(), cx.get::<Informer<Metadata<ConfigMap>>>());
        let reported = Arc::new(Mutex::new(Vec::new()));
        let recorded = reported.clone();
        maps.on(move |change| {
            let versions = change.objects().map(|object| object.metadata.resource_version.clone().unwrap());
            recorded.lock().unwrap().push(versions.collect::<Vec<_>>().join(">"));
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
        let writers = writers(&cx.informers()).clone();
        Self { maps, names, api, client, server, reported, writers, _watches }
    }

    /// Runs a write while the server responds to its request.
    async fn write<T>(&mut self, write: impl Future<Output = T>, respond: impl FnOnce(PendingRequest)) -> T {
        let (written, method) = tokio::join!(write, async {
            let request = self.server.next().await;
            let method = request.method.clone();
            respond(request);
            method
        });
        assert_ne!(method, http::Method::GET);
        written
    }

    /// The resourceVersion of the cached object.
    fn cached_version(&self, name: &str) -> Option<String> {
        let key = Key::new("n", name);
        let version = self.maps.get(&key).map(|map| map.metadata.resource_version.clone().unwrap());
        let metadata_version = self.names.get(&key).map(|map| map.metadata.resource_version.clone().unwrap());
        assert_eq!(version, metadata_version, "the informer of metadata has the same version");
        version
    }

    fn take_reported(&self) -> Vec<String> {
        std::mem::take(&mut self.reported.lock().unwrap())
    }
}

fn config_map(object: Value) -> ConfigMap {
    serde_json::from_value(object).unwrap()
}

fn data_patch() -> Patch<Value> {
    Patch::Merge(json!({"data": {"x": "y"}}))
}

#[tokio::test]
async fn created_updated_and_patched_objects_are_cached_when_the_write_returns() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let created = config_map(map("b", ""));
    let params = PostParams::default();
    let create = api.create(&params, &created);
    assert_eq!(
        process
            .write(create, |request| request.respond(201, map("b", "11")))
            .await
            .unwrap()
            .data
            .unwrap()
            .len(),
        1
    );
    assert_eq!(process.cached_version("b").as_deref(), Some("11"));
    let replaced = config_map(map("b", "11"));
    let replace = api.replace("b", &params, &replaced);
    process.write(replace, |request| request.respond(200, map("b", "12"))).await.unwrap();
    assert_eq!(process.cached_version("b").as_deref(), Some("12"));
    let (params, patch) = (PatchParams::default(), data_patch());
    let write = api.patch_status("b", &params, &patch);
    process.write(write, |request| request.respond(200, map("b", "13"))).await.unwrap();
    assert_eq!(process.cached_version("b").as_deref(), Some("13"));
    assert_eq!(process.take_reported(), ["11", "11>12", "12>13"]);
}

#[tokio::test]
async fn a_deleted_object_is_gone_when_the_deletion_returns() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = DeleteParams::default();
    let success = json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {},
        "details": {"name": "a", "kind": "configmaps", "uid": "uid-a"}});
    let delete = api.delete("a", &params);
    assert!(process.write(delete, |request| request.respond(200, success)).await.unwrap().is_right());
    assert_eq!((process.cached_version("a"), process.take_reported()), (None, vec!["5".into()]));
}

#[tokio::test]
async fn the_object_in_the_response_to_a_deletion_shows_whether_it_still_exists() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = DeleteParams::default();
    let mut terminating = map("a", "11");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    terminating["metadata"]["deletionGracePeriodSeconds"] = json!(0);
    terminating["metadata"]["finalizers"] = json!(["example.com/wait"]);
    let response = terminating.clone();
    process.write(api.delete("a", &params), |request| request.respond(200, response)).await.unwrap();
    assert_eq!(process.cached_version("a").as_deref(), Some("11"), "it is terminating, but still exists");

    let mut finalized = terminating.clone();
    finalized["metadata"]["finalizers"] = json!([]);
    let (params, patch) = (PatchParams::default(), data_patch());
    process.write(api.patch("a", &params, &patch), |request| request.respond(200, finalized)).await.unwrap();
    assert_eq!(process.cached_version("a"), None, "its last finalizer was removed");
    assert_eq!(process.take_reported(), ["5>11", "11"]);

    process.maps.insert(&config_map(map("c", "12"))).unwrap();
    process.names.insert(&serde_json::from_value(map("c", "12")).unwrap()).unwrap();
    let params = DeleteParams::default();
    process.write(api.delete("c", &params), |request| request.respond(200, map("c", "20"))).await.unwrap();
    assert_eq!(process.cached_version("c"), None, "it had no finalizer");
}

#[tokio::test]
async fn the_objects_that_a_pass_creates_are_counted() {
    let mut process = Process::start().await;
    let (api, pass) =
        (process.api.clone(), CurrentPass::begin(&"web".into(), &Key::new("n", "a").into(), true));
    let (params, created) = (PostParams::default(), config_map(map("b", "")));
    let writes = async {
        let create = api.create(&params, &created);
        process.write(create, |request| request.respond(201, map("b", "11"))).await.unwrap();
        let (params, patch) = (PatchParams::default(), data_patch());
        process
            .write(api.patch("a", &params, &patch), |request| request.respond(200, map("a", "12")))
            .await
            .unwrap();
        assert_eq!(CurrentPass::get().map(|pass| pass.creations()), Some(1), "an object was changed");
        let (apply, patch) = (PatchParams::apply("web"), Patch::Apply(json!({"data": {}})));
        process
            .write(api.patch("c", &apply, &patch), |request| request.respond(201, map("c", "13")))
            .await
            .unwrap();
    };
    pass.clone().scope(writes).await;
    assert_eq!(pass.creations(), 2);
}

#[tokio::test]
async fn a_delayed_deletion_is_that_of_the_pass_that_asked_for_it() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let mut terminating = map("a", "11");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    terminating["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    let pass = CurrentPass::begin(&"web".into(), &Key::new("n", "owner").into(), true);
    let params = DeleteParams::foreground();
    let delete = process.write(api.delete("a", &params), |request| request.respond(200, terminating.clone()));
    pass.clone().scope(delete).await.unwrap();
    let uid = terminating["metadata"]["uid"].as_str().unwrap();
    let writer = process.writers.of(WrittenState::deleted(uid));
    assert_eq!(writer.map(|writer| writer.number), Some(pass.number));
}

#[tokio::test]
async fn a_write_that_leaves_a_state_as_it_is_has_not_written_it() {
    let mut process = Process::start().await;
    let (api, pass) =
        (process.api.clone(), CurrentPass::begin(&"web".into(), &Key::new("n", "a").into(), false));
    let (params, patch, deletion) = (PatchParams::default(), data_patch(), DeleteParams::foreground());
    let mut terminating = map("a", "5");
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    terminating["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
    let writers = process.writers.clone();
    let writer_of = |version| writers.of(WrittenState::Version(version)).map(|pass| pass.number);
    let writes = async {
        process
            .write(api.patch("a", &params, &patch), |request| request.respond(200, map("a", "5")))
            .await
            .unwrap();
        process.write(api.delete("a", &deletion), |request| request.respond(200, terminating)).await.unwrap();
        assert_eq!(writer_of(5), None);
        process
            .write(api.patch("a", &params, &patch), |request| request.respond(200, map("a", "11")))
            .await
            .unwrap();
    };
    pass.clone().scope(writes).await;
    assert_eq!(writer_of(11), Some(pass.number));
}

#[tokio::test]
async fn a_write_has_overtaken_the_change_of_another_client_that_the_watch_reports_later() {
    let mut process = Process::start().await;
    let (api, pass) =
        (process.api.clone(), CurrentPass::begin(&"web".into(), &Key::new("n", "a").into(), false));
    let (params, patch) = (PatchParams::default(), data_patch());
    for version in ["11", "13", "14"] {
        let write =
            process.write(api.patch("a", &params, &patch), |request| request.respond(200, map("a", version)));
        pass.clone().scope(write).await.unwrap();
        let reported = if version == "14" { &["13", "14"][..] } else { &[version][..] };
        let reported = if version == "13" { &["12"] } else { reported };
        let watches = &process._watches;
        reported.iter().for_each(|version| watches[0].event("MODIFIED", &map("a", version)));
        watches[0].event("ADDED", &map(&format!("b{version}"), &format!("{version}0")));
        while process.maps.get(&Key::new("n", &format!("b{version}"))).is_none() {
            tokio::task::yield_now().await;
        }
    }
    let overtaken = [11, 13, 14].map(|version| process.writers.overtaken_by(WrittenState::Version(version)));
    assert_eq!(overtaken, [None, Some(WrittenState::Version(12)), None]);
}

#[tokio::test]
async fn a_change_is_described_without_what_another_client_has_changed_while_the_watch_lags() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let apply = PatchParams::apply("web");
    let merge = PatchParams::default();
    let cases = [
        (&merge, Patch::Merge(json!({"data": {"x": "y"}})), Some("y"), Some("data.x from nothing to \"y\"")),
        (&apply, Patch::Apply(json!({"data": {"x": "z"}})), Some("z"), Some("data.x from \"y\" to \"z\"")),
        (&apply, Patch::Apply(json!({"data": {}})), None, Some("data.x from \"z\" to nothing")),
        (&merge, Patch::Merge(json!({"data": {"x": null}})), None, None),
    ];
    for (n, (params, patch, x, change)) in cases.into_iter().enumerate() {
        // The field `data.version` is changed with each version.
        let mut response = map("a", &(11 + n).to_string());
        x.into_iter().for_each(|x| response["data"]["x"] = json!(x));
        let pass = CurrentPass::begin(&"web".into(), &Key::new("n", "a").into(), false);
        pass.set_in_a_row(20);
        let write = process.write(api.patch("a", params, &patch), |request| request.respond(200, response));
        pass.clone().scope(write).await.unwrap();
        let change = change.map(|change| format!("ConfigMap n/a: {change}"));
        assert_eq!(pass.last_change().map(|change| change.to_string()), change, "{patch:?}");
    }
    let (params, pass) =
        (PostParams::default(), CurrentPass::begin(&"web".into(), &Key::new("n", "a").into(), false));
    pass.set_in_a_row(20);
    let replaced = config_map(map("a", "14"));
    let replace =
        process.write(api.replace("a", &params, &replaced), |request| request.respond(200, map("a", "15")));
    pass.clone().scope(replace).await.unwrap();
    let change = r#"ConfigMap n/a: data.version from "14" to "15""#;
    let last = pass.last_change().unwrap();
    assert_eq!(last.to_string(), change, "a replacement writes all fields");
    assert_eq!(format!("{last:#}"), "ConfigMap n/a: data.version", "without the values");
}

#[tokio::test]
async fn dry_runs_and_failed_writes_change_nothing() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let (dry_run, patch) = (PatchParams { dry_run: true, ..PatchParams::default() }, data_patch());
    process
        .write(api.patch("a", &dry_run, &patch), |request| request.respond(200, map("a", "11")))
        .await
        .unwrap();
    let dry_run = DeleteParams { dry_run: true, ..DeleteParams::default() };
    process.write(api.delete("a", &dry_run), |request| request.respond(200, map("a", "11"))).await.unwrap();
    let params = PatchParams::default();
    let failed = process
        .write(api.patch("a", &params, &patch), |request| request.fail(409, "try again"))
        .await
        .unwrap_err();
    assert!(
        matches!(failed, kube::Error::Api(status) if status.code == 409 && status.message == "try again")
    );
    assert_eq!((process.cached_version("a").as_deref(), process.take_reported().len()), (Some("5"), 0));
}

#[tokio::test]
async fn a_write_by_a_field_manager_whose_name_contains_dry_run_is_cached() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let params = PatchParams { field_manager: Some("dryRunner".into()), ..PatchParams::default() };
    let patch = data_patch();
    process
        .write(api.patch("a", &params, &patch), |request| request.respond(200, map("a", "11")))
        .await
        .unwrap();
    assert_eq!(process.cached_version("a").as_deref(), Some("11"));
}

#[tokio::test]
async fn an_object_that_leaves_a_selection_is_deleted_from_its_cache_only() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let by_label = cx.informer::<ConfigMap>(select().label("chosen", "yes"));
    let by_field = cx.informer::<ConfigMap>(select().field("data.version", "5"));
    let all = cx.informer::<ConfigMap>(select());
    for informer in [&by_label, &by_field, &all] {
        let mut object = config_map(map("a", "5"));
        object.metadata.labels = Some([("chosen".into(), "yes".into())].into());
        informer.insert(&object).unwrap();
    }
    let api: Api<ConfigMap> = Api::namespaced(cx.client(), "n");
    let (params, patch) = (PatchParams::default(), data_patch());
    let write = api.patch("a", &params, &patch);
    let (patched, ()) = tokio::join!(write, async { server.next().await.respond(200, map("a", "11")) });
    patched.unwrap();
    let version = |maps: &Informer<ConfigMap>| {
        maps.list().next().map(|map| map.metadata.resource_version.clone().unwrap())
    };
    assert_eq!(version(&by_label), None);
    assert_eq!(version(&all).as_deref(), Some("11"));
    assert_eq!(
        version(&by_field).as_deref(),
        Some("5"),
        "only the server can evaluate this field, so the change is left to the watch"
    );
}

#[tokio::test]
async fn streams_pass_through_unbuffered() {
    let mut process = Process::start().await;
    let client = process.client.clone();
    let request =
        http::Request::post("/api/v1/namespaces/n/configmaps/a/proxy/tail").body(Body::empty()).unwrap();
    let (response, stream) =
        tokio::join!(client.send(request), async { process.server.next().await.stream() });
    let mut body = response.unwrap().into_body();
    stream.chunk("one");
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "one", "before the response ends");
}

#[tokio::test]
async fn a_truncated_response_fails_the_write() {
    let mut process = Process::start().await;
    let api = process.api.clone();
    let (params, patch) = (PatchParams::default(), data_patch());
    let write = api.patch("a", &params, &patch);
    let patched = process.write(write, |request| {
        let stream = request.stream();
        stream.chunk(r#"{"apiVersion":"v1","kind":"#);
        stream.cut();
    });
    assert!(patched.await.is_err());
    assert_eq!(process.cached_version("a").as_deref(), Some("5"), "the watch reports the write later");
}

#[tokio::test]
async fn preloaded_informers_cache_the_preloaded_and_the_written_objects() {
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
        "handlers are not called for preloaded objects"
    );
    assert_eq!(cx.informer::<Pod>(select().field("spec.nodeName", "one")).len(), 1);
    assert_eq!(cx.informer::<Pod>(select().field("spec.nodeName", "two")).len(), 0);
    assert_eq!(cx.informer::<Pod>(select().namespace("elsewhere")).len(), 0);

    let api: Api<ConfigMap> = Api::namespaced(cx.client(), "n");
    let mut sent = config_map(map("b", ""));
    sent.metadata.resource_version = None;
    let params = PostParams::default();
    let mut response = map("b", "");
    response["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (created, ()) =
        tokio::join!(api.create(&params, &sent), async { server.next().await.respond(201, response) });
    created.unwrap();
    assert_eq!(
        (maps.len(), *reported.lock().unwrap()),
        (2, 1),
        "even without a version, since no watch would report it"
    );
    let (params, success) = (DeleteParams::default(), json!({"kind": "Status", "status": "Success"}));
    let (deleted, ()) =
        tokio::join!(api.delete("b", &params), async { server.next().await.respond(200, success) });
    deleted.unwrap();
    assert_eq!((maps.len(), *reported.lock().unwrap()), (1, 2));
}

#[tokio::test]
async fn an_object_read_by_name_is_cached_unless_it_is_older() {
    let mut process = Process::start().await;
    for (name, response_version, cached_version) in [
        ("a", "12", Some("12")),
        ("a", "11", Some("12")),
        ("b", "9", None), // the watch has passed version 9, so `b` has been deleted since
    ] {
        let (api, server) = (process.api.clone(), &mut process.server);
        let (read, ()) = tokio::join!(api.get(name), async {
            server.next().await.respond(200, map(name, response_version))
        });
        read.unwrap();
        assert_eq!(process.cached_version(name).as_deref(), cached_version);
    }
    assert_eq!(process.take_reported(), ["5>12"]);
}
