//! The manifests of `config/shadow/`: the process of their Deployment works, and its account can change nothing,
//! whatever it sends.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Pod, Secret},
    events::v1::Event,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    client::Body,
};
use reknit::{
    injection::internal::Transport,
    testing::{ControlPlane, Program, eventually},
};
use reknit_samples::{POD_OWNER, SimpleDeployment};
use serde_json::{Value, json};

use crate::{
    manifests::{Deployed, SYSTEM_NAMESPACE, TIMEOUT, TestResult, by_name, kubectl, kustomize},
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
    let plane = ControlPlane::builder().audited().start().await?;
    for folder in ["config", "config/shadow"] {
        plane.apply_yaml(&kubectl(&plane, &["kustomize", folder])?).await?;
    }
    Ok(plane)
}

fn deployment(name: &str, replicas: i32) -> serde_json::Result<SimpleDeployment> {
    serde_json::from_value(json!({"apiVersion": "samples.knative.dev/v1alpha1", "kind": "SimpleDeployment",
        "metadata": {"name": name}, "spec": {"image": "registry.example.com/a", "replicas": replicas}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deployment_of_the_shadow_works_and_writes_nothing() -> TestResult {
    let plane = start().await?;
    let deployments: Api<SimpleDeployment> = Api::default_namespaced(plane.client()?);
    deployments.create(&PostParams::default(), &deployment("web", 2)?).await?;

    let objects = by_name(kustomize(&plane, "config/shadow")?)?;
    let Deployed { args, variables, account } = Deployed::read(&objects, SYSTEM_NAMESPACE, "shadow")?;
    assert_eq!(account, ACCOUNT);
    let access = plane.kubeconfig_as(SYSTEM_NAMESPACE, &account).await?;
    let command = Program::new(env!("CARGO_BIN_EXE_controller"), access).args(args);
    let shadow = variables.iter().fold(command, |command, (name, value)| command.env(name, value)).spawn();
    shadow.wait_until_ready().await;
    let controller = [("controller", "simpledeployments.samples.knative.dev")];
    // The keys are uncompared only for the first seconds, which a busy machine may miss.
    for (name, value) in [("reknit_shadow_differing_keys", 1.0), ("reknit_shadow_uncompared_keys", 0.0)] {
        eventually(&format!("{name} {value}"), TIMEOUT, async || {
            if shadow.metric(name, &controller).await == value { Ok(()) } else { Err(shadow.last_lines()) }
        })
        .await;
    }
    let line = shadow.wait_for_line("the changes", |line| line["changes"].is_string()).await;
    let changes = line["changes"].as_str().unwrap_or_default();
    assert!(changes.contains("  + Pod default/web-(generated) (2 times)\n"), "{changes}");
    assert_eq!(line["key"], "default/web");

    let client = plane.client()?;
    assert!(
        Api::<Pod>::default_namespaced(client.clone()).list(&ListParams::default()).await?.items.is_empty()
    );
    assert!(
        Api::<Lease>::namespaced(client, SYSTEM_NAMESPACE)
            .list(&ListParams::default())
            .await?
            .items
            .is_empty()
    );
    assert!(deployments.get("web").await?.status.is_none());
    let mut log = shadow.stop().await;
    log.retain(|line| line["severity"] == "ERROR" || line["severity"] == "WARNING");
    assert!(log.is_empty(), "{log:#?}");
    // The API server records events itself, so that only the audit log tells which the shadow records.
    let user = format!("system:serviceaccount:{SYSTEM_NAMESPACE}:{ACCOUNT}");
    let mut writes = plane.audit_events()?;
    writes.retain(|event| {
        event["user"]["username"] == user
            && !["get", "list", "watch"].iter().any(|verb| event["verb"] == *verb)
    });
    let is_dry_run = |event: &&Value| event["requestURI"].to_string().contains("dryRun=All");
    let (dry, real): (Vec<_>, Vec<_>) = writes.iter().partition(is_dry_run);
    assert!(real.is_empty() && !dry.is_empty(), "{real:#?}");
    Ok(())
}

/// Labels the pod `live` until the policy refuses it, and so is in effect.
async fn wait_for_policy(pods: &Api<Pod>) {
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    eventually("a refusal by the policy", TIMEOUT, async || {
        let message = refusal(pods.patch("live", &PatchParams::default(), &label).await);
        if message.contains(POLICY) { Ok(()) } else { Err(message) }
    })
    .await;
}

/// A transport that makes every dry run a real request, as a plan without guards would send it.
fn without_dry_runs(client: Client) -> Transport {
    let live = Transport::from(client);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let live = live.clone();
        async move {
            let (mut head, body) = request.into_parts();
            let query = head.uri.query().unwrap_or_default().split('&');
            let query: Vec<_> = query.filter(|pair| !pair.starts_with("dryRun=")).collect();
            head.uri = format!("{}?{}", head.uri.path(), query.join("&")).parse()?;
            let mut body = body.collect_bytes().await?.to_vec();
            if let Ok(mut options) = serde_json::from_slice::<Value>(&body)
                && options.as_object_mut().is_some_and(|options| options.remove("dryRun").is_some())
            {
                body = serde_json::to_vec(&options)?;
            }
            live.send(http::Request::from_parts(head, Body::from(body))).await.map_err(tower::BoxError::from)
        }
    });
    Transport::new(service, "default")
}

/// The resourceVersions of the objects that the sample reads and writes.
async fn versions(client: &Client) -> kube::Result<BTreeMap<String, Option<String>>> {
    let (all, mut versions) = (ListParams::default(), BTreeMap::new());
    for pod in Api::<Pod>::default_namespaced(client.clone()).list(&all).await? {
        versions.insert(format!("Pod {}", pod.name_any()), pod.resource_version());
    }
    for object in Api::<SimpleDeployment>::default_namespaced(client.clone()).list(&all).await? {
        versions.insert(format!("SimpleDeployment {}", object.name_any()), object.resource_version());
    }
    Ok(versions)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_refuses_each_write_of_a_plan_whose_requests_are_no_dry_runs() -> TestResult {
    let plane = start().await?;
    let client = plane.client()?;
    let (pods, post): (Api<Pod>, _) = (Api::default_namespaced(client.clone()), PostParams::default());
    let deployments: Api<SimpleDeployment> = Api::default_namespaced(client.clone());
    deployments.create(&post, &deployment("grows", 1)?).await?;
    let shrinks = deployments.create(&post, &deployment("shrinks", 0)?).await?;
    deployments.create(&post, &deployment("adopts", 1)?).await?;
    pods.create(&post, &pod("live")?).await?;
    let owner = kube::Resource::controller_owner_ref(&shrinks, &());
    for (name, label, owner) in [("surplus", "shrinks", owner), ("orphan", "adopts", None)] {
        let mut pod = pod(name)?;
        pod.labels_mut().insert(POD_OWNER.into(), label.into());
        pod.owner_references_mut().extend(owner);
        pods.create(&post, &pod).await?;
    }
    let account = plane.client_as(SYSTEM_NAMESPACE, ACCOUNT).await?;
    wait_for_policy(&Api::default_namespaced(account.clone())).await;

    let before = versions(&client).await?;
    let main = reknit_samples::program();
    let (status, text, plan) = reknit::sharedmain::internal::plan(main, without_dry_runs(account)).await?;
    assert_eq!(status, 4, "{text}");
    let refused = plan["refused"].as_array().ok_or("nothing was refused")?;
    let refused: Vec<&str> = refused.iter().filter_map(Value::as_str).collect();
    let namespace = "/api/v1/namespaces/default";
    let group = "/apis/samples.knative.dev/v1alpha1/namespaces/default";
    for (key, request) in [
        ("grows", format!("POST {namespace}/pods")),
        ("shrinks", format!("DELETE {namespace}/pods/surplus")),
        ("adopts", format!("PATCH {namespace}/pods/orphan")),
        ("grows", format!("PATCH {group}/simpledeployments/grows/status")),
    ] {
        let is_of = |text: &&&str| text.contains(&format!("default/{key}: {request}: "));
        let message = refused.iter().find(is_of).ok_or_else(|| format!("{request} is missing in {text}"))?;
        assert!(message.ends_with(POLICY), "{message}");
    }
    assert_eq!(versions(&client).await?, before);
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

    wait_for_policy(&pods).await;
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
