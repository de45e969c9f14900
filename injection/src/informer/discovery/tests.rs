use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures::FutureExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::*;
use crate::{Context, informer::on_kind_changed, testing::server};

fn lamp() -> GroupVersionKind {
    GroupVersionKind::gvk("example.com", "v1", "Lamp")
}

/// The resources of `example.com/v1`, with lamps of this plural.
fn resources(plural: &str, namespaced: bool) -> Value {
    json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
        {"name": format!("{plural}/status"), "kind": "Lamp", "namespaced": namespaced, "singularName": "", "verbs": ["get"]},
        {"name": plural, "kind": "Lamp", "namespaced": namespaced, "singularName": "lamp", "verbs": ["get"]},
    ]})
}

/// As an API server of OpenShift lists the resources of `template.openshift.io/v1`.
#[tokio::test]
async fn of_two_resources_of_a_kind_the_one_that_can_be_listed_is_found() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let resource = |name: &str, verbs: &[&str]| json!({"name": name, "kind": "Lamp", "namespaced": true, "singularName": "", "verbs": verbs});
    let list = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [
        resource("brokenlamps", &["create"]), resource("halflamps", &["list"]),
        resource("lamps", &["create", "get", "list", "watch"]), resource("otherlamps", &["list", "watch"]),
    ]});
    let kind = lamp();
    let (found, ()) =
        tokio::join!(informers.resolve(&kind), async { server.next().await.respond(200, list) });
    assert_eq!(found.unwrap().unwrap().0.plural, "lamps");
}

#[tokio::test]
async fn a_malformed_api_version_is_unknown_and_enters_no_url() {
    let (client, _server) = server();
    let transport = client.into();
    let discovery = Discovery::default();
    let malformed = [
        ("example.com", "v1/../../../api/v1"),
        ("..", "v1"),
        ("example.com", ".."),
        ("batch", "v1?dryRun=All"),
        ("batch#", "v1"),
        ("a/b", "v1"),
        ("", ""),
        ("example.com", "%2e%2e"),
    ];
    for (group, version) in malformed {
        let kind = GroupVersionKind::gvk(group, version, "Lamp");
        // A request would not be answered.
        let found = discovery.find(&transport, &kind).now_or_never();
        assert!(matches!(found, Some(Ok(None))), "{kind:?}");
    }
}

#[tokio::test]
async fn a_kind_that_is_too_long_is_unknown_and_not_remembered() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let kind = GroupVersionKind::gvk("example.com", "v1", &"L".repeat(1_000_000));
    let found = informers.resolve(&kind).now_or_never();
    assert!(matches!(found, Some(Ok(None))) && server.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_kind_is_remembered_and_an_unknown_one_is_requested_again_after_a_while() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let resolve = async || informers.resolve(&lamp()).await;
    let (absent, ()) =
        tokio::join!(resolve(), async { server.next().await.respond(404, "404 page not found") });
    assert!(absent.unwrap().is_none());
    assert!(resolve().await.unwrap().is_none() && server.is_idle(), "many keys may name an unknown Kind");
    tokio::time::advance(NOT_FOUND_FOR).await;
    let (failed, ()) = tokio::join!(resolve(), async { server.next().await.fail(403, "you may not look") });
    let error = failed.unwrap_err().to_string();
    assert_eq!(
        resolve().await.unwrap_err().to_string(),
        error,
        "no other pass waits for a server that fails"
    );
    tokio::time::advance(NOT_FOUND_FOR).await;
    assert_eq!(error, "failed to discover the resource of Lamp of example.com/v1: you may not look (403)");
    let answer = async { server.next().await.respond(200, resources("lampen", false)) };
    let (found, ()) = tokio::join!(resolve(), answer);
    let (resource, scope) = found.unwrap().unwrap();
    assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
    assert_eq!(resolve().await.unwrap().unwrap().0, resource);
    assert!(server.is_idle());
}

/// A user may name any number of Kinds, one after another.
#[tokio::test(start_paused = true)]
async fn answers_for_which_nobody_asks_any_more_are_forgotten() {
    let (client, mut server) = server();
    let (transport, discovery) = (client.into(), Discovery::default());
    for n in 0..3 {
        let unknown = GroupVersionKind::gvk(&format!("g{n}.example.com"), "v1", "Lamp");
        let answer = async { server.next().await.respond(404, "404 page not found") };
        let (found, ()) = tokio::join!(discovery.find(&transport, &unknown), answer);
        let answer = async { server.next().await.respond(404, "404 page not found") };
        let (versions, ()) = tokio::join!(discovery.versions(&transport, &unknown), answer);
        assert!(found.unwrap().is_none() && versions.unwrap().is_empty());
        assert_eq!((discovery.answers.lock().len(), discovery.versions.lock().len()), (1, 1));
        tokio::time::advance(NOT_FOUND_FOR).await;
    }
    discovery.check(&transport, |_| false).await;
    assert_eq!(discovery.answers.lock().len(), 0);
    let answer = async { server.next().await.respond(200, resources("lamps", true)) };
    let kind = lamp();
    let (found, ()) = tokio::join!(discovery.find(&transport, &kind), answer);
    assert!(found.unwrap().is_some());
    tokio::time::advance(UNUSED_AFTER).await;
    discovery.check(&transport, |_| false).await;
    assert!(discovery.answers.lock().is_empty() && server.is_idle());
}

#[tokio::test(start_paused = true)]
async fn only_one_kind_of_an_api_version_that_does_not_answer_is_waited_for() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let kind = lamp();
    let (failed, _unanswered) = tokio::join!(informers.resolve(&kind), server.next());
    let error = failed.unwrap_err().to_string();
    let torch = GroupVersionKind::gvk("example.com", "v1", "Torch");
    let at_once = informers.resolve(&torch).now_or_never().unwrap();
    assert_eq!(at_once.unwrap_err().to_string(), error.replace("Lamp", "Torch"));
    let other_version = GroupVersionKind::gvk("example.com", "v2", "Lamp");
    let answer = async { server.next().await.respond(404, "404 page not found") };
    let (found, ()) = tokio::join!(informers.resolve(&other_version), answer);
    assert!(found.unwrap().is_none());
    tokio::time::advance(NOT_FOUND_FOR).await;
    let answer = async { server.next().await.respond(200, resources("lamps", true)) };
    let (found, ()) = tokio::join!(informers.resolve(&torch), answer);
    assert!(found.unwrap().is_none(), "it is asked for again");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_dropped_before_an_api_version_answers_saves_the_others_the_wait() {
    let (client, mut server) = server();
    let (informers, lamp) = (Context::new("test", client).informers(), lamp());
    let pass = tokio::time::timeout(Duration::from_secs(3), informers.resolve(&lamp));
    let (dropped, _unanswered) = tokio::join!(pass, server.next());
    assert!(dropped.is_err());
    assert!(matches!(informers.resolve(&lamp).now_or_never(), Some(Err(_))));
}

#[tokio::test(start_paused = true)]
async fn one_pass_at_a_time_waits_for_an_api_version_that_has_not_answered_before() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let torch = GroupVersionKind::gvk("example.com", "v1", "Torch");
    let lamp = lamp();
    let fails_at_once = |kind| matches!(informers.resolve(kind).now_or_never(), Some(Err(_)));
    let (failed, _unanswered) = tokio::join!(informers.resolve(&lamp), server.next());
    assert!(failed.is_err() && fails_at_once(&torch));
    for _ in 0..3 {
        tokio::time::advance(NOT_FOUND_FOR).await;
        let (failed, _unanswered) = tokio::join!(informers.resolve(&lamp), async {
            let request = server.next().await;
            assert!(fails_at_once(&torch) && fails_at_once(&lamp), "a request is under way");
            request
        });
        assert!(failed.is_err() && fails_at_once(&torch));
    }
    tokio::time::advance(NOT_FOUND_FOR).await;
    let dropped = tokio::time::timeout(Duration::from_secs(1), informers.resolve(&lamp)).await;
    assert!(dropped.is_err() && fails_at_once(&torch), "the pass that waited has ended");
    let _unanswered = server.next().await;
    tokio::time::advance(TIMEOUT + NOT_FOUND_FOR).await;
    let answer = async { server.next().await.respond(200, resources("lamps", true)) };
    let (found, ()) = tokio::join!(informers.resolve(&torch), answer);
    assert!(found.unwrap().is_none() && server.is_idle(), "it has answered");
    let answer = async { server.next().await.respond(200, resources("lamps", true)) };
    let (found, ()) = tokio::join!(informers.resolve(&lamp), answer);
    assert!(found.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_version_is_not_served_is_found_in_another_one() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let versions = ["v3alpha1", "v2"]
        .map(|version| json!({"groupVersion": format!("example.com/{version}"), "version": version}));
    let group = json!({"name": "example.com", "versions": versions, "preferredVersion": versions[1]});
    let answers = async {
        let mut paths = Vec::new();
        for (code, body) in [(404, json!(null)), (200, group), (200, resources("lamps", true))] {
            let request = server.next().await;
            paths.push(request.path.clone());
            request.respond(code, body);
        }
        paths
    };
    let kind = lamp();
    let (found, paths) = tokio::join!(informers.resolve_in_any_version(&kind), answers);
    assert_eq!(paths, ["/apis/example.com/v1", "/apis/example.com", "/apis/example.com/v2"]);
    let (resource, _) = found.unwrap().unwrap();
    assert_eq!((&*resource.api_version, &*resource.plural), ("example.com/v2", "lamps"));
    assert!(informers.resolve(&kind).await.unwrap().is_none());
    assert!(informers.resolve_in_any_version(&kind).await.unwrap().is_some() && server.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_is_served_in_another_way_or_no_longer_is_reported_once_and_failures_change_nothing() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    informers.start();
    let changed = Arc::new(AtomicUsize::new(0));
    let counter = changed.clone();
    on_kind_changed(&informers, move |kind| {
        assert_eq!(*kind, lamp());
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let resolve = async || informers.resolve(&lamp()).await.unwrap();
    let answer = async { server.next().await.respond(200, resources("lamps", true)) };
    tokio::join!(resolve(), answer);
    server.next().await.respond(200, resources("lamps", true));
    let (resource, _) = resolve().await.unwrap();
    let _open = informers.get::<DynamicObject>(resource, crate::select());
    let _list = server.list().await;
    server.next().await.fail(503, "the API of this group is not available");
    server.next().await.respond(200, resources("lampen", false));
    // The next check follows the change.
    let next_check = server.next().await;
    let (resource, scope) = resolve().await.unwrap();
    assert_eq!((resource.plural.as_str(), scope), ("lampen", Scope::Cluster));
    assert_eq!(changed.load(Ordering::Relaxed), 1);

    next_check.respond(404, "404 page not found");
    server.next().await.respond(200, resources("lampen", false));
    resolve().await.unwrap();
    server.next().await.respond(404, "404 page not found");
    server.next().await.respond(404, "404 page not found");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(resolve().await.is_none(), "two checks in a row did not find it");
    assert_eq!(changed.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_proxy_does_not_show_that_a_kind_is_unknown() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    let resolve = async || informers.resolve(&lamp()).await;
    for (code, body, expected) in [
        (404, "404 page not found", "404 page not found: not from an API server"),
        (200, r#"{"status":"ok"}"#, "malformed response: it has no resources"),
    ] {
        let answer = async { server.next().await.respond_as_proxy(code, body) };
        let (failed, ()) = tokio::join!(resolve(), answer);
        let error = failed.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        tokio::time::advance(NOT_FOUND_FOR).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_does_not_answer_does_not_hold_up_the_checks_of_others() {
    let (client, mut server) = server();
    let informers = Context::new("test", client).informers();
    informers.start();
    for group in ["example.com", "example.org"] {
        let kind = GroupVersionKind::gvk(group, "v1", "Lamp");
        let answer = async { server.next().await.respond(200, resources("lamps", true)) };
        let (found, ()) = tokio::join!(informers.resolve(&kind), answer);
        assert!(found.unwrap().is_some());
    }
    let unanswered = [server.next().await, server.next().await];
    assert_ne!(unanswered[0].path, unanswered[1].path);
}

#[tokio::test]
async fn preloaded_informers_send_no_request() {
    let (client, mut server) = server();
    let object = |namespace| json!({"apiVersion": "example.com/v1", "kind": "Lamp", "metadata": {"name": "a", "namespace": namespace}});
    for (object, expected) in [(object(Some("n")), Scope::Namespaced), (object(None), Scope::Cluster)] {
        let informers = Context::preloaded("test", client.clone(), vec![object]).informers();
        let (resource, scope) = informers.resolve(&lamp()).await.unwrap().unwrap();
        assert_eq!((resource.plural.as_str(), scope), ("lamps", expected));
        assert_eq!(informers.open::<DynamicObject>(&resource, crate::select()).await.unwrap().len(), 1);
    }
    assert!(server.is_idle());
}
