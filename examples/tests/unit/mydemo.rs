//! Tests of single passes of mydemo, and a simulation.

use std::time::Duration;

use reknit::{
    prelude::*,
    simulation::simulation,
    testing::{each_permission_is_needed, given, nothing, table},
};
use serde_json::json;

use crate::support::mydemo::{
    demo,
    program::{Mydemo, controller},
};

/// The Mydemo `default/demo`.
fn stored_demo() -> Mydemo {
    let mut object = demo();
    object.metadata.namespace = Some("default".into());
    object
}

#[tokio::test]
async fn a_pass_records_an_event_and_writes_nothing() {
    let effects = given(stored_demo()).reconcile(controller, "default/demo").await;
    assert_eq!(effects.events(), [Event::normal("Synced", "Mydemo synced successfully")]);
    assert_eq!(effects.writes(), [""; 0]);
}

#[tokio::test]
async fn a_pass_without_an_object_records_nothing() {
    let effects = nothing().reconcile(controller, "default/demo").await;
    assert_eq!(effects.result.as_ref().ok(), Some(&Outcome::done()));
    assert_eq!((effects.events(), effects.writes()), (vec![], vec![]));
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        table(controller).unchecked_row("an event is recorded", "default/demo", given(stored_demo()))
    })
    .await;
}

#[test]
fn demos_come_change_and_go_through_faults() {
    let secs = Duration::from_secs;
    simulation([controller])
        .at(secs(1), |cluster| cluster.create(stored_demo()))
        .at(secs(15), |cluster| cluster.merge::<Mydemo>("default/demo", &json!({"spec": {"port": 9090}})))
        .at(secs(30), |cluster| cluster.delete::<Mydemo>("default/demo"))
        .at(secs(31), |cluster| cluster.create(stored_demo()))
        .at(secs(50), |cluster| cluster.delete::<Mydemo>("default/demo"))
        .finally("no Mydemo is left", |cluster| cluster.list::<Mydemo>().is_empty())
        .seeds(0..30)
        .each_write()
        .run();
}
