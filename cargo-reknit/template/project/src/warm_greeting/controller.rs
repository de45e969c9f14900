//! The controller of WarmGreeting objects.

use reknit::prelude::*;

use super::WarmGreeting;

/// Constructs the controller.
pub fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<WarmGreeting>(cx)
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
