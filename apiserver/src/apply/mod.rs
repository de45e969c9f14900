//! Field ownership, as the API server keeps it in `managedFields`.

mod fieldpath;

use std::collections::{BTreeMap, BTreeSet};

use http::StatusCode;
use serde_json::{Map, Value, json};

use self::fieldpath::{Path, Strategies, format_path};
use crate::{
    collection::{Collection, is_among},
    request::Request,
    response::{Response, failure, with_details},
    schema::Schema,
};

/// The metadata fields that no manager owns.
const UNMANAGED_FIELDS: &str = "name generateName namespace uid creationTimestamp deletionTimestamp \
    deletionGracePeriodSeconds generation managedFields resourceVersion selfLink";

/// The manager that a request writes as, and the part of the object that it can own.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    manager: Manager,
    strategies: Strategies,
    has_status: bool,
}

/// An owner of fields: an entry of `managedFields`. The fields that a manager applies are separate from those that it
/// changes in other ways.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Manager {
    name: String,
    is_apply: bool,
    subresource: Option<String>,
    api_version: String,
}

impl Writer {
    /// The writer of a request, with the schema of its Kind if it is known.
    pub(crate) fn of(request: &Request, schema: Option<Schema>) -> Self {
        let (is_apply, subresource) = (request.is_apply(), request.subresource.clone());
        Self::new(&request.collection, schema, request.field_manager(), is_apply, subresource)
    }

    fn new(
        collection: &Collection,
        schema: Option<Schema>,
        name: &str,
        is_apply: bool,
        subresource: Option<String>,
    ) -> Self {
        let manager =
            Manager { name: name.into(), is_apply, subresource, api_version: collection.api_version() };
        let strategies = match schema {
            Some(schema) => Strategies::Declared(schema),
            None if collection.is_built_in() => Strategies::BuiltIn,
            None => Strategies::Unknown,
        };
        Self { manager, strategies, has_status: collection.has_status() }
    }

    /// The part of the object that this writer can own.
    fn ownable_part(&self, object: &Value) -> Value {
        let mut fields = object.as_object().cloned().unwrap_or_default();
        let is_status = matches!(self.manager.subresource.as_deref(), Some("status" | "approval"));
        fields.retain(|name, _| match name.as_str() {
            "apiVersion" | "kind" => false,
            "status" => is_status || !self.has_status,
            _ => !is_status,
        });
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.retain(|name, _| !is_among(name, UNMANAGED_FIELDS));
        }
        if fields.get("metadata").is_some_and(|metadata| *metadata == json!({})) {
            fields.remove("metadata");
        }
        Value::Object(fields)
    }
}

/// The fields that each manager owns. A field without an owner belongs to the first manager that applies it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ManagedFields(BTreeMap<Manager, BTreeSet<Path>>);

/// A field that the writer applies and that this other manager owns with another value.
type Conflict = (Manager, Path);

impl ManagedFields {
    /// The managed fields of an object that this manager applied.
    pub(crate) fn of_applied(
        collection: &Collection,
        schema: Option<Schema>,
        manager: &str,
        object: &Value,
    ) -> Self {
        let writer = Writer::new(collection, schema, manager, true, None);
        let fields = writer.strategies.leaves(&writer.ownable_part(object));
        Self(BTreeMap::from([(writer.manager, fields.into_keys().collect())]))
    }

    /// Makes the writer the only owner of the fields that it changed.
    pub(crate) fn after_update(mut self, writer: &Writer, old: &Value, new: &Value) -> Self {
        let [before, after] = [old, new].map(|object| writer.strategies.leaves(&writer.ownable_part(object)));
        let changed = after.iter().filter(|(path, value)| before.get(*path) != Some(value));
        let changed: BTreeSet<_> = changed.map(|(path, _)| path.clone()).collect();
        let removed = before.keys().filter(|path| !after.contains_key(*path));
        self.disown(&changed.iter().chain(removed).cloned().collect());
        if !changed.is_empty() {
            self.0.entry(writer.manager.clone()).or_default().extend(changed);
        }
        self
    }

    /// Merges the applied configuration into the live object. Returns the merged object and its managed fields. Fields
    /// that the writer applied before and does not apply now are removed, unless another manager owns them.
    pub(crate) fn after_apply(
        mut self,
        writer: &Writer,
        live: &Value,
        configuration: &Value,
        force: bool,
    ) -> Result<(Value, Self), Response> {
        let (strategies, applied) = (&writer.strategies, writer.ownable_part(configuration));
        let fields = strategies.leaves(&applied);
        let applied_before = self.0.remove(&writer.manager).unwrap_or_default();
        let conflicts = self.conflicts(&strategies.leaves(live), &fields);
        if !conflicts.is_empty() && !force {
            return Err(apply_conflict(&conflicts));
        }
        self.disown(&conflicts.into_iter().map(|(_, path)| path).collect());
        let mut new = if live.is_null() { configuration.clone() } else { live.clone() };
        strategies.merge(&mut new, &applied);
        let without_owner = applied_before.iter().filter(|path| !self.has_owner_within(path));
        without_owner
            .filter(|path| !fields.keys().any(|field| field.starts_with(path)))
            .for_each(|path| strategies.remove(&mut new, path));
        if !fields.is_empty() {
            self.0.insert(writer.manager.clone(), fields.into_keys().collect());
        }
        Ok((new, self))
    }

    fn conflicts(&self, live: &BTreeMap<Path, Value>, fields: &BTreeMap<Path, Value>) -> Vec<Conflict> {
        let owned = self.0.iter().flat_map(|(manager, owned)| owned.iter().map(move |path| (manager, path)));
        let differs = |path| fields.contains_key(path) && fields.get(path) != live.get(path);
        owned
            .filter(|(_, path)| differs(*path))
            .map(|(manager, path)| (manager.clone(), path.clone()))
            .collect()
    }

    /// Returns true if a manager owns the field at the path or a field below it.
    fn has_owner_within(&self, path: &Path) -> bool {
        self.0.values().flatten().any(|owned| owned.starts_with(path))
    }

    /// Removes these fields from all managers.
    fn disown(&mut self, paths: &BTreeSet<Path>) {
        self.0.values_mut().for_each(|owned| owned.retain(|path| !paths.contains(path)));
        self.0.retain(|_, owned| !owned.is_empty());
    }
}

/// The response to an apply request that conflicts with other managers.
fn apply_conflict(conflicts: &[Conflict]) -> Response {
    let described = |manager: &Manager| {
        let using = if manager.is_apply { String::new() } else { format!(" using {}", manager.api_version) };
        let subresource = manager.subresource.as_ref();
        let subresource = subresource.map(|name| format!(" with subresource {name:?}")).unwrap_or_default();
        format!("{:?}{subresource}{using}", manager.name)
    };
    let cause = |(manager, path): &Conflict| {
        let message = format!("conflict with {}", described(manager));
        json!({ "reason": "FieldManagerConflict", "message": message, "field": format_path(path) })
    };
    let message = match conflicts {
        [(manager, path)] => {
            format!(
                "Apply failed with 1 conflict: conflict with {}: {}",
                described(manager),
                format_path(path)
            )
        }
        many => {
            let mut by_manager = BTreeMap::<_, String>::new();
            for (manager, path) in many {
                by_manager.entry(manager).or_default().push_str(&format!("\n- {}", format_path(path)));
            }
            let groups = by_manager
                .iter()
                .map(|(manager, paths)| format!("conflicts with {}:{paths}", described(manager)));
            let groups = groups.collect::<Vec<_>>().join("\n");
            format!("Apply failed with {} conflicts: {groups}", many.len())
        }
    };
    let details = Map::from_iter([("causes".to_owned(), conflicts.iter().map(cause).collect())]);
    with_details(failure(StatusCode::CONFLICT, "Conflict", &message), Value::Object(details))
}
