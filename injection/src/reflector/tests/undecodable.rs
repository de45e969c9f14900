//! Objects that cannot be decoded, and responses that are not lists.

use super::*;
use crate::object::{RawObject, ResponseState};

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_does_not_fail_the_others() {
    let (maps, calls, mut server) = start();
    let malformed_metadata = json!({"metadata": 3});
    let items = [map("a", "5"), undecodable("bad", "7"), malformed_metadata.clone(), map("b", "6")];
    let watch = server.sync("10", &items).await;
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5", "?bad", "+b@6"]);

    watch.event("MODIFIED", &undecodable("a", "11"));
    watch.event("MODIFIED", &undecodable("bad", "7"));
    watch.event("MODIFIED", &malformed_metadata);
    watch.event("ADDED", &map("c", "12"));
    until_called(&calls, "+c@12").await;
    assert_eq!(calls.take(), ["?a", "+c@12"], "each undecodable version is reported once");
    assert_eq!(version(&maps, &Key::new("n", "a")).as_deref(), Some("5"), "the last decodable state stays");

    watch.event("ERROR", &expired());
    server.list().await.items("20", &[undecodable("a", "11"), map("c", "12")]);
    let watch = server.watch("20").await.stream();
    watch.event("MODIFIED", &map("a", "21"));
    until_called(&calls, "~a@21").await;
    assert_eq!(calls.take(), ["-b@6", "~a@21"]);
}

#[tokio::test(start_paused = true)]
async fn newest_returns_an_error_until_an_own_write_or_the_watch_brings_a_decodable_state() {
    let (maps, calls, _server, watch) = start_synced("10", &[map("a", "5"), map("b", "6")]).await;
    let reader = maps.clone();
    let newest_failed = Arc::new(Mutex::new(Vec::new()));
    let recorded = newest_failed.clone();
    maps.on_undecodable(move |key, _| recorded.lock().unwrap().push(reader.newest(key).is_err()));
    watch.event("MODIFIED", &undecodable("a", "11"));
    watch.event("MODIFIED", &undecodable("b", "12"));
    until_called(&calls, "?b").await;
    let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
    assert!(maps.newest(&a).is_err() && maps.newest(&b).is_err() && maps.newest(&Key::new("n", "c")).is_ok());
    assert_eq!(*newest_failed.lock().unwrap(), [true, true], "newest called by the handler");

    let apply_own_write = |version| apply_response(&maps, &map("a", version), WRITE);
    apply_own_write("10");
    assert!(maps.newest(&a).is_err(), "an older response");
    apply_own_write("13");
    assert!(maps.newest(&a).unwrap().is_some(), "a newer state by an own write");
    watch.event("MODIFIED", &map("b", "14"));
    until_called(&calls, "~b@14").await;
    assert!(maps.newest(&b).unwrap().is_some(), "a newer state from the watch");
}

/// The key events of an informer as words: `a@5` with the version, `a@deleted`, or `a@?` if `a` cannot be decoded.
fn key_events(maps: &Informer<ConfigMap>) -> Calls {
    let calls = Calls::default();
    let recorded = calls.clone();
    maps.on_key_event(move |event| {
        let version = if event.is_deleted() { "deleted" } else { event.resource_version().unwrap_or("?") };
        recorded.0.lock().unwrap().push(format!("{}@{version}", event.key().name));
    });
    calls
}

/// Starts an informer that has only a handler for key events, and responds to its first list and watch.
async fn start_with_key_events(
    version: &str,
    items: &[Value],
) -> (Informer<ConfigMap>, Calls, Server, Stream) {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    let calls = key_events(&maps);
    cx.informers().start();
    let watch = server.sync(version, items).await;
    maps.synced().await;
    (maps, calls, server, watch)
}

/// A ConfigMap that cannot be decoded.
fn undecodable(name: &str, version: &str) -> Value {
    let mut map = map(name, version);
    map["data"] = json!("not a map");
    map
}

/// Values of the last argument of `apply_response`, `is_deletion`.
const WRITE: bool = false;
const DELETION: bool = true;

/// Applies an object in a response to a request of this process.
fn apply_response(maps: &Informer<ConfigMap>, object: &Value, is_deletion: bool) {
    let text = object.to_string();
    let raw = RawObject::scan_text(&text).unwrap();
    assert!(maps.0.cache.apply_response(&ResponseState::Object { raw: &raw, text: &text, is_deletion }));
}

/// The resourceVersion of the cached object.
fn version(maps: &Informer<ConfigMap>, key: &Key) -> Option<String> {
    maps.get(key).and_then(|map| map.metadata.resource_version.clone())
}

#[tokio::test(start_paused = true)]
async fn a_new_object_that_cannot_be_decoded_is_not_cached_but_its_key_is_listed() {
    let (maps, calls, mut server, watch) =
        start_with_key_events("10", &[map("a", "5"), undecodable("bad", "7")]).await;
    let key = Key::new("n", "bad");
    assert_eq!(calls.take(), ["a@5", "bad@?"]);
    assert!(!maps.contains(&key) && maps.get(&key).is_none() && maps.newest(&key).is_err());
    assert_eq!((maps.len(), maps.list().count(), maps.keys().len()), (1, 1, 2));

    watch.event("ERROR", &expired());
    let watch = server.sync("20", &[map("a", "5"), undecodable("bad", "7")]).await;
    watch.event("MODIFIED", &undecodable("bad", "22"));
    until_called(&calls, "bad@?").await;
    assert_eq!(calls.take(), ["bad@?"], "the list contained nothing new");
    assert!(maps.get(&key).is_none() && maps.newest(&key).is_err());
    watch.event("MODIFIED", &map("bad", "23"));
    until_called(&calls, "bad@23").await;
    assert!(maps.newest(&key).is_ok() && maps.get(&key).is_some(), "decodable again");
    watch.event("DELETED", &map("bad", "24"));
    until_called(&calls, "bad@deleted").await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_state_never_replaces_a_decodable_one() {
    let (maps, calls, _server, watch) = start_with_key_events("10", &[map("a", "5")]).await;
    let key = Key::new("n", "a");
    apply_response(&maps, &undecodable("a", "11"), WRITE);
    assert_eq!(version(&maps, &key).as_deref(), Some("5"), "an undecodable response changes nothing");
    assert_eq!(calls.take(), ["a@5"]);
    watch.event("MODIFIED", &undecodable("a", "11"));
    until_called(&calls, "a@?").await;
    apply_response(&maps, &undecodable("a", "11"), WRITE);
    assert!(maps.newest(&key).is_err(), "a late response changes nothing");
    assert_eq!(version(&maps, &key).as_deref(), Some("5"));
    apply_response(&maps, &map("a", "12"), WRITE);
    assert!(maps.newest(&key).is_ok());
    assert_eq!(version(&maps, &key).as_deref(), Some("12"));
    watch.event("MODIFIED", &undecodable("a", "13"));
    watch.event("ADDED", &map("b", "14"));
    until_called(&calls, "b@14").await;
    apply_response(&maps, &undecodable("a", "15"), DELETION);
    assert!(maps.newest(&key).unwrap().is_none(), "deleted by this process");
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_response_to_a_deletion_deletes_the_object() {
    let (maps, calls, _server, _watch) = start_with_key_events("10", &[undecodable("a", "5")]).await;
    apply_response(&maps, &undecodable("a", "11"), DELETION);
    assert_eq!(calls.take(), ["a@?", "a@deleted"]);
    let (maps, calls, _server, _watch) = start_synced("10", &[map("a", "5")]).await;
    apply_response(&maps, &undecodable("a", "11"), DELETION);
    assert_eq!(calls.take(), ["-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn handlers_and_indexes_added_after_the_sync_get_an_object_once_it_can_be_decoded() {
    let (maps, key_events, _server, watch) =
        start_with_key_events("10", &[map("a", "5"), undecodable("b", "6"), undecodable("c", "7")]).await;
    let calls = Calls::default();
    let recorded = calls.clone();
    maps.on(move |change| recorded.0.lock().unwrap().push(word(change)));
    let all = maps.index(|_| Some("all".into()));
    assert_eq!((calls.take(), all.get("all").count()), (vec!["+a@5".into()], 1));
    watch.event("MODIFIED", &map("a", "11"));
    watch.event("MODIFIED", &map("b", "12"));
    watch.event("DELETED", &undecodable("c", "13"));
    until_called(&key_events, "c@deleted").await;
    assert_eq!(calls.take(), ["~a@11", "+b@12"]);
    assert_eq!(all.get("all").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_an_undecodable_object_is_reported_once() {
    let (maps, calls, mut server, watch) = start_with_key_events("10", &[map("cached", "5")]).await;
    // With a handler of changes, states are decoded when they arrive.
    maps.on(|_| {});
    for name in ["cached", "never-cached", "not-listed"] {
        watch.event("MODIFIED", &undecodable(name, "11"));
    }
    watch.event("DELETED", &undecodable("cached", "12"));
    watch.event("DELETED", &undecodable("never-cached", "13"));
    watch.event("ERROR", &expired());
    server.sync("20", &[]).await;
    until_called(&calls, "not-listed@deleted").await;
    let changed = ["cached@5", "cached@?", "never-cached@?", "not-listed@?"];
    let deleted = ["cached@deleted", "never-cached@deleted", "not-listed@deleted"];
    assert_eq!(calls.take(), [&changed[..], &deleted[..]].concat());
    assert!(maps.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn handlers_added_after_the_sync_get_the_undecodable_objects() {
    let (maps, calls, _server, watch) =
        start_with_key_events("10", &[map("a", "5"), map("b", "6"), undecodable("c", "7")]).await;
    watch.event("MODIFIED", &undecodable("b", "11"));
    until_called(&calls, "b@?").await;
    let mut words = key_events(&maps).take();
    words.sort();
    assert_eq!(words, ["a@5", "b@6", "b@?", "c@?"]);
    let calls = Calls::default();
    let recorded = calls.clone();
    maps.on_undecodable(move |key, _| recorded.0.lock().unwrap().push(key.name.clone()));
    let mut names = calls.take();
    names.sort();
    assert_eq!(names, ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn objects_that_cannot_be_decoded_are_counted_until_they_are_decodable_or_gone() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    let (calls, registry) = (Calls::by(&maps), cx.metrics().clone());
    let count = || {
        let mut families = registry.gather().into_iter();
        let family = families.find(|family| family.name() == "reflector_undecodable_objects");
        family.map(|family| family.get_metric()[0].get_gauge().get_value())
    };
    cx.informers().start();
    let bad = ["a", "b", "c", "d"].map(|name| undecodable(name, "5"));
    let watch = server.sync("10", &bad).await;
    maps.synced().await;
    assert_eq!(count(), Some(4.0), "listed");
    watch.event("MODIFIED", &undecodable("a", "11"));
    watch.event("MODIFIED", &map("b", "12"));
    until_called(&calls, "+b@12").await;
    assert_eq!(count(), Some(3.0), "a newer state can be decoded");
    watch.event("DELETED", &undecodable("c", "13"));
    watch.event("MODIFIED", &map("b", "14"));
    until_called(&calls, "~b@14").await;
    assert_eq!(count(), Some(2.0), "deleted");
    apply_response(&maps, &map("d", "15"), WRITE);
    assert_eq!(count(), Some(1.0), "written by this process");
    watch.event("ERROR", &expired());
    let watch = server.sync("20", &[map("b", "14"), map("d", "15"), map("e", "16")]).await;
    until_called(&calls, "+e@16").await;
    watch.event("MODIFIED", &map("e", "21"));
    until_called(&calls, "~e@21").await;
    assert_eq!(count(), Some(0.0), "not listed any more");
    drop((watch, maps, cx));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(count(), None, "removed with the informer");
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_a_list_deletes_nothing() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.event("ERROR", &expired());
    calls.take();
    for response in [
        json!({"kind": "Status", "metadata": {}, "status": "Success"}),
        json!({"items": []}),
        json!({"metadata": {"resourceVersion": "12"}, "items": {}}),
        json!([]),
    ] {
        server.list().await.respond(200, response);
    }
    for malformed_items in [
        "",
        r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"5"x}}]}"#,
        r#"{"metadata":{"name":"z"},{"metadata":{"name":"a"}}]]}"#,
    ] {
        let text = format!(r#"{{"metadata": {{"resourceVersion": "12"}}, "items": [{malformed_items}"#);
        server.list().await.respond(200, text.as_str());
    }
    let _watch = server.sync("13", &[map("a", "11")]).await;
    until_called(&calls, "~a@11").await;
    assert_eq!(calls.take(), ["~a@11"]);
}

#[tokio::test(start_paused = true)]
async fn handlers_are_called_if_a_restored_server_lists_the_cached_state_again() {
    let (maps, calls, mut server, watch) = start_with_key_events("10", &[map("a", "5")]).await;
    watch.event("MODIFIED", &undecodable("a", "11"));
    until_called(&calls, "a@?").await;
    calls.take();
    watch.cut();
    server.version_check().await.items("9", &[]);
    let _watch = server.sync("9", &[map("a", "5")]).await; // the server was restored from a backup
    until_called(&calls, "a@5").await;
    assert!(maps.newest(&Key::new("n", "a")).is_ok());
}

/// A ConfigMap whose decoding calls the hook of this thread first.
#[derive(Clone, Debug)]
struct HookedConfigMap(ConfigMap);

thread_local! {
    static HOOK: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

impl<'de> serde::Deserialize<'de> for HookedConfigMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if let Some(hook) = HOOK.take() {
            hook();
        }
        ConfigMap::deserialize(deserializer).map(Self)
    }
}

impl kube::Resource for HookedConfigMap {
    type DynamicType = ();
    type Scope = kube::core::NamespaceResourceScope;

    fn kind((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::kind(&())
    }

    fn group((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::group(&())
    }

    fn version((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::version(&())
    }

    fn plural((): &()) -> std::borrow::Cow<'_, str> {
        ConfigMap::plural(&())
    }

    fn meta(&self) -> &kube::core::ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
        &mut self.0.metadata
    }
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_state_is_ignored_if_a_newer_own_write_arrives_while_it_is_decoded() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<HookedConfigMap> = cx.get();
    cx.informers().start();
    let _watch = server.sync("10", &[map("a", "5")]).await;
    maps.synced().await;
    let writer = maps.clone();
    HOOK.set(Some(Box::new(move || {
        let text = map("a", "12").to_string();
        let raw = RawObject::scan_text(&text).unwrap();
        writer.0.cache.apply_response(&ResponseState::Object { raw: &raw, text: &text, is_deletion: false });
    })));
    let text = undecodable("a", "11").to_string();
    maps.0.cache.apply_watched(&RawObject::scan_text(&text).unwrap());
    let newest = maps.newest(&Key::new("n", "a")).unwrap().unwrap();
    assert_eq!(newest.0.metadata.resource_version.as_deref(), Some("12"));
}
