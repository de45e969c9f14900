//! Creation of objects.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Objects,
    checks::{check_applied_configuration, check_namespace, check_valid},
    metadata_rules, namespaces,
};
use crate::{
    apply::{ManagedFields, Writer},
    object::{is_namespace, metadata, remove_empty, text},
    request::Request,
    response::{FieldError, Response, already_exists, conflict, failure, invalid},
    schema::Schema,
};

impl Objects {
    pub(crate) fn create(&mut self, request: &Request) -> Result<Response, Response> {
        let mut object = request.body.clone();
        check_namespace(&request.collection, &object)?;
        let sent_name = [&object["metadata"]["name"], &object["metadata"]["generateName"]].map(text);
        self.check_namespace_accepts(
            request,
            sent_name.iter().find(|name| !name.is_empty()).map_or("", |name| name),
        )?;
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(failure(StatusCode::INTERNAL_SERVER_ERROR, "", message));
        }
        let kind = self.kind_of(request, &object);
        let name = self.object_name(request, &kind)?;
        let schema = self.schema(&request.collection);
        complete(request, schema.as_ref(), &mut object);
        let errors = schema.as_ref().map(|schema| schema.errors(&object)).unwrap_or_default();
        let metadata_errors =
            metadata_rules::errors_of_new(self, &request.collection, &name, &object["metadata"]);
        check_valid(request, &kind, &name, &[metadata_errors, errors].concat())?;
        if let Some(old) = self.get(&request.collection, &name) {
            return Err(already_exists(&request.collection, &name, old));
        }
        self.set_system_fields(request, &name, &kind, &mut object);
        let managed_fields =
            ManagedFields::default().after_update(&Writer::of(request, schema), &Value::Null, &object);
        Ok((StatusCode::CREATED, self.store(request, &name, object, managed_fields)))
    }

    /// Creates an object by server-side apply.
    pub(crate) fn create_by_apply(&mut self, request: &Request, name: &str) -> Result<Response, Response> {
        let schema = self.schema(&request.collection);
        check_applied_configuration(request, name, schema.as_ref())?;
        self.check_namespace_accepts(request, name)?;
        if let Some(uid) = request.body["metadata"]["uid"].as_str() {
            let cause = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(conflict(&request.collection, name, &cause));
        }
        let mut object = request.body.clone();
        complete(request, None, &mut object);
        let kind = text(&object["kind"]);
        self.set_system_fields(request, name, &kind, &mut object);
        let writer = Writer::of(request, schema.clone());
        let (mut object, managed_fields) =
            ManagedFields::default().after_apply(&writer, &Value::Null, &object, false)?;
        let mut errors = metadata_rules::errors_of_new(self, &request.collection, name, &object["metadata"]);
        if let Some(schema) = schema {
            schema.complete(&mut object);
            errors.extend(schema.errors(&object));
        }
        check_valid(request, &kind, name, &errors)?;
        Ok((StatusCode::CREATED, self.store(request, name, object, managed_fields)))
    }

    /// Returns the name that was sent, or generates one from `generateName`.
    fn object_name(&mut self, request: &Request, kind: &str) -> Result<String, Response> {
        let metadata_field = |field: &str| text(&request.body["metadata"][field]);
        if !metadata_field("name").is_empty() {
            return Ok(metadata_field("name"));
        }
        let prefix = metadata_field("generateName");
        if prefix.is_empty() {
            let message = "Required value: name or generateName is required";
            let error = FieldError::new("metadata.name", "FieldValueRequired", message);
            return Err(invalid(&request.collection.group, kind, "", error));
        }
        let mut generate = || format!("{prefix}{}", self.identities.suffix(&request.collection.key(&prefix)));
        let mut name = generate();
        while self.stored.contains_key(&request.collection.key(&name)) {
            name = generate();
        }
        Ok(name)
    }

    /// Sets the fields that the API server sets on every object.
    fn set_system_fields(&mut self, request: &Request, name: &str, kind: &str, object: &mut Value) {
        let uid = self.identities.uid(&request.collection.key(name), request.is_dry_run);
        if let Some(fields) = object.as_object_mut() {
            fields.entry("apiVersion").or_insert_with(|| json!(request.collection.api_version()));
            fields.entry("kind").or_insert_with(|| json!(kind));
        }
        let metadata = metadata(object);
        for unset in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
            metadata.remove(unset);
        }
        metadata.insert("name".into(), json!(name));
        metadata.insert("uid".into(), json!(uid));
        metadata.insert("creationTimestamp".into(), json!(self.clock.now()));
        if request.collection.has_generation() {
            metadata.insert("generation".into(), json!(1));
        }
        match &request.collection.namespace {
            Some(namespace) => metadata.insert("namespace".into(), json!(namespace)),
            None => metadata.remove("namespace"),
        };
        remove_empty(metadata);
        if is_namespace(object) {
            namespaces::activate(object, name);
        }
    }

    /// The Kind that the object names, or else the Kind of other objects of its resource.
    pub(crate) fn kind_of(&self, request: &Request, object: &Value) -> String {
        object["kind"].as_str().map(Into::into).or_else(|| self.kind(&request.collection)).unwrap_or_default()
    }
}

/// Removes the status, which a create does not set, and unknown fields. Sets defaults.
fn complete(request: &Request, schema: Option<&Schema>, object: &mut Value) {
    if request.collection.has_status()
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    if let Some(schema) = schema {
        schema.complete(object);
    }
}
