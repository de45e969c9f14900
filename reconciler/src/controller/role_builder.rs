//! The last step of building a controller of a Kind: its reconciler, and the roles of the reconciler.

use futures::FutureExt;
use kube::Resource;
use parking_lot::Mutex;
use reknit_apis::Kind;
use reknit_injection::{
    Informer, Metadata, Permission, Verb,
    internal::{can_be_left, carriers_outside, selected_objects},
};

use super::{Controller, builder::Builder};
use crate::{
    FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKind, ReleaseKind,
    driver::{KindDriver, Roles},
    finalizer::Finalizer,
    inspect::ObjectState,
    kind_client::KindClient,
    lost_finalizers::LostFinalizers,
    object_client::ObjectClient,
    status::UnstoredChanges,
};

/// The last step of building a controller of a Kind: the optional roles of its reconciler. Created by
/// [`Builder::reconciler`].
///
/// ```
/// use std::time::Duration;
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::{Context, label};
/// use reknit_reconciler::{Controller, FinalizeKind, Result};
///
/// fn tuned<R: FinalizeKind<Kind = Namespace>>(cx: &Context, reconciler: R) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx)
///         .name("tenants")
///         .class("example.com/tenant-class", "shared")
///         .finalizer("example.com/tenant")
///         .promote_filter(!label("example.com/idle", "true"))
///         .workers(8)
///         .deadline(Duration::from_secs(120))
///         .reconciler(reconciler)
///         .finalizing()
///         .build())
/// }
/// ```
#[must_use = "there is no controller before `.build()`"]
pub struct RoleBuilder<R: ReconcileKind> {
    build: Builder<R::Kind>,
    reconciler: R,
    roles: Roles<R>,
}

impl<K: Kind> Builder<K> {
    /// Enqueues the key of each object of the controller's Kind that changes.
    fn follow_objects(&self, informer: &Informer<K>, observes_deletions: bool) {
        let (queue, per_key) = (self.parts.queue.clone(), self.parts.per_key.clone());
        informer.on_key_event(move |event| {
            if event.is_deleted() {
                per_key.record_deletion(|| event.key().clone());
            }
            queue.add_own_object(event, observes_deletions);
        });
    }

    /// Sets the reconciler. Its roles follow.
    pub fn reconciler<R: ReconcileKind<Kind = K>>(self, reconciler: R) -> RoleBuilder<R> {
        let roles = Roles {
            finalize: None,
            release: None,
            observe: None,
            observe_absence: None,
            observe_deletion: None,
        };
        RoleBuilder { build: self, reconciler, roles }
    }
}

impl<R: ReconcileKind> RoleBuilder<R> {
    /// Adds a [finalizer](Builder::finalizer) to objects, and runs [`finalize_kind`](FinalizeKind::finalize_kind) when they
    /// are deleted, also if they have left the selection or the class by then.
    ///
    /// A controller of objects that a label or field selects also watches the metadata of the other objects of its Kind,
    /// and keeps that of objects that carry the finalizer.
    pub fn finalizing(mut self) -> Self
    where
        R: FinalizeKind,
    {
        self.roles.finalize =
            Some(|reconciler, object, status| reconciler.finalize_kind(object, status).boxed());
        self
    }

    /// Runs [`release_kind`](ReleaseKind::release_kind) for objects that have left the class, the filter or the selection,
    /// and then removes the finalizer. Includes [`finalizing`](Self::finalizing). The controller needs a
    /// [finalizer](Builder::finalizer) of its own name, since another program may use the default one.
    pub fn releasing(mut self) -> Self
    where
        R: ReleaseKind,
    {
        self.roles.release = Some(|reconciler, object| reconciler.release_kind(object).boxed());
        self.finalizing()
    }

    /// Runs [`observe_kind`](ObserveKind::observe_kind) in processes that do not lead a key, and
    /// [`observe_absence`](ObserveKind::observe_absence) in all processes.
    pub fn observing_as_follower(mut self) -> Self
    where
        R: ObserveKind,
    {
        self.roles.observe = Some(|reconciler, object| reconciler.observe_kind(object).boxed());
        self.roles.observe_absence = Some(|reconciler, key| reconciler.observe_absence(key).boxed());
        self
    }

    /// Runs [`observe_deletion`](ObserveDeletion::observe_deletion) for keys without an object, in the process that
    /// leads the key. With [`observing_as_follower`](Self::observing_as_follower), other processes run it too.
    pub fn observing_deletion_as_leader(mut self) -> Self
    where
        R: ObserveDeletion,
    {
        self.roles.observe_deletion = Some(|reconciler, key| reconciler.observe_deletion(key).boxed());
        self
    }

    /// Builds the controller.
    pub fn build(self) -> Controller {
        let Self { mut build, reconciler, roles } = self;
        build.parts.selects = build.selects();
        let options = std::mem::take(&mut build.finalizer);
        let mut finalizer = Finalizer::of::<R::Kind>(options, roles.finalize.is_some());
        if roles.release.is_some() {
            finalizer.require_own_name();
        }
        build.declare_events();
        if !finalizer.names().is_empty() {
            build.declare_finalizer_writes();
        }
        build.parts.finalizer = Some(finalizer.clone());
        let informer = build.cx.informer::<R::Kind>(build.selection.clone());
        if can_be_left(&build.selection) && roles.observe_deletion.is_some() {
            build.allows(Permission::of::<R::Kind>([Verb::Get]));
        }
        let observes_deletions = roles.observe_deletion.is_some() || roles.observe.is_some();
        let lost_finalizers = LostFinalizers::default();
        if finalizer.name().is_some() {
            let (lost_finalizers, finalizer) = (lost_finalizers.clone(), finalizer.clone());
            informer.on(move |change| lost_finalizers.observe(change, &finalizer));
        }
        build.follow_objects(&informer, observes_deletions);
        let outside = build.follow_outside(&informer, &finalizer, observes_deletions);
        let (dynamic, objects, paused_by) =
            (build.trackers.dynamic.clone(), informer.clone(), build.parts.paused_by.clone());
        build.inspect.add_related(move |key| dynamic.reads_of(key));
        build.inspect.set_object(move |key| Some(ObjectState::of(&*objects.get(key)?, paused_by.as_deref())));
        build.finish();
        let Builder { cx, parts, trackers, class, filter, promote, .. } = build;
        Controller::new(&cx, parts, |parts, metrics| KindDriver {
            reconciler,
            roles,
            informer,
            outside,
            client: KindClient::new(ObjectClient::of::<R::Kind>(&cx), parts.queue.clone()),
            recorder: parts.recorder.clone(),
            unstored: UnstoredChanges::new(parts.recorder.clone(), metrics.clone()),
            bounded: Mutex::default(),
            finalizer,
            lost_finalizers,
            class,
            paused_by: parts.paused_by.clone(),
            filter,
            promote,
            limits: parts.limits,
            trackers,
            per_key: parts.per_key.clone(),
            metrics: metrics.of_kind(&R::Kind::group(&()), &R::Kind::plural(&())),
        })
    }
}

impl<K: Kind> Builder<K> {
    /// The selection and the class as text. Empty if all objects are selected.
    fn selects(&self) -> String {
        let class = self.class.as_ref().map(|(annotation, value)| format!("class {annotation}={value}"));
        let parts = [Some(selected_objects(&self.selection)).filter(|text| !text.is_empty()), class];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Opens the informer of the objects that carry a finalizer of the controller and have left its selection. Their
    /// changes enqueue their keys, so that they are finalized when they are deleted. `None` if no object can leave the
    /// selection, or the controller has no finalizer.
    fn follow_outside(
        &self,
        informer: &Informer<K>,
        finalizer: &Finalizer,
        observes_deletions: bool,
    ) -> Option<Informer<Metadata<K>>> {
        let names = finalizer.names();
        let selection = carriers_outside(&self.selection, &names).filter(|_| !names.is_empty());
        if finalizer.name().is_some()
            && finalizer.is_default()
            && (selection.is_some() || self.class.is_some())
        {
            tracing::warn!(
                "knative.dev/controller" = &*self.parts.name,
                finalizer = finalizer.name(),
                "the controller finalizes each deleted object that carries its finalizer, also outside its selection or \
                 class: if another program uses this default name for objects of the same Kind, set another one by \
                 `.finalizer(…)`"
            );
        }
        let outside = self.cx.informer::<Metadata<K>>(selection?);
        let (selected, queue) = (informer.clone(), self.parts.queue.clone());
        outside.on_key_event(move |event| {
            if !selected.contains(event.key()) {
                queue.add_own_object(event, observes_deletions);
            }
        });
        let keys_of = outside.clone();
        self.parts.queue.add_key_source(move |keys| keys.extend(keys_of.keys()));
        Some(outside)
    }
}
