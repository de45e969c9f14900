//! Generated schemas with embedded core types, on a real API server.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::{
    api::core::v1::{Container, ObjectReference, PodTemplateSpec, ServiceSpec},
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, LabelSelector, MicroTime, Time},
    },
};
use kube::{
    Api, CustomResource, CustomResourceExt, KubeSchema,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use reknit_apis::{definition_of, drop_descriptions, kind, structural};
use reknit_testing::ControlPlane;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Fixture;

#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "schemas.reknit.dev", version = "v1", kind = "Pool", namespaced, status = "PoolStatus")]
struct PoolSpec {
    #[schemars(transform = drop_descriptions)]
    template: PodTemplateSpec,
    #[serde(default)]
    service: Option<ServiceSpec>,
    #[serde(default)]
    size: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
struct PoolStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

kind!(Pool { status: PoolStatus, conditions: metav1(conditions) });

/// Applies one container without force, as a field manager of the container's name.
async fn apply_container(pools: &Api<Pool>, name: &str) -> Pool {
    let container = json!({"name": name, "image": name, "ports": [{"containerPort": 80}]});
    let spec = json!({"template": {"spec": {"containers": [container]}}, "size": 1});
    let patch: Patch<Value> = Patch::Apply(
        json!({"apiVersion": "schemas.reknit.dev/v1", "kind": "Pool", "metadata": {"name": "x"}, "spec": spec}),
    );
    pools.patch("x", &PatchParams::apply(name), &patch).await.unwrap()
}

#[tokio::test]
async fn two_field_managers_apply_different_containers_of_an_embedded_pod_template() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install::<Pool>().await.unwrap();
    let fixture = Fixture::new("schemas").await;
    let pools = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    apply_container(&pools, "web").await;
    let pool = apply_container(&pools, "proxy").await;
    let containers = pool.spec.template.spec.unwrap().containers;
    let names: Vec<_> = containers.iter().map(|container| &*container.name).collect();
    assert_eq!(names, ["web", "proxy"]);
    let protocol =
        |container: &Container| container.ports.iter().flatten().find_map(|port| port.protocol.clone());
    assert_eq!(protocol(&containers[0]).as_deref(), Some("TCP"));
}

/// A Kind with every form of field: "quoted", with a colon: and a # and --- too.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, KubeSchema)]
#[kube(group = "schemas.reknit.dev", version = "v1", kind = "Gallery", plural = "galleries", namespaced)]
#[kube(validation = Rule::new("self.metadata.name != 'forbidden'"))]
#[x_kube(validation = Rule::new("self.text != self.renamed").message("the same text twice"))]
#[schemars(transform = structural)]
#[serde(rename_all = "camelCase")]
struct GallerySpec {
    /// It says: "no", `{}` # and 'yes'.
    ///
    /// ---
    /// - a list
    text: String,
    #[serde(rename = "renamed", alias = "oldName")]
    renamed: String,
    optional_port: Option<Port>,
    twice: Option<Option<String>>,
    modes: HashMap<String, Mode>,
    by_mode: BTreeMap<Mode, i32>,
    values: Vec<Value>,
    cpu: Quantity,
    /// The memory.
    memory: Option<Quantity>,
    limits: Option<BTreeMap<String, Quantity>>,
    time: Option<Time>,
    micro_time: Option<MicroTime>,
    selector: LabelSelector,
    reference: ObjectReference,
    #[schemars(transform = drop_descriptions)]
    template: Option<PodTemplateSpec>,
    #[schemars(extend("format" = "duration"))]
    iso_duration: String,
    duration: Duration,
    wide: i128,
    unsigned: u64,
    small: u8,
    letter: char,
    pair: (i32, String),
    fixed: [u8; 3],
    tree: Tree,
    #[serde(default = "dark")]
    mode: Mode,
    #[serde(flatten)]
    frame: Frame,
    #[serde(with = "as_text")]
    #[schemars(with = "String")]
    count: u32,
    shape: Option<Shape>,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema)]
enum Mode {
    /// Without light.
    #[serde(rename = "no")]
    Dark,
    #[serde(rename = "on")]
    Light,
}

fn dark() -> Mode {
    Mode::Dark
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[serde(untagged)]
enum Port {
    Number(u16),
    Name(String),
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
struct Tree {
    name: String,
    #[serde(default)]
    children: Vec<Tree>,
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
struct Frame {
    #[serde(rename = "frame-colour")]
    colour: Option<String>,
    #[serde(skip)]
    hidden: Vec<u8>,
}

#[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Shape {
    RoundedSquare {
        radius: i32,
    },
    #[serde(rename = "disc")]
    Circle(i32),
}

mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(count: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(count)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

fn gallery_spec() -> Value {
    json!({
        "text": "a", "renamed": "b", "optionalPort": 80, "twice": "x", "modes": {"a": "no"}, "byMode": {"on": 1},
        "values": [1, "a", null, {"b": [true]}], "cpu": "500m", "time": "2026-01-02T03:04:05Z",
        "microTime": "2026-01-02T03:04:05.000006Z", "selector": {"matchLabels": {"a": "b"}},
        "reference": {"kind": "Pod", "name": "p"},
        "template": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": 1}}}]}},
        "isoDuration": "PT1H", "duration": {"secs": 1, "nanos": 5}, "wide": -5, "unsigned": 5, "small": 255,
        "letter": "ä", "pair": [1, "b"], "fixed": [1, 2, 3],
        "tree": {"name": "a", "children": [{"name": "b", "children": [{"name": "c", "children": []}]}]},
        "frame-colour": "gold", "count": "7", "shape": {"rounded-square": {"radius": 3}},
    })
}

#[tokio::test]
async fn a_kind_with_every_form_of_field_is_installed_and_keeps_its_values() {
    let plane = ControlPlane::shared().await.unwrap();
    plane.install_crd(definition_of::<Gallery>().unwrap()).await.unwrap();
    let fixture = Fixture::new("galleries").await;
    let galleries: Api<DynamicObject> =
        Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &Gallery::api_resource());
    let create = async |name: &str, spec: Value| {
        let object = json!({
            "apiVersion": "schemas.reknit.dev/v1", "kind": "Gallery", "metadata": {"name": name}, "spec": spec,
        });
        galleries.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await
    };
    let with = |field: &str, value: Value| {
        let mut spec = gallery_spec();
        spec[field] = value;
        spec
    };
    let stored = create("every-form", gallery_spec()).await.unwrap();
    assert_eq!(stored.data["spec"], with("mode", json!("no")), "a field was dropped or changed");
    let typed: Api<Gallery> = Api::namespaced(fixture.client.clone(), &fixture.namespace);
    let read = typed.get("every-form").await.unwrap();
    assert_eq!(serde_json::to_value(&read.spec).unwrap()["tree"], gallery_spec()["tree"]);
    assert!(read.spec.frame.hidden.is_empty());

    for (number, (field, value)) in [
        ("optionalPort", json!("http")),
        ("optionalPort", Value::Null),
        ("twice", Value::Null),
        ("cpu", json!(1)),
        ("cpu", json!("100m")),
        ("memory", json!("1.5Gi")),
        ("memory", Value::Null),
        ("limits", json!({"cpu": 2, "memory": "1e3"})),
        ("time", json!("2026-01-02T03:04:05.5+02:00")),
        ("microTime", Value::Null),
        ("template", Value::Null),
        ("frame-colour", Value::Null),
        ("shape", json!({"disc": 3})),
        ("shape", Value::Null),
        ("selector", json!({"matchExpressions": [{"key": "a", "operator": "Exists"}]})),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("accepted-{number}");
        create(&name, with(field, value.clone()))
            .await
            .unwrap_or_else(|error| panic!("{field}: {value}: {error}"));
        typed.get(&name).await.unwrap_or_else(|error| panic!("{field}: {value}: {error}"));
    }
    for (field, value) in [
        ("text", json!("b")),
        ("text", Value::Null),
        ("optionalPort", json!([80])),
        ("modes", json!({"a": "yes"})),
        ("cpu", json!([])),
        ("cpu", json!("many")),
        ("memory", json!("1 Gi")),
        ("limits", json!({"cpu": "many"})),
        ("time", json!("yesterday")),
        ("small", json!(256)),
        ("unsigned", json!(-1)),
        ("letter", json!("ab")),
        ("pair", json!([1])),
        ("fixed", json!([1, 2, 3, 4])),
        ("mode", json!("off")),
        ("count", json!(7)),
        ("shape", json!({"disc": 3, "rounded-square": {"radius": 3}})),
        ("shape", json!({"rounded-square": {}})),
        ("tree", json!({"children": []})),
    ] {
        let refused = create("refused", with(field, value.clone())).await;
        let Err(kube::Error::Api(status)) = &refused else { panic!("{field}: {value}: {refused:?}") };
        assert_eq!(status.code, 422, "{field}: {value}: {status:?}");
    }
    let Err(kube::Error::Api(status)) = create("forbidden", gallery_spec()).await else {
        panic!("it is created")
    };
    assert!(status.message.contains("self.metadata.name"), "{status:?}");
}
