//! Deletion of objects.

use std::sync::Arc;

use http::StatusCode;
use kube::discovery::verbs;
use serde_json::{Value, json};

use super::{Objects, Stored, namespaces};
use crate::{
    collection::Collection,
    object::{
        has_finalizers, increment_generation, is_namespace, is_terminating, metadata, remove_empty, text,
    },
    request::Request,
    response::{FieldError, Response, deletion_status, invalid, precondition_failed},
};

impl Objects {
    pub(crate) fn delete(
        &mut self,
        request: &Request,
        name: &str,
        old: Stored,
    ) -> Result<Response, Response> {
        namespaces::check_deletable(request, name)?;
        let policy = explicit_policy(request)?;
        self.check_preconditions(request, name, &old.object)?;
        let mut object = with_policy_finalizer(&request.collection, policy, &old.object);
        if is_namespace(&object) && !is_terminating(&object) {
            namespaces::terminate(&mut object);
        }
        if has_finalizers(&object) {
            if object == *old.object && is_terminating(&object) {
                return Ok((StatusCode::OK, old.object));
            }
            self.mark_deleted(request, &mut object);
            return Ok((StatusCode::OK, self.store(request, name, object, old.managed_fields)));
        }
        if !request.is_dry_run {
            let version = self.remove(&request.collection, name);
            metadata(&mut object).insert("resourceVersion".into(), json!(version));
        }
        match request.collection.deletion_returns_object() {
            true => Ok((StatusCode::OK, Arc::new(object))),
            false => Ok(deletion_status(&request.collection, name, &object["metadata"]["uid"])),
        }
    }

    /// Deletes the selected objects, and returns them as they were before the deletion.
    pub(crate) fn delete_collection(&mut self, request: &Request) -> Result<Response, Response> {
        let selected = self.selected(request)?;
        for object in &selected {
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            self.handle(&Request {
                verb: verbs::DELETE,
                collection: Collection { namespace, ..request.collection.clone() },
                name: Some(text(&object["metadata"]["name"])),
                ..request.clone()
            })?;
        }
        let metadata = match request.collection.is_built_in() {
            true => json!({ "resourceVersion": "" }),
            false => json!({ "resourceVersion": "", "continue": "" }),
        };
        let items = selected.iter().map(|object| Value::clone(object)).collect();
        Ok((StatusCode::OK, Arc::new(self.as_list(&request.collection, metadata, items))))
    }

    /// Marks the object as being deleted. It stays until its finalizers are removed.
    fn mark_deleted(&self, request: &Request, object: &mut Value) {
        if is_terminating(object) {
            return;
        }
        let has_grace_period = !is_namespace(object);
        let fields = metadata(object);
        fields.insert("deletionTimestamp".into(), json!(self.clock.now()));
        if has_grace_period {
            fields.insert("deletionGracePeriodSeconds".into(), json!(0));
        }
        if request.collection.has_generation() {
            increment_generation(object);
        }
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
                return Err(precondition_failed(
                    &request.collection,
                    &self.kind_of(request, old),
                    name,
                    &cause,
                ));
            }
        }
        Ok(())
    }
}

/// The finalizers with which the API server hands an object to the garbage collector, by propagation policy.
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// The propagation policy that the request names.
fn explicit_policy(request: &Request) -> Result<Option<&str>, Response> {
    match request.explicit_propagation_policy() {
        policy @ (None | Some("Background" | "Foreground" | "Orphan")) => Ok(policy),
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            let error = FieldError::new("propagationPolicy", "FieldValueNotSupported", message);
            Err(invalid("meta.k8s.io", "DeleteOptions", "", error))
        }
    }
}

/// Returns the object with the finalizer of its propagation policy and of no other. An explicit policy wins over a
/// finalizer that the object already has, and such a finalizer wins over the default of the Kind.
fn with_policy_finalizer(collection: &Collection, explicit: Option<&str>, object: &Value) -> Value {
    let finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let existing = finalizers.iter().filter_map(Value::as_str).find(|name| is_policy_finalizer(name));
    let finalizer = match explicit {
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        Some(_) => None,
        None => existing.or(collection.orphans_by_default().then_some(ORPHAN)),
    };
    let others = finalizers.iter().filter(|other| !other.as_str().is_some_and(is_policy_finalizer));
    let new: Vec<_> = others.cloned().chain(finalizer.map(|finalizer| json!(finalizer))).collect();
    let mut object = object.clone();
    if new.len() != finalizers.len() || new.iter().any(|finalizer| !finalizers.contains(finalizer)) {
        metadata(&mut object).insert("finalizers".into(), json!(new));
        remove_empty(metadata(&mut object));
    }
    object
}

fn is_policy_finalizer(name: &str) -> bool {
    matches!(name, ORPHAN | FOREGROUND)
}
