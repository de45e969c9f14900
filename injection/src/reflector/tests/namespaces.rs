//! An informer of several namespaces.

use super::*;

/// The JSON of the ConfigMap `name` in this namespace.
fn map_in(namespace: &str, name: &str, version: &str) -> Value {
    let mut map = map(name, version);
    map["metadata"]["namespace"] = namespace.into();
    map
}

/// Starts an informer of the namespaces `a` and `b`.
fn start_a_and_b() -> (Informer<ConfigMap>, Calls, Server) {
    let (client, server) = server();
    let cx = Context::new("test", client);
    let maps = cx.informer(select().namespaces(["b", "a"]));
    let calls = Calls::by(&maps);
    cx.informers().start();
    (maps, calls, server)
}

/// Responds to the first list and watch of each namespace, and returns the streams of the watches.
async fn start_synced_a_and_b() -> (Informer<ConfigMap>, Calls, Server, [Stream; 2]) {
    let (maps, calls, mut server) = start_a_and_b();
    let (list_a, list_b) = (server.list().await, server.list().await);
    list_a.items("10", &[map_in("a", "x", "5")]);
    let watch_a = server.watch("10").await.stream();
    list_b.items("11", &[map_in("b", "x", "6"), map_in("b", "y", "7")]);
    let watch_b = server.watch("11").await.stream();
    maps.synced().await;
    calls.take();
    (maps, calls, server, [watch_a, watch_b])
}

#[tokio::test(start_paused = true)]
async fn each_namespace_is_listed_and_watched_and_the_informer_is_synced_once_all_are() {
    let (maps, calls, mut server) = start_a_and_b();
    let (list_a, list_b) = (server.list().await, server.list().await);
    let paths = ["a", "b"].map(|namespace| format!("/api/v1/namespaces/{namespace}/configmaps"));
    assert_eq!([&list_a.path, &list_b.path], [&paths[0], &paths[1]]);
    list_a.items("10", &[map_in("a", "x", "5")]);
    let watch_a = server.watch("10").await;
    assert_eq!(watch_a.path, paths[0]);
    let _watch_a = watch_a.stream();
    assert!(matches!(maps.state(), InformerState::Waiting { .. }), "b is not listed");
    list_b.fail(403, "configmaps is forbidden in b");
    server.list().await.items("11", &[map_in("b", "x", "6")]);
    let _watch_b = server.watch("11").await.stream();
    maps.synced().await;
    assert_eq!(calls.take(), ["+x@5", "+x@6"]);
    assert_eq!((maps.len(), maps.list_in("a").count(), maps.list_in("c").count()), (2, 1, 0));
    assert_eq!(maps.name(), "configmaps [namespace=a,b]");
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_cannot_be_listed_does_not_hold_up_another_and_the_state_names_the_reason() {
    let (maps, _calls, mut server) = start_a_and_b();
    let (list_a, list_b) = (server.list().await, server.list().await);
    list_a.items("10", &[]);
    let _watch_a = server.watch("10").await.stream();
    list_b.fail(403, "configmaps is forbidden in b");
    let retry = server.list().await;
    let InformerState::Waiting { reason: why, .. } = maps.state() else { panic!("{:?}", maps.state()) };
    assert!(why.starts_with("configmaps is forbidden in b: grant this process"), "{why}");
    assert!(!maps.handle().is_synced(), "a single refusal may be transient");

    retry.fail(403, "configmaps is forbidden in b");
    server.list().await.fail(403, "configmaps is forbidden in b");
    maps.synced().await;
    let states = [Some("a"), Some("b"), None].map(|namespace| maps.handle().state_in(namespace));
    assert!(
        matches!(
            states,
            [
                InformerState::Synced { .. },
                InformerState::Unavailable { .. },
                InformerState::Unavailable { .. }
            ]
        ),
        "{states:?}"
    );
    assert!(maps.first_list(Some("a")).await.is_ok() && maps.first_list(Some("b")).await.is_err());
    server.list().await.items("11", &[map_in("b", "x", "6")]);
    let _watch_b = server.watch("11").await.stream();
    maps.first_list(Some("b")).await.unwrap();
    assert!(matches!(maps.state(), InformerState::Synced { .. }));
}

/// A conversion webhook that refuses one object fails the list of its namespace, for ever.
#[tokio::test(start_paused = true)]
async fn a_namespace_whose_list_fails_for_a_minute_does_not_hold_up_another_that_is_listed() {
    let (maps, _calls, mut server) = start_a_and_b();
    let started = Instant::now();
    let (list_a, mut list_b) = (server.list().await, server.list().await);
    let mut list_a = Some(list_a);
    while started.elapsed() < Duration::from_secs(65) {
        list_b.fail(500, "conversion webhook failed");
        list_b = server.list().await;
        if let Some(list_a) = list_a.take_if(|_| started.elapsed() > Duration::from_secs(30)) {
            list_a.items("10", &[]);
            std::mem::forget(server.watch("10").await.stream());
        }
        assert!(!maps.handle().is_synced() || started.elapsed() >= Duration::from_secs(60));
    }
    list_b.fail(500, "conversion webhook failed");
    let list_b = server.list().await;
    maps.synced().await;
    let state_of_b = maps.handle().state_in(Some("b"));
    assert!(matches!(state_of_b, InformerState::Unavailable { was_synced: false, .. }), "{state_of_b:?}");
    list_b.items("11", &[map_in("b", "x", "6")]);
    let _watch_b = server.watch("11").await.stream();
    maps.first_list(Some("b")).await.unwrap();
}

/// An outage at the start ends for all namespaces at nearly the same time. A controller must not start in between.
#[tokio::test(start_paused = true)]
async fn no_namespace_is_left_out_while_none_is_listed() {
    let (maps, _calls, mut server) = start_a_and_b();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(200) {
        server.list().await.fail(503, "no etcd");
    }
    assert!(matches!(maps.state(), InformerState::Waiting { .. }), "{:?}", maps.state());
}

#[tokio::test(start_paused = true)]
async fn a_relist_of_one_namespace_deletes_no_objects_of_another() {
    let (maps, calls, mut server, [watch_a, watch_b]) = start_synced_a_and_b().await;
    watch_a.event("ERROR", &expired());
    let relist = server.list().await;
    assert_eq!(relist.path, "/api/v1/namespaces/a/configmaps");
    relist.items("50", &[]);
    let _watch_a = server.watch("50").await.stream();
    until_called(&calls, "-x@5").await;
    assert_eq!(calls.take(), ["-x@5"]);
    assert!(maps.get(&Key::new("b", "x")).is_some() && maps.len() == 2);
    watch_b.event("MODIFIED", &map_in("b", "y", "12"));
    until_called(&calls, "~y@12").await;
    watch_b.event("DELETED", &map_in("b", "x", "13"));
    until_called(&calls, "-x@6").await;
    assert_eq!(maps.keys(), [Key::new("b", "y")]);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_object_survives_the_relist_of_another_namespace() {
    let (maps, calls, mut server, [watch_a, watch_b]) = start_synced_a_and_b().await;
    let mut broken = map_in("b", "broken", "12");
    broken["data"] = "not a map".into();
    watch_b.event("ADDED", &broken);
    until_called(&calls, "?broken").await;
    watch_a.event("ERROR", &expired());
    server.list().await.items("50", &[]);
    let _watch_a = server.watch("50").await.stream();
    until_called(&calls, "-x@5").await;
    let broken = maps.newest(&Key::new("b", "broken"));
    assert!(broken.is_err(), "the relist removed the object: {broken:?}");
}
