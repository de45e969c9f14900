//! Validation of the metadata of objects, with the messages of the API server.

use serde_json::Value;

use crate::{collection::Collection, names, response::FieldError};

/// The maximum size of all annotations of an object together, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns the invalid fields of the metadata of an object to create.
pub(super) fn errors_of_new(collection: &Collection, name: &str, metadata: &Value) -> Vec<FieldError> {
    let faults = names::object_name(collection, name);
    faults.into_iter().map(|fault| invalid("name", name, &fault)).chain(errors(metadata)).collect()
}

/// Returns the invalid fields of the metadata of an object to create or to update, except for its name.
pub(super) fn errors(metadata: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in entries(&metadata["labels"]) {
        errors.extend(names::qualified_name(key).iter().map(|fault| invalid("labels", key, fault)));
        errors.extend(names::label_value(value).iter().map(|fault| invalid("labels", value, fault)));
    }
    for (key, _) in entries(&metadata["annotations"]) {
        let faults = names::qualified_name(&key.to_lowercase());
        errors.extend(faults.iter().map(|fault| invalid("annotations", key, fault)));
    }
    let size: usize = entries(&metadata["annotations"]).map(|(key, value)| key.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        let message = format!("Too long: may not be more than {MAX_ANNOTATIONS} bytes");
        errors.push(FieldError::new("metadata.annotations", "FieldValueTooLong", message));
    }
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let faults = names::qualified_name(finalizer);
        errors.extend(faults.iter().map(|fault| invalid("finalizers", finalizer, fault)));
    }
    errors
}

fn entries(map: &Value) -> impl Iterator<Item = (&str, &str)> {
    let fields = map.as_object().into_iter().flatten();
    fields.map(|(key, value)| (&**key, value.as_str().unwrap_or_default()))
}

fn invalid(field: &str, value: &str, fault: &str) -> FieldError {
    FieldError::new(
        &format!("metadata.{field}"),
        "FieldValueInvalid",
        format!("Invalid value: {value:?}: {fault}"),
    )
}
