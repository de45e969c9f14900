//! Wakes keys when objects of some informer change.

use std::sync::Arc;

use reknit_apis::Key;
use reknit_injection::{Cached, Filter, Informer};

use super::key_sources::KeySources;
use crate::{Queue, limits::caught};

/// Says which keys a changed object wakes; from [`Builder::watch`](crate::Builder::watch).
///
/// ```
/// use k8s_openapi::api::core::v1::{Namespace, Secret};
/// use reknit_injection::{Context, Informer, label, namespace};
/// use reknit_reconciler::{Controller, Key, keys};
///
/// fn watches(cx: &Context) {
///     let mut build = Controller::of::<Namespace>(cx);
///     let secrets = cx.get::<Informer<Secret>>();
///     // the namespace that a Secret is in
///     build.watch(&secrets).filter(!namespace("kube-system")).keys(keys::namespace);
///     // the cluster-scoped parent that a label names
///     build.watch(&secrets).keys(keys::cluster_label("example.com/tenant"));
///     // anything that can be computed
///     build.watch(&secrets).filter(label("mirrored", "true")).keys(|secret| {
///         let all = secret.data.iter().flat_map(|data| data.keys());
///         all.map(|name| Key::new(None, name)).collect::<Vec<_>>()
///     });
/// }
/// ```
#[must_use = "a watch wakes nobody until `.keys(…)` says whom"]
pub struct Watch<'a, T: Cached> {
    informer: Informer<T>,
    queue: &'a Queue,
    key_sources: &'a Arc<KeySources>,
    /// Whether the keys of what is watched are all the keys that the controller has.
    is_source: bool,
    filter: Option<Filter<T>>,
}

impl<'a, T: Cached> Watch<'a, T> {
    pub(crate) fn new(
        informer: Informer<T>,
        queue: &'a Queue,
        key_sources: &'a Arc<KeySources>,
        is_source: bool,
    ) -> Self {
        Self { informer, queue, key_sources, is_source, filter: None }
    }

    /// Only changes of objects that were or are admitted. Of two filters both have to admit.
    pub fn filter(mut self, filter: Filter<T>) -> Self {
        self.filter = Some(match self.filter {
            Some(first) => first & filter,
            None => filter,
        });
        self
    }

    /// Wakes these keys. Both the old and the new object are asked, so that an object that moves away wakes whom it
    /// left.
    pub fn keys<I: IntoIterator<Item = Key>>(self, keys: impl Fn(&T) -> I + Send + Sync + 'static) {
        let Self { informer, queue, key_sources, is_source, filter } = self;
        let queue = queue.clone();
        let of = Arc::new(move |object: &T, act: &mut dyn FnMut(Key)| {
            caught(&Key::of(object), || {
                if filter.as_ref().is_none_or(|filter| filter.admits(object)) {
                    keys(object).into_iter().for_each(act);
                }
            });
        });
        if is_source {
            let (informer, of) = (informer.clone(), of.clone());
            key_sources
                .add(move |all| informer.list().for_each(|object| of(&object, &mut |key| all.push(key))));
        }
        informer.on(move |change| {
            for object in change.objects() {
                of(object, &mut |key| queue.add(key));
            }
        });
    }

    /// Wakes every key of the controller, slowly: for what all of them depend on.
    pub fn every_key(self) {
        let Self { informer, queue, key_sources, filter, .. } = self;
        let (queue, sources) = (queue.clone(), Arc::downgrade(key_sources));
        informer.on(move |change| {
            caught(&change.key(), || {
                let admitted = |object: &Arc<T>| filter.as_ref().is_none_or(|filter| filter.admits(object));
                if let Some(sources) = sources.upgrade().filter(|_| change.objects().any(admitted)) {
                    sources.keys().into_iter().for_each(|key| queue.add_slow(key));
                }
            });
        });
    }
}
