use std::sync::Mutex;

use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::Barrier;

use super::*;
use crate::{
    Context, select,
    testing::{self, server},
};

fn map(namespace: &str, name: &str, labels: &[(&str, &str)]) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.namespace = Some(namespace.into());
    map.metadata.name = Some(name.into());
    map.metadata.labels = Some(labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect());
    map
}

fn context() -> Context {
    Context::new("test", server().0)
}

#[tokio::test]
async fn there_is_one_informer_for_each_type_kind_and_selection() {
    let cx = context();
    let all: Informer<ConfigMap> = cx.get();
    assert!(all.is_same_as(&cx.informer(select())));
    let selected = cx.informer::<ConfigMap>(select().namespace("x").label("a", "1").label("b", "2"));
    assert!(selected.is_same_as(&cx.informer(select().label("b", "2").label("a", "1").namespace("x"))));
    assert!(!selected.is_same_as(&all));
    assert!(!all.is_same_as(&cx.informer(select().keeping_managed_fields())));
    assert_eq!(selected.name(), "configmaps [namespace=x labels=a=1,b=2]");
}

#[tokio::test]
async fn an_object_that_leaves_the_selection_leaves_the_cache() {
    let selected = context().informer::<ConfigMap>(select().label("a", "1"));
    selected.insert(&map("x", "m", &[("a", "1")])).unwrap();
    assert_eq!(selected.len(), 1);
    selected.insert(&map("x", "m", &[])).unwrap();
    assert!(selected.is_empty());
}

#[tokio::test]
async fn a_namespace_is_listed_without_the_others() {
    let maps = context().informer::<ConfigMap>(select());
    for (namespace, name) in [("x", "a"), ("x", "b"), ("y", "a")] {
        maps.insert(&map(namespace, name, &[])).unwrap();
    }
    assert_eq!((maps.list_in("x").count(), maps.list_in("z").count(), maps.list().count()), (2, 0, 3));
}

#[tokio::test]
async fn an_index_is_updated_before_handlers_are_called() {
    let maps = context().informer::<ConfigMap>(select());
    maps.insert(&map("x", "early", &[("app", "web")])).unwrap();
    let by_app = maps.index(|map| map.metadata.labels.as_ref().and_then(|labels| labels.get("app").cloned()));
    let counts = Arc::new(Mutex::new(Vec::new()));
    let recorded = counts.clone();
    maps.on(move |_| recorded.lock().unwrap().push((by_app.get("web").count(), by_app.get("db").count())));
    maps.insert(&map("x", "late", &[("app", "web")])).unwrap();
    maps.insert(&map("x", "late", &[("app", "db")])).unwrap();
    maps.insert(&map("x", "late", &[("app", "db"), ("more", "y")])).unwrap();
    maps.remove(&Key::new("x", "late"));
    maps.remove(&Key::new("x", "early"));
    assert_eq!(*counts.lock().unwrap(), [(1, 0), (2, 0), (1, 1), (1, 1), (1, 0), (0, 0)]);
}

#[tokio::test]
async fn a_late_handler_gets_an_object_that_was_read_before_the_informer_started() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps = cx.informer::<ConfigMap>(select());
    let api: kube::Api<ConfigMap> = kube::Api::namespaced(cx.client(), "n");
    let respond = async { server.next().await.respond(200, testing::map("a", "5")) };
    tokio::join!(api.get("a"), respond).0.unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    maps.on(move |change| sender.send(change.key()).unwrap());
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [Key::new("n", "a")]);
}

#[tokio::test]
async fn a_panic_in_a_handler_does_not_stop_the_others() {
    let maps = context().informer::<ConfigMap>(select());
    let names = Arc::new(Mutex::new(Vec::new()));
    maps.on(|_| panic!("as planned"));
    let recorded = names.clone();
    maps.on(move |change| recorded.lock().unwrap().push(change.key().name));
    maps.insert(&map("x", "a", &[])).unwrap();
    maps.insert(&map("x", "b", &[])).unwrap();
    assert_eq!(*names.lock().unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn a_handler_reads_the_changed_object_from_the_cache() {
    let maps = context().informer::<ConfigMap>(select());
    let (is_cached, weak) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&maps.0));
    let recorded = is_cached.clone();
    maps.on(move |change| {
        let cached = weak.upgrade().map(Informer).and_then(|maps| maps.get(&change.key()));
        recorded.lock().unwrap().push(cached.is_some());
    });
    maps.insert(&map("x", "a", &[])).unwrap();
    maps.remove(&Key::new("x", "a"));
    assert_eq!(*is_cached.lock().unwrap(), [true, false]);
}

#[tokio::test]
async fn until_sees_the_current_state_and_later_changes() {
    let maps = context().informer::<ConfigMap>(select());
    maps.insert(&map("x", "a", &[("phase", "new")])).unwrap();
    let (barrier, key) = (Arc::new(Barrier::new(2)), Key::new("x", "a"));
    let (reader, started) = (maps.clone(), barrier.clone());
    let waiting = tokio::spawn(async move {
        let mut phases = Vec::new();
        let phase = |map: &ConfigMap| map.metadata.labels.as_ref().and_then(|l| l.get("phase").cloned());
        started.wait().await;
        let seen = |current: Option<&ConfigMap>| {
            phases.push(current.and_then(phase));
            current.is_none().then(|| std::mem::take(&mut phases))
        };
        reader.until(&key, seen).await
    });
    barrier.wait().await;
    for change in 0..3 {
        tokio::task::yield_now().await;
        match change {
            0 => maps.insert(&map("x", "other", &[("phase", "not shown")])).unwrap(),
            1 => maps.insert(&map("x", "a", &[("phase", "running")])).unwrap(),
            _ => maps.remove(&Key::new("x", "a")),
        }
    }
    let phases = waiting.await.unwrap();
    assert_eq!(phases, [Some("new".into()), Some("running".into()), None]);
}
