//! foo as a process: a Deployment for each Foo.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    ResourceExt,
    api::{DeleteParams, PostParams},
};
use reknit::testing::eventually;
use serde_json::{Value, json};

use crate::{
    place::Place,
    support::{
        controller_of, file,
        foo::{foo, program::Foo},
        replicas,
        wait::SOON,
    },
};

impl Place {
    async fn foo(&self, foo: Foo) -> Foo {
        self.api().create(&PostParams::default(), &foo).await.expect("it is created")
    }

    async fn available(&self, foo: &str, expected: i32) {
        let foos = self.api::<Foo>();
        eventually(format!("{expected} available replicas in the status of {foo}"), SOON, async || {
            let status = foos.get(foo).await.map_err(|error| error.to_string())?.status;
            match status.as_ref().is_some_and(|status| status.available_replicas == expected) {
                true => Ok(()),
                false => Err(format!("{status:?}; the log:\n{}", self.process.tail())),
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_foo_keeps_its_deployment_whatever_happens_to_it() {
    let place = Place::of("foo").await;
    place.foo(foo("keeps", "kept", 2)).await;
    let first = place.deployment("kept", "of two", |made| replicas(made) == Some(2)).await;
    assert_eq!(controller_of(&first), Some(("Foo".into(), "keeps".into())));
    place.available("keeps", 2).await;
    assert_eq!(place.event("keeps", "Synced").await, ("Normal".into(), "Foo synced successfully".into()));

    place.merge::<Foo>("keeps", json!({"spec": {"replicas": 3}})).await;
    place.available("keeps", 3).await;

    let by_hand = place.merge::<Deployment>("kept", json!({"spec": {"replicas": 1}})).await;
    let put_back = |made: &Deployment| {
        replicas(made) == Some(3) && made.metadata.generation > by_hand.metadata.generation
    };
    place.deployment("kept", "put back to three", put_back).await;
    place.available("keeps", 3).await;

    place.api::<Deployment>().delete("kept", &DeleteParams::default()).await.unwrap();
    place.deployment("kept", "made anew", |made| made.uid() != first.uid()).await;
    place.available("keeps", 3).await;

    place.api::<Foo>().delete("keeps", &DeleteParams::default()).await.unwrap();
    let deployments = place.api::<Deployment>();
    eventually("the Deployment goes with its Foo", SOON, async || {
        deployments.get_opt("kept").await.is_ok_and(|found| found.is_none())
    })
    .await;
    place.process.stop().await;
}

#[tokio::test]
async fn a_deployment_that_is_not_the_foos_is_left_alone_until_it_goes() {
    let place = Place::of("foo").await;
    let theirs: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "theirs"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "a", "image": "a"}]},
            },
        },
    }))
    .unwrap();
    let deployments = place.api::<Deployment>();
    deployments.create(&PostParams::default(), &theirs).await.unwrap();
    let one =
        |made: &Deployment| made.status.as_ref().and_then(|status| status.available_replicas) == Some(1);
    let theirs = place.deployment("theirs", "available", one).await;
    place.foo(foo("wants", "theirs", 2)).await;
    let (kind, message) = place.event("wants", "ErrResourceExists").await;
    assert_eq!(kind, "Warning");
    assert_eq!(message, "Resource \"theirs\" already exists and is not managed by Foo");
    let now = deployments.get("theirs").await.unwrap();
    assert_eq!((now.spec, now.metadata.owner_references), (theirs.spec, None));
    assert_eq!(place.api::<Foo>().get("wants").await.unwrap().status, None);

    deployments.delete("theirs", &DeleteParams::default()).await.unwrap();
    let foos = |made: &Deployment| controller_of(made) == Some(("Foo".into(), "wants".into()));
    place.deployment("theirs", "of the Foo", foos).await;
    place.available("wants", 2).await;
    place.process.stop().await;
}

#[tokio::test]
async fn bad_values_are_refused_by_the_api_server_in_its_own_words() {
    let place = Place::of("foo").await;
    let refused = async |name: &str, spec: Value| {
        let foo = json!({
            "apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": {"name": name}, "spec": spec,
        });
        let resource = kube::api::ApiResource::erase::<Foo>(&());
        let foos: kube::Api<kube::api::DynamicObject> =
            kube::Api::namespaced_with(place.client.clone(), &place.namespace, &resource);
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
    for (spec, said) in cases {
        let message = refused("bad", spec).await;
        assert!(message.contains(said), "{message}");
    }
    let message = refused(&"n".repeat(64), json!({"deploymentName": "a"})).await;
    assert!(message.contains("63 bytes at most"), "{message}");
    place.foo(foo("ten", "ten.of-them", 10)).await;
    place.available("ten", 10).await;
}

#[tokio::test]
async fn the_example_is_served() {
    let place = Place::of("foo").await;
    let example = std::fs::read_to_string(file("foo", "example.yaml")).unwrap();
    let example: Foo = serde_yaml_ng::from_str(&example).unwrap();
    place.foo(example).await;
    place.available("example", 2).await;
}
