//! The objects that the server stores.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::{
    answer::{Answer, no_such_resource, not_found, not_supported},
    apply::Owners,
    metadata,
    place::Place,
    request::Request,
    selector::Selector,
    write::Verb,
};

/// The first resourceVersion of changes. It is higher than those of objects that a test adds.
const GIVEN: u64 = 1000;

/// The fields that objects of every Kind can be selected by.
const EVERYWHERE: [&str; 2] = ["metadata.name", "metadata.namespace"];

#[derive(Clone, Default)]
pub(super) struct Objects {
    held: BTreeMap<Slot, Held>,
    /// The number of changes of each resource: resourceVersions of different resources are not comparable.
    changes: BTreeMap<String, u64>,
    created: u64,
    /// The Kinds of the resources that objects have been seen of.
    kinds: BTreeMap<String, String>,
}

type Slot = (Place, String);

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Held {
    pub(super) object: Value,
    pub(super) owners: Owners,
}

impl Objects {
    pub(super) fn get(&self, place: &Place, name: &str) -> Option<&Value> {
        self.held.get(&slot(place, name)).map(|held| &held.object)
    }

    /// Stores an object as it is. Its resourceVersion is 1 unless it has one.
    pub(super) fn hold(&mut self, place: &Place, mut object: Value, owners: Owners) -> Value {
        metadata(&mut object).entry("resourceVersion").or_insert_with(|| json!("1"));
        self.learn(place, &object);
        let name = text(&object["metadata"]["name"]);
        self.held.insert(slot(place, &name), Held { object: object.clone(), owners });
        object
    }

    pub(super) fn answer(&mut self, request: &Request) -> Result<Answer, Answer> {
        if let Some(refusal) = &request.refused {
            return Err(refusal.clone());
        }
        match request.subresource.as_deref() {
            Some("status") if !request.place.has_status() => return Err(no_such_resource()),
            None | Some("status") => {}
            Some(other) => {
                return Err(not_supported(&format!("the subresource {}/{other}", request.place.plural)));
            }
        }
        let Some(name) = request.name.as_deref() else {
            return match request.verb {
                Verb::Create => self.create(request),
                Verb::DeleteCollection => self.delete_collection(request),
                _ => self.list(request),
            };
        };
        let Some(old) = self.held.get(&slot(&request.place, name)).cloned() else {
            return match request.applies() && request.subresource.is_none() {
                true => self.apply_anew(request, name),
                false => Err(not_found(request, name)),
            };
        };
        match request.verb {
            Verb::Get => Ok((StatusCode::OK, old.object)),
            Verb::Delete => self.delete(request, name, old),
            _ => self.change(request, name, old),
        }
    }

    fn list(&self, request: &Request) -> Result<Answer, Answer> {
        let found = self.selected(request)?;
        let after = request.asked("continue");
        let rest: Vec<_> = found.iter().filter(|(slot, _)| *after < *token(slot)).collect();
        let limit = request.asked("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
        let page = &rest[..limit.min(rest.len())];
        let left = rest.len() - page.len();

        let mut fields = json!({ "resourceVersion": self.version(&request.place).to_string() });
        if !request.place.is_built_in() {
            fields["continue"] = json!("");
        }
        if let (Some((slot, _)), true) = (page.last(), left > 0) {
            fields["continue"] = json!(token(slot));
            if request.asked("labelSelector").is_empty() && request.asked("fieldSelector").is_empty() {
                fields["remainingItemCount"] = json!(left);
            }
        }
        let items = page.iter().map(|(_, object)| object.clone()).collect();
        Ok((StatusCode::OK, self.as_list(&request.place, fields, items)))
    }

    /// The objects that a request to a collection selects, in the order of pages.
    pub(super) fn selected(&self, request: &Request) -> Result<Vec<(Slot, Value)>, Answer> {
        let labels = Selector::of_labels(request.asked("labelSelector"))?;
        let is_selectable = |field: &str| self.is_selectable(&request.place, field);
        let fields = Selector::of_fields(request.asked("fieldSelector"), is_selectable)?;
        let selected = |(place, _): &Slot, object: &Value| {
            request.place.contains(place) && labels.matches_labels(object) && fields.matches_fields(object)
        };
        let held = self.held.iter().filter(|(slot, held)| selected(slot, &held.object));
        let mut found: Vec<_> = held.map(|(slot, held)| (slot.clone(), held.object.clone())).collect();
        found.sort_by_cached_key(|(slot, _)| token(slot));
        Ok(found)
    }

    /// Returns true if the resource supports this field selector. The selectable fields of built-in Kinds are not known
    /// here, so every field of these is accepted. Other Kinds have the fields that their definition names, and those of
    /// all Kinds.
    fn is_selectable(&self, place: &Place, field: &str) -> bool {
        place.is_built_in()
            || EVERYWHERE.contains(&field)
            || self.defined_version(place).is_some_and(|version| {
                let mut paths = version["selectableFields"].as_array().into_iter().flatten();
                paths.any(|path| text(&path["jsonPath"]).trim_start_matches('.') == field)
            })
    }

    /// The definition of this version, from a stored CustomResourceDefinition.
    fn defined_version(&self, place: &Place) -> Option<&Value> {
        let definitions = Place::of_kind::<CustomResourceDefinition>(None);
        let definition = self.get(&definitions, &place.full_resource())?;
        definition["spec"]["versions"].as_array()?.iter().find(|version| version["name"] == *place.version)
    }

    pub(super) fn as_list(&self, place: &Place, fields: Value, mut items: Vec<Value>) -> Value {
        if place.is_built_in() {
            items.iter_mut().filter_map(Value::as_object_mut).for_each(|item| {
                item.remove("apiVersion");
                item.remove("kind");
            });
        }
        let kind = format!("{}List", self.kind(place).unwrap_or_default());
        json!({ "kind": kind, "apiVersion": place.api_version(), "metadata": fields, "items": items })
    }

    /// Stores the object under a new resourceVersion, or removes it if it is being deleted and has no finalizers left.
    pub(super) fn store(&mut self, request: &Request, name: &str, mut new: Held) -> Value {
        let goes = !new.object["metadata"]["deletionTimestamp"].is_null() && !has_finalizers(&new.object);
        if request.is_dry() {
            return new.object;
        }
        *self.changes.entry(request.place.full_resource()).or_default() += 1;
        let slot = slot(&request.place, name);
        if goes {
            self.held.remove(&slot);
            return new.object;
        }
        metadata(&mut new.object)
            .insert("resourceVersion".into(), json!(self.version(&request.place).to_string()));
        self.learn(&request.place, &new.object);
        self.held.insert(slot, new.clone());
        new.object
    }

    /// Removes the object and returns the resourceVersion of the deletion.
    pub(super) fn remove(&mut self, place: &Place, name: &str) -> String {
        *self.changes.entry(place.full_resource()).or_default() += 1;
        self.held.remove(&slot(place, name));
        self.version(place).to_string()
    }

    /// Returns a number that is used once.
    pub(super) fn next(&mut self) -> u64 {
        self.created += 1;
        self.created
    }

    /// The Kind of the resource, or `None` if no object of it was seen yet.
    pub(super) fn kind(&self, place: &Place) -> Option<String> {
        self.kinds.get(&place.full_resource()).cloned()
    }

    fn learn(&mut self, place: &Place, object: &Value) {
        if let Some(kind) = object["kind"].as_str() {
            self.kinds.insert(place.full_resource(), kind.into());
        }
    }

    /// The resourceVersion of the latest change.
    fn version(&self, place: &Place) -> u64 {
        GIVEN + self.changes.get(&place.full_resource()).copied().unwrap_or_default()
    }
}

pub(super) fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| !all.is_empty())
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn slot(place: &Place, name: &str) -> Slot {
    (place.clone(), name.to_owned())
}

/// The continue token of an object. Lists are ordered by it, as in etcd: `a-b/x` comes before `a/x`.
fn token((place, name): &Slot) -> String {
    format!("{}/{name}", place.namespace.as_deref().unwrap_or_default())
}
