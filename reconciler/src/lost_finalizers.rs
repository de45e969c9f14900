//! Objects whose finalizer another client has removed before the controller has finalized them.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use reknit_apis::{
    Key, Kind,
    internal::{HashMap, HashSet},
};
use reknit_injection::{Change, internal::term_began};
use tokio::time::Instant;

use crate::finalizer::Finalizer;

/// The time after the start of a term in which the watch may still report what the former leader has done: a reflector
/// closes a silent watch after two minutes, and lists then.
const LATE: Duration = Duration::from_secs(150);

/// The objects of one controller whose finalizer was removed, and not by this process. Each is kept until the next pass
/// of its key, which reports it.
///
/// Two programs that finalize a Kind under the same name are noticed by this: the first one that finalizes an object
/// removes the finalizer of both.
pub(crate) struct LostFinalizers<K>(Arc<Mutex<State<K>>>);

struct State<K> {
    /// The keys whose finalizer this process removes or has removed.
    own_removals: HashSet<Key>,
    /// The last states that carried the finalizer, and the times at which its removal was reported.
    lost: HashMap<Key, (Arc<K>, Instant)>,
}

impl<K> Clone for LostFinalizers<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for LostFinalizers<K> {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State { own_removals: HashSet::default(), lost: HashMap::default() })))
    }
}

impl<K: Kind> LostFinalizers<K> {
    /// Records a change that deletes an object, or removes its finalizer during its deletion, unless this process does.
    pub(crate) fn observe(&self, change: &Change<K>, finalizer: &Finalizer) {
        let last = match change {
            Change::Deleted { last } => last,
            Change::Updated { old, new } if new.meta().deletion_timestamp.is_some() => {
                if finalizer.is_on(new.meta()) {
                    return;
                }
                old
            }
            Change::Added(_) | Change::Updated { .. } => return,
        };
        let (key, mut state) = (change.key(), self.0.lock());
        let is_own = match change {
            // No pass follows the deletion by this process's own write.
            Change::Deleted { .. } => state.own_removals.remove(&key),
            _ => state.own_removals.contains(&key),
        };
        if !is_own && finalizer.is_on(last.meta()) {
            state.lost.insert(key, (Arc::clone(last), Instant::now()));
        }
    }

    /// Called before this process removes the finalizer of the object.
    pub(crate) fn begin_removal(&self, key: Key) {
        self.0.lock().own_removals.insert(key);
    }

    /// Called at the start of a pass. Removes and returns the last state that carried the finalizer, if it was lost, and not
    /// so early in the term that the former leader may have removed it.
    pub(crate) fn take(&self, key: &Key) -> Option<Arc<K>> {
        let mut state = self.0.lock();
        state.own_removals.remove(key);
        let (last, removed) = state.lost.remove(key)?;
        let is_of_this_term = term_began().is_none_or(|began| removed >= began + LATE);
        is_of_this_term.then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::finalizer::FinalizerOptions;

    const NAME: &str = "demo.reknit.dev/x";

    #[test]
    fn the_removal_by_this_process_is_forgotten_with_the_object() {
        let lost = LostFinalizers::default();
        let options = FinalizerOptions { name: Some(NAME.into()), ..FinalizerOptions::default() };
        let finalizer = Finalizer::of::<ConfigMap>(options, true);
        let mut last = ConfigMap::default();
        last.metadata.finalizers = Some(vec![NAME.into()]);
        let (key, last) = (Key::of(&last), Arc::new(last));
        lost.begin_removal(key.clone());
        lost.observe(&Change::Deleted { last: last.clone() }, &finalizer);
        assert!(lost.0.lock().own_removals.is_empty() && lost.take(&key).is_none());
        lost.observe(&Change::Deleted { last: last.clone() }, &finalizer);
        assert!(lost.take(&key).is_some(), "another object of that name");
    }
}
