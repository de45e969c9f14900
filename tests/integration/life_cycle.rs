//! The life cycle of an AddressableService.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::Service;
use reknit::testing::eventually;
use reknit_samples::AddressableService;

use crate::support::{
    objects::{Objects, is_observed, state},
    process,
    server::Server,
    wait::TIMEOUT,
    watch_recorder::{WatchRecorder, Write},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_addressable_service_follows_its_service_until_it_is_deleted() {
    let server = Server::exclusive().await;
    let objects = server.objects_in_new_namespace("life").await;
    let controller = process::controller(server.kubeconfig())
        .without_leader_election()
        .in_namespace(&objects.namespace)
        .spawn();
    let recorder = WatchRecorder::start::<AddressableService>(&objects.client, &objects.namespace).await;

    objects.create_addressable("x", "web").await;
    objects.wait_for_state("x", &objects.unavailable("web")).await;

    assert_ready_soon(&objects, &recorder).await;

    let patched = objects.set_service_name("x", "other").await;
    let reconciled = objects.wait_for_state("x", &objects.unavailable("other")).await;
    assert_eq!(patched.metadata.generation, Some(2));
    assert!(is_observed(&reconciled), "observedGeneration is not the latest generation");

    objects.create_service("other").await;
    objects.wait_until_ready("x", "other").await;
    objects.delete_service("other").await;
    objects.wait_for_state("x", &objects.unavailable("other")).await;

    objects.delete_addressable("x").await;
    let withdrawn = objects.wait_for_event("x", "AddressWithdrawn").await;
    assert_eq!(withdrawn.type_.as_deref(), Some("Normal"));
    assert_eq!(withdrawn.reporting_controller.as_deref(), Some("addressableservice-controller"));
    objects.wait_until_gone("x").await;
    recorder.wait_for_event("its deletion", "x", |event| event.write == Write::Deleted).await;
    assert_eq!(*recorder.writes("x").last().expect("events"), Write::Deleted);
    println!("all writes to the object: {:?}", recorder.writes("x"));
    controller.stop().await;
}

/// Creates the Service `web`, and asserts that a watch of `x` soon reports it Ready after a watch of Services has reported
/// the Service: that event led to the pass, since nothing else does for hours.
async fn assert_ready_soon(objects: &Objects, recorder: &WatchRecorder) {
    let service_recorder = WatchRecorder::start::<Service>(&objects.client, &objects.namespace).await;
    objects.create_service("web").await;
    let created = service_recorder
        .wait_for_event("the Service's event", "web", |event| event.write == Write::Created)
        .await;
    objects.wait_until_ready("x", "web").await;
    let ready = recorder
        .wait_for_event("the status's event", "x", |event| {
            event.object.data["status"]["conditions"][0]["status"] == "True"
        })
        .await;
    let took = ready.saturating_duration_since(created);
    println!("Ready {took:?} after the Service's event");
    assert!(took < Duration::from_secs(30), "Ready only {took:?} after the Service's event");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_transition_time_changes_only_with_the_status_of_its_condition() {
    let server = Server::shared().await;
    let objects = server.objects_in_new_namespace("times").await;
    let start = || {
        process::controller(server.kubeconfig())
            .without_leader_election()
            .in_namespace(&objects.namespace)
            .spawn()
    };
    let controller = start();
    objects.create_service("one").await;
    objects.create_service("two").await;
    objects.create_addressable("x", "one").await;
    let first = last_transition_time(&objects.wait_until_ready("x", "one").await);

    // The spec changes and the condition does not.
    next_second(&first).await;
    objects.set_service_name("x", "two").await;
    let renamed = objects.wait_until_ready("x", "two").await;
    assert_eq!(last_transition_time(&renamed), first, "lastTransitionTime changed with the spec");

    // Another process reconciles the object.
    controller.stop().await;
    let controller = start();
    controller.wait_until_ready().await;
    objects.set_service_name("x", "one").await;
    assert_eq!(
        last_transition_time(&objects.wait_until_ready("x", "one").await),
        first,
        "lastTransitionTime changed after a restart"
    );

    // The condition changes.
    objects.delete_service("one").await;
    let unavailable = last_transition_time(&objects.wait_for_state("x", &objects.unavailable("one")).await);
    assert_ne!(unavailable, first, "lastTransitionTime did not change with the condition");
    println!(
        "Ready True since {first} through two changes of the spec and a restart, then False since {unavailable}"
    );
    controller.stop().await;
}

fn last_transition_time(object: &AddressableService) -> String {
    assert!(state(object).is_some(), "no Ready condition");
    let status = serde_json::to_value(&object.status).expect("JSON");
    status["conditions"][0]["lastTransitionTime"].as_str().expect("a time").to_owned()
}

/// Waits for the second after `time`. Times in objects have whole seconds, so a change within the same second would not
/// show.
async fn next_second(time: &str) {
    let time: k8s_openapi::jiff::Timestamp = time.parse().expect("RFC 3339");
    eventually("the next second", TIMEOUT, async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        now.cast_signed() > time.as_second()
    })
    .await;
}
