//! Tests of single passes of mydemo.

use reknit::{
    prelude::*,
    testing::{given, nothing},
};

use crate::support::mydemo::{demo, program::controller};

#[tokio::test]
async fn a_pass_records_an_event_and_writes_nothing() {
    let mut object = demo();
    object.metadata.namespace = Some("default".into());
    let passed = given(object).pass(controller, "default/demo").await;
    assert_eq!(passed.events(), [Event::normal("Synced", "Mydemo synced successfully")]);
    assert_eq!(passed.writes(), [""; 0]);
}

#[tokio::test]
async fn a_pass_without_an_object_records_nothing() {
    let passed = nothing().pass(controller, "default/demo").await;
    assert_eq!(passed.result.as_ref().ok(), Some(&Outcome::done()));
    assert_eq!((passed.events(), passed.writes()), (vec![], vec![]));
}
