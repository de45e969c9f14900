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

    async fn reconcile_kind(
        &self,
        object: &WarmGreeting,
        status: &mut DuckStatus,
    ) -> Result<Outcome> {
        let mut conditions = WarmGreeting::CONDITIONS.manage(status);
        if object.spec.text.is_empty() {
            conditions.mark_false("Ready", "NoText", "spec.text is empty");
        } else {
            conditions.mark_true("Ready");
        }
        Ok(Outcome::done())
    }
}
