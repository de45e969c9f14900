//! mydemo as a process.

use k8s_openapi::{
    api::events::v1::Event as Recorded,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::support::{
    file,
    mydemo::{demo, program::Mydemo},
    process::{self, Process},
    wait::SOON,
};

/// Returns true if the line is this one about this object.
fn tells(line: &Value, message: &str, key: &str) -> bool {
    line["message"] == message && (line["key"] == key || line["knative.dev/key"] == key)
}

fn told(program: &Process, message: &str, key: &str) -> usize {
    program.lines().iter().filter(|line| tells(line, message, key)).count()
}

async fn awaited(program: &Process, message: &str, key: &str) -> Value {
    program.line(&format!("{key} {message}"), |line| tells(line, message, key)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addition_a_change_and_a_deletion_are_each_told_once() {
    let plane = ControlPlane::shared().await.expect("a control plane");
    plane.apply_path(file("mydemo", "crd.yaml")).await.expect("the CRD");
    let namespace = plane.namespace("mydemo").await.expect("a namespace");
    let api: Api<Mydemo> = Api::namespaced(plane.client().expect("a client"), &namespace);
    let program = process::example("mydemo", plane.kubeconfig()).alone().within(&namespace).spawn();
    let key = format!("{namespace}/demo");

    api.create(&PostParams::default(), &demo()).await.expect("it is created");
    let added = awaited(&program, "added", &key).await;
    assert_eq!(added["new.spec.port"], 8080, "{added}");
    let moved = Patch::Merge(json!({"spec": {"port": 9080}}));
    api.patch("demo", &PatchParams::default(), &moved).await.expect("it is changed");
    let changed = awaited(&program, "port changed", &key).await;
    assert_eq!((&changed["old"], &changed["new"]), (&json!(8080), &json!(9080)), "{changed}");
    synced(&api, &namespace, 2).await;
    api.delete("demo", &DeleteParams::default()).await.expect("it is deleted");
    awaited(&program, "deleted", &key).await;

    // When the process has drained its queue, a duplicate line would have been logged.
    let lines = program.stop().await;
    for (message, times) in [("added", 1), ("port changed", 1), ("ip changed", 0), ("deleted", 1)] {
        let logged = lines.iter().filter(|line| tells(line, message, &key)).count();
        assert_eq!(logged, times, "{message}");
    }
    synced(&api, &namespace, 2).await;
}

/// The event Synced has been recorded so many times, and no other.
async fn synced(api: &Api<Mydemo>, namespace: &str, times: i32) {
    let events: Api<Recorded> = Api::namespaced(api.clone().into_client(), namespace);
    eventually(format!("{times} events"), SOON, async || {
        let recorded = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let expected = recorded.iter().all(|event| {
            event.reason.as_deref() == Some("Synced")
                && event.type_.as_deref() == Some("Normal")
                && event.note.as_deref() == Some("Mydemo synced successfully")
        });
        let count: i32 =
            recorded.iter().map(|event| event.series.as_ref().map_or(1, |series| series.count)).sum();
        if expected && count == times { Ok(()) } else { Err(format!("{recorded:#?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_its_definition_and_outlives_it() {
    let plane = ControlPlane::start().await.expect("a control plane");
    let program = process::example("mydemo", plane.kubeconfig()).alone().spawn();
    let waits = |line: &Value| line["severity"] == "WARNING" && line.to_string().contains("mydemos");
    let warned = program.line("that the definition is missing", waits).await;
    assert!(warned.to_string().contains("install its CustomResourceDefinition"), "{warned}");

    for round in 1..=2 {
        plane.apply_path(file("mydemo", "crd.yaml")).await.expect("the CRD");
        plane.apply_path(file("mydemo", "example.yaml")).await.expect("the example");
        for message in ["added", "deleted"] {
            eventually(format!("{message}, round {round}"), SOON, async || {
                told(&program, message, "default/example") == round
            })
            .await;
            if message == "added" {
                remove_definition(&plane).await;
            }
        }
    }
    program.stop().await;
}

async fn remove_definition(plane: &ControlPlane) {
    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().expect("a client"));
    let name = Mydemo::crd().name_any();
    definitions.delete(&name, &DeleteParams::default()).await.expect("the CRD is deleted");
    eventually("the CRD is gone", SOON, async || {
        definitions.get_opt(&name).await.expect("an answer").is_none()
    })
    .await;
}
