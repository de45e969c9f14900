//! The sample with the permissions of its service account in config/.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client, ResourceExt, api::DeleteParams};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use crate::support::{
    objects::Objects,
    process,
    replicas::{is_controlled_by, labelled, running},
    server::Server,
    wait::SOON,
};

const IMAGE: &str = "registry.k8s.io/pause:3.10";
const SYSTEM: &str = "knative-samples";
const USER: &str = "system:serviceaccount:knative-samples:controller";
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config");

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_in_config_suffice() {
    let server = Server::own(ControlPlane::builder().audited()).await;
    server.apply_path(CONFIG).await.expect("config/ is applied");
    let kubeconfig = server.kubeconfig_as(SYSTEM, "controller").await.expect("the service account");
    let objects = server.objects("anywhere").await;
    let start = |pod| process::controller(&kubeconfig).electing(SYSTEM, pod).spawn();

    let (first, second) = (start("one"), start("two"));
    first.ready().await;
    second.ready().await;
    lives(&objects, "x").await;
    first.stop().await;
    lives(&objects, "y").await;
    second.stop().await;
    nothing_was_refused(&server);

    confined(&server, &kubeconfig).await;
}

/// The same account with a Role in one namespace instead of its ClusterRole.
async fn confined(server: &Server, kubeconfig: &std::path::Path) {
    let client = server.client().expect("a client");
    delete_cluster_role(&client).await;
    server
        .apply_yaml("{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}")
        .await
        .expect("a namespace");
    server.apply_path(format!("{CONFIG}/namespaced")).await.expect("config/namespaced is applied");
    let objects = Objects { client, namespace: "team-a".into() };
    let controller = process::controller(kubeconfig).electing(SYSTEM, "three").within("team-a").spawn();
    controller.ready().await;
    lives(&objects, "x").await;
    controller.stop().await;
    nothing_was_refused(server);
}

/// Exercises everything that the AddressableService controller does.
async fn lives(objects: &Objects, name: &str) {
    objects.create(name, "web").await;
    objects.shows(name, &objects.unavailable("web")).await;
    objects.create_service("web").await;
    objects.ready(name, "web").await;
    objects.delete_service("web").await;
    objects.shows(name, &objects.unavailable("web")).await;
    objects.delete(name).await;
    objects.event(name, "AddressWithdrawn").await;
    objects.gone(name).await;
    scales(objects, name).await;
}

/// Creates, adopts, replaces, releases and deletes pods.
async fn scales(objects: &Objects, name: &str) {
    let object = objects.deploy(name, IMAGE, 3).await;
    objects.all_alive(&object, 3).await;
    objects.create_pod(labelled("adopted", name, IMAGE)).await;
    objects.adopted_and_down_to("adopted", &object, 3).await;
    let pods = objects.alive(&object).await;
    for pod in &pods {
        objects.set_pod_status(&pod.name_any(), running(true)).await;
    }
    objects.all_pods_ready(name, 3).await;
    objects.want(name, json!({ "image": " blank" })).await;
    objects.pods_refused(name, "3 of 3 pods are missing").await;
    objects.event(name, "FailedCreate").await;
    objects.want(name, json!({ "image": IMAGE, "replicas": 1 })).await;
    let left = objects.all_alive(&object, 1).await;
    let released = left[0].name_any();
    objects.relabel_pod(&released, "nobody").await;
    eventually("it is released", SOON, async || {
        let pod = objects.pod(&released).await.ok_or("it is gone")?;
        if is_controlled_by(&pod, &object) { Err("it is not") } else { Ok(()) }
    })
    .await;
    objects.want(name, json!({ "replicas": 0 })).await;
    objects.all_pods_ready(name, 0).await;
    objects.delete_deployment(name).await;
    objects.delete_pod_now(&released).await;
}

async fn delete_cluster_role(client: &Client) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    roles.delete("knative-samples-core", &DeleteParams::default()).await.expect("the ClusterRole goes");
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    let gone = bindings.delete("knative-samples-controller-admin", &DeleteParams::default()).await;
    gone.expect("the ClusterRoleBinding goes");
}

fn nothing_was_refused(server: &Server) {
    let events = server.audit_events().expect("the audit log");
    let ours: Vec<&Value> = events.iter().filter(|event| event["user"]["username"] == USER).collect();
    let refused: Vec<String> =
        ours.iter().filter(|event| is_refusal(event)).map(|event| shown(event)).collect();
    println!("the audit log holds {} requests of the controller, {} refused", ours.len(), refused.len());
    assert!(!ours.is_empty(), "the audit log knows nothing of the controller");
    assert_eq!(refused, [""; 0]);
}

fn is_refusal(event: &Value) -> bool {
    matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403))
}

fn shown(event: &Value) -> String {
    format!("{} {}: {}", event["verb"], event["requestURI"], event["responseStatus"])
}
