//! Updates, patches and server-side apply of objects that exist.

use std::sync::Arc;

use http::StatusCode;
use kube::discovery::verbs;
use serde_json::{Value, json};

use super::{
    CERTIFICATE_REQUESTS, Objects, Stored,
    checks::{check_applied_configuration, check_finalizers, check_name, check_namespace, check_valid},
    metadata_rules, namespaces,
};
use crate::{
    apply::{ManagedFields, Writer},
    object::{increment_generation, is_namespace, metadata, remove_empty, text},
    patch,
    request::{PatchKind, Request},
    response::{FieldError, Response, bad_request, conflict, immutable_field, invalid, stale_version},
};

/// The metadata fields that an update or a patch cannot change.
const FIXED_FIELDS: &str = "name namespace uid creationTimestamp generation deletionTimestamp \
    deletionGracePeriodSeconds resourceVersion selfLink";

impl Objects {
    pub(crate) fn change(
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
        let (requested, applied_fields) = requested_object(request, name, &old, &writer)?;
        self.store_requested(request, name, &old, requested, applied_fields)
    }

    /// Checks the requested state, and stores the part of it that the request may change. `applied_fields` are those of an
    /// apply.
    pub(super) fn store_requested(
        &mut self,
        request: &Request,
        name: &str,
        old: &Stored,
        mut requested: Value,
        applied_fields: Option<ManagedFields>,
    ) -> Result<Response, Response> {
        let schema = self.schema(&request.collection);
        let writer = Writer::of(request, schema.clone());
        if let Some(schema) = &schema {
            schema.complete(&mut requested);
        }
        self.check_change(request, name, &old.object, &requested)?;
        let mut new = written_part(request, requested, &old.object);
        keep_fixed_fields(&mut new, &old.object);
        let mut errors = match request.subresource.is_none() {
            true => metadata_rules::errors(self, &new["metadata"]),
            false => Vec::new(),
        };
        errors.extend(approval_errors(request, &old.object, &new));
        errors.extend(schema.iter().flat_map(|schema| match request.subresource.as_deref() {
            Some("status") => schema.status_update_errors(&old.object, &new),
            _ => schema.update_errors(&old.object, &new),
        }));
        check_valid(request, &self.kind_of(request, &old.object), name, &errors)?;
        let managed_fields = applied_fields.unwrap_or_else(|| {
            let before = old.managed_fields.clone();
            before.after_update(&writer, &old.object, &new)
        });
        if new == *old.object && (managed_fields == old.managed_fields || !request.is_apply()) {
            return Ok((StatusCode::OK, Arc::new(new))); // A request that changes nothing stores nothing.
        }
        if request.collection.has_generation() && is_desired_state_changed(&old.object, &new) {
            increment_generation(&mut new);
        }
        Ok((StatusCode::OK, self.store(request, name, new, managed_fields)))
    }

    /// Returns the state that a write asks for, also if it is going to be refused. `None` if a patch cannot be applied.
    pub(crate) fn requested_state(&self, request: &Request) -> Option<Value> {
        let name = request.name.as_deref().unwrap_or_default();
        let Some(old) = self.stored.get(&request.collection.key(name)) else {
            return Some(request.body.clone());
        };
        let writer = Writer::of(request, self.schema(&request.collection));
        let (mut new, _) =
            requested_object(request, name, old, &writer).ok().filter(|(new, _)| new.is_object())?;
        keep_fixed_fields(&mut new, &old.object);
        Some(new)
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
        if differs("uid") && request.verb == verbs::UPDATE {
            let cause = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {}, UID in object meta: {}",
                collection.registry_key(name),
                text(&metadata["uid"]),
                text(&old_metadata["uid"])
            );
            return Err(conflict(&request.collection, name, &cause));
        }
        if text(&metadata["resourceVersion"]).is_empty() {
            if request.verb == verbs::UPDATE && !collection.is_built_in() {
                let message = "Invalid value: 0: must be specified for an update";
                let error = FieldError::new("metadata.resourceVersion", "FieldValueInvalid", message);
                return Err(invalid(&collection.group, &collection.plural, name, error));
            }
        } else if differs("resourceVersion") {
            return Err(stale_version(&request.collection, name));
        }
        for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
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

/// Returns the object that the request asks for. Server-side apply also returns the new managed fields.
fn requested_object(
    request: &Request,
    name: &str,
    old: &Stored,
    writer: &Writer,
) -> Result<(Value, Option<ManagedFields>), Response> {
    if request.verb == verbs::UPDATE {
        return Ok((request.body.clone(), None));
    }
    match request.patch {
        PatchKind::Merge => Ok((patch::merge(&old.object, &request.body)?, None)),
        PatchKind::Json => Ok((patch::json(&old.object, &request.body)?, None)),
        PatchKind::Apply => {
            let force = request.param("force") == "true";
            let version = text(&request.body["metadata"]["resourceVersion"]);
            if !version.is_empty() && version != text(&old.object["metadata"]["resourceVersion"]) {
                return Err(stale_version(&request.collection, name));
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

/// The object with the part of the requested one that the request may write: for a subresource the status or the scale, and
/// otherwise all but the status.
fn written_part(request: &Request, requested: Value, old: &Value) -> Value {
    let status = || requested.get("status").cloned();
    match request.subresource.as_deref() {
        None if request.collection.has_status() => {
            with_field(requested, "status", old.get("status").cloned())
        }
        Some("status") => with_field(old.clone(), "status", status()),
        Some("approval") => {
            let conditions = status().and_then(|mut status| status.get_mut("conditions").map(Value::take));
            let status =
                with_field(old.get("status").cloned().unwrap_or(json!({})), "conditions", conditions);
            with_field(old.clone(), "status", Some(status))
        }
        // The requested state of a scale differs from the old one only in the replicas.
        _ => requested,
    }
}

/// The errors of a CertificateSigningRequest: no write removes the decision about it, and only the subresource `approval`
/// decides.
fn approval_errors(request: &Request, old: &Value, new: &Value) -> Vec<FieldError> {
    if request.collection.full_resource() != CERTIFICATE_REQUESTS {
        return Vec::new();
    }
    let count = |object: &Value, decision: &str| {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|condition| condition["type"] == decision).count()
    };
    let change = |decision: &&str| count(new, decision).cmp(&count(old, decision));
    let error = |verb: &str, decision: &str| {
        let message = format!("Forbidden: updates may not {verb} a condition of type {decision:?}");
        FieldError::new("status.conditions", "FieldValueForbidden", message)
    };
    let removed = ["Approved", "Denied", "Failed"].into_iter().filter(|decision| change(decision).is_lt());
    let added = ["Approved", "Denied"].into_iter().filter(|decision| change(decision).is_gt());
    let added = added.filter(|_| request.subresource.as_deref() != Some("approval"));
    let removed = removed.map(|decision| error("remove", decision));
    removed.chain(added.map(|decision| error("add", decision))).collect()
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
    if is_namespace(new) {
        namespaces::keep_fixed_fields(new, old);
    }
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

/// Returns true if a field that increments the generation differs: all but metadata and status.
fn is_desired_state_changed(old: &Value, new: &Value) -> bool {
    let desired = |object: &Value| {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        fields.retain(|name, _| name != "metadata" && name != "status");
        fields
    };
    desired(old) != desired(new)
}
