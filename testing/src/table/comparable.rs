//! The effects of a reconcile, in the form in which they are compared.

use std::collections::BTreeSet;

use kube::discovery::verbs;
use reknit_apis::Key;
use reknit_reconciler::{Event, Outcome, Result};
use serde_json::{Map, Value, json};
use similar::TextDiff;

use crate::Write;

/// The outcome, the writes and the events of a reconcile.
#[derive(Clone, Debug, Default)]
pub(super) struct ComparableEffects {
    /// The outcome, or the kind and the message of the error.
    outcome: String,
    pub(super) writes: Vec<WriteEffect>,
    pub(super) events: Vec<Event>,
    /// JSON pointers to the fields that are not compared.
    pub(super) ignored: Vec<String>,
}

/// The metadata fields that the API server sets, without the preconditions `resourceVersion` and `uid`.
const SERVER_SET_FIELDS: [&str; 4] =
    ["creationTimestamp", "deletionTimestamp", "generation", "managedFields"];

/// The annotation in which an applied child keeps a hash of its applied fields.
const HASH_ANNOTATION: &str = "reknit.dev/applied";

/// The parts of one write that are compared.
#[derive(Clone, Debug)]
pub(super) struct WriteEffect {
    /// The verb and the object.
    title: String,
    /// The options of the request, for example `dryRun=All`.
    pub(super) options: BTreeSet<String>,
    /// The JSON pointer to the part of the object that the body contains: empty for the whole object, or `/status`.
    part: &'static str,
    body: Value,
}

impl ComparableEffects {
    pub(super) fn of_result(result: &Result<Outcome>) -> Self {
        match result {
            Ok(outcome) => Self { outcome: outcome.to_string(), ..Self::default() },
            Err(error) => Self::of_error(&error.in_full(), error.is_permanent()),
        }
    }

    pub(super) fn of_error(message: &str, is_permanent: bool) -> Self {
        let kind = if is_permanent { "permanent error" } else { "error" };
        Self { outcome: format!("{kind}: {message}"), ..Self::default() }
    }

    /// Returns the diff from the expected effects to these, or `None` if there is no difference. An actual error
    /// message only has to contain the expected one.
    pub(super) fn difference(&self, expected: &Self) -> Option<String> {
        let mut expected = expected.without_fields(&expected.ignored);
        let actual = self.without_fields(&expected.ignored);
        if expected.is_error_within(&actual) {
            expected.outcome.clone_from(&actual.outcome);
        }
        unified_diff(&expected.yaml(), &actual.yaml(), "expected", "actual")
    }

    /// Returns true if both outcomes are errors of the same kind, and the message of this one is a part of the other's.
    fn is_error_within(&self, other: &Self) -> bool {
        let errors = self.outcome.split_once(": ").zip(other.outcome.split_once(": "));
        errors
            .is_some_and(|((kind, part), (other_kind, message))| kind == other_kind && message.contains(part))
    }

    /// Returns these effects without the fields that the JSON pointers name.
    fn without_fields(&self, pointers: &[String]) -> Self {
        let mut effects = self.clone();
        for write in &mut effects.writes {
            pointers.iter().for_each(|pointer| write.remove(pointer));
        }
        effects
    }

    fn yaml(&self) -> String {
        let event = |event: &Event| format!("{} {}: {}", event.type_.as_str(), event.reason, event.message);
        let write = |write: &WriteEffect| match &write.body {
            Value::Null => json!(write.full_title()),
            body => Value::Object(Map::from_iter([(write.full_title(), body.clone())])),
        };
        let mut text = yaml(&json!({ "outcome": self.outcome }));
        text += &yaml(&json!({ "writes": self.writes.iter().map(write).collect::<Vec<_>>() }));
        text + &yaml(&json!({ "events": self.events.iter().map(event).collect::<Vec<_>>() }))
    }
}

/// The key of the object that was written.
pub(super) fn key_of(write: &Write) -> Key {
    Key::new(write.namespace.as_deref(), &write.name)
}

impl WriteEffect {
    pub(super) fn of(write: &Write) -> Self {
        let (resource, key, body) = (write.resource.as_str(), &key_of(write), write.body.clone());
        let status = resource.strip_suffix("/status").zip(write.result.as_ref());
        let effect = match (write.verb, status) {
            (verbs::UPDATE | verbs::PATCH, Some((resource, object))) => {
                Self::status(resource, key, &object["status"])
            }
            (verbs::DELETE, _) => Self::without_body(format!("delete {resource} {key}")),
            (verbs::DELETE_COLLECTION, _) => {
                Self::delete_collection(resource, key, write.selector.as_deref())
            }
            (verbs::PATCH, _) if write.is_apply => Self::with_body("apply", resource, key, body),
            (verb, _) => Self::with_body(verb, resource, key, body),
        };
        Self { options: write.options(), ..effect }
    }

    /// A write that sends a whole object or a patch. The action is `create`, `update`, `patch` or `apply`.
    pub(super) fn with_body(action: &str, resource: &str, key: &Key, body: Value) -> Self {
        // A create with a precondition fails, so these are compared.
        let preconditions: &[&str] = if action == "create" { &[] } else { &["resourceVersion", "uid"] };
        let body = without_volatile_fields(body, preconditions);
        Self { body, ..Self::without_body(format!("{action} {resource} {key}")) }
    }

    pub(super) fn status(resource: &str, key: &Key, status: &Value) -> Self {
        // An expected status may have null fields. A stored one has none, because a merge patch removes them.
        let mut body = without_nulls(status);
        remove_transition_times(&mut body);
        Self { body, part: "/status", ..Self::without_body(format!("status of {resource} {key}")) }
    }

    pub(super) fn delete_collection(resource: &str, key: &Key, selector: Option<&str>) -> Self {
        let (key, selector) = (key.to_string(), selector.unwrap_or_default());
        let mut parts = vec!["deletecollection", resource, &key, selector];
        parts.retain(|part| !part.is_empty());
        Self::without_body(parts.join(" "))
    }

    pub(super) fn without_body(title: String) -> Self {
        Self { title, options: BTreeSet::new(), part: "", body: Value::Null }
    }

    /// Removes the field of the object that the JSON pointer names.
    fn remove(&mut self, pointer: &str) {
        let Some(path) = pointer.strip_prefix(self.part) else { return };
        let Some((parent, field)) = path.rsplit_once('/') else {
            // The pointer names the whole part.
            self.body = Value::Null;
            return;
        };
        let field = field.replace("~1", "/").replace("~0", "~");
        if let Some(fields) = self.body.pointer_mut(parent).and_then(Value::as_object_mut) {
            fields.remove(&field);
        }
    }

    /// The title and the options.
    fn full_title(&self) -> String {
        let options: String = self.options.iter().map(|option| format!(" {option}")).collect();
        format!("{}{options}", self.title)
    }
}

/// Returns a unified diff, or `None` if the texts are equal.
pub(super) fn unified_diff(
    before: &str,
    after: &str,
    before_title: &str,
    after_title: &str,
) -> Option<String> {
    let diff = TextDiff::from_lines(before, after);
    (before != after)
        .then(|| diff.unified_diff().context_radius(5).header(before_title, after_title).to_string())
}

pub(super) fn yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).unwrap_or_else(|_| value.to_string())
}

/// Returns the body without the preconditions, the fields that the API server sets, the times of conditions and the
/// hash annotation, which a test cannot know.
fn without_volatile_fields(mut body: Value, preconditions: &[&str]) -> Value {
    if let Some(status) = body.get_mut("status") {
        remove_transition_times(status);
    }
    let Some(Value::Object(metadata)) = body.get_mut("metadata") else { return body };
    metadata.retain(|name, _| ![preconditions, &SERVER_SET_FIELDS].concat().contains(&name.as_str()));
    remove_hash_annotation(metadata);
    if metadata.is_empty()
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove("metadata");
    }
    body
}

fn remove_hash_annotation(metadata: &mut Map<String, Value>) {
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    if annotations.remove(HASH_ANNOTATION).is_some() && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

/// Removes `lastTransitionTime` from the items of all lists called `conditions`.
fn remove_transition_times(status: &mut Value) {
    match status {
        Value::Object(fields) => {
            if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
                for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
                    condition.remove("lastTransitionTime");
                }
            }
            fields.values_mut().for_each(remove_transition_times);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_transition_times),
        _ => {}
    }
}

/// Returns the value without null fields, at any depth.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}
