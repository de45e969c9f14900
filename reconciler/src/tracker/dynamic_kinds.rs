//! The Kinds that a controller finds at run time, and the informers that are open while its keys use them.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::{
    Resource,
    api::DynamicObject,
    core::GroupVersionKind,
    discovery::{ApiResource, Scope},
};
use parking_lot::Mutex;
use reknit_apis::{
    Key, dns_label, dns_subdomain,
    internal::{HashMap, HashSet},
};
use reknit_injection::{
    Informer, InformerHandle, Informers, Selection,
    internal::{on_kind_changed, open_unsynced},
    select,
};

use super::index::{Index, Tracker};
use crate::{Error, Kinds, Queue, Result, ResultExt, object_client::ObjectKind};

/// The longest wait for the retry of a pass that used an unknown Kind or one that cannot be listed. No watch reports
/// when that changes.
const RETRY_WITHIN: Duration = Duration::from_secs(15);

/// Finds Kinds at run time for one controller, and keeps their informers open while any of its keys uses them.
#[derive(Clone)]
pub(crate) struct DynamicKinds {
    pub(crate) allowed: Kinds,
    pub(crate) informers: Informers,
    /// The namespaces of the controller.
    pub(crate) namespaces: Selection,
    /// The work queue of the controller.
    pub(crate) queue: Queue,
    pub(crate) used: UsedKinds,
}

/// A Kind that the API server serves, and its informer.
pub(crate) struct FoundKind {
    pub(crate) kind: ObjectKind,
    pub(crate) informer: Informer<DynamicObject>,
}

/// The Kinds found at run time that the keys of one controller have used.
#[derive(Clone, Default)]
pub(crate) struct UsedKinds(Arc<Mutex<HashMap<ApiResource, UsedKind>>>);

/// The reads of a Kind, and its informer while there are any.
#[derive(Default)]
struct UsedKind {
    tracker: Tracker,
    informer: Option<Informer<DynamicObject>>,
    /// The informer to which the handler was added. It outlives `informer` if other code of the process keeps it, and
    /// must then not get a second handler.
    with_handler: Option<Weak<dyn InformerHandle>>,
    /// True once a pass reads the objects of that informer. Until then the handler ignores events: each pass that has
    /// recorded a read still waits for the first list. An event of that list would otherwise enqueue the key of the
    /// pass that opened the informer.
    is_read: Arc<AtomicBool>,
}

impl DynamicKinds {
    /// Creates the Kinds of a builder call. When the API server serves one of them in another way or no longer, its
    /// informer closes, and the keys that use the Kind are enqueued.
    pub(crate) fn new(
        allowed: Kinds,
        informers: Informers,
        namespaces: Selection,
        queue: Queue,
        used: UsedKinds,
    ) -> Self {
        let (changed, changed_queue) = (used.clone(), queue.clone());
        on_kind_changed(&informers, move |kind| {
            changed.close(kind).into_iter().for_each(|observer| changed_queue.add(observer));
        });
        Self { allowed, informers, namespaces, queue, used }
    }

    /// The open informers of the controller's Kinds.
    pub(super) fn open_informers(&self) -> Vec<Informer<DynamicObject>> {
        self.used.0.lock().values().filter_map(|used| used.informer.clone()).collect()
    }

    /// Finds a Kind if it is allowed, and opens its informer, which may start a watch. The informer closes again when
    /// the result is dropped, unless [`record`](Self::record) keeps it.
    pub(crate) async fn find(&self, api_version: &str, kind: &str) -> Result<FoundKind> {
        let found = self.find_known(api_version, kind).await?;
        let unknown = || {
            format!(
                "the API server does not know {kind} of {api_version}: is its CustomResourceDefinition installed?"
            )
        };
        found.ok_or_else(unknown).retry_within(RETRY_WITHIN)
    }

    /// Finds a Kind as [`find`](Self::find) does. `None` if the API server does not know it.
    pub(crate) async fn find_known(&self, api_version: &str, kind: &str) -> Result<Option<FoundKind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        if !(group.is_empty() || dns_subdomain(group).is_empty()) || !dns_label(version).is_empty() {
            return Err(Error::permanent(format!(
                "{api_version:?} is not an API version such as v1 or apps/v1"
            )));
        }
        let check_allowed = |plural: Option<&str>| match self.allowed.admit(group, plural) {
            true => Ok(()),
            false => Err(Error::permanent(format!(
                "{kind} of {api_version} is not among the Kinds that this controller may use: they are those in the \
                 `Kinds` of its builder call"
            ))),
        };
        check_allowed(None)?; // no request for a Kind of another group
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let Some((resource, scope)) = self.informers.resolve(&gvk).await.retry_within(RETRY_WITHIN)? else {
            return Ok(None);
        };
        check_allowed(Some(&resource.plural))?;
        let is_namespaced = scope == Scope::Namespaced;
        let selection = if is_namespaced { self.namespaces.clone() } else { select() };
        let informer = open_unsynced(&self.informers, &resource, selection);
        Ok(Some(FoundKind { kind: ObjectKind { resource, is_namespaced }, informer }))
    }

    /// The namespace to read from; `None` for a cluster-scoped Kind.
    pub(super) fn namespace<'a, O: Resource>(
        &self,
        observer: &'a O,
        named: Option<&'a str>,
        found: &FoundKind,
    ) -> Result<Option<&'a str>> {
        if !found.kind.is_namespaced {
            return Ok(None);
        }
        let ApiResource { api_version, kind, .. } = &found.kind.resource;
        let named = named.filter(|namespace| !namespace.is_empty());
        match named.or(observer.meta().namespace.as_deref()) {
            None => Err(Error::permanent(format!(
                "the reference to a {kind} of {api_version} names no namespace, and {} is cluster-scoped: name the \
                 namespace",
                Key::of(observer).name
            ))),
            Some(namespace) if !self.namespaces.selects_namespace(namespace) => {
                Err(Error::permanent(format!(
                    "the reference to a {kind} of {api_version} leads to the namespace {namespace}, which this \
                     controller does not read"
                )))
            }
            namespace => Ok(namespace),
        }
    }

    /// Records a read of the Kind, waits for the first list of the namespace, or of all for `None`, and returns the
    /// tracker of the Kind. The first read keeps the informer open, and makes its later events enqueue the observers. A
    /// failure is retried like an unknown Kind.
    ///
    /// The read is recorded before the wait, so that no change between the list and the caller's read is missed.
    pub(crate) async fn record(
        &self,
        found: &FoundKind,
        namespace: Option<&str>,
        read: impl FnOnce(&mut Index),
    ) -> Result<Tracker> {
        let (tracker, is_read) = {
            let mut used = self.used.0.lock();
            let kind = used.entry(found.kind.resource.clone()).or_default();
            read(&mut kind.tracker.lock());
            kind.keep_open(&found.informer, &self.queue);
            (kind.tracker.clone(), kind.is_read.clone())
        };
        found.informer.first_list(namespace).await.retry_within(RETRY_WITHIN)?;
        is_read.store(true, Ordering::Release);
        Ok(tracker)
    }
}

impl UsedKind {
    /// Keeps the informer open, and adds a handler to it unless it has one.
    fn keep_open(&mut self, informer: &Informer<DynamicObject>, queue: &Queue) {
        if self.informer.as_ref().is_some_and(|open| open.is_same_as(informer)) {
            return;
        }
        let handle = informer.handle();
        let with_handler = self.with_handler.as_ref().and_then(Weak::upgrade);
        if with_handler.is_none_or(|informer| !Arc::ptr_eq(&informer, &handle)) {
            self.with_handler = Some(Arc::downgrade(&handle));
            self.is_read = Arc::default();
            let (tracker, is_read, queue) = (self.tracker.clone(), self.is_read.clone(), queue.clone());
            informer.on_key_event(move |event| {
                if is_read.load(Ordering::Acquire) {
                    tracker.enqueue_observers(event, &queue);
                }
            });
        }
        self.informer = Some(informer.clone());
    }
}

impl UsedKinds {
    pub(super) fn for_each_index(&self, act: impl Fn(&mut Index)) {
        self.0.lock().values().for_each(|used| act(&mut used.tracker.lock()));
    }

    /// Closes the informers of this Kind, and returns the keys that use it.
    fn close(&self, kind: &GroupVersionKind) -> HashSet<Key> {
        let is_of_kind = |resource: &ApiResource| {
            (&resource.group, &resource.version, &resource.kind) == (&kind.group, &kind.version, &kind.kind)
        };
        let (mut closed, mut observers) = (Vec::new(), HashSet::default());
        for (_, used) in self.0.lock().iter_mut().filter(|(resource, _)| is_of_kind(resource)) {
            closed.extend(used.informer.take());
            observers.extend(used.tracker.lock().all_observers());
        }
        observers // `closed` is dropped without the lock, as in `close_unused`
    }

    /// Closes the informers of Kinds that no key uses any more.
    pub(super) fn close_unused(&self) {
        let mut used = self.0.lock();
        let unused = used.values_mut().filter(|kind| kind.tracker.lock().is_empty());
        let closed: Vec<_> = unused.filter_map(|kind| kind.informer.take()).collect();
        drop(used);
        drop(closed); // without the lock: an informer that stops drops its handlers
    }
}

#[cfg(test)]
mod tests {
    use reknit_injection::Context;
    use reknit_testing::ApiServer;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_not_listed_yet_is_retried_like_an_unknown_one() {
        let cx = Context::new("test", ApiServer::new().client());
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
        let informer: Informer<DynamicObject> = cx.informer_of(&resource, select());
        let kinds =
            DynamicKinds::new(Kinds::any(), cx.informers(), select(), Queue::new(), UsedKinds::default());
        let found = FoundKind { kind: ObjectKind { resource, is_namespaced: true }, informer };
        let key = Key::new("default", "x");
        let error = kinds.record(&found, None, |reads| reads.use_kind(&key)).await.err().unwrap();
        assert!(!error.is_permanent());
        assert_eq!(*error.retry_wait().end(), RETRY_WITHIN);
    }
}
