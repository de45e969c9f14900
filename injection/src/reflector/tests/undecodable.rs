//! Objects that cannot be decoded, and answers that are not lists.

use super::*;
use crate::{client::Answered, object::RawObject};

#[tokio::test(start_paused = true)]
async fn an_undecodable_item_does_not_fail_the_others() {
    let (maps, calls, mut server) = started();
    let mut bad = map("bad", "7");
    bad["data"] = json!("not a map");
    let nameless = json!({"metadata": 3});
    let watch = server.sync("10", &[map("a", "5"), bad.clone(), nameless.clone(), map("b", "6")]).await;
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5", "?bad", "+b@6"]);

    let mut worse = map("a", "11");
    worse["data"] = json!(3);
    watch.event("MODIFIED", &worse);
    watch.event("MODIFIED", &bad);
    watch.event("MODIFIED", &nameless);
    watch.event("ADDED", &map("c", "12"));
    until_called(&calls, "+c@12").await;
    assert_eq!(calls.take(), ["?a", "+c@12"], "one version is calls once");
    let held = maps.get(&Key::new("n", "a")).unwrap();
    assert_eq!(held.metadata.resource_version.as_deref(), Some("5"), "what could be decoded is held on");

    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    server.list().await.items("20", &[worse, map("c", "12")]);
    let watch = server.watch("20").await.stream();
    watch.event("MODIFIED", &map("a", "21"));
    until_called(&calls, "~a@21").await;
    assert_eq!(calls.take(), ["-b@6", "~a@21"]);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_state_is_known_until_an_own_write_or_the_watch_repairs_it() {
    let (maps, calls, mut server, watch) = synced("10", &[map("a", "5"), map("b", "6")]).await;
    let asking = maps.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let answers = seen.clone();
    maps.on_undecodable(move |key, _| answers.lock().unwrap().push(asking.newest(key).is_err()));
    for (name, version) in [("a", "11"), ("b", "12")] {
        let mut bad = map(name, version);
        bad["data"] = json!("not a map");
        watch.event("MODIFIED", &bad);
    }
    until_called(&calls, "?b").await;
    let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
    assert!(maps.newest(&a).is_err() && maps.newest(&b).is_err() && maps.newest(&Key::new("n", "c")).is_ok());
    assert_eq!(*seen.lock().unwrap(), [true, true], "handlers may ask");

    let wrote = |version| answer(&maps, &map("a", version), false);
    wrote("10");
    assert!(maps.newest(&a).is_err(), "an answer from before");
    wrote("13");
    assert!(maps.newest(&a).unwrap().is_some(), "repaired by this process");
    watch.event("MODIFIED", &map("b", "14"));
    until_called(&calls, "~b@14").await;
    assert!(maps.newest(&b).unwrap().is_some(), "repaired by somebody");
    watch.cut();
    server.look().await.refuse();
}

/// The key events of an informer, as words such as `a@5`.
fn key_events(maps: &Informer<ConfigMap>) -> Calls {
    let calls = Calls::default();
    let words = calls.clone();
    maps.on_key_event(move |event| {
        let version = if event.is_deleted() { "deleted" } else { event.resource_version().unwrap_or("?") };
        words.0.lock().unwrap().push(format!("{}@{version}", event.key().name));
    });
    calls
}

/// Starts an informer that has only a handler for key events, and answers its list and watch.
async fn with_key_events(version: &str, items: &[Value]) -> (Informer<ConfigMap>, Calls, Server, Stream) {
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
fn bad(name: &str, version: &str) -> Value {
    let mut map = map(name, version);
    map["data"] = json!("not a map");
    map
}

fn answer(maps: &Informer<ConfigMap>, object: &Value, deletion: bool) {
    let text = object.to_string();
    let raw = RawObject::scan_text(&text).unwrap();
    assert!(maps.0.cache.apply_answer(&Answered::Object { raw: &raw, text: &text, deletion }));
}

fn version(maps: &Informer<ConfigMap>, key: &Key) -> Option<String> {
    maps.get(key).and_then(|map| map.metadata.resource_version.clone())
}

#[tokio::test(start_paused = true)]
async fn a_new_object_that_cannot_be_decoded_is_not_cached_but_known() {
    let (maps, calls, mut server, watch) = with_key_events("10", &[map("a", "5"), bad("bad", "7")]).await;
    let key = Key::new("n", "bad");
    assert_eq!(calls.take(), ["a@5", "bad@?"]);
    assert!(!maps.contains(&key) && maps.get(&key).is_none() && maps.newest(&key).is_err());
    assert_eq!((maps.len(), maps.list().count(), maps.keys().len()), (1, 1, 2));

    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    let watch = server.sync("20", &[map("a", "5"), bad("bad", "7")]).await;
    watch.event("MODIFIED", &bad("bad", "22"));
    until_called(&calls, "bad@?").await;
    assert_eq!(calls.take(), ["bad@?"], "the list held nothing new");
    assert!(maps.get(&key).is_none() && maps.newest(&key).is_err());
    watch.event("MODIFIED", &map("bad", "23"));
    until_called(&calls, "bad@23").await;
    assert!(maps.newest(&key).is_ok() && maps.get(&key).is_some(), "repaired");
    watch.event("DELETED", &map("bad", "24"));
    until_called(&calls, "bad@deleted").await;
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_state_never_replaces_a_decodable_one() {
    let (maps, calls, _server, watch) = with_key_events("10", &[map("a", "5")]).await;
    let key = Key::new("n", "a");
    answer(&maps, &bad("a", "11"), false);
    assert_eq!(version(&maps, &key).as_deref(), Some("5"), "an answer to this process");
    assert_eq!(calls.take(), ["a@5"]);
    watch.event("MODIFIED", &bad("a", "11"));
    until_called(&calls, "a@?").await;
    answer(&maps, &bad("a", "11"), false);
    assert!(maps.newest(&key).is_err(), "the answer, late");
    assert_eq!(version(&maps, &key).as_deref(), Some("5"));
    answer(&maps, &map("a", "12"), false);
    assert!(maps.newest(&key).is_ok());
    assert_eq!(version(&maps, &key).as_deref(), Some("12"));
    watch.event("MODIFIED", &bad("a", "13"));
    watch.event("ADDED", &map("b", "14"));
    until_called(&calls, "b@14").await;
    answer(&maps, &bad("a", "15"), true);
    assert!(maps.newest(&key).unwrap().is_none(), "this process deleted it");
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_deletion_need_not_be_decodable() {
    let (maps, calls, _server, _watch) = with_key_events("10", &[bad("a", "5")]).await;
    answer(&maps, &bad("a", "11"), true);
    assert_eq!(calls.take(), ["a@?", "a@deleted"]);
    let (maps, calls, _server, _watch) = synced("10", &[map("a", "5")]).await;
    answer(&maps, &bad("a", "11"), true);
    assert_eq!(calls.take(), ["-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn late_handlers_get_an_object_once_it_can_be_decoded() {
    let (maps, touched, _server, watch) =
        with_key_events("10", &[map("a", "5"), bad("b", "6"), bad("c", "7")]).await;
    let calls = Calls::default();
    let words = calls.clone();
    maps.on(move |change| words.0.lock().unwrap().push(word(change)));
    let all = maps.index(|_| Some("all".into()));
    assert_eq!((calls.take(), all.get("all").count()), (vec!["+a@5".into()], 1));
    watch.event("MODIFIED", &map("a", "11"));
    watch.event("MODIFIED", &map("b", "12"));
    watch.event("DELETED", &bad("c", "13"));
    until_called(&touched, "c@deleted").await;
    assert_eq!(calls.take(), ["~a@11", "+b@12"]);
    assert_eq!(all.get("all").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_deletion_of_an_undecodable_object_is_reported_once() {
    let (maps, calls, mut server, watch) = with_key_events("10", &[map("held", "5")]).await;
    maps.on(|_| {});
    for name in ["held", "never", "relisted"] {
        watch.event("MODIFIED", &bad(name, "11"));
    }
    watch.event("DELETED", &bad("held", "12"));
    watch.event("DELETED", &bad("never", "13"));
    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    server.sync("20", &[]).await;
    until_called(&calls, "relisted@deleted").await;
    let gone = ["held@deleted", "never@deleted", "relisted@deleted"];
    assert_eq!(calls.take(), [&["held@5", "held@?", "never@?", "relisted@?"], &gone[..]].concat());
    assert!(maps.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn late_handlers_get_the_undecodable_objects() {
    let (maps, calls, _server, watch) =
        with_key_events("10", &[map("a", "5"), map("b", "6"), bad("c", "7")]).await;
    watch.event("MODIFIED", &bad("b", "11"));
    until_called(&calls, "b@?").await;
    let late = key_events(&maps);
    let mut words = late.take();
    words.sort();
    assert_eq!(words, ["a@5", "b@6", "b@?", "c@?"]);
    let undecodable = Calls::default();
    let names = undecodable.clone();
    maps.on_undecodable(move |key, _| names.0.lock().unwrap().push(key.name.clone()));
    let mut names = undecodable.take();
    names.sort();
    assert_eq!(names, ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_a_list_deletes_nothing() {
    let (_maps, calls, mut server, watch) = synced("10", &[map("a", "5")]).await;
    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    calls.take();
    for answer in [
        json!({"kind": "Status", "metadata": {}, "status": "Success"}),
        json!({"items": []}),
        json!({"metadata": {"resourceVersion": "12"}, "items": {}}),
        json!([]),
    ] {
        server.list().await.answer(200, answer);
    }
    for malformed in [
        "",
        r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"5"x}}]}"#,
        r#"{"metadata":{"name":"z"},{"metadata":{"name":"a"}}]]}"#,
    ] {
        let text = format!(r#"{{"metadata": {{"resourceVersion": "12"}}, "items": [{malformed}"#);
        server.list().await.answer(200, text.as_str());
    }
    let _watch = server.sync("13", &[map("a", "11")]).await;
    until_called(&calls, "~a@11").await;
    assert_eq!(calls.take(), ["~a@11"]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_woken_when_a_list_shows_the_cached_state_instead_of_an_undecodable_one() {
    let (maps, calls, mut server, watch) = with_key_events("10", &[map("a", "5")]).await;
    watch.event("MODIFIED", &bad("a", "11"));
    until_called(&calls, "a@?").await;
    calls.take();
    watch.cut();
    server.look().await.items("9", &[]);
    let _watch = server.sync("9", &[map("a", "5")]).await; // the server was restored from a backup
    until_called(&calls, "a@5").await;
    assert!(maps.newest(&Key::new("n", "a")).is_ok());
}

/// A ConfigMap whose decoding runs a hook first.
#[derive(Clone, Debug)]
struct Hooked(ConfigMap);

thread_local! {
    static HOOK: std::cell::RefCell<Option<Box<dyn FnOnce()>>> = const { std::cell::RefCell::new(None) };
}

impl<'de> serde::Deserialize<'de> for Hooked {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if let Some(hook) = HOOK.take() {
            hook();
        }
        ConfigMap::deserialize(deserializer).map(Self)
    }
}

impl kube::Resource for Hooked {
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
    let maps: Informer<Hooked> = cx.get();
    cx.informers().start();
    let _watch = server.sync("10", &[map("a", "5")]).await;
    maps.synced().await;
    let writer = maps.clone();
    HOOK.set(Some(Box::new(move || {
        let text = map("a", "12").to_string();
        let raw = RawObject::scan_text(&text).unwrap();
        writer.0.cache.apply_answer(&Answered::Object { raw: &raw, text: &text, deletion: false });
    })));
    let text = bad("a", "11").to_string();
    maps.0.cache.apply_watched(&RawObject::scan_text(&text).unwrap());
    let newest = maps.newest(&Key::new("n", "a")).unwrap().unwrap();
    assert_eq!(newest.0.metadata.resource_version.as_deref(), Some("12"));
}
