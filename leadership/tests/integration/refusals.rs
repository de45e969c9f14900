//! Leader election while the API server refuses requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt, api::PostParams};
use reknit_leadership::internal::lease_client;
use reknit_testing::{ControlPlane, eventually};
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

fn client_with_request_count(client: Client) -> (Client, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let client = client_with_interceptor(client, move |client, request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(client.send(request).await?) }
    });
    (client, requests)
}
