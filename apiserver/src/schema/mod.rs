//! The OpenAPI v3 schema of a custom resource: pruning, defaults, validation, and the check of what server-side apply
//! sends.

mod alternatives;
mod defaults;
mod list_types;
mod node;
mod outcome;
mod prune;
mod typed;
mod unchanged;
mod validation;

use std::sync::Arc;

use serde_json::{Value, json};

use self::node::Node;
use crate::response::FieldError;

/// The fields of every object, which its schema does not have to declare.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// The schema of one version of a custom resource, from its CustomResourceDefinition.
#[derive(Clone, Debug)]
pub(crate) struct Schema(Arc<Value>);

impl Schema {
    /// The `openAPIV3Schema` of a version. `None` if it has none.
    pub(crate) fn of_version(version: &Value) -> Option<Self> {
        let schema = version.get("schema")?.get("openAPIV3Schema")?;
        Some(Self(Arc::new(schema.clone())))
    }

    /// The schema of the whole object.
    pub(crate) fn root(&self) -> &Value {
        &self.0
    }

    /// Removes unknown fields and nulls that the schema does not allow, and sets defaults, as the API server does when
    /// it decodes an object.
    pub(crate) fn complete(&self, object: &mut Value) {
        prune::prune_object(object, self.root());
        defaults::set_defaults(object, self.root());
    }

    /// Returns the reason why server-side apply refuses this body: a field that the schema does not declare, or a value
    /// that is not of its declared type.
    pub(crate) fn apply_fault(&self, configuration: &Value) -> Option<String> {
        typed::fault(configuration, self.root())
    }

    /// Returns the errors of a new object.
    pub(crate) fn errors(&self, object: &Value) -> Vec<FieldError> {
        let root = Node::new(object, None, self.root(), "");
        [validation::validate(&root).errors, list_types::errors(object, self.root())].concat()
    }

    /// Returns the errors of an update that changes a whole object. A value that the update does not change does not make it
    /// fail (KEP-4008).
    pub(crate) fn update_errors(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let root = Node::new(new, Some(old), self.root(), "");
        [validation::validate(&root).errors, self.new_duplicates(old, new)].concat()
    }

    /// Returns the errors of an update that changes the status only. The API server then validates nothing else.
    pub(crate) fn status_update_errors(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let status = new.get("status").zip(of_field(self.root(), "status"));
        let status = status.map(|(status, schema)| Node::new(status, old.get("status"), schema, "status"));
        let errors = status.map(|status| validation::validate(&status).errors).unwrap_or_default();
        [errors, self.new_duplicates(old, new)].concat()
    }

    /// Returns the duplicate items of sets and maps, unless the old object has any.
    fn new_duplicates(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let errors = |object| list_types::errors(object, self.root());
        if errors(old).is_empty() { errors(new) } else { Vec::new() }
    }
}

/// The schema of a field of an object: the schema in `properties`, or else the one in `additionalProperties`.
pub(crate) fn of_field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let declared = schema.get("properties").and_then(|properties| properties.get(name));
    declared.or_else(|| schema.get("additionalProperties").filter(|schema| schema.is_object()))
}

/// Returns true if the schema has this extension or option: `nullable`, `x-kubernetes-preserve-unknown-fields`.
fn is_set(schema: &Value, option: &str) -> bool {
    schema.get(option) == Some(&json!(true))
}

/// Returns true if objects of the schema may have fields that it does not declare.
fn keeps_unknown_fields(schema: &Value) -> bool {
    is_set(schema, "x-kubernetes-preserve-unknown-fields")
        || schema.get("additionalProperties").is_some_and(|allowed| *allowed != false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lamps(spec: Value) -> Schema {
        let root = json!({"type": "object", "properties": {"spec": spec}});
        Schema::of_version(&json!({"schema": {"openAPIV3Schema": root}})).unwrap()
    }

    fn lamp(spec: Value) -> Value {
        json!({"kind": "Lamp", "metadata": {"name": "hall"}, "spec": spec})
    }

    fn texts(errors: Vec<FieldError>) -> Vec<String> {
        errors.into_iter().map(|error| format!("{}: {}", error.field, error.message)).collect()
    }

    #[test]
    fn an_enum_has_exactly_one_variant() {
        let integer = json!({"type": "integer"});
        let shape = json!({
            "type": "object", "oneOf": [{"required": ["round"]}, {"required": ["square"]}],
            "properties": {"round": integer, "square": integer},
        });
        let lamps = lamps(json!({"type": "object", "properties": {"shape": shape}}));
        let errors = |shape| texts(lamps.errors(&lamp(json!({ "shape": shape }))));
        assert!(errors(json!({"round": 1})).is_empty());
        let rule =
            "<nil>: Invalid value: \"\": \"spec.shape\" must validate one and only one schema (oneOf).";
        assert_eq!(errors(json!({"round": 1, "square": 1})), [format!("{rule} Found 2 valid alternatives")]);
        assert_eq!(
            errors(json!({})),
            [format!("{rule} Found none valid"), "spec.shape.round: Required value".into()]
        );
    }

    #[test]
    fn an_update_has_the_errors_of_what_it_changes() {
        let lamps = lamps(json!({
            "type": "object", "required": ["colour"], "properties": {"watts": {"type": "integer", "maximum": 9}},
        }));
        let errors = |old, new| texts(lamps.update_errors(&lamp(old), &lamp(new)));
        assert!(errors(json!({"watts": 10}), json!({"watts": 10})).is_empty());
        let missing = "spec.colour: Required value";
        assert_eq!(errors(json!({"watts": 10}), json!({"watts": 1})), [missing]);
        let kept = errors(json!({"watts": 10}), json!({"watts": 10, "colour": "red"}));
        assert!(kept.is_empty(), "{kept:?}");
    }
}
