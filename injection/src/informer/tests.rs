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
async fn one_informer_for_each_type_kind_and_selection() {
    let cx = context();
    let all: Informer<ConfigMap> = cx.get();
    assert!(all.same(&cx.informer(select())));
    let chosen = cx.informer::<ConfigMap>(select().namespace("x").label("a", "1").label("b", "2"));
    assert!(chosen.same(&cx.informer(select().label("b", "2").label("a", "1").namespace("x"))));
    assert!(!chosen.same(&all));
    assert!(!all.same(&cx.informer(select().keeping_managed_fields())));
    assert_eq!(chosen.name(), "configmaps [namespace=x labels=a=1,b=2]");
}

#[tokio::test]
async fn an_object_that_leaves_the_selection_leaves_the_cache() {
    let chosen = context().informer::<ConfigMap>(select().label("a", "1"));
    chosen.insert(&map("x", "m", &[("a", "1")])).unwrap();
    assert_eq!(chosen.len(), 1);
    chosen.insert(&map("x", "m", &[])).unwrap();
    assert!(chosen.is_empty());
}

#[tokio::test]
async fn a_namespace_is_listed_by_itself() {
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
    let (seen, index) = (Arc::new(Mutex::new(Vec::new())), by_app);
    let counts = seen.clone();
    maps.on(move |_| counts.lock().unwrap().push((index.get("web").count(), index.get("db").count())));
    maps.insert(&map("x", "late", &[("app", "web")])).unwrap();
    maps.insert(&map("x", "late", &[("app", "db")])).unwrap();
    maps.insert(&map("x", "late", &[("app", "db"), ("more", "y")])).unwrap();
    maps.remove(&Key::new("x", "late"));
    maps.remove(&Key::new("x", "early"));
    assert_eq!(*seen.lock().unwrap(), [(1, 0), (2, 0), (1, 1), (1, 1), (1, 0), (0, 0)]);
}

#[tokio::test]
async fn late_handlers_get_objects_read_before_the_start() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps = cx.informer::<ConfigMap>(select());
    let api: kube::Api<ConfigMap> = kube::Api::namespaced(cx.client(), "n");
    let answer = async { server.next().await.answer(200, testing::map("a", "5")) };
    tokio::join!(api.get("a"), answer).0.unwrap();
    let (told, heard) = std::sync::mpsc::channel();
    maps.on(move |change| told.send(change.key()).unwrap());
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Key::new("n", "a")]);
}

#[tokio::test]
async fn a_panicking_handler_stops_no_other() {
    let maps = context().informer::<ConfigMap>(select());
    let seen = Arc::new(Mutex::new(Vec::new()));
    maps.on(|_| panic!("as planned"));
    let keys = seen.clone();
    maps.on(move |change| keys.lock().unwrap().push(change.key().name));
    maps.insert(&map("x", "a", &[])).unwrap();
    maps.insert(&map("x", "b", &[])).unwrap();
    assert_eq!(*seen.lock().unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn a_handler_reads_the_changed_object_from_the_cache() {
    let maps = context().informer::<ConfigMap>(select());
    let (seen, reader) = (Arc::new(Mutex::new(Vec::new())), Arc::downgrade(&maps.0));
    let found = seen.clone();
    maps.on(move |change| {
        let held = reader.upgrade().map(Informer).and_then(|maps| maps.get(&change.key()));
        found.lock().unwrap().push(held.is_some());
    });
    maps.insert(&map("x", "a", &[])).unwrap();
    maps.remove(&Key::new("x", "a"));
    assert_eq!(*seen.lock().unwrap(), [true, false]);
}

#[tokio::test]
async fn until_sees_the_present_state_and_later_ones() {
    let maps = context().informer::<ConfigMap>(select());
    maps.insert(&map("x", "a", &[("phase", "new")])).unwrap();
    let (waits, key) = (Arc::new(Barrier::new(2)), Key::new("x", "a"));
    let (other, started) = (maps.clone(), waits.clone());
    let waiting = tokio::spawn(async move {
        let mut phases = Vec::new();
        let phase = |map: &ConfigMap| map.metadata.labels.as_ref().and_then(|l| l.get("phase").cloned());
        started.wait().await;
        let seen = |now: Option<&ConfigMap>| {
            phases.push(now.and_then(phase));
            now.is_none().then(|| std::mem::take(&mut phases))
        };
        other.until(&key, seen).await
    });
    waits.wait().await;
    for change in 0..3 {
        tokio::task::yield_now().await;
        match change {
            0 => maps.insert(&map("x", "other", &[("phase", "not shown")])).unwrap(),
            1 => maps.insert(&map("x", "a", &[("phase", "running")])).unwrap(),
            _ => maps.remove(&Key::new("x", "a")),
        }
    }
    let shown = waiting.await.unwrap();
    assert_eq!(shown, [Some("new".into()), Some("running".into()), None]);
}
