//! Lists and watches that the API server refuses.

use prometheus::Registry;

use super::*;
use crate::Unwatched;

#[tokio::test(start_paused = true)]
async fn a_missing_kind_is_logged_every_minute_and_found_when_it_is_installed() {
    let log = Log::start();
    let (maps, calls, mut server) = start();
    let before = Instant::now();
    while before.elapsed() < Duration::from_secs(150) {
        let waiting = Instant::now();
        server.list().await.respond(404, "404 page not found");
        assert!(waiting.elapsed() <= Duration::from_secs(2), "listed again after {:?}", waiting.elapsed());
    }
    let InformerState::Unavailable { reason: why, was_synced: false, .. } = maps.state() else {
        panic!("{:?}", maps.state())
    };
    assert!(
        why.contains("configmaps of v1 (ConfigMap)") && why.contains("CustomResourceDefinition"),
        "{why}"
    );
    assert_eq!(
        log.lines("WARN").len(),
        3,
        "expected warnings at once, after one minute and after two: {:?}",
        log.lines("")
    );
    let _watch = server.sync("10", &[map("a", "5")]).await;
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5"]);
}

#[tokio::test(start_paused = true)]
async fn the_403_or_404_of_a_proxy_is_no_missing_kind_and_no_missing_permission() {
    for (code, body) in [
        (403, "<html>blocked</html>"),
        (404, "404 page not found"),
        (404, r#"{"message":"no Route matched with those values"}"#),
    ] {
        let (maps, _calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
        watch.event("MODIFIED", &map("a", "11"));
        drop(watch);
        for _ in 0..12 {
            server.next().await.respond_as_proxy(code, body);
        }
        let state = maps.state();
        assert!(matches!(state, InformerState::Synced { .. }), "{code}: {state:?}");
    }
    let (maps, _calls, mut server) = start();
    for _ in 0..5 {
        server.list().await.respond_as_proxy(404, "404 page not found");
    }
    let InformerState::Waiting { reason, .. } = maps.state() else { panic!("{:?}", maps.state()) };
    assert!(reason.contains("404 page not found: not from an API server"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_removed_and_installed_again_is_listed_again() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.event("DELETED", &map("a", "11"));
    drop(watch);
    server.watch("11").await.respond(404, "404 page not found");
    server.list().await.respond(404, "404 page not found");
    let _watch = server.sync("30", &[map("b", "29")]).await;
    until_called(&calls, "+b@29").await;
    assert_eq!(calls.take(), ["-a@5", "+b@29"]);
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_removed_kind_stay_cached_while_the_informer_waits() {
    let (maps, calls, mut server, watch) = start_synced("10", &[map("a", "5"), map("b", "6")]).await;
    watch.cut();
    server.version_check().await.respond(404, "404 page not found");
    for _ in 0..2 {
        server.list().await.respond(404, "404 page not found");
    }
    let third = server.list().await;
    assert!(
        matches!(maps.state(), InformerState::Synced { .. }),
        "two 404 may come from a server that is starting"
    );
    third.respond(404, "404 page not found");
    let fourth = server.list().await;
    let InformerState::Unavailable { reason: why, was_synced: true, .. } = maps.state() else {
        panic!("{:?}", maps.state())
    };
    assert!(why.contains("CustomResourceDefinition"), "{why}");
    assert_eq!((calls.take().len(), maps.len()), (0, 2), "the objects may still exist in another version");
    fourth.respond(404, "404 page not found");
    let _watch = server.sync("30", &[map("a", "29")]).await;
    maps.synced().await;
    assert_eq!(calls.take(), ["~a@29", "-b@6"]);
}

#[tokio::test(start_paused = true)]
async fn an_informer_that_may_no_longer_list_is_unavailable_and_keeps_its_objects() {
    let (maps, _calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.cut();
    server.version_check().await.fail(403, "configmaps is forbidden");
    for _ in 0..3 {
        server.list().await.fail(403, "configmaps is forbidden");
    }
    let fourth = server.list().await;
    let InformerState::Unavailable { reason: why, was_synced: true, .. } = maps.state() else {
        panic!("{:?}", maps.state())
    };
    assert!(why.contains("verbs list and watch") && maps.len() == 1, "{why}");
    fourth.items("30", &[map("a", "29")]);
    maps.synced().await;
}

#[tokio::test(start_paused = true)]
async fn an_informer_of_a_resource_without_lists_is_unavailable_and_says_so() {
    let (maps, _calls, mut server) = start();
    for _ in 0..3 {
        server.list().await.fail(405, "the server does not allow this method on the requested resource");
    }
    let _fourth = server.list().await;
    let InformerState::Unavailable { reason, was_synced: false, .. } = maps.state() else {
        panic!("{:?}", maps.state())
    };
    assert!(reason.starts_with("configmaps of v1 (ConfigMap) cannot be listed or watched"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_404_from_a_starting_server_deletes_nothing() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.cut();
    server.version_check().await.respond(404, "404 page not found");
    for _ in 0..3 {
        server.list().await.respond(404, "404 page not found");
        server.list().await.respond(404, "404 page not found");
        server.list().await.refuse();
        assert_eq!(calls.take(), [""; 0]);
    }
    let _watch = server.sync("12", &[map("a", "11")]).await;
    until_called(&calls, "~a@11").await;
    assert_eq!(calls.take(), ["~a@11"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_is_requested_again_after_an_overload_that_names_no_wait() {
    let (maps, calls, mut server) = start();
    server.list().await.page("10", "more", &[map("a", "5")]);
    for code in [429, 503] {
        let page = server.list().await;
        assert_eq!(page.query.get("continue").map(String::as_str), Some("more"), "{code}");
        page.fail(code, "too many requests");
    }
    let page = server.list().await;
    assert_eq!(page.query.get("continue").map(String::as_str), Some("more"));
    page.items("10", &[map("b", "6")]);
    maps.synced().await;
    assert_eq!(calls.take(), ["+a@5", "+b@6"]);
}

#[tokio::test(start_paused = true)]
async fn a_forbidden_list_backs_off_and_names_the_missing_verbs() {
    let log = Log::start();
    let (maps, _calls, mut server) = start();
    let before = Instant::now();
    for _ in 0..10 {
        server.list().await.fail(403, "configmaps is forbidden");
    }
    assert!(before.elapsed() > Duration::from_secs(60), "{:?}", before.elapsed());
    let InformerState::Unavailable { reason: why, .. } = maps.state() else { panic!("{:?}", maps.state()) };
    assert!(why.starts_with("configmaps is forbidden") && why.contains("verbs list and watch"), "{why}");
    assert!(log.lines("WARN").len() <= 4, "{:?}", log.lines("WARN"));
}

#[tokio::test(start_paused = true)]
async fn a_process_without_permission_to_watch_lists_repeatedly_with_backoff() {
    let (maps, _calls, mut server) = start();
    let before = Instant::now();
    for (version, code) in [("11", 403), ("12", 405), ("13", 501), ("14", 403), ("15", 403), ("16", 403)] {
        server.list().await.items(version, &[map("a", version)]);
        server.watch(version).await.fail(code, "you may not watch");
    }
    let pending = server.list().await;
    let Unwatched { reason: why, is_listed: true, .. } = maps.handle().unwatched().unwrap() else {
        panic!("{:?}", maps.handle().unwatched())
    };
    assert!(why.starts_with("you may not watch") && why.contains("verbs list and watch"), "{why}");
    pending.items("17", &[]);
    let _watch = server.watch("17").await.stream();
    while maps.handle().unwatched().is_some() {
        tokio::task::yield_now().await;
    }
    assert!(before.elapsed() > Duration::from_secs(7), "{:?}", before.elapsed());
    assert!(maps.get(&Key::new("n", "a")).is_none(), "each list updates the cache");
}

/// A proxy that holds back an answer until it is complete never answers a watch.
#[tokio::test(start_paused = true)]
async fn changes_are_found_by_lists_while_no_watch_can_be_opened() {
    let (maps, calls, mut server) = start();
    server.list().await.items("10", &[map("a", "5")]);
    server.watch("10").await.fail(504, "no answer from the upstream server");
    for code in [500, 502] {
        server.version_check().await.items("20", &[]);
        server.watch("10").await.fail(code, "no answer from the upstream server");
    }
    assert_eq!(calls.take(), ["+a@5"]);
    server.list().await.items("20", &[map("a", "15")]);
    let mut unanswered = vec![server.watch("20").await];
    server.list().await.items("30", &[map("a", "25")]);
    unanswered.push(server.watch("30").await);
    assert_eq!(calls.take(), ["~a@15", "~a@25"]);
    let unwatched = maps.handle().unwatched().unwrap();
    assert!(unwatched.is_listed && unwatched.reason.contains("no response within 60 s"), "{unwatched:?}");

    server.list().await.items("40", &[map("a", "25")]);
    let watch = server.watch("40").await.stream();
    watch.event("MODIFIED", &map("a", "41"));
    until_called(&calls, "~a@41").await;
    assert_eq!(maps.handle().unwatched(), None);
    watch.cut();
    server.version_check().await.items("41", &[]);
    server.watch("41").await.fail(500, "the watches that fail are counted anew");
    server.version_check().await.items("41", &[]);
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_that_opens_no_watch_is_not_listed() {
    let (_maps, _calls, mut server, watch) = start_synced("10", &[]).await;
    watch.cut();
    for _ in 0..5 {
        server.version_check().await.items("10", &[]);
        server.watch("10").await.fail(429, "too many requests");
    }
    server.version_check().await.items("10", &[]);
}

#[tokio::test(start_paused = true)]
async fn a_synced_informer_that_cannot_watch_tells_since_when_and_why() {
    let (maps, _calls, mut server, watch) = start_synced("10", &[]).await;
    assert_eq!(maps.handle().unwatched(), None);
    watch.cut();
    server.version_check().await.items("10", &[]);
    server.watch("10").await.fail(429, "storage is (re)initializing");
    let first = Instant::now();
    server.version_check().await.fail(503, "the server is shutting down");
    let check = server.version_check().await;
    let Unwatched { since, reason, is_listed: false } = maps.handle().unwatched().unwrap() else {
        panic!("{:?}", maps.handle().unwatched())
    };
    assert!(since <= first && reason.contains("the server is shutting down"), "{reason}");
    assert!(maps.state().is_synced());
    check.items("10", &[]);
    server.watch("10").await.fail(403, "you may not watch");
    server.list().await.fail(503, "the list fails too");
    let list = server.list().await;
    let unwatched = maps.handle().unwatched().unwrap();
    assert!(!unwatched.is_listed && unwatched.reason.contains("the list fails too"), "{unwatched:?}");
    assert_eq!(unwatched.since, since);
    list.items("20", &[]);
    let _watch = server.watch("20").await.stream();
    while maps.handle().unwatched().is_some() {
        tokio::task::yield_now().await;
    }
}

/// The first object may be one that a conversion webhook refuses, or a Secret whose key was lost.
#[tokio::test(start_paused = true)]
async fn a_watch_is_resumed_although_the_server_fails_to_list_one_object() {
    let (_maps, calls, mut server, watch) = start_synced("10", &[map("a", "5")]).await;
    watch.cut();
    server.version_check().await.fail(500, "conversion webhook for demo/v1, Kind=Lamp failed");
    let watch = server.watch("10").await.stream();
    watch.event("MODIFIED", &map("a", "11"));
    until_called(&calls, "~a@11").await;
}

/// As while the conversion webhook of the Kind is down.
#[tokio::test(start_paused = true)]
async fn a_server_that_opens_no_watch_is_silent_although_it_answers_checks_of_its_version() {
    let ((client, mut server), registry) = (server(), Registry::new());
    let cx = Context::builder("test", client).metrics(registry.clone()).build();
    let _maps: Informer<ConfigMap> = cx.get();
    let age = || {
        let families = registry.gather();
        let ages = families.iter().find(|family| family.name() == "reflector_last_response_age_seconds");
        ages.unwrap().get_metric()[0].get_gauge().get_value()
    };
    cx.informers().start();
    server.sync("10", &[map("a", "5")]).await.cut();
    let (before, mut checks) = (Instant::now(), 0);
    while before.elapsed() < Duration::from_secs(400) {
        let request = server.next().await;
        match request.query.contains_key("watch") {
            true => request.fail(429, "storage is (re)initializing"),
            false => {
                assert_eq!(request.query["limit"], "1");
                request.items("30", &[]);
                checks += 1;
            }
        }
    }
    assert!(checks > 3, "{checks}");
    assert!(age() > 300.0, "{}", age());
}
