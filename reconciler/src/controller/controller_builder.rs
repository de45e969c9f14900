//! The roles and options of a controller that has a Kind.

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

/// A controller that knows what it does: what else it does, and how, is said here, and then it is built.
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
#[must_use = "nothing runs before `.build()`"]
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
        let roles = Roles { finalize: None, observe: None, deleted: None };
        let (finalizer, field_manager, class) = (None, None, None);
        Self { build, reconciler, roles, finalizer, field_manager, class, filter: None, promote: None }
    }

    /// Objects wait for [`finalize_kind`](FinalizeKind::finalize_kind) before they go.
    pub fn finalizing(mut self) -> Self
    where
        R: FinalizeKind,
    {
        self.roles.finalize =
            Some(|reconciler, object, status| reconciler.finalize_kind(object, status).boxed());
        self
    }

    /// Processes that do not lead a key run [`observe_kind`](ObserveKind::observe_kind) for it.
    pub fn observing(mut self) -> Self
    where
        R: ObserveKind,
    {
        self.roles.observe = Some(|reconciler, object| reconciler.observe_kind(object).boxed());
        self
    }

    /// Keys whose object is gone, or none of the controller's, go to
    /// [`observe_deletion`](ObserveDeletion::observe_deletion).
    pub fn observing_deletion(mut self) -> Self
    where
        R: ObserveDeletion,
    {
        self.roles.deleted = Some(|reconciler, key| reconciler.observe_deletion(key).boxed());
        self
    }

    /// The name of the controller, of its queue and of its leases. Default `<plural>.<group>`.
    pub fn name(mut self, name: &str) -> Self {
        self.build.parts.name = name.into();
        self
    }

    /// The finalizer, a qualified name such as `example.com/cleanup`. Default `<plural>.<group>`; Kubernetes' own Kinds
    /// have no default, since most of them take no name without a slash.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.finalizer = Some(name.into());
        self
    }

    /// Writes the finalizer by server-side apply under this field manager, rather than as a merge patch of the whole
    /// list: adding it then never conflicts with other controllers' finalizers, and costs one pass more. Nothing else is to
    /// be applied under this name: that would take the finalizer away.
    pub fn server_side_apply(mut self, field_manager: &str) -> Self {
        self.field_manager = Some(field_manager.into());
        self
    }

    /// Only touches objects whose annotation has this value. One of another class is left alone, also where it bears this
    /// controller's finalizer: the controller of that class goes on with it.
    pub fn class(mut self, annotation: &str, value: &str) -> Self {
        self.class = Some((annotation.into(), value.into()));
        self
    }

    /// Only touches these objects: others get no pass, no finalizer and no status. One that is being deleted is still
    /// finalized where it bears this controller's finalizer, since nobody else takes that off. Where the API server can
    /// tell them apart, [`Controller::selected`] keeps the others out of the cache too.
    ///
    /// [`observing_deletion`](Self::observing_deletion) is told of the others too, as there is no object to look at by then. It
    /// looks at the object as it is stored, before defaults. Should it panic, the object is left alone.
    pub fn filter(mut self, which: Filter<R::Kind>) -> Self {
        self.filter = Some(which);
        self
    }

    /// Which objects are looked at when this process comes to lead them; others wait until something happens to
    /// them while it leads, or after it did and before somebody else does.
    pub fn promote_filter(mut self, which: Filter<R::Kind>) -> Self {
        self.promote = Some(which);
        self
    }

    /// The controller, ready to run.
    pub fn build(self) -> Controller {
        let Self { build, reconciler, roles, class, filter, promote, .. } = self;
        let informer = build.cx.informer::<R::Kind>(build.selection.clone());
        let trackers = build.trackers.clone();
        let (cx, mut parts) = build.finish();
        let client = ObjectClient::new(cx.transport(), parts.queue.clone(), cx.component());
        let finalizer = Finalizer::of::<R::Kind>(self.finalizer.as_deref(), self.field_manager.as_deref());
        parts.finalizer = roles.finalize.map(|_| match &finalizer {
            Ok(finalizer) => Ok(finalizer.name().to_owned()),
            Err(unqualified) => Err(unqualified.clone()),
        });
        enqueue_own_key(&informer, &parts.queue, &parts.per_key, roles.deleted.is_some());
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

/// An object's own changes wake it, also one to a state that cannot be decoded, which the pass then says. That it is
/// gone is news also where its own pass took the last finalizer off, if anybody is to be told.
fn enqueue_own_key<K: Kind>(
    informer: &Informer<K>,
    queue: &Queue,
    stores: &PerKeyStores,
    tells_deletion: bool,
) {
    let (queue, stores) = (queue.clone(), stores.clone());
    informer.on_key_event(move |event| {
        let key = event.key();
        if event.is_deleted() {
            stores.gone(|| key.clone());
        }
        match (event.is_deleted(), event.resource_version()) {
            (true, _) if tells_deletion => queue.add(key.clone()),
            // An undecodable state is not the echo of an own write, whatever its answer was.
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
    async fn what_cannot_be_decoded_is_no_echo_of_a_write_under_way() {
        let server = ApiServer::new();
        let mut map = ConfigMap::default();
        map.metadata.name = Some("a".into());
        map.metadata.namespace = Some("n".into());
        let cx = Context::preloaded("test", server.client(), vec![server.hold(&map)]);
        let (maps, queue, key): (Informer<ConfigMap>, _, _) = (cx.get(), Queue::new(), Key::new("n", "a"));
        enqueue_own_key(&maps, &queue, &PerKeyStores::default(), false);

        let writing = queue.start_own_write(Arc::new(key.clone()));
        let kind = ApiResource::erase::<ConfigMap>(&());
        let raw: Api<DynamicObject> = Api::namespaced_with(cx.client(), "n", &kind);
        let garbage = Patch::Merge(json!({"data": "not a map"}));
        let garbled = raw.patch("a", &PatchParams::default(), &garbage).await.unwrap();
        assert!(maps.newest(&key).is_err());
        writing.answered(garbled.metadata.resource_version.as_deref());
        assert_eq!(queue.take_all(), [key]);
    }
}
