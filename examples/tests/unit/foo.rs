//! Tests of single passes of foo.

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use reknit::{
    prelude::*,
    testing::{Verb, each_permission_is_needed, given},
};
use serde_json::json;

use crate::{
    permissions::failed_status_writes,
    support::{
        controller_of,
        foo::{
            foo,
            program::{Foo, FooStatus, controller},
        },
    },
};

fn synced() -> Event {
    Event::normal("Synced", "Foo synced successfully")
}

/// The Foo `default/x`, with a Deployment `web` of three replicas.
fn foo_x() -> Foo {
    let mut foo = foo("x", "web", 3);
    foo.metadata.namespace = Some("default".into());
    foo.metadata.uid = Some("uid-of-x".into());
    foo
}

#[tokio::test]
async fn a_pass_applies_the_deployment_and_the_next_one_sends_nothing() {
    let first = given(foo_x()).reconcile(controller, "default/x").await;
    assert!(first.result.is_ok());
    assert_eq!(first.writes(), ["patch deployments default/web"]);
    assert_eq!(first.events(), [synced()]);
    let deployment = first.object::<Deployment>("default/web").unwrap();
    let labels = json!({"app": "nginx", "controller": "x"});
    let spec = json!(deployment.spec);
    assert_eq!(spec["replicas"], 3);
    assert_eq!(spec["selector"]["matchLabels"], labels);
    assert_eq!(spec["template"]["metadata"]["labels"], labels);
    assert_eq!(spec["template"]["spec"]["containers"][0]["image"], "nginx:latest");
    assert_eq!(controller_of(&deployment), Some(("Foo".into(), "x".into())));

    let foo = first.object::<Foo>("default/x").unwrap();
    let second = given(foo).and(deployment).reconcile(controller, "default/x").await;
    assert_eq!(second.writes(), [""; 0]);
    assert_eq!(second.events(), [synced()]);
}

#[tokio::test]
async fn the_status_has_the_available_replicas_of_the_deployment() {
    let first = given(foo_x()).reconcile(controller, "default/x").await;
    let mut deployment = first.object::<Deployment>("default/web").unwrap();
    deployment.status = Some(DeploymentStatus { available_replicas: Some(2), ..DeploymentStatus::default() });
    let second = given(foo_x()).and(deployment).reconcile(controller, "default/x").await;
    assert_eq!(second.writes(), ["patch foos/status default/x"]);
    assert_eq!(second.write(0).body["status"], json!({"availableReplicas": 2}));
}

#[tokio::test]
async fn a_new_deployment_has_no_available_replicas() {
    let mut foo = foo_x();
    foo.status = Some(FooStatus { available_replicas: 2 });
    let effects = given(foo).reconcile(controller, "default/x").await;
    assert_eq!(effects.object::<Foo>("default/x").unwrap().status, Some(FooStatus { available_replicas: 0 }));
}

#[tokio::test]
async fn a_deployment_of_another_owner_is_reported_and_not_changed() {
    let mut foreign = Deployment::default();
    foreign.metadata.name = Some("web".into());
    foreign.metadata.namespace = Some("default".into());
    let effects = given(foo_x()).and(foreign).reconcile(controller, "default/x").await;
    assert!(effects.result.as_ref().unwrap_err().is_permanent());
    assert_eq!(effects.writes(), [""; 0]);
    let expected =
        Event::warning("ErrResourceExists", "Resource \"web\" already exists and is not managed by Foo");
    assert_eq!(effects.events(), [expected]);
}

#[tokio::test]
async fn a_failed_request_is_an_error_that_is_retried() {
    let effects =
        given(foo_x()).failing(Verb::Patch, "deployments", 500).reconcile(controller, "default/x").await;
    assert!(!effects.result.as_ref().unwrap_err().is_permanent());
    assert_eq!(effects.events()[0].reason, "InternalError");
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        let mut foo = foo_x();
        // The pass writes another status.
        foo.status = Some(FooStatus { available_replicas: 2 });
        failed_status_writes(controller, "foos", "default/x", || given(foo.clone()))
    })
    .await;
}
