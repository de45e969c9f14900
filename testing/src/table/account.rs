//! The effects of a reconcile, as a text that can be compared.

use std::collections::BTreeSet;

use jiff::Timestamp;
use reknit_apis::Key;
use reknit_reconciler::{Event, Outcome, Result};
use serde_json::{Map, Value, json};
use similar::TextDiff;

use crate::{Verb, Write};

/// The outcome, the writes and the events of a reconcile.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    ends: String,
    pub(super) writes: Vec<Entry>,
    pub(super) events: Vec<Event>,
}

/// The annotation in which applied children keep a hash of the applied fields.
const APPLIED: &str = "reknit.dev/applied";

/// One write: its verb and object, and its body.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    title: String,
    /// The options of the request, for example `dryRun=All`.
    pub(super) options: BTreeSet<String>,
    body: Value,
}

impl Account {
    pub(super) fn ending(result: &Result<Outcome>) -> Self {
        match result {
            Ok(outcome) => Self { ends: outcome.to_string(), ..Self::default() },
            Err(error) => Self::failing(&error.to_string(), error.is_permanent()),
        }
    }

    pub(super) fn failing(message: &str, permanent: bool) -> Self {
        let kind = if permanent { "permanent error" } else { "error" };
        Self { ends: format!("{kind}: {message}"), ..Self::default() }
    }

    /// Returns a diff with the expected effects, or `None` if there is no difference. An expected error message may be
    /// a part of the real one.
    pub(super) fn difference(&mut self, wanted: &Self) -> Option<String> {
        let kind = |ends: &str| ends.split_once(": ").map(|(kind, _)| kind.to_owned());
        let (_, part) = wanted.ends.split_once(": ").unwrap_or_default();
        if kind(&self.ends).is_some() && kind(&self.ends) == kind(&wanted.ends) && self.ends.contains(part) {
            self.ends.clone_from(&wanted.ends);
        }
        difference(&wanted.yaml(), &self.yaml(), "wanted", "done")
    }

    fn yaml(&self) -> String {
        let event = |event: &Event| {
            let kind = if event.normal { "Normal" } else { "Warning" };
            format!("{kind} {}: {}", event.reason, event.message)
        };
        let write = |entry: &Entry| match &entry.body {
            Value::Null => json!(entry.title()),
            body => Value::Object(Map::from_iter([(entry.title(), body.clone())])),
        };
        let mut text = yaml(&json!({ "ends": self.ends }));
        text += &yaml(&json!({ "writes": self.writes.iter().map(write).collect::<Vec<_>>() }));
        text + &yaml(&json!({ "events": self.events.iter().map(event).collect::<Vec<_>>() }))
    }
}

impl Entry {
    pub(super) fn of(write: &Write) -> Self {
        let (resource, key, body) = (write.resource.as_str(), &write.key, write.body.clone());
        let whole = resource.strip_suffix("/status").zip(write.meant.as_ref());
        let entry = match (write.verb, whole) {
            (Verb::Update | Verb::Patch, Some((resource, meant))) => {
                Self::status(resource, key, &meant["status"])
            }
            (Verb::Delete, _) => Self::bare(format!("delete {resource} {key}")),
            (Verb::DeleteCollection, _) => Self::delete_collection(resource, key, write.selector.as_deref()),
            (Verb::Patch, _) if write.applies => Self::sent("apply", resource, key, body),
            (verb, _) => Self::sent(&verb.to_string(), resource, key, body),
        };
        Self { options: write.options(), ..entry }
    }

    /// A write that sends a whole object or a patch. The action is `create`, `update`, `patch` or `apply`.
    pub(super) fn sent(action: &str, resource: &str, key: &Key, body: Value) -> Self {
        let preconditions: &[&str] = if action == "create" { &[] } else { &["resourceVersion", "uid"] };
        let body = without_volatile(body, preconditions);
        Self { body, ..Self::bare(format!("{action} {resource} {key}")) }
    }

    pub(super) fn status(resource: &str, key: &Key, status: &Value) -> Self {
        // A merge patch removes what is null.
        let body = without(&without_times(status), &Value::is_null);
        Self { body, ..Self::bare(format!("status of {resource} {key}")) }
    }

    pub(super) fn delete_collection(resource: &str, key: &Key, selector: Option<&str>) -> Self {
        let title = format!("deletecollection {resource} {key} {}", selector.unwrap_or_default());
        Self::bare(title.trim_end().into())
    }

    pub(super) fn bare(title: String) -> Self {
        Self { title, options: BTreeSet::new(), body: Value::Null }
    }

    fn title(&self) -> String {
        let options: String = self.options.iter().map(|option| format!(" {option}")).collect();
        format!("{}{options}", self.title)
    }
}

/// Returns a unified diff, or `None` if the texts are equal.
pub(super) fn difference(before: &str, after: &str, old: &str, new: &str) -> Option<String> {
    let diff = TextDiff::from_lines(before, after);
    (before != after).then(|| diff.unified_diff().context_radius(5).header(old, new).to_string())
}

pub(super) fn yaml(value: &Value) -> String {
    serde_yaml_ng::to_string(value).unwrap_or_else(|_| value.to_string())
}

/// Returns the body without preconditions and without times, which no test can know.
fn without_volatile(mut body: Value, preconditions: &[&str]) -> Value {
    for part in ["status", "metadata"] {
        if let Some(part) = body.get_mut(part) {
            *part = without_times(part);
        }
    }
    let Some(Value::Object(metadata)) = body.get_mut("metadata") else { return body };
    metadata.retain(|name, _| !preconditions.contains(&name.as_str()));
    remove_note(metadata);
    if metadata.is_empty()
        && let Some(fields) = body.as_object_mut()
    {
        fields.remove("metadata");
    }
    body
}

fn remove_note(metadata: &mut Map<String, Value>) {
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return };
    if annotations.remove(APPLIED).is_some() && annotations.is_empty() {
        metadata.remove("annotations");
    }
}

fn without_times(value: &Value) -> Value {
    without(value, &|value| value.as_str().is_some_and(|text| text.parse::<Timestamp>().is_ok()))
}

/// Returns the value without the unwanted fields, at any depth.
fn without(value: &Value, unwanted: &impl Fn(&Value) -> bool) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(_, value)| !unwanted(value));
            Value::Object(kept.map(|(name, value)| (name.clone(), without(value, unwanted))).collect())
        }
        Value::Array(all) => all.iter().map(|value| without(value, unwanted)).collect(),
        other => other.clone(),
    }
}
