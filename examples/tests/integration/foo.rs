//! Tests of foo as a process.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit::testing::eventually;
use serde_json::{Value, json};

use crate::{
    environment::Environment,
    support::{
        controller_of, file,
        foo::{foo, program::Foo},
        replicas,
        wait::TIMEOUT,
    },
};

impl Environment {
    async fn create_foo(&self, foo: Foo) -> Foo {
        self.api().create(&PostParams::default(), &foo).await.expect("it is created")
    }

    async fn wait_until_available(&self, foo: &str, expected: i32) {
        let foos = self.api::<Foo>();
        eventually(format!("{expected} available replicas in the status of {foo}"), TIMEOUT, async || {
            let status = foos.get(foo).await.map_err(|error| error.to_string())?.status;
            match status.as_ref().is_some_and(|status| status.available_replicas == expected) {
                true => Ok(()),
                false => Err(format!("{status:?}; the log:\n{}", self.process.last_lines())),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_changed_or_deleted_deployment_is_restored() {
    let env = Environment::start("foo").await;
    env.create_foo(foo("keeps", "kept", 2)).await;
    let first = env
        .wait_for_deployment("kept", "with two replicas", |deployment| replicas(deployment) == Some(2))
        .await;
    assert_eq!(controller_of(&first), Some(("Foo".into(), "keeps".into())));
    env.wait_until_available("keeps", 2).await;
    assert_eq!(
        env.wait_for_event("keeps", "Synced").await,
        ("Normal".into(), "Foo synced successfully".into())
    );

    env.merge_patch::<Foo>("keeps", json!({"spec": {"replicas": 3}})).await;
    env.wait_until_available("keeps", 3).await;

    let manual_change = env.merge_patch::<Deployment>("kept", json!({"spec": {"replicas": 1}})).await;
    let is_restored = |deployment: &Deployment| {
        replicas(deployment) == Some(3) && deployment.metadata.generation > manual_change.metadata.generation
    };
    env.wait_for_deployment("kept", "with three replicas again", is_restored).await;
    env.wait_until_available("keeps", 3).await;

    env.api::<Deployment>().delete("kept", &DeleteParams::default()).await.unwrap();
    env.wait_for_deployment("kept", "created again", |deployment| deployment.uid() != first.uid()).await;
    env.wait_until_available("keeps", 3).await;

    env.api::<Foo>().delete("keeps", &DeleteParams::default()).await.unwrap();
    let deployments = env.api::<Deployment>();
    eventually("the deletion of the Deployment after that of its Foo", TIMEOUT, async || {
        deployments.get_opt("kept").await.is_ok_and(|found| found.is_none())
    })
    .await;
    env.process.stop().await;
}

#[tokio::test]
async fn a_deployment_of_another_owner_is_not_changed_and_replaced_once_it_is_deleted() {
    let env = Environment::start("foo").await;
    let foreign: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "foreign"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "foreign"}},
            "template": {
                "metadata": {"labels": {"app": "foreign"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }))
    .unwrap();
    let deployments = env.api::<Deployment>();
    deployments.create(&PostParams::default(), &foreign).await.unwrap();
    let is_available = |deployment: &Deployment| {
        deployment.status.as_ref().and_then(|status| status.available_replicas) == Some(1)
    };
    let foreign = env.wait_for_deployment("foreign", "available", is_available).await;
    env.create_foo(foo("wants", "foreign", 2)).await;
    let (kind, message) = env.wait_for_event("wants", "ErrResourceExists").await;
    assert_eq!(kind, "Warning");
    assert_eq!(message, "Resource \"foreign\" already exists and is not managed by Foo");
    let current = deployments.get("foreign").await.unwrap();
    assert_eq!((current.spec, current.metadata.owner_references), (foreign.spec, None));
    assert_eq!(env.api::<Foo>().get("wants").await.unwrap().status, None);

    deployments.delete("foreign", &DeleteParams::default()).await.unwrap();
    let is_controlled =
        |deployment: &Deployment| controller_of(deployment) == Some(("Foo".into(), "wants".into()));
    env.wait_for_deployment("foreign", "controlled by the Foo", is_controlled).await;
    env.wait_until_available("wants", 2).await;
    env.process.stop().await;
}

#[tokio::test]
async fn invalid_values_are_refused_by_the_schema() {
    let env = Environment::start("foo").await;
    let refused = async |name: &str, spec: Value| {
        let foo = json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": {"name": name}, "spec": spec,
        });
        let resource = kube::api::ApiResource::erase::<Foo>(&());
        let foos: kube::Api<kube::api::DynamicObject> =
            kube::Api::namespaced_with(env.client.clone(), &env.namespace, &resource);
        let foo = serde_json::from_value(foo).unwrap();
        let error = foos.create(&PostParams::default(), &foo).await.unwrap_err();
        let kube::Error::Api(status) = error else { panic!("{error}") };
        assert_eq!(status.code, 422, "{status:?}");
        status.message
    };
    let cases = [
        (
            json!({"deploymentName": "a", "replicas": 0}),
            "spec.replicas in body should be greater than or equal to 1",
        ),
        (
            json!({"deploymentName": "a", "replicas": 11}),
            "spec.replicas in body should be less than or equal to 10",
        ),
        (json!({"deploymentName": "a", "replicas": "two"}), "must be of type integer"),
        (json!({"replicas": 1}), "spec.deploymentName: Required value"),
        (json!({"deploymentName": ""}), "spec.deploymentName in body should be at least 1 chars long"),
        (json!({"deploymentName": "No_Name"}), "spec.deploymentName in body should match"),
        (json!({"deploymentName": "a..b"}), "spec.deploymentName in body should match"),
        (json!({"deploymentName": "a.-b"}), "spec.deploymentName in body should match"),
        (
            json!({"deploymentName": "a".repeat(254)}),
            "spec.deploymentName: Too long: may not be more than 253 bytes",
        ),
    ];
    for (spec, expected) in cases {
        let message = refused("bad", spec).await;
        assert!(message.contains(expected), "{message}");
    }
    let message = refused(&"n".repeat(64), json!({"deploymentName": "a"})).await;
    assert!(message.contains("63 bytes at most"), "{message}");
    env.create_foo(foo("ten", "ten.of-them", 10)).await;
    env.wait_until_available("ten", 10).await;
}

#[tokio::test]
async fn the_deployment_of_the_example_becomes_available() {
    let env = Environment::start("foo").await;
    let example = std::fs::read_to_string(file("foo", "example.yaml")).unwrap();
    let example: Foo = serde_saphyr::from_str(&example).unwrap();
    env.create_foo(example).await;
    env.wait_until_available("example", 2).await;
}
