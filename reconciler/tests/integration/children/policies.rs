//! Children that an admission policy changes.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use reknit_injection::select;
use reknit_testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::{NO_REQUESTS, Process, desired_deployment};
use crate::{Fixture, TIMEOUT};

/// Installs a policy that changes each written Deployment of the namespace.
async fn install(fixture: &Fixture, mutation: &Value) {
    let plane = ControlPlane::shared().await.unwrap();
    let name = &fixture.namespace;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"], "resources": ["deployments"]}],
            },
            "mutations": [mutation],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": {"policyName": name},
    });
    for object in [&policy, &binding] {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let mut probe = desired_deployment(7).lock().unwrap().clone();
    probe["metadata"] = json!({
        "name": "probe", "annotations": {"reknit.dev/applied": "x", "a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}],
    });
    let sent: Deployment = serde_json::from_value(probe).unwrap();
    let deployments: Api<Deployment> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let is_changed = async || {
        let stored = deployments.create(&PostParams::default(), &sent).await.unwrap();
        let _ = deployments.delete("probe", &DeleteParams::default()).await.unwrap();
        let kept = |of: &Deployment| {
            let meta = &of.metadata;
            let replicas = of.spec.as_ref().unwrap().replicas;
            json!([replicas, meta.annotations.as_ref().map(|all| all.len()), meta.owner_references])
        };
        kept(&stored) != kept(&sent)
    };
    eventually("the policy", TIMEOUT, is_changed).await;
}

fn expression(patch_type: &str, expression: &str) -> Value {
    let field = if patch_type == "JSONPatch" { "jsonPatch" } else { "applyConfiguration" };
    json!({"patchType": patch_type, field: {"expression": expression}})
}

#[tokio::test]
async fn a_child_that_an_admission_policy_changes_is_applied_once_by_each_process() {
    let remove = |path: &str| format!("[JSONPatch{{op: \"remove\", path: \"/metadata/{path}\"}}]");
    for mutation in [
        expression("ApplyConfiguration", "Object{spec: Object.spec{replicas: 1}}"),
        expression("JSONPatch", &remove("annotations/reknit.dev~1applied")),
        expression("JSONPatch", &remove("annotations")),
        expression("JSONPatch", &remove("ownerReferences")),
    ] {
        let fixture = Fixture::new("policies").await;
        install(&fixture, &mutation).await;
        fixture.create("owner", &[]).await;
        let desired = desired_deployment(3);
        for _ in ["first", "second"] {
            let process = Process::start(&fixture, &desired, select()).await;
            let requests = process.pass_requests().await;
            assert_eq!(
                requests.iter().filter(|request| *request == "PATCH child").count(),
                1,
                "{requests:?}"
            );
            for _ in 0..3 {
                assert_eq!(process.pass_requests().await, NO_REQUESTS, "{mutation}");
            }
        }
    }
}
