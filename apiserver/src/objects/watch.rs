//! Watches of the stored objects.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use http::StatusCode;
use serde_json::{Value, json};

use super::{
    Objects,
    history::Change,
    list::{invalid_version_match, requested_version},
};
use crate::{
    collection::Collection,
    object::metadata,
    representation::Representation,
    request::Request,
    request_info::is_true,
    response::{Response, expired, failure},
    selector::Selection,
    watch::WatchEvent,
};

/// The annotation of the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The selection of a watch, and the position up to which it has taken the changes.
pub(crate) struct Position {
    collection: Collection,
    prefix: String,
    selection: Selection,
    representation: Representation,
    allows_bookmarks: bool,
    /// The time after which the client wants the watch to end.
    pub(crate) timeout: Option<Duration>,
    /// The events that come before those of changes: the objects at the start of the watch.
    initial: VecDeque<WatchEvent>,
    /// The resourceVersion up to which all events were taken.
    version: u64,
    /// The number of restarts of the server before the watch.
    restarts: u64,
    has_failed: bool,
}

impl Objects {
    /// Starts a watch at the resourceVersion of the request. Without one, or at 0, it begins with the current objects.
    pub(crate) fn open_watch(&self, request: &Request) -> Result<Position, Response> {
        let sends_initial_events = sends_initial_events(request)?;
        let requested = requested_version(request)
            .map_err(|fault| failure(StatusCode::INTERNAL_SERVER_ERROR, "", &fault))?;
        let mut position = Position {
            prefix: request.collection.prefix(),
            collection: request.collection.clone(),
            selection: self.selection(request)?,
            representation: request.representation,
            allows_bookmarks: is_true(
                request.query.get("allowWatchBookmarks").map_or("false", String::as_str),
            ),
            timeout: request.param("timeoutSeconds").parse().ok().map(Duration::from_secs),
            initial: VecDeque::new(),
            version: if requested == 0 || sends_initial_events == Some(true) {
                self.history.latest()
            } else {
                requested
            },
            restarts: self.history.restarts(),
            has_failed: false,
        };
        if sends_initial_events.unwrap_or(requested == 0) {
            let objects = self.under(&position.prefix).map(|(_, object)| object);
            let selected = objects.filter(|object| position.selection.matches(object));
            position.initial = selected.map(|object| position.event("ADDED", object.clone())).collect();
        }
        if sends_initial_events == Some(true) && position.allows_bookmarks {
            let mut end = self.bookmark_object(&position);
            end["metadata"]["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
            position.initial.push_back(position.event("BOOKMARK", Arc::new(end)));
        }
        Ok(position)
    }

    /// Returns the next event that is due. Moves the position past it, or past all changes if none is due.
    pub(crate) fn next_event(&self, position: &mut Position) -> Option<WatchEvent> {
        if self.has_ended(position) {
            return None;
        }
        if let Some(event) = position.initial.pop_front() {
            return Some(event);
        }
        let Some(changes) = self.history.since(position.version) else {
            position.has_failed = true;
            let (version, compacted) = (position.version, self.history.compacted());
            let (_, status) = expired(&format!("too old resource version: {version} ({compacted})"));
            return Some(WatchEvent { event_type: "ERROR", object: status });
        };
        for change in changes {
            position.version = change.version;
            if let Some(event) = position.event_of(change) {
                return Some(event);
            }
        }
        position.version = position.version.max(self.history.latest());
        None
    }

    /// Returns a bookmark at the position. `None` if the watch has ended or its client does not want bookmarks.
    pub(crate) fn bookmark(&self, position: &Position) -> Option<WatchEvent> {
        let is_wanted = position.allows_bookmarks && position.initial.is_empty() && !self.has_ended(position);
        is_wanted.then(|| position.event("BOOKMARK", Arc::new(self.bookmark_object(position))))
    }

    pub(crate) fn has_ended(&self, position: &Position) -> bool {
        position.has_failed || position.restarts != self.history.restarts()
    }

    fn bookmark_object(&self, position: &Position) -> Value {
        json!({
            "kind": self.kind(&position.collection).unwrap_or_default(),
            "apiVersion": position.collection.api_version(),
            "metadata": { "resourceVersion": position.version.to_string() },
        })
    }
}

impl Position {
    fn event(&self, event_type: &'static str, object: Arc<Value>) -> WatchEvent {
        WatchEvent { event_type, object: self.representation.of(object) }
    }

    /// The event of a change. An object that starts to match the selectors is added, and one that stops is deleted.
    fn event_of(&self, change: &Change) -> Option<WatchEvent> {
        if !change.key.starts_with(&self.prefix) {
            return None;
        }
        let selected = |object: &&Arc<Value>| self.selection.matches(object);
        match (change.before.as_ref().filter(selected), change.after.as_ref().filter(selected)) {
            (None, None) => None,
            (None, Some(after)) => Some(self.event("ADDED", after.clone())),
            (Some(_), Some(after)) => Some(self.event("MODIFIED", after.clone())),
            (Some(before), None) => {
                let mut last = Value::clone(before);
                metadata(&mut last).insert("resourceVersion".into(), json!(change.version.to_string()));
                Some(self.event("DELETED", Arc::new(last)))
            }
        }
    }
}

/// Returns true if the client asks for the current objects before the changes, and false if it refuses them. `None`
/// leaves it to the resourceVersion.
fn sends_initial_events(request: &Request) -> Result<Option<bool>, Response> {
    let rule = request.param("resourceVersionMatch");
    let sends = request.query.get("sendInitialEvents").map(|value| is_true(value));
    let mut faults = Vec::new();
    if sends.is_some() && rule != "NotOlderThan" {
        faults.push(
            "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan".to_owned(),
        );
    }
    if sends.is_none() && !rule.is_empty() {
        faults.push(
            "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
                .to_owned(),
        );
    }
    if !matches!(rule, "" | "NotOlderThan") {
        faults.push(format!("Unsupported value: {rule:?}: supported values: \"NotOlderThan\""));
    }
    match faults.as_slice() {
        [] => Ok(sends),
        faults => Err(invalid_version_match(faults)),
    }
}
