//! Objects that cannot be decoded, when each is decoded, and answers that are no lists.

use super::*;
use crate::intake::AnswerTo;

#[tokio::test(start_paused = true)]
async fn an_item_that_cannot_be_decoded_fails_no_other() {
    let (maps, told, mut server) = started();
    let mut bad = map("bad", "7");
    bad["data"] = json!("not a map");
    let nameless = json!({"metadata": 3});
    let watch = server.sync("10", &[map("a", "5"), bad.clone(), nameless.clone(), map("b", "6")]).await;
    maps.synced().await;
    assert_eq!(told.take(), ["+a@5", "?bad", "+b@6"]);

    let mut worse = map("a", "11");
    worse["data"] = json!(3);
    watch.event("MODIFIED", &worse);
    watch.event("MODIFIED", &bad);
    watch.event("MODIFIED", &nameless);
    watch.event("ADDED", &map("c", "12"));
    until_told(&told, "+c@12").await;
    assert_eq!(told.take(), ["?a", "+c@12"], "one version is told once");
    let held = maps.get(&Key::new("n", "a")).unwrap();
    assert_eq!(held.metadata.resource_version.as_deref(), Some("5"), "what could be decoded is held on");

    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    server.list().await.items("20", &[worse, map("c", "12")]);
    let watch = server.watch("20").await.stream();
    watch.event("MODIFIED", &map("a", "21"));
    until_told(&told, "~a@21").await;
    assert_eq!(told.take(), ["-b@6", "~a@21"]);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_is_known_until_an_own_write_or_the_watch_repairs_it() {
    let (maps, told, mut server, watch) = synced("10", &[map("a", "5"), map("b", "6")]).await;
    let asking = maps.clone();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let answers = seen.clone();
    maps.on_undecodable(move |key, _| answers.lock().unwrap().push(asking.newest(key).is_err()));
    for (name, version) in [("a", "11"), ("b", "12")] {
        let mut bad = map(name, version);
        bad["data"] = json!("not a map");
        watch.event("MODIFIED", &bad);
    }
    until_told(&told, "?b").await;
    let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
    assert!(maps.newest(&a).is_err() && maps.newest(&b).is_err() && maps.newest(&Key::new("n", "c")).is_ok());
    assert_eq!(*seen.lock().unwrap(), [true, true], "handlers may ask");

    let wrote = |version| {
        let text = map("a", version).to_string();
        maps.0.cache.wrote(&Raw::read(&text).unwrap(), &text, AnswerTo::Other);
    };
    wrote("10");
    assert!(maps.newest(&a).is_err(), "an answer from before");
    wrote("13");
    assert!(maps.newest(&a).unwrap().is_some(), "repaired by this process");
    watch.event("MODIFIED", &map("b", "14"));
    until_told(&told, "~b@14").await;
    assert!(maps.newest(&b).unwrap().is_some(), "repaired by somebody");
    watch.cut();
    server.look().await.refuse();
}

/// What those are told who do not ask for objects, in words such as `a@5`.
fn touches(maps: &Informer<ConfigMap>) -> Told {
    let told = Told::default();
    let words = told.clone();
    maps.on_touched(move |touched| {
        let version = if touched.is_gone() { "gone" } else { touched.resource_version().unwrap_or("?") };
        words.0.lock().unwrap().push(format!("{}@{version}", touched.key().name));
    });
    told
}

/// One of which nobody asks for objects, with its list read.
async fn untyped(version: &str, items: &[Value]) -> (Informer<ConfigMap>, Told, Server, Stream) {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    let told = touches(&maps);
    cx.informers().start();
    let watch = server.sync(version, items).await;
    maps.synced().await;
    (maps, told, server, watch)
}

/// One that cannot be decoded.
fn bad(name: &str, version: &str) -> Value {
    let mut map = map(name, version);
    map["data"] = json!("not a map");
    map
}

fn answered(maps: &Informer<ConfigMap>, object: &Value, request: AnswerTo) {
    let text = object.to_string();
    assert!(maps.0.cache.wrote(&Raw::read(&text).unwrap(), &text, request));
}

fn version(maps: &Informer<ConfigMap>, key: &Key) -> Option<String> {
    maps.get(key).and_then(|map| map.metadata.resource_version.clone())
}

#[tokio::test(start_paused = true)]
async fn what_appears_is_decoded_when_it_is_read_if_nobody_asked_for_objects() {
    let (maps, told, mut server, watch) = untyped("10", &[map("a", "5"), bad("bad", "7")]).await;
    let key = Key::new("n", "bad");
    assert_eq!(told.take(), ["a@5", "bad@7"]);
    assert!(maps.contains(&key) && maps.get(&key).is_none() && maps.newest(&key).is_err());
    assert_eq!((maps.len(), maps.list().count(), maps.keys().len()), (2, 1, 2));

    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    let watch = server.sync("20", &[map("a", "5"), bad("bad", "7")]).await;
    watch.event("MODIFIED", &bad("bad", "22"));
    until_told(&told, "bad@?").await;
    assert_eq!(told.take(), ["bad@?"], "the list held nothing new");
    assert!(maps.get(&key).is_none() && maps.newest(&key).is_err());
    watch.event("MODIFIED", &map("bad", "23"));
    until_told(&told, "bad@23").await;
    assert!(maps.newest(&key).is_ok() && maps.get(&key).is_some(), "repaired");
    watch.event("DELETED", &map("bad", "24"));
    until_told(&told, "bad@gone").await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_decoded_replaces_nothing_that_can_wherever_it_comes_from() {
    let (maps, told, _server, watch) = untyped("10", &[map("a", "5")]).await;
    let key = Key::new("n", "a");
    answered(&maps, &bad("a", "11"), AnswerTo::Other);
    assert_eq!(version(&maps, &key).as_deref(), Some("5"), "an answer to this process");
    assert_eq!(told.take(), ["a@5"]);
    watch.event("MODIFIED", &bad("a", "11"));
    until_told(&told, "a@?").await;
    answered(&maps, &bad("a", "11"), AnswerTo::Other);
    assert!(maps.newest(&key).is_err(), "the answer, late");
    assert_eq!(version(&maps, &key).as_deref(), Some("5"));
    answered(&maps, &map("a", "12"), AnswerTo::Other);
    assert!(maps.newest(&key).is_ok());
    assert_eq!(version(&maps, &key).as_deref(), Some("12"));
    watch.event("MODIFIED", &bad("a", "13"));
    watch.event("ADDED", &map("b", "14"));
    until_told(&told, "b@14").await;
    answered(&maps, &bad("a", "15"), AnswerTo::Deletion);
    assert!(maps.newest(&key).unwrap().is_none(), "this process deleted it");
}

#[tokio::test(start_paused = true)]
async fn what_a_deletion_answers_need_not_be_decoded() {
    let (maps, told, _server, _watch) = untyped("10", &[bad("a", "5")]).await;
    answered(&maps, &bad("a", "11"), AnswerTo::Deletion);
    assert_eq!(told.take(), ["a@5", "a@gone"]);
    let (maps, told, _server, _watch) = synced("10", &[map("a", "5")]).await;
    answered(&maps, &bad("a", "11"), AnswerTo::Deletion);
    assert_eq!(told.take(), ["-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_objects_late_is_told_of_one_when_it_can_be_decoded() {
    let (maps, touched, _server, watch) = untyped("10", &[map("a", "5"), bad("b", "6"), bad("c", "7")]).await;
    let told = Told::default();
    let words = told.clone();
    maps.on(move |change| words.0.lock().unwrap().push(word(change)));
    let all = maps.index(|_| Some("all".into()));
    assert_eq!((told.take(), all.get("all").count()), (vec!["+a@5".into()], 1));
    watch.event("MODIFIED", &map("a", "11"));
    watch.event("MODIFIED", &map("b", "12"));
    watch.event("DELETED", &bad("c", "13"));
    until_told(&touched, "c@gone").await;
    assert_eq!(told.take(), ["~a@11", "+b@12"]);
    assert_eq!(all.get("all").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn once_objects_are_asked_for_what_cannot_be_decoded_is_not_held() {
    type Ask = fn(&Informer<ConfigMap>);
    let asks: [Ask; 3] = [
        |maps| maps.on(|_| {}),
        |maps| drop(maps.index(|_| None::<String>)),
        |maps| maps.on_undecodable(|_, _| {}),
    ];
    for ask in asks {
        let (maps, told, _server, watch) = untyped("10", &[]).await;
        ask(&maps);
        watch.event("ADDED", &bad("a", "11"));
        until_told(&told, "a@?").await;
        assert!(!maps.contains(&Key::new("n", "a")));
    }
}

#[tokio::test(start_paused = true)]
async fn that_something_is_gone_which_could_not_be_decoded_is_told_once() {
    let (maps, told, mut server, watch) = untyped("10", &[map("held", "5")]).await;
    maps.on(|_| {});
    for name in ["held", "never", "relisted"] {
        watch.event("MODIFIED", &bad(name, "11"));
    }
    watch.event("DELETED", &bad("held", "12"));
    watch.event("DELETED", &bad("never", "13"));
    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    server.sync("20", &[]).await;
    until_told(&told, "relisted@gone").await;
    let gone = ["held@gone", "never@gone", "relisted@gone"];
    assert_eq!(told.take(), [&["held@5", "held@?", "never@?", "relisted@?"], &gone[..]].concat());
    assert!(maps.keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn whoever_comes_late_is_told_of_what_cannot_be_decoded() {
    let (maps, told, _server, watch) = untyped("10", &[map("a", "5"), map("b", "6"), bad("c", "7")]).await;
    watch.event("MODIFIED", &bad("b", "11"));
    until_told(&told, "b@?").await;
    let late = touches(&maps);
    let mut words = late.take();
    words.sort();
    assert_eq!(words, ["a@5", "b@6", "b@?", "c@7"]);
    let undecodable = Told::default();
    let names = undecodable.clone();
    maps.on_undecodable(move |key, _| names.0.lock().unwrap().push(key.name.clone()));
    assert_eq!(undecodable.take(), ["b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_no_list_deletes_nothing() {
    let (_maps, told, mut server, watch) = synced("10", &[map("a", "5")]).await;
    watch.event("ERROR", &json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410}));
    told.take();
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
    until_told(&told, "~a@11").await;
    assert_eq!(told.take(), ["~a@11"]);
}
