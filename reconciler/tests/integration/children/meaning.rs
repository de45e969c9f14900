//! Children whose values the API server stores in another form than they are sent.

use k8s_openapi::{
    api::{apps::v1::Deployment, batch::v1::Job, core::v1::ConfigMap},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResource, CustomResourceExt, ResourceExt,
    api::{DynamicObject, PostParams},
};
use reknit_apis::equality::has_set_fields;
use reknit_injection::{Context, select};
use reknit_reconciler::{Applied, Controller, NotApplied, Owned};
use reknit_testing::eventually;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{NO_REQUESTS, Process, desired_deployment, recording_client, set};
use crate::{Fixture, TIMEOUT};

fn job(label: &str, image: &str) -> Job {
    let containers = json!([{
        "name": "main", "image": image, "stdin": false, "resources": {"limits": {"memory": "1024Mi", "cpu": "0.5"}},
    }]);
    let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
    let job =
        json!({"metadata": {"name": "child", "labels": {"label": label}}, "spec": {"template": template}});
    serde_json::from_value(job).unwrap()
}

#[tokio::test]
async fn a_job_is_replaced_only_if_its_template_changes() {
    type Compare = fn(&Job, &Job) -> bool;
    let as_text: Compare =
        |stored, wanted| stored.spec.as_ref().unwrap().template != wanted.spec.as_ref().unwrap().template;
    let what_was_set: Compare = |stored, wanted| {
        !has_set_fields(&stored.spec.as_ref().unwrap().template, &wanted.spec.as_ref().unwrap().template)
    };
    for (compares_what_was_set, must_replace) in [(false, as_text), (true, what_was_set)] {
        let fixture = Fixture::new("jobs").await;
        let owner = fixture.create("owner", &[]).await;
        let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
        let jobs: Owned<Job> = Controller::of::<ConfigMap>(&cx).owns();
        let apply = async |job: Job| {
            let wanted = job.clone();
            jobs.apply_or_replace(&owner, job, |stored| must_replace(stored, &wanted)).await.unwrap().uid()
        };
        let first = apply(job("a", "first")).await;
        for _ in 0..3 {
            assert_eq!(apply(job("a", "first")).await, first, "the Job was replaced though nothing changed");
        }
        if compares_what_was_set {
            assert_eq!(apply(job("b", "first")).await, first, "the Job was replaced for a label");
        }
        let second = apply(job("b", "second")).await;
        assert_ne!(second, first);
        assert_eq!(apply(job("b", "second")).await, second);
    }
}

#[tokio::test]
async fn a_new_process_sends_nothing_for_quantities_in_another_form() {
    let fixture = Fixture::new("children").await;
    fixture.create("owner", &[]).await;
    let desired = desired_deployment(3);
    let limits = json!({"memory": "1024Mi", "cpu": 1, "ephemeral-storage": "0.5Gi"});
    let container = json!({"name": "a", "image": "a", "resources": {"limits": limits}});
    set(&desired, "/spec/template/spec/containers/0", container);
    let _ = Process::start(&fixture, &desired, select()).await.pass_requests().await;
    assert_eq!(Process::start(&fixture, &desired, select()).await.pass_requests().await, NO_REQUESTS);
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
enum Mode {
    Fast,
}

/// A Kind with an optional field for which null is not valid.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "meaning.reknit.dev", version = "v1", kind = "Engine", namespaced)]
struct EngineSpec {
    mode: Option<Mode>,
    parts: Vec<Part>,
    /// The installed schema lacks this field.
    gears: Option<u8>,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
struct Part {
    name: String,
    mode: Option<Mode>,
}

fn engine(name: &str) -> Engine {
    let parts = vec![Part { name: "a".into(), mode: None }];
    Engine::new(name, EngineSpec { mode: None, parts, gears: None })
}

/// Installs the Kind, whose enums are not nullable, without `spec.gears`.
async fn install_engines(fixture: &Fixture) {
    let mut crd = serde_json::to_value(Engine::crd()).unwrap();
    let mode = json!({"type": "string", "enum": ["Fast"]});
    let spec = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties").unwrap();
    spec.as_object_mut().unwrap().remove("gears").unwrap();
    spec["mode"] = mode.clone();
    spec["parts"]["items"]["properties"]["mode"] = mode;
    let crds: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    match crds.create(&PostParams::default(), &serde_json::from_value(crd).unwrap()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        created => drop(created.unwrap()),
    }
    let engines: Api<DynamicObject> =
        Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &Engine::api_resource());
    eventually("the Kind to be served", TIMEOUT, async || engines.list(&Default::default()).await.is_ok())
        .await;
}

#[tokio::test]
async fn unset_options_are_sent_by_no_method() {
    let fixture = Fixture::new("nulls").await;
    install_engines(&fixture).await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let engines: Owned<Engine> = Controller::of::<ConfigMap>(&cx).owns();
    let assert_written = |method: &str, result: Result<Applied<Engine>, NotApplied>| {
        let engine = result.unwrap_or_else(|error| panic!("{method}: {:?}", error));
        assert_eq!(engine.spec.mode, None, "{method}");
    };
    engines.create(&owner, engine("created")).await.unwrap();
    assert_written("apply", engines.apply(&owner, engine("applied")).await);
    for name in ["created-or-updated", "created"] {
        let add_part = |engine: &mut Engine| engine.spec.parts.push(Part { name: "b".into(), mode: None });
        assert_written(name, engines.create_or_update(&owner, engine(name), add_part).await);
    }
}

#[tokio::test]
async fn a_field_that_the_schema_of_a_child_lacks_is_reported_and_sent_once() {
    let fixture = Fixture::new("dropped").await;
    install_engines(&fixture).await;
    let owner = fixture.create("owner", &[]).await;
    let cx = Context::preloaded("applier", fixture.client.clone(), vec![]);
    let mut build = Controller::of::<ConfigMap>(&cx);
    let (engines, recorder): (Owned<Engine>, _) = (build.owns(), build.recorder());
    let update = async || {
        let set_gears = |engine: &mut Engine| engine.spec.gears = Some(5);
        engines.create_or_update(&owner, engine("x"), set_gears).await.unwrap()
    };
    assert!(matches!(update().await, Applied::Created(_)));
    recorder.flush().await;
    let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
    let [event] = &events[..] else { panic!("not one event: {events:?}") };
    let expected = format!(
        "the API server did not store spec.gears of Engine {}/x: update its definition if the schema lacks them, or exempt \
         it from the admission webhook that removes them",
        fixture.namespace
    );
    assert_eq!([&event.reason, &event.note], [&Some("ChildFieldsDropped".to_owned()), &Some(expected)]);
    assert_eq!(update().await.spec.gears, None);
    recorder.flush().await;
    let reports = async || {
        let events = fixture.events_about(&fixture.namespace, &owner.uid().unwrap()).await;
        events[0].series.as_ref().map(|series| series.count)
    };
    assert_eq!(reports().await, Some(2), "the update is not reported");
    for _ in 0..3 {
        update().await;
    }
    recorder.flush().await;
    assert_eq!(reports().await, Some(2), "the update is sent again");
    let families = cx.metrics().gather();
    let dropped =
        families.iter().find(|family| family.name() == "reknit_child_fields_dropped_total").unwrap();
    assert_eq!(dropped.get_metric()[0].get_counter().get_value(), 2.0);
}

/// Sets fields to values that the API server stores in another form.
fn set_equal_values(child: &mut Deployment, memory: &str, working_dir: &str) {
    let template = &mut child.spec.as_mut().unwrap().template;
    let container = &mut template.spec.as_mut().unwrap().containers[0];
    container.resources = serde_json::from_value(json!({"limits": {"memory": memory}})).unwrap();
    container.working_dir = Some(working_dir.into()).filter(|dir: &String| dir != "unset");
    template.metadata.as_mut().unwrap().annotations = Some(Default::default());
    child.metadata.annotations = Some(Default::default());
}

#[tokio::test]
async fn an_update_to_values_of_the_same_meaning_sends_nothing() {
    let fixture = Fixture::new("equal").await;
    let owner = fixture.create("owner", &[]).await;
    let (client, recorded) = recording_client(&fixture.client);
    let cx = Context::preloaded("reknit", client, vec![json!(owner)]);
    let children: Owned<Deployment> = Controller::of::<ConfigMap>(&cx).owns();
    let update = async |memory: &str, working_dir: &str| {
        let new = serde_json::from_value(desired_deployment(1).lock().unwrap().clone()).unwrap();
        children
            .create_or_update(&owner, new, |child| set_equal_values(child, memory, working_dir))
            .await
            .unwrap();
        std::mem::take(&mut *recorded.lock().unwrap())
    };
    update("1Gi", "unset").await;
    for memory in ["1024Mi", "1Gi", "1073741824", "1048576Ki"] {
        assert_eq!(update(memory, "unset").await, NO_REQUESTS, "{memory}");
    }
    assert_eq!(update("1025Mi", "unset").await, ["PUT child"]);
    // An empty text has a meaning of its own for some fields, so it is sent once, without an effect.
    assert_eq!(update("1025Mi", "").await, ["PUT child"]);
    assert_eq!(update("1025Mi", "").await, NO_REQUESTS);
    assert_eq!(update("1026Mi", "").await, ["PUT child"]);
}
