//! Tests of mydemo as a process.

use k8s_openapi::{
    api::events::v1::Event as ApiEvent,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResourceExt, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::{
    environment::restricted_kubeconfig,
    support::{
        file,
        mydemo::{demo, program::Mydemo},
        process::{self, Process},
        wait::TIMEOUT,
    },
};

/// Returns true if the log line has this message and is about this object.
fn is_about(line: &Value, message: &str, key: &str) -> bool {
    line["message"] == message && (line["key"] == key || line["knative.dev/key"] == key)
}

fn count_lines(program: &Process, message: &str, key: &str) -> usize {
    program.lines().iter().filter(|line| is_about(line, message, key)).count()
}

async fn wait_for_line(program: &Process, message: &str, key: &str) -> Value {
    program.wait_for_line(&format!("{key} {message}"), |line| is_about(line, message, key)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_addition_a_change_and_a_deletion_are_each_logged_once() {
    let plane = ControlPlane::shared().await.expect("a control plane");
    plane.apply_path(file("mydemo", "crd.yaml")).await.expect("the CRD");
    let namespace = plane.namespace("mydemo").await.expect("a namespace");
    let api: Api<Mydemo> = Api::namespaced(plane.client().expect("a client"), &namespace);
    let kubeconfig = restricted_kubeconfig(plane, "mydemo", &namespace).await;
    let program =
        process::example("mydemo", &kubeconfig).without_leader_election().in_namespace(&namespace).spawn();
    let key = format!("{namespace}/demo");

    api.create(&PostParams::default(), &demo()).await.expect("it is created");
    let added = wait_for_line(&program, "added", &key).await;
    assert_eq!(added["new.spec.port"], 8080, "{added}");
    let patch = Patch::Merge(json!({"spec": {"port": 9080}}));
    api.patch("demo", &PatchParams::default(), &patch).await.expect("it is changed");
    let changed = wait_for_line(&program, "port changed", &key).await;
    assert_eq!((&changed["old"], &changed["new"]), (&json!(8080), &json!(9080)), "{changed}");
    wait_for_synced_events(&api, &namespace, 2).await;
    api.delete("demo", &DeleteParams::default()).await.expect("it is deleted");
    wait_for_line(&program, "deleted", &key).await;

    // A stopped process has drained its queue, so a duplicate line would have been logged by now.
    let lines = program.stop().await;
    for (message, times) in [("added", 1), ("port changed", 1), ("ip changed", 0), ("deleted", 1)] {
        let logged = lines.iter().filter(|line| is_about(line, message, &key)).count();
        assert_eq!(logged, times, "{message}");
    }
    wait_for_synced_events(&api, &namespace, 2).await;
}

/// Waits until the event Synced has been recorded this many times. No other event may exist.
async fn wait_for_synced_events(api: &Api<Mydemo>, namespace: &str, times: i32) {
    let events: Api<ApiEvent> = Api::namespaced(api.clone().into_client(), namespace);
    eventually(format!("{times} events"), TIMEOUT, async || {
        let recorded = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
        let are_synced = recorded.iter().all(|event| {
            event.reason.as_deref() == Some("Synced")
                && event.type_.as_deref() == Some("Normal")
                && event.note.as_deref() == Some("Mydemo synced successfully")
        });
        let count: i32 =
            recorded.iter().map(|event| event.series.as_ref().map_or(1, |series| series.count)).sum();
        if are_synced && count == times { Ok(()) } else { Err(format!("{recorded:#?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_its_crd_and_survives_the_deletion_of_the_crd() {
    let plane = ControlPlane::start().await.expect("a control plane");
    let program = process::example("mydemo", plane.kubeconfig()).without_leader_election().spawn();
    let is_warning = |line: &Value| line["severity"] == "WARNING" && line.to_string().contains("mydemos");
    let warning = program.wait_for_line("a warning about the missing CRD", is_warning).await;
    assert!(warning.to_string().contains("install its CustomResourceDefinition"), "{warning}");

    for round in 1..=2 {
        plane.apply_path(file("mydemo", "crd.yaml")).await.expect("the CRD");
        plane.apply_path(file("mydemo", "example.yaml")).await.expect("the example");
        for message in ["added", "deleted"] {
            eventually(format!("{message}, round {round}"), TIMEOUT, async || {
                count_lines(&program, message, "default/example") == round
            })
            .await;
            if message == "added" {
                delete_crd(&plane).await;
            }
        }
    }
    program.stop().await;
}

async fn delete_crd(plane: &ControlPlane) {
    let crds: Api<CustomResourceDefinition> = Api::all(plane.client().expect("a client"));
    let name = Mydemo::crd().name_any();
    crds.delete(&name, &DeleteParams::default()).await.expect("the CRD is deleted");
    eventually("the CRD is gone", TIMEOUT, async || crds.get_opt(&name).await.expect("an answer").is_none())
        .await;
}
