//! Validation of the metadata of objects, with the messages of the API server.

use serde_json::Value;

use super::Objects;
use crate::{collection::Collection, names, object::text, response::FieldError};

/// The maximum size of all annotations of an object together, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Returns the invalid fields of the metadata of an object to create.
pub(super) fn errors_of_new(
    objects: &Objects,
    collection: &Collection,
    name: &str,
    metadata: &Value,
) -> Vec<FieldError> {
    let prefix = text(&metadata["generateName"]);
    let faults_of_prefix = match &*prefix {
        "" => Vec::new(),
        prefix => names::object_name(collection, &without_trailing_dash(prefix)),
    };
    let of_prefix = faults_of_prefix.into_iter().map(|fault| invalid("generateName", &prefix, &fault));
    let of_name = names::object_name(collection, name).into_iter().map(|fault| invalid("name", name, &fault));
    of_prefix.chain(of_name).chain(errors(objects, metadata)).collect()
}

/// Replaces the end of a prefix with a trailing dash, which is allowed since a suffix follows.
fn without_trailing_dash(prefix: &str) -> String {
    let mut prefix = prefix.to_owned();
    if prefix.len() > 1 && prefix.ends_with('-') {
        prefix.truncate(prefix.len() - 1);
        prefix.pop();
        prefix.push('a');
    }
    prefix
}

/// Returns the invalid fields of the metadata of an object to create or to update, except for its name.
pub(super) fn errors(objects: &Objects, metadata: &Value) -> Vec<FieldError> {
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
    errors.extend(errors_of_owners(objects, &metadata["ownerReferences"]));
    for finalizer in metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let faults = names::qualified_name(finalizer);
        errors.extend(faults.iter().map(|fault| invalid("finalizers", finalizer, fault)));
    }
    errors
}

/// Returns the invalid fields of the owner references. A reference to an owner without a uid, which only a test can
/// insert, has none either.
fn errors_of_owners(objects: &Objects, owners: &Value) -> Vec<FieldError> {
    let (mut errors, mut controller) = (Vec::new(), None);
    for owner in owners.as_array().into_iter().flatten() {
        let [version, kind, name] = ["apiVersion", "kind", "name"].map(|field| text(&owner[field]));
        for (field, fault) in [
            ("apiVersion", "version must not be empty"),
            ("kind", "must not be empty"),
            ("name", "must not be empty"),
            ("uid", "must not be empty"),
        ] {
            if text(&owner[field]).is_empty() && !(field == "uid" && objects.lacks_uid(owner)) {
                errors.push(invalid(&format!("ownerReferences.{field}"), "", fault));
            }
        }
        if (&*version, &*kind) == ("v1", "Event") {
            let fault = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(invalid_owners(&go_owner(owner), fault));
        }
        if owner["controller"] == true {
            let this = format!("{kind}/{name}");
            match &controller {
                None => controller = Some(this),
                Some(first) => errors.push(invalid_owners(
                    &go_owners(owners),
                    &format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for \
                         {first} and {this}"
                    ),
                )),
            }
        }
    }
    errors
}

fn invalid_owners(value: &str, fault: &str) -> FieldError {
    let message = format!("Invalid value: {value}: {fault}");
    FieldError::new("metadata.ownerReferences", "FieldValueInvalid", message)
}

fn go_owners(owners: &Value) -> String {
    let owners: Vec<_> = owners.as_array().into_iter().flatten().map(go_owner).collect();
    format!("[{}]", owners.join(","))
}

/// An owner reference as Go encodes it.
fn go_owner(owner: &Value) -> String {
    let required = ["apiVersion", "kind", "name", "uid"];
    let required = required.map(|field| format!("{field:?}:{}", Value::from(text(&owner[field]))));
    let optional =
        ["controller", "blockOwnerDeletion"].into_iter().filter(|field| owner[*field].is_boolean());
    let optional = optional.map(|field| format!("{field:?}:{}", owner[field]));
    format!("{{{}}}", required.into_iter().chain(optional).collect::<Vec<_>>().join(","))
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
