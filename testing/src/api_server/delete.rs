//! Deletion of objects.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    change::increment_generation,
    create::now,
    metadata,
    objects::{Objects, Stored, has_finalizers, text},
    request::Request,
    response::{FieldError, Response, deletion_status, invalid, precondition_failed},
    write::Verb,
};

impl Objects {
    pub(super) fn delete(
        &mut self,
        request: &Request,
        name: &str,
        old: Stored,
    ) -> Result<Response, Response> {
        let policy_finalizer = policy_finalizer(request)?;
        self.check_preconditions(request, name, &old.object)?;
        let mut object = old.object;
        if let Some(finalizer) = policy_finalizer {
            let finalizers = metadata(&mut object).entry("finalizers").or_insert_with(|| json!([]));
            if let Some(finalizers) = finalizers.as_array_mut()
                && !finalizers.contains(&json!(finalizer))
            {
                finalizers.push(json!(finalizer));
            }
        }
        if has_finalizers(&object) {
            let old = Stored { object, managed_fields: old.managed_fields };
            return Ok((StatusCode::OK, self.mark_deleted(request, name, old)));
        }
        if !request.is_dry_run() {
            let version = self.remove(&request.collection, name);
            metadata(&mut object).insert("resourceVersion".into(), json!(version));
        }
        match request.collection.deletion_returns_object() {
            true => Ok((StatusCode::OK, object)),
            false => Ok(deletion_status(request, name, &object["metadata"]["uid"])),
        }
    }

    /// Deletes the selected objects, and returns them as they were before the deletion.
    pub(super) fn delete_collection(&mut self, request: &Request) -> Result<Response, Response> {
        let selected = self.selected(request)?;
        for ((collection, name), _) in &selected {
            self.handle(&Request {
                verb: Verb::Delete,
                collection: collection.clone(),
                name: Some(name.clone()),
                ..request.clone()
            })?;
        }
        let metadata = match request.collection.is_built_in() {
            true => json!({ "resourceVersion": "" }),
            false => json!({ "resourceVersion": "", "continue": "" }),
        };
        let items = selected.into_iter().map(|(_, object)| object).collect();
        Ok((StatusCode::OK, self.as_list(&request.collection, metadata, items)))
    }

    /// Marks the object as being deleted. It stays until its finalizers are removed.
    fn mark_deleted(&mut self, request: &Request, name: &str, mut old: Stored) -> Value {
        if !old.object["metadata"]["deletionTimestamp"].is_null() {
            return old.object;
        }
        let fields = metadata(&mut old.object);
        fields.insert("deletionTimestamp".into(), json!(now()));
        fields.insert("deletionGracePeriodSeconds".into(), json!(0));
        if request.collection.has_generation() {
            increment_generation(&mut old.object);
        }
        self.store(request, name, old)
    }

    fn check_preconditions(&self, request: &Request, name: &str, old: &Value) -> Result<(), Response> {
        let preconditions = &request.body["preconditions"];
        let fields = [
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ];
        for (field, title, change) in fields {
            let (required, stored) = (&preconditions[field], &old["metadata"][field]);
            if !required.is_null() && required != stored {
                let cause = format!(
                    "the {title} in the precondition ({}) does not match the {title} in record ({}). The object \
                     might have been {change}",
                    text(required),
                    text(stored)
                );
                return Err(precondition_failed(request, &self.kind_of(request, old), name, &cause));
            }
        }
        Ok(())
    }
}

/// The finalizer of the propagation policy, which makes the garbage collector process the dependents first.
fn policy_finalizer(request: &Request) -> Result<Option<&'static str>, Response> {
    match request.propagation_policy() {
        None | Some("Background") => Ok(None),
        Some("Foreground") => Ok(Some("foregroundDeletion")),
        Some("Orphan") => Ok(Some("orphan")),
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            let error = FieldError { field: "propagationPolicy", reason: "FieldValueNotSupported", message };
            Err(invalid("meta.k8s.io", "DeleteOptions", "", &error))
        }
    }
}
