//! The manifests of `config/shadow/`: a process of them works, and its account can change nothing, whatever it sends.

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, Secret},
    events::v1::Event,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, Program, eventually};
use reknit_samples::SimpleDeployment;
use serde_json::{Value, json};

use crate::{
    manifests::{SYSTEM_NAMESPACE, TIMEOUT, TestResult, kubectl},
    webhook::refusal,
};

const ACCOUNT: &str = "controller-shadow";
/// The end of a refusal by the policy.
const POLICY: &str = "this account may send only dry runs";

fn pod(name: &str) -> serde_json::Result<Pod> {
    let spec = json!({"containers": [{"name": "a", "image": "registry.example.com/a"}]});
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))
}

async fn start() -> TestResult<ControlPlane> {
    let plane = ControlPlane::start().await?;
    for folder in ["config", "config/shadow"] {
        kubectl(&plane, &["apply", "-k", folder])?;
    }
    Ok(plane)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_with_the_account_of_the_shadow_works_and_writes_nothing() -> TestResult {
    let plane = start().await?;
    let deployments: Api<SimpleDeployment> = Api::default_namespaced(plane.client()?);
    let deployment = json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment",
        "metadata": {"name": "web"}, "spec": {"image": "registry.example.com/a", "replicas": 2}});
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;

    let access = plane.kubeconfig_as(SYSTEM_NAMESPACE, ACCOUNT).await?;
    let command = Program::new(env!("CARGO_BIN_EXE_controller"), access).args(["--shadow"]);
    let shadow = command.env("SYSTEM_NAMESPACE", SYSTEM_NAMESPACE).spawn();
    shadow.wait_until_ready().await;
    let controller = [("controller", "simpledeployments.samples.knative.dev")];
    eventually("a differing key", TIMEOUT, async || {
        match shadow.metric("reknit_shadow_differing_keys", &controller).await {
            1.0 => Ok(()),
            _ => Err(shadow.last_lines()),
        }
    })
    .await;
    let line = shadow.wait_for_line("the changes", |line| line["changes"].is_string()).await;
    let changes = line["changes"].as_str().unwrap_or_default();
    assert!(changes.contains("  + Pod default/web-(generated) (2 times)\n"), "{changes}");
    assert_eq!(line["key"], "default/web");

    let client = plane.client()?;
    assert!(
        Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await?.items.is_empty()
    );
    assert!(
        Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE)
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
    );
    // The API server itself records events when it repairs the addresses and the ports of Services.
    let mut events = Api::<Event>::all(client).list(&ListParams::default()).await?.items;
    let is_repair = |reporter: &String| reporter.ends_with("-repair-controller");
    events.retain(|event| !event.reporting_controller.as_ref().is_some_and(is_repair));
    assert!(events.is_empty(), "{events:#?}");
    assert!(deployments.get("web").await?.status.is_none());
    let log = shadow.stop().await;
    assert!(!log.iter().any(|line| line["severity"] == "ERROR" || line["severity"] == "WARNING"), "{log:#?}");
    Ok(())
}

/// Sends a deletion with a body, and a query that the API server ignores.
async fn delete_with_body(client: &Client, name: &str, body: Value) -> kube::Result<Value> {
    let path = format!("/api/v1/namespaces/default/pods/{name}?dryRun=All");
    let body = serde_json::to_vec(&body).map_err(kube::Error::SerdeError)?;
    let request = http::Request::delete(path).header("content-type", "application/json").body(body);
    client.request(request.map_err(kube::Error::HttpError)?).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_and_the_roles_refuse_every_write_that_is_not_a_dry_run() -> TestResult {
    let plane = start().await?;
    let all: Api<Pod> = Api::default_namespaced(plane.client()?);
    all.create(&PostParams::default(), &pod("live")?).await?;
    let client = plane.client_as(SYSTEM_NAMESPACE, ACCOUNT).await?;
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let (post, patch, delete) = (PostParams::default(), PatchParams::default(), DeleteParams::default());
    let dry_patch = PatchParams { dry_run: true, ..PatchParams::default() };
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));

    // The label tells whether the policy is in effect yet.
    eventually("a refusal by the policy", TIMEOUT, async || {
        let message = refusal(pods.patch("live", &patch, &label).await);
        if message.contains(POLICY) { Ok(()) } else { Err(message) }
    })
    .await;
    let live = all.get("live").await?.metadata.resource_version;
    for message in [
        refusal(pods.create(&post, &pod("new")?).await),
        refusal(pods.patch("live", &patch, &label).await),
        refusal(pods.delete("live", &delete).await),
        refusal(delete_with_body(&client, "live", json!({"propagationPolicy": "Background"})).await),
    ] {
        assert!(message.contains(POLICY), "{message}");
    }
    for message in [
        refusal(
            Api::<Lease>::namespaced(client.clone(), SYSTEM_NAMESPACE).create(&post, &Lease::default()).await,
        ),
        refusal(
            Api::<Secret>::namespaced(client.clone(), SYSTEM_NAMESPACE).list(&ListParams::default()).await,
        ),
        refusal(pods.evict("live", &Default::default()).await),
        refusal(Api::<Event>::default_namespaced(client.clone()).create(&post, &Event::default()).await),
    ] {
        assert!(message.contains("cannot"), "{message}");
    }
    let dry_post = PostParams { dry_run: true, ..PostParams::default() };
    pods.create(&dry_post, &pod("new")?).await?;
    pods.patch("live", &dry_patch, &label).await?;
    let _ = pods.delete("live", &delete.clone().dry_run()).await?;
    delete_with_body(&client, "live", json!({"dryRun": ["All"]})).await?;
    assert_eq!(all.get("live").await?.metadata.resource_version, live);
    assert_eq!(all.list(&ListParams::default()).await?.items.len(), 1);
    Ok(())
}
