//! Tests of a webhook that a real API server calls.

use std::{path::PathBuf, process::Command, time::Duration};

use crate::lamp::{Lamp, LampStatus};
use crate::local_server::{Served, serve};
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use reknit_testing::{ControlPlane, eventually};
use reknit_webhook::Webhook;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

/// A namespace whose requests for lamps go through the webhook.
struct House {
    plane: &'static ControlPlane,
    namespace: String,
    lamps: Api<Lamp>,
    _served: Served,
}

impl House {
    async fn new(name: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Lamp>().await.unwrap();
        let namespace = plane.namespace(name).await.unwrap();
        let webhook =
            Webhook::new("demo.reknit.dev").defaulting_by_request::<Lamp>().validation::<Lamp>().callback(
                async |lamp: Lamp, _| {
                    if lamp.spec.room == "attic" { Err("no lamps there") } else { Ok(()) }
                },
            );
        let served = serve(webhook).await;
        let lamps = Api::namespaced(plane.client().unwrap(), &namespace);
        let house = Self { plane, namespace, lamps, _served: served };
        house.configure().await;
        house
    }

    fn hook(&self, path: &str, operations: &[&str]) -> Value {
        json!({
            "metadata": {"name": format!("{}.tests.reknit.dev", self.namespace)},
            "webhooks": [{
                "name": format!("{}.tests.reknit.dev", self.namespace),
                "admissionReviewVersions": ["v1"],
                "sideEffects": "NoneOnDryRun",
                "clientConfig": {"url": self._served.url(path), "caBundle": ByteString(self._served.ca.clone().into())},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
                "rules": [{
                    "operations": operations, "apiGroups": ["tests.reknit.dev"], "apiVersions": ["v1"],
                    "resources": ["lamps", "lamps/status"],
                }],
            }],
        })
    }

    /// Configures the webhook and returns once the API server calls it.
    async fn configure(&self) {
        let client = self.plane.client().unwrap();
        let mutating: MutatingWebhookConfiguration =
            serde_json::from_value(self.hook("/defaulting", &["CREATE", "UPDATE"])).unwrap();
        Api::all(client.clone()).create(&PostParams::default(), &mutating).await.unwrap();
        let validating: ValidatingWebhookConfiguration =
            serde_json::from_value(self.hook("/resource-validation", &["CREATE", "UPDATE", "DELETE"]))
                .unwrap();
        Api::all(client).create(&PostParams::default(), &validating).await.unwrap();
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        eventually("both webhooks to be called", LIMIT, async || {
            let hall = self.lamps.create(&dry, &self.typed(json!({"room": "hall"}))).await;
            let refused = self.lamps.create(&dry, &self.typed(json!({"room": ""}))).await.is_err();
            refused && hall.is_ok_and(|lamp| lamp.spec.watts == Some(40))
        })
        .await;
    }

    fn typed(&self, spec: Value) -> Lamp {
        Lamp::new("x", serde_json::from_value(spec).unwrap())
    }

    async fn create(&self, name: &str, spec: Value) -> Result<Lamp, kube::Error> {
        self.lamps
            .create(&PostParams::default(), &Lamp::new(name, serde_json::from_value(spec).unwrap()))
            .await
    }

    /// Applies a manifest by kubectl. Returns true if that succeeded, and the output.
    fn kubectl_apply(&self, manifest: &Value, arguments: &[&str]) -> (bool, String) {
        let file = std::env::temp_dir().join(format!("{}-lamp.json", self.namespace));
        std::fs::write(&file, manifest.to_string()).unwrap();
        let mut kubectl =
            Command::new(PathBuf::from(std::env::var("KUBEBUILDER_ASSETS").unwrap()).join("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.plane.kubeconfig()).args([
            "--namespace",
            &self.namespace,
            "apply",
            "-f",
        ]);
        let output = kubectl.arg(&file).args(arguments).output().unwrap();
        std::fs::remove_file(file).unwrap();
        let message =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), message)
    }
}

fn manifest(spec: Value) -> Value {
    json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "applied"}, "spec": spec})
}

fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> String {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.message,
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_have_defaults_their_creator_and_their_last_modifier() {
    let house = House::new("defaults").await;
    let made = house.create("a", json!({"room": "hall"})).await.unwrap();
    let user = made.spec.owner.clone().unwrap();
    assert!(!user.is_empty());
    assert_eq!(made.spec.watts, Some(40));
    assert_eq!(made.annotations()["tests.reknit.dev/creator"], user);

    house.plane.namespace("defaults-other").await.unwrap();
    let other = house.plane.client_as(&house.namespace, "other").await.unwrap();
    let admin: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(house.plane.client().unwrap());
    let binding = json!({
        "metadata": {"name": format!("other-{}", house.namespace)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": house.namespace}],
    });
    admin.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let others: Api<Lamp> = Api::namespaced(other, &house.namespace);
    let merge = |value: Value| Patch::Merge(value);
    let labelled = eventually("the permission to change the lamp", LIMIT, async || {
        others.patch("a", &PatchParams::default(), &merge(json!({"metadata": {"labels": {"a": "b"}}}))).await
    });
    assert_eq!(labelled.await.annotations()["tests.reknit.dev/lastModifier"], user);
    let brighter =
        others.patch("a", &PatchParams::default(), &merge(json!({"spec": {"watts": 50}}))).await.unwrap();
    let service_account = format!("system:serviceaccount:{}:other", house.namespace);
    assert_eq!(brighter.annotations()["tests.reknit.dev/lastModifier"], service_account);
    assert_eq!(brighter.annotations()["tests.reknit.dev/creator"], user);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_and_subresource_is_refused_with_its_message() {
    let house = House::new("refusals").await;
    let message = |text: &str| {
        format!("admission webhook \"{}.tests.reknit.dev\" denied the request: {text}", house.namespace)
    };
    assert_eq!(
        refusal(house.create("a", json!({"room": ""})).await),
        message("validation failed: missing field(s): spec.room")
    );
    assert_eq!(
        refusal(house.create("a", json!({"room": "attic"})).await),
        message("validation callback failed: no lamps there")
    );
    house.create("a", json!({"room": "cellar"})).await.unwrap();
    let moved = Patch::Merge(json!({"spec": {"room": "hall"}}));
    assert_eq!(
        refusal(house.lamps.patch("a", &PatchParams::default(), &moved).await),
        message("validation failed: must not set the field(s): spec.room")
    );
    let dark = Patch::Merge(json!({"status": LampStatus { lumens: -1 }}));
    assert_eq!(
        refusal(house.lamps.patch_status("a", &PatchParams::default(), &dark).await),
        message("validation failed: invalid value: -1: status.lumens")
    );
    assert_eq!(
        refusal(house.lamps.delete("a", &DeleteParams::default()).await),
        message("validation failed: stays on: spec.room")
    );
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    house.lamps.create(&dry, &house.typed(json!({"room": "attic"}))).await.unwrap();
    assert!(house.lamps.get_opt("x").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_reported_and_counted_and_later_requests_succeed() {
    let house = House::new("panics").await;
    let message = refusal(house.create("a", json!({"room": "panic"})).await);
    assert!(message.contains("failed calling webhook") && message.contains("panicked: "), "{message}");
    assert_eq!(house._served.counted("reknit_webhook_panics_total", "/resource-validation"), 1.0);
    house.create("a", json!({"room": "hall"})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_generate_name_gets_defaults_and_one_without_metadata_is_refused_by_the_api_server() {
    let house = House::new("nameless").await;
    let mut nameless = house.typed(json!({"room": "hall"}));
    nameless.metadata = serde_json::from_value(json!({"generateName": "lamp-"})).unwrap();
    let made = house.lamps.create(&PostParams::default(), &nameless).await.unwrap();
    assert!(made.name_any().starts_with("lamp-"), "{made:?}");
    assert_eq!((made.spec.watts, made.annotations().len()), (Some(40), 2));
    let bare = json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "spec": {"room": "hall"}});
    let request = kube::core::Request::new(house.lamps.resource_url().to_owned());
    let request = request.create(&PostParams::default(), bare.to_string().into_bytes()).unwrap();
    let message = refusal(house.plane.client().unwrap().request::<Lamp>(request).await);
    assert!(message.contains("name or generateName is required"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_side_apply_is_defaulted_and_a_second_one_changes_nothing() {
    let house = House::new("apply").await;
    let (applied, message) = house.kubectl_apply(&manifest(json!({"room": "hall"})), &["--server-side"]);
    assert!(applied, "{message}");
    let before = house.lamps.get("applied").await.unwrap();
    assert_eq!((before.spec.watts, before.annotations().len()), (Some(40), 2));
    assert!(!before.managed_fields().is_empty());
    let (applied, message) = house.kubectl_apply(&manifest(json!({"room": "hall"})), &["--server-side"]);
    assert!(applied, "{message}");
    assert_eq!(house.lamps.get("applied").await.unwrap().metadata, before.metadata);
    let (applied, message) =
        house.kubectl_apply(&manifest(json!({"room": "hall", "watts": 50})), &["--server-side"]);
    assert!(applied, "{message}");
    let after = house.lamps.get("applied").await.unwrap();
    assert_eq!((after.spec.watts, after.spec.room), (Some(50), before.spec.room));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_paths_and_warnings() {
    let house = House::new("kubectl").await;
    let unvalidated = ["--validate=false"];
    let (applied, message) = house.kubectl_apply(&manifest(json!({"room": "hall", "wats": 1})), &unvalidated);
    let unknown =
        "denied the request: mutation failed: cannot decode incoming new object: unknown field \"spec.wats\"";
    assert!(!applied && message.contains(unknown), "{message}");
    let flattened = manifest(json!({"room": "hall", "fabric": {"colour": "red", "color": "red"}}));
    let (applied, message) = house.kubectl_apply(&flattened, &[]);
    assert!(!applied && message.contains("unknown field \"spec.fabric.color\""), "{message}");
    let (applied, message) = house.kubectl_apply(&manifest(json!({})), &unvalidated);
    assert!(!applied && message.contains("missing field(s): spec.room"), "{message}");
    let (applied, message) = house.kubectl_apply(&manifest(json!({"room": 1})), &unvalidated);
    assert!(!applied && message.contains("invalid type: integer `1`, expected a string"), "{message}");
    let (applied, message) = house.kubectl_apply(&manifest(json!({"room": "hall", "watts": 100})), &[]);
    assert!(applied && message.contains("Warning: a lot of light: spec.watts"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_stored_objects_can_be_changed_and_deleted() {
    let house = House::new("stored").await;
    let client = house.plane.client().unwrap();
    // Stored without the webhook, in a namespace for which it is not called.
    let elsewhere = house.plane.namespace("stored-elsewhere").await.unwrap();
    let kind = kube::api::ApiResource::erase::<Lamp>(&());
    let lamps: Api<DynamicObject> = Api::namespaced_with(client.clone(), &elsewhere, &kind);
    let odd: DynamicObject = serde_json::from_value(manifest(json!({"room": "hall", "odd": 1}))).unwrap();
    lamps.create(&PostParams::default(), &odd).await.unwrap();
    let mut wrong: DynamicObject = serde_json::from_value(manifest(json!({"room": ""}))).unwrap();
    wrong.metadata =
        serde_json::from_value(json!({"name": "wrong", "finalizers": ["tests.reknit.dev/x"]})).unwrap();
    lamps.create(&PostParams::default(), &wrong).await.unwrap();
    let there = |path: &str, operations: &[&str]| {
        let mut configuration = house.hook(path, operations);
        configuration["webhooks"][0]["namespaceSelector"] =
            json!({"matchLabels": {"kubernetes.io/metadata.name": elsewhere}});
        Patch::Merge(configuration)
    };
    let name = format!("{}.tests.reknit.dev", house.namespace);
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let patch = there("/defaulting", &["CREATE", "UPDATE"]);
    mutating.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let patch = there("/resource-validation", &["CREATE", "UPDATE", "DELETE"]);
    validating.patch(&name, &PatchParams::default(), &patch).await.unwrap();
    let labelled = eventually("the webhook to be called", LIMIT, async || {
        let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "annotations": {"n": null}}}));
        let lamp = lamps.patch("applied", &PatchParams::default(), &label).await.unwrap();
        (lamp.data["spec"]["watts"] == 40).then_some(lamp)
    });
    assert_eq!(labelled.await.data["spec"]["odd"], 1);
    let worse = Patch::Merge(json!({"spec": {"odder": 1}}));
    let message = refusal(lamps.patch("applied", &PatchParams::default(), &worse).await);
    assert!(message.ends_with("unknown field \"spec.odder\""), "{message}");

    // An object that the rules refuse can be deleted.
    let same = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    eventually("the refusal of an invalid object", LIMIT, async || {
        let message = lamps.patch("wrong", &PatchParams::default(), &same).await.unwrap_err().to_string();
        if message.contains("missing field(s): spec.room") { Ok(()) } else { Err(message) }
    })
    .await;
    lamps.delete("wrong", &DeleteParams::default()).await.unwrap();
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.patch("wrong", &PatchParams::default(), &released).await.unwrap();
    assert!(lamps.get_opt("wrong").await.unwrap().is_none());
}
