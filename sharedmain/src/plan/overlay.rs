//! The objects as the planned writes leave them, beside their live states.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use http::StatusCode;
use kube::discovery::ApiResource;
use reknit_apis::Key;
use reknit_injection::internal::{ResourcePath, path_segment, resource_name};
use reknit_reconciler::merge_patch;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    compact::Compact,
    keyed::{keyed, merge},
    reply::{Reason, Reply},
};

/// The first of the invented resourceVersions, which are higher than those of any API server.
const FIRST_VERSION: u64 = 9_000_000_000_000_000_000;
/// The metadata fields that only the API server sets.
const SYSTEM_FIELDS: [&str; 8] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The controller and the key whose pass makes a change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Cause {
    pub(super) controller: String,
    pub(super) key: String,
}

/// The resource, the namespace and the name of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    group: String,
    version: String,
    plural: String,
    pub(super) key: Key,
}

impl Id {
    pub(super) fn of_object(resource: &ApiResource, object: &Value) -> Self {
        let ApiResource { group, version, plural, .. } = resource.clone();
        Self { group, version, plural, key: key_of(object) }
    }

    pub(super) fn new(collection: &ResourcePath<'_>, name: &str) -> Self {
        Self {
            group: collection.group.into(),
            version: collection.version.into(),
            plural: collection.plural.into(),
            key: Key::new(collection.namespace, name),
        }
    }

    /// The object that an item of a list shows.
    pub(super) fn of_item(collection: &ResourcePath<'_>, item: &Value) -> Self {
        Self { key: key_of(item), ..Self::new(collection, "") }
    }

    pub(super) fn of_namespace(name: &str) -> Self {
        let [group, version, plural] = ["", "v1", "namespaces"].map(Into::into);
        Self { group, version, plural, key: Key::new(None, name) }
    }

    pub(super) fn is_secret(&self) -> bool {
        (&*self.group, &*self.plural) == ("", "secrets")
    }

    pub(super) fn orphans_dependents_by_default(&self) -> bool {
        [("batch", "jobs"), ("", "replicationcontrollers")].contains(&(&*self.group, &*self.plural))
    }

    pub(super) fn is_in(&self, collection: &ResourcePath<'_>) -> bool {
        (&*self.group, &*self.version, &*self.plural)
            == (collection.group, collection.version, collection.plural)
            && collection.namespace.is_none_or(|namespace| self.key.namespace.as_deref() == Some(namespace))
    }

    pub(super) fn collection_path(&self) -> String {
        let root = if self.group.is_empty() { "/api".into() } else { format!("/apis/{}", self.group) };
        let namespace =
            self.key.namespace.as_ref().map_or_else(String::new, |name| format!("/namespaces/{name}"));
        format!("{root}/{}{namespace}/{}", self.version, self.plural)
    }

    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.collection_path(), path_segment(&self.key.name))
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", resource_name(&self.group, &self.plural, ""), self.key)
    }
}

/// A part of an object with writes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// Everything but the status and the fields that only the API server sets.
    Main,
    Status,
}

impl Part {
    /// Returns this part of an object.
    pub(super) fn of(self, object: &Value) -> Value {
        if self == Self::Status {
            return json!({ "status": object["status"] });
        }
        let mut part = with_fields(object.clone(), &Value::Null, &["status"]);
        part["metadata"] = with_fields(part["metadata"].take(), &Value::Null, &SYSTEM_FIELDS);
        part
    }

    /// Returns the fields of an object that a write of this part may store: with the main part the status, if its
    /// Kind has no status subresource.
    pub(super) fn written(self, object: &Value) -> Value {
        with_fields(self.of(object), object, &["status"])
    }

    /// Returns a planned state that the API server has not answered. A write of the main part keeps the status then,
    /// since most Kinds have a status subresource.
    pub(super) fn unanswered(self, planned: Value, current: &Value) -> Value {
        if self == Self::Status { planned } else { with_fields(planned, current, &["status"]) }
    }

    /// Returns the object as a write of this part leaves it, which led to another state of it.
    fn replaced(self, object: &Value, new: &Value) -> Value {
        if self == Self::Status {
            return with_fields(object.clone(), new, &["status"]);
        }
        let mut replaced = new.clone();
        let kept = [
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "name",
            "namespace",
            "uid",
        ];
        replaced["metadata"] = with_fields(replaced["metadata"].take(), &object["metadata"], &kept);
        replaced
    }
}

/// Sets these fields to those of another object, and removes the fields that the other does not have.
pub(super) fn with_fields(object: Value, from: &Value, fields: &[&str]) -> Value {
    let mut object = if object.is_object() { object } else { json!({}) };
    for name in fields {
        match (from.get(name), object.as_object_mut()) {
            (Some(value), _) => object[name] = value.clone(),
            (None, Some(object)) => drop(object.remove(*name)),
            (None, None) => {}
        }
    }
    object
}

/// The changes of one writer to a part of an object, as a merge patch of its [keyed] form.
pub(super) struct Layer {
    pub(super) part: Part,
    /// The field manager of a server-side apply, whose next apply replaces this layer.
    pub(super) manager: Option<String>,
    pub(super) patch: Compact,
}

impl Layer {
    pub(super) fn between(part: Part, manager: Option<String>, before: &Value, after: &Value) -> Self {
        let patch = difference(&keyed(&part.written(before)), &keyed(&part.written(after)));
        Self { part, manager, patch: (&patch).into() }
    }

    /// A layer that sets everything that a request names.
    pub(super) fn of(part: Part, manager: Option<String>, body: &Value) -> Self {
        Self { part, manager, patch: (&keyed(&part.written(body))).into() }
    }
}

/// The merge patch from one state to another.
pub(super) fn difference(before: &Value, after: &Value) -> Value {
    merge_patch(before, after).ok().flatten().unwrap_or_else(|| json!({}))
}

/// An object that the plan has written or is about to write.
#[derive(Default)]
pub(super) struct Entry {
    /// The live state; `None` if the object does not exist.
    pub(super) before: Option<Compact>,
    /// The planned state; `None` if the object is deleted.
    pub(super) after: Option<Compact>,
    /// The state before the last planned change.
    pub(super) previous: Option<Compact>,
    /// True if the plan has created the current object, so that the API server does not know it.
    pub(super) is_planned: bool,
    /// True if the request that created the current object named none, so that the API server would generate its name.
    pub(super) has_generated_name: bool,
    pub(super) layers: Vec<Layer>,
    pub(super) causes: BTreeSet<Cause>,
    /// The parts that the API server did not validate, with the reasons.
    pub(super) not_validated: BTreeSet<Reason>,
}

impl Entry {
    pub(super) fn unchanged(live: Option<Value>) -> Self {
        let live = live.as_ref().map(Compact::from);
        Self { before: live.clone(), after: live, ..Self::default() }
    }

    pub(super) fn is_changed(&self) -> bool {
        self.before != self.after
    }

    /// The planned state.
    pub(super) fn after(&self) -> Option<Value> {
        self.after.as_ref().map(Compact::value)
    }

    /// The live state of the current object.
    pub(super) fn live(&self) -> Option<Value> {
        self.before.as_ref().filter(|_| !self.is_planned).map(Compact::value)
    }

    /// Returns the fields of an object that a write of this part stores, as far as that is known: a write to the status
    /// subresource shows that there is one.
    pub(super) fn written(&self, part: Part, object: &Value) -> Value {
        if self.has_status_part() { part.of(object) } else { part.written(object) }
    }

    fn has_status_part(&self) -> bool {
        self.layers.iter().any(|layer| layer.part == Part::Status)
    }

    /// Returns the writes to a part that an apply of this manager does not replace. Other writes replace none.
    pub(super) fn layers_beside(&self, part: Part, manager: Option<&str>) -> impl Iterator<Item = &Layer> {
        let is_other = move |layer: &Layer| manager.is_none() || layer.manager.as_deref() != manager;
        self.layers.iter().filter(move |layer| layer.part == part && is_other(layer))
    }

    /// Adds a layer, in place of the one that it replaces.
    pub(super) fn add_layer(&mut self, layer: Layer) {
        let Layer { part, manager, .. } = &layer;
        self.layers.retain(|old| old.part != *part || manager.is_none() || old.manager != *manager);
        self.layers.push(layer);
    }
}

/// The objects that the plan has written, and those that it read to write them.
#[derive(Default)]
pub(super) struct Overlay {
    pub(super) entries: BTreeMap<Id, Entry>,
    /// The uids of the objects that are gone and leave their dependents to the garbage collector, and the causes.
    pub(super) gone: BTreeMap<String, Option<Cause>>,
    /// The number of invented versions and identities.
    count: u64,
}

impl Overlay {
    pub(super) fn get(&self, id: &Id) -> Option<&Entry> {
        self.entries.get(id)
    }

    pub(super) fn entry(&mut self, id: &Id) -> &mut Entry {
        self.entries.entry(id.clone()).or_default()
    }

    /// Returns true if the object would exist, but does not exist yet.
    pub(super) fn is_planned(&self, id: &Id) -> bool {
        self.get(id).is_some_and(|entry| entry.before.is_none() && entry.after.is_some())
    }

    /// The planned object that a refused request refers to, which the API server does not know.
    pub(super) fn planned_object_of(&self, refusal: &Reply) -> Option<&Id> {
        let (status, message) = (refusal.json().unwrap_or_default(), refusal.message());
        let is_named = |id: &&Id| {
            let (name, details) = (&id.key.name, &status["details"]);
            refusal.status == StatusCode::NOT_FOUND
                && details["name"] == **name
                && details["kind"] == *id.plural
                || message.contains(&format!("{name:?} not found"))
                || message.contains(&format!("with name {name} was found"))
        };
        self.entries.keys().filter(|id| self.is_planned(id)).find(is_named)
    }

    /// A number that no other object of the plan has.
    pub(super) fn next(&mut self) -> u64 {
        self.count += 1;
        FIRST_VERSION + self.count
    }

    /// Stores the new state of a part of an object, and returns the object. A write that changes nothing keeps the
    /// resourceVersion. A terminating object without finalizers is gone.
    pub(super) fn commit(&mut self, id: &Id, part: Part, new: &Value, cause: Option<Cause>) -> Value {
        let entry = self.entry(id);
        let Some(current) = entry.after() else { return new.clone() };
        let mut after = part.replaced(&current, new);
        if entry.has_status_part() {
            after = part.unanswered(after, &current);
        }
        after["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
        if without_managed_fields(&after) == without_managed_fields(&current) {
            return current;
        }
        self.store(id, after, cause)
    }

    /// Stores a new state of an object under a new resourceVersion, and returns it.
    pub(super) fn store(&mut self, id: &Id, mut new: Value, cause: Option<Cause>) -> Value {
        new["metadata"]["resourceVersion"] = json!(self.next().to_string());
        let is_gone = is_terminating(&new) && !has_finalizers(&new);
        if let Some(uid) = new["metadata"]["uid"].as_str().filter(|_| is_gone) {
            self.gone.insert(uid.into(), cause.clone());
        }
        let entry = self.entry(id);
        entry.previous = entry.after.take();
        entry.after = (!is_gone).then(|| Compact::from(&new));
        entry.causes.extend(cause);
        new
    }

    /// Moves the planned writes to another live state of the object, which is gone if there is none.
    pub(super) fn rebase(&mut self, id: &Id, live: Option<Value>) {
        let version = self.next();
        let entry = self.entry(id);
        entry.before = live.as_ref().map(Compact::from);
        if entry.is_planned {
            return;
        }
        let Some(old) = entry.after() else { return };
        entry.after = live.map(|mut after| {
            after = merge(&after, entry.layers.iter().map(|layer| layer.patch.value()));
            if is_terminating(&old) {
                let fields = ["deletionGracePeriodSeconds", "deletionTimestamp"];
                after["metadata"] = with_fields(after["metadata"].take(), &old["metadata"], &fields);
            }
            if !entry.layers.is_empty() {
                after["metadata"]["resourceVersion"] = json!(version.to_string());
            }
            (&after).into()
        });
    }

    /// Stores an object that the plan creates, and returns it.
    pub(super) fn create(&mut self, id: &Id, new: Value, layer: Layer, cause: Option<Cause>) -> Value {
        let entry = self.entry(id);
        (entry.is_planned, entry.layers) = (true, vec![layer]);
        self.store(id, new, cause)
    }

    /// Deletes an object at once.
    pub(super) fn remove(&mut self, id: &Id, cause: Option<Cause>) {
        let entry = self.entry(id);
        entry.previous = entry.after.take();
        entry.causes.extend(cause);
    }
}

fn key_of(object: &Value) -> Key {
    let metadata = &object["metadata"];
    Key::new(metadata["namespace"].as_str(), metadata["name"].as_str().unwrap_or_default())
}

fn without_managed_fields(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"] = with_fields(object["metadata"].take(), &Value::Null, &["managedFields"]);
    object
}

pub(super) fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|names| !names.is_empty())
}

/// Returns true if a finalizer delays the deletion of an object, other than those of the garbage collector.
pub(super) fn is_finalized(object: &Value) -> bool {
    let names = object["metadata"]["finalizers"].as_array();
    names.is_some_and(|names| names.iter().any(|name| name != "foregroundDeletion" && name != "orphan"))
}
