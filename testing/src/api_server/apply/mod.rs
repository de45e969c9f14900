//! The ownership of fields in server-side apply.

mod fieldpath;

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use serde_json::{Map, Value, json};

use self::fieldpath::{Path, Shape, shown};
use super::{
    answer::{Answer, failure, with_details},
    place::{Place, is_among},
    request::Request,
};

/// The metadata fields that no manager owns.
const OWNERLESS: &str = "name generateName namespace uid creationTimestamp deletionTimestamp \
    deletionGracePeriodSeconds generation managedFields resourceVersion selfLink";

/// The field manager of a request, and the part of the object that it can own.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    as_who: Who,
    shape: Shape,
    has_status: bool,
}

/// An owner of fields. The fields that a manager applies are separate from those that it changes in other ways.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Who {
    manager: String,
    applies: bool,
    status: bool,
    version: String,
}

impl Writer {
    pub(super) fn of(request: &Request) -> Self {
        let (applies, status) = (request.applies(), request.subresource.is_some());
        Self::new(&request.place, request.manager(), applies, status)
    }

    fn new(place: &Place, manager: &str, applies: bool, status: bool) -> Self {
        let version = place.api_version();
        let as_who = Who { manager: manager.into(), applies, status, version };
        Self { as_who, shape: Shape { built_in: place.is_built_in() }, has_status: place.has_status() }
    }

    /// The part of the object that this writer can own.
    fn part(&self, object: &Value) -> Value {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        fields.retain(|name, _| match name.as_str() {
            "apiVersion" | "kind" => false,
            "status" => self.as_who.status || !self.has_status,
            _ => !self.as_who.status,
        });
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.retain(|name, _| !is_among(name, OWNERLESS));
        }
        if fields.get("metadata").is_some_and(|metadata| *metadata == json!({})) {
            fields.remove("metadata");
        }
        Value::Object(fields)
    }
}

/// The owners of an object's fields. A field without an owner belongs to the first manager that applies it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Owners(BTreeMap<Who, BTreeSet<Path>>);

/// A field that one manager applies and that another manager owns with another value.
type Conflict = (Who, Path);

impl Owners {
    /// The owners of an object that this manager applied.
    pub(super) fn of_applied(place: &Place, manager: &str, object: &Value) -> Self {
        let writer = Writer::new(place, manager, true, false);
        let fields = writer.shape.leaves(&writer.part(object));
        Self(BTreeMap::from([(writer.as_who, fields.into_keys().collect())]))
    }

    /// Makes the writer the only owner of the fields that it changed.
    pub(super) fn after_update(mut self, writer: &Writer, old: &Value, new: &Value) -> Self {
        let [before, after] = [old, new].map(|object| writer.shape.leaves(&writer.part(object)));
        let changed = after.iter().filter(|(path, value)| before.get(*path) != Some(value));
        let changed: BTreeSet<_> = changed.map(|(path, _)| path.clone()).collect();
        let gone = before.keys().filter(|path| !after.contains_key(*path));
        self.release(&changed.iter().chain(gone).cloned().collect());
        if !changed.is_empty() {
            self.0.entry(writer.as_who.clone()).or_default().extend(changed);
        }
        self
    }

    /// Returns the object with the applied fields, without the fields that the writer applied before and does not apply
    /// now, and the owners after that.
    pub(super) fn after_apply(
        mut self,
        writer: &Writer,
        live: &Value,
        sent: &Value,
        force: bool,
    ) -> Result<(Value, Self), Answer> {
        let (shape, applied) = (writer.shape, writer.part(sent));
        let fields = shape.leaves(&applied);
        let before = self.0.remove(&writer.as_who).unwrap_or_default();
        let conflicts = self.conflicts(&shape.leaves(live), &fields);
        if !conflicts.is_empty() && !force {
            return Err(refused(&conflicts));
        }
        self.release(&conflicts.into_iter().map(|(_, path)| path).collect());
        let mut new = if live.is_null() { sent.clone() } else { live.clone() };
        shape.merge(&mut new, &applied);
        let gone = before.iter().filter(|path| !self.owns_within(path));
        gone.filter(|path| !fields.keys().any(|field| field.starts_with(path)))
            .for_each(|path| shape.remove(&mut new, path));
        if !fields.is_empty() {
            self.0.insert(writer.as_who.clone(), fields.into_keys().collect());
        }
        Ok((new, self))
    }

    fn conflicts(&self, live: &BTreeMap<Path, Value>, fields: &BTreeMap<Path, Value>) -> Vec<Conflict> {
        let owned = self.0.iter().flat_map(|(who, owned)| owned.iter().map(move |path| (who, path)));
        let differs = |path| fields.contains_key(path) && fields.get(path) != live.get(path);
        owned.filter(|(_, path)| differs(*path)).map(|(who, path)| (who.clone(), path.clone())).collect()
    }

    fn owns_within(&self, path: &Path) -> bool {
        self.0.values().flatten().any(|owned| owned.starts_with(path))
    }

    fn release(&mut self, paths: &BTreeSet<Path>) {
        self.0.values_mut().for_each(|owned| owned.retain(|path| !paths.contains(path)));
        self.0.retain(|_, owned| !owned.is_empty());
    }
}

fn refused(conflicts: &[Conflict]) -> Answer {
    let with = |who: &Who| {
        let using = if who.applies { String::new() } else { format!(" using {}", who.version) };
        let part = if who.status { " with subresource \"status\"" } else { "" };
        format!("{:?}{part}{using}", who.manager)
    };
    let cause = |(who, path): &Conflict| {
        let message = format!("conflict with {}", with(who));
        json!({ "reason": "FieldManagerConflict", "message": message, "field": shown(path) })
    };
    let message = match conflicts {
        [(who, path)] => {
            format!("Apply failed with 1 conflict: conflict with {}: {}", with(who), shown(path))
        }
        many => {
            let mut by_owner = BTreeMap::<_, String>::new();
            for (who, path) in many {
                by_owner.entry(who).or_default().push_str(&format!("\n- {}", shown(path)));
            }
            let groups = by_owner.iter().map(|(who, paths)| format!("conflicts with {}:{paths}", with(who)));
            let groups = groups.collect::<Vec<_>>().join("\n");
            format!("Apply failed with {} conflicts: {groups}", many.len())
        }
    };
    let details = Map::from_iter([("causes".to_owned(), conflicts.iter().map(cause).collect())]);
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), Value::Object(details))
}
