//! A release of `config/`, and the attacks on it that the policy refuses.

use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::{Namespace, Secret},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use reknit::testing::{ControlPlane, eventually};
use serde_json::{Value, json};

use super::POLICY;
use crate::{
    manifests::{TIMEOUT, TestResult, by_name, objects, start_part},
    webhook::refusal,
};

/// A release of `config/` whose names have a suffix.
pub(super) struct Release<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) namespace: &'a str,
    pub(super) suffix: &'a str,
}

impl Release<'_> {
    pub(super) fn secret(&self) -> String {
        format!("webhook-certs{}", self.suffix)
    }

    pub(super) fn configuration(&self, step: &str) -> String {
        format!("{step}.webhook.samples.knative.dev{}", self.suffix)
    }

    pub(super) async fn client(&self, account: &str) -> TestResult<Client> {
        Ok(self.plane.client_as(self.namespace, &format!("{account}{}", self.suffix)).await?)
    }

    /// Deletes the Secret as the garbage collector does once it has an owner that does not exist.
    pub(super) async fn delete_secret(&self) -> TestResult {
        let secrets: Api<Secret> = Api::namespaced(self.plane.client()?, self.namespace);
        secrets.delete(&self.secret(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Tries to create each Secret as this account, and returns those that were not refused with this text.
    pub(super) async fn created(&self, account: &str, text: &str) -> TestResult<Vec<String>> {
        let secrets: Api<Secret> = Api::namespaced(self.client(account).await?, self.namespace);
        let mut created = Vec::new();
        for (what, object) in self.new_secrets() {
            let secret = serde_json::from_value(object)?;
            let message = refusal(secrets.create(&PostParams::default(), &secret).await);
            created.extend((!message.contains(text)).then(|| format!("{what}: {message}")));
        }
        Ok(created)
    }

    /// Tries each change as this account, and returns those that were not refused with this text.
    pub(super) async fn changed(&self, account: &str, text: &str) -> TestResult<Vec<String>> {
        let client = self.client(account).await?;
        let mut changed = Vec::new();
        for (what, resource, name, patch) in self.patches() {
            let objects: Api<DynamicObject> = match &*resource.kind {
                "Secret" => Api::namespaced_with(client.clone(), self.namespace, &resource),
                _ => Api::all_with(client.clone(), &resource),
            };
            let patch: Patch<Value> = match patch.is_array() {
                true => Patch::Json(serde_json::from_value(patch)?),
                false => Patch::Merge(patch),
            };
            let message = refusal(objects.patch(&name, &PatchParams::default(), &patch).await);
            changed.extend((!message.contains(text)).then(|| format!("{what}: {message}")));
        }
        Ok(changed)
    }

    /// The Secrets that no account may create, also after its own Secret was deleted.
    fn new_secrets(&self) -> Vec<(&'static str, Value)> {
        let own = self.secret();
        let account = json!({"kubernetes.io/service-account.name": format!("controller{}", self.suffix)});
        let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}]);
        vec![
            ("another Secret", json!({"metadata": {"name": "other"}})),
            ("a Secret with a generated name", json!({"metadata": {"generateName": own}})),
            (
                "its Secret as a token",
                json!({"metadata": {"name": own, "annotations": account}, "type": "kubernetes.io/service-account-token"}),
            ),
            ("its Secret with an owner", json!({"metadata": {"name": own, "ownerReferences": owners}})),
            (
                "its Secret with a finalizer",
                json!({"metadata": {"name": own, "finalizers": ["evil.example.com/x"]}}),
            ),
            ("its Secret, immutable", json!({"metadata": {"name": own}, "immutable": true})),
        ]
    }

    /// The changes that no account may make.
    fn patches(&self) -> Vec<(&'static str, ApiResource, String, Value)> {
        let add = |path: &str, value: Value| json!([{"op": "add", "path": path, "value": value}]);
        let everything =
            json!([{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}]);
        let entry = json!({
            "name": "evil.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://evil.example.com"}, "rules": everything,
        });
        let owner = |kind: &str, name: &str| {
            let owner = json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": "gone"});
            json!({"metadata": {"ownerReferences": [owner]}})
        };
        let secret = [
            ("an owner of the Secret", owner("ConfigMap", "gone")),
            ("a finalizer of the Secret", json!({"metadata": {"finalizers": ["evil.example.com/x"]}})),
            ("an immutable Secret", json!({"immutable": true})),
            ("no labels of the Secret", json!({"metadata": {"labels": null}})),
            ("one label less", json!({"metadata": {"labels": {"app.kubernetes.io/name": null}}})),
            ("no data of the Secret", json!({"data": null})),
        ];
        let client = "/webhooks/0/clientConfig";
        let configuration = [
            ("a foreign server", add(client, json!({"url": "https://evil.example.com/defaulting"}))),
            ("a foreign Service", add(&format!("{client}/service/name"), json!("evil"))),
            (
                "another namespace of the Service",
                add(&format!("{client}/service/namespace"), json!("default")),
            ),
            ("another path", add(&format!("{client}/service/path"), json!("/evil"))),
            ("no path", json!([{"op": "remove", "path": format!("{client}/service/path")}])),
            ("rules for everything", add("/webhooks/0/rules", everything)),
            ("no rules", add("/webhooks/0/rules", json!([]))),
            ("another entry", add("/webhooks/-", entry)),
            ("no entry", json!({"webhooks": []})),
            ("a renamed entry", add("/webhooks/0/name", json!("evil.example.com"))),
            ("failures that are ignored", add("/webhooks/0/failurePolicy", json!("Ignore"))),
            (
                "a condition",
                add("/webhooks/0/matchConditions", json!([{"name": "never", "expression": "false"}])),
            ),
            ("no selector of namespaces", add("/webhooks/0/namespaceSelector", json!({}))),
            ("no exclusion", add("/webhooks/0/namespaceSelector/matchExpressions", json!([]))),
            (
                "another expression",
                add(
                    "/webhooks/0/namespaceSelector/matchExpressions/-",
                    json!({"key": "evil", "operator": "Exists"}),
                ),
            ),
            (
                "a selector of objects",
                add("/webhooks/0/objectSelector", json!({"matchLabels": {"none": "none"}})),
            ),
            ("an owner of the configuration", owner("ConfigMap", "gone")),
            ("another namespace as the owner", owner("Namespace", "default")),
            ("a label of the configuration", json!({"metadata": {"labels": {"evil": "true"}}})),
        ];
        let mut patches: Vec<_> = secret
            .into_iter()
            .map(|(what, patch)| (what, ApiResource::erase::<Secret>(&()), self.secret(), patch))
            .collect();
        for (what, patch) in configuration {
            let patch = |(resource, step)| (what, resource, self.configuration(step), patch.clone());
            patches.extend(self.configurations().map(patch));
        }
        patches
    }

    /// Makes the namespace the owner of a configuration as the controller does, and asserts that the owner stays.
    pub(super) async fn assert_owner_stays(&self) -> TestResult {
        let namespaces: Api<Namespace> = Api::all(self.plane.client()?);
        let uid = namespaces.get(self.namespace).await?.metadata.uid;
        let configurations: Api<MutatingWebhookConfiguration> = Api::all(self.client("controller").await?);
        let own = async |owners: Value| {
            let patch = Patch::Merge(json!({"metadata": {"ownerReferences": owners}}));
            configurations.patch(&self.configuration("defaulting"), &PatchParams::default(), &patch).await
        };
        let owner =
            |uid: &str| json!({"apiVersion": "v1", "kind": "Namespace", "name": self.namespace, "uid": uid});
        let uid = uid.unwrap_or_default();
        own(json!([owner(&uid)])).await?;
        for owners in [json!([owner("gone")]), json!([]), json!([owner(&uid), owner("gone")])] {
            let message = refusal(own(owners).await);
            assert!(message.contains(POLICY), "{message}");
        }
        Ok(())
    }

    /// Runs the controllers until they have filled in the configurations, which the policy has to permit.
    pub(super) async fn register(&self, rendered: &str) -> TestResult {
        let objects = by_name(objects(rendered)?)?;
        let _controllers = start_part(self.plane, &objects, self.namespace, "controller").await?;
        let client = self.plane.client()?;
        for (resource, step) in self.configurations() {
            let configurations: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            let name = self.configuration(step);
            eventually(format!("{name} to be configured and owned"), TIMEOUT, async || {
                let configuration = configurations.get(&name).await.map_err(|error| error.to_string())?;
                let is_owned = configuration.metadata.owner_references.is_some();
                let is_configured = configuration.data["webhooks"][0]["rules"].is_array();
                if is_owned && is_configured { Ok(()) } else { Err(format!("{configuration:?}")) }
            })
            .await;
        }
        Ok(())
    }

    fn configurations(&self) -> [(ApiResource, &'static str); 3] {
        [
            (ApiResource::erase::<MutatingWebhookConfiguration>(&()), "defaulting"),
            (ApiResource::erase::<ValidatingWebhookConfiguration>(&()), "validation"),
            (ApiResource::erase::<ValidatingWebhookConfiguration>(&()), "config"),
        ]
    }

    /// Waits until the policy is in effect.
    pub(super) async fn wait_for_policy(&self) -> TestResult {
        let secrets: Api<Secret> = Api::namespaced(self.client("controller").await?, self.namespace);
        let secret: Secret = serde_json::from_value(json!({"metadata": {"name": "other"}}))?;
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually("a refusal by the policy", TIMEOUT, async || {
            let message = refusal(secrets.create(&dry_run, &secret).await);
            if message.contains(POLICY) { Ok(()) } else { Err(message) }
        })
        .await;
        Ok(())
    }
}
