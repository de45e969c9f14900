//! Own writes and watch events of the same objects in any order: the cache ends in the right state, and handlers are
//! called once for each change.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit::{injection::Change, prelude::*, testing::eventually};
use serde_json::json;

use crate::support::{
    objects::Objects,
    proxy::{Proxy, gate::Gate},
    server::Server,
    simple_deployments::labelled_pod,
    wait::TIMEOUT,
};

/// An informer of ConfigMaps behind a proxy, the calls of its handler, and two writers: this process, whose responses
/// enter the cache, and another client, which does not use the proxy.
struct Fixture {
    informer: Informer<ConfigMap>,
    handler_calls: Arc<Mutex<Vec<String>>>,
    own_client: Api<ConfigMap>,
    other_client: Api<ConfigMap>,
    proxy: Proxy,
    objects: Objects,
    _server: Server,
}

impl Fixture {
    async fn new(prefix: &str) -> Self {
        let server = Server::shared().await;
        let objects = server.objects_in_new_namespace(prefix).await;
        let proxy = server.proxy().await;
        let client =
            Client::try_from(proxy.config(&server.config().expect("a configuration"))).expect("a client");
        let (informer, own_client, informers) = {
            let cx = Context::new("test", client);
            let informer = cx.informer::<ConfigMap>(select().namespace(&objects.namespace));
            (informer, Api::namespaced(cx.client(), &objects.namespace), cx.informers())
        };
        let handler_calls = Arc::default();
        record_changes(&informer, &handler_calls);
        informers.start();
        informer.synced().await;
        let other_client = Api::namespaced(objects.client.clone(), &objects.namespace);
        Self { informer, handler_calls, own_client, other_client, proxy, objects, _server: server }
    }

    fn cached(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.informer.get(&Key::new(self.objects.namespace.as_str(), name))
    }

    /// Waits until the cache has the ConfigMap with this value.
    async fn wait_until_cached(&self, name: &str, value: &str) {
        eventually(format!("the cache has {name} with {value}"), TIMEOUT, async || {
            self.cached(name).is_some_and(|config_map| self::value(&config_map) == value)
        })
        .await;
    }

    /// Creates a marker object and waits until it is cached. The watch has then delivered all earlier changes.
    async fn catch_up(&self) {
        let marker =
            create(&self.other_client, &format!("marker-{}", self.handler_calls.lock().len()), "").await;
        self.wait_until_cached(&marker.name_any(), "").await;
    }

    /// The handler calls so far, except calls for markers: `added NAME VALUE`, `updated NAME OLD NEW`, `deleted NAME
    /// LAST`.
    fn handler_calls(&self) -> Vec<String> {
        self.handler_calls.lock().iter().filter(|line| !line.contains("marker")).cloned().collect()
    }

    async fn assert_handler_calls(&self, expected: &[&str]) {
        self.catch_up().await;
        let handler_calls = self.handler_calls();
        println!("handler calls: {handler_calls:?}");
        assert_eq!(handler_calls, expected);
    }
}

fn record_changes(informer: &Informer<ConfigMap>, handler_calls: &Arc<Mutex<Vec<String>>>) {
    let handler_calls = handler_calls.clone();
    informer.on(move |change| {
        let line = match change {
            Change::Added(new) => format!("added {} {}", new.name_any(), value(new)),
            Change::Updated { old, new } => {
                format!("updated {} {} {}", new.name_any(), value(old), value(new))
            }
            Change::Deleted { last } => format!("deleted {} {}", last.name_any(), value(last)),
        };
        handler_calls.lock().push(line);
    });
}

fn value(config_map: &ConfigMap) -> String {
    config_map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default()
}

async fn create(api: &Api<ConfigMap>, name: &str, value: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let data = Some([("value".to_owned(), value.to_owned())].into());
    let config_map = ConfigMap { metadata, data, ..ConfigMap::default() };
    api.create(&PostParams::default(), &config_map).await.expect("the ConfigMap is created")
}

async fn change(api: &Api<ConfigMap>, name: &str, value: &str) {
    let patch = Patch::Merge(json!({ "data": { "value": value } }));
    api.patch(name, &PatchParams::default(), &patch).await.expect("the ConfigMap is patched");
}

async fn delete(api: &Api<ConfigMap>, name: &str) {
    let _ = api.delete(name, &DeleteParams::default()).await.expect("the ConfigMap is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_writes_survive_a_relist_that_began_before_them() {
    let fixture = Fixture::new("relist").await;
    for name in ["changed", "deleted"] {
        create(&fixture.other_client, name, "1").await;
        fixture.wait_until_cached(name, "1").await;
    }
    let relist = fixture.proxy.hold_responses(|request| request.lists_all("configmaps"));
    fixture.proxy.expire_watches("configmaps");
    relist.wait_for_arrivals(1).await;

    create(&fixture.own_client, "created", "1").await;
    change(&fixture.own_client, "changed", "2").await;
    delete(&fixture.own_client, "deleted").await;
    assert!(fixture.cached("created").is_some(), "the process does not read its own write");
    fixture.wait_until_cached("changed", "2").await;
    relist.open();

    let before_relist = ["added changed 1", "added deleted 1"];
    let during_relist = ["added created 1", "updated changed 1 2", "deleted deleted 1"];
    fixture.catch_up().await;
    let mut handler_calls = fixture.handler_calls();
    handler_calls.sort();
    let mut expected: Vec<_> = before_relist.into_iter().chain(during_relist).collect();
    expected.sort_unstable();
    println!("handler calls: {handler_calls:?}");
    assert_eq!(handler_calls, expected);
    assert!(fixture.cached("deleted").is_none());
    fixture.wait_until_cached("changed", "2").await;
    fixture.wait_until_cached("created", "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_are_called_once_if_the_watch_event_precedes_the_response() {
    let fixture = Fixture::new("echo").await;
    let responses =
        fixture.proxy.hold_responses(|request| request.is_write() && request.resource == "configmaps");
    let own_client = fixture.own_client.clone();
    let writes = tokio::spawn(async move {
        create(&own_client, "x", "1").await;
        change(&own_client, "x", "2").await;
        delete(&own_client, "x").await;
    });
    responses.wait_for_arrivals(1).await;
    fixture.wait_until_cached("x", "1").await;
    responses.let_one_through();
    responses.wait_for_arrivals(2).await;
    fixture.wait_until_cached("x", "2").await;
    responses.let_one_through();
    responses.wait_for_arrivals(3).await;
    eventually("the object leaves the cache", TIMEOUT, async || fixture.cached("x").is_none()).await;
    responses.open();
    writes.await.expect("the writes succeed");
    fixture.assert_handler_calls(&["added x 1", "updated x 1 2", "deleted x 2"]).await;
    assert!(fixture.cached("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_are_called_once_if_the_response_precedes_the_watch_event() {
    let fixture = Fixture::new("answer").await;
    let watch_events = fixture.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    create(&fixture.own_client, "x", "1").await;
    fixture.wait_until_cached("x", "1").await;
    change(&fixture.own_client, "x", "2").await;
    fixture.wait_until_cached("x", "2").await;
    watch_events.wait_for_arrivals(1).await;
    // Handlers are also called for a later change by another client.
    change(&fixture.other_client, "x", "3").await;
    watch_events.open();
    fixture.wait_until_cached("x", "3").await;
    fixture.assert_handler_calls(&["added x 1", "updated x 1 2", "updated x 2 3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_this_process_recreates_is_reported_as_new_whichever_client_deleted_it() {
    for (namespace, is_own_deletion) in [("recreation", false), ("own-recreation", true)] {
        let fixture = Fixture::new(namespace).await;
        create(&fixture.other_client, "x", "old").await;
        fixture.wait_until_cached("x", "old").await;
        let lines = fixture.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
        delete(if is_own_deletion { &fixture.own_client } else { &fixture.other_client }, "x").await;
        let new = create(&fixture.own_client, "x", "new").await;
        fixture.wait_until_cached("x", "new").await;
        lines.wait_for_arrivals(1).await;
        lines.open();
        fixture.assert_handler_calls(&["added x old", "deleted x old", "added x new"]).await;
        assert_eq!(fixture.cached("x").and_then(|map| map.uid()), new.uid());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_from_before_a_recreation_does_not_restore_the_old_object() {
    let fixture = Fixture::new("relist-recreation").await;
    create(&fixture.other_client, "x", "old").await;
    fixture.wait_until_cached("x", "old").await;
    let relist = fixture.proxy.hold_responses(|request| request.lists_all("configmaps"));
    fixture.proxy.expire_watches("configmaps");
    relist.wait_for_arrivals(1).await;
    delete(&fixture.other_client, "x").await;
    let new = create(&fixture.own_client, "x", "new").await;
    fixture.wait_until_cached("x", "new").await;
    relist.open();
    fixture.assert_handler_calls(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(fixture.cached("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_deletion_is_not_undone_by_older_watch_events() {
    let fixture = Fixture::new("deletion").await;
    create(&fixture.other_client, "x", "1").await;
    fixture.wait_until_cached("x", "1").await;
    let lines = fixture.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    change(&fixture.other_client, "x", "2").await;
    lines.wait_for_arrivals(1).await;
    delete(&fixture.own_client, "x").await;
    lines.open();
    fixture.assert_handler_calls(&["added x 1", "deleted x 1"]).await;
    assert!(fixture.cached("x").is_none());
}

/// An informer of pods whose watch delivers nothing until the gate `lines` is opened, so that its cache only gets own
/// writes.
struct SilentWatch {
    informer: Informer<Pod>,
    own_client: Api<Pod>,
    other_client: Api<Pod>,
    lines: Gate,
    _proxy: Proxy,
    _server: Server,
}

impl SilentWatch {
    async fn new(prefix: &str) -> Self {
        let server = Server::shared().await;
        let objects = server.objects_in_new_namespace(prefix).await;
        let proxy = server.proxy().await;
        let lines = proxy.hold_lines(|line| line.resource == "pods");
        let config = proxy.config(&server.config().expect("a configuration"));
        let cx = Context::new("test", Client::try_from(config).expect("a client"));
        let informer = cx.informer::<Pod>(select().namespace(&objects.namespace));
        let own_client = Api::namespaced(cx.client(), &objects.namespace);
        cx.informers().start();
        informer.synced().await;
        Self { informer, own_client, other_client: objects.pods(), lines, _proxy: proxy, _server: server }
    }

    /// Creates a pod by an own write, after `change` has edited it.
    async fn create(&self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = serde_json::from_value(labelled_pod(name, "x", "pause")).expect("a pod");
        change(&mut pod);
        self.own_client.create(&PostParams::default(), &pod).await.expect("the pod is created");
    }

    /// Creates a pod on a node. Its deletion is graceful, because a kubelet would have to confirm it.
    async fn create_on_node(&self, name: &str) {
        self.create(name, |pod| pod.spec.as_mut().expect("a spec").node_name = Some("nowhere".into())).await;
    }

    /// Asserts that the cache has the same pods as the API server, and returns them: the name, the resourceVersion, and
    /// whether the pod is being deleted.
    async fn assert_cache_matches_server(&self, after: &str) -> Vec<(String, String, bool)> {
        let summary = |pod: &Pod| {
            (
                pod.name_any(),
                pod.resource_version().unwrap_or_default(),
                pod.metadata.deletion_timestamp.is_some(),
            )
        };
        let mut cached: Vec<_> = self.informer.list().map(|pod| summary(&pod)).collect();
        let list = self.other_client.list(&ListParams::default()).await.expect("the list");
        let mut stored: Vec<_> = list.iter().map(summary).collect();
        cached.sort();
        stored.sort();
        println!("after {after}: {cached:?}");
        assert_eq!(cached, stored, "the cache and the API server after {after}");
        cached
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_matches_the_server_after_each_kind_of_deletion() {
    let silent = SilentWatch::new("silent").await;
    let delete = async |name: &str, params: DeleteParams| {
        silent.own_client.delete(name, &params).await.expect("the pod is deleted")
    };
    silent.create("unscheduled", |_| ()).await;
    silent.create("finalized", |pod| pod.metadata.finalizers = Some(vec!["example.com/wait".into()])).await;
    silent.create_on_node("graceful").await;
    silent.create_on_node("forced").await;
    assert_eq!(silent.assert_cache_matches_server("four creations").await.len(), 4);

    let response = delete("unscheduled", DeleteParams::default()).await;
    assert!(response.is_left(), "the response is a Status, not the deleted pod");
    assert_eq!(silent.assert_cache_matches_server("the deletion of an unscheduled pod").await.len(), 3);
    delete("graceful", DeleteParams::default()).await;
    silent.assert_cache_matches_server("a graceful deletion").await;
    delete("forced", DeleteParams::default().grace_period(0)).await;
    silent.assert_cache_matches_server("a forced deletion").await;
    delete("finalized", DeleteParams::default()).await;
    let pods = silent.assert_cache_matches_server("the deletion of a pod with a finalizer").await;
    assert!(pods.iter().all(|(.., is_terminating)| *is_terminating), "{pods:?}");
    delete("graceful", DeleteParams::default().grace_period(0)).await;
    assert_eq!(silent.assert_cache_matches_server("the end of the graceful deletion").await.len(), 1);

    let no_finalizers = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    silent
        .own_client
        .patch("finalized", &PatchParams::default(), &no_finalizers)
        .await
        .expect("the pod is patched");
    assert_eq!(silent.assert_cache_matches_server("the removal of the finalizer").await.len(), 0);
    silent.lines.open();
    let last = serde_json::from_value(labelled_pod("last", "x", "pause")).expect("a pod");
    silent.other_client.create(&PostParams::default(), &last).await.expect("the pod is created");
    eventually("the watch has delivered all events", TIMEOUT, async || !silent.informer.is_empty()).await;
    assert_eq!(silent.assert_cache_matches_server("all events of the watch").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_matches_the_server_after_a_deleted_collection_and_an_eviction() {
    let silent = SilentWatch::new("silent-collection").await;
    for name in ["a", "b", "unscheduled"] {
        silent.create(name, |_| ()).await;
    }
    for name in ["graceful", "evicted", "kept"] {
        silent.create_on_node(name).await;
    }
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "keep": "true" } } }));
    for name in ["unscheduled", "kept", "evicted"] {
        silent.own_client.patch(name, &PatchParams::default(), &patch).await.expect("the pod is patched");
    }
    assert_eq!(silent.assert_cache_matches_server("six creations").await.len(), 6);

    let (dry_run, params) = (DeleteParams::default().dry_run(), DeleteParams::default());
    let without_label = ListParams::default().labels("!keep");
    silent.own_client.delete_collection(&dry_run, &without_label).await.expect("nothing is deleted");
    assert_eq!(silent.assert_cache_matches_server("a dry run").await.len(), 6);
    silent.own_client.delete_collection(&params, &without_label).await.expect("some are deleted");
    let pods = silent.assert_cache_matches_server("the deletion of some").await;
    let terminating: Vec<_> = pods.iter().map(name_and_terminating).collect();
    assert_eq!(
        terminating,
        [("evicted", false), ("graceful", true), ("kept", false), ("unscheduled", false)]
    );

    silent.own_client.evict("evicted", &EvictParams::default()).await.expect("the pod is evicted");
    silent.own_client.evict("unscheduled", &EvictParams::default()).await.expect("the pod is evicted");
    let pods = silent.assert_cache_matches_server("two evictions").await;
    let terminating: Vec<_> = pods.iter().map(name_and_terminating).collect();
    assert_eq!(terminating, [("evicted", true), ("graceful", true), ("kept", false)]);
}

fn name_and_terminating((name, _, is_terminating): &(String, String, bool)) -> (&str, bool) {
    (name.as_str(), *is_terminating)
}
