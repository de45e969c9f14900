//! The objects that the server stores.

mod change;
mod checks;
mod create;
mod delete;
mod garbage;
mod history;
mod list;
mod metadata_rules;
mod namespaces;
mod scale;
mod watch;

use std::{collections::BTreeMap, sync::Arc, task::Waker};

use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::discovery::verbs;
use serde_json::{Value, json};

pub(crate) use self::watch::Position;
use self::{garbage::Garbage, history::History};
use crate::{
    apply::ManagedFields,
    collection::Collection,
    identity::{Clock, Identities},
    object::{has_finalizers, is_terminating, metadata, text},
    request::Request,
    response::{Response, method_not_allowed, no_such_resource, not_found, not_supported},
    schema::Schema,
    selector::{Selection, Selector},
};

/// The fields by which objects of every Kind can be selected.
const COMMON_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// The resource of CertificateSigningRequests.
const CERTIFICATE_REQUESTS: &str = "certificatesigningrequests.certificates.k8s.io";

#[derive(Default)]
pub(crate) struct Objects {
    /// The objects by [key](Collection::key).
    stored: BTreeMap<String, Stored>,
    history: History,
    garbage: Garbage,
    /// True if the garbage is collected after each change.
    pub(crate) collects_garbage: bool,
    /// True if objects can be created only in namespaces that exist.
    requires_namespaces: bool,
    identities: Identities,
    pub(crate) clock: Clock,
    /// The collection of all objects of each Kind of which an object has been stored, by apiVersion and kind.
    kinds: BTreeMap<(String, String), Collection>,
    /// True once a request was handled. Objects that a test adds before that have no history.
    pub(crate) has_served: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    pub(crate) object: Arc<Value>,
    pub(crate) managed_fields: ManagedFields,
}

impl Objects {
    pub(crate) fn get(&self, collection: &Collection, name: &str) -> Option<&Arc<Value>> {
        self.stored.get(&collection.key(name)).map(|stored| &stored.object)
    }

    /// All objects, sorted by resource, namespace and name.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Value>> {
        self.stored.values().map(|stored| &stored.object)
    }

    /// Returns true if the owner of this reference is stored without a uid, as a test inserts it.
    fn lacks_uid(&self, owner: &Value) -> bool {
        let is_owner = |object: &Arc<Value>| {
            object["kind"] == owner["kind"] && object["metadata"]["name"] == owner["name"]
        };
        self.all().any(|object| is_owner(object) && object["metadata"]["uid"].is_null())
    }

    /// Returns the collection of all objects of this Kind, if one has been stored.
    pub(crate) fn collection_of(&self, api_version: &Value, kind: &Value) -> Option<&Collection> {
        self.kinds.get(&(text(api_version), text(kind)))
    }

    /// Stores an object as it is. An object without a resourceVersion gets 1 before the first request, and later the
    /// next one.
    pub(crate) fn insert(
        &mut self,
        collection: &Collection,
        mut object: Value,
        managed_fields: ManagedFields,
    ) -> Value {
        let next = if self.has_served { self.history.latest() + 1 } else { 1 };
        let version =
            metadata(&mut object).entry("resourceVersion").or_insert_with(|| json!(next.to_string()));
        let version: u64 = text(version).parse().unwrap_or_default();
        self.record_kind(collection, &object);
        let name = text(&object["metadata"]["name"]);
        let stored = Stored { object: Arc::new(object.clone()), managed_fields };
        if self.has_served {
            // The version of the change, if the object has a higher one.
            self.history.raise(version.saturating_sub(1));
            self.commit(collection.key(&name), Some(stored));
        } else {
            self.history.raise(version);
            let (key, new) = (collection.key(&name), stored.object.clone());
            let old = self.stored.insert(key.clone(), stored).map(|old| old.object);
            self.garbage.observe(&key, old.as_deref(), Some(&new));
        }
        object
    }

    /// Handles a request. Both `Ok` and `Err` contain the response.
    pub(crate) fn handle(&mut self, request: &Request) -> Result<Response, Response> {
        self.check_supported(request)?;
        let Some(name) = request.name.as_deref() else {
            return match request.verb {
                verbs::CREATE => self.create(request),
                verbs::DELETE_COLLECTION => self.delete_collection(request),
                _ => self.list(request),
            };
        };
        let Some(old) = self.stored.get(&request.collection.key(name)) else {
            return match request.is_apply() && request.subresource.is_none() {
                true => self.create_by_apply(request, name),
                false => Err(not_found(&request.collection, name)),
            };
        };
        if request.subresource.as_deref() == Some("scale") {
            return self.scale(request, name, old.clone());
        }
        match request.verb {
            verbs::GET => Ok((StatusCode::OK, old.object.clone())),
            verbs::DELETE => self.delete(request, name, old.clone()),
            _ => self.change(request, name, old.clone()),
        }
    }

    /// Collects all garbage, if that is to be done after each change.
    pub(crate) fn settle(&mut self) {
        while self.collects_garbage && self.collect_garbage() {}
    }

    /// Requires that namespaces exist, and creates those of every cluster.
    pub(crate) fn require_namespaces(&mut self) {
        for name in namespaces::INITIAL {
            let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            let _ = self.create(&Request::of(verbs::CREATE, namespaces::collection(), None, body));
        }
        self.requires_namespaces = true;
    }

    /// Forgets the history so far.
    pub(crate) fn compact(&mut self) {
        self.history.compact();
    }

    pub(crate) fn end_watches(&mut self) {
        self.history.restart();
    }

    pub(crate) fn wake_at_change(&mut self, waker: &Waker) {
        self.history.wait(waker);
    }

    /// The selectors of a request to a collection.
    pub(crate) fn selection(&self, request: &Request) -> Result<Selection, Response> {
        let is_selectable = |field: &str| self.is_selectable(&request.collection, field);
        Ok(Selection {
            labels: Selector::parse_labels(request.param("labelSelector"))?,
            fields: Selector::parse_fields(request.param("fieldSelector"), is_selectable)?,
        })
    }

    /// The objects that a request to a collection selects, in the order of pages.
    pub(crate) fn selected(&self, request: &Request) -> Result<Vec<Arc<Value>>, Response> {
        let selection = self.selection(request)?;
        let objects = self.under(&request.collection.prefix()).map(|(_, object)| object);
        Ok(objects.filter(|object| selection.matches(object)).cloned().collect())
    }

    /// Returns true if objects of the resource can be selected by this field. Built-in Kinds can be selected by any
    /// field, because their selectable fields are not known here. Other Kinds have the fields of all Kinds, and those
    /// that their CustomResourceDefinition names.
    fn is_selectable(&self, collection: &Collection, field: &str) -> bool {
        collection.is_built_in()
            || COMMON_FIELDS.contains(&field)
            || self.version_definition(collection).is_some_and(|version| {
                let mut paths = version["selectableFields"].as_array().into_iter().flatten();
                paths.any(|path| text(&path["jsonPath"]).trim_start_matches('.') == field)
            })
    }

    /// The stored CustomResourceDefinition of the collection.
    fn definition(&self, collection: &Collection) -> Option<&Value> {
        if collection.is_built_in() {
            return None;
        }
        let crds = Collection::of_kind::<CustomResourceDefinition>(None);
        self.get(&crds, &collection.full_resource()).map(|definition| &**definition)
    }

    /// The definition of the collection's version, from a stored CustomResourceDefinition.
    fn version_definition(&self, collection: &Collection) -> Option<&Value> {
        self.definition(collection)?["spec"]["versions"]
            .as_array()?
            .iter()
            .find(|version| version["name"] == *collection.version)
    }

    /// The schema of the collection's version, from a stored CustomResourceDefinition.
    pub(crate) fn schema(&self, collection: &Collection) -> Option<Schema> {
        Schema::of_version(self.version_definition(collection)?)
    }

    /// Stores the object under a new resourceVersion, or removes it if it is being deleted and has no finalizers left.
    pub(crate) fn store(
        &mut self,
        request: &Request,
        name: &str,
        mut object: Value,
        managed_fields: ManagedFields,
    ) -> Arc<Value> {
        if request.is_dry_run {
            return Arc::new(object);
        }
        if is_terminating(&object) && !has_finalizers(&object) {
            self.remove(&request.collection, name);
            return Arc::new(object);
        }
        let version = self.history.latest() + 1;
        metadata(&mut object).insert("resourceVersion".into(), json!(version.to_string()));
        self.record_kind(&request.collection, &object);
        let object = Arc::new(object);
        self.commit(request.collection.key(name), Some(Stored { object: object.clone(), managed_fields }));
        object
    }

    /// Removes the object and returns the resourceVersion of the deletion.
    pub(crate) fn remove(&mut self, collection: &Collection, name: &str) -> String {
        self.commit(collection.key(name), None);
        self.history.latest().to_string()
    }

    /// Stores or removes the object of this key, and records the change. All changes are made here.
    fn commit(&mut self, key: String, new: Option<Stored>) {
        let after = new.as_ref().map(|stored| stored.object.clone());
        let before = match new {
            Some(new) => self.stored.insert(key.clone(), new),
            None => self.stored.remove(&key),
        };
        let before = before.map(|stored| stored.object);
        self.garbage.observe(&key, before.as_deref(), after.as_deref());
        if before.is_some() && after.is_none() {
            self.identities.forget(&key);
        }
        if before.is_some() || after.is_some() {
            self.history.record(key, before, after);
        }
    }

    /// The Kind of the resource. `None` if no object of it was stored yet and its definition is not known.
    pub(crate) fn kind(&self, collection: &Collection) -> Option<String> {
        let is_same =
            |other: &Collection| (&other.group, &other.plural) == (&collection.group, &collection.plural);
        let stored = self.kinds.iter().find(|(_, other)| is_same(other)).map(|((_, kind), _)| kind.clone());
        stored.or_else(|| self.definition(collection)?["spec"]["names"]["kind"].as_str().map(str::to_owned))
    }

    fn record_kind(&mut self, collection: &Collection, object: &Value) {
        let kind = (text(&object["apiVersion"]), text(&object["kind"]));
        self.kinds.entry(kind).or_insert_with(|| Collection { namespace: None, ..collection.clone() });
    }

    /// Refuses malformed requests and those that this server does not support.
    fn check_supported(&self, request: &Request) -> Result<(), Response> {
        if let Some(rejection) = &request.rejection {
            return Err(rejection.clone());
        }
        let collection = &request.collection;
        let is_served = match request.subresource.as_deref() {
            None => return Ok(()),
            Some("status") => return if collection.has_status() { Ok(()) } else { Err(no_such_resource()) },
            Some("approval") => collection.full_resource() == CERTIFICATE_REQUESTS,
            Some("scale") => self.scale_fields(collection).is_some(),
            Some(other) => {
                return Err(not_supported(&format!("the subresource {}/{other}", collection.plural)));
            }
        };
        match request.verb {
            _ if !is_served => Err(no_such_resource()),
            verbs::GET | verbs::UPDATE | verbs::PATCH => Ok(()),
            _ => Err(method_not_allowed()),
        }
    }
}
