//! Structural schemas: the form of JSON Schema that a CustomResourceDefinition may contain.

use schemars::Schema;
use serde_json::{Map, Value, json};

use super::{
    alternatives::{any, combine, is_lost_rule, merge},
    nullable::{Node, allow_null, separate_null},
    quantities::resolve_quantity,
};

/// The keys that only describe a schema, and those that the API server does not know.
const DROPPED: [&str; 20] = [
    "$schema",
    "$id",
    "$defs",
    "$comment",
    "definitions",
    "components",
    "title",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "if",
    "then",
    "else",
    "contains",
    "contentEncoding",
    "contentMediaType",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedItems",
];
/// The keys of a schema that only restricts values, as it may stand in `oneOf`, `anyOf` and `allOf` of a structural one.
const RESTRICTIONS: [&str; 17] = [
    "required",
    "properties",
    "enum",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
];

/// Rewrites the schema of a type into a structural schema, as a transform of schemars. It has the meaning that
/// controller-gen writes, as far as a CustomResourceDefinition can express it.
///
/// Set it on your spec and your status if one of their types, at any depth, is an enum with data:
///
/// ```
/// use kube::CustomResource;
/// use reknit_apis::{definition_of, structural};
/// use schemars::JsonSchema;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[kube(group = "demo.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
/// #[schemars(transform = structural)]
/// struct LampSpec {
///     power: Power,
///     limit: Limit,
/// }
///
/// #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[serde(tag = "type")]
/// enum Power {
///     Battery { hours: u32 },
///     Mains { volts: u32 },
/// }
///
/// #[derive(Serialize, Deserialize, Clone, Debug, JsonSchema)]
/// #[serde(untagged)]
/// enum Limit {
///     Watts(u32),
///     Name(String),
/// }
///
/// let definition = definition_of::<Lamp>().unwrap();
/// let schema = definition.spec.versions[0].schema.as_ref().unwrap().open_api_v3_schema.as_ref().unwrap();
/// let spec = schema.properties.as_ref().unwrap()["spec"].properties.as_ref().unwrap();
/// assert_eq!(spec["limit"].x_kubernetes_int_or_string, Some(true));
/// assert_eq!(spec["power"].required.as_deref(), Some(&["type".to_owned()][..]));
/// ```
///
/// The schema of each type:
///
/// | type | schema |
/// | --- | --- |
/// | an enum of units | `enum` |
/// | an enum with data, externally tagged | a property for each variant, and `oneOf` with `required` |
/// | an enum with data, tagged | all properties of the variants, `enum` for the tag, and `oneOf` |
/// | an untagged enum of structs | all properties of the variants, and `anyOf` with `required` |
/// | an untagged enum of an integer and a string | `x-kubernetes-int-or-string` |
/// | an enum of units beside data | `x-kubernetes-preserve-unknown-fields`, without a type, and `anyOf` with the variants |
/// | other values of several types | `x-kubernetes-preserve-unknown-fields`, without a type |
/// | `Option` | `nullable`; the values of an enum are in `allOf`, since the API server would refuse null otherwise |
/// | a flattened map beside other fields | `x-kubernetes-preserve-unknown-fields` |
/// | `serde_json::Value`, a field of an unknown form | `x-kubernetes-preserve-unknown-fields` |
/// | a type that contains itself | `x-kubernetes-preserve-unknown-fields`, where it recurs |
/// | a tuple | `items` that allow each of its types, and its length |
/// | a map, whatever its keys | `additionalProperties` |
///
/// A rule in CEL of one variant has no place in a structural schema. [`definition_of`](crate::definition_of) fails with it,
/// so that it is not lost: set it on the type that contains the enum, such as `self.limit.type != 'Range' || …`.
///
/// A schema that cannot express the whole type allows more values than it. They are refused when they are decoded, and by
/// the strict decoding of a webhook.
pub fn structural(schema: &mut Schema) {
    let node = std::mem::take(schema).to_value();
    *schema = Schema::from(rewrite(node));
}

/// Rewrites a schema and all schemas in it.
pub(super) fn rewrite(schema: Value) -> Node {
    let Value::Object(mut node) = schema else { return any() };
    DROPPED.iter().for_each(|key| drop(node.remove(*key)));
    if !resolve_quantity(&mut node) && node.remove("$ref").is_some() {
        merge(&mut node, any());
    }
    rewrite_values(&mut node);
    rewrite_array(&mut node);
    rewrite_object(&mut node);
    rewrite_alternatives(&mut node);
    rewrite_required(&mut node);
    close_object(&mut node);
    infer_type(&mut node);
    allow_null(&mut node);
    node
}

/// Rewrites a schema in another one. An object without known fields keeps unknown ones: it may be a `RawExtension`.
fn rewrite_inner(schema: Value) -> Value {
    let mut node = rewrite(schema);
    let says_nothing = |key: &String| matches!(&**key, "type" | "description" | "nullable" | "default");
    if node.get("type").is_some_and(|kind| kind == "object") && node.keys().all(says_nothing) {
        node.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
    }
    Value::Object(node)
}

/// Rewrites the type, the listed values, the bounds and the default of a schema.
fn rewrite_values(node: &mut Node) {
    if let Some(value) = node.remove("const") {
        node.insert("enum".into(), json!([value]));
    }
    separate_null(node);
    let kinds = match node.remove("type") {
        Some(Value::Array(kinds)) => kinds,
        Some(kind) => vec![kind],
        None => vec![],
    };
    if kinds.iter().any(|kind| kind == "null") {
        node.insert("nullable".into(), true.into());
    }
    let kinds = kinds.into_iter().filter(|kind| kind != "null").map(|kind| match kind {
        Value::String(_) => Node::from_iter([("type".into(), kind)]),
        _ => any(),
    });
    let kinds: Vec<_> = kinds.collect();
    if !kinds.is_empty() {
        merge(node, combine(kinds, false));
    }
    rewrite_bound(node, "exclusiveMinimum", "minimum", |exclusive, bound| exclusive >= bound);
    rewrite_bound(node, "exclusiveMaximum", "maximum", |exclusive, bound| exclusive <= bound);
    if let Some(mut default) = node.remove("default").filter(|default| !default.is_null()) {
        drop_nulls(&mut default);
        node.insert("default".into(), default);
    }
}

/// Makes the number of an exclusive bound the bound, unless the other one is tighter: a structural schema has one of them.
fn rewrite_bound(node: &mut Node, exclusive: &str, bound: &str, is_as_tight: fn(f64, f64) -> bool) {
    let Some(value) = node.get(exclusive).filter(|value| value.is_number()).cloned() else { return };
    let other = node.get(bound).and_then(Value::as_f64);
    if value.as_f64().zip(other).is_some_and(|(value, other)| !is_as_tight(value, other)) {
        node.remove(exclusive);
    } else {
        node.insert(bound.into(), value);
        node.insert(exclusive.into(), true.into());
    }
}

/// Drops the null fields of a default, which mean the same as absent ones.
fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

/// Rewrites the items of an array. The items of a tuple become one schema, which allows each of them.
fn rewrite_array(node: &mut Node) {
    let items = match (node.remove("prefixItems"), node.remove("items")) {
        (Some(Value::Array(items)), _) | (None, Some(Value::Array(items))) => {
            for bound in ["minItems", "maxItems"] {
                node.entry(bound).or_insert_with(|| items.len().into());
            }
            Some(Value::Object(combine(items.into_iter().map(rewrite).collect(), false)))
        }
        (_, items) => items.map(rewrite_inner),
    };
    node.remove("additionalItems");
    node.remove("uniqueItems");
    let is_array = node.get("type").is_some_and(|kind| kind == "array");
    if let Some(items) = items.or_else(|| is_array.then(|| Value::Object(any()))) {
        node.insert("items".into(), items);
    }
}

/// Rewrites the fields of an object.
fn rewrite_object(node: &mut Node) {
    for (_, property) in node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        *property = rewrite_inner(property.take());
    }
    node.remove("propertyNames");
    let of_patterns = node.remove("patternProperties").and_then(|patterns| match patterns {
        Value::Object(patterns) => {
            Some(combine(patterns.into_iter().map(|(_, values)| rewrite(values)).collect(), false))
        }
        _ => None,
    });
    let unevaluated = node.remove("unevaluatedProperties");
    let values = match (of_patterns, node.remove("additionalProperties").or(unevaluated)) {
        (Some(values), _) => Some(Value::Object(values)),
        (None, Some(Value::Object(values))) => Some(rewrite_inner(Value::Object(values))),
        (None, values) => values,
    };
    if let Some(values) = values {
        node.insert("additionalProperties".into(), values);
    }
}

/// Moves what `allOf`, `oneOf` and `anyOf` say about types and fields into the schema itself. Only restrictions remain
/// in them.
fn rewrite_alternatives(node: &mut Node) {
    if node.get("not").is_some_and(|part| !is_restriction(part)) {
        node.remove("not");
    }
    for key in ["allOf", "oneOf", "anyOf"] {
        let Some(Value::Array(parts)) = node.remove(key) else { continue };
        if parts.iter().all(is_restriction) {
            node.insert(key.into(), parts.into());
            continue;
        }
        if key == "allOf" {
            let (lost, parts): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_lost_rule);
            parts.into_iter().for_each(|part| merge(node, rewrite(part)));
            if !lost.is_empty() {
                merge(node, Node::from_iter([("allOf".into(), lost.into())]));
            }
            continue;
        }
        let is_null = |part: &Value| {
            part["type"] == "null" || part.get("const") == Some(&Value::Null) || part["enum"] == json!([null])
        };
        let count = parts.len();
        let parts: Vec<_> = parts.into_iter().filter(|part| !is_null(part)).map(rewrite).collect();
        if parts.len() < count {
            node.insert("nullable".into(), true.into());
        }
        if !parts.is_empty() {
            merge(node, combine(parts, key == "oneOf"));
        }
    }
}

/// Sorts the names of the required fields. Other fields without a type may be null: schemars takes a schema without a type
/// for one that allows null.
fn rewrite_required(node: &mut Node) {
    if let Some(names) = node.get_mut("required").and_then(Value::as_array_mut) {
        names.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
    }
    let required = node.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    for (name, field) in node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        if field["type"].is_null() && !required.iter().any(|other| other == name) {
            field["nullable"] = true.into();
        }
    }
}

fn is_restriction(part: &Value) -> bool {
    if is_lost_rule(part) {
        return true;
    }
    let inner =
        |part: &Value, key: &str| part[key].as_array().is_none_or(|parts| parts.iter().all(is_restriction));
    let has_known_keys = |fields: &Node| fields.keys().all(|key| RESTRICTIONS.contains(&&**key));
    part.as_object().is_some_and(has_known_keys)
        && part["properties"].as_object().is_none_or(|fields| fields.values().all(is_restriction))
        && ["allOf", "anyOf", "oneOf"].iter().all(|key| inner(part, key))
}

/// Makes an object either a map or a list of fields. Both together keep unknown fields.
fn close_object(node: &mut Node) {
    if node.get("properties").and_then(Value::as_object).is_some_and(Map::is_empty) {
        node.remove("properties");
    }
    let has_properties = node.contains_key("properties");
    match node.get("additionalProperties") {
        Some(Value::Bool(false)) => {
            node.remove("additionalProperties");
            if !has_properties {
                node.insert("maxProperties".into(), 0.into());
            }
        }
        Some(values) if has_properties || *values == true => {
            node.remove("additionalProperties");
            node.insert("x-kubernetes-preserve-unknown-fields".into(), true.into());
        }
        _ => {}
    }
}

/// Adds the type that a schema implies.
fn infer_type(node: &mut Node) {
    let is_true = |key: &str| node.get(key).is_some_and(|value| *value == true);
    let (is_typed, is_nullable) = (node.contains_key("type"), is_true("nullable"));
    let is_open = is_true("x-kubernetes-preserve-unknown-fields") || is_true("x-kubernetes-int-or-string");
    let listed = node.get("enum").and_then(Value::as_array);
    let kind = match () {
        () if is_typed => return,
        () if node.contains_key("properties") || node.contains_key("additionalProperties") => "object",
        () if is_open => return,
        () if node.contains_key("items") => "array",
        () if listed.is_some_and(|values| values.iter().all(Value::is_string)) => "string",
        () if listed.is_some_and(|values| values.iter().all(|value| value.is_i64() || value.is_u64())) => {
            "integer"
        }
        () if listed.is_some_and(|values| values.iter().all(Value::is_boolean)) => "boolean",
        // Only null is allowed, as of `()`.
        () if is_nullable && node.keys().all(|key| matches!(&**key, "nullable" | "description")) => {
            node.insert("maxProperties".into(), 0.into());
            "object"
        }
        () => return merge(node, any()),
    };
    node.insert("type".into(), kind.into());
}
