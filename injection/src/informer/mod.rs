//! An informer: a watched and cached selection of a Kind.

pub(crate) mod cached;
pub(crate) mod change;
mod discovery;
mod filter;
mod first_list;
pub(crate) mod handle;
mod index;
pub(crate) mod key_event;
pub(crate) mod metrics;
mod registry;
pub(crate) mod selection;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use reknit_apis::Key;
use serde::Serialize;
use tokio::{task::AbortHandle, time::sleep};

pub use self::{
    cached::{Cached, Metadata},
    change::{Change, Old},
    discovery::Unresolved,
    filter::{Filter, annotation, controlled_by, controller_name, label, named, namespace},
    first_list::{NotSynced, listed, on_first_lists},
    handle::{InformerHandle, InformerState, Unwatched},
    index::{Index, WeakIndex},
    key_event::KeyEvent,
    registry::{
        Informers, cached_json, decode_errors, for_each_cached, on_kind_changed, redaction, start_on, writers,
    },
    selection::{Selection, can_be_left, carriers_outside, field_term, select, selected_objects},
};
pub(crate) use self::{
    handle::{is_settled, is_synced},
    metrics::GaugeShare,
    registry::{ObjectSource, StateBefore},
};
use crate::{
    cache::{Cache, DecodeError, Stores},
    object::{Object, encode},
    recording::ListScope,
};

/// The interval at which a wait for a version looks at the cache.
const POLL: Duration = Duration::from_millis(10);

/// A watched and cached selection of a Kind: the objects as the API server last reported them or, if that is newer, as
/// this process has written them.
///
/// Reading never waits and never fails, even before the first list. A reconciler reads only complete lists, since it
/// runs only once all informers that the controller's constructor requested are [synced](Self::synced). An object that
/// [`Context::client`](crate::Context::client) wrote, or read by name, is in the cache as soon as the request returns.
/// Clones share one informer, which stops when the last clone is dropped.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::{Pod, Service};
/// use reknit_apis::Key;
/// use reknit_injection::{Context, Informer, select};
///
/// fn read_objects(cx: &Context) {
///     let services: Informer<Service> = cx.get();
///     let web = services.get(&Key::new("shop", "web"));
///
///     let ide_pods = cx.informer::<Pod>(select().namespace("ide").label("kind", "cloud-ide"));
///     let running = ide_pods.list().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count();
/// #   let _ = (web, running);
/// }
/// ```
#[derive(derive_more::Debug)]
#[debug("Informer {{ name: {:?}, len: {} }}", self.name(), self.len())]
pub struct Informer<K: Cached>(pub(crate) Arc<SharedInformer<K>>);

/// The state that the clones of an informer share. Dropping it aborts the reflector's task.
pub(crate) struct SharedInformer<K: Cached> {
    pub(crate) cache: Arc<Cache<K>>,
    pub(crate) task: OnceLock<AbortHandle>,
}

impl<K: Cached> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Cached> Informer<K> {
    pub(crate) fn of(cache: Cache<K>) -> Self {
        Self(Arc::new(SharedInformer { cache: Arc::new(cache), task: OnceLock::new() }))
    }

    /// Returns the object of this key, if it is cached.
    ///
    /// Objects are cached as compact JSON and decoded when they are read, in one to three microseconds. Read an object
    /// once and keep the `Arc` for as long as it is needed.
    pub fn get(&self, key: &Key) -> Option<Arc<K>> {
        self.0.cache.get(key)
    }

    /// Returns the object of this key, or an error if its newest state cannot be decoded.
    ///
    /// # Errors
    ///
    /// The newest state that the API server reported cannot be decoded. [`get`](Self::get) then returns the last state
    /// that could be decoded, if any, and a write that builds on that state fails with a conflict.
    pub fn newest(&self, key: &Key) -> Result<Option<Arc<K>>, DecodeError> {
        self.0.cache.newest(key)
    }

    /// Returns a snapshot of all objects, in no particular order. Each object is decoded when the iterator reaches it.
    pub fn list(&self) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.decode_each(self.0.cache.list(None))
    }

    /// Returns the objects of one namespace, without visiting other namespaces.
    pub fn list_in(&self, namespace: &str) -> impl Iterator<Item = Arc<K>> + use<K> {
        self.decode_each(self.0.cache.list(Some(namespace)))
    }

    /// Returns the objects whose labels match, in one namespace or in all. Other objects are not decoded.
    pub fn list_labelled<F>(
        &self,
        namespace: Option<&str>,
        matches: F,
    ) -> impl Iterator<Item = Arc<K>> + use<K, F>
    where
        F: Fn(&BTreeMap<String, String>) -> bool,
    {
        self.decode_each(
            self.0.cache.list(namespace).into_iter().filter(move |object| matches(&object.labels())),
        )
    }

    fn decode_each<I: IntoIterator<Item = Object>>(
        &self,
        objects: I,
    ) -> impl Iterator<Item = Arc<K>> + use<K, I> {
        let cache = self.0.cache.clone();
        objects.into_iter().filter_map(move |object| cache.decode(&object))
    }

    /// Returns a snapshot of the keys of all objects, in no particular order, including the keys of objects that cannot
    /// be decoded. Decodes no object.
    pub fn keys(&self) -> Vec<Key> {
        self.0.cache.keys()
    }

    /// Returns the number of cached objects.
    pub fn len(&self) -> usize {
        self.0.cache.record_list(ListScope::All, || self.0.cache.objects());
        self.0.cache.read(|stores| stores.len())
    }

    /// Returns true if an object of this key is cached. Does not decode the object.
    pub fn contains(&self, key: &Key) -> bool {
        self.0.cache.contains(key)
    }

    /// Returns true if no object is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the cached objects in bytes: compact JSON without `apiVersion` and `kind`, and without
    /// `managedFields` unless the selection keeps them.
    pub fn bytes(&self) -> usize {
        self.0.cache.read(|stores| stores.bytes())
    }

    /// Waits until the first list is in the cache. Completes immediately if it already is.
    pub async fn synced(&self) {
        InformerHandle::synced(&*self.0).await;
    }

    /// Returns the progress of the informer.
    pub fn state(&self) -> InformerState {
        self.0.cache.progress.state(None)
    }

    /// Returns the name of the informer in logs: the resource and the selection.
    pub fn name(&self) -> &str {
        &self.0.cache.name
    }

    /// Waits until `condition` returns a value, and returns that value. `condition` is called with the current object
    /// first, and again after each change of the object. Its argument is `None` while the object is not cached. Several
    /// changes in quick succession may cause a single call.
    ///
    /// There is no time limit: to set one, use `tokio::time::timeout`.
    pub async fn until<T>(&self, key: &Key, mut condition: impl FnMut(Option<&K>) -> Option<T>) -> T {
        let waiter = self.0.cache.waiters.register(key);
        loop {
            let mut changed = pin!(waiter.changed.notified());
            changed.as_mut().enable();
            if let Some(value) = condition(self.get(key).as_deref()) {
                return value;
            }
            changed.await;
        }
    }

    /// Calls `handler` with each change, one at a time and in order. The first calls are for the objects that are
    /// already cached, each as `Added`, unless the informer is [preloaded](crate::Context::preloaded).
    ///
    /// Handlers run in the task that caused the change, which may be the task of an own write. They must not block.
    /// They can read this informer, but adding a handler to it, or waiting for a write of an object of its Kind,
    /// deadlocks. A handler that holds a clone of the informer keeps it running for as long as the process runs. If a
    /// handler panics, the panic is logged, and the handler is still called with later changes.
    pub fn on(&self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.0.cache.add_handler(Box::new(handler));
    }

    /// Calls `handler` with each change as [`on`](Self::on) does, under the same rules, but with the key instead of the
    /// object, and also for a new state that cannot be decoded.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::Secret;
    /// use reknit_injection::{Context, Informer};
    ///
    /// fn print_changes(cx: &Context) {
    ///     let secrets: Informer<Secret> = cx.get();
    ///     secrets.on_key_event(|event| match event.is_deleted() {
    ///         false => println!("{} was created or changed", event.key()),
    ///         true => println!("{} was deleted", event.key()),
    ///     });
    /// }
    /// ```
    pub fn on_key_event(&self, handler: impl Fn(&KeyEvent<'_>) + Send + Sync + 'static) {
        self.0.cache.add_key_event_handler(Box::new(handler));
    }

    /// Calls `handler` with the key of each object that cannot be decoded, and the reason, once for each version. The
    /// informer also logs the reason. The last version that could be decoded stays cached.
    pub fn on_undecodable(&self, handler: impl Fn(&Key, &str) + Send + Sync + 'static) {
        self.0.cache.add_undecodable_handler(Box::new(handler));
    }

    /// Returns true if both are the same informer: of the same type, Kind and selection in this process.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// For tests: caches an object whatever its version and calls the handlers, or removes it if the selection does not
    /// admit it.
    pub(crate) fn insert(&self, object: &K) -> Result<(), String>
    where
        K: Serialize,
    {
        let (object, decoded) = encode(object, &self.0.cache.kind)?;
        self.0.cache.insert(object, &decoded);
        Ok(())
    }

    /// For tests: removes an object and calls the handlers.
    pub(crate) fn remove(&self, key: &Key) {
        self.0.cache.remove(key);
    }

    /// Returns the informer without its type.
    pub fn handle(&self) -> Arc<dyn InformerHandle> {
        self.0.clone()
    }
}

impl<K: Cached> Drop for SharedInformer<K> {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

impl<K: Cached> InformerHandle for SharedInformer<K> {
    fn name(&self) -> &str {
        &self.cache.name
    }

    fn state_in(&self, namespace: Option<&str>) -> InformerState {
        let part = namespace.and_then(|_| self.cache.selection.part_of(namespace));
        self.cache.progress.state(part)
    }

    fn is_synced(&self) -> bool {
        is_synced(&self.cache.progress.subscribe().borrow())
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let (cache, mut progress) = (self.cache.clone(), self.cache.progress.subscribe());
        Box::pin(async move {
            // The cache holds the sender, so the wait cannot fail.
            let _ = progress.wait_for(|parts| is_synced(parts)).await;
            drop(cache);
        })
    }

    fn unwatched(&self) -> Option<Unwatched> {
        self.cache.progress.unwatched()
    }

    fn last_writes(&self) -> Vec<(usize, String)> {
        let parts = 0..self.cache.selection.parts().len();
        let last = |stores: &Stores, part| stores.part(part)?.last_response().map(str::to_owned);
        self.cache.read(|stores| parts.filter_map(|part| Some((part, last(stores, part)?))).collect())
    }

    fn reached(&self, part: usize, version: &str) -> BoxFuture<'static, ()> {
        let (cache, version) = (self.cache.clone(), version.to_owned());
        let has_all = move || {
            let is_synced = cache.progress.state(Some(part)).is_synced();
            !is_synced || cache.read(|stores| stores.part(part).is_none_or(|store| store.has_all(&version)))
        };
        Box::pin(async move {
            // Only a handover waits for a version, so polling costs little.
            while !has_all() {
                sleep(POLL).await;
            }
        })
    }

    fn list_again(&self, part: usize) {
        self.cache.progress.request_list(part);
    }
}

/// An informer of objects that a controller can do without.
pub(crate) struct OptionalInformer<K: Cached>(pub(crate) Informer<K>);

impl<K: Cached> InformerHandle for OptionalInformer<K> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn state_in(&self, namespace: Option<&str>) -> InformerState {
        self.0.0.state_in(namespace)
    }

    fn is_synced(&self) -> bool {
        is_settled(&self.0.0.cache.progress.subscribe().borrow())
    }

    fn synced(&self) -> BoxFuture<'static, ()> {
        let (informer, mut progress) = (self.0.clone(), self.0.0.cache.progress.subscribe());
        Box::pin(async move {
            let _ = progress.wait_for(|parts| is_settled(parts)).await;
            drop(informer);
        })
    }

    fn is_required(&self) -> bool {
        false
    }

    fn unwatched(&self) -> Option<Unwatched> {
        self.0.0.unwatched()
    }

    fn last_writes(&self) -> Vec<(usize, String)> {
        self.0.0.last_writes()
    }

    fn reached(&self, part: usize, version: &str) -> BoxFuture<'static, ()> {
        self.0.0.reached(part, version)
    }

    fn list_again(&self, part: usize) {
        self.0.0.list_again(part);
    }
}
