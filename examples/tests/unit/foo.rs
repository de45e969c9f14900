//! Single passes of foo.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use reknit::{
    prelude::*,
    testing::{Verb, given},
};
use serde_json::json;

use crate::support::{
    controller_of,
    foo::{
        foo,
        program::{Foo, FooStatus, controller},
    },
};

fn synced() -> Event {
    Event::normal("Synced", "Foo synced successfully")
}

/// `default/x`, which wants a Deployment `web` of three.
fn given_foo() -> Foo {
    let mut foo = foo("x", "web", 3);
    foo.metadata.namespace = Some("default".into());
    foo.metadata.uid = Some("uid-of-x".into());
    foo
}

#[tokio::test]
async fn a_pass_applies_the_deployment_and_the_next_one_sends_nothing() {
    let first = given(given_foo()).pass(controller, "default/x").await;
    assert!(first.result.is_ok());
    assert_eq!(first.writes(), ["patch deployments default/web"]);
    assert_eq!(first.events(), [synced()]);
    let made = first.object::<Deployment>("default/web").unwrap();
    let labels = json!({"app": "nginx", "controller": "x"});
    let spec = json!(made.spec);
    assert_eq!(spec["replicas"], 3);
    assert_eq!(spec["selector"]["matchLabels"], labels);
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(spec["template"]["spec"]["containers"][0]["image"], "nginx:latest");
    assert_eq!(controller_of(&made), Some(("Foo".into(), "x".into())));

    let foo = first.object::<Foo>("default/x").unwrap();
    let second = given(foo).and(made).pass(controller, "default/x").await;
    assert_eq!(second.writes(), [""; 0]);
    assert_eq!(second.events(), [synced()]);
}

#[tokio::test]
async fn what_is_available_is_in_the_status_until_the_deployment_goes() {
    let first = given(given_foo()).pass(controller, "default/x").await;
    let mut made = first.object::<Deployment>("default/web").unwrap();
    made.status = Some(DeploymentStatus { available_replicas: Some(2), ..DeploymentStatus::default() });
    let second = given(given_foo()).and(made).pass(controller, "default/x").await;
    assert_eq!(second.writes(), ["patch foos/status default/x"]);
    assert_eq!(second.write(0).body["status"], json!({"availableReplicas": 2}));

    let mut foo = given_foo();
    foo.status = Some(FooStatus { available_replicas: 2 });
    let third = given(foo).pass(controller, "default/x").await;
    assert_eq!(third.object::<Foo>("default/x").unwrap().status, Some(FooStatus { available_replicas: 0 }));
}

#[tokio::test]
async fn a_deployment_of_somebody_else_is_told_of_and_left_alone() {
    let mut theirs = Deployment::default();
    theirs.metadata.name = Some("web".into());
    theirs.metadata.namespace = Some("default".into());
    let passed = given(given_foo()).and(theirs).pass(controller, "default/x").await;
    assert!(passed.result.as_ref().unwrap_err().is_permanent());
    assert_eq!(passed.writes(), [""; 0]);
    let taken =
        Event::warning("ErrResourceExists", "Resource \"web\" already exists and is not managed by Foo");
    assert_eq!(passed.events(), [taken]);
}

#[tokio::test]
async fn an_answer_that_failed_is_tried_again() {
    let passed =
        given(given_foo()).failing(Verb::Patch, "deployments", 500).pass(controller, "default/x").await;
    assert!(!passed.result.as_ref().unwrap_err().is_permanent());
    assert_eq!(passed.events()[0].reason, "InternalError");
}
