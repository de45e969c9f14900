//! All keys that a controller may have work for, as its informers know them now.

use parking_lot::Mutex;
use reknit_apis::Key;

type Source = Box<dyn Fn(&mut Vec<Key>) + Send + Sync>;

/// Where a controller's keys come from: the objects of its Kind or, without one, what its watches map to keys.
#[derive(Default)]
pub(crate) struct Every(Mutex<Vec<Source>>);

impl Every {
    pub(crate) fn add(&self, source: impl Fn(&mut Vec<Key>) + Send + Sync + 'static) {
        self.0.lock().push(Box::new(source));
    }

    /// Each key once.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        self.0.lock().iter().for_each(|source| source(&mut keys));
        keys.sort();
        keys.dedup();
        keys
    }
}
