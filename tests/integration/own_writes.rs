//! Own writes and watch events of the same objects in any order: the cache ends in the right state, and handlers are
//! called once.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit::{prelude::*, testing::eventually};
use serde_json::json;

use crate::support::{
    objects::Objects,
    proxy::{Proxy, gate::Gate},
    replicas::labelled,
    server::Server,
    wait::SOON,
};

/// An informer behind a proxy, the calls of its handlers, and two writers: the process itself and another client.
struct Watched {
    informer: Informer<ConfigMap>,
    reported: Arc<Mutex<Vec<String>>>,
    own: Api<ConfigMap>,
    others: Api<ConfigMap>,
    proxy: Proxy,
    objects: Objects,
    _server: Server,
}

impl Watched {
    async fn new(prefix: &str) -> Self {
        let server = Server::shared().await;
        let objects = server.objects(prefix).await;
        let proxy = server.proxy().await;
        let client =
            Client::try_from(proxy.config(&server.config().expect("a configuration"))).expect("a client");
        let (informer, own, informers) = {
            let cx = Context::new("test", client);
            let informer = cx.informer::<ConfigMap>(select().namespace(&objects.namespace));
            (informer, Api::namespaced(cx.client(), &objects.namespace), cx.informers())
        };
        let reported = Arc::default();
        tell(&informer, &reported);
        informers.start();
        informer.synced().await;
        let others = Api::namespaced(objects.client.clone(), &objects.namespace);
        Self { informer, reported, own, others, proxy, objects, _server: server }
    }

    fn held(&self, name: &str) -> Option<Arc<ConfigMap>> {
        self.informer.get(&Key::new(self.objects.namespace.as_str(), name))
    }

    async fn holds(&self, name: &str, value: &str) {
        eventually(format!("the store holds {name} {value}"), SOON, async || {
            self.held(name).is_some_and(|map| self::value(&map) == value)
        })
        .await;
    }

    /// Waits until the watch has delivered everything that the server did so far.
    async fn catch_up(&self) {
        let marker = create(&self.others, &format!("marker-{}", self.reported.lock().len()), "").await;
        self.holds(&marker.name_any(), "").await;
    }

    /// The handler calls so far, without those for the markers.
    fn reported(&self) -> Vec<String> {
        self.reported.lock().iter().filter(|line| !line.contains("marker")).cloned().collect()
    }

    async fn reported_are(&self, expected: &[&str]) {
        self.catch_up().await;
        let reported = self.reported();
        println!("reported: {reported:?}");
        assert_eq!(reported, expected);
    }
}

fn tell(informer: &Informer<ConfigMap>, reported: &Arc<Mutex<Vec<String>>>) {
    let reported = reported.clone();
    informer.on(move |change| {
        let line = match change {
            Change::Added(new) => format!("added {} {}", new.name_any(), value(new)),
            Change::Updated { old, new } => {
                format!("updated {} {} {}", new.name_any(), value(old), value(new))
            }
            Change::Deleted { last } => format!("deleted {} {}", last.name_any(), value(last)),
        };
        reported.lock().push(line);
    });
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default()
}

async fn create(api: &Api<ConfigMap>, name: &str, value: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    let data = Some([("value".to_owned(), value.to_owned())].into());
    let map = ConfigMap { metadata, data, ..ConfigMap::default() };
    api.create(&PostParams::default(), &map).await.expect("it is created")
}

async fn change(api: &Api<ConfigMap>, name: &str, value: &str) {
    let patch = Patch::Merge(json!({ "data": { "value": value } }));
    api.patch(name, &PatchParams::default(), &patch).await.expect("it is patched");
}

async fn delete(api: &Api<ConfigMap>, name: &str) {
    let _ = api.delete(name, &DeleteParams::default()).await.expect("it is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn own_writes_survive_a_relist_that_began_before_them() {
    let watched = Watched::new("relist").await;
    for name in ["changed", "deleted"] {
        create(&watched.others, name, "1").await;
        watched.holds(name, "1").await;
    }
    let lists = watched.proxy.hold_answers(|request| request.lists_all("configmaps"));
    watched.proxy.expire("configmaps");
    lists.arrived(1).await;

    create(&watched.own, "created", "1").await;
    change(&watched.own, "changed", "2").await;
    delete(&watched.own, "deleted").await;
    assert!(watched.held("created").is_some(), "a process does not read its own write");
    watched.holds("changed", "2").await;
    lists.open();

    let before = ["added changed 1", "added deleted 1"];
    let during = ["added created 1", "updated changed 1 2", "deleted deleted 1"];
    watched.catch_up().await;
    let mut reported = watched.reported();
    reported.sort();
    let mut expected: Vec<_> = before.into_iter().chain(during).collect();
    expected.sort_unstable();
    println!("reported: {reported:?}");
    assert_eq!(reported, expected);
    assert!(watched.held("deleted").is_none());
    watched.holds("changed", "2").await;
    watched.holds("created", "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_event_before_its_response_is_reported_once() {
    let watched = Watched::new("echo").await;
    let answers = watched.proxy.hold_answers(|request| request.writes() && request.resource == "configmaps");
    let own = watched.own.clone();
    let writes = tokio::spawn(async move {
        create(&own, "x", "1").await;
        change(&own, "x", "2").await;
        delete(&own, "x").await;
    });
    answers.arrived(1).await;
    watched.holds("x", "1").await;
    answers.let_one_through();
    answers.arrived(2).await;
    watched.holds("x", "2").await;
    answers.let_one_through();
    answers.arrived(3).await;
    eventually("the store has let it go", SOON, async || watched.held("x").is_none()).await;
    answers.open();
    writes.await.expect("the writes succeed");
    watched.reported_are(&["added x 1", "updated x 1 2", "deleted x 2"]).await;
    assert!(watched.held("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_before_its_watch_event_is_reported_once() {
    let watched = Watched::new("answer").await;
    let echoes = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    create(&watched.own, "x", "1").await;
    watched.holds("x", "1").await;
    change(&watched.own, "x", "2").await;
    watched.holds("x", "2").await;
    echoes.arrived(1).await;
    // Another client changes the object afterwards, which handlers are called for.
    change(&watched.others, "x", "3").await;
    echoes.open();
    watched.holds("x", "3").await;
    watched.reported_are(&["added x 1", "updated x 1 2", "updated x 2 3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_recreated_under_the_same_name_is_another_object() {
    let watched = Watched::new("again").await;
    create(&watched.others, "x", "old").await;
    watched.holds("x", "old").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    delete(&watched.others, "x").await;
    let new = create(&watched.own, "x", "new").await;
    watched.holds("x", "new").await;
    lines.arrived(1).await;
    lines.open();
    watched.reported_are(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(watched.held("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_this_process_recreates_is_another_object() {
    let watched = Watched::new("ownagain").await;
    create(&watched.others, "x", "old").await;
    watched.holds("x", "old").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    delete(&watched.own, "x").await;
    let new = create(&watched.own, "x", "new").await;
    watched.holds("x", "new").await;
    lines.arrived(1).await;
    lines.open();
    watched.reported_are(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(watched.held("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relist_that_still_has_the_old_object_does_not_bring_it_back() {
    let watched = Watched::new("relistagain").await;
    create(&watched.others, "x", "old").await;
    watched.holds("x", "old").await;
    let lists = watched.proxy.hold_answers(|request| request.lists_all("configmaps"));
    watched.proxy.expire("configmaps");
    lists.arrived(1).await;
    delete(&watched.others, "x").await;
    let new = create(&watched.own, "x", "new").await;
    watched.holds("x", "new").await;
    lists.open();
    watched.reported_are(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(watched.held("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_deletion_holds_although_older_watch_events_follow() {
    let watched = Watched::new("deletion").await;
    create(&watched.others, "x", "1").await;
    watched.holds("x", "1").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    change(&watched.others, "x", "2").await;
    lines.arrived(1).await;
    delete(&watched.own, "x").await;
    lines.open();
    watched.reported_are(&["added x 1", "deleted x 1"]).await;
    assert!(watched.held("x").is_none());
}

/// A process whose watch of pods delivers nothing, so that it only reads its own writes.
struct Deaf {
    informer: Informer<Pod>,
    own: Api<Pod>,
    others: Api<Pod>,
    lines: Gate,
    _proxy: Proxy,
    _server: Server,
}

impl Deaf {
    async fn new(prefix: &str) -> Self {
        let server = Server::shared().await;
        let objects = server.objects(prefix).await;
        let proxy = server.proxy().await;
        let lines = proxy.hold_lines(|line| line.resource == "pods");
        let config = proxy.config(&server.config().expect("a configuration"));
        let cx = Context::new("test", Client::try_from(config).expect("a client"));
        let informer = cx.informer::<Pod>(select().namespace(&objects.namespace));
        let own = Api::namespaced(cx.client(), &objects.namespace);
        cx.informers().start();
        informer.synced().await;
        Self { informer, own, others: objects.pods(), lines, _proxy: proxy, _server: server }
    }

    async fn create(&self, name: &str, change: impl FnOnce(&mut Pod)) {
        let mut pod = serde_json::from_value(labelled(name, "x", "pause")).expect("a pod");
        change(&mut pod);
        self.own.create(&PostParams::default(), &pod).await.expect("it is created");
    }

    /// Creates a pod that is deleted gracefully, because a kubelet would have to confirm the deletion.
    async fn create_on_node(&self, name: &str) {
        self.create(name, |pod| pod.spec.as_mut().expect("a spec").node_name = Some("nowhere".into())).await;
    }

    /// The pods of the cache, after comparing them with those of the server: name, resourceVersion, and whether it is
    /// being deleted.
    async fn agrees(&self, after: &str) -> Vec<(String, String, bool)> {
        let shown = |pod: &Pod| {
            (
                pod.name_any(),
                pod.resource_version().unwrap_or_default(),
                pod.metadata.deletion_timestamp.is_some(),
            )
        };
        let mut held: Vec<_> = self.informer.list().map(|pod| shown(&pod)).collect();
        let there = self.others.list(&ListParams::default()).await.expect("the list");
        let mut there: Vec<_> = there.iter().map(shown).collect();
        held.sort();
        there.sort();
        println!("after {after}: {held:?}");
        assert_eq!(held, there, "what is held after {after}, and what there is");
        held
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_agrees_with_the_server_after_any_response_to_a_deletion() {
    let deaf = Deaf::new("deaf").await;
    let delete =
        async |name: &str, params: DeleteParams| deaf.own.delete(name, &params).await.expect("it is deleted");
    deaf.create("waiting", |_| ()).await;
    deaf.create("finalized", |pod| pod.metadata.finalizers = Some(vec!["example.com/wait".into()])).await;
    deaf.create_on_node("graceful").await;
    deaf.create_on_node("forced").await;
    assert_eq!(deaf.agrees("four creations").await.len(), 4);

    let answer = delete("waiting", DeleteParams::default()).await;
    assert!(answer.is_left(), "a pod on no node answers as the object that it was");
    assert_eq!(deaf.agrees("the deletion of one on no node").await.len(), 3);
    delete("graceful", DeleteParams::default()).await;
    deaf.agrees("a graceful deletion").await;
    delete("forced", DeleteParams::default().grace_period(0)).await;
    deaf.agrees("a forced deletion").await;
    delete("finalized", DeleteParams::default()).await;
    let held = deaf.agrees("the deletion of one with a finalizer").await;
    assert!(held.iter().all(|(.., going)| *going), "{held:?}");
    delete("graceful", DeleteParams::default().grace_period(0)).await;
    assert_eq!(deaf.agrees("the end of the graceful one").await.len(), 1);

    let done = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    deaf.own.patch("finalized", &PatchParams::default(), &done).await.expect("it is patched");
    assert_eq!(deaf.agrees("the last finalizer").await.len(), 0);
    deaf.lines.open();
    let last = serde_json::from_value(labelled("last", "x", "pause")).expect("a pod");
    deaf.others.create(&PostParams::default(), &last).await.expect("it is created");
    eventually("the watch tells the last of it", SOON, async || !deaf.informer.is_empty()).await;
    assert_eq!(deaf.agrees("all that the watch had to tell").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_collection_and_an_eviction_are_read_back() {
    let deaf = Deaf::new("deafmany").await;
    for name in ["a", "b", "other"] {
        deaf.create(name, |_| ()).await;
    }
    for name in ["graceful", "evicted", "spared"] {
        deaf.create_on_node(name).await;
    }
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "spare": "me" } } }));
    for name in ["other", "spared", "evicted"] {
        deaf.own.patch(name, &PatchParams::default(), &patch).await.expect("it is patched");
    }
    assert_eq!(deaf.agrees("six creations").await.len(), 6);

    let (dry, params) = (DeleteParams::default().dry_run(), DeleteParams::default());
    let all_but_some = ListParams::default().labels("!spare");
    deaf.own.delete_collection(&dry, &all_but_some).await.expect("nothing is deleted");
    assert_eq!(deaf.agrees("a dry run").await.len(), 6);
    deaf.own.delete_collection(&params, &all_but_some).await.expect("some are deleted");
    let held = deaf.agrees("the deletion of some").await;
    let going: Vec<_> = held.iter().map(|(name, _, going)| (name.as_str(), *going)).collect();
    assert_eq!(going, [("evicted", false), ("graceful", true), ("other", false), ("spared", false)]);

    deaf.own.evict("evicted", &EvictParams::default()).await.expect("it is evicted");
    deaf.own.evict("other", &EvictParams::default()).await.expect("it is evicted");
    let held = deaf.agrees("two evictions").await;
    let going: Vec<_> = held.iter().map(|(name, _, going)| (name.as_str(), *going)).collect();
    assert_eq!(going, [("evicted", true), ("graceful", true), ("spared", false)]);
}
