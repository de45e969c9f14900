//! The definition of a Kind from its types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use kube_core::{
    CustomResourceExt,
    schema::{OptionalEnum, OptionalIntOrString, StructuralSchemaRewriter},
};
use schemars::{
    JsonSchema, Schema,
    generate::SchemaSettings,
    transform::{AddNullable, Transform},
};
use serde_json::Value;

use super::{
    kubernetes_schema,
    quantities::schema_with_quantities,
    rules::{SchemaError, check_definition},
    to_structural,
};

/// Returns the CustomResourceDefinition of a Kind: that of [`CustomResourceExt::crd`], with the schema that
/// [`structural`](super::structural) and [`kubernetes_schema`] make of its types. Each `Quantity` has the pattern that
/// controller-gen writes.
///
/// ```
/// use kube::CustomResource;
/// use reknit_apis::definition_of;
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
/// use serde_json::Value;
///
/// #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Chart", namespaced)]
/// struct ChartSpec {
///     values: Value,
/// }
///
/// let definition = definition_of::<Chart>().unwrap();
/// let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
/// let spec = schema.properties.as_ref().unwrap()["spec"].properties.as_ref().unwrap();
/// assert_eq!(spec["values"].x_kubernetes_preserve_unknown_fields, Some(true));
/// ```
///
/// # Errors
///
/// Fails with the path of each field whose schema the API server would refuse, or for which `crd()` would panic because
/// the type lacks the transform [`structural`](super::structural).
pub fn definition_of<K: CustomResourceExt + JsonSchema>() -> Result<CustomResourceDefinition, SchemaError> {
    let refusal =
        |faults| SchemaError { definition: format!("CustomResourceDefinition {}", K::crd_name()), faults };
    let generator = || {
        let settings = SchemaSettings::openapi3().with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        });
        settings.with_transform(AddNullable::default()).into_generator()
    };
    let schema = generator().into_root_schema_for::<K>();
    let mut conflicts = Vec::new();
    find_conflicts("", schema.as_value(), &mut conflicts);
    if !conflicts.is_empty() {
        return Err(refusal(conflicts));
    }
    check_generated_by_kube(schema).map_err(|fault| refusal(vec![fault]))?;
    let mut definition = K::crd();
    let schema = schema_with_quantities::<K>(generator());
    let schema = to_structural(&schema).map_err(|error| refusal(vec![error.to_string()]))?;
    for validation in definition.spec.versions.iter_mut().filter_map(|version| version.schema.as_mut()) {
        validation.open_api_v3_schema = Some(schema.clone());
    }
    let definition = kubernetes_schema(definition);
    check_definition(&definition)?;
    Ok(definition)
}

/// Fails if kube cannot read the schema that it generates, for which it panics.
fn check_generated_by_kube(mut schema: Schema) -> Result<(), String> {
    StructuralSchemaRewriter.transform(&mut schema);
    OptionalEnum.transform(&mut schema);
    OptionalIntOrString.transform(&mut schema);
    let read = serde_json::from_value::<JSONSchemaProps>(schema.to_value());
    read.map(drop).map_err(|error| {
        format!("the schema: {error}: add `#[schemars(transform = reknit::apis::structural)]` to the spec and the status")
    })
}

/// Finds the alternatives for which kube panics: those of different types, or with different schemas of one field.
fn find_conflicts(path: &str, schema: &Value, conflicts: &mut Vec<String>) {
    for key in ["oneOf", "anyOf"] {
        let Some(parts) = schema[key].as_array() else { continue };
        if let Some(reason) = conflict(schema, parts, key) {
            let place = if path.is_empty() { "the schema" } else { path };
            conflicts.push(format!(
                "{place}: {reason}: add `#[schemars(transform = reknit::apis::structural)]` to the type of the field, or to \
                 the spec and the status"
            ));
        }
        parts.iter().for_each(|part| find_conflicts(path, part, conflicts));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        find_conflicts(&path, field, conflicts);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            find_conflicts(&format!("{path}{suffix}"), &schema[key], conflicts);
        }
    }
    for key in ["items", "allOf"] {
        schema[key].as_array().into_iter().flatten().for_each(|part| find_conflicts(path, part, conflicts));
    }
}

fn conflict(schema: &Value, parts: &[Value], key: &str) -> Option<&'static str> {
    let is_object = |part: &&Value| {
        ["properties", "required", "additionalProperties", "patternProperties", "propertyNames"]
            .iter()
            .any(|key| !part[*key].is_null())
    };
    let objects: Vec<&Value> = parts.iter().filter(is_object).collect();
    let values = parts.iter().filter(|part| key == "oneOf" && part["enum"].is_array() && !is_object(part));
    let mut kinds =
        [schema].into_iter().chain(objects.iter().copied()).chain(values).map(|part| &part["type"]);
    let first = kinds.by_ref().find(|kind| !kind.is_null());
    if kinds.any(|kind| !kind.is_null() && Some(kind) != first) {
        return Some("its alternatives have different types");
    }
    let mut fields: Vec<(&String, &Value)> = Vec::new();
    for part in [schema].into_iter().chain(objects) {
        for (name, field) in part["properties"].as_object().into_iter().flatten() {
            if fields.iter().any(|(other, schema)| *other == name && *schema != field) {
                return Some("its alternatives have different schemas for one field");
            }
            fields.push((name, field));
        }
    }
    None
}
