//! Watches, as the service streams them and as a test takes their events.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use kube::{api::WatchParams, core::WatchEvent};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{config_maps, create, merge};
use crate::{ApiServer, Reply, Watch};

const PATH: &str = "/api/v1/namespaces/default/configmaps";

/// Sends a request without a runtime.
fn send(server: &ApiServer, method: Method, uri: &str, body: &Value) -> Reply {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let content_type =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(uri).header("Content-Type", content_type);
    server.handle(&request.body(body).unwrap())
}

fn respond(server: &ApiServer, method: Method, uri: &str, body: &Value) -> Value {
    match send(server, method, uri, body) {
        Reply::Response(response) => serde_json::from_slice(response.body()).unwrap(),
        Reply::Watch(_) => panic!("{uri} is no watch"),
    }
}

fn watch(server: &ApiServer, query: &str) -> Watch {
    match send(server, Method::GET, &format!("{PATH}?watch=true&{query}"), &Value::Null) {
        Reply::Watch(watch) => watch,
        Reply::Response(response) => panic!("refused: {:?}", response.body()),
    }
}

/// The events that are due: the type and the name of each.
fn due(watch: &mut Watch) -> Vec<String> {
    let shown = |event: crate::WatchEvent| {
        format!("{} {}", event.event_type, event.object["metadata"]["name"].as_str().unwrap_or("-"))
    };
    watch.take_events().into_iter().map(shown).collect()
}

fn post(server: &ApiServer, name: &str, labels: Value) {
    respond(server, Method::POST, PATH, &json!({"metadata": {"name": name, "labels": labels}}));
}

#[test]
fn each_watch_takes_the_events_that_it_selects() {
    let server = ApiServer::new();
    let (mut all, mut web) = (watch(&server, ""), watch(&server, "labelSelector=tier%3Dweb"));
    post(&server, "a", json!({"tier": "web"}));
    post(&server, "b", json!({"tier": "db"}));
    assert_eq!(due(&mut all), ["ADDED a", "ADDED b"]);
    assert_eq!(due(&mut web), ["ADDED a"]);
    let tier = |tier: &str| json!({"metadata": {"labels": {"tier": tier}}});
    respond(&server, Method::PATCH, &format!("{PATH}/a"), &tier("db"));
    respond(&server, Method::PATCH, &format!("{PATH}/b"), &tier("web"));
    assert_eq!(due(&mut web), ["DELETED a", "ADDED b"]);
    assert_eq!(due(&mut all), ["MODIFIED a", "MODIFIED b"]);
    assert!(due(&mut all).is_empty());
}

#[test]
fn a_watch_from_a_compacted_version_fails_with_410_and_a_current_one_goes_on() {
    let server = ApiServer::new();
    let mut current = watch(&server, "");
    post(&server, "a", json!({}));
    let version = current.take_events()[0].object["metadata"]["resourceVersion"].clone();
    let mut lagging = watch(&server, &format!("resourceVersion={}", version.as_str().unwrap()));
    post(&server, "b", json!({}));
    assert_eq!(due(&mut current), ["ADDED b"]);
    server.compact();
    post(&server, "c", json!({}));
    assert_eq!(due(&mut current), ["ADDED c"]);
    let events = lagging.take_events();
    assert_eq!((events.len(), events[0].event_type), (1, "ERROR"));
    assert_eq!((&events[0].object["code"], &events[0].object["reason"]), (&json!(410), &json!("Expired")));
    assert!(lagging.has_ended() && !current.has_ended());
}

#[test]
fn the_history_is_bounded() {
    let server = ApiServer::new();
    post(&server, "a", json!({}));
    let mut slow = watch(&server, "");
    for number in 0..10_001 {
        respond(&server, Method::PATCH, &format!("{PATH}/a"), &json!({"data": {"n": number.to_string()}}));
    }
    assert_eq!(due(&mut slow), ["ADDED a", "ERROR -"]);
}

#[test]
fn a_bookmark_has_the_version_up_to_which_events_were_taken() {
    let server = ApiServer::new();
    assert_eq!(watch(&server, "").bookmark(), None, "the client did not ask for bookmarks");
    let mut watch = watch(&server, "allowWatchBookmarks=true&labelSelector=none");
    post(&server, "a", json!({}));
    assert!(due(&mut watch).is_empty());
    let latest = respond(&server, Method::GET, PATH, &Value::Null)["metadata"]["resourceVersion"].clone();
    assert_eq!(watch.bookmark().unwrap().object["metadata"]["resourceVersion"], latest);
}

#[test]
fn a_list_of_a_version_that_is_not_reached_is_refused() {
    let server = ApiServer::new();
    let status = respond(&server, Method::GET, &format!("{PATH}?resourceVersion=9999"), &Value::Null);
    assert_eq!(
        (&status["code"], &status["message"]),
        (&json!(504), &json!("Timeout: Too large resource version: 9999, current: 1000"))
    );
}

#[test]
fn uids_and_generated_names_are_the_same_in_each_run() {
    let created = || {
        let server = ApiServer::new().with_clock(|| "2026-11-26T08:00:00Z".parse().unwrap());
        let create = |metadata: Value| {
            let created = respond(&server, Method::POST, PATH, &json!({ "metadata": metadata }));
            created["metadata"].clone()
        };
        let first = create(json!({"name": "a"}));
        respond(&server, Method::DELETE, &format!("{PATH}/a"), &Value::Null);
        [
            first,
            create(json!({"name": "a"})),
            create(json!({"generateName": "a-"})),
            create(json!({"generateName": "a-"})),
        ]
    };
    let metadata = created();
    assert_eq!(metadata, created());
    assert_eq!(metadata[0]["creationTimestamp"], "2026-11-26T08:00:00Z");
    assert_ne!(metadata[0]["uid"], metadata[1]["uid"], "another object of the same name");
    assert_ne!(metadata[2]["name"], metadata[3]["name"]);
}

#[tokio::test(start_paused = true)]
async fn a_streamed_watch_sends_bookmarks_and_ends_after_its_timeout() {
    let server = ApiServer::new();
    let opened = Instant::now();
    let request = Request::get(format!("{PATH}?watch=true&allowWatchBookmarks=true&timeoutSeconds=150"));
    let response = server.client().send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(opened.elapsed(), Duration::from_secs(150));
    assert_eq!(String::from_utf8_lossy(&body).matches("BOOKMARK").count(), 2);
}

#[tokio::test]
async fn a_streamed_watch_sends_changes_as_they_are_made() {
    let server = ApiServer::new();
    let mut events = config_maps(&server).watch(&WatchParams::default(), "0").await.unwrap().boxed();
    create(&server, "a").await;
    assert!(matches!(events.try_next().await.unwrap(), Some(WatchEvent::Added(_))));
    let (next, changed) = tokio::join!(events.try_next(), merge(&server, "a", json!({"data": {"k": "v"}})));
    assert!(matches!(next.unwrap(), Some(WatchEvent::Modified(_))) && changed.is_ok());
    server.end_watches();
    assert!(events.try_next().await.unwrap().is_none());
}
