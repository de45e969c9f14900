//! Own writes and the watch tell of the same things in any order: the store ends right, and nobody is told twice.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use parking_lot::Mutex;
use reknit::{prelude::*, testing::eventually};
use serde_json::json;

use crate::support::{objects::Objects, proxy::Proxy, server::Server, wait::SOON};

/// An informer behind a proxy, what its handlers were told, and the two who write: the process itself and others.
struct Watched {
    informer: Informer<ConfigMap>,
    told: Arc<Mutex<Vec<String>>>,
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
        let told = Arc::default();
        tell(&informer, &told);
        informers.start();
        informer.synced().await;
        let others = Api::namespaced(objects.client.clone(), &objects.namespace);
        Self { informer, told, own, others, proxy, objects, _server: server }
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

    /// Waits until everything that the server did until now has come through the watch.
    async fn catch_up(&self) {
        let marker = create(&self.others, &format!("marker-{}", self.told.lock().len()), "").await;
        self.holds(&marker.name_any(), "").await;
    }

    /// What was told until now of all but the markers.
    fn told(&self) -> Vec<String> {
        self.told.lock().iter().filter(|line| !line.contains("marker")).cloned().collect()
    }

    async fn told_are(&self, expected: &[&str]) {
        self.catch_up().await;
        let told = self.told();
        println!("told: {told:?}");
        assert_eq!(told, expected);
    }
}

fn tell(informer: &Informer<ConfigMap>, told: &Arc<Mutex<Vec<String>>>) {
    let told = told.clone();
    informer.on(move |change| {
        let line = match change {
            Change::Added(new) => format!("added {} {}", new.name_any(), value(new)),
            Change::Updated { old, new } => {
                format!("updated {} {} {}", new.name_any(), value(old), value(new))
            }
            Change::Deleted { last } => format!("deleted {} {}", last.name_any(), value(last)),
        };
        told.lock().push(line);
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
async fn own_writes_stand_though_a_relist_begun_before_them_ends_after_them() {
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
    let mut told = watched.told();
    told.sort();
    let mut expected: Vec<_> = before.into_iter().chain(during).collect();
    expected.sort_unstable();
    println!("told: {told:?}");
    assert_eq!(told, expected);
    assert!(watched.held("deleted").is_none());
    watched.holds("changed", "2").await;
    watched.holds("created", "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_that_comes_before_its_answer_is_told_once() {
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
    watched.told_are(&["added x 1", "updated x 1 2", "deleted x 2"]).await;
    assert!(watched.held("x").is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_comes_before_its_echo_is_told_once() {
    let watched = Watched::new("answer").await;
    let echoes = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    create(&watched.own, "x", "1").await;
    watched.holds("x", "1").await;
    change(&watched.own, "x", "2").await;
    watched.holds("x", "2").await;
    echoes.arrived(1).await;
    // Others write on what was written: news, when its turn comes.
    change(&watched.others, "x", "3").await;
    echoes.open();
    watched.holds("x", "3").await;
    watched.told_are(&["added x 1", "updated x 1 2", "updated x 2 3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_and_created_again_under_its_name_is_another_object() {
    let watched = Watched::new("again").await;
    create(&watched.others, "x", "old").await;
    watched.holds("x", "old").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    delete(&watched.others, "x").await;
    let new = create(&watched.own, "x", "new").await;
    watched.holds("x", "new").await;
    lines.arrived(1).await;
    lines.open();
    watched.told_are(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(watched.held("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_process_deletes_and_creates_again_is_another_object() {
    let watched = Watched::new("ownagain").await;
    create(&watched.others, "x", "old").await;
    watched.holds("x", "old").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    delete(&watched.own, "x").await;
    let new = create(&watched.own, "x", "new").await;
    watched.holds("x", "new").await;
    lines.arrived(1).await;
    lines.open();
    watched.told_are(&["added x old", "deleted x old", "added x new"]).await;
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
    watched.told_are(&["added x old", "deleted x old", "added x new"]).await;
    assert_eq!(watched.held("x").and_then(|map| map.uid()), new.uid());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_own_deletion_stands_though_the_watch_still_tells_of_what_was_before() {
    let watched = Watched::new("deletion").await;
    create(&watched.others, "x", "1").await;
    watched.holds("x", "1").await;
    let lines = watched.proxy.hold_lines(|line| line.resource == "configmaps" && line.name() == "x");
    change(&watched.others, "x", "2").await;
    lines.arrived(1).await;
    delete(&watched.own, "x").await;
    lines.open();
    watched.told_are(&["added x 1", "deleted x 1"]).await;
    assert!(watched.held("x").is_none());
}
