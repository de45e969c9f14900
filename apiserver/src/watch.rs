//! A watch, and the events that it takes.

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use serde_json::Value;

use crate::{ApiServer, objects::Position};

/// An open watch. It takes events when it is asked, without a task or a timer, so that a test can decide when each
/// event is delivered. Converted into an [`http::Response`], it sends them by itself.
///
/// A watch that has not taken changes before they are [compacted](ApiServer::compact) fails: its next event is an
/// `ERROR` with the code 410. The server keeps the latest 10,000 changes.
pub struct Watch {
    server: ApiServer,
    position: Position,
}

/// An event of a watch. It is displayed as the line of JSON that a client receives.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub event_type: &'static str,
    /// The object, as it was before a deletion. A bookmark has only a resourceVersion, and an error is a `Status`.
    pub object: Arc<Value>,
}

impl Watch {
    pub(crate) fn new(server: ApiServer, position: Position) -> Self {
        Self { server, position }
    }

    /// Takes the events that are due, in order.
    pub fn take_events(&mut self) -> Vec<WatchEvent> {
        std::iter::from_fn(|| self.take_event()).collect()
    }

    /// Takes the next event that is due.
    pub fn take_event(&mut self) -> Option<WatchEvent> {
        self.server.state().objects.next_event(&mut self.position)
    }

    /// Returns a bookmark: an event with the resourceVersion up to which all events were taken. `None` if the client did
    /// not ask for bookmarks (`allowWatchBookmarks`), or if the watch has ended.
    pub fn bookmark(&self) -> Option<WatchEvent> {
        self.server.state().objects.bookmark(&self.position)
    }

    /// The time after which the client wants the watch to end (`timeoutSeconds`).
    pub fn timeout(&self) -> Option<Duration> {
        self.position.timeout
    }

    /// Returns true after an `ERROR` event, and after [`ApiServer::end_watches`].
    pub fn has_ended(&self) -> bool {
        self.server.state().objects.has_ended(&self.position)
    }

    /// Takes the next event, or wakes the task at the next change. `None` once the watch has ended.
    pub(crate) fn poll_event(&mut self, cx: &Context<'_>) -> Poll<Option<WatchEvent>> {
        let mut state = self.server.state();
        match state.objects.next_event(&mut self.position) {
            Some(event) => Poll::Ready(Some(event)),
            None if state.objects.has_ended(&self.position) => Poll::Ready(None),
            None => {
                state.objects.wake_at_change(cx.waker());
                Poll::Pending
            }
        }
    }
}

impl fmt::Display for WatchEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, r#"{{"type":"{}","object":{}}}"#, self.event_type, self.object)
    }
}
