//! Tests of a webhook that a real API server calls.

use std::{collections::BTreeMap, error::Error, io::Write, path::PathBuf, process::Command, time::Duration};

use crate::lamp::{Lamp, LampStatus, Rule, not_in_the_attic};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use reknit_apis::{Defaultable, FieldError, Request, Validatable, kind};
use reknit_injection::FromConfigMap;
use reknit_testing::{ControlPlane, WebhookServer, eventually};
use reknit_webhook::Webhook;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A namespace for whose lamps the API server calls the webhook.
struct Fixture {
    plane: &'static ControlPlane,
    namespace: String,
    lamps: Api<Lamp>,
    server: WebhookServer,
}

fn webhook() -> Webhook {
    let webhook = Webhook::new("demo.reknit.dev").defaulting_by_request::<Lamp>().validation::<Lamp>();
    webhook.validator(Rule(not_in_the_attic))
}

impl Fixture {
    async fn new(name: &str) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        plane.install::<Lamp>().await.unwrap();
        let namespace = plane.namespace(name).await.unwrap();
        Self::serve(plane, namespace).await
    }

    async fn serve(plane: &'static ControlPlane, namespace: String) -> Self {
        let server = plane.serve_webhook(&namespace, |_| Ok(webhook())).await.unwrap();
        let lamps = Api::namespaced(plane.client().unwrap(), &namespace);
        Self { plane, namespace, lamps, server }
    }

    /// The lamp `x` with this spec.
    fn lamp(&self, spec: Value) -> Lamp {
        Lamp::new("x", serde_json::from_value(spec).unwrap())
    }

    async fn create(&self, name: &str, spec: Value) -> Result<Lamp, kube::Error> {
        self.lamps
            .create(&PostParams::default(), &Lamp::new(name, serde_json::from_value(spec).unwrap()))
            .await
    }

    /// Applies a manifest with kubectl. Returns whether kubectl succeeded, and its output.
    fn kubectl_apply(&self, manifest: &Value, arguments: &[&str]) -> (bool, String) {
        let mut file = tempfile::NamedTempFile::with_suffix(".json").unwrap();
        write!(file, "{manifest}").unwrap();
        let mut kubectl =
            Command::new(PathBuf::from(std::env::var("KUBEBUILDER_ASSETS").unwrap()).join("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.plane.kubeconfig()).args([
            "--namespace",
            &self.namespace,
            "apply",
            "-f",
        ]);
        let output = kubectl.arg(file.path()).args(arguments).output().unwrap();
        let message =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), message)
    }
}

/// The lamp `applied` with this spec.
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
    let fixture = Fixture::new("defaults").await;
    let created = fixture.create("a", json!({"room": "hall"})).await.unwrap();
    let user = created.spec.owner.clone().unwrap();
    assert!(!user.is_empty());
    assert_eq!(created.spec.watts, Some(40));
    assert_eq!(created.annotations()["tests.reknit.dev/creator"], user);

    fixture.plane.namespace("defaults-other").await.unwrap();
    let other = fixture.plane.client_as(&fixture.namespace, "other").await.unwrap();
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> =
        Api::all(fixture.plane.client().unwrap());
    let binding = json!({
        "metadata": {"name": format!("other-{}", fixture.namespace)},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": fixture.namespace}],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let lamps_as_other: Api<Lamp> = Api::namespaced(other, &fixture.namespace);
    let labelled = eventually("the permission to change the lamp", TIMEOUT, async || {
        lamps_as_other
            .patch("a", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}})))
            .await
    })
    .await;
    assert_eq!(labelled.annotations()["tests.reknit.dev/lastModifier"], user);
    let brighter = lamps_as_other
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"watts": 50}})))
        .await
        .unwrap();
    let service_account = format!("system:serviceaccount:{}:other", fixture.namespace);
    assert_eq!(brighter.annotations()["tests.reknit.dev/lastModifier"], service_account);
    assert_eq!(brighter.annotations()["tests.reknit.dev/creator"], user);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_operation_and_subresource_is_refused_with_its_message() {
    let fixture = Fixture::new("refusals").await;
    let message = |text: &str| {
        format!("admission webhook \"validation.webhook.demo.reknit.dev\" denied the request: {text}")
    };
    assert_eq!(
        refusal(fixture.create("a", json!({"room": ""})).await),
        message("validation failed: missing field(s): spec.room")
    );
    assert_eq!(
        refusal(fixture.create("a", json!({"room": "attic"})).await),
        message("validation failed: no lamps there: spec.room")
    );
    fixture.create("a", json!({"room": "cellar"})).await.unwrap();
    let room_changed = Patch::Merge(json!({"spec": {"room": "hall"}}));
    assert_eq!(
        refusal(fixture.lamps.patch("a", &PatchParams::default(), &room_changed).await),
        message("validation failed: must not set the field(s): spec.room")
    );
    let negative_lumens = Patch::Merge(json!({"status": LampStatus { lumens: -1 }}));
    assert_eq!(
        refusal(fixture.lamps.patch_status("a", &PatchParams::default(), &negative_lumens).await),
        message("validation failed: invalid value: -1: status.lumens")
    );
    assert_eq!(
        refusal(fixture.lamps.delete("a", &DeleteParams::default()).await),
        message("validation failed: stays on: spec.room")
    );
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    assert_eq!(
        refusal(fixture.lamps.create(&dry_run, &fixture.lamp(json!({"room": "attic"}))).await),
        message("validation failed: no lamps there: spec.room")
    );
    assert!(fixture.lamps.get_opt("x").await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_is_reported_and_counted_and_later_requests_succeed() {
    let fixture = Fixture::new("panics").await;
    let message = refusal(fixture.create("a", json!({"room": "panic"})).await);
    assert!(message.contains("failed calling webhook") && message.contains("panicked: "), "{message}");
    let families = fixture.server.metrics().gather();
    let panics =
        families.iter().find(|family| family.name() == "controller_runtime_webhook_panics_total").unwrap();
    assert_eq!(panics.get_metric()[0].get_counter().get_value(), 1.0);
    fixture.create("a", json!({"room": "hall"})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_with_generate_name_gets_defaults_and_one_without_metadata_is_refused_by_the_api_server() {
    let fixture = Fixture::new("nameless").await;
    let mut unnamed = fixture.lamp(json!({"room": "hall"}));
    unnamed.metadata = serde_json::from_value(json!({"generateName": "lamp-"})).unwrap();
    let created = fixture.lamps.create(&PostParams::default(), &unnamed).await.unwrap();
    assert!(created.name_any().starts_with("lamp-"), "{created:?}");
    assert_eq!((created.spec.watts, created.annotations().len()), (Some(40), 2));
    let without_metadata =
        json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "spec": {"room": "hall"}});
    let request = kube::core::Request::new(fixture.lamps.resource_url().to_owned());
    let request = request.create(&PostParams::default(), without_metadata.to_string().into_bytes()).unwrap();
    let message = refusal(fixture.plane.client().unwrap().request::<Lamp>(request).await);
    assert!(message.contains("name or generateName is required"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_applied_object_gets_defaults_and_a_second_apply_changes_nothing() {
    let fixture = Fixture::new("apply").await;
    let (succeeded, message) = fixture.kubectl_apply(&manifest(json!({"room": "hall"})), &["--server-side"]);
    assert!(succeeded, "{message}");
    let before = fixture.lamps.get("applied").await.unwrap();
    assert_eq!((before.spec.watts, before.annotations().len()), (Some(40), 2));
    assert!(!before.managed_fields().is_empty());
    let (succeeded, message) = fixture.kubectl_apply(&manifest(json!({"room": "hall"})), &["--server-side"]);
    assert!(succeeded, "{message}");
    assert_eq!(fixture.lamps.get("applied").await.unwrap().metadata, before.metadata);
    let (succeeded, message) =
        fixture.kubectl_apply(&manifest(json!({"room": "hall", "watts": 50})), &["--server-side"]);
    assert!(succeeded, "{message}");
    let after = fixture.lamps.get("applied").await.unwrap();
    assert_eq!((after.spec.watts, after.spec.room), (Some(50), before.spec.room));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_a_line_for_each_fault_and_the_warnings() {
    let fixture = Fixture::new("kubectl").await;
    let faults = |spec: Value| {
        let (succeeded, message) = fixture.kubectl_apply(&manifest(spec), &["--validate=false"]);
        assert!(!succeeded, "{message}");
        message.trim_end().to_owned()
    };
    let invalid = "The Lamp \"applied\" is invalid: ";
    assert_eq!(
        faults(json!({"room": "", "watts": 1_000})),
        format!(
            "{invalid}\n* spec.watts: Invalid value: expected 1 <= 1000 <= 999\n* spec.room: Required value"
        )
    );
    assert_eq!(
        faults(json!({"room": "hall", "wats": 1, "fabric": {"colour": "red", "color": "red"}})),
        format!(
            "{invalid}\n* spec.fabric.color: Forbidden: unknown field\n* spec.wats: Forbidden: unknown field"
        )
    );
    assert_eq!(faults(json!({})), format!("{invalid}spec.room: Required value"));
    assert_eq!(
        faults(json!({"room": 1})),
        format!("{invalid}spec.room: Invalid value: invalid type: integer `1`, expected a string")
    );
    assert_eq!(
        faults(json!({"room": "attic"})),
        format!("{invalid}spec.room: Invalid value: no lamps there")
    );
    let (succeeded, message) = fixture.kubectl_apply(&manifest(json!({"room": "hall", "watts": 100})), &[]);
    assert!(succeeded && message.contains("Warning: a lot of light: spec.watts"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_stored_objects_can_be_changed_and_deleted() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let namespace = plane.namespace("stored").await.unwrap();
    let kind = kube::api::ApiResource::erase::<Lamp>(&());
    let lamps: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), &namespace, &kind);
    let with_unknown_field: DynamicObject =
        serde_json::from_value(manifest(json!({"room": "hall", "odd": 1}))).unwrap();
    lamps.create(&PostParams::default(), &with_unknown_field).await.unwrap();
    let mut invalid: DynamicObject = serde_json::from_value(manifest(json!({"room": ""}))).unwrap();
    invalid.metadata =
        serde_json::from_value(json!({"name": "wrong", "finalizers": ["tests.reknit.dev/x"]})).unwrap();
    lamps.create(&PostParams::default(), &invalid).await.unwrap();
    let _webhook = Fixture::serve(plane, namespace).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "annotations": {"n": null}}}));
    let labelled = lamps.patch("applied", &PatchParams::default(), &label).await.unwrap();
    assert_eq!((&labelled.data["spec"]["watts"], &labelled.data["spec"]["odd"]), (&json!(40), &json!(1)));
    let another_unknown_field = Patch::Merge(json!({"spec": {"odder": 1}}));
    let message = refusal(lamps.patch("applied", &PatchParams::default(), &another_unknown_field).await);
    assert!(message.ends_with("unknown field \"spec.odder\""), "{message}");

    // An object that breaks the rules can be labelled, gets its status, can be deleted and can lose its finalizers.
    let unchanged_spec = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["a.dev/b"]}}));
    lamps.patch("wrong", &PatchParams::default(), &unchanged_spec).await.unwrap();
    let lit = Patch::Merge(json!({"status": {"lumens": 1}}));
    lamps.patch_status("wrong", &PatchParams::default(), &lit).await.unwrap();
    let changed_spec = Patch::Merge(json!({"spec": {"watts": 41}}));
    let message = refusal(lamps.patch("wrong", &PatchParams::default(), &changed_spec).await);
    assert!(message.ends_with("missing field(s): spec.room"), "{message}");
    lamps.delete("wrong", &DeleteParams::default()).await.unwrap();
    let without_finalizers = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.patch("wrong", &PatchParams::default(), &without_finalizers).await.unwrap();
    assert!(lamps.get_opt("wrong").await.unwrap().is_none());
}

/// The default of the watts of a torch.
#[derive(Default)]
struct Watts(u32);

impl FromConfigMap for Watts {
    const NAME: &'static str = "config-watts";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(Self(data.get("watts").map_or(Ok(7), |text| text.parse())?))
    }
}

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Torch", namespaced)]
struct TorchSpec {
    watts: Option<u32>,
}

kind!(Torch {});

impl Defaultable for Torch {
    fn set_request_defaults(&mut self, _: Option<&Self>, request: &Request) {
        self.spec.watts.get_or_insert_with(|| request.config::<Watts>().0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_follow_a_config_map_whose_invalid_changes_are_refused() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Torch>().await.unwrap();
    let namespace = plane.namespace("torches").await.unwrap();
    let webhook = Webhook::new("torches.reknit.dev")
        .defaulting_by_request::<Torch>()
        .config::<Watts>()
        .config_validation::<Watts>();
    let _server = plane.serve_webhook(&namespace, |_| Ok(webhook)).await.unwrap();
    let client = plane.client().unwrap();
    let torches: Api<Torch> = Api::namespaced(client.clone(), &namespace);
    let create = async |name: &str| {
        let torch = Torch::new(name, TorchSpec { watts: None });
        torches.create(&PostParams::default(), &torch).await.unwrap().spec.watts
    };
    assert_eq!(create("before").await, Some(0), "without the ConfigMap: Watts::default()");
    let config_maps: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let map = |watts: &str| {
        let map = json!({"metadata": {"name": "config-watts"}, "data": {"watts": watts}});
        serde_json::from_value::<ConfigMap>(map).unwrap()
    };
    let refused = refusal(config_maps.create(&PostParams::default(), &map("many")).await);
    assert!(refused.ends_with("validation failed: invalid digit found in string"), "{refused}");
    config_maps.create(&PostParams::default(), &map("60")).await.unwrap();
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    eventually("the default of the ConfigMap", TIMEOUT, async || {
        let torch = torches.create(&dry_run, &Torch::new("x", TorchSpec { watts: None })).await.unwrap();
        torch.spec.watts == Some(60)
    })
    .await;
}

/// A Kind with the subresource `scale`. The schema limits its replicas to nine and to the hooks, and a rule to five.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(
    group = "tests.reknit.dev",
    version = "v1",
    kind = "Chandelier",
    namespaced,
    status = "ChandelierStatus",
    scale = r#"{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}"#,
    validation = kube::core::Rule::new("self.spec.replicas <= self.spec.hooks").message("too few hooks")
)]
struct ChandelierSpec {
    #[schemars(range(max = 9))]
    replicas: i32,
    hooks: i32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, schemars::JsonSchema)]
struct ChandelierStatus {
    replicas: i32,
}

kind!(Chandelier {});

impl Validatable for Chandelier {
    fn validate(&self, _: &Request) -> FieldError {
        match self.spec.replicas {
            replicas @ 6.. => FieldError::out_of_bounds(replicas, 0, 5, "spec.replicas"),
            _ => FieldError::none(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scale_request_has_to_obey_the_schema_and_asks_no_webhook() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Chandelier>().await.unwrap();
    let namespace = plane.namespace("scale").await.unwrap();
    let webhook = Webhook::new("scale.reknit.dev").validation::<Chandelier>();
    let _server = plane.serve_webhook(&namespace, |_| Ok(webhook)).await.unwrap();
    let chandeliers: Api<Chandelier> = Api::namespaced(plane.client().unwrap(), &namespace);
    let chandelier = Chandelier::new("a", ChandelierSpec { replicas: 1, hooks: 7 });
    chandeliers.create(&PostParams::default(), &chandelier).await.unwrap();
    let replicas = |replicas: i32| Patch::Merge(json!({"spec": {"replicas": replicas}}));
    let refused = refusal(chandeliers.patch("a", &PatchParams::default(), &replicas(6)).await);
    assert!(refused.contains("expected 0 <= 6 <= 5: spec.replicas"), "{refused}");

    let scale = async |number| chandeliers.patch_scale("a", &PatchParams::default(), &replicas(number)).await;
    scale(6).await.unwrap();
    assert_eq!(chandeliers.get("a").await.unwrap().spec.replicas, 6);
    for (number, expected) in [(8, "too few hooks"), (10, "less than or equal to 9")] {
        let refused = refusal(scale(number).await);
        assert!(refused.contains(expected), "{refused}");
    }
}
