//! Items for the other crates of reknit. They are not part of the public API, and may change in any release.

use kube::{core::GroupVersionKind, discovery::ApiResource};
use reknit_apis::Key;
pub use reknit_apis::internal::{
    Environment, HashMap, HashSet, Seeded, host_name, now, random, random_range, random_uuid, variable,
    within,
};
use serde::Serialize;
use serde_json::Value;
use tokio::{runtime::Handle, time::Instant};

use crate::{Cached, Clock, Context, Informer, Informers, NotSynced, Selection, informer, reflector};
pub use crate::{
    cache::{changed_parts, is_initial},
    causes::{panic_message, with_causes},
    client::{
        HttpResponse, NoRetry, PassRequest, PassRequests, RequestEnd, ResourcePath, Term, TermBody,
        TermEnded, Transport, Writers, WrittenState, has_term_ended, header_warnings, is_apply, is_dry_run,
        is_watch, request_verb, retry_after, retry_after_of, retry_after_of_status,
        with_retry_after_in_status, within_term,
    },
    config::with_pinned_config,
    fights::Restored,
    informer::{KeyEvent, Old, WeakIndex},
    log_limit::LogLimit,
    metrics::{register_durations, register_metric},
    object::Parts,
    pass::CurrentPass,
    permissions::{Permissions, RequestAttributes, UnnamedKinds},
    recording::{
        ConfigMapData, ListRead, ObjectName, PassFacts, RecordedKind, RecordedPass, RecordedRequest,
        Recordings, RunningRecording,
    },
    reflector::jittered,
    stack_question::{StackAnswer, StackQuestion},
    timing::sleep_until_optional,
};

/// A channel that holds one value.
pub mod watch {
    pub use crate::watch::{Closed, Receiver, Ref, Sender};
}

/// Reads a watch that arrives in these frames, for fuzzers: of each line the type of the event and the key of the object, or
/// `None` if it is malformed.
pub async fn read_watch(frames: Vec<Vec<u8>>) -> Vec<Option<(String, Key)>> {
    reflector::read_watch(frames).await
}

/// Opens an informer without waiting for its first list. The caller must not read it before [`listed`] is `Ok`.
pub fn open_unsynced<K: Cached>(
    informers: &Informers,
    kind: &ApiResource,
    selection: Selection,
) -> Informer<K> {
    informers.get(kind.clone(), selection)
}

/// Returns the result of the first list of a namespace, or of all that the informer selects. `None` if it has neither
/// succeeded nor failed yet, and is not overdue.
pub fn listed<K: Cached>(informer: &Informer<K>, namespace: Option<&str>) -> Option<Result<(), NotSynced>> {
    informer.listed(namespace)
}

/// Returns a future that calls `act` each time the first list of a namespace succeeds or fails, and once if it is overdue.
/// It ends when each has succeeded, and when the informer is dropped, which it does not keep.
pub fn on_first_lists<K: Cached, F: Fn() + Send>(
    informer: &Informer<K>,
    act: F,
) -> impl Future<Output = ()> + Send + use<K, F> {
    informer.on_first_lists(act)
}

/// Returns the informer of objects that a controller can do without: the controller does not wait for them while they are
/// unavailable.
pub fn optional_informer<K: Cached<DynamicType = ()>>(cx: &Context, selection: Selection) -> Informer<K> {
    cx.optional_informer(selection)
}

/// Returns a function that reads the cached state of an object, other than `managedFields`. It returns `None` if no
/// informer has objects of this resource, and does not keep the informers.
pub fn cached_json(
    informers: &Informers,
) -> impl Fn(&ResourcePath<'_>) -> Option<Option<Value>> + Send + Sync + use<> {
    informers.cached_json()
}

/// Calls the function with each cached object.
pub fn for_each_cached(informers: &Informers, visit: &mut dyn FnMut(&ApiResource, Value)) {
    informers.for_each_cached(visit);
}

/// Returns the passes that wrote the last states of objects.
pub fn writers(informers: &Informers) -> Writers {
    informers.writers().clone()
}

/// Calls the handler with each Kind that was [resolved](Informers::resolve) and that the API server now serves in another
/// way, or no longer.
pub fn on_kind_changed(informers: &Informers, handler: impl Fn(&GroupVersionKind) + Send + Sync + 'static) {
    informers.on_kind_changed(handler);
}

/// Starts an informer on this runtime, with requests through this transport, before the others are started.
pub fn start_on<K: Cached>(informer: &Informer<K>, runtime: &Handle, transport: &Transport) {
    informer::start_on(informer, runtime, transport);
}

/// Returns the time of the clock as an instant.
pub fn clock_instant(clock: &Clock) -> Instant {
    clock.instant()
}

/// Returns a future that completes when the clock is set after this call. For the system clock it never completes.
pub fn next_clock_change(clock: &Clock) -> impl Future<Output = ()> + Send + use<> {
    clock.next_change()
}

/// Returns true for a clock that a test controls, also before the test sets it, and false for the system clock.
pub fn is_test_clock(clock: &Clock) -> bool {
    clock.is_set()
}

/// For tests: inserts an object into the informer's cache and calls its handlers. An object that the selection does not
/// admit is removed instead. Fails if the object cannot be serialized and deserialized again.
pub fn insert<K: Cached + Serialize>(informer: &Informer<K>, object: &K) -> Result<(), String> {
    informer.insert(object)
}

/// For tests: removes an object from the informer's cache and calls its handlers.
pub fn remove<K: Cached>(informer: &Informer<K>, key: &Key) {
    informer.remove(key);
}

/// Returns the selection of the informer.
pub fn selection<K: Cached>(informer: &Informer<K>) -> &Selection {
    &informer.0.cache.selection
}

/// Returns true if a change of an object can take it out of the selection of this informer.
pub fn can_be_left<K: Cached>(informer: &Informer<K>) -> bool {
    selection(informer).can_be_left()
}

/// Returns the selection of the objects outside this selection that carry one of these finalizers. `None` if no object
/// can leave this selection. An informer of the result lists and watches all objects in the same namespaces, and keeps
/// only the selected ones.
pub fn carriers_outside(selection: &Selection, finalizers: &[&str]) -> Option<Selection> {
    selection.carriers_outside(finalizers)
}

/// Returns the newest state of an object as JSON, if it cannot be decoded.
pub fn undecodable_json<K: Cached>(informer: &Informer<K>, key: &Key) -> Option<Value> {
    informer.0.cache.undecodable_json(key)
}

/// Returns true if an object of this key exists, even if it cannot be decoded.
pub fn exists<K: Cached>(informer: &Informer<K>, key: &Key) -> bool {
    informer.contains(key) || informer.0.cache.is_undecodable(key)
}
