//! The objects that the server stores.

mod change;
mod checks;
mod create;
mod delete;

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::discovery::verbs;
use serde_json::{Value, json};

use crate::{
    apply::ManagedFields,
    collection::Collection,
    object::{has_finalizers, metadata, text},
    request::Request,
    response::{Response, no_such_resource, not_found, not_supported},
    schema::Schema,
    selector::Selector,
};

/// The resourceVersions of changes start above this number, so that they are higher than the versions of objects that a
/// test adds.
const BASE_VERSION: u64 = 1000;

/// The fields by which objects of every Kind can be selected.
const COMMON_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

#[derive(Clone, Default)]
pub(crate) struct Objects {
    stored: BTreeMap<ObjectKey, Stored>,
    /// The number of changes of each resource: resourceVersions of different resources are not comparable.
    changes: BTreeMap<String, u64>,
    /// The last number that was used in a uid or a generated name: see [`next_number`](Self::next_number).
    last_number: u64,
    /// The Kind of each resource of which an object has been stored.
    kinds: BTreeMap<String, String>,
}

/// The collection and the name of an object.
type ObjectKey = (Collection, String);

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stored {
    pub(crate) object: Value,
    pub(crate) managed_fields: ManagedFields,
}

impl Objects {
    pub(crate) fn get(&self, collection: &Collection, name: &str) -> Option<&Value> {
        self.stored.get(&object_key(collection, name)).map(|stored| &stored.object)
    }

    /// Returns the collection of a stored object of this Kind.
    pub(crate) fn collection_of(&self, api_version: &Value, kind: &Value) -> Option<&Collection> {
        let is_of_kind = |object: &Value| object["apiVersion"] == *api_version && object["kind"] == *kind;
        let found = self.stored.iter().find(|(_, stored)| is_of_kind(&stored.object));
        found.map(|((collection, _), _)| collection)
    }

    /// Stores an object as it is. Its resourceVersion is 1 unless it has one.
    pub(crate) fn insert(
        &mut self,
        collection: &Collection,
        mut object: Value,
        managed_fields: ManagedFields,
    ) -> Value {
        metadata(&mut object).entry("resourceVersion").or_insert_with(|| json!("1"));
        self.record_kind(collection, &object);
        self.raise_version(collection, &object);
        let name = text(&object["metadata"]["name"]);
        let stored = Stored { object: object.clone(), managed_fields };
        self.stored.insert(object_key(collection, &name), stored);
        object
    }

    /// Handles a request. Both `Ok` and `Err` contain the response.
    pub(crate) fn handle(&mut self, request: &Request) -> Result<Response, Response> {
        if let Some(rejection) = &request.rejection {
            return Err(rejection.clone());
        }
        match request.subresource.as_deref() {
            Some("status") if !request.collection.has_status() => return Err(no_such_resource()),
            None | Some("status") => {}
            Some(other) => {
                return Err(not_supported(&format!("the subresource {}/{other}", request.collection.plural)));
            }
        }
        if request.verb == verbs::WATCH {
            return Err(not_supported(&format!("watching {}", request.collection.plural)));
        }
        let Some(name) = request.name.as_deref() else {
            return match request.verb {
                verbs::CREATE => self.create(request),
                verbs::DELETE_COLLECTION => self.delete_collection(request),
                _ => self.list(request),
            };
        };
        let Some(old) = self.stored.get(&object_key(&request.collection, name)).cloned() else {
            return match request.is_apply() && request.subresource.is_none() {
                true => self.create_by_apply(request, name),
                false => Err(not_found(&request.collection, name)),
            };
        };
        match request.verb {
            verbs::GET => Ok((StatusCode::OK, old.object)),
            verbs::DELETE => self.delete(request, name, old),
            _ => self.change(request, name, old),
        }
    }

    fn list(&self, request: &Request) -> Result<Response, Response> {
        let selected = self.selected(request)?;
        let after = request.param("continue");
        let rest: Vec<_> = selected.iter().filter(|(key, _)| *after < *continue_token(key)).collect();
        let limit = request.param("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let page = &rest[..limit.min(rest.len())];
        let remaining = rest.len() - page.len();

        let mut metadata = json!({ "resourceVersion": self.latest_version(&request.collection).to_string() });
        if !request.collection.is_built_in() {
            metadata["continue"] = json!("");
        }
        if let (Some((key, _)), true) = (page.last(), remaining > 0) {
            metadata["continue"] = json!(continue_token(key));
            if request.param("labelSelector").is_empty() && request.param("fieldSelector").is_empty() {
                metadata["remainingItemCount"] = json!(remaining);
            }
        }
        let items = page.iter().map(|(_, object)| object.clone()).collect();
        Ok((StatusCode::OK, self.as_list(&request.collection, metadata, items)))
    }

    /// The objects that a request to a collection selects, in the order of pages.
    pub(crate) fn selected(&self, request: &Request) -> Result<Vec<(ObjectKey, Value)>, Response> {
        let labels = Selector::parse_labels(request.param("labelSelector"))?;
        let is_selectable = |field: &str| self.is_selectable(&request.collection, field);
        let fields = Selector::parse_fields(request.param("fieldSelector"), is_selectable)?;
        let is_selected = |(collection, _): &ObjectKey, object: &Value| {
            request.collection.contains(collection)
                && labels.matches_labels(object)
                && fields.matches_fields(object)
        };
        let selected = self.stored.iter().filter(|(key, stored)| is_selected(key, &stored.object));
        let mut objects: Vec<_> =
            selected.map(|(key, stored)| (key.clone(), stored.object.clone())).collect();
        objects.sort_by_cached_key(|(key, _)| continue_token(key));
        Ok(objects)
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

    /// The definition of the collection's version, from a stored CustomResourceDefinition.
    fn version_definition(&self, collection: &Collection) -> Option<&Value> {
        let crds = Collection::of_kind::<CustomResourceDefinition>(None);
        let definition = self.get(&crds, &collection.full_resource())?;
        definition["spec"]["versions"]
            .as_array()?
            .iter()
            .find(|version| version["name"] == *collection.version)
    }

    /// The schema of the collection's version, from a stored CustomResourceDefinition.
    pub(crate) fn schema(&self, collection: &Collection) -> Option<Schema> {
        Schema::of_version(self.version_definition(collection)?)
    }

    /// Returns the response to a list request, with this list metadata.
    pub(crate) fn as_list(&self, collection: &Collection, metadata: Value, mut items: Vec<Value>) -> Value {
        if collection.is_built_in() {
            items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
                item.remove("apiVersion");
                item.remove("kind");
            });
        }
        let kind = format!("{}List", self.kind(collection).unwrap_or_default());
        json!({ "kind": kind, "apiVersion": collection.api_version(), "metadata": metadata, "items": items })
    }

    /// Stores the object under a new resourceVersion, or removes it if it is being deleted and has no finalizers left.
    pub(crate) fn store(&mut self, request: &Request, name: &str, mut new: Stored) -> Value {
        let is_removed =
            !new.object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new.object);
        if request.is_dry_run() {
            return new.object;
        }
        *self.changes.entry(request.collection.full_resource()).or_default() += 1;
        let key = object_key(&request.collection, name);
        if is_removed {
            self.stored.remove(&key);
            return new.object;
        }
        metadata(&mut new.object)
            .insert("resourceVersion".into(), json!(self.latest_version(&request.collection).to_string()));
        self.record_kind(&request.collection, &new.object);
        self.stored.insert(key, new.clone());
        new.object
    }

    /// Removes the object and returns the resourceVersion of the deletion.
    pub(crate) fn remove(&mut self, collection: &Collection, name: &str) -> String {
        *self.changes.entry(collection.full_resource()).or_default() += 1;
        self.stored.remove(&object_key(collection, name));
        self.latest_version(collection).to_string()
    }

    /// Returns a number for a uid or a generated name. No other call returns it.
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// The Kind of the resource, or `None` if no object of it was stored yet.
    pub(crate) fn kind(&self, collection: &Collection) -> Option<String> {
        self.kinds.get(&collection.full_resource()).cloned()
    }

    fn record_kind(&mut self, collection: &Collection, object: &Value) {
        if let Some(kind) = object["kind"].as_str() {
            self.kinds.insert(collection.full_resource(), kind.into());
        }
    }

    /// Raises the number of changes if a test adds an object with a higher resourceVersion, such as one that was copied
    /// from a cluster, so that the next version is higher than that.
    fn raise_version(&mut self, collection: &Collection, object: &Value) {
        let version: Option<u64> = text(&object["metadata"]["resourceVersion"]).parse().ok();
        let changes = self.changes.entry(collection.full_resource()).or_default();
        *changes = version.map_or(*changes, |version| version.saturating_sub(BASE_VERSION).max(*changes));
    }

    /// The resourceVersion of the latest change to the resource.
    fn latest_version(&self, collection: &Collection) -> u64 {
        BASE_VERSION + self.changes.get(&collection.full_resource()).copied().unwrap_or_default()
    }
}

fn object_key(collection: &Collection, name: &str) -> ObjectKey {
    (collection.clone(), name.to_owned())
}

/// The continue token of an object. Lists are ordered by it, as in etcd: `a-b/x` comes before `a/x`.
fn continue_token((collection, name): &ObjectKey) -> String {
    format!("{}/{name}", collection.namespace.as_deref().unwrap_or_default())
}
