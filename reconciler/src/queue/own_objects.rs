//! Changes of objects of the controller's Kind: they enqueue the keys, unless they are echoes. A status or finalizer write of
//! the framework does not enqueue the key of its object again.
//!
//! The answer to a write enters the cache, which calls the handlers, before the write returns. So the echo comes while the
//! write is pending; when the watch reports the same version later, the cache drops it. If the cache leaves the answer to
//! the watch, as with a selection that only the API server can evaluate, that report enqueues the key.
//!
//! `kind_client.rs` chooses the writes: not a finalizer that is applied, nor a status that is written after a conflict, since
//! the pass has not seen the state on which they are based. Writes of user code do enqueue the key, since the pass may have
//! computed its status from the state before the write.

use std::sync::Arc;

use reknit_apis::Key;
use reknit_injection::internal::{KeyEvent, Update};

use super::{Queue, cause::Cause, change::StateChange};

/// The writes in flight, at most one for each worker: the key, and what was reported of its object since the write started.
pub(super) type PendingWrites = Vec<(Arc<Key>, Vec<Reported>)>;

/// A change that was reported during a write of its object.
pub(super) struct Reported {
    /// The resourceVersion after the change. `None`: a deletion.
    version: Option<String>,
    /// The change without its parts, which are not needed if it is the echo of the write.
    change: StateChange,
    update: Update,
}

/// A write in flight. While it exists, reported changes of its object are recorded and do not enqueue the key. When it
/// is dropped, the key is enqueued if any of these changes is not the echo of the write.
struct PendingWrite {
    queue: Queue,
    key: Arc<Key>,
    answer: Answer,
}

enum Answer {
    /// The write has not been answered, or it failed.
    NotWritten,
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
        let mut pending = PendingWrite { queue: self.clone(), key, answer: Answer::NotWritten };
        let answer = write.await;
        if let Ok(answer) = &answer {
            pending.answer = Answer::Written(version(answer).map(str::to_owned));
        }
        answer
    }

    /// Enqueues the key of an object of the controller's Kind that changed, unless the change is an echo. A change to a
    /// state that cannot be decoded counts too, since the pass reports it. If the controller `observes_deletions`, a
    /// deletion is not taken for an echo.
    pub(crate) fn add_own_object(&self, event: &KeyEvent<'_>, observes_deletions: bool) {
        let key = event.key().clone();
        match (event.is_deleted(), event.resource_version()) {
            (true, _) if observes_deletions => self.add_for(key, Cause::Object(StateChange::of(event))),
            // A state that cannot be decoded has no version here, and is never an echo.
            (false, None) => self.add_for(key, Cause::Object(StateChange::of(event))),
            (_, version) => self.add_changed(key, version, StateChange::without_parts(event)),
        }
    }

    /// Enqueues the key of an object that changed to this resourceVersion, or was deleted if `None`; `change` needs no parts.
    /// During a write of the object, the change is only recorded: when the write ends, it enqueues the key unless the
    /// change is its echo.
    pub(super) fn add_changed(&self, key: Key, version: Option<&str>, change: StateChange) {
        let update = Update::current();
        let mut state = self.0.state.lock();
        if let Some((_, reported)) = state.pending_writes.iter_mut().find(|(written, _)| **written == key) {
            return reported.push(Reported { version: version.map(str::to_owned), change, update });
        }
        drop(state);
        self.add_for(key, Cause::Object(change.with_parts_of(&update)));
    }
}

impl PendingWrite {
    /// Returns true if the reported version, or `None` for a deletion, is not the echo of this write. A failed write
    /// has no echo. After a successful write a deletion counts as its echo, since removing the last finalizer deletes
    /// the object.
    fn is_foreign(&self, reported: &Option<String>) -> bool {
        match &self.answer {
            Answer::NotWritten => true,
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
        let foreign = reported.into_iter().rfind(|reported| self.is_foreign(&reported.version));
        if let Some(Reported { change, update, .. }) = foreign {
            self.queue.add_for(Key::clone(&self.key), Cause::Object(change.with_parts_of(&update)));
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
    use crate::queue::tests::key;

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
        maps.on_key_event(move |event| follower.add_own_object(event, observes_deletions));

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

    #[tokio::test]
    async fn a_change_by_another_client_during_a_write_is_a_cause_with_its_parts() {
        let server = ApiServer::new();
        let mut map = ConfigMap::default();
        (map.metadata.name, map.metadata.namespace) = (Some("a".into()), Some("default".into()));
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&map)]);
        let (informer, queue): (Informer<ConfigMap>, _) = (cx.get(), Queue::new());
        let (follower, observes_deletions) = (queue.clone(), false);
        informer.on_key_event(move |event| follower.add_own_object(event, observes_deletions));
        let maps: Api<ConfigMap> = Api::namespaced(cx.client(), "default");
        let params = PatchParams::default();
        let write = async {
            let written = maps.patch("a", &params, &Patch::Merge(json!({"data": {"a": "b"}}))).await;
            let labels = Patch::Merge(json!({"metadata": {"labels": {"c": "d"}}}));
            maps.patch("a", &params, &labels).await.and(written)
        };
        let own_key = Arc::new(key("a"));
        let written = queue.suppressing_echo(own_key, write, |map| map.metadata.resource_version.as_deref());
        written.await.unwrap();
        let [(_, causes)] = &queue.take_all_with_causes()[..] else { panic!("the key is not enqueued once") };
        assert!(causes.to_string().ends_with(": metadata)"), "{causes}");
    }

    #[tokio::test]
    async fn the_echo_of_an_own_write_enqueues_its_key_in_other_queues_only() {
        let (own, other) = (Queue::new(), Queue::new());
        let write = async {
            for queue in [&own, &other] {
                queue.add_changed(key("a"), Some("2"), StateChange::to(Some("2")));
                queue.add_changed(key("b"), Some("2"), StateChange::to(Some("2")));
            }
            Ok::<_, ()>("2".to_owned())
        };
        own.suppressing_echo(key("a").into(), write, |version| Some(version)).await.unwrap();
        assert_eq!(own.take_all(), [key("b")]);
        assert_eq!(other.take_all(), [key("a"), key("b")]);
        own.add_changed(key("a"), Some("3"), StateChange::to(Some("3")));
        assert_eq!(own.take_all(), [key("a")], "a change after the write enqueues the key");
    }

    /// Writes `a`. While the write is in flight, the watch reports these resourceVersions of `a`, where `None` is a
    /// deletion. Then the write returns `answer`. Returns the keys that are enqueued after that.
    async fn enqueued_by(reported: &[Option<&str>], answer: Result<&str, ()>) -> Vec<Key> {
        let queue = Queue::new();
        let (send_answer, answered) = tokio::sync::oneshot::channel();
        let writing = tokio::spawn({
            let queue = queue.clone();
            async move {
                let write = async { answered.await.unwrap() };
                queue.suppressing_echo(key("a").into(), write, |version: &String| Some(version)).await
            }
        });
        tokio::task::yield_now().await;
        reported.iter().for_each(|version| queue.add_changed(key("a"), *version, StateChange::to(*version)));
        queue.add_changed(key("b"), Some("2"), StateChange::to(Some("2")));
        assert_eq!(queue.take_all(), [key("b")], "before the answer, only other keys are enqueued");
        send_answer.send(answer.map(str::to_owned)).unwrap();
        let _ = writing.await.unwrap();
        queue.take_all()
    }

    #[tokio::test]
    async fn an_echo_that_arrives_before_the_answer_enqueues_nothing() {
        assert_eq!(enqueued_by(&[Some("2")], Ok("2")).await, []);
        assert_eq!(
            enqueued_by(&[Some("2"), None], Ok("2")).await,
            [],
            "a write that removes the last finalizer deletes the object, so the deletion is an echo too"
        );
    }

    #[tokio::test]
    async fn other_changes_during_an_own_write_enqueue_its_key() {
        assert_eq!(enqueued_by(&[Some("2"), Some("3")], Ok("2")).await, [key("a")]);
        assert_eq!(
            enqueued_by(&[Some("2")], Err(())).await,
            [key("a")],
            "version 2 may come from another client"
        );
        assert_eq!(enqueued_by(&[None], Err(())).await, [key("a")]);
        assert_eq!(enqueued_by(&[], Err(())).await, []);
    }
}
