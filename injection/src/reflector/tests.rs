use std::{sync::Mutex, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::Key;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::{
    Change, Context, Informer, InformerHandle, InformerState, Metadata, select,
    testing::{Log, Server, Stream, map, server},
};

mod namespaces;
mod refused;
mod reread;
mod undecodable;

/// The calls of handlers as words: `+a@5`, `~a@6` and `-a@6` if `a` was added, updated or deleted, with its version,
/// and `?a` if it could not be decoded.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn by(informer: &Informer<ConfigMap>) -> Self {
        let calls = Self::default();
        let recorded = calls.clone();
        informer.on(move |change| recorded.0.lock().unwrap().push(word(change)));
        let recorded = calls.clone();
        informer.on_undecodable(move |key, _| recorded.0.lock().unwrap().push(format!("?{}", key.name)));
        calls
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn word(change: &Change<ConfigMap>) -> String {
    let sign = match change {
        Change::Added(_) => '+',
        Change::Updated { .. } => '~',
        Change::Deleted { .. } => '-',
    };
    let meta = &change.latest().metadata;
    format!("{sign}{}@{}", meta.name.as_deref().unwrap(), meta.resource_version.as_deref().unwrap())
}

/// Starts an informer of all ConfigMaps. The test responds to its requests.
fn start() -> (Informer<ConfigMap>, Calls, Server) {
    let (client, server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    let calls = Calls::by(&maps);
    cx.informers().start();
    (maps, calls, server)
}

/// Starts an informer of all ConfigMaps and responds to its first list and watch.
async fn start_synced(version: &str, items: &[Value]) -> (Informer<ConfigMap>, Calls, Server, Stream) {
    let (maps, calls, mut server) = start();
    let watch = server.sync(version, items).await;
    maps.synced().await;
    calls.take();
    (maps, calls, server, watch)
}

/// The object of an `ERROR` event of a watch whose version has been compacted.
fn expired() -> Value {
    json!({"kind": "Status", "message": "too old", "reason": "Expired", "code": 410})
}

async fn until_called(calls: &Calls, expected: &str) {
    for _ in 0..100_000 {
        if calls.0.lock().unwrap().iter().any(|word| word == expected) {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{expected} was not reported, but {:?}", calls.take());
}

#[tokio::test(start_paused = true)]
async fn a_list_is_read_in_pages_and_watched_from_the_version_of_the_first_page() {
    let (maps, calls, mut server) = start();
    let first = server.list().await;
    assert_eq!((first.path.as_str(), first.query.get("continue")), ("/api/v1/configmaps", None));
    first.page("10", "more", &[map("a", "5")]);
    let second = server.list().await;
    assert_eq!(second.query["continue"], "more");
    assert!(matches!(maps.state(), InformerState::Waiting { .. }), "the list is not complete");
    second.items("17", &[map("b", "6")]);
    let _watch = server.watch("10").await.stream();
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5", "+b@6"]);
    assert!(maps.bytes() > 40 && maps.len() == 2);
}

/// Some aggregated API servers tell no resourceVersion, or null.
#[tokio::test(start_paused = true)]
async fn a_list_without_a_version_is_repeated_after_its_watch_so_that_deletions_are_found() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps: Informer<ConfigMap> = cx.get();
    cx.informers().start();
    server.list().await.respond(200, json!({"metadata": {"resourceVersion": null}, "items": [map("a", "")]}));
    let watch = server.watch("").await.stream();
    maps.synced().await;
    assert_eq!(maps.len(), 1);
    drop(watch);
    server.list().await.respond(200, json!({"metadata": {}, "items": []}));
    let _watch = server.watch("").await.stream();
    assert_eq!(maps.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_resumes_after_the_last_version() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.event("MODIFIED", &map("a", "11"));
    watch.chunk(r#"{"type":"MODIFIED","object":{"met"#);
    until_called(&calls, "~a@11").await;
    watch.cut();
    server.version_check().await.items("30", &[]);
    let watch = server.watch("11").await.stream();
    watch.event("BOOKMARK", &bookmark("25"));
    drop(watch);
    let watch = server.watch("25").await.stream();
    watch.event("DELETED", &map("a", "26"));
    until_called(&calls, "-a@11").await;
    assert_eq!(calls.take(), ["~a@11", "-a@11"], "the deletion is reported with the last cached state");
}

#[tokio::test(start_paused = true)]
async fn an_event_split_into_chunks_is_one_event() {
    let (_maps, calls, _server, watch) = start_synced("10", &[]).await;
    let lines = format!(
        "{}\n{}\n",
        json!({"type": "ADDED", "object": map("ä", "11")}),
        json!({"object": map("b", "12"), "type": "ADDED"})
    );
    let bytes = lines.as_bytes();
    bytes.chunks(1).for_each(|piece| watch.bytes(piece));
    watch.event("ADDED", &map("c", "13"));
    until_called(&calls, "+c@13").await;
    assert_eq!(calls.take(), ["+ä@11", "+b@12", "+c@13"]);
}

#[tokio::test(start_paused = true)]
async fn deletions_during_a_watch_gap_are_reported_with_the_last_object() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5"), map("b", "6")]).await;
    watch.event("MODIFIED", &map("a", "11"));
    watch.event("ERROR", &expired());
    let before = Instant::now();
    server.list().await.items("50", &[map("b", "6"), map("c", "40")]);
    assert_eq!(before.elapsed(), Duration::ZERO, "no backoff after a first 410");
    let _watch = server.watch("50").await.stream();
    assert_eq!(calls.take(), ["~a@11", "+c@40", "-a@11"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_continue_token_expires_is_read_again_without_pages() {
    let (maps, calls, mut server) = start();
    server.list().await.page("10", "more", &[map("a", "5"), map("b", "6")]);
    server.list().await.fail(410, "the provided continue parameter is too old");
    let whole_list = server.whole_list().await;
    assert_eq!(whole_list.query.get("continue"), None);
    whole_list.fail(500, "too much at once");
    server.list().await.page("15", "more", &[map("b", "6")]);
    server.list().await.fail(410, "the provided continue parameter is too old");
    server.whole_list().await.items("20", &[map("b", "6")]);
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5", "+b@6", "-a@5"]);
    let watch = server.watch("20").await.stream();
    watch.event("ERROR", &expired());
    server.sync("30", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_version_after_an_outage_leads_to_a_list_without_backoff() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    drop(watch);
    for _ in 0..8 {
        server.version_check().await.refuse();
    }
    server.version_check().await.items("50", &[map("b", "40")]);
    server.watch("10").await.fail(410, "too old");
    let before = Instant::now();
    server.list().await.items("50", &[map("b", "40")]);
    assert_eq!(before.elapsed(), Duration::ZERO);
    let _watch = server.watch("50").await.stream();
    assert_eq!(calls.take(), ["+b@40", "-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn repeated_410_backs_off_and_is_logged() {
    let log = Log::start();
    let (_maps, _calls, mut server) = start();
    let before = Instant::now();
    for round in 0..8 {
        server.list().await.items("10", &[]);
        let has_warned = !log.lines("WARN").is_empty();
        assert_eq!(has_warned, round > 1, "round {round}: expected warnings from the second 410 on");
        server.watch("10").await.fail(410, "too old");
    }
    assert!(before.elapsed() > Duration::from_secs(20), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_error_in_a_watch_leads_to_a_new_list() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.event(
        "ERROR",
        &json!({"kind": "Status", "message": "etcd is upset", "reason": "Internal", "code": 500}),
    );
    server.list().await.items("50", &[]);
    let _watch = server.watch("50").await.stream();
    assert_eq!(calls.take(), ["-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn an_informer_lists_again_if_it_is_asked_to_although_its_watch_is_open() {
    let (maps, calls, mut server, _watch) = start_synced("10", &[map("a", "5")]).await;
    let reached = maps.0.reached(0, "50");
    maps.0.list_again(0);
    server.list().await.items("50", &[]);
    reached.await;
    let _next_watch = server.watch("50").await.stream();
    assert_eq!(calls.take(), ["-a@5"]);
}

#[tokio::test(start_paused = true)]
async fn an_informer_keeps_retrying_during_an_outage() {
    let (maps, _calls, mut server, watch) = start_synced("10", &[]).await;
    drop(watch);
    let before = Instant::now();
    while before.elapsed() < Duration::from_secs(3600) {
        server.next().await.refuse();
        let InformerState::Synced { last_attempt } = maps.state() else { panic!("{:?}", maps.state()) };
        assert!(Instant::now() - last_attempt < Duration::from_secs(60), "{:?}", before.elapsed());
    }
}

/// The object of a `BOOKMARK` event.
fn bookmark(version: &str) -> Value {
    json!({"kind": "ConfigMap", "metadata": {"resourceVersion": version}})
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_events_is_closed_and_resumed() {
    let (maps, calls, mut server, watch) = start_synced("10", &[]).await;
    watch.event("BOOKMARK", &bookmark("10"));
    let before = Instant::now();
    let version_check = server.version_check().await;
    assert_eq!(before.elapsed(), MAX_SILENCE);
    version_check.items("10", &[]);
    let new_watch = server.watch("10").await.stream();
    watch.event("ADDED", &map("unseen", "11"));
    new_watch.event("ADDED", &map("a", "11"));
    until_called(&calls, "+a@11").await;
    assert_eq!((calls.take(), maps.len()), (vec!["+a@11".into()], 1));
}

#[tokio::test(start_paused = true)]
async fn quiet_watches_without_bookmarks_stay_open_and_cause_no_list() {
    let (_maps, calls, mut server, mut watch) = start_synced("10", &[]).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(WATCH_SECONDS.end)).await;
        drop(watch);
        server.version_check().await.items("10", &[]);
        watch = server.watch("10").await.stream();
    }
    watch.event("ADDED", &map("a", "11"));
    until_called(&calls, "+a@11").await;
}

#[tokio::test(start_paused = true)]
async fn watches_without_events_lead_to_a_list_and_a_warning() {
    let log = Log::start();
    let (_maps, calls, mut server, watch) = start_synced("10", &[]).await;
    let _silent_watch = watch;
    server.version_check().await.items("11", &[]);
    drop(server.watch("10").await.stream());
    server.version_check().await.items("11", &[]);
    server.watch("10").await.respond(200, "<html>\n");
    server.list().await.items("11", &[map("a", "11")]);
    let watch = server.watch("11").await.stream();
    until_called(&calls, "+a@11").await;
    assert_eq!(log.lines("3 watches in a row sent no event").len(), 1, "{:?}", log.lines(""));
    watch.cut();
    server.version_check().await.items("11", &[]);
    let _watch = server.watch("11").await.stream();
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_after_an_event_begin_a_second_apart() {
    let (_maps, calls, mut server, mut watch) = start_synced("10", &[]).await;
    let start = Instant::now();
    for version in 11..=15 {
        watch.event("ADDED", &map("a", &version.to_string()));
        drop(watch);
        watch = server.watch(&version.to_string()).await.stream();
    }
    assert_eq!(start.elapsed(), Duration::from_secs(5));
    assert_eq!(calls.take().len(), 5, "each event is reported at once");
    watch.event("MODIFIED", &map("a", "16"));
    watch.event("ERROR", &expired());
    server.list().await.items("20", &[]);
    assert_eq!(start.elapsed(), Duration::from_secs(5), "a list is not delayed");
    let _watch = server.watch("20").await.stream();
    assert_eq!(start.elapsed(), Duration::from_secs(6));
}

#[tokio::test(start_paused = true)]
async fn watches_that_break_before_an_event_cause_no_list() {
    let (_maps, calls, mut server, mut watch) = start_synced("10", &[]).await;
    for _ in 0..5 {
        watch.cut();
        server.version_check().await.items("10", &[]);
        watch = server.watch("10").await.stream();
    }
    watch.event("ADDED", &map("a", "11"));
    until_called(&calls, "+a@11").await;
}

#[tokio::test(start_paused = true)]
async fn a_list_that_takes_too_long_is_requested_again_in_smaller_pages() {
    let (maps, _calls, mut server) = start();
    let mut unanswered = vec![server.list().await];
    for limit in ["250", "125", "62", "50", "50"] {
        unanswered.push(server.list_by(limit).await);
    }
    server.list_by("50").await.fail(504, "the request did not complete in time");
    server.list_by("50").await.page("10", "more", &[]);
    unanswered.push(server.list_by("100").await);
    for limit in ["50", "100", "200", "400", "500"] {
        server.list_by(limit).await.page("10", "more", &[]);
    }
    server.list().await.items("10", &[]);
    let _watch = server.watch("10").await.stream();
    maps.synced().await;
}

#[tokio::test(start_paused = true)]
async fn a_page_with_too_many_bytes_is_not_read_to_its_end_and_requested_again_with_fewer_items() {
    let (maps, _calls, mut server) = start();
    let large = |name: &str| {
        let mut map = map(name, "5");
        map["data"] = json!({"text": "x".repeat(1 << 20)});
        map
    };
    for limit in ["500", "62"] {
        let endless = server.list_by(limit).await.stream();
        endless.chunk(r#"{"metadata":{},"items":[{"data":{"text":""#);
        for _ in 0..17 {
            endless.chunk(&"x".repeat(1 << 20));
        }
    }
    server.list_by("7").await.page("10", "more", &["a", "b", "c", "d", "e"].map(large));
    server.list_by("7").await.page("10", "more", &[large("f")]);
    server.list_by("14").await.items("10", &[]);
    let _watch = server.watch("10").await.stream();
    maps.synced().await;
    assert_eq!(maps.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_with_a_watch_from_the_last_version() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.cut();
    for _ in 0..5 {
        server.version_check().await.refuse();
    }
    server.version_check().await.items("12", &[]);
    let watch = server.watch("10").await.stream();
    watch.event("MODIFIED", &map("a", "12"));
    until_called(&calls, "~a@12").await;
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_is_listed_again() {
    let log = Log::start();
    let (_maps, calls, mut server, watch) = start_synced("50", &[map("a", "45"), map("b", "5")]).await;
    watch.cut();
    server.version_check().await.items("20", &[]);
    server.list().await.items("20", &[map("a", "15"), map("b", "5")]);
    let watch = server.watch("20").await.stream();
    watch.event("MODIFIED", &map("a", "21"));
    until_called(&calls, "~a@21").await;
    assert_eq!(calls.take(), ["~a@15", "~a@21"]);
    assert_eq!(log.lines("resourceVersion is lower than before").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_selection_becomes_the_query_of_the_requests() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let selection = select().namespace("n").label("b", "2").label("a", "1").field("metadata.name", "x");
    let _maps = cx.informer::<Metadata<ConfigMap>>(selection);
    cx.informers().start();
    let list = server.list().await;
    assert_eq!(list.path, "/api/v1/namespaces/n/configmaps");
    assert_eq!(
        (list.query["labelSelector"].as_str(), list.query["fieldSelector"].as_str()),
        ("a=1,b=2", "metadata.name=x")
    );
    assert!(list.accept.contains("as=PartialObjectMetadataList"), "{}", list.accept);
    list.items("10", &[]);
    let watch = server.watch("10").await;
    assert!(watch.accept.contains("as=PartialObjectMetadata;"), "{}", watch.accept);
    assert_eq!(
        (watch.query["allowWatchBookmarks"].as_str(), watch.query["labelSelector"].as_str()),
        ("true", "a=1,b=2")
    );
    assert!((240..290).contains(&watch.query["timeoutSeconds"].parse::<u64>().unwrap()));
}

/// Some aggregated API servers have no representation of only the metadata, and answer 406 if it alone is accepted.
#[tokio::test(start_paused = true)]
async fn of_whole_objects_an_informer_of_metadata_caches_the_metadata() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    let maps = cx.informer::<Metadata<ConfigMap>>(select());
    cx.informers().start();
    let mut whole = map("a", "5");
    whole["data"] = json!({"key": "x".repeat(1000)});
    let list = server.list().await;
    let accepts_objects = |accept: &str| accept.split(',').any(|media_type| media_type == "application/json");
    assert!(accepts_objects(&list.accept), "{}", list.accept);
    list.items("10", &[whole]);
    let watch = server.watch("10").await;
    assert!(accepts_objects(&watch.accept), "{}", watch.accept);
    let _watch = watch.stream();
    maps.synced().await;
    assert_eq!(maps.list().next().unwrap().metadata.name.as_deref(), Some("a"));
    assert!(maps.bytes() < 500, "{}", maps.bytes());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_informer_stops() {
    let (client, mut server) = server();
    let (maps, informers) = {
        let cx = Context::new("test", client);
        drop(cx.informer::<ConfigMap>(select().namespace("never")));
        (cx.informer::<ConfigMap>(select()), cx.informers())
    };
    informers.start();
    let watch = server.sync("10", &[]).await;
    let handle = maps.handle();
    drop(maps);
    assert_eq!(informers.states().len(), 1, "the handle keeps the informer");
    drop(handle);
    watch.closed().await;
    assert!(server.is_idle() && informers.states().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_informer_starts_at_once_and_late_handlers_get_the_cached_objects() {
    let (client, mut server) = server();
    let cx = Context::new("test", client);
    cx.informers().start();
    let maps: Informer<ConfigMap> = cx.get();
    let mut bad = map("bad", "6");
    bad["data"] = json!(1);
    let _watch = server.sync("10", &[map("a", "5"), bad]).await;
    maps.synced().await;
    assert_eq!(Calls::by(&maps).take(), ["+a@5", "?bad"]);
}

#[tokio::test(start_paused = true)]
async fn metrics_are_labelled_by_informer_and_removed_with_it() {
    let (client, mut server) = server();
    let (maps, registry) = {
        let cx = Context::new("test", client);
        let maps = cx.informer::<ConfigMap>(select());
        cx.informers().start();
        (maps, cx.metrics().clone())
    };
    let _watch = server.sync("10", &[map("a", "5")]).await;
    maps.synced().await;
    let value = |name: &str| {
        let family = registry.gather().into_iter().find(|family| family.name() == name)?;
        let metric = family.get_metric().iter().find(|m| m.get_label()[0].value() == "configmaps")?;
        Some(metric.get_gauge().get_value() + metric.get_counter().get_value())
    };
    assert_eq!(value("reflector_objects"), Some(1.0));
    assert_eq!(value("reflector_object_bytes"), Some(maps.bytes() as f64));
    assert_eq!(value("reflector_lists_total"), Some(1.0));
    assert_eq!(value("reflector_watches_total"), Some(1.0));
    drop((maps, _watch));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(value("reflector_objects"), None, "removed with the informer");
}
