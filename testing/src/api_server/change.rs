//! Updates, patches and server-side apply of objects that exist.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    answer::{Answer, Wrong, bad_request, conflict, immutable, invalid, modified},
    apply::{Owners, Writer},
    create::check_namespace,
    metadata,
    objects::{Held, Objects, text},
    patch, prune,
    request::{PatchKind, Request},
    write::Verb,
};

/// The metadata fields that no request changes.
const FIXED: &str = "name namespace uid creationTimestamp generation deletionTimestamp \
    deletionGracePeriodSeconds resourceVersion";

impl Objects {
    pub(super) fn change(&mut self, request: &Request, name: &str, old: Held) -> Result<Answer, Answer> {
        let (sent, applied) = wanted(request, name, &old)?;
        self.check(request, name, &old.object, &sent)?;
        let mut new = if request.subresource.is_some() {
            with(old.object.clone(), "status", sent.get("status").cloned())
        } else if request.place.has_status() {
            with(sent, "status", old.object.get("status").cloned())
        } else {
            sent
        };
        keep_fixed(&mut new, &old.object);
        let owners = applied.unwrap_or_else(|| {
            let before = old.owners.clone();
            before.after_update(&Writer::of(request), &old.object, &new)
        });
        if new == old.object && (owners == old.owners || !request.applies()) {
            return Ok((StatusCode::OK, new)); // nothing changed: nothing is stored
        }
        if request.place.has_generation() && spec(&new) != spec(&old.object) {
            raise_generation(&mut new);
        }
        Ok((StatusCode::OK, self.store(request, name, Held { object: new, owners })))
    }

    /// Checks whether the object may be changed in this way.
    fn check(&self, request: &Request, name: &str, old: &Value, sent: &Value) -> Result<(), Answer> {
        let (place, fields, was) = (&request.place, &sent["metadata"], &old["metadata"]);
        let kind = self.kind_of(request, old);
        let other = |field: &str| !fields[field].is_null() && fields[field] != was[field];
        if text(&fields["name"]).is_empty() {
            let message = format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            );
            return Err(bad_request(&message));
        }
        check_name(sent, name)?;
        check_namespace(place, sent)?;
        if other("uid") && request.verb == Verb::Update {
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {}, UID in object meta: {}",
                place.registry_key(name),
                text(&fields["uid"]),
                text(&was["uid"])
            );
            return Err(conflict(request, name, &why));
        }
        if text(&fields["resourceVersion"]).is_empty() {
            if request.verb == Verb::Update && !place.is_built_in() {
                let message = "Invalid value: 0: must be specified for an update".into();
                let wrong = Wrong { field: "metadata.resourceVersion", reason: "FieldValueInvalid", message };
                return Err(invalid(&place.group, &place.plural, name, &wrong));
            }
        } else if other("resourceVersion") {
            return Err(modified(request, name));
        }
        for field in ["uid", "deletionTimestamp"] {
            if other(field) {
                return Err(immutable(place, &kind, name, &format!("metadata.{field}"), &fields[field]));
            }
        }
        check_finalizers(request, &kind, name, old, sent)
    }
}

/// Refuses new finalizers on an object that is being deleted.
fn check_finalizers(
    request: &Request,
    kind: &str,
    name: &str,
    old: &Value,
    sent: &Value,
) -> Result<(), Answer> {
    if old["metadata"]["deletionTimestamp"].is_null() || request.subresource.is_some() {
        return Ok(());
    }
    let [before, after] =
        [old, sent].map(|object| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default());
    let new: Vec<_> = after.iter().filter(|one| !before.contains(one)).map(Value::to_string).collect();
    if new.is_empty() {
        return Ok(());
    }
    let message = format!(
        "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        new.join(", ")
    );
    let wrong = Wrong { field: "metadata.finalizers", reason: "FieldValueForbidden", message };
    Err(invalid(&request.place.group, kind, name, &wrong))
}

fn check_name(object: &Value, name: &str) -> Result<(), Answer> {
    match text(&object["metadata"]["name"]) {
        sent if sent.is_empty() || sent == name => Ok(()),
        sent => Err(bad_request(&format!(
            "the name of the object ({sent}) does not match the name on the URL ({name})"
        ))),
    }
}

/// Checks the fields that an applied configuration has to set.
pub(super) fn check_applied(request: &Request, name: &str) -> Result<(), Answer> {
    if request.manager() == "unknown" {
        let message = "Required value: is required for apply patch".into();
        let wrong = Wrong { field: "fieldManager", reason: "FieldValueRequired", message };
        return Err(invalid("meta.k8s.io", "PatchOptions", "", &wrong));
    }
    if request.body["kind"].as_str().is_none() || request.body["apiVersion"].as_str().is_none() {
        let (version, kind) = (text(&request.body["apiVersion"]), text(&request.body["kind"]));
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        return Err(bad_request(&format!("invalid object type: {group}/{version}, Kind={kind}")));
    }
    check_name(&request.body, name)?;
    match request.place.namespace {
        Some(_) => check_namespace(&request.place, &request.body),
        None => Ok(()), // whatever is said, it is in none
    }
}

/// Returns the object that the request asks for, and the owners of its fields if the request sets them.
fn wanted(request: &Request, name: &str, old: &Held) -> Result<(Value, Option<Owners>), Answer> {
    if request.verb == Verb::Update {
        return Ok((request.body.clone(), None));
    }
    match request.patch {
        PatchKind::Merge => Ok((patch::merge(&old.object, &request.body)?, None)),
        PatchKind::Json => Ok((patch::json(&old.object, &request.body)?, None)),
        PatchKind::Apply => {
            check_applied(request, name)?;
            let force = request.asked("force") == "true";
            let version = text(&request.body["metadata"]["resourceVersion"]);
            if !version.is_empty() && version != text(&old.object["metadata"]["resourceVersion"]) {
                return Err(modified(request, name));
            }
            let writer = Writer::of(request);
            let (mut new, owners) =
                old.owners.clone().after_apply(&writer, &old.object, &request.body, force)?;
            if let Some(uid) = request.body["metadata"].get("uid") {
                new["metadata"]["uid"] = uid.clone();
            }
            Ok((new, Some(owners)))
        }
    }
}

fn keep_fixed(new: &mut Value, old: &Value) {
    for field in ["apiVersion", "kind"] {
        *new = with(std::mem::take(new), field, old.get(field).cloned());
    }
    let fields = metadata(new);
    fields.remove("managedFields");
    for fixed in FIXED.split(' ') {
        match old["metadata"].get(fixed) {
            Some(value) => fields.insert(fixed.into(), value.clone()),
            None => fields.remove(fixed),
        };
    }
    prune(fields);
}

pub(super) fn raise_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
    metadata(object).insert("generation".into(), json!(generation));
}

pub(super) fn with(mut object: Value, field: &str, value: Option<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.into(), value),
            None => fields.remove(field),
        };
    }
    object
}

/// The part of the object whose changes raise the generation.
fn spec(object: &Value) -> Value {
    with(with(object.clone(), "metadata", None), "status", None)
}
