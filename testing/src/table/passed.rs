//! What a pass did.

use kube::Resource;
use reknit_apis::Key;
use reknit_reconciler::{Event, Outcome, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Want,
    account::{Account, Entry},
};
use crate::{ApiServer, Verb, Write};

/// What a pass did: how it ended, what it wrote, which events it recorded. [`check`](Self::check) compares all of that.
pub struct Passed {
    /// How it ended.
    pub result: Result<Outcome>,
    /// The keys that it woke, its own among them where what it wrote concerns that.
    pub woken: Vec<Key>,
    writes: Vec<Write>,
    events: Vec<Write>,
    server: ApiServer,
}

impl Passed {
    pub(super) fn new(
        result: Result<Outcome>,
        woken: Vec<Key>,
        writes: Vec<Write>,
        server: ApiServer,
    ) -> Self {
        let (events, writes) = writes.into_iter().partition(|write| write.resource == "events");
        Self { result, woken, writes, events, server }
    }

    /// Returns true if it did this and nothing else.
    ///
    /// # Panics
    ///
    /// Where it did not, with the lines in which they differ.
    #[track_caller]
    #[expect(clippy::panic, reason = "it is an assertion")]
    pub fn check(&self, want: Want) {
        if let Some(difference) = self.difference(want) {
            panic!("the pass did something else:\n{difference}");
        }
    }

    pub(super) fn difference(&self, want: Want) -> Option<String> {
        let mut done = Account::ending(&self.result);
        done.writes = self.writes.iter().map(Entry::of).collect();
        done.events = self.events();
        done.difference(&want.account())
    }

    /// Everything it wrote or tried to, in order and as RBAC names it, events aside:
    /// `patch addressableservices/status default/x`.
    pub fn writes(&self) -> Vec<String> {
        self.writes.iter().map(ToString::to_string).collect()
    }

    /// One of these, from 0.
    ///
    /// # Panics
    ///
    /// Where there were fewer.
    pub fn write(&self, n: usize) -> &Write {
        &self.writes[n]
    }

    /// The events it recorded, in order. One that was recorded twice is there once.
    pub fn events(&self) -> Vec<Event> {
        let stored = self.events.iter().filter(|write| write.verb == Verb::Create);
        stored.map(|write| event(&write.body)).collect()
    }

    /// The object as the API server has it after the pass, by `namespace/name` or the name alone.
    ///
    /// # Panics
    ///
    /// Where it does not decode as a `K`.
    pub fn object<K: Resource<DynamicType = ()> + DeserializeOwned>(&self, key: &str) -> Option<K> {
        let key = Key::from(key);
        self.server.object(key.namespace.as_deref(), &key.name)
    }
}

fn event(body: &Value) -> Event {
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    Event { normal: body["type"] == "Normal", reason: text("reason").into(), message: text("note").into() }
}
