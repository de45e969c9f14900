//! The controller of WarmGreeting objects.

use reknit::prelude::*;

use super::WarmGreeting;

/// The finalizer of a controller that calls `.finalizing()`. Objects store it: declare the former name
/// by `.former_finalizers(..)` if you rename it.
const FINALIZER: &str = "hello.example.com/hello-world";

/// Constructs the controller.
pub fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<WarmGreeting>(cx)
        .finalizer(FINALIZER)
        .reconciler(Reconciler)
        .build())
}

struct Reconciler;

impl ReconcileKind for Reconciler {
    type Kind = WarmGreeting;

    /// The status is `()`: a controller writes to objects of a built-in Kind by its own requests.
    async fn reconcile_kind(&self, _object: &WarmGreeting, _status: &mut ()) -> Result<Outcome> {
        Ok(Outcome::done())
    }
}
