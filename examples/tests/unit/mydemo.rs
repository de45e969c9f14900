//! Tests of single passes of mydemo.

use reknit::{
    prelude::*,
    testing::{each_permission_is_needed, given, nothing, table},
};

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
