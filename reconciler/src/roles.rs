//! What a user's reconciler says it can do: one trait a role.

use std::future::Future;

use reknit_apis::{Key, Kind, StatusOf};

use crate::{Outcome, Result};

/// Brings the world to what an object wants, and its status to what the world is.
///
/// The object is read-only; the status is the only thing a pass may write. It is given as the object holds it, with
/// the conditions initialised, and written after the pass if it then differs, also where the pass fails.
///
/// A pass may be cancelled at any `.await`: when this process loses the leadership over the key, at its deadline, or
/// at the end of the process. What has to be whole goes into one request, or is found half-done and finished by the
/// next pass. Code that blocks belongs in `tokio::task::spawn_blocking`. A panic is caught, and is an error of this
/// key.
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
    note = "a reconciler says its Kind and writes `async fn reconcile_kind(&self, object: &Kind, status: &mut KindStatus) -> Result<Outcome>`"
)]
pub trait ReconcileKind: Send + Sync + 'static {
    /// What it reconciles.
    type Kind: Kind;

    /// One pass over an object that is not being deleted, in the process that leads its key.
    fn reconcile_kind(
        &self,
        object: &Self::Kind,
        status: &mut StatusOf<Self::Kind>,
    ) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Takes back what a reconciler did before its object goes. Opted into by
/// [`finalizing`](crate::ControllerBuilder::finalizing).
///
/// The object carries a finalizer from before its first pass until [`Outcome::done`] is returned here, so it is not
/// gone before. An object that is being deleted without ever having carried it is none of this controller's.
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
    message = "`finalizing()` was called, but `{Self}` does not say how to finalize",
    note = "`impl FinalizeKind for {Self}`, or drop the call"
)]
pub trait FinalizeKind: ReconcileKind {
    /// One pass over an object that is being deleted. `Outcome::done()` removes the finalizer; anything else keeps
    /// it, and the status says why.
    fn finalize_kind(
        &self,
        object: &Self::Kind,
        status: &mut StatusOf<Self::Kind>,
    ) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Watches along in the processes that do not lead a key, to be ready for when they do. Opted into by
/// [`observing`](crate::ControllerBuilder::observing).
#[diagnostic::on_unimplemented(
    message = "`observing()` was called, but `{Self}` does not say how to observe",
    note = "`impl ObserveKind for {Self}`, or drop the call"
)]
pub trait ObserveKind: ReconcileKind {
    /// One pass over an object that is not being deleted, in a process that does not lead its key. Nothing is
    /// written to it.
    fn observe_kind(&self, object: &Self::Kind) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Is told of objects that are gone. Opted into by
/// [`observing_deletion`](crate::ControllerBuilder::observing_deletion).
///
/// Only while this process watches: what went while it was down is never told of. What must not be missed needs
/// [`FinalizeKind`]. And all that is known is that the informer holds no object of the key: a controller that selects by
/// labels or fields is also told of what left the selection, and where a child or something tracked wakes it, of what was
/// never in it; one of a [class](crate::ControllerBuilder::class), of deleted objects of others. So look before something
/// outside the cluster is cleaned up.
#[diagnostic::on_unimplemented(
    message = "`observing_deletion()` was called, but `{Self}` does not say what to do then",
    note = "`impl ObserveDeletion for {Self}`, or drop the call"
)]
pub trait ObserveDeletion: ReconcileKind {
    /// One pass over the key of an object that is not there, or not of the selection.
    fn observe_deletion(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;
}

/// Works on keys alone: for a controller without a Kind of its own. There is no status, no finalizer, and no object
/// that an [`Outcome`]'s event could be about: such an event is only logged.
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
    note = "a controller without a Kind writes `async fn reconcile_key(&self, key: &Key) -> Result<Outcome>`"
)]
pub trait ReconcileKey: Send + Sync + 'static {
    /// One pass over a key that something woke, in the process that leads it.
    fn reconcile_key(&self, key: &Key) -> impl Future<Output = Result<Outcome>> + Send;
}
