//! Checks of the objects in requests.

use http::StatusCode;
use serde_json::Value;

use crate::{
    collection::Collection,
    object::text,
    request::Request,
    response::{FieldError, Response, all_invalid, bad_request, failure, invalid},
    schema::Schema,
};

/// Returns the response that refuses an object with invalid fields.
pub(crate) fn check_valid(
    request: &Request,
    kind: &str,
    name: &str,
    errors: &[FieldError],
) -> Result<(), Response> {
    match errors {
        [] => Ok(()),
        errors => Err(all_invalid(&request.collection.group, kind, name, errors)),
    }
}

pub(crate) fn check_namespace(collection: &Collection, object: &Value) -> Result<(), Response> {
    let namespace = object["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    if namespace.is_none() || namespace == collection.namespace.as_deref() {
        return Ok(());
    }
    Err(bad_request("the namespace of the provided object does not match the namespace sent on the request"))
}

/// Refuses new finalizers on an object that is being deleted.
pub(crate) fn check_finalizers(
    request: &Request,
    kind: &str,
    name: &str,
    old: &Value,
    requested: &Value,
) -> Result<(), Response> {
    if old["metadata"]["deletionTimestamp"].is_null() || request.subresource.is_some() {
        return Ok(());
    }
    let [before, after] = [old, requested]
        .map(|object| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default());
    let added: Vec<_> =
        after.iter().filter(|finalizer| !before.contains(finalizer)).map(Value::to_string).collect();
    if added.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        added.join(", ")
    );
    let error = FieldError::new("metadata.finalizers", "FieldValueForbidden", message);
    Err(invalid(&request.collection.group, kind, name, error))
}

pub(crate) fn check_name(object: &Value, name: &str) -> Result<(), Response> {
    match text(&object["metadata"]["name"]) {
        sent_name if sent_name.is_empty() || sent_name == name => Ok(()),
        sent_name => Err(bad_request(&format!(
            "the name of the object ({sent_name}) does not match the name on the URL ({name})"
        ))),
    }
}

/// Checks the fields that an applied configuration has to set.
pub(crate) fn check_applied_configuration(
    request: &Request,
    name: &str,
    schema: Option<&Schema>,
) -> Result<(), Response> {
    if request.field_manager() == "unknown" {
        let message = "Required value: is required for apply patch";
        let error = FieldError::new("fieldManager", "FieldValueRequired", message);
        return Err(invalid("meta.k8s.io", "PatchOptions", "", error));
    }
    if request.body["kind"].as_str().is_none() || request.body["apiVersion"].as_str().is_none() {
        let (version, kind) = (text(&request.body["apiVersion"]), text(&request.body["kind"]));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        return Err(bad_request(&format!("invalid object type: {group}/{version}, Kind={kind}")));
    }
    check_name(&request.body, name)?;
    // The namespace of a cluster-scoped object is ignored.
    if request.collection.namespace.is_some() {
        check_namespace(&request.collection, &request.body)?;
    }
    match schema.and_then(|schema| schema.apply_fault(&request.body)) {
        None => Ok(()),
        Some(fault) => Err(not_typed(request, name, &fault)),
    }
}

/// The response to a configuration that does not have the fields and types of the schema.
fn not_typed(request: &Request, name: &str, fault: &str) -> Response {
    let field = |field: &str| text(&request.body[field]);
    let message = format!(
        "failed to create typed patch object ({}/{name}; {}, Kind={}): {fault}",
        text(&request.body["metadata"]["namespace"]),
        field("apiVersion"),
        field("kind")
    );
    failure(StatusCode::INTERNAL_SERVER_ERROR, "", &message)
}
