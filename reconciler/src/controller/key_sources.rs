//! The sources of all keys of a controller, for resyncs, configuration changes and promotions.

use parking_lot::Mutex;
use reknit_apis::Key;

type Source = Box<dyn Fn(&mut Vec<Key>) + Send + Sync>;

/// Lists all keys of a controller: the keys of the objects of its Kind or, without a Kind, the keys to which its
/// watches map and those that [`Builder::add_key`](crate::Builder::add_key) added.
#[derive(Default)]
pub(crate) struct KeySources(Mutex<Vec<Source>>);

impl KeySources {
    pub(crate) fn add(&self, source: impl Fn(&mut Vec<Key>) + Send + Sync + 'static) {
        self.0.lock().push(Box::new(source));
    }

    /// All current keys, sorted and without duplicates.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.0.lock().iter().for_each(|source| source(&mut keys));
        keys.sort();
        keys.dedup();
        keys
    }
}
