//! Adds handlers to a cache, which are first called with what it has already.

use reknit_apis::Key;

use super::{
    Cache,
    delivery::notifying,
    handlers::{
        ChangeHandler, KeyEventHandler, UndecodableHandler, call_change, call_key_event, call_undecodable,
    },
};
use crate::informer::{cached::Cached, change::Change, key_event::KeyEvent};

impl<K: Cached> Cache<K> {
    /// Adds a handler, which is first called with the cached objects unless they are preloaded.
    pub(crate) fn add_handler(&self, handler: ChangeHandler<K>) {
        let mut handlers = self.handlers.lock();
        if !self.preloaded {
            notifying(true, || self.replay(&handler));
        }
        handlers.changes.push(handler);
    }

    /// Adds a handler that is called before all other handlers of a change. It is first called with the cached objects,
    /// even if they are preloaded.
    pub(crate) fn add_index(&self, handler: ChangeHandler<K>) {
        let mut handlers = self.handlers.lock();
        self.replay(&handler);
        handlers.indexes.push(handler);
    }

    fn replay(&self, handler: &ChangeHandler<K>) {
        let objects = self.objects().into_iter();
        objects
            .filter_map(|object| self.decode(&object))
            .for_each(|object| call_change(handler, &Change::Added(object)));
    }

    pub(crate) fn add_key_event_handler(&self, handler: KeyEventHandler) {
        let mut handlers = self.handlers.lock();
        if !self.preloaded {
            notifying(true, || {
                self.objects().iter().for_each(|object| call_key_event(&handler, &KeyEvent::cached(object)));
                for (key, _) in self.copy_undecodable() {
                    call_key_event(&handler, &KeyEvent::undecodable(key, None));
                }
            });
        }
        handlers.key_events.push(handler);
    }

    pub(crate) fn add_undecodable_handler(&self, handler: UndecodableHandler) {
        let mut handlers = self.handlers.lock();
        self.copy_undecodable().iter().for_each(|(key, why)| call_undecodable(&handler, key, why));
        handlers.undecodable.push(handler);
    }

    /// Copies the undecodable states, since handlers lock `undecodable` themselves if they call
    /// [`newest`](Self::newest).
    fn copy_undecodable(&self) -> Vec<(Key, String)> {
        self.undecodable.read().iter().map(|(key, why)| (key.clone(), why.to_owned())).collect()
    }
}
