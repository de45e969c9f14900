//! Builds a controller of a Kind: the roles of its reconciler, and its options.

use futures::FutureExt;
use reknit_apis::Kind;
use reknit_injection::{Filter, Informer};

use super::builder::Builder;
use crate::{
    Controller, FinalizeKind, ObserveDeletion, ObserveKind, Queue, ReconcileKind,
    driver::{KindDriver, Roles},
    finalizer::Finalizer,
    object_client::ObjectClient,
    per_key::PerKeyStores,
};

/// The second step of building a controller of a Kind: further roles of its reconciler, and options.
///
/// ```
/// use std::time::Duration;
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_injection::{Context, label};
/// use reknit_reconciler::{Controller, ReconcileKind, Result};
///
/// fn tuned<R: ReconcileKind<Kind = Namespace>>(cx: &Context, reconciler: R) -> Result<Controller> {
///     Ok(Controller::of::<Namespace>(cx)
///         .workers(8)
///         .deadline(Duration::from_secs(120))
///         .reconciler(reconciler)
///         .name("tenants")
///         .class("example.com/tenant-class", "shared")
///         .promote_filter(!label("example.com/idle", "true"))
///         .build())
/// }
/// ```
#[must_use = "there is no controller before `.build()`"]
pub struct ControllerBuilder<R: ReconcileKind> {
    build: Builder<R::Kind>,
    reconciler: R,
    roles: Roles<R>,
    finalizer: Option<String>,
    field_manager: Option<String>,
    class: Option<(String, String)>,
    filter: Option<Filter<R::Kind>>,
    promote: Option<Filter<R::Kind>>,
}

impl<R: ReconcileKind> ControllerBuilder<R> {
    pub(super) fn new(build: Builder<R::Kind>, reconciler: R) -> Self {
        let roles = Roles { finalize: None, observe: None, observe_deletion: None };
        let (finalizer, field_manager, class) = (None, None, None);
        Self { build, reconciler, roles, finalizer, field_manager, class, filter: None, promote: None }
    }

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
    pub fn observing(mut self) -> Self
    where
        R: ObserveKind,
    {
        self.roles.observe = Some(|reconciler, object| reconciler.observe_kind(object).boxed());
        self
    }

    /// Runs [`observe_deletion`](ObserveDeletion::observe_deletion) for keys without an object.
    pub fn observing_deletion(mut self) -> Self
    where
        R: ObserveDeletion,
    {
        self.roles.observe_deletion = Some(|reconciler, key| reconciler.observe_deletion(key).boxed());
        self
    }

    /// Sets the name of the controller, its queue and its leases. The default is `<plural>.<group>`.
    pub fn name(mut self, name: &str) -> Self {
        self.build.parts.name = name.into();
        self
    }

    /// Sets the finalizer, a qualified name such as `example.com/cleanup`. The default is `<plural>.<group>`. Built-in
    /// Kinds have no default, since most of them accept no name without a slash.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.finalizer = Some(name.into());
        self
    }

    /// Writes the finalizer by server-side apply with this field manager, instead of a merge patch of the whole list.
    /// Adding the finalizer then never conflicts with the finalizer of another controller, but the watch event of the
    /// write costs one more pass. Apply nothing else with this field manager, since that would remove the finalizer.
    pub fn server_side_apply(mut self, field_manager: &str) -> Self {
        self.field_manager = Some(field_manager.into());
        self
    }

    /// Reconciles only objects whose annotation has this value. An object of another class is left alone even if it has
    /// this controller's finalizer, since the controller of that class takes the object over.
    pub fn class(mut self, annotation: &str, value: &str) -> Self {
        self.class = Some((annotation.into(), value.into()));
        self
    }

    /// Reconciles only objects that the filter admits; others get no pass, no finalizer and no status. A terminating
    /// object with this controller's finalizer is always finalized, since no other controller removes that finalizer.
    /// If a label or field selector can express the filter, [`Controller::selected`] keeps other objects out of the
    /// cache too.
    ///
    /// The filter sees the stored object, before defaults. If the filter panics, the object is left alone.
    /// [`observing_deletion`](Self::observing_deletion) ignores the filter, since there is no object to filter.
    pub fn filter(mut self, which: Filter<R::Kind>) -> Self {
        self.filter = Some(which);
        self
    }

    /// When this process starts leading objects, enqueues only those that the filter admits. A change of an excluded
    /// object enqueues its key while this process leads. A change while no leader is known is kept for the next term of
    /// this process, if it has led before.
    pub fn promote_filter(mut self, which: Filter<R::Kind>) -> Self {
        self.promote = Some(which);
        self
    }

    /// Builds the controller.
    pub fn build(self) -> Controller {
        let Self { mut build, reconciler, roles, class, filter, promote, .. } = self;
        build.allow_events();
        if roles.finalize.is_some() {
            build.allow_finalizer_writes();
        }
        let informer = build.cx.informer::<R::Kind>(build.selection.clone());
        let trackers = build.trackers.clone();
        let (cx, mut parts) = build.finish();
        let client = ObjectClient::new(cx.transport(), parts.queue.clone(), cx.component());
        let finalizer = Finalizer::of::<R::Kind>(self.finalizer.as_deref(), self.field_manager.as_deref());
        parts.finalizer = roles.finalize.map(|_| match &finalizer {
            Ok(finalizer) => Ok(finalizer.name().to_owned()),
            Err(invalid) => Err(invalid.clone()),
        });
        enqueue_own_key(&informer, &parts.queue, &parts.per_key, roles.observe_deletion.is_some());
        let (recorder, limits, per_key) = (parts.recorder.clone(), parts.limits, parts.per_key.clone());
        Controller::new(&cx, parts, |metrics| KindDriver {
            reconciler,
            roles,
            informer,
            client,
            recorder,
            finalizer,
            class,
            filter,
            promote,
            limits,
            trackers,
            per_key,
            metrics: metrics.clone(),
        })
    }
}

/// Enqueues the key of each object that changes, and records deletions for `per_key`. A change to a state that cannot
/// be decoded counts too, since the pass reports it. A deletion caused by the controller's own removal of the last
/// finalizer enqueues the key only if `observes_deletions`.
fn enqueue_own_key<K: Kind>(
    informer: &Informer<K>,
    queue: &Queue,
    per_key: &PerKeyStores,
    observes_deletions: bool,
) {
    let (queue, per_key) = (queue.clone(), per_key.clone());
    informer.on_key_event(move |event| {
        let key = event.key();
        if event.is_deleted() {
            per_key.record_deletion(|| key.clone());
        }
        match (event.is_deleted(), event.resource_version()) {
            (true, _) if observes_deletions => queue.add(key.clone()),
            // A state that cannot be decoded has no version here, and is never the echo of an own write.
            (false, None) => queue.add(key.clone()),
            (_, version) => queue.add_changed(key.clone(), version),
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api,
        api::{DynamicObject, Patch, PatchParams},
        discovery::ApiResource,
    };
    use reknit_apis::Key;
    use reknit_injection::Context;
    use reknit_testing::ApiServer;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn an_undecodable_state_during_an_own_write_enqueues_the_key() {
        let server = ApiServer::new();
        let mut map = ConfigMap::default();
        map.metadata.name = Some("a".into());
        map.metadata.namespace = Some("n".into());
        let cx = Context::preloaded("test", server.client(), vec![server.insert(&map)]);
        let (maps, queue, key): (Informer<ConfigMap>, _, _) = (cx.get(), Queue::new(), Key::new("n", "a"));
        let observes_deletions = false;
        enqueue_own_key(&maps, &queue, &PerKeyStores::default(), observes_deletions);

        let own_write = queue.start_own_write(Arc::new(key.clone()));
        let kind = ApiResource::erase::<ConfigMap>(&());
        let raw: Api<DynamicObject> = Api::namespaced_with(cx.client(), "n", &kind);
        let undecodable = Patch::Merge(json!({"data": "not a map"}));
        let patched = raw.patch("a", &PatchParams::default(), &undecodable).await.unwrap();
        assert!(maps.newest(&key).is_err());
        own_write.answered(patched.metadata.resource_version.as_deref());
        assert_eq!(queue.take_all(), [key]);
    }
}
