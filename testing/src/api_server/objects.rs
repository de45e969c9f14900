//! The objects that the server holds, and what requests do to them.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use jiff::Timestamp;
use kube::Resource;
use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, already_exists, conflict, failure, invalid, not_found},
    labels, metadata,
    request::Request,
    write::Verb,
};

/// The objects of one Kind in one namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// `api/v1`, `apis/apps/v1`.
    pub(super) api: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
}

impl Place {
    pub(super) fn of_kind<K: Resource<DynamicType = ()>>(namespace: Option<&str>) -> Self {
        let (version, root) = (K::api_version(&()), if K::group(&()).is_empty() { "api" } else { "apis" });
        let namespace = namespace.map(Into::into);
        Self { api: format!("{root}/{version}"), plural: K::plural(&()).into_owned(), namespace }
    }

    /// `pods`, `deployments.apps`.
    pub(super) fn full_resource(&self) -> String {
        match self.api.split('/').nth(1).filter(|_| self.api.starts_with("apis/")) {
            Some(group) => format!("{}.{group}", self.plural),
            None => self.plural.clone(),
        }
    }

    fn contains(&self, other: &Self) -> bool {
        self.api == other.api
            && self.plural == other.plural
            && (self.namespace.is_none() || self.namespace == other.namespace)
    }
}

#[derive(Default)]
pub(super) struct Objects {
    held: BTreeMap<(Place, String), Value>,
    /// The finalizers that each field manager applied to an object.
    applied: BTreeMap<(Place, String, String), BTreeSet<String>>,
    /// How often each resource has changed: versions of different resources do not compare.
    changes: BTreeMap<String, u64>,
}

impl Objects {
    pub(super) fn get(&self, place: &Place, name: &str) -> Option<&Value> {
        self.held.get(&(place.clone(), name.to_owned()))
    }

    /// Holds an object as it is given, in version 1 unless it has one.
    pub(super) fn hold(&mut self, place: &Place, mut object: Value) -> Value {
        metadata(&mut object).entry("resourceVersion").or_insert_with(|| json!("1"));
        let name = text(&object["metadata"]["name"]);
        self.held.insert((place.clone(), name), object.clone());
        object
    }

    pub(super) fn answer(&mut self, request: &Request) -> Result<Answer, Answer> {
        if request.subresource.as_deref().is_some_and(|subresource| subresource != "status") {
            return Err(failure(StatusCode::NOT_FOUND, "NotFound", "this server knows no such subresource"));
        }
        let Some(name) = &request.name else {
            return match request.verb {
                Verb::Create => self.create(request),
                _ => Ok(self.list(request)),
            };
        };
        let Some(old) = self.get(&request.place, name).cloned() else {
            let makes = request.applies && request.body["metadata"]["uid"].is_null();
            return if makes { self.create(request) } else { Err(self.missing(request, name)) };
        };
        match request.verb {
            Verb::Get => Ok((StatusCode::OK, old)),
            Verb::Delete => self.delete(request, name, old),
            _ => self.change(request, name, old),
        }
    }

    fn list(&self, request: &Request) -> Answer {
        let selector = request.query.get("labelSelector").map_or("", String::as_str);
        let fields = request.query.get("fieldSelector").map_or("", String::as_str);
        let items: Vec<_> = self
            .held
            .iter()
            .filter(|((place, _), object)| {
                request.place.contains(place)
                    && labels::matches(selector, object)
                    && of_fields(fields, object)
            })
            .map(|(_, object)| object)
            .collect();
        let kind = items.first().map_or("List".into(), |item| format!("{}List", text(&item["kind"])));
        let api_version = request.place.api.split_once('/').map_or("v1", |(_, version)| version);
        let version = self.version(&request.place).to_string();
        let list = json!({
            "kind": kind, "apiVersion": api_version, "metadata": { "resourceVersion": version }, "items": items,
        });
        (StatusCode::OK, list)
    }

    fn create(&mut self, request: &Request) -> Result<Answer, Answer> {
        let mut object = request.body.clone();
        let next = self.version(&request.place) + 1;
        let fields = metadata(&mut object);
        let given =
            request.name.clone().or_else(|| fields.get("name").map(text)).filter(|name| !name.is_empty());
        let generated = || fields.get("generateName").map(|prefix| format!("{}{next:05x}", text(prefix)));
        let name =
            given.or_else(generated).ok_or_else(|| invalid(request, "metadata.name: Required value"))?;
        if self.get(&request.place, &name).is_some() {
            return Err(already_exists(request, &name));
        }
        fields.insert("name".into(), json!(name));
        fields.insert("uid".into(), json!(format!("uid-{next}")));
        fields.insert(
            "creationTimestamp".into(),
            json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        );
        fields.insert("generation".into(), json!(1));
        if let Some(namespace) = &request.place.namespace {
            fields.insert("namespace".into(), json!(namespace));
        }
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        self.note_applied(request, &name);
        Ok((StatusCode::CREATED, self.store(request, &name, object)))
    }

    fn change(&mut self, request: &Request, name: &str, old: Value) -> Result<Answer, Answer> {
        check_preconditions(request, name, &old)?;
        let mut new = match request.verb {
            Verb::Update => request.body.clone(),
            _ => merged(old.clone(), &request.body),
        };
        if request.applies {
            let finalizers = self.finalizers_after(request, name, &old);
            metadata(&mut new).insert("finalizers".into(), json!(finalizers));
        }
        let mut new = if request.subresource.is_some() {
            with(old.clone(), "status", new.get("status").cloned())
        } else {
            with(new, "status", old.get("status").cloned())
        };
        for fixed in [
            "name",
            "namespace",
            "uid",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
            "resourceVersion",
        ] {
            let value = old["metadata"].get(fixed).cloned();
            let fields = metadata(&mut new);
            match value {
                Some(value) => fields.insert(fixed.into(), value),
                None => fields.remove(fixed),
            };
        }
        prune(metadata(&mut new));
        self.note_applied(request, name);
        if new == old {
            return Ok((StatusCode::OK, old)); // nothing changed: nothing is stored
        }
        if wanted(&new) != wanted(&old) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
            metadata(&mut new).insert("generation".into(), json!(generation));
        }
        Ok((StatusCode::OK, self.store(request, name, new)))
    }

    fn delete(&mut self, request: &Request, name: &str, mut old: Value) -> Result<Answer, Answer> {
        let wanted = &request.body["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != old["metadata"][field] {
                return Err(conflict(request, name, "the precondition does not hold"));
            }
        }
        let held = old["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if !held {
            if !request.is_dry() {
                self.held.remove(&(request.place.clone(), name.to_owned()));
            }
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                "details": { "name": name, "uid": old["metadata"]["uid"] },
            });
            return Ok((StatusCode::OK, status));
        }
        if old["metadata"]["deletionTimestamp"].is_null() {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or_default() + 1;
            let fields = metadata(&mut old);
            fields.insert(
                "deletionTimestamp".into(),
                json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            );
            fields.insert("generation".into(), json!(generation));
            old = self.store(request, name, old);
        }
        Ok((StatusCode::OK, old))
    }

    /// Stores the object under a new version; one that was to go and has no finalizer left is gone.
    fn store(&mut self, request: &Request, name: &str, mut object: Value) -> Value {
        let version = self.version(&request.place) + 1;
        metadata(&mut object).insert("resourceVersion".into(), json!(version.to_string()));
        if request.is_dry() {
            return object;
        }
        *self.changes.entry(request.place.full_resource()).or_default() += 1;
        let slot = (request.place.clone(), name.to_owned());
        let fields = &object["metadata"];
        let held = fields["finalizers"].as_array().is_some_and(|all| !all.is_empty());
        if fields["deletionTimestamp"].is_null() || held {
            self.held.insert(slot, object.clone());
        } else {
            self.held.remove(&slot);
        }
        object
    }

    /// The version of the latest change: later than that of any object that was given.
    fn version(&self, place: &Place) -> u64 {
        1000 + self.changes.get(&place.full_resource()).copied().unwrap_or_default()
    }

    fn missing(&self, request: &Request, name: &str) -> Answer {
        if request.applies {
            return conflict(request, name, "there is no object of this uid");
        }
        not_found(request, name)
    }

    fn manager(&self, request: &Request, name: &str) -> (Place, String, String) {
        let manager = request.query.get("fieldManager").cloned().unwrap_or_default();
        (request.place.clone(), name.to_owned(), manager)
    }

    fn note_applied(&mut self, request: &Request, name: &str) {
        if request.applies && !request.is_dry() {
            self.applied.insert(self.manager(request, name), names(&request.body));
        }
    }

    /// What others put there stays; what this manager applied before and does not now goes.
    fn finalizers_after(&self, request: &Request, name: &str, old: &Value) -> Vec<String> {
        let before = self.applied.get(&self.manager(request, name)).cloned().unwrap_or_default();
        let now = names(&request.body);
        let mut all: Vec<_> =
            names(old).into_iter().filter(|one| !before.contains(one) || now.contains(one)).collect();
        all.extend(now.into_iter().filter(|one| !all.contains(one)).collect::<Vec<_>>());
        all
    }
}

fn check_preconditions(request: &Request, name: &str, old: &Value) -> Result<(), Answer> {
    let sent = &request.body["metadata"];
    let stale = |field: &str| !sent[field].is_null() && sent[field] != old["metadata"][field];
    if stale("uid") {
        return Err(conflict(request, name, "the uid in the precondition does not match"));
    }
    if stale("resourceVersion") {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        return Err(conflict(request, name, why));
    }
    Ok(())
}

fn names(object: &Value) -> BTreeSet<String> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().map(text).collect()
}

/// A merge patch, as RFC 7396 has it.
fn merged(mut into: Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    if !into.is_object() {
        into = json!({});
    }
    for (name, change) in patch {
        let value = (!change.is_null()).then(|| merged(into[name].take(), change));
        into = with(into, name, value);
    }
    into
}

fn with(mut object: Value, field: &str, value: Option<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => fields.insert(field.into(), value),
            None => fields.remove(field),
        };
    }
    object
}

/// Lists and maps without members are not kept.
fn prune(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| match value {
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        value => !value.is_null(),
    });
}

/// What raises the generation when it changes.
fn wanted(object: &Value) -> Value {
    with(with(object.clone(), "metadata", None), "status", None)
}

fn of_fields(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|one| !one.is_empty()).all(|one| {
        let (path, value) = one.split_once('=').unwrap_or((one, ""));
        let found = path.split('.').fold(object, |object, field| &object[field]);
        found.as_str().unwrap_or_default() == value.trim_start_matches('=')
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
