//! Tests of single passes of foo, and a simulation.

use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use reknit::{
    prelude::*,
    simulation::{deployments_roll_out, simulation},
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

#[test]
fn foos_keep_their_deployments_through_faults() {
    let mut short_lived = foo("y", "api", 2);
    short_lived.metadata.namespace = Some("default".into());
    let secs = Duration::from_secs;
    simulation([controller])
        .cluster(deployments_roll_out(secs(2)))
        .at(secs(1), |cluster| cluster.create(foo_x()))
        .at(secs(2), move |cluster| cluster.create(short_lived.clone()))
        .at(secs(20), |cluster| cluster.merge::<Foo>("default/x", &json!({"spec": {"replicas": 5}})))
        .at(secs(30), |cluster| cluster.delete::<Foo>("default/y"))
        // Another one scales the Deployment, and the controller takes that back.
        .at(secs(40), |cluster| {
            if cluster.get::<Deployment>("default/web").is_some() {
                cluster.merge::<Deployment>("default/web", &json!({"spec": {"replicas": 1}}));
            }
        })
        .finally("one Deployment of five available pods, as the Foo says", |cluster| {
            let deployments = cluster.list::<Deployment>();
            let replicas: Vec<_> = deployments.iter().map(crate::support::replicas).collect();
            let status = cluster.get::<Foo>("default/x").and_then(|foo| foo.status);
            replicas == [Some(5)] && status == Some(FooStatus { available_replicas: 5 })
        })
        .seeds(0..30)
        .each_write()
        .run();
}
