//! Updates, patches and server-side apply of objects that exist.

use http::StatusCode;
use reknit_injection::Verb;
use serde_json::{Value, json};

use super::{
    apply::{ManagedFields, Writer},
    create::{check_namespace, check_valid},
    metadata,
    objects::{Objects, Stored, text},
    patch, remove_empty,
    request::{PatchKind, Request},
    response::{
        FieldError, Response, bad_request, conflict, failure, immutable_field, invalid, stale_version,
    },
    schema::Schema,
};

/// The metadata fields that an update or a patch cannot change.
const FIXED_FIELDS: &str = "name namespace uid creationTimestamp generation deletionTimestamp \
    deletionGracePeriodSeconds resourceVersion";

impl Objects {
    pub(super) fn change(
        &mut self,
        request: &Request,
        name: &str,
        old: Stored,
    ) -> Result<Response, Response> {
        let schema = self.schema(&request.collection);
        let writer = Writer::of(request, schema.clone());
        if request.is_apply() {
            check_applied_configuration(request, name, schema.as_ref())?;
        }
        let (mut requested, applied_fields) = requested_object(request, name, &old, &writer)?;
        if let Some(schema) = &schema {
            schema.complete(&mut requested);
        }
        self.check_change(request, name, &old.object, &requested)?;
        let mut new = if request.subresource.is_some() {
            with_field(old.object.clone(), "status", requested.get("status").cloned())
        } else if request.collection.has_status() {
            with_field(requested, "status", old.object.get("status").cloned())
        } else {
            requested
        };
        keep_fixed_fields(&mut new, &old.object);
        if let Some(schema) = &schema {
            let kind = self.kind_of(request, &old.object);
            check_valid(request, &kind, name, &schema.new_errors(&old.object, &new))?;
        }
        let managed_fields = applied_fields.unwrap_or_else(|| {
            let before = old.managed_fields.clone();
            before.after_update(&writer, &old.object, &new)
        });
        if new == old.object && (managed_fields == old.managed_fields || !request.is_apply()) {
            return Ok((StatusCode::OK, new)); // A request that changes nothing stores nothing.
        }
        if request.collection.has_generation() && desired_state(&new) != desired_state(&old.object) {
            increment_generation(&mut new);
        }
        Ok((StatusCode::OK, self.store(request, name, Stored { object: new, managed_fields })))
    }

    /// Checks the name, the namespace, the preconditions and the immutable fields of the requested object.
    fn check_change(
        &self,
        request: &Request,
        name: &str,
        old: &Value,
        requested: &Value,
    ) -> Result<(), Response> {
        let collection = &request.collection;
        let (metadata, old_metadata) = (&requested["metadata"], &old["metadata"]);
        let kind = self.kind_of(request, old);
        let differs = |field: &str| !metadata[field].is_null() && metadata[field] != old_metadata[field];
        if text(&metadata["name"]).is_empty() {
            let message = format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            );
            return Err(bad_request(&message));
        }
        check_name(requested, name)?;
        check_namespace(collection, requested)?;
        if differs("uid") && request.verb == Verb::Update {
            let cause = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {}, UID in object meta: {}",
                collection.registry_key(name),
                text(&metadata["uid"]),
                text(&old_metadata["uid"])
            );
            return Err(conflict(request, name, &cause));
        }
        if text(&metadata["resourceVersion"]).is_empty() {
            if request.verb == Verb::Update && !collection.is_built_in() {
                let message = "Invalid value: 0: must be specified for an update".into();
                let error = FieldError {
                    field: "metadata.resourceVersion".into(),
                    reason: "FieldValueInvalid",
                    message,
                };
                return Err(invalid(&collection.group, &collection.plural, name, error));
            }
        } else if differs("resourceVersion") {
            return Err(stale_version(request, name));
        }
        for field in ["uid", "deletionTimestamp"] {
            if differs(field) {
                return Err(immutable_field(
                    collection,
                    &kind,
                    name,
                    &format!("metadata.{field}"),
                    &metadata[field],
                ));
            }
        }
        check_finalizers(request, &kind, name, old, requested)
    }
}

/// Refuses new finalizers on an object that is being deleted.
fn check_finalizers(
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
    let error = FieldError { field: "metadata.finalizers".into(), reason: "FieldValueForbidden", message };
    Err(invalid(&request.collection.group, kind, name, error))
}

fn check_name(object: &Value, name: &str) -> Result<(), Response> {
    match text(&object["metadata"]["name"]) {
        sent_name if sent_name.is_empty() || sent_name == name => Ok(()),
        sent_name => Err(bad_request(&format!(
            "the name of the object ({sent_name}) does not match the name on the URL ({name})"
        ))),
    }
}

/// Checks the fields that an applied configuration has to set.
pub(super) fn check_applied_configuration(
    request: &Request,
    name: &str,
    schema: Option<&Schema>,
) -> Result<(), Response> {
    if request.field_manager() == "unknown" {
        let message = "Required value: is required for apply patch".into();
        let error = FieldError { field: "fieldManager".into(), reason: "FieldValueRequired", message };
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

/// Returns the object that the request asks for. Server-side apply also returns the new managed fields.
fn requested_object(
    request: &Request,
    name: &str,
    old: &Stored,
    writer: &Writer,
) -> Result<(Value, Option<ManagedFields>), Response> {
    if request.verb == Verb::Update {
        return Ok((request.body.clone(), None));
    }
    match request.patch {
        PatchKind::Merge => Ok((patch::merge(&old.object, &request.body)?, None)),
        PatchKind::Json => Ok((patch::json(&old.object, &request.body)?, None)),
        PatchKind::Apply => {
            let force = request.param("force") == "true";
            let version = text(&request.body["metadata"]["resourceVersion"]);
            if !version.is_empty() && version != text(&old.object["metadata"]["resourceVersion"]) {
                return Err(stale_version(request, name));
            }
            let (mut new, managed_fields) =
                old.managed_fields.clone().after_apply(writer, &old.object, &request.body, force)?;
            if let Some(uid) = request.body["metadata"].get("uid") {
                new["metadata"]["uid"] = uid.clone();
            }
            Ok((new, Some(managed_fields)))
        }
    }
}

/// Gives the new object the apiVersion, the kind and the fixed metadata of the old one.
fn keep_fixed_fields(new: &mut Value, old: &Value) {
    for field in ["apiVersion", "kind"] {
        *new = with_field(std::mem::take(new), field, old.get(field).cloned());
    }
    let metadata = metadata(new);
    metadata.remove("managedFields");
    for field in FIXED_FIELDS.split(' ') {
        match old["metadata"].get(field) {
            Some(value) => metadata.insert(field.into(), value.clone()),
            None => metadata.remove(field),
        };
    }
    remove_empty(metadata);
}

pub(super) fn increment_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
    metadata(object).insert("generation".into(), json!(generation));
}

/// Returns the object with this field, or without it if the value is `None`.
fn with_field(mut object: Value, field: &str, value: Option<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.into(), value),
            None => fields.remove(field),
        };
    }
    object
}

/// The part of the object whose changes increment the generation: all but metadata and status.
fn desired_state(object: &Value) -> Value {
    with_field(with_field(object.clone(), "metadata", None), "status", None)
}
