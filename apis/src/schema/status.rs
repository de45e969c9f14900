//! The fields of a status, which a definition does not require.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};

use super::{list_types::is_condition, visit};

/// Makes the fields of each status optional, but for the keys of its lists and the fields of its conditions, which are the
/// same in each release.
///
/// A definition is installed before the release that knows its new fields, and stays installed when that release is rolled
/// back. The other release writes the status without these fields, and the API server would refuse it.
pub(super) fn make_status_optional(definition: &mut CustomResourceDefinition) {
    let versions = definition.spec.versions.iter_mut();
    let with_status = versions.filter(|version| {
        version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some())
    });
    let schemas = with_status.filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut());
    for status in schemas.filter_map(|schema| schema.properties.as_mut()?.get_mut("status")) {
        status.required = None;
        visit(status, &mut make_children_optional);
    }
}

/// Makes the fields of the children of a node optional. The variants of an enum keep what tells them apart: a tag, or else the
/// fields that they require.
fn make_children_optional(node: &mut JSONSchemaProps) {
    let keys = node.x_kubernetes_list_map_keys.clone().unwrap_or_default();
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &mut node.items
        && !(keys == ["type"] && is_condition(item))
    {
        retain_required(item, &keys);
    }
    for field in node.properties.iter_mut().flat_map(|fields| fields.values_mut()) {
        retain_required(field, &[]);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut node.additional_properties {
        retain_required(values, &[]);
    }
    let parts = node.one_of.iter_mut().flatten().flat_map(|part| part.all_of.iter_mut().flatten());
    for tagged in parts.filter(|part| part.properties.is_some()) {
        tagged.required = None;
    }
}

fn retain_required(node: &mut JSONSchemaProps, kept: &[String]) {
    if let Some(names) = &mut node.required {
        names.retain(|name| kept.contains(name));
    }
    node.required = node.required.take().filter(|names| !names.is_empty());
}
