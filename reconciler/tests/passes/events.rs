//! Events that a pass or a recorder stores.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{Client, client::Body};
use prometheus::Registry;
use reknit_injection::Context;
use reknit_reconciler::{Event, Recorder, ResultExt};
use reknit_testing::{ApiServer, ControllerExt, Verb, given};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;

fn lamp_recorder(server: &ApiServer) -> Recorder {
    Controller::of::<Lamp>(&Context::preloaded("test", server.client(), vec![])).recorder()
}

#[tokio::test]
async fn the_event_of_an_outcome_is_recorded_by_the_controller() {
    let server = ApiServer::new();
    let cached = server.insert(&lamp());
    let controller = {
        let cx = Context::preloaded("test", server.client(), vec![cached]);
        reconciling(|_, _| Ok(Outcome::skip().event(Event::normal("Seen", "it is there"))))(&cx).unwrap()
    };
    let _ = controller.once(&key()).await.unwrap();
    let events: Vec<_> =
        server.take_writes().into_iter().filter(|write| write.resource == "events").collect();
    let event = &events[0].body;
    assert_eq!(event["regarding"]["kind"], "Lamp");
    assert_eq!(event["regarding"]["uid"], "uid-x");
    assert_eq!(event["regarding"]["apiVersion"], "demo.reknit.dev/v1");
    assert_eq!([&event["reason"], &event["note"], &event["type"]], ["Seen", "it is there", "Normal"]);
    assert_eq!([&event["reportingController"], &event["action"]], ["lamp-controller", "Reconcile"]);
    assert!(!event["reportingInstance"].as_str().unwrap().is_empty() && event["eventTime"].is_string());
    assert_eq!(event["metadata"]["namespace"], "default");
    assert!(event["metadata"]["name"].as_str().unwrap().starts_with("x."));
}

#[tokio::test]
async fn the_event_of_an_error_has_the_reason_of_the_error_and_a_conflict_has_no_event() {
    let failing =
        |_: &Lamp, _: &mut LampStatus| Err("x".parse::<u8>().permanent().unwrap_err().reason("NoNumber"));
    let effects = given(lamp()).reconcile(reconciling(failing), "default/x").await;
    assert_eq!(effects.events(), [Event::warning("NoNumber", "invalid digit found in string")]);
    let conflicting = |_: &Lamp, _: &mut LampStatus| {
        let status = kube::core::Status::failure("stale", "Conflict").with_code(409);
        Err(kube::Error::Api(Box::new(status)).into())
    };
    assert!(given(lamp()).reconcile(reconciling(conflicting), "default/x").await.events().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_joins_the_series_of_the_first_for_six_minutes() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    for _ in 0..3 {
        recorder.record(&lamp(), Event::normal("Again", "and again"));
    }
    recorder.record(&lamp(), Event::normal("Again", "with another message"));
    recorder.flush().await;
    let writes = server.take_writes();
    let verbs: Vec<_> = writes.iter().map(|write| write.verb).collect();
    assert_eq!(verbs, ["create", "patch", "patch", "create"]);
    assert_eq!(writes[1].namespace.as_deref(), Some("default"));
    assert_eq!(writes[1].name, writes[0].body["metadata"]["name"].as_str().unwrap());
    assert_eq!([&writes[1].body["series"]["count"], &writes[2].body["series"]["count"]], [2, 3]);
    assert!(writes[1].body["series"]["lastObservedTime"].is_string());
    tokio::time::advance(std::time::Duration::from_secs(361)).await;
    recorder.record(&lamp(), Event::normal("Again", "and again"));
    recorder.flush().await;
    assert_eq!(server.take_writes()[0].verb, "create", "the series has not ended");
}

#[tokio::test]
async fn a_repeated_event_is_stored_again_if_the_first_expired() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    let event = || Event::normal("Again", "and again");
    recorder.record(&lamp(), event());
    recorder.flush().await;
    server.fail_times(Verb::Patch, "events", 404, 1);
    recorder.record(&lamp(), event());
    recorder.record(&lamp(), event());
    recorder.flush().await;
    let verbs: Vec<_> = server.take_writes().iter().map(|write| write.verb).collect();
    assert_eq!(verbs, ["create", "patch", "create", "patch"]);
}

#[tokio::test]
async fn events_about_cluster_scoped_objects_are_in_the_namespace_default() {
    let server = ApiServer::new();
    let mut shop = Namespace::default();
    shop.metadata.name = Some("shop".into());
    let recorder = lamp_recorder(&server);
    recorder.record(&shop, Event::normal("Opened", ""));
    recorder.flush().await;
    assert_eq!(server.take_writes()[0].namespace.as_deref(), Some("default"));
}

#[tokio::test]
async fn thousands_of_events_in_a_namespace_neither_delay_nor_displace_those_of_another_one() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    let record = |namespace: &str, name: &str| {
        let mut lamp = lamp();
        lamp.metadata.namespace = Some(namespace.into());
        (lamp.metadata.name, lamp.metadata.uid) = (Some(name.into()), Some(format!("uid-{name}")));
        recorder.record(&lamp, Event::warning("Failed", "as planned"));
    };
    (0..2000).for_each(|n| record("hostile", &n.to_string()));
    (0..5).for_each(|n| record("honest", &format!("honest-{n}")));
    recorder.flush().await;
    let writes = server.take_writes();
    assert_eq!(writes.len(), 1000);
    let honest = (0..writes.len()).filter(|&n| writes[n].namespace.as_deref() == Some("honest"));
    assert_eq!(honest.collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
}

#[tokio::test]
async fn long_texts_are_cut_between_characters() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    let mut long_named = ConfigMap::default();
    long_named.metadata.name = Some("n".repeat(253));
    recorder.record(&long_named, Event::warning(&"R".repeat(200), format!("x{}", "ä".repeat(600))));
    recorder.flush().await;
    let event = &server.take_writes()[0].body;
    assert_eq!(event["note"].as_str().unwrap(), format!("x{}", "ä".repeat(511)));
    assert_eq!(event["reason"].as_str().unwrap().len(), 128);
    let name = event["metadata"]["name"].as_str().unwrap();
    assert!(name.len() <= 253 && name.starts_with(&format!("{}.", "n".repeat(230))), "{name}");
}

#[tokio::test]
async fn the_event_of_an_object_whose_name_is_not_a_dns_name_is_called_event() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    let mut role = ConfigMap::default();
    role.metadata.name = Some("system:Ä".into());
    recorder.record(&role, Event::normal("Opened", ""));
    recorder.flush().await;
    let name = &server.take_writes()[0].body["metadata"]["name"];
    assert!(name.as_str().unwrap().starts_with("event."), "{name}");
}

#[tokio::test(start_paused = true)]
async fn events_that_cannot_be_recorded_are_dropped_and_do_not_fail_a_pass() {
    let lighting = |_: &Lamp, status: &mut LampStatus| {
        status.light();
        Ok(Outcome::done().event(Event::normal("Lit", "")))
    };
    let effects = given(lamp())
        .failing(Verb::Create, "events", 403)
        .reconcile(reconciling(lighting), "default/x")
        .await;
    assert!(effects.result.is_ok());
    assert_eq!(effects.writes(), ["patch lamps/status default/x"]);
}

/// The number of events that were dropped.
fn dropped(metrics: &Registry) -> f64 {
    let families = metrics.gather();
    let dropped = families.iter().find(|family| family.name() == "reknit_events_dropped_total").unwrap();
    dropped.get_metric()[0].get_counter().get_value()
}

#[tokio::test]
async fn an_event_is_counted_as_dropped_unless_its_namespace_is_gone() {
    for (message, expected) in
        [("namespaces \"default\" not found", 0.0), ("the server could not find the requested resource", 1.0)]
    {
        let server = ApiServer::new();
        let refusal = json!({
            "kind": "Status", "status": "Failure", "message": message, "reason": "NotFound", "code": 404,
        });
        server.answer(move |_, _, _| Some((http::StatusCode::NOT_FOUND, refusal.clone())));
        let (recorder, metrics) = {
            let cx = Context::preloaded("test", server.client(), vec![]);
            (Controller::of::<Lamp>(&cx).recorder(), cx.metrics().clone())
        };
        recorder.record(&lamp(), Event::normal("Seen", ""));
        recorder.flush().await;
        assert_eq!(dropped(&metrics), expected, "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_at_most_a_thousand_events_are_pending() {
    let server = ApiServer::new();
    let (recorder, metrics) = {
        let cx = Context::preloaded("test", server.client(), vec![]);
        (Controller::of::<Lamp>(&cx).recorder(), cx.metrics().clone())
    };
    for n in 0..1500 {
        let lamp = Lamp::new(&format!("lamp-{n}"), LampSpec { watts: None });
        recorder.record(&lamp, Event::normal("Many", ""));
    }
    recorder.flush().await;
    assert_eq!(server.take_writes().len(), 1000);
    assert_eq!(dropped(&metrics), 500.0);
}

#[tokio::test(start_paused = true)]
async fn events_are_published_in_the_background_without_a_flush() {
    let server = ApiServer::new();
    lamp_recorder(&server).record(&lamp(), Event::normal("Seen", ""));
    for _ in 0..1000 {
        if !server.take_writes().is_empty() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("the event was not published");
}

#[tokio::test(start_paused = true)]
async fn the_events_about_one_object_are_limited_to_25_and_then_one_in_five_minutes() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    let other = Lamp::new("other", LampSpec { watts: None });
    for n in 0..100 {
        recorder.record(&lamp(), Event::normal("Many", n.to_string()));
    }
    recorder.record(&other, Event::normal("Few", ""));
    recorder.flush().await;
    assert_eq!(server.take_writes().len(), 26);
    for (minutes, stored) in [(4, 0), (1, 1), (10, 2)] {
        tokio::time::advance(Duration::from_secs(minutes * 60)).await;
        for n in 0..5 {
            recorder.record(&lamp(), Event::normal("More", format!("{minutes} {n}")));
        }
        recorder.flush().await;
        assert_eq!(server.take_writes().len(), stored, "after {minutes} minutes");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_beyond_the_limit_is_counted_later() {
    let server = ApiServer::new();
    let recorder = lamp_recorder(&server);
    for _ in 0..301 {
        recorder.record(&lamp(), Event::normal("Waiting", ""));
        recorder.flush().await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let writes = server.take_writes();
    assert_eq!(writes.len(), 26);
    assert_eq!(writes[25].body["series"]["count"], 301);
}

/// Returns a client that forwards the requests for events to the receiver, and loses the first and the third response.
/// The second response is a 409, because the first request has created the event.
fn client_that_loses_responses() -> (Client, mpsc::UnboundedReceiver<Value>) {
    let (sender, requests) = mpsc::unbounded_channel();
    let responses = Arc::new(AtomicUsize::new(0));
    let respond = move |request: http::Request<Body>| {
        let (sender, nth) = (sender.clone(), responses.fetch_add(1, Ordering::SeqCst));
        async move {
            let body = request.into_body().collect_bytes().await.unwrap();
            sender.send(serde_json::from_slice(&body).unwrap()).unwrap();
            if nth % 2 == 0 {
                return Err(std::io::Error::other("the connection broke"));
            }
            let code = if nth == 1 { 409 } else { 200 };
            let conflict = json!({"kind": "Status", "status": "Failure", "code": code, "reason": "AlreadyExists", "message": ""});
            let body = if code == 409 { conflict } else { serde_json::from_slice(&body).unwrap() };
            let body = Body::from(body.to_string().into_bytes());
            Ok(http::Response::builder().status(code).body(body).unwrap())
        }
    };
    (Client::new(tower::service_fn(respond), "default"), requests)
}

#[tokio::test(start_paused = true)]
async fn an_event_whose_response_was_lost_is_stored_and_counted_once() {
    let (client, mut requests) = client_that_loses_responses();
    let recorder = Controller::of::<Lamp>(&Context::preloaded("test", client, vec![])).recorder();
    for _ in 0..2 {
        recorder.record(&lamp(), Event::normal("Again", "and again"));
    }
    let (first, again) = (requests.recv().await.unwrap(), requests.recv().await.unwrap());
    assert_eq!(first, again, "the repeated request has another name or time");
    let (first, again) = (requests.recv().await.unwrap(), requests.recv().await.unwrap());
    assert_eq!(first["series"]["count"], 2);
    assert_eq!(first, again);
}

#[tokio::test(start_paused = true)]
async fn events_of_a_namespace_that_refuses_them_do_not_delay_those_of_another_one() {
    for (code, reason) in [(409, "Conflict"), (429, "TooManyRequests")] {
        let server = ApiServer::new();
        let details = json!({"retryAfterSeconds": 3});
        let refusal = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no",
            "details": details});
        server.answer(move |_, path, _| {
            let is_refused = path.ends_with("/namespaces/hostile/events");
            is_refused.then(|| (http::StatusCode::from_u16(code).unwrap(), refusal.clone()))
        });
        let (recorder, metrics) = {
            let cx = Context::preloaded("test", server.client(), vec![]);
            (Controller::of::<Lamp>(&cx).recorder(), cx.metrics().clone())
        };
        for n in 0..5 {
            for namespace in ["hostile", "honest"] {
                let mut lamp = lamp();
                lamp.metadata.namespace = Some(namespace.into());
                (lamp.metadata.name, lamp.metadata.uid) =
                    (Some(n.to_string()), Some(format!("{namespace}-{n}")));
                recorder.record(&lamp, Event::warning("Failed", "as planned"));
            }
        }
        let start = tokio::time::Instant::now();
        let stored = || server.objects().iter().filter(|object| object["kind"] == "Event").count();
        reknit_testing::eventually("the events", Duration::from_secs(60), async || stored() == 5).await;
        let taken = start.elapsed();
        assert!(taken < Duration::from_secs(1), "{code}: {taken:?}");
        let is_dropped = async || dropped(&metrics) == 5.0;
        reknit_testing::eventually("the others to be dropped", Duration::from_secs(600), is_dropped).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_a_quota_refused_because_of_a_conflict_is_stored_later() {
    let server = ApiServer::new();
    let conflict = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict",
        "message": "Operation cannot be fulfilled on resourcequotas \"quota\": the object has been modified"});
    let requests = AtomicUsize::new(0);
    server.answer(move |_, path, _| {
        let is_first = path.ends_with("/events") && requests.fetch_add(1, Ordering::SeqCst) == 0;
        is_first.then(|| (http::StatusCode::CONFLICT, conflict.clone()))
    });
    let recorder = lamp_recorder(&server);
    recorder.record(&lamp(), Event::normal("Once", "and no more"));
    let is_stored = async || server.objects().iter().any(|object| object["kind"] == "Event");
    reknit_testing::eventually("the event", Duration::from_secs(60), is_stored).await;
}
