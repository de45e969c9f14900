//! List types of embedded core types, which the schemas of `k8s_openapi` leave out.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerPort, EnvVar, EphemeralContainer, HostAlias, LocalObjectReference,
        PodResourceClaim, PodSchedulingGate, ServicePort, TopologySpreadConstraint, Volume, VolumeDevice,
        VolumeMount,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSON, JSONSchemaProps, JSONSchemaPropsOrArray},
    apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::json;

/// A list that Kubernetes treats as a map.
pub(super) struct ListMap {
    field: &'static str,
    keys: &'static [&'static str],
    /// The names of the fields of an item.
    item: BTreeSet<String>,
}

/// The lists of the core types that pod templates and Services contain, by `+listMapKey` in `k8s.io/api`.
pub(super) fn list_maps() -> Vec<ListMap> {
    vec![
        list_map::<Container>("containers", &["name"]),
        list_map::<Container>("initContainers", &["name"]),
        list_map::<EphemeralContainer>("ephemeralContainers", &["name"]),
        list_map::<Volume>("volumes", &["name"]),
        list_map::<LocalObjectReference>("imagePullSecrets", &["name"]),
        list_map::<HostAlias>("hostAliases", &["ip"]),
        list_map::<TopologySpreadConstraint>(
            "topologySpreadConstraints",
            &["topologyKey", "whenUnsatisfiable"],
        ),
        list_map::<PodSchedulingGate>("schedulingGates", &["name"]),
        list_map::<PodResourceClaim>("resourceClaims", &["name"]),
        list_map::<EnvVar>("env", &["name"]),
        list_map::<ContainerPort>("ports", &["containerPort", "protocol"]),
        list_map::<ServicePort>("ports", &["port", "protocol"]),
        list_map::<VolumeMount>("volumeMounts", &["mountPath"]),
        list_map::<VolumeDevice>("volumeDevices", &["devicePath"]),
        list_map::<OwnerReference>("ownerReferences", &["uid"]),
    ]
}

fn list_map<T: JsonSchema>(field: &'static str, keys: &'static [&'static str]) -> ListMap {
    let schema = SchemaGenerator::default().into_root_schema_for::<T>();
    let properties = schema.get("properties").and_then(|properties| properties.as_object());
    let item = properties.into_iter().flat_map(|properties| properties.keys().cloned()).collect();
    ListMap { field, keys, item }
}

/// Sets the types of the lists in the properties of this node. A type that is already set is kept.
pub(super) fn set_list_types(node: &mut JSONSchemaProps, list_maps: &[ListMap]) {
    for (name, list) in node.properties.iter_mut().flatten() {
        if list.x_kubernetes_list_type.is_some() {
            continue;
        }
        let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut list.items else { continue };
        let keys = match is_condition(item) && name == "conditions" {
            true => Some(&["type"][..]),
            false => list_maps.iter().find(|map| map.matches(name, item)).map(|map| map.keys),
        };
        if let Some(keys) = keys {
            keys.iter().for_each(|key| require_or_default(item, key));
            list.x_kubernetes_list_type = Some("map".into());
            list.x_kubernetes_list_map_keys = Some(keys.iter().map(|&key| key.into()).collect());
        }
    }
}

impl ListMap {
    fn matches(&self, field: &str, item: &JSONSchemaProps) -> bool {
        let properties = item.properties.as_ref();
        self.field == field && properties.is_some_and(|properties| self.item.iter().eq(properties.keys()))
    }
}

pub(super) fn is_condition(item: &JSONSchemaProps) -> bool {
    let is_required = |field: &str| item.required.iter().flatten().any(|required| required == field);
    is_required("type") && is_required("status")
}

/// Sets a default for a key of a list that is neither required nor has a default, since the API server refuses such a
/// key.
fn require_or_default(item: &mut JSONSchemaProps, key: &str) {
    if item.required.iter().flatten().any(|required| required == key) {
        return;
    }
    let default = if key == "protocol" { "TCP" } else { "" };
    if let Some(property) = item.properties.as_mut().and_then(|properties| properties.get_mut(key)) {
        property.default.get_or_insert(JSON(json!(default)));
    }
}
