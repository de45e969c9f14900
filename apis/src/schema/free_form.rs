//! Objects whose fields are not known.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrBool,
};

/// Preserves the fields of an object with values of any form, such as a `serde_json::Map<String, Value>`. Schemars
/// writes `additionalProperties: true`, for which the API server drops the fields of nested objects.
pub(super) fn preserve_unknown_fields(node: &mut JSONSchemaProps) {
    if node.additional_properties == Some(JSONSchemaPropsOrBool::Bool(true)) {
        node.additional_properties = None;
        node.x_kubernetes_preserve_unknown_fields = Some(true);
    }
}
