//! A value in an object that is validated.

use serde_json::{Value, json};

use super::{of_field, unchanged};
use crate::response::FieldError;

/// A value with its schema and its path.
pub(super) struct Node<'a> {
    pub(super) value: &'a Value,
    pub(super) schema: &'a Value,
    /// The value before the update, whose errors are not reported again. `None` if the update has added the value, and within
    /// alternatives.
    old: Option<&'a Value>,
    /// The path below `root`, as it is in messages: `spec.parts[0]`.
    pub(super) name: String,
    /// The path of the validated part: `status` in a write to the subresource, or else empty.
    root: &'a str,
}

impl<'a> Node<'a> {
    pub(super) fn new(value: &'a Value, old: Option<&'a Value>, schema: &'a Value, root: &'a str) -> Self {
        Self { value, schema, old, name: String::new(), root }
    }

    /// Returns true if this is the whole object, whose metadata have rules of their own.
    pub(super) fn is_object(&self) -> bool {
        self.name.is_empty() && self.root.is_empty()
    }

    /// Returns true if the update leaves the value as it was.
    pub(super) fn is_unchanged(&self) -> bool {
        self.old.is_some_and(|old| unchanged::is_unchanged(old, self.value, self.schema))
    }

    /// The value, to be validated by an alternative of its schema.
    pub(super) fn with_schema(&self, schema: &'a Value) -> Self {
        Self { old: None, schema, name: self.name.clone(), ..*self }
    }

    /// The field of this name, if its schema is known.
    pub(super) fn field(&self, name: &str, value: &'a Value) -> Option<Self> {
        let schema = of_field(self.schema, name)?;
        let old = self.old.and_then(|old| old.get(name));
        Some(Self { value, schema, old, name: self.name_of_field(name), ..*self })
    }

    pub(super) fn item(&self, index: usize, item: &'a Value, schema: &'a Value) -> Self {
        let old = self.old.and_then(|old| unchanged::old_item(old, item, self.schema));
        Self { value: item, schema, old, name: format!("{}[{index}]", self.name), ..*self }
    }

    fn name_of_field(&self, name: &str) -> String {
        if self.name.is_empty() { name.into() } else { format!("{}.{name}", self.name) }
    }

    fn path(&self, name: &str) -> String {
        match (self.root, name) {
            ("", "") => "<nil>".into(),
            ("", name) => name.into(),
            (root, "") => root.into(),
            (root, name) => format!("{root}.{name}"),
        }
    }

    pub(super) fn error(&self, reason: &'static str, message: impl Into<String>) -> FieldError {
        FieldError::new(&self.path(&self.name), reason, message)
    }

    /// The error of a value that breaks a rule.
    pub(super) fn invalid(&self, shown: &Value, rule: &str) -> FieldError {
        let shown = match shown {
            Value::Array(_) => json!("array").to_string(),
            Value::Object(_) => json!("object").to_string(),
            value => value.to_string(),
        };
        let message = format!("Invalid value: {shown}: {} in body {rule}", self.name);
        self.error("FieldValueInvalid", message)
    }

    /// The error of a field that is missing.
    pub(super) fn missing(&self, field: &str) -> FieldError {
        FieldError::new(&self.path(&self.name_of_field(field)), "FieldValueRequired", "Required value")
    }

    /// An error that the API server reports without the path of the value.
    pub(super) fn error_of_root(&self, message: &str) -> FieldError {
        let message = format!("Invalid value: \"\": {message}");
        FieldError::new(&self.path(""), "FieldValueInvalid", message)
    }
}
