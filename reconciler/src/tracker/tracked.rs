//! [`Tracked`], a lister that records its reads.

use std::sync::Arc;

use kube::{
    Resource,
    core::{Selector, SelectorExt},
};
use reknit_apis::{Key, Scope, Sees};
use reknit_injection::{Cached, Informer};

use super::index::Tracker;

/// Objects of one Kind for a pass to read. The object that is reconciled becomes an observer of each object that its
/// pass reads: its key is enqueued when that object is created, changed or deleted.
///
/// Comes from [`Builder::track`](crate::Builder::track). A read is recorded before the cache is read, so no change is
/// missed in between. The record is dropped after a successful pass that does not repeat the read. While the passes of an
/// object fail, the reads of the last successful pass and of the last failed one are kept. All clones share one state.
///
/// ```
/// use k8s_openapi::api::core::v1::{Pod, Service};
/// use reknit_reconciler::Tracked;
///
/// struct Reconciler {
///     services: Tracked<Service>,
/// }
///
/// impl Reconciler {
///     fn is_served(&self, pod: &Pod) -> bool {
///         self.services.get(pod, "web").is_some() // the Service's creation enqueues the Pod's key
///     }
/// }
/// ```
#[derive(Clone, derive_more::Debug)]
#[debug("Tracked {{ informer: {informer:?}, .. }}")]
pub struct Tracked<T: Cached> {
    informer: Informer<T>,
    tracker: Tracker,
}

impl<T: Cached<DynamicType = (), Scope: Scope>> Tracked<T> {
    pub(crate) fn new(informer: Informer<T>, tracker: Tracker) -> Self {
        Self { informer, tracker }
    }

    /// Returns the `T` of this name, in the observer's namespace if `T` is namespaced.
    pub fn get<O: Resource<Scope: Sees<T::Scope>>>(&self, observer: &O, name: &str) -> Option<Arc<T>> {
        self.read(observer, Key::new(default_namespace(observer, T::Scope::NAMESPACED), name))
    }

    /// Returns the `T` of this name in another namespace.
    ///
    /// If this process selects several namespaces and may not list that one, no object is found there. The log and the
    /// metric `reflector_unsynced` report this; passes of keys in that namespace fail.
    pub fn get_in<O: Resource>(&self, observer: &O, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.read(observer, Key::new(Some(namespace).filter(|_| T::Scope::NAMESPACED), name))
    }

    /// Lists the objects whose labels match, in the observer's namespace if `T` is namespaced. An object that starts or
    /// stops matching enqueues the observer's key.
    pub fn matching<O: Resource<Scope: Sees<T::Scope>>>(
        &self,
        observer: &O,
        selector: &Selector,
    ) -> impl Iterator<Item = Arc<T>> + use<T, O> {
        self.read_matching(observer, default_namespace(observer, T::Scope::NAMESPACED), selector)
    }

    /// Lists the objects in another namespace whose labels match, as [`matching`](Self::matching) does: for example the
    /// EndpointSlices of a Service that an object names in any namespace.
    ///
    /// ```
    /// use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
    /// use kube::core::Expression;
    /// use reknit_reconciler::Tracked;
    ///
    /// fn slices(slices: &Tracked<EndpointSlice>, pod: &Pod, namespace: &str, service: &str) -> usize {
    ///     let selector = Expression::Equal("kubernetes.io/service-name".into(), service.into());
    ///     slices.matching_in(pod, namespace, &selector.into()).count()
    /// }
    /// ```
    pub fn matching_in<O: Resource>(
        &self,
        observer: &O,
        namespace: &str,
        selector: &Selector,
    ) -> impl Iterator<Item = Arc<T>> + use<T, O> {
        self.read_matching(observer, Some(namespace).filter(|_| T::Scope::NAMESPACED), selector)
    }

    /// Records the read, then lists the objects from the cache.
    fn read_matching<O: Resource>(
        &self,
        observer: &O,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> std::vec::IntoIter<Arc<T>> {
        self.tracker.lock().read_matching(&Key::of(observer), namespace, selector);
        matching(&self.informer, namespace, selector)
    }

    /// Records the read, then returns the object from the cache.
    fn read<O: Resource>(&self, observer: &O, target: Key) -> Option<Arc<T>> {
        self.tracker.lock().record_read(&Key::of(observer), &target); // first: a change after the cache is read is not missed
        self.informer.get(&target)
    }
}

/// The namespace to read from if the caller names none: the observer's, if the Kind to read is namespaced.
fn default_namespace<O: Resource>(observer: &O, is_namespaced: bool) -> Option<&str> {
    observer.meta().namespace.as_deref().filter(|_| is_namespaced)
}

/// Lists the objects that match, in one namespace or all.
pub(super) fn matching<T: Cached>(
    informer: &Informer<T>,
    namespace: Option<&str>,
    selector: &Selector,
) -> std::vec::IntoIter<Arc<T>> {
    let found: Vec<_> = informer.list_labelled(namespace, |labels| selector.matches(labels)).collect();
    found.into_iter()
}
