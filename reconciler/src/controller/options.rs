//! The options of a controller, set on its builder.

use std::time::Duration;

use reknit_apis::{Bounds, Kind};
use reknit_injection::Filter;

use super::Builder;

impl<K> Builder<K> {
    /// Sets the name of the controller, its queue and its leases. The default is `<plural>.<group>`.
    pub fn name(mut self, name: &str) -> Self {
        self.parts.name = name.into();
        self
    }

    /// Sets the number of keys that are reconciled at once. The default is 2. The environment variable
    /// `K_THREADS_PER_CONTROLLER` overrides the default and this setting.
    ///
    /// Namespaces take turns. While all workers are busy, one more key is reconciled if no other key of its namespace is:
    /// so no namespace can occupy the controller, however slow its objects are. With one worker there is no such
    /// exception, and a slow object delays those of other namespaces.
    pub fn workers(mut self, workers: usize) -> Self {
        self.parts.workers = workers;
        self
    }

    /// Sets the resync interval, at which every key is reconciled even if nothing changed. It is reduced at random by up
    /// to a tenth. The default is 10 hours; zero means never.
    pub fn resync(mut self, every: Duration) -> Self {
        self.parts.resync = every;
        self
    }

    /// Sets the time after which a reconcile is reported as slow, in the log and as an event. The default is one
    /// minute.
    pub fn slow_after(mut self, limit: Duration) -> Self {
        self.parts.limits.slow_after = limit;
        self
    }

    /// Sets the time after which a reconcile is cancelled: its future is dropped at the current await point. This
    /// counts as an error. By default there is no deadline.
    pub fn deadline(mut self, limit: Duration) -> Self {
        self.parts.limits.deadline = Some(limit);
        self
    }
}

impl<K: Kind> Builder<K> {
    /// Sets the finalizer of a [finalizing](crate::RoleBuilder::finalizing) reconciler, a qualified name such as
    /// `example.com/cleanup`. The default is `<plural>.<group>`, as in Knative. Built-in Kinds have no default, since most
    /// of them accept no name without a slash.
    ///
    /// Two programs that finalize the same Kind need different names: the first one that finalizes an object removes the
    /// finalizer of both. Programs that divide the objects of a Kind by labels or by class need different names too: each
    /// finalizes every deleted object that carries its finalizer, also one that has left its selection or class.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.finalizer.name = Some(name.into());
        self
    }

    /// Declares finalizers that earlier versions of this controller have placed, under another name or before it stopped
    /// to finalize. The controller removes them: from an object that it reconciles, and from a deleted object once it is
    /// finalized. Never name a finalizer that another program uses.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Namespace;
    /// use reknit_reconciler::Builder;
    ///
    /// fn renamed(build: Builder<Namespace>) -> Builder<Namespace> {
    ///     build.finalizer("example.com/bucket").former_finalizers(["example.com/storage"])
    /// }
    /// ```
    pub fn former_finalizers<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.finalizer.former.extend(names.into_iter().map(Into::into));
        self
    }

    /// Writes the finalizer by server-side apply with this field manager, instead of a merge patch of the whole list.
    /// Adding the finalizer then never conflicts with the finalizer of another controller, but the watch event of the
    /// write costs one more pass. Apply nothing else with this field manager, since that would remove the finalizer.
    pub fn apply_finalizer_as(mut self, field_manager: &str) -> Self {
        self.finalizer.manager = Some(Bounds::FIELD_MANAGER.apply(field_manager).into());
        self
    }

    /// Reconciles only objects whose annotation has this value. An object that leaves the class is left alone until it
    /// is deleted: a terminating object that carries this controller's [finalizer](Self::finalizer) is finalized,
    /// whatever its class is by then.
    pub fn class(mut self, annotation: &str, value: &str) -> Self {
        self.class = Some((annotation.into(), value.into()));
        self
    }

    /// Sets the annotation that pauses an object. The default is `reknit.dev/paused`.
    ///
    /// While an object has this annotation, whatever its value, no pass reconciles, finalizes, releases or observes it,
    /// and its finalizer and status stay as they are. A pass that runs when the annotation is added ends. Once the
    /// annotation is removed, the object is reconciled. The log names each object that is paused or resumed, and
    /// `reknit_paused_keys` counts those that are paused. The deletion of an object is observed all the same.
    ///
    /// ```
    /// use k8s_openapi::api::core::v1::Namespace;
    /// use reknit_reconciler::Builder;
    ///
    /// fn as_cluster_api(build: Builder<Namespace>) -> Builder<Namespace> {
    ///     build.paused_by("cluster.x-k8s.io/paused")
    /// }
    /// ```
    pub fn paused_by(mut self, annotation: &str) -> Self {
        self.parts.paused_by = Some(annotation.into());
        self
    }

    /// Lets no annotation pause an object. Whoever may annotate an object that can be paused stops the restoring of its children
    /// and keeps its finalizer. So call this if the users of an object must not change the children, such as a
    /// NetworkPolicy, a RoleBinding or a ResourceQuota that confines these users.
    pub fn never_paused(mut self) -> Self {
        self.parts.paused_by = None;
        self
    }

    /// Reconciles only objects that the filter admits; others get no pass, no finalizer and no status. A terminating
    /// object with this controller's finalizer is always finalized, since no other controller removes that finalizer.
    /// If a label or field selector can express the filter, [`Controller::selected`](crate::Controller::selected) keeps
    /// other objects out of the cache too.
    ///
    /// The filter sees the stored object, before defaults. If the filter panics, the object is left alone.
    /// [`ObserveDeletion`](crate::ObserveDeletion) ignores the filter, since there is no object to filter.
    pub fn filter(mut self, which: Filter<K>) -> Self {
        self.filter = Some(which);
        self
    }

    /// When this process starts leading objects, enqueues only those that the filter admits. A change of an excluded
    /// object enqueues its key while this process leads. A change while no leader is known is kept for the next term of
    /// this process, if it has led before.
    pub fn promote_filter(mut self, which: Filter<K>) -> Self {
        self.promote = Some(which);
        self
    }
}
