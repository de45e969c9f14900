//! Who owns which field of an object, as server-side apply has it.

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, failure, with_details},
    fieldpath::{Path, Shape, shown},
    place::Place,
    request::Request,
};

/// What no manager owns.
const OWNERLESS: [&str; 11] = [
    "name",
    "generateName",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
];

/// Who writes, and what of the object that can be.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    as_who: Who,
    shape: Shape,
    has_status: bool,
}

/// A field manager's applied fields are apart from those that it changed otherwise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Who {
    manager: String,
    applies: bool,
    status: bool,
    version: String,
}

impl Writer {
    pub(super) fn of(request: &Request) -> Self {
        let as_who = Who {
            manager: request.manager().into(),
            applies: request.applies(),
            status: request.subresource.is_some(),
            version: request.place.api_version().into(),
        };
        let shape = Shape { built_in: request.place.is_built_in() };
        Self { as_who, shape, has_status: request.place.has_status() }
    }

    fn applying(place: &Place, manager: &str) -> Self {
        let as_who = Who {
            manager: manager.into(),
            applies: true,
            status: false,
            version: place.api_version().into(),
        };
        Self { as_who, shape: Shape { built_in: place.is_built_in() }, has_status: place.has_status() }
    }

    /// What of it can be owned and is this writer's to write.
    fn part(&self, object: &Value) -> Value {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        fields.retain(|name, _| match name.as_str() {
            "apiVersion" | "kind" => false,
            "status" => self.as_who.status || !self.has_status,
            _ => !self.as_who.status,
        });
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.retain(|name, _| !OWNERLESS.contains(&name.as_str()));
        }
        if fields.get("metadata").is_some_and(|metadata| *metadata == json!({})) {
            fields.remove("metadata");
        }
        Value::Object(fields)
    }
}

/// The owners of an object's fields. A field that nobody owns is whose who applies it first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Owners(BTreeMap<Who, BTreeSet<Path>>);

/// A field that one manager applies and another owns with another value.
type Conflict = (Who, Path);

impl Owners {
    /// Of an object that this manager applied.
    pub(super) fn of_applied(place: &Place, manager: &str, object: &Value) -> Self {
        let writer = Writer::applying(place, manager);
        let fields = writer.shape.leaves(&writer.part(object));
        Self(BTreeMap::from([(writer.as_who, fields)]))
    }

    /// What is changed becomes the writer's, and nobody else's.
    pub(super) fn after_update(mut self, writer: &Writer, old: &Value, new: &Value) -> Self {
        let (old, new, shape) = (writer.part(old), writer.part(new), writer.shape);
        let (before, after) = (shape.leaves(&old), shape.leaves(&new));
        let changed: BTreeSet<_> =
            after.iter().filter(|path| shape.get(&old, path) != shape.get(&new, path)).cloned().collect();
        let gone = before.difference(&after);
        self.release(&changed.iter().chain(gone).cloned().collect());
        if !changed.is_empty() {
            self.0.entry(writer.as_who.clone()).or_default().extend(changed);
        }
        self
    }

    /// The object with the applied fields, without those that the writer applied before and does not now, and its
    /// owners then.
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
        let conflicts = self.conflicts(shape, live, &applied, &fields);
        if !conflicts.is_empty() && !force {
            return Err(refused(&conflicts));
        }
        self.release(&conflicts.into_iter().map(|(_, path)| path).collect());
        let mut new = if live.is_null() { sent.clone() } else { shape.merged(live, &applied) };
        let gone = before.difference(&fields).filter(|path| !self.owns_within(path));
        gone.filter(|path| !fields.iter().any(|field| field.starts_with(path)))
            .for_each(|path| shape.remove(&mut new, path));
        if !fields.is_empty() {
            self.0.insert(writer.as_who.clone(), fields);
        }
        Ok((new, self))
    }

    fn conflicts(
        &self,
        shape: Shape,
        live: &Value,
        applied: &Value,
        fields: &BTreeSet<Path>,
    ) -> Vec<Conflict> {
        let of_one = |(who, owned): (&Who, &BTreeSet<Path>)| {
            let differ =
                owned.intersection(fields).filter(|path| shape.get(live, path) != shape.get(applied, path));
            differ.map(|path| (who.clone(), path.clone())).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_one).collect()
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
            let mut lines = vec![format!("Apply failed with {} conflicts: ", many.len())];
            let mut by_owner = BTreeMap::<_, Vec<String>>::new();
            many.iter()
                .for_each(|(who, path)| by_owner.entry(who).or_default().push(format!("- {}", shown(path))));
            for (n, (who, paths)) in by_owner.into_iter().enumerate() {
                let title = format!("conflicts with {}:", with(who));
                match (n, lines.first_mut()) {
                    (0, Some(first)) => first.push_str(&title),
                    _ => lines.push(title),
                }
                lines.extend(paths);
            }
            lines.join("\n")
        }
    };
    let details = Map::from_iter([("causes".to_owned(), conflicts.iter().map(cause).collect())]);
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), Value::Object(details))
}
