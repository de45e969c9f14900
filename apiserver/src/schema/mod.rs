//! The OpenAPI v3 schema of a custom resource: pruning, defaults, validation, and the check of what server-side apply
//! sends.

mod defaults;
mod prune;
mod typed;
mod validation;

use std::sync::Arc;

use serde_json::{Value, json};

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

    /// Returns the invalid fields, in the order of their names.
    pub(crate) fn errors(&self, object: &Value) -> Vec<FieldError> {
        validation::errors(object, self.root())
    }

    /// Returns the invalid fields that were not invalid in the same way before. An unchanged invalid field does not
    /// make an update fail (KEP-4008).
    pub(crate) fn new_errors(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let before = self.errors(old);
        self.errors(new).into_iter().filter(|error| !before.contains(error)).collect()
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
