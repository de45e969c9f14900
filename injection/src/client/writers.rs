//! The passes that wrote the last states of objects, for the causes of other passes, storms and the brake. The echoes of own
//! writes are suppressed elsewhere: in the queue of the reconciler, and by the versions in the cache.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use parking_lot::Mutex;
use reknit_apis::internal::HashMap;

use crate::pass::CurrentPass;

/// The maximum number of versions, and of deletions, that are remembered. The change that a write leads to is handled within
/// milliseconds, but a deletion can take long.
const MAX_WRITES: usize = 4096;

/// The maximum number of states that a write has overtaken and whose writers are not known. One suffices, unless responses
/// are late.
const MAX_OVERTAKEN: usize = 4;

/// The state of an object to which a write led.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WrittenState {
    /// The state with this resourceVersion.
    Version(u64),
    /// The deletion of the object with the uid of this hash.
    Deleted(u64),
}

/// The passes of this process that wrote the last states of objects. A clone shares them.
///
/// The watch can report a write before its response arrives. So the writer of a state may become known shortly after the
/// state.
#[derive(Clone, Debug, Default)]
pub struct Writers(Arc<Mutex<Recent>>);

#[derive(Debug, Default)]
struct Recent {
    passes: HashMap<WrittenState, Arc<CurrentPass>>,
    /// The states in `passes`, the oldest first.
    versions: VecDeque<WrittenState>,
    deletions: VecDeque<WrittenState>,
    /// By the state that a write of this process led to: earlier states, which the watch reported only after that write.
    overtaken: HashMap<WrittenState, Vec<WrittenState>>,
}

impl WrittenState {
    /// The state with this resourceVersion. `None` if it is not a number.
    pub fn version(version: &str) -> Option<Self> {
        version.parse().map(Self::Version).ok()
    }

    /// The deletion of the object with this uid.
    pub fn deleted(uid: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        uid.hash(&mut hasher);
        Self::Deleted(hasher.finish())
    }
}

impl Writers {
    /// Records that the current pass led to this state. Does nothing outside of passes.
    pub fn record(&self, state: Option<WrittenState>) {
        let (Some(state), Some(pass)) = (state, CurrentPass::get()) else { return };
        let Recent { passes, versions, deletions, overtaken } = &mut *self.0.lock();
        let order = match state {
            WrittenState::Version(_) => versions,
            WrittenState::Deleted(_) => deletions,
        };
        if passes.insert(state, pass).is_none() {
            order.push_back(state);
        }
        if order.len() > MAX_WRITES
            && let Some(oldest) = order.pop_front()
        {
            passes.remove(&oldest);
            overtaken.remove(&oldest);
        }
    }

    /// Records that the watch reports a state of an object that already has a later state.
    pub fn record_overtaken(&self, state: Option<WrittenState>, later: Option<WrittenState>) {
        let (Some(state), Some(later)) = (state, later) else { return };
        let Recent { passes, overtaken, .. } = &mut *self.0.lock();
        if passes.contains_key(&later) && !passes.contains_key(&state) {
            let states = overtaken.entry(later).or_default();
            states.retain(|other| !passes.contains_key(other));
            if states.len() < MAX_OVERTAKEN {
                states.push(state);
            }
        }
    }

    /// Returns the earlier state that the watch has reported only after a write led to this one, if its writer is not known:
    /// it is another client, unless the response to that write is still to arrive.
    pub fn overtaken_by(&self, state: WrittenState) -> Option<WrittenState> {
        let Recent { passes, overtaken, .. } = &*self.0.lock();
        overtaken.get(&state)?.iter().find(|other| !passes.contains_key(*other)).copied()
    }

    /// Returns the pass that led to this state, if it is known.
    pub fn of(&self, state: WrittenState) -> Option<Arc<CurrentPass>> {
        self.0.lock().passes.get(&state).cloned()
    }
}

#[cfg(test)]
mod tests {
    use reknit_apis::Key;

    use super::*;

    #[tokio::test]
    async fn the_writer_of_a_recent_state_is_known_and_the_number_of_states_is_bounded() {
        let writers = Writers::default();
        let write = |state: WrittenState| writers.record(Some(state));
        let (deletion, first) = (WrittenState::deleted("uid"), WrittenState::Version(0));
        write(first);
        assert!(writers.of(first).is_none(), "it was written outside of passes");
        let pass = CurrentPass::begin(&"web".into(), &Key::new("shop", "a").into(), true);
        let number = pass.number;
        let writes = async {
            write(deletion);
            (0..MAX_WRITES as u64).for_each(|version| write(WrittenState::Version(version)));
        };
        pass.clone().scope(writes).await;
        let writer_of = |state| writers.of(state).map(|pass| pass.number);
        assert_eq!([deletion, first].map(writer_of), [Some(number); 2]);
        let last = WrittenState::Version(u64::MAX);
        pass.clone().scope(async { write(last) }).await;
        let known = [first, last, deletion].map(writer_of);
        assert_eq!(known, [None, Some(number), Some(number)], "the oldest version is forgotten");
        let others = (1..=MAX_WRITES).map(|n| WrittenState::deleted(&n.to_string()));
        pass.scope(async { others.for_each(write) }).await;
        assert_eq!([deletion, last].map(writer_of), [None, Some(number)], "the oldest deletion is forgotten");
    }
}
