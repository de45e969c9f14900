//! Enqueues keys when objects of an informer change.

use std::{cell::LazyCell, sync::Arc};

use reknit_apis::Key;
use reknit_injection::{Cached, Filter, Informer};

use crate::{
    Queue,
    limits::catch_panic,
    queue::{Cause, Source},
};

/// A watch of an informer, whose methods map changed objects to keys. Comes from
/// [`Builder::watch`](crate::Builder::watch).
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
#[must_use = "a watch enqueues nothing before `.keys(…)` or `.resync_every_key()`"]
pub struct Watch<'a, T: Cached> {
    informer: Informer<T>,
    queue: &'a Queue,
    /// True if the controller has no Kind, so that its keys are those that its watches map to.
    is_key_source: bool,
    filter: Option<Filter<T>>,
    /// The relation of the objects to the keys, for the causes of a pass.
    relation: &'static str,
}

impl<'a, T: Cached> Watch<'a, T> {
    pub(super) fn new(informer: Informer<T>, queue: &'a Queue, is_key_source: bool) -> Self {
        Self { informer, queue, is_key_source, filter: None, relation: Source::WATCHED }
    }

    /// Declares that the keys are those of the objects' owners.
    pub(super) fn by_owner(self) -> Self {
        Self { relation: Source::OWNED, ..self }
    }

    /// Handles a change only if the filter admits the object before or after it. Of several filters, all must admit the
    /// object.
    pub fn filter(mut self, filter: Filter<T>) -> Self {
        self.filter = Some(match self.filter {
            Some(first) => first & filter,
            None => filter,
        });
        self
    }

    /// Enqueues the keys that `keys` returns for the old and the new object. So an object that moves from one key to
    /// another enqueues both.
    pub fn keys<I: IntoIterator<Item = Key>>(self, keys: impl Fn(&T) -> I + Send + Sync + 'static) {
        let Self { informer, queue, is_key_source, filter, relation } = self;
        let for_each_key = Arc::new(move |object: &T, act: &mut dyn FnMut(Key)| {
            catch_panic(&Key::of(object), || {
                if admits(&filter, object) {
                    keys(object).into_iter().for_each(act);
                }
            });
        });
        if is_key_source {
            let (informer, for_each_key) = (informer.clone(), for_each_key.clone());
            queue.add_key_source(move |all| {
                informer.list().for_each(|object| for_each_key(&object, &mut |key| all.push(key)));
            });
        }
        let (queue, source) = (queue.clone(), Source::new(relation, &informer));
        informer.on(move |change| {
            let cause = LazyCell::new(|| Cause::other(&source, change));
            change
                .objects()
                .for_each(|object| for_each_key(object, &mut |key| queue.add_for(key, Cause::clone(&cause))));
        });
    }

    /// Enqueues every key of the controller in the slow lane, for objects that all of them depend on.
    pub fn resync_every_key(self) {
        let (filter, queue) = (self.filter, self.queue.clone());
        let source = Source::new(self.relation, &self.informer);
        self.informer.on(move |change| {
            catch_panic(&change.key(), || {
                if change.objects().any(|object| admits(&filter, object)) {
                    queue.resync_for(&Cause::other(&source, change));
                }
            });
        });
    }
}

fn admits<T: Cached>(filter: &Option<Filter<T>>, object: &T) -> bool {
    filter.as_ref().is_none_or(|filter| filter.admits(object))
}
