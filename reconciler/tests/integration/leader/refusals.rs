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
use reknit_reconciler::leader::lease_client;
use reknit_testing::{ControlPlane, eventually};
use serde_json::json;

use super::process::{Leases, Process, RETRY, SOON, client, config, tampered};

#[tokio::test]
async fn a_process_waits_for_a_missing_namespace_without_a_hot_loop() {
    let plane = ControlPlane::shared().await.unwrap();
    let name = format!("{}-absent", plane.namespace("missing").await.unwrap());
    let (client, requests) = counted(client(plane));
    let mut process = Process::start(client, &name, &config());
    let began = Instant::now();
    eventually("a few attempts", SOON, async || requests.load(Ordering::SeqCst) >= 8).await;
    assert!(began.elapsed() > RETRY, "{:?}", began.elapsed());
    assert!(!process.leads() && !process.leadership.known());

    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let namespaces: Api<Namespace> = Api::all(plane.client().unwrap());
    assert_eq!(namespaces.create(&PostParams::default(), &namespace).await.unwrap().name_any(), name);
    process.led().await;
}

#[tokio::test]
async fn a_process_without_permissions_leads_once_it_has_them() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("rights").await.unwrap();
    let config_as = plane.config_as(&namespace, "elector").await.unwrap();
    let (client, requests) = counted(lease_client(config_as).unwrap());
    let mut process = Process::start(client, &namespace, &config());
    let began = Instant::now();
    eventually("a few attempts", SOON, async || requests.load(Ordering::SeqCst) >= 4).await;
    assert!(began.elapsed() > RETRY, "{:?}", began.elapsed());
    assert!(!process.leads());
    assert!(Leases::of(plane.client().unwrap(), &namespace).none().await);

    let rights = json!([
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "elector", "namespace": namespace},
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
                "verbs": ["get", "create", "patch"]}]},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "elector", "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "elector"},
            "subjects": [{"kind": "ServiceAccount", "name": "elector", "namespace": namespace}]},
    ]);
    for object in rights.as_array().unwrap() {
        plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    process.led().await;
    process.stop().await;
}

fn counted(client: Client) -> (Client, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let client = tampered(client, move |client, request| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(client.send(request).await?) }
    });
    (client, requests)
}
