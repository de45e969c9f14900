//! Schemas of CustomResourceDefinitions in the form that Kubernetes uses for its own types.

mod alternatives;
mod defaults;
mod definition;
mod descriptions;
mod formats;
mod free_form;
mod list_types;
mod nullable;
mod quantities;
mod rules;
mod status;
mod structural;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use serde::Serialize;
use serde_json::Value;

pub use self::{
    definition::definition_of,
    descriptions::drop_descriptions,
    rules::{SchemaError, check_definition},
    structural::structural,
};

/// Returns the definition with the structural schemas, integer formats, list types and statuses of Kubernetes. [`definition_of`]
/// calls it; call it for a definition that you make in another way.
///
/// - **Structural schemas.** As [`structural`] writes them, for types that kube's derive can generate without it.
/// - **Integer formats.** schemars writes formats such as `uint32`, for which kubectl warns `unrecognized format`. They
///   become `int32` or `int64` with the minimum and maximum of the Rust type. The format `duration` is left out: types
///   of Rust mean ISO 8601 by it, and the API server accepts only Go's durations.
/// - **List types.** A list named `conditions` becomes a map by `type`, and the lists of embedded core types, such as
///   `containers`, `env` and `ports`, become maps by the keys that they have in Kubernetes. So two field managers can
///   apply different entries. For a list of your own, set the type on the field:
///   `#[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]`. A type that is
///   set is kept.
/// - **Objects of any form.** A `serde_json::Map<String, Value>` keeps its fields at any depth
///   (`x-kubernetes-preserve-unknown-fields`). With the schema that schemars writes, the API server drops the fields of
///   nested objects.
/// - **Statuses.** No field of a status is required, except for the keys of its lists, the fields of conditions, and those that
///   tell the variants of an enum apart. The release before the one that adds a field writes the status without it: during a
///   rollout, and after a rollback.
///
/// [`definition_of`] also gives each `Quantity` its pattern, so that the API server refuses `cpu: many`. The schemas of a
/// finished definition do not say which fields are quantities.
///
/// ```
/// use k8s_openapi::api::core::v1::Container;
/// use kube::{CustomResource, CustomResourceExt};
/// use reknit_apis::kubernetes_schema;
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Pool", namespaced)]
/// struct PoolSpec {
///     size: u32,
///     containers: Vec<Container>,
/// }
///
/// let definition = kubernetes_schema(Pool::crd());
/// let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
/// let spec = schema.properties.as_ref().unwrap()["spec"].properties.as_ref().unwrap();
/// assert_eq!((spec["size"].format.as_deref(), spec["size"].minimum), (Some("int64"), Some(0.0)));
/// assert_eq!(spec["containers"].x_kubernetes_list_map_keys.as_deref(), Some(&["name".to_owned()][..]));
/// ```
pub fn kubernetes_schema(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut definition = complete_schema(definition);
    status::make_status_optional(&mut definition);
    definition
}

/// Returns the definition of [`kubernetes_schema`] with the fields that each status requires. A conversion fills them in.
pub fn complete_schema(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let list_maps = list_types::list_maps();
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let Some(schema) = schema else { continue };
        if let Ok(structural) = to_structural(schema) {
            *schema = structural;
        }
        visit(schema, &mut |node| {
            formats::use_known_format(node);
            formats::shorten_default(node);
            free_form::preserve_unknown_fields(node);
            list_types::set_list_types(node, &list_maps);
        });
    }
    definition
}

/// Rewrites the schemas of the spec and the status. The object itself is an object already.
fn to_structural(schema: &impl Serialize) -> serde_json::Result<JSONSchemaProps> {
    let mut root = serde_json::to_value(schema)?;
    for (_, part) in root["properties"].as_object_mut().into_iter().flatten() {
        *part = Value::Object(structural::rewrite(part.take()));
    }
    if let Value::Object(root) = &mut root {
        root.retain(|key, _| !matches!(&**key, "components" | "definitions" | "$defs"));
    }
    serde_json::from_value(root)
}

/// Calls the visitor with each node of the schema, a parent before its children.
fn visit(node: &mut JSONSchemaProps, visitor: &mut impl FnMut(&mut JSONSchemaProps)) {
    visitor(node);
    node.properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .for_each(|child| visit(child, visitor));
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut node.items {
        visit(items, visitor);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut node.additional_properties {
        visit(values, visitor);
    }
    let alternatives = [&mut node.all_of, &mut node.any_of, &mut node.one_of];
    alternatives.into_iter().flatten().flatten().for_each(|child| visit(child, visitor));
}
