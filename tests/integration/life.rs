//! The life of an AddressableService.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use k8s_openapi::api::core::v1::Service;
use reknit::testing::eventually;
use samples_apis::AddressableService;

use crate::support::{
    objects::{Objects, observed, shown},
    process,
    server::Server,
    tally::{Tally, Write},
    wait::SOON,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_addressable_service_follows_its_service_until_it_is_deleted() {
    let server = Server::quiet().await;
    let objects = server.objects("life").await;
    let controller = process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    let tally = Tally::of::<AddressableService>(&objects.client, &objects.namespace).await;

    objects.create("x", "web").await;
    objects.shows("x", &objects.unavailable("web")).await;

    becomes_ready_within_a_second(&objects, &tally).await;

    let moved = objects.rename_service("x", "other").await;
    let seen = objects.shows("x", &objects.unavailable("other")).await;
    assert_eq!(moved.metadata.generation, Some(2));
    assert!(observed(&seen), "observedGeneration does not follow");

    objects.create_service("other").await;
    objects.ready("x", "other").await;
    objects.delete_service("other").await;
    objects.shows("x", &objects.unavailable("other")).await;

    objects.delete("x").await;
    let withdrawn = objects.event("x", "AddressWithdrawn").await;
    assert_eq!(withdrawn.type_.as_deref(), Some("Normal"));
    assert_eq!(withdrawn.reporting_controller.as_deref(), Some("addressableservice-controller"));
    objects.gone("x").await;
    tally.when("its deletion", "x", |seen| seen.write == Write::Deleted).await;
    assert_eq!(*tally.writes("x").last().expect("events"), Write::Deleted);
    println!("writes to the object in its life: {:?}", tally.writes("x"));
    controller.stop().await;
}

/// Asserts that a watcher sees the status at most a second after the event of the Service.
async fn becomes_ready_within_a_second(objects: &Objects, tally: &Tally) {
    let services = Tally::of::<Service>(&objects.client, &objects.namespace).await;
    objects.create_service("web").await;
    let created = services.when("the Service's event", "web", |seen| seen.write == Write::Created).await;
    objects.ready("x", "web").await;
    let ready = tally
        .when("the status's event", "x", |seen| {
            seen.object.data["status"]["conditions"][0]["status"] == "True"
        })
        .await;
    let took = ready.saturating_duration_since(created);
    println!("Ready {took:?} after the Service's event");
    assert!(took < Duration::from_secs(1), "Ready only {took:?} after the Service's event");
}

#[tokio::test(flavor = "multi_thread")]
async fn last_transition_time_moves_only_with_its_condition() {
    let server = Server::shared().await;
    let objects = server.objects("times").await;
    let within = || process::controller(server.kubeconfig()).alone().within(&objects.namespace).spawn();
    let controller = within();
    objects.create_service("one").await;
    objects.create_service("two").await;
    objects.create("x", "one").await;
    let first = transition(&objects.ready("x", "one").await);

    // The spec changes and the condition does not.
    next_second(&first).await;
    objects.rename_service("x", "two").await;
    let renamed = objects.ready("x", "two").await;
    assert_eq!(transition(&renamed), first, "it moved with the spec");

    // Another process reconciles the object.
    controller.stop().await;
    let controller = within();
    controller.ready().await;
    objects.rename_service("x", "one").await;
    assert_eq!(transition(&objects.ready("x", "one").await), first, "it moved with a restart");

    // The condition changes.
    objects.delete_service("one").await;
    let lost = transition(&objects.shows("x", &objects.unavailable("one")).await);
    assert_ne!(lost, first, "it stayed though the condition changed");
    println!(
        "Ready True since {first} through two changes of the spec and a restart, then False since {lost}"
    );
    controller.stop().await;
}

fn transition(object: &AddressableService) -> String {
    assert!(shown(object).is_some(), "no Ready condition");
    let status = serde_json::to_value(&object.status).expect("JSON");
    status["conditions"][0]["lastTransitionTime"].as_str().expect("a time").to_owned()
}

/// Waits for the next second. Times in objects have whole seconds, so a change within the same second would not show.
async fn next_second(time: &str) {
    let then: k8s_openapi::jiff::Timestamp = time.parse().expect("RFC 3339");
    eventually("the next second", SOON, async || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        now.cast_signed() > then.as_second()
    })
    .await;
}
