//! The rules of structural schemas, by which the API server accepts a CustomResourceDefinition.

use std::fmt;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames,
};
use serde_json::Value;

use super::defaults;
use crate::dns_label;

const TYPES: [&str; 6] = ["object", "array", "string", "integer", "number", "boolean"];
/// The keys that the API server refuses at any place of a schema.
const FORBIDDEN: [&str; 8] = [
    "$ref",
    "$schema",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "id",
    "deprecated",
];
/// The keys that the API server refuses in `allOf`, `anyOf`, `oneOf` and `not`.
const FORBIDDEN_IN_PARTS: [&str; 14] = [
    "type",
    "title",
    "description",
    "default",
    "additionalProperties",
    "nullable",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
    "example",
];

/// The faults of a definition, each with the path of its field, for which the API server would refuse the definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaError {
    pub(super) definition: String,
    pub(super) faults: Vec<String>,
}

impl SchemaError {
    /// The faults, each with the path of its field.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }
}

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the API server would refuse {}", self.definition)?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

impl std::error::Error for SchemaError {}

/// Checks a definition against the rules of structural schemas, its short names, and its defaults against the bounds of
/// their fields.
///
/// # Errors
///
/// Fails with all faults, each with the path of its field.
pub fn check_definition(definition: &CustomResourceDefinition) -> Result<(), SchemaError> {
    let mut faults = name_faults(&definition.spec.names);
    for version in &definition.spec.versions {
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        let Some(schema) = schema else {
            faults.push(format!("{}: it has no schema", version.name));
            continue;
        };
        let schema = serde_json::to_value(schema).unwrap_or_default();
        let mut checker = Checker { version: &version.name, faults: &mut faults };
        if schema["type"] != "object" {
            checker.report("", "its type has to be object");
        }
        checker.check_node("", &schema);
    }
    let name = definition.metadata.name.as_deref().unwrap_or(&definition.spec.names.kind);
    let definition = format!("CustomResourceDefinition {name}");
    if faults.is_empty() { Ok(()) } else { Err(SchemaError { definition, faults }) }
}

/// The faults of the short names and the categories. The API server accepts a short name that is the plural or the singular,
/// and then reports that the names of the definition are not accepted, for which installers wait.
fn name_faults(names: &CustomResourceDefinitionNames) -> Vec<String> {
    let (kind, singular) = (names.kind.to_lowercase(), names.singular.as_deref());
    let short_names = names.short_names.iter().flatten().map(|name| ("short name", name));
    let categories = names.categories.iter().flatten().map(|name| ("category", name));
    let fault = |(what, name): (&str, &String)| {
        let is_taken =
            what == "short name" && (*name == names.plural || *name == kind || Some(&**name) == singular);
        let is_valid =
            dns_label(name).is_empty() && name.starts_with(|first: char| first.is_ascii_lowercase());
        match is_valid {
            true if is_taken => {
                Some(format!("the {what} {name:?} is the plural or the singular of the Kind: leave it out"))
            }
            true => None,
            false => Some(format!(
                "the {what} {name:?} has to consist of lower case letters, digits and '-', and to begin with a letter"
            )),
        }
    };
    short_names.chain(categories).filter_map(fault).collect()
}

struct Checker<'a> {
    version: &'a str,
    faults: &'a mut Vec<String>,
}

impl Checker<'_> {
    fn report(&mut self, path: &str, fault: &str) {
        self.faults.push(format!(
            "{}: {}: {fault}",
            self.version,
            if path.is_empty() { "the schema" } else { path }
        ));
    }

    fn check_node(&mut self, path: &str, node: &Value) {
        let is_true = |key: &str| node[key] == true;
        let is_int_or_string = is_true("x-kubernetes-int-or-string");
        let kind = node["type"].as_str();
        match kind {
            None if !is_int_or_string && !is_true("x-kubernetes-preserve-unknown-fields") => {
                self.report(path, "it has no type: give its type the transform `reknit::apis::structural`");
            }
            Some(_) if is_int_or_string => self.report(path, "it is int-or-string, and has a type"),
            Some(kind) if !TYPES.contains(&kind) => {
                self.report(path, &format!("the type {kind:?} is unknown"))
            }
            _ => {}
        }
        for key in FORBIDDEN.iter().filter(|key| !node[**key].is_null()) {
            self.report(path, &format!("{key:?} is forbidden"));
        }
        if is_true("uniqueItems") {
            self.report(path, "uniqueItems is forbidden: use x-kubernetes-list-type: set");
        }
        for fault in defaults::faults(&node["default"], node) {
            self.report(path, &fault);
        }
        self.check_object(path, node);
        self.check_array(path, node);
        for key in ["allOf", "anyOf", "oneOf"] {
            for part in node[key].as_array().into_iter().flatten() {
                self.check_part(path, key, part, node, is_int_or_string);
            }
        }
        if !node["not"].is_null() {
            self.check_part(path, "not", &node["not"], node, false);
        }
    }

    fn check_object(&mut self, path: &str, node: &Value) {
        let fields = node["properties"].as_object().filter(|fields| !fields.is_empty());
        if fields.is_some() && node["type"] != "object" {
            self.report(path, "it has properties, and its type is not object");
        }
        match &node["additionalProperties"] {
            Value::Null => {}
            Value::Bool(false) => self.report(path, "additionalProperties: false is forbidden"),
            _ if fields.is_some() => {
                self.report(path, "properties and additionalProperties exclude each other: for a flattened map, give its type \
                     the transform `reknit::apis::structural`");
            }
            values @ Value::Object(_) => self.check_node(&format!("{path}.*"), values),
            _ => {}
        }
        for (name, field) in fields.into_iter().flatten() {
            let field_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            // The API server knows the metadata.
            if field_path != "metadata" {
                self.check_node(&field_path, field);
            }
        }
    }

    fn check_array(&mut self, path: &str, node: &Value) {
        match &node["items"] {
            Value::Array(_) => self.report(path, "a list of schemas for items is forbidden"),
            items @ Value::Object(_) => self.check_node(&format!("{path}[]"), items),
            _ if node["type"] == "array" => self.report(path, "it is an array without items"),
            _ => {}
        }
        for key in
            node["x-kubernetes-list-map-keys"].as_array().into_iter().flatten().filter_map(Value::as_str)
        {
            let item = &node["items"];
            let is_required =
                item["required"].as_array().is_some_and(|names| names.iter().any(|name| name == key));
            let field = &item["properties"][key];
            if field.is_null() {
                self.report(path, &format!("the key {key:?} of the list is no field of its items"));
            } else if !is_required && field["default"].is_null() {
                self.report(
                    path,
                    &format!("the key {key:?} of the list is neither required nor has a default"),
                );
            }
        }
    }

    /// Checks a part of `allOf`, `anyOf`, `oneOf` or `not`, which may only restrict values that the schema allows.
    fn check_part(&mut self, path: &str, key: &str, part: &Value, node: &Value, is_int_or_string: bool) {
        // The API server allows this pattern: anyOf: [{type: integer}, {type: string}].
        let is_allowed = |forbidden: &str| is_int_or_string && forbidden == "type";
        for forbidden in FORBIDDEN_IN_PARTS.iter().chain(&FORBIDDEN) {
            let advice = match *forbidden {
                "x-kubernetes-validations" => {
                    ": set the rule of a variant on the type that contains the enum, such as \
                     \"self.limit.type != 'Range' || self.limit.min <= self.limit.max\""
                }
                _ => "",
            };
            if !part[*forbidden].is_null() && !is_allowed(forbidden) {
                self.report(path, &format!("{forbidden:?} is forbidden in {key}{advice}"));
            }
        }
        for (name, restriction) in part["properties"].as_object().into_iter().flatten() {
            let field = &node["properties"][name];
            if field.is_null() {
                self.report(path, &format!("{key} names the field {name:?}, which properties lack"));
            }
            self.check_part(&format!("{path}.{name}"), key, restriction, field, false);
        }
        for inner in ["allOf", "anyOf", "oneOf"] {
            for part in part[inner].as_array().into_iter().flatten() {
                self.check_part(path, inner, part, node, is_int_or_string);
            }
        }
    }
}
