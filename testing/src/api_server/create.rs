//! Creation of objects.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    answer::{Answer, Wrong, already_exists, bad_request, conflict, failure, invalid},
    apply::{Owners, Writer},
    metadata,
    objects::{Held, Objects, text},
    place::Place,
    request::Request,
};

impl Objects {
    pub(super) fn create(&mut self, request: &Request) -> Result<Answer, Answer> {
        let mut object = request.body.clone();
        check_namespace(&request.place, &object)?;
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(failure(StatusCode::INTERNAL_SERVER_ERROR, "", message));
        }
        let kind = self.kind_of(request, &object);
        let name = self.name_for(request, &kind)?;
        if let Some(old) = self.get(&request.place, &name) {
            return Err(already_exists(request, &name, old));
        }
        self.complete(request, &name, &kind, &mut object);
        let owners = Owners::default().after_update(&Writer::of(request), &Value::Null, &object);
        Ok((StatusCode::CREATED, self.store(request, &name, Held { object, owners })))
    }

    /// Creates an object by server-side apply.
    pub(super) fn apply_anew(&mut self, request: &Request, name: &str) -> Result<Answer, Answer> {
        super::change::check_applied(request, name)?;
        if let Some(uid) = request.body["metadata"]["uid"].as_str() {
            let why = format!(
                "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
            );
            return Err(conflict(request, name, &why));
        }
        let mut object = request.body.clone();
        let kind = text(&object["kind"]);
        self.complete(request, name, &kind, &mut object);
        let (object, owners) =
            Owners::default().after_apply(&Writer::of(request), &Value::Null, &object, false)?;
        Ok((StatusCode::CREATED, self.store(request, name, Held { object, owners })))
    }

    fn name_for(&mut self, request: &Request, kind: &str) -> Result<String, Answer> {
        let sent = |field: &str| text(&request.body["metadata"][field]);
        if !sent("name").is_empty() {
            return Ok(sent("name"));
        }
        if sent("generateName").is_empty() {
            let message = "Required value: name or generateName is required".into();
            let wrong = Wrong { field: "metadata.name", reason: "FieldValueRequired", message };
            return Err(invalid(&request.place.group, kind, "", &wrong));
        }
        Ok(format!("{}{:05x}", sent("generateName"), self.next()))
    }

    /// Sets the fields that the API server sets on every object.
    fn complete(&mut self, request: &Request, name: &str, kind: &str, object: &mut Value) {
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.next());
        if let Some(all) = object.as_object_mut() {
            if request.place.has_status() {
                all.remove("status");
            }
            all.entry("apiVersion").or_insert_with(|| json!(request.place.api_version()));
            all.entry("kind").or_insert_with(|| json!(kind));
        }
        let fields = metadata(object);
        for unset in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"] {
            fields.remove(unset);
        }
        fields.insert("name".into(), json!(name));
        fields.insert("uid".into(), json!(uid));
        fields.insert("creationTimestamp".into(), json!(now()));
        if request.place.has_generation() {
            fields.insert("generation".into(), json!(1));
        }
        match &request.place.namespace {
            Some(namespace) => fields.insert("namespace".into(), json!(namespace)),
            None => fields.remove("namespace"),
        };
        super::prune(fields);
    }

    /// The Kind of the object, or else of other objects of its resource.
    pub(super) fn kind_of(&self, request: &Request, object: &Value) -> String {
        object["kind"].as_str().map(Into::into).or_else(|| self.kind(&request.place)).unwrap_or_default()
    }
}

pub(super) fn check_namespace(place: &Place, object: &Value) -> Result<(), Answer> {
    let sent = object["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    if sent.is_none() || sent == place.namespace.as_deref() {
        return Ok(());
    }
    Err(bad_request("the namespace of the provided object does not match the namespace sent on the request"))
}

/// The current time in seconds, as Kubernetes writes it.
pub(super) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
