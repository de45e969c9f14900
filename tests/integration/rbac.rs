//! Both parts of the sample with the permissions of their service accounts in config/.

use std::{collections::BTreeSet, fs};

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use reknit::testing::{ControlPlane, RunningProgram, eventually};
use reknit_samples::{AddressableService, SimpleDeployment, manifests};
use serde_json::{Value, json};

use crate::support::{
    objects::Objects,
    process,
    server::Server,
    simple_deployments::{is_controlled_by, labelled_pod, ready_pod_status},
    wait::TIMEOUT,
};

const IMAGE: &str = "registry.k8s.io/pause:3.10";
const SYSTEM_NAMESPACE: &str = "knative-samples";
/// The service accounts of both parts.
const ACCOUNTS: [&str; 2] = ["controller", "webhook"];
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
/// The granted verbs that this test need not use. Table tests show the need of `get` of the Kind after a conflict, and
/// of `update` on `finalizers`, which the API server checks when a child names its owner. Events are patched when they
/// repeat. The Pod of another replica is read once that replica is overdue with its renewals. A Lease is read after a
/// write that was refused because the watch was late.
const OPTIONAL: [&str; 5] = [
    "get addressableservices",
    "get leases",
    "get pods",
    "patch events",
    "update simpledeployments/finalizers",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_in_config_suffice_and_are_used() {
    let server = Server::own(ControlPlane::builder().audited()).await;
    server.apply_path(CONFIG).await.expect("config/ is applied");
    let objects = server.objects_in_new_namespace("anywhere").await;
    exclude_from_webhook(&objects).await;
    let start = async |part, account, pod| {
        let kubeconfig = server.kubeconfig_as(SYSTEM_NAMESPACE, account).await.expect("the service account");
        let program = process::part(part, &kubeconfig).args(["--metrics-secure"]);
        program.with_leader_election(SYSTEM_NAMESPACE, pod).spawn()
    };

    let webhook = start("webhook", "webhook", "zero").await;
    let first = start("controllers", "controller", "one").await;
    let second = start("controllers", "controller", "two").await;
    for process in [&webhook, &first, &second] {
        process.wait_until_ready().await;
    }
    assert_only_readers_get_metrics(&server, &[&webhook, &first]).await;
    delete_secret(&server).await;
    exercise_controllers(&objects, "x").await;
    first.stop().await;
    exercise_controllers(&objects, "y").await;
    second.stop().await;
    webhook.stop().await;
    assert_no_request_was_refused(&server);
    assert_each_granted_verb_was_used(&server).await;
    assert_the_requests_are_documented(&server);

    assert_role_in_one_namespace_suffices(&server).await;
}

/// Asserts that an account reads the metrics of the programs once it has the role in `config/` that a ServiceMonitor needs.
async fn assert_only_readers_get_metrics(server: &Server, programs: &[&RunningProgram]) {
    let scrape = async |account: &str, program: &RunningProgram| {
        let mut config = server.config_as("monitoring", account).await.expect("the service account");
        let address = program.address("metrics").await;
        config.cluster_url = format!("https://{address}").parse().expect("a URL");
        config.accept_invalid_certs = true;
        let client = Client::try_from(config).expect("a client");
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        client.request_text(request).await.map_err(|error| error.to_string())
    };
    server
        .apply_yaml("{apiVersion: v1, kind: Namespace, metadata: {name: monitoring}}")
        .await
        .expect("a namespace");
    for program in programs {
        let refusal = scrape("other", program).await.expect_err("another account reads the metrics");
        assert!(refusal.contains("403"), "{refusal}");
    }
    let binding = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: prometheus},
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: knative-samples-metrics-reader},
        subjects: [{kind: ServiceAccount, name: prometheus, namespace: monitoring}]}";
    server.apply_yaml(binding).await.expect("the role is bound");
    for program in programs {
        let metrics = scrape("prometheus", program).await.expect("the metrics");
        assert!(metrics.contains("process_resident_memory_bytes"), "{metrics}");
    }
}

/// Keeps the API server from calling the webhook for the objects of the namespace: there is no network for Services.
async fn exclude_from_webhook(objects: &Objects) {
    let label = json!({"metadata": {"labels": {"webhooks.knative.dev/exclude": "true"}}});
    let namespaces: Api<Namespace> = Api::all(objects.client.clone());
    let labelled = namespaces.patch(&objects.namespace, &PatchParams::default(), &Patch::Merge(label)).await;
    labelled.expect("the namespace is labelled");
}

/// Deletes the Secret of the certificate, and waits until the controller has created another one.
async fn delete_secret(server: &Server) {
    let secrets: Api<Secret> = Api::namespaced(server.client().expect("a client"), SYSTEM_NAMESPACE);
    secrets.delete("webhook-certs", &DeleteParams::default()).await.expect("the Secret is deleted");
    eventually("another Secret", TIMEOUT, async || {
        let secret = secrets.get_opt("webhook-certs").await.map_err(|error| error.to_string())?;
        secret.and_then(|secret| secret.data).map(drop).ok_or("there is none".to_owned())
    })
    .await;
}

/// Replaces the ClusterRole of the controllers by what `config/namespaced` leaves of it and a Role in one namespace, and
/// runs the controllers with these.
async fn assert_role_in_one_namespace_suffices(server: &Server) {
    server
        .apply_yaml("{apiVersion: v1, kind: Namespace, metadata: {name: team-a}}")
        .await
        .expect("a namespace");
    server.apply_path(format!("{CONFIG}/namespaced")).await.expect("config/namespaced is applied");
    let objects = Objects { client: server.client().expect("a client"), namespace: "team-a".into() };
    exclude_from_webhook(&objects).await;
    let kubeconfig = server.kubeconfig_as(SYSTEM_NAMESPACE, "controller").await.expect("the service account");
    let controller = process::part("controllers", &kubeconfig)
        .with_leader_election(SYSTEM_NAMESPACE, "three")
        .in_namespace("team-a")
        .spawn();
    controller.wait_until_ready().await;
    exercise_controllers(&objects, "x").await;
    controller.stop().await;
    assert_no_request_was_refused(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_role_in_each_of_two_namespaces_suffices_and_a_third_namespace_is_left_alone() {
    let server = Server::own(ControlPlane::builder().audited()).await;
    server.install::<AddressableService>().await.expect("the CRD");
    server.install::<SimpleDeployment>().await.expect("the CRD");
    for namespace in [SYSTEM_NAMESPACE, "team-a", "team-b", "team-c"] {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        server.apply_yaml(&namespace.to_string()).await.expect("a namespace");
    }
    // Without any ConfigMap the process checks whether its namespace exists, which no role has to allow.
    let metadata = json!({"namespace": SYSTEM_NAMESPACE, "name": "config-logging"});
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata});
    server.apply_yaml(&config.to_string()).await.expect("a ConfigMap");
    let roles = rbac_manifests(&["team-a", "team-b"]);
    assert!(!roles.contains("kind: ClusterRole\n"), "{roles}");
    server.apply_yaml(&roles).await.expect("the roles are applied");
    let kubeconfig = server.kubeconfig_as(SYSTEM_NAMESPACE, "controller").await.expect("the service account");
    let client = server.client().expect("a client");
    let [a, b, third] = ["team-a", "team-b", "team-c"]
        .map(|namespace| Objects { client: client.clone(), namespace: namespace.into() });
    third.create_service("web").await;
    third.create_addressable("x", "web").await;
    third.create_deployment("x", IMAGE, 1).await;

    let controller = process::controller(&kubeconfig)
        .with_leader_election(SYSTEM_NAMESPACE, "one")
        .in_namespace("team-a,team-b")
        .spawn();
    controller.wait_until_ready().await;
    exercise_controllers(&a, "x").await;
    exercise_controllers(&b, "x").await;
    controller.stop().await;
    let untouched = third.get_addressable("x").await;
    assert!(untouched.status.is_none(), "{untouched:?}");
    assert_no_request_was_refused(&server);
}

/// The RBAC manifests of the sample controllers for these namespaces.
fn rbac_manifests(namespaces: &[&str]) -> String {
    let namespaces = format!("--namespace={}", namespaces.join(","));
    // Reviews are in no namespace.
    let rbac =
        manifests::rbac().args(["--metrics-secure=false", "--disable-controllers=webhook", &namespaces]);
    rbac.to_yaml().expect("the manifests")
}

/// Makes the controllers send at least one request of each type that they use.
async fn exercise_controllers(objects: &Objects, name: &str) {
    objects.create_addressable(name, "web").await;
    objects.wait_for_state(name, &objects.unavailable("web")).await;
    objects.create_service("web").await;
    objects.wait_until_ready(name, "web").await;
    objects.delete_service("web").await;
    objects.wait_for_state(name, &objects.unavailable("web")).await;
    objects.delete_addressable(name).await;
    objects.wait_for_event(name, "AddressWithdrawn").await;
    objects.wait_until_gone(name).await;
    exercise_simple_deployment(objects, name).await;
}

/// Makes the controller create, adopt, replace, release and delete pods.
async fn exercise_simple_deployment(objects: &Objects, name: &str) {
    let object = objects.create_deployment(name, IMAGE, 3).await;
    objects.wait_for_alive_pods(&object, 3).await;
    objects.create_pod(labelled_pod("adopted", name, IMAGE)).await;
    objects.wait_for_adoption_and_scale_down("adopted", &object, 3).await;
    let pods = objects.alive_pods(&object).await;
    for pod in &pods {
        objects.set_pod_status(&pod.name_any(), ready_pod_status()).await;
    }
    objects.wait_for_ready_pods(name, 3).await;
    objects.patch_deployment_spec(name, json!({ "image": " blank" })).await;
    objects.wait_for_refused_pods(name, "3 of 3 pods are missing").await;
    objects.wait_for_event(name, "FailedCreate").await;
    objects.patch_deployment_spec(name, json!({ "image": IMAGE, "replicas": 1 })).await;
    let left = objects.wait_for_alive_pods(&object, 1).await;
    let released = left[0].name_any();
    objects.relabel_pod(&released, "another").await;
    eventually("the pod is released", TIMEOUT, async || {
        let pod = objects.get_pod(&released).await.ok_or("the pod is gone")?;
        if is_controlled_by(&pod, &object) { Err("the pod is still controlled") } else { Ok(()) }
    })
    .await;
    objects.patch_deployment_spec(name, json!({ "replicas": 0 })).await;
    objects.wait_for_ready_pods(name, 0).await;
    objects.delete_deployment(name).await;
    objects.delete_pod_now(&released).await;
}

/// Asserts that each part sent a request for each verb of each resource that its roles grant.
async fn assert_each_granted_verb_was_used(server: &Server) {
    let client = server.client().expect("a client");
    for account in ACCOUNTS {
        let (name, roles) = (format!("knative-samples-{account}"), Api::<ClusterRole>::all(client.clone()));
        let of_cluster = roles.get_opt(&name).await.expect("a response").and_then(|role| role.rules);
        let roles: Api<Role> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
        let of_namespace = roles.get(&name).await.expect("the Role").rules;
        let rules = of_cluster.into_iter().chain(of_namespace).flatten();
        let mut unused: BTreeSet<String> = rules.flat_map(|rule| granted_requests(&rule)).collect();
        for event in requests_of(server, account) {
            unused.remove(&request(&event));
        }
        unused.retain(|request| !OPTIONAL.contains(&request.as_str()));
        assert_eq!(unused, BTreeSet::new(), "verbs that are granted to {account} and not used");
    }
}

/// Asserts that each part sent the requests that docs/security.md calls normal, and no others.
fn assert_the_requests_are_documented(server: &Server) {
    for account in ACCOUNTS {
        let documented = documented_requests(account);
        let sent: BTreeSet<_> = requests_of(server, account).iter().map(request).collect();
        let missing: Vec<_> = sent.difference(&documented).map(String::as_str).collect();
        let unused = documented.difference(&sent).map(String::as_str);
        let unused: Vec<_> = unused.filter(|request| !OPTIONAL.contains(request)).collect();
        assert!(
            missing.is_empty() && unused.is_empty(),
            "the table of audited requests in docs/security.md lacks these of {account}:\n{}\nand has these, which were not \
             sent:\n{}",
            missing.join("\n"),
            unused.join("\n")
        );
    }
}

/// The verbs and the resources, or the paths, in the rows of the account in the table of audited requests.
fn documented_requests(account: &str) -> BTreeSet<String> {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/security.md")).expect("the page");
    let (_, section) = page.split_once("\n## The audit log\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section after it");
    let rows = section.lines().filter(|line| line.starts_with("| ")).skip(2);
    let cells = rows
        .map(|row| row.trim_matches('|').replace('`', "").split('|').map(str::to_owned).collect::<Vec<_>>());
    let ours = cells.filter(|cells| ["both", account].contains(&cells[0].trim()));
    let requests = ours.flat_map(|cells| {
        let words = |cell: usize| cells[cell].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (verbs, resources) = (words(1), words(2));
        let of_verb = |verb: String| {
            resources.iter().map(move |resource| format!("{verb} {resource}")).collect::<Vec<_>>()
        };
        verbs.into_iter().flat_map(of_verb).collect::<Vec<_>>()
    });
    requests.collect()
}

/// The verb and the resource of each request that the rule grants.
fn granted_requests(rule: &PolicyRule) -> Vec<String> {
    let resources = rule.resources.as_deref().unwrap_or_default();
    let requests =
        rule.verbs.iter().flat_map(|verb| resources.iter().map(move |resource| format!("{verb} {resource}")));
    requests.collect()
}

/// The verb and the resource of a logged request, as rules name them, or the path of one that is on no resource.
fn request(event: &Value) -> String {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    if event["objectRef"].is_null() {
        let path = text("/requestURI").split('?').next().unwrap_or_default();
        return format!("{} {path}", text("/verb"));
    }
    let request =
        format!("{} {}/{}", text("/verb"), text("/objectRef/resource"), text("/objectRef/subresource"));
    request.trim_end_matches('/').to_owned()
}

fn requests_of(server: &Server, account: &str) -> Vec<Value> {
    let events = server.audit_events().expect("the audit log");
    let user = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{account}");
    events.into_iter().filter(|event| event["user"]["username"] == *user).collect()
}

fn assert_no_request_was_refused(server: &Server) {
    let ours: Vec<Value> = ACCOUNTS.iter().flat_map(|account| requests_of(server, account)).collect();
    let refused: Vec<String> = ours.iter().filter(|event| is_refusal(event)).map(summary).collect();
    println!("the audit log holds {} requests of the sample, {} refused", ours.len(), refused.len());
    assert!(!ours.is_empty(), "the audit log has no requests of the sample");
    assert_eq!(refused, [""; 0]);
}

fn is_refusal(event: &Value) -> bool {
    matches!(event["responseStatus"]["code"].as_u64(), Some(401 | 403))
}

fn summary(event: &Value) -> String {
    format!("{} {}: {}", event["verb"], event["requestURI"], event["responseStatus"])
}
