//! Children that an admission policy changes.

use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::ConfigMap};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use reknit_apis::equality::has_set_fields;
use reknit_injection::{Context, select};
use reknit_reconciler::{Applied, Controller, NotApplied, Owned};
use reknit_testing::{ControlPlane, eventually, internal::serves_mutating_policies};
use serde_json::{Value, json};

use super::{NO_REQUESTS, Process, desired_deployment};
use crate::{Fixture, TIMEOUT};

/// Installs a policy that changes the objects of a resource in the namespace when they are written in one of these ways.
async fn install_policy(fixture: &Fixture, mutation: &Value, resource: [&str; 2], operations: &[&str]) {
    let plane = ControlPlane::shared().await.unwrap();
    let (name, [group, plural]) = (&fixture.namespace, resource);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"],
                    "operations": operations, "resources": [plural]}],
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
}

/// Installs a policy that changes each written Deployment of the namespace.
async fn install(fixture: &Fixture, mutation: &Value) {
    install_policy(fixture, mutation, ["apps", "deployments"], &["CREATE", "UPDATE"]).await;
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
        if !serves_mutating_policies(&fixture.client).await {
            return;
        }
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

/// A Job of one container, which is suspended, so that it needs no nodes.
fn job(name: &str, image: &str) -> Job {
    let containers = json!([{"name": "main", "image": image}]);
    let template = json!({"spec": {"restartPolicy": "Never", "containers": containers}});
    let spec = json!({"suspend": true, "parallelism": 1, "template": template});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
}

fn image(job: &Job) -> String {
    let template = job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    template.containers[0].image.clone().unwrap_or_default()
}

/// Jobs whose template a policy changes at their creation, as many webhooks do for images of a registry.
struct AdmittedJobs {
    fixture: Fixture,
    owner: ConfigMap,
}

impl AdmittedJobs {
    /// `None` if the API server has no such policies.
    async fn new() -> Option<Self> {
        let fixture = Fixture::new("admitted").await;
        if !serves_mutating_policies(&fixture.client).await {
            return None;
        }
        let path = "/spec/template/spec/containers/0/image";
        let replace = format!("[JSONPatch{{op: \"replace\", path: \"{path}\", value: \"mirror/nginx\"}}]");
        install_policy(&fixture, &expression("JSONPatch", &replace), ["batch", "jobs"], &["CREATE"]).await;
        let admitted = Self { owner: fixture.create("owner", &[]).await, fixture };
        let is_changed = async || {
            let stored = admitted.api().create(&PostParams::default(), &job("probe", "nginx")).await.unwrap();
            let _ = admitted.api().delete("probe", &DeleteParams::background()).await.unwrap();
            image(&stored) == "mirror/nginx"
        };
        eventually("the policy", TIMEOUT, is_changed).await;
        Some(admitted)
    }

    fn api(&self) -> Api<Job> {
        Api::namespaced(self.fixture.client.clone(), &self.fixture.namespace)
    }

    /// The Jobs of a new process, whose cache has the child.
    async fn process(&self) -> Owned<Job> {
        let stored = self.api().get_opt("child").await.unwrap();
        let stored = stored.map(|child| {
            let mut child = serde_json::to_value(child).unwrap();
            child["apiVersion"] = json!("batch/v1");
            child["kind"] = json!("Job");
            child["metadata"].as_object_mut().unwrap().remove("managedFields");
            child
        });
        let cx = Context::preloaded("applier", self.fixture.client.clone(), stored.into_iter().collect());
        Controller::of::<ConfigMap>(&cx).owns()
    }

    /// Applies the child in a new process, which replaces it if the template differs.
    async fn apply_or_replace(&self, wanted: &Job) -> Result<Applied<Job>, NotApplied> {
        let template = |job: &Job| job.spec.as_ref().unwrap().template.clone();
        let differs = |stored: &Job| !has_set_fields(&template(stored), &template(wanted));
        self.process().await.apply_or_replace(&self.owner, wanted.clone(), differs).await
    }
}

#[tokio::test]
async fn a_child_that_admission_changed_at_its_creation_is_neither_replaced_nor_refused_by_a_new_process() {
    let Some(admitted) = AdmittedJobs::new().await else { return };
    let first = admitted.apply_or_replace(&job("child", "nginx")).await.unwrap();
    assert_eq!(image(&first), "mirror/nginx");
    let replaced = admitted.apply_or_replace(&job("child", "nginx")).await.unwrap();
    assert_eq!(replaced.uid(), first.uid(), "the new Job is like the old one");
    let applied = admitted.process().await.apply(&admitted.owner, job("child", "nginx")).await.unwrap();
    assert_eq!(applied.uid(), first.uid());
    // Other content is still applied, refused or replaced.
    let refused = admitted.process().await.apply(&admitted.owner, job("child", "other")).await;
    assert!(matches!(refused, Err(NotApplied::Refused { .. })), "{refused:?}");
    let replaced = admitted.apply_or_replace(&job("child", "other")).await.unwrap();
    assert_ne!(replaced.uid(), first.uid());
}

#[tokio::test]
async fn a_child_that_admission_and_then_another_client_changed_is_restored_and_may_be_replaced() {
    let Some(admitted) = AdmittedJobs::new().await else { return };
    let first = admitted.apply_or_replace(&job("child", "nginx")).await.unwrap();
    let change = Patch::Merge(json!({"spec": {"parallelism": 5}}));
    admitted.api().patch("child", &PatchParams::default(), &change).await.unwrap();
    let replaced = admitted.apply_or_replace(&job("child", "nginx")).await.unwrap();
    assert_ne!(replaced.uid(), first.uid(), "another client has written it");
    assert_eq!(replaced.spec.as_ref().unwrap().parallelism, Some(1));
}
