//! The roles of a reconciler, one trait each.

use std::future::Future;

use reknit_apis::{Key, Kind, StatusOf};

use crate::{Outcome, Result};

/// Brings the cluster to the state that an object specifies, and the object's status to the state of the cluster.
///
/// A pass may change the status but not the object. It gets the stored status with its conditions initialised. If the
/// status differs after the pass, it is written, even if the pass fails.
///
/// A pass may be cancelled at any `.await`: when this process stops leading the key, at the deadline, or at the end of
/// the process. The next pass then has to complete a partial change, unless the change is a single request. Blocking
/// code belongs in `tokio::task::spawn_blocking`. A panic is caught and is an error of this key.
///
/// ```
/// use k8s_openapi::api::core::v1::Namespace;
/// use reknit_reconciler::{Outcome, ReconcileKind, Result};
///
/// struct Greeter;
///
/// impl ReconcileKind for Greeter {
///     type Kind = Namespace;
///
///     async fn reconcile_kind(&self, namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         println!("hello, {:?}", namespace.metadata.name);
///         Ok(Outcome::done())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ReconcileKind`",
    note = "`impl ReconcileKind for {Self}`, with `type Kind` and `async fn reconcile_kind(&self, object: &Kind, status: &mut KindStatus) -> Result<Outcome>`"
)]
pub trait ReconcileKind: Send + Sync + 'static {
    /// The Kind to reconcile.
    type Kind: Kind;

    /// Reconciles an object that is not being deleted, in the process that leads its key.
    fn reconcile_kind(
        &self,
        object: &Self::Kind,
        status: &mut StatusOf<Self::Kind>,
    ) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Cleans up before an object is deleted. Enabled by [`finalizing`](crate::RoleBuilder::finalizing).
///
/// The framework adds a finalizer before the object's first pass, and removes it when
/// [`finalize_kind`](Self::finalize_kind) returns [`Outcome::done`]. Until then, the API server keeps the object. A
/// terminating object without the finalizer is ignored. One with the finalizer is finalized whatever the selection, the
/// class and the filter of the controller say by then.
///
/// ```
/// # use k8s_openapi::api::core::v1::Namespace;
/// # use reknit_reconciler::{ReconcileKind};
/// # struct Greeter;
/// # impl ReconcileKind for Greeter {
/// #     type Kind = Namespace;
/// #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> { Ok(Outcome::done()) }
/// # }
/// use reknit_reconciler::{Event, FinalizeKind, Outcome, Result};
///
/// impl FinalizeKind for Greeter {
///     async fn finalize_kind(&self, _namespace: &Namespace, _status: &mut ()) -> Result<Outcome> {
///         Ok(Outcome::done().event(Event::normal("SaidGoodbye", "nothing is left to do")))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`finalizing()` was called, but `{Self}` does not implement `FinalizeKind`",
    note = "`impl FinalizeKind for {Self}`, or drop the call"
)]
pub trait FinalizeKind: ReconcileKind {
    /// Finalizes an object that is being deleted. `Outcome::done()` removes the finalizer. Any other result keeps it,
    /// and the status should give the reason.
    fn finalize_kind(
        &self,
        object: &Self::Kind,
        status: &mut StatusOf<Self::Kind>,
    ) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Cleans up after an object that has left the controller: its [class](crate::Builder::class), its
/// [filter](crate::Builder::filter) or its [selection](crate::Controller::selected). For controllers that keep state
/// outside of the object, such as a proxy's configuration or a record in DNS. Enabled by
/// [`releasing`](crate::RoleBuilder::releasing).
///
/// The finalizer tells which objects have left: such an object carries this controller's finalizer, and the controller
/// would not reconcile it any more. So an object is released also if it left while no process ran. When
/// [`release_kind`](Self::release_kind) returns [`Outcome::done`], the finalizer is removed, and the object's deletion no
/// longer concerns this controller. If the object comes back, it is reconciled as a new one. An object that is deleted
/// before it was released is finalized instead.
///
/// ```
/// # use k8s_openapi::api::core::v1::Namespace;
/// # use reknit_reconciler::{FinalizeKind, ReconcileKind};
/// # struct Routes;
/// # impl Routes { async fn remove(&self, _: &Namespace) -> Result<()> { Ok(()) } }
/// # impl ReconcileKind for Routes {
/// #     type Kind = Namespace;
/// #     async fn reconcile_kind(&self, _: &Namespace, _: &mut ()) -> Result<Outcome> { Ok(Outcome::done()) }
/// # }
/// use reknit_injection::Context;
/// use reknit_reconciler::{Controller, Outcome, ReleaseKind, Result};
///
/// impl FinalizeKind for Routes {
///     async fn finalize_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
///         self.release_kind(namespace).await
///     }
/// }
///
/// impl ReleaseKind for Routes {
///     async fn release_kind(&self, namespace: &Namespace) -> Result<Outcome> {
///         self.remove(namespace).await?;
///         Ok(Outcome::done())
///     }
/// }
///
/// fn controller(cx: &Context) -> Result<Controller> {
///     let build = Controller::of::<Namespace>(cx).class("example.com/routes", "fast").finalizer("example.com/fast-routes");
///     Ok(build.reconciler(Routes).releasing().build())
/// }
/// # let _ = controller;
/// ```
#[diagnostic::on_unimplemented(
    message = "`releasing()` was called, but `{Self}` does not implement `ReleaseKind`",
    note = "`impl ReleaseKind for {Self}`, or drop the call"
)]
pub trait ReleaseKind: FinalizeKind {
    /// Cleans up after an object that is not reconciled any more, and is not being deleted. Its status belongs to whoever
    /// reconciles it now. `Outcome::done()` removes the finalizer, and any other result keeps it.
    fn release_kind(&self, object: &Self::Kind) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Observes objects in processes that do not lead them: for state that every replica builds, such as the configuration
/// that a server hands out, or for a cache that is full when such a process becomes the leader. Enabled by
/// [`observing_as_follower`](crate::RoleBuilder::observing_as_follower).
///
/// ```
/// # use std::collections::BTreeSet;
/// # use k8s_openapi::api::core::v1::Namespace;
/// # use parking_lot::Mutex;
/// use reknit_reconciler::{Key, ObserveKind, Outcome, ReconcileKind, Result};
///
/// struct Known(Mutex<BTreeSet<Key>>);
///
/// impl ReconcileKind for Known {
///     type Kind = Namespace;
///
///     async fn reconcile_kind(&self, namespace: &Namespace, _: &mut ()) -> Result<Outcome> {
///         self.observe_kind(namespace).await
///     }
/// }
///
/// impl ObserveKind for Known {
///     async fn observe_kind(&self, namespace: &Namespace) -> Result<Outcome> {
///         self.0.lock().insert(Key::of(namespace));
///         Ok(Outcome::done())
///     }
///
///     async fn observe_absence(&self, key: &Key) -> Result<Outcome> {
///         self.0.lock().remove(key);
///         Ok(Outcome::done())
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`observing_as_follower()` was called, but `{Self}` does not implement `ObserveKind`",
    note = "`impl ObserveKind for {Self}`, or drop the call"
)]
pub trait ObserveKind: ReconcileKind {
    /// Observes an object that is not being deleted, in a process that does not lead its key. Nothing is written.
    fn observe_kind(&self, object: &Self::Kind) -> impl Future<Output = Result<Outcome>> + Send;

    /// Observes that the controller has no object of this key: it is gone or being deleted, or it has left the
    /// [class](crate::Builder::class), the [filter](crate::Builder::filter) or the
    /// [selection](crate::Controller::selected). Does nothing by default.
    ///
    /// Runs in every process, also in the leader unless that finalizes or releases the object in this pass. It runs for
    /// keys that never had an object of the controller, too, and may run more than once for one object.
    fn observe_absence(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send {
        let _ = key;
        std::future::ready(Ok(Outcome::skip()))
    }
}

/// Observes the deletion of objects. Enabled by
/// [`observing_deletion_as_leader`](crate::RoleBuilder::observing_deletion_as_leader).
///
/// A deletion is observed at least once if any replica is up, also while the leader changes; it may then be observed
/// twice. Deletions while no process is up are not observed, nor is one that its leader fails to observe for ten lease
/// durations before it ends. Use [`FinalizeKind`] for cleanup that must not be missed.
///
/// This role runs for any key without an object, also if the object was never selected: a key whose children or tracked
/// objects change, or a deleted object of another [class](crate::Builder::class). So check before you clean up anything
/// outside the cluster. An object that only left the selection is not observed. When it is deleted later, this role runs
/// only if the controller [finalizes](crate::RoleBuilder::finalizing).
#[diagnostic::on_unimplemented(
    message = "`observing_deletion_as_leader()` was called, but `{Self}` does not implement `ObserveDeletion`",
    note = "`impl ObserveDeletion for {Self}`, or drop the call"
)]
pub trait ObserveDeletion: ReconcileKind {
    /// Observes that there is no object of this key.
    fn observe_deletion(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Reconciles keys, for a controller without a Kind. There is no status, no finalizer, and no object for the event of
/// an [`Outcome`], which is only logged.
///
/// ```
/// use k8s_openapi::api::core::v1::Pod;
/// use reknit_injection::{Context, Informer};
/// use reknit_reconciler::{Controller, Key, Outcome, ReconcileKey, Result};
///
/// struct Report {
///     pods: Informer<Pod>,
/// }
///
/// impl ReconcileKey for Report {
///     async fn reconcile_key(&self, namespace: &Key) -> Result<Outcome> {
///         println!("{namespace}: {} pods", self.pods.list_in(&namespace.name).count());
///         Ok(Outcome::done())
///     }
/// }
///
/// fn report(cx: &Context) -> Result<Controller> {
///     let mut build = Controller::named("report", cx);
///     let pods = cx.get::<Informer<Pod>>();
///     build.watch(&pods).keys(|pod| pod.metadata.namespace.as_deref().map(|name| Key::new(None, name)));
///     Ok(build.reconciler(Report { pods }))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not implement `ReconcileKey`",
    note = "`impl ReconcileKey for {Self}`, with `async fn reconcile_key(&self, key: &Key) -> Result<Outcome>`"
)]
pub trait ReconcileKey: Send + Sync + 'static {
    /// Reconciles a key, in the process that leads it.
    fn reconcile_key(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;
}
