//! The last step of building a controller of a Kind: its reconciler, and the roles of the reconciler.

use futures::FutureExt;
use parking_lot::Mutex;
use reknit_apis::Kind;

use super::{Controller, builder::Builder};
use crate::{
    FinalizeKind, ObserveDeletion, ObserveKind, ReconcileKind,
    driver::{KindDriver, Roles},
    finalizer::Finalizer,
    kind_client::KindClient,
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
    /// Sets the reconciler. Its roles follow.
    pub fn reconciler<R: ReconcileKind<Kind = K>>(self, reconciler: R) -> RoleBuilder<R> {
        let roles = Roles { finalize: None, observe: None, observe_deletion: None };
        RoleBuilder { build: self, reconciler, roles }
    }
}

impl<R: ReconcileKind> RoleBuilder<R> {
    /// Adds a finalizer to objects, and runs [`finalize_kind`](FinalizeKind::finalize_kind) when they are deleted.
    pub fn finalizing(mut self) -> Self
    where
        R: FinalizeKind,
    {
        self.roles.finalize =
            Some(|reconciler, object, status| reconciler.finalize_kind(object, status).boxed());
        self
    }

    /// Runs [`observe_kind`](ObserveKind::observe_kind) in processes that do not lead a key.
    pub fn observing_as_follower(mut self) -> Self
    where
        R: ObserveKind,
    {
        self.roles.observe = Some(|reconciler, object| reconciler.observe_kind(object).boxed());
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
        let finalizer = Finalizer::of::<R::Kind>(build.finalizer.take(), build.finalizer_manager.take());
        build.declare_events();
        if roles.finalize.is_some() {
            build.declare_finalizer_writes();
            build.parts.finalizer = Some(finalizer.clone());
        }
        let informer = build.cx.informer::<R::Kind>(build.selection.clone());
        let (queue, per_key) = (build.parts.queue.clone(), build.parts.per_key.clone());
        let observes_deletions = roles.observe_deletion.is_some();
        informer.on_key_event(move |event| {
            if event.is_deleted() {
                per_key.record_deletion(|| event.key().clone());
            }
            queue.add_event(event, observes_deletions);
        });
        build.finish();
        let Builder { cx, parts, trackers, class, filter, promote, .. } = build;
        Controller::new(&cx, parts, |parts, metrics| KindDriver {
            reconciler,
            roles,
            informer,
            client: KindClient::new(ObjectClient::of::<R::Kind>(&cx), parts.queue.clone()),
            recorder: parts.recorder.clone(),
            unstored: UnstoredChanges::new(parts.recorder.clone(), metrics.clone()),
            bounded: Mutex::default(),
            finalizer,
            class,
            filter,
            promote,
            limits: parts.limits,
            trackers,
            per_key: parts.per_key.clone(),
            metrics: metrics.clone(),
        })
    }
}
