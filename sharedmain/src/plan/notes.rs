//! The findings of a plan beside the objects.

use std::{collections::BTreeSet, fmt};

use reknit_apis::Key;
use reknit_injection::internal::now;
use serde_json::Value;

use super::overlay::Cause;

/// The findings of a plan beside the objects.
pub(super) struct Notes {
    /// The time at which the plan began, in RFC 3339.
    pub(super) since: String,
    /// The pass that runs.
    pub(super) cause: Option<Cause>,
    /// The paths of objects whose live state is newer than the caches.
    pub(super) outdated: Vec<String>,
    notes: BTreeSet<(Finding, Note)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Finding {
    DroppedField,
    Effect,
    Event,
    Refusal,
    Warning,
}

/// A text about an object, with the pass that caused it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Note {
    cause: Option<Cause>,
    pub(super) object: String,
    pub(super) text: String,
}

impl Default for Notes {
    fn default() -> Self {
        Self { since: now().to_string(), cause: None, outdated: Vec::new(), notes: BTreeSet::new() }
    }
}

impl Notes {
    pub(super) fn add(&mut self, finding: Finding, object: impl Into<String>, text: impl Into<String>) {
        let note = Note { cause: self.cause.clone(), object: object.into(), text: text.into() };
        self.notes.insert((finding, note));
    }

    pub(super) fn add_event(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let [kind, namespace, name] = ["kind", "namespace", "name"].map(|field| &event["regarding"][field]);
        let key = Key::new(namespace.as_str(), &text(name));
        let [severity, reason, note] = ["type", "reason", "note"].map(|field| text(&event[field]));
        self.add(Finding::Event, format!("{} {key}", text(kind)), format!("{severity} {reason}: {note}"));
    }

    pub(super) fn of(&self, finding: Finding) -> impl Iterator<Item = &Note> {
        self.notes.iter().filter(move |(of, _)| *of == finding).map(|(_, note)| note)
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Cause { controller, key }) = &self.cause {
            write!(f, "{controller} {key}: ")?;
        }
        write!(f, "{}: {}", self.object, self.text)
    }
}
