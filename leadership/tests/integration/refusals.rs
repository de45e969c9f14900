//! Leader election while the API server refuses requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use reknit_leadership::internal::lease_client;
use reknit_testing::{ControlPlane, eventually, internal::serves_mutating_policies};
use serde_json::json;

use super::process::{
    Leases, Process, RETRY_PERIOD, TIMEOUT, client_with_interceptor, config, elector_client,
};

#[tokio::test]
async fn a_process_waits_for_a_missing_namespace_without_a_hot_loop() {
    let plane = ControlPlane::shared().await.unwrap();
    let name = format!("{}-absent", plane.namespace("missing").await.unwrap());
    let (client, requests) = client_with_request_count(elector_client(plane));
    let mut process = Process::start(client, &name, &config());
    let start = Instant::now();
    eventually("a few attempts", TIMEOUT, async || requests.load(Ordering::SeqCst) >= 8).await;
    assert!(start.elapsed() > RETRY_PERIOD, "{:?}", start.elapsed());
    assert!(!process.leads() && !process.leadership.has_known_leaders());

    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let namespaces: Api<Namespace> = Api::all(plane.client().unwrap());
    assert_eq!(namespaces.create(&PostParams::default(), &namespace).await.unwrap().name_any(), name);
    process.wait_for_leadership().await;
}

#[tokio::test]
async fn a_process_without_permissions_leads_once_it_has_them() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("rights").await.unwrap();
    let config_as = plane.config_as(&namespace, "elector").await.unwrap();
    let (client, requests) = client_with_request_count(lease_client(config_as).unwrap());
    let mut process = Process::start(client, &namespace, &config());
    let start = Instant::now();
    eventually("a few attempts", TIMEOUT, async || requests.load(Ordering::SeqCst) >= 4).await;
    assert!(start.elapsed() > RETRY_PERIOD, "{:?}", start.elapsed());
    assert!(!process.leads());
    assert!(Leases::of(plane.client().unwrap(), &namespace).is_empty().await);

    let rbac = json!([
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "elector", "namespace": namespace},
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "create", "patch"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "elector", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elector"},
            "subjects": [{"kind": "ServiceAccount", "name": "elector", "namespace": namespace}]},
    ]);
    for object in rbac.as_array().unwrap() {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    process.wait_for_leadership().await;
    process.stop().await;
}

/// Other candidates would see the lease as free while the process leads.
#[tokio::test]
async fn a_process_does_not_lead_while_an_admission_policy_shortens_its_lease() {
    let plane = ControlPlane::shared().await.unwrap();
    let (client, namespace) = (plane.client().unwrap(), plane.namespace("short").await.unwrap());
    if !serves_mutating_policies(&client).await {
        return;
    }
    let policies = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", "MutatingAdmissionPolicy"),
        "mutatingadmissionpolicies",
    );
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "resourceRules": [{"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"], "resources": ["leases"]}],
            },
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {
                "expression": "Object{spec: Object.spec{leaseDurationSeconds: 1}}"}}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": namespace}, "spec": {"policyName": namespace},
    });
    for object in [&policy, &binding] {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let lease =
        json!({"metadata": {"name": "dry"}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 60}});
    let lease: Lease = serde_json::from_value(lease).unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let is_shortened = async || {
        let stored = leases.create(&dry_run, &lease).await.unwrap();
        stored.spec.unwrap().lease_duration_seconds == Some(1)
    };
    eventually("the policy", TIMEOUT, is_shortened).await;

    let (counted, requests) = client_with_request_count(elector_client(plane));
    let mut process = Process::start(counted, &namespace, &config());
    eventually("a few attempts", TIMEOUT, async || requests.load(Ordering::SeqCst) >= 4).await;
    assert!(!process.leads());
    let policies: Api<DynamicObject> = Api::all_with(client, &policies);
    policies.delete(&namespace, &DeleteParams::default()).await.unwrap();
    process.wait_for_leadership().await;
}

fn client_with_request_count(client: Client) -> (Client, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let client = client_with_interceptor(client, move |client, request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(client.send(request).await?) }
    });
    (client, requests)
}
