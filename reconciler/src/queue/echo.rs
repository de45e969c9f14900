//! Suppression of echoes: a status or finalizer write of the framework does not enqueue the key of its object again.
//!
//! `kind_client.rs` chooses the writes. Writes of user code do enqueue the key, since the pass may have computed its
//! status from the state before the write.

use std::sync::Arc;

use reknit_apis::Key;
use reknit_injection::internal::KeyEvent;

use super::{Queue, cause::Cause, change::StateChange};

/// The writes in flight, at most one for each worker: the key, and the resourceVersions of its object that were reported
/// since the write started (`None`: a deletion), with the changes.
pub(super) type PendingWrites = Vec<(Arc<Key>, Vec<(Option<String>, StateChange)>)>;

/// A write in flight. While it exists, reported changes of its object are recorded and do not enqueue the key. When it
/// is dropped, the key is enqueued if any of these changes is not the echo of the write.
struct PendingWrite {
    queue: Queue,
    key: Arc<Key>,
    answer: Answer,
}

enum Answer {
    /// The write has not been answered, or it failed.
    Missing,
    /// The write succeeded. The answer has this resourceVersion, if any.
    Written(Option<String>),
}

impl Queue {
    /// Runs a status or finalizer write of the framework. The state that it leads to does not enqueue the key, whether the
    /// cache gets it from the answer or from the watch. `version` returns the resourceVersion in the answer.
    pub(crate) async fn suppressing_echo<T, E>(
        &self,
        key: Arc<Key>,
        write: impl Future<Output = Result<T, E>>,
        version: impl FnOnce(&T) -> Option<&str>,
    ) -> Result<T, E> {
        self.0.state.lock().pending_writes.push((key.clone(), Vec::new()));
        let mut pending = PendingWrite { queue: self.clone(), key, answer: Answer::Missing };
        let answer = write.await;
        if let Ok(answer) = &answer {
            pending.answer = Answer::Written(version(answer).map(str::to_owned));
        }
        answer
    }

    /// Enqueues the key of an object of the controller's Kind that changed, unless the change is an echo. A change to a
    /// state that cannot be decoded counts too, since the pass reports it. If the controller `observes_deletions`, a
    /// deletion is not taken for an echo.
    pub(crate) fn add_event(&self, event: &KeyEvent<'_>, observes_deletions: bool) {
        let (key, change) = (event.key().clone(), StateChange::of(event));
        match (event.is_deleted(), event.resource_version()) {
            (true, _) if observes_deletions => self.add_for(key, Cause::Object(change)),
            // A state that cannot be decoded has no version here, and is never an echo.
            (false, None) => self.add_for(key, Cause::Object(change)),
            (_, version) => self.add_changed(key, version, change),
        }
    }

    /// Enqueues the key of an object that changed to this resourceVersion, or was deleted if `None`. During a write of
    /// the object, the change is only recorded: when the write ends, it enqueues the key unless the change is its echo.
    pub(super) fn add_changed(&self, key: Key, version: Option<&str>, change: StateChange) {
        let mut state = self.0.state.lock();
        if let Some((_, reported)) = state.pending_writes.iter_mut().find(|(written, _)| **written == key) {
            return reported.push((version.map(str::to_owned), change));
        }
        drop(state);
        self.add_for(key, Cause::Object(change));
    }
}

impl PendingWrite {
    /// Returns true if the reported version, or `None` for a deletion, is not the echo of this write. A failed write
    /// has no echo. After a successful write a deletion counts as its echo, since removing the last finalizer deletes
    /// the object.
    fn is_foreign(&self, reported: &Option<String>) -> bool {
        match &self.answer {
            Answer::Missing => true,
            Answer::Written(version) => reported.is_some() && reported != version,
        }
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        let reported = {
            let writes = &mut self.queue.0.state.lock().pending_writes;
            let index = writes.iter().position(|(key, _)| *key == self.key);
            index.map(|index| writes.swap_remove(index).1).unwrap_or_default()
        };
        if let Some((_, change)) = reported.into_iter().rfind(|(version, _)| self.is_foreign(version)) {
            self.queue.add_for(Key::clone(&self.key), Cause::Object(change));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DynamicObject, Patch, PatchParams},
        discovery::ApiResource,
    };
    use reknit_injection::{Context, Informer};
    use reknit_testing::ApiServer;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn an_undecodable_state_during_a_write_enqueues_the_key() {
        let server = ApiServer::new();
        let mut map = ConfigMap::default();
        map.metadata.name = Some("a".into());
        map.metadata.namespace = Some("n".into());
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&map)]);
        let (maps, queue, key): (Informer<ConfigMap>, _, _) = (cx.get(), Queue::new(), Key::new("n", "a"));
        let follower = queue.clone();
        let observes_deletions = false;
        maps.on_key_event(move |event| follower.add_event(event, observes_deletions));

        let kind = ApiResource::erase::<ConfigMap>(&());
        let raw: Api<DynamicObject> = Api::namespaced_with(cx.client(), "n", &kind);
        let (params, undecodable) = (PatchParams::default(), Patch::Merge(json!({"data": "not a map"})));
        let write = raw.patch("a", &params, &undecodable);
        let own_key = Arc::new(key.clone());
        let written = queue.suppressing_echo(own_key, write, |map| map.metadata.resource_version.as_deref());
        written.await.unwrap();
        assert!(maps.newest(&key).is_err());
        assert_eq!(queue.take_all(), [key]);
    }
}
