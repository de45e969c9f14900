//! Schemas of CustomResourceDefinitions in the form that Kubernetes uses for its own types.

mod descriptions;
mod formats;
mod free_form;
mod list_types;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

pub use self::descriptions::drop_descriptions;

/// Returns the definition with the integer formats and list types of Kubernetes. Call it where a definition is printed
/// or installed.
///
/// - **Integer formats.** schemars writes formats such as `uint32`, for which kubectl warns `unrecognized format`. They
///   become `int32` or `int64` with the minimum and maximum of the Rust type.
/// - **List types.** A list named `conditions` becomes a map by `type`, and the lists of embedded core types, such as
///   `containers`, `env` and `ports`, become maps by the keys that they have in Kubernetes. So two field managers can
///   apply different entries. For a list of your own, set the type on the field:
///   `#[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]`. A type that is
///   set is kept.
/// - **Objects of any form.** A `serde_json::Map<String, Value>` keeps its fields at any depth
///   (`x-kubernetes-preserve-unknown-fields`). With the schema that schemars writes, the API server drops the fields of
///   nested objects.
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
pub fn kubernetes_schema(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let list_maps = list_types::list_maps();
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let Some(schema) = schema else { continue };
        visit(schema, &mut |node| {
            formats::use_known_format(node);
            free_form::preserve_unknown_fields(node);
            list_types::set_list_types(node, &list_maps);
        });
    }
    definition
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
