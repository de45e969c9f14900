//! The handlers of an informer, and how they are called.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use kube::discovery::ApiResource;
use reknit_apis::Key;

use super::delta::Delta;
use crate::informer::{
    cached::Cached,
    change::{Change, Old},
    key_event::KeyEvent,
};

pub(crate) type ChangeHandler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
pub(crate) type KeyEventHandler = Box<dyn Fn(&KeyEvent<'_>) + Send + Sync>;
pub(crate) type UndecodableHandler = Box<dyn Fn(&Key, &str) + Send + Sync>;

/// The handlers of one informer. If a handler panics, the panic is logged, and the handler is still called with later
/// changes.
pub(crate) struct Handlers<K> {
    /// Called before `changes`, since those handlers can read the indexes.
    pub(crate) indexes: Vec<ChangeHandler<K>>,
    pub(crate) changes: Vec<ChangeHandler<K>>,
    pub(crate) key_events: Vec<KeyEventHandler>,
    pub(crate) undecodable: Vec<UndecodableHandler>,
}

impl<K> Default for Handlers<K> {
    fn default() -> Self {
        Self { indexes: Vec::new(), changes: Vec::new(), key_events: Vec::new(), undecodable: Vec::new() }
    }
}

impl<K: Cached> Handlers<K> {
    /// Calls the handlers of indexes and changes or, if the delta cannot be decoded, those of undecodable objects. Then
    /// calls the handlers of key events. `decoded` is the new object; `None` if the object was deleted.
    pub(crate) fn notify(&self, delta: &Delta, decoded: Option<&Arc<K>>, kind: &Arc<ApiResource>) {
        let event = KeyEvent::of(delta);
        if !(self.indexes.is_empty() && self.changes.is_empty()) {
            match decode_delta(delta, decoded, kind) {
                Ok(change) => self.notify_change(&change),
                Err(why) => self.notify_undecodable(event.key(), &why),
            }
        }
        self.notify_key_event(&event);
    }

    fn notify_change(&self, change: &Change<K>) {
        self.indexes.iter().chain(&self.changes).for_each(|handler| call_change(handler, change));
    }

    pub(crate) fn notify_key_event(&self, event: &KeyEvent<'_>) {
        self.key_events.iter().for_each(|handler| call_key_event(handler, event));
    }

    pub(crate) fn notify_undecodable(&self, key: &Key, why: &str) {
        self.undecodable.iter().for_each(|handler| call_undecodable(handler, key, why));
    }
}

/// Decodes a delta. A failure is unexpected, since each object could be decoded when it arrived.
fn decode_delta<K: Cached>(
    delta: &Delta,
    decoded: Option<&Arc<K>>,
    kind: &Arc<ApiResource>,
) -> Result<Change<K>, String> {
    let latest = || match decoded {
        Some(object) => Ok(object.clone()),
        None => delta.latest().decode(kind).map(Arc::new),
    };
    Ok(match delta {
        Delta::Added(_) => Change::Added(latest()?),
        Delta::Updated { old, .. } => {
            let (old, kind, new) = (old.clone(), kind.clone(), latest()?);
            let fallback = new.clone();
            Change::Updated { old: Old::new(move || old.decode(&kind).map_or(fallback, Arc::new)), new }
        }
        Delta::Deleted(last) => Change::Deleted { last: Arc::new(last.decode(kind)?) },
    })
}

pub(crate) fn call_change<K: Cached>(handler: &ChangeHandler<K>, change: &Change<K>) {
    catch_panic(|| change.key(), || handler(change));
}

pub(crate) fn call_key_event(handler: &KeyEventHandler, event: &KeyEvent<'_>) {
    catch_panic(|| event.key().clone(), || handler(event));
}

pub(crate) fn call_undecodable(handler: &UndecodableHandler, key: &Key, why: &str) {
    catch_panic(|| key.clone(), || handler(key, why));
}

fn catch_panic(key: impl FnOnce() -> Key, handle: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(handle)).is_err() {
        tracing::error!(key = %key(), "an event handler panicked");
    }
}
