//! A lister that remembers who asked.

use std::{fmt, sync::Arc};

use kube::{
    Resource,
    core::{Selector, SelectorExt},
};
use reknit_apis::{Key, Scope, Sees};
use reknit_injection::{Cached, Informer};

use super::trackers::Tracker;

/// Objects of one Kind for a pass to read: what it read wakes it again when it changes, comes or goes.
///
/// Comes from [`Builder::track`](crate::Builder::track). The observer is the object whose pass reads. It is noted
/// before the read, so that no change in between is missed; where a pass that ended well did not read something
/// again, that wakes its key no longer. Clones are one: what is read through any of them is read by the same controller.
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
///         self.services.get(pod, "web").is_some() // false now, and woken once there is one
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Tracked<T: Cached> {
    informer: Informer<T>,
    tracker: Tracker,
}

impl<T: Cached<DynamicType = (), Scope: Scope>> Tracked<T> {
    pub(crate) fn new(informer: Informer<T>, tracker: Tracker) -> Self {
        Self { informer, tracker }
    }

    /// The `T` of this name, in the observer's namespace where `T` is namespaced.
    pub fn get<O: Resource<Scope: Sees<T::Scope>>>(&self, observer: &O, name: &str) -> Option<Arc<T>> {
        self.look(observer, Key::new(home(observer, T::Scope::NAMESPACED), name))
    }

    /// The `T` of this name in another namespace.
    pub fn get_in<O: Resource>(&self, observer: &O, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.look(observer, Key::new(Some(namespace).filter(|_| T::Scope::NAMESPACED), name))
    }

    /// Those whose labels match, in the observer's namespace where `T` is namespaced. One that comes to match later
    /// wakes the observer, and so does one that no longer does.
    pub fn matching<O: Resource<Scope: Sees<T::Scope>>>(
        &self,
        observer: &O,
        selector: &Selector,
    ) -> impl Iterator<Item = Arc<T>> + use<T, O> {
        let namespace = home(observer, T::Scope::NAMESPACED);
        self.tracker.read_matching(&Key::of(observer), namespace, selector);
        matching(&self.informer, namespace, selector)
    }

    /// Tracks nothing more for this observer: for a finalizer whose object takes a while to go.
    pub fn forget<O: Resource>(&self, observer: &O) {
        self.tracker.forget(&Key::of(observer));
    }

    fn look<O: Resource>(&self, observer: &O, target: Key) -> Option<Arc<T>> {
        self.tracker.read(&Key::of(observer), &target); // before the read: a change in between wakes
        self.informer.get(&target)
    }
}

impl<T: Cached> fmt::Debug for Tracked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracked").field("informer", &self.informer).finish_non_exhaustive()
    }
}

/// Where an observer looks that says no namespace.
fn home<O: Resource>(observer: &O, namespaced: bool) -> Option<&str> {
    observer.meta().namespace.as_deref().filter(|_| namespaced)
}

/// Those that match in one namespace, or everywhere.
pub(super) fn matching<T: Cached>(
    informer: &Informer<T>,
    namespace: Option<&str>,
    selector: &Selector,
) -> std::vec::IntoIter<Arc<T>> {
    let found: Vec<_> = informer.list_labelled(namespace, |labels| selector.matches(labels)).collect();
    found.into_iter()
}
