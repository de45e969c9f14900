//! The effects of a reconcile that a test ran.

use kube::{
    Resource,
    api::DynamicObject,
    discovery::{ApiResource, verbs},
};
use reknit_apis::Key;
use reknit_injection::internal::Permissions;
use reknit_reconciler::{Event, Outcome, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    comparable::{ComparableEffects, WriteEffect},
    want::Want,
};
use crate::{ApiServer, Write};

/// The effects of a reconcile: its outcome, its writes and its events. [`check`](Self::check) compares them all.
pub struct Effects {
    /// The outcome or the error of the reconcile.
    pub result: Result<Outcome>,
    /// The keys that the writes enqueued. The reconciled key is among them if a write changed an object that enqueues
    /// it.
    pub enqueued: Vec<Key>,
    /// The causes of each enqueued key.
    causes: Vec<(Key, String)>,
    writes: Vec<Write>,
    events: Vec<Write>,
    server: ApiServer,
    /// The permissions that the constructor declared.
    pub(super) permissions: Permissions,
}

impl Effects {
    pub(super) fn new(
        result: Result<Outcome>,
        causes: Vec<(Key, String)>,
        writes: Vec<Write>,
        server: ApiServer,
        permissions: Permissions,
    ) -> Self {
        let (events, writes) = writes.into_iter().partition(|write| write.resource == "events");
        let enqueued = causes.iter().map(|(key, _)| key.clone()).collect();
        Self { result, enqueued, causes, writes, events, server, permissions }
    }

    /// Compares the effects with the expected ones.
    ///
    /// # Panics
    ///
    /// Panics with a diff if they are not equal.
    #[track_caller]
    #[expect(clippy::panic, reason = "a failed assertion of a test panics")]
    pub fn check(&self, want: Want) {
        if let Some(difference) = self.difference(want) {
            panic!("the reconcile had other effects than expected:\n{difference}");
        }
    }

    pub(super) fn difference(&self, want: Want) -> Option<String> {
        let mut actual = ComparableEffects::of_result(&self.result);
        actual.writes = self.writes.iter().map(WriteEffect::of).collect();
        actual.events = self.events();
        actual.difference(&want.0)
    }

    /// Returns all write requests except events, in order, with the verbs and resources of RBAC:
    /// `patch lamps/status default/x`. The key of a cluster-scoped object is its name: `create namespaces x`. Failed requests
    /// are included.
    pub fn writes(&self) -> Vec<String> {
        self.writes.iter().map(ToString::to_string).collect()
    }

    /// Returns the causes for which a key is [enqueued](Self::enqueued), as the log of its reconcile would show them:
    /// `secrets default/x added (5) by lamps.example.com default/x, owned`. Empty if it is not enqueued.
    pub fn causes_of(&self, key: &str) -> &str {
        let key = Key::from(key);
        self.causes.iter().find(|(enqueued, _)| *enqueued == key).map_or("", |(_, causes)| causes)
    }

    /// Returns a write request by its index.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer write requests.
    pub fn write(&self, index: usize) -> &Write {
        &self.writes[index]
    }

    /// Returns the recorded events, in order. A repeated event is returned once.
    pub fn events(&self) -> Vec<Event> {
        let created = self.events.iter().filter(|write| write.verb == verbs::CREATE);
        created.map(|write| event(&write.body)).collect()
    }

    /// Returns the object that the API server stores after the reconcile, by `namespace/name` or by the name alone.
    ///
    /// # Panics
    ///
    /// Panics if the object cannot be decoded as a `K`.
    pub fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, key: &str) -> Option<K> {
        let key = Key::from(key);
        self.server.object(key.namespace.as_deref(), &key.name)
    }

    /// Returns the object of a Kind that is known only at run time, as [`object`](Self::object).
    pub fn object_of(&self, kind: &ApiResource, key: &str) -> Option<DynamicObject> {
        let key = Key::from(key);
        self.server.object_of(kind, key.namespace.as_deref(), &key.name)
    }
}

fn event(body: &Value) -> Event {
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    let (reason, message) = (text("reason"), text("note"));
    if body["type"] == "Normal" { Event::normal(reason, message) } else { Event::warning(reason, message) }
}
