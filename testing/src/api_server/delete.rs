//! Objects that are to go.

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    answer::{Answer, Wrong, deleted, invalid, precondition},
    change::raise_generation,
    create::now,
    metadata,
    objects::{Held, Objects, has_finalizers, text},
    request::Request,
    write::Verb,
};

impl Objects {
    pub(super) fn delete(&mut self, request: &Request, name: &str, old: Held) -> Result<Answer, Answer> {
        let added = finalizer_of(request)?;
        self.check_preconditions(request, name, &old.object)?;
        let mut object = old.object;
        if let Some(finalizer) = added {
            let all = metadata(&mut object).entry("finalizers").or_insert_with(|| json!([]));
            if let Some(all) = all.as_array_mut().filter(|all| !all.contains(&json!(finalizer))) {
                all.push(json!(finalizer));
            }
        }
        if has_finalizers(&object) {
            let marked = self.mark(request, name, Held { object, owners: old.owners });
            return Ok((StatusCode::OK, marked));
        }
        if !request.is_dry() {
            let version = self.remove(&request.place, name);
            metadata(&mut object).insert("resourceVersion".into(), json!(version));
        }
        match request.place.is_answered_whole() {
            true => Ok((StatusCode::OK, object)),
            false => Ok(deleted(request, name, &object["metadata"]["uid"])),
        }
    }

    /// What was selected is answered as it was before.
    pub(super) fn delete_collection(&mut self, request: &Request) -> Result<Answer, Answer> {
        let found = self.selected(request)?;
        for ((place, name), _) in &found {
            self.answer(&Request {
                verb: Verb::Delete,
                place: place.clone(),
                name: Some(name.clone()),
                ..request.clone()
            })?;
        }
        let fields = match request.place.is_built_in() {
            true => json!({ "resourceVersion": "" }),
            false => json!({ "resourceVersion": "", "continue": "" }),
        };
        let items = found.into_iter().map(|(_, object)| object).collect();
        Ok((StatusCode::OK, self.as_list(&request.place, fields, items)))
    }

    /// From now on it waits for its finalizers.
    fn mark(&mut self, request: &Request, name: &str, mut held: Held) -> Value {
        if !held.object["metadata"]["deletionTimestamp"].is_null() {
            return held.object;
        }
        let fields = metadata(&mut held.object);
        fields.insert("deletionTimestamp".into(), json!(now()));
        fields.insert("deletionGracePeriodSeconds".into(), json!(0));
        if request.place.has_generation() {
            raise_generation(&mut held.object);
        }
        self.store(request, name, held)
    }

    fn check_preconditions(&self, request: &Request, name: &str, old: &Value) -> Result<(), Answer> {
        let asked = &request.body["preconditions"];
        let fields = [
            ("uid", "UID", "deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "modified"),
        ];
        for (field, title, end) in fields {
            let (wanted, found) = (&asked[field], &old["metadata"][field]);
            if !wanted.is_null() && wanted != found {
                let why = format!(
                    "the {title} in the precondition ({}) does not match the {title} in record ({}). The object \
                     might have been {end}",
                    text(wanted),
                    text(found)
                );
                return Err(precondition(request, &self.kind_of(request, old), name, &why));
            }
        }
        Ok(())
    }
}

/// The finalizer that has the garbage collector see to the dependents first.
fn finalizer_of(request: &Request) -> Result<Option<&'static str>, Answer> {
    match request.policy() {
        None | Some("Background") => Ok(None),
        Some("Foreground") => Ok(Some("foregroundDeletion")),
        Some("Orphan") => Ok(Some("orphan")),
        Some(other) => {
            let message = format!(
                "Unsupported value: {other:?}: supported values: \"Foreground\", \"Background\", \"Orphan\", \"nil\""
            );
            let wrong = Wrong { field: "propagationPolicy", reason: "FieldValueNotSupported", message };
            Err(invalid("meta.k8s.io", "DeleteOptions", "", &wrong))
        }
    }
}
