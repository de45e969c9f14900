//! Children that are being deleted: each is reported, and as long as it exists, its fields are restored.

use std::sync::Arc;

use kube::Resource;
use reknit_injection::Cached;
use serde::Serialize;

use super::{Applied, NotApplied, desired::Desired, existing::ApplyResult, lister::Owned, owner::Owner};
use crate::{Event, error::describe, object_client::status_code};

impl<T: Cached> Owned<T> {
    /// Records an event on the owner if the child is being deleted and waits for its finalizers: otherwise nothing would
    /// show why the child is not applied.
    pub(super) fn report_terminating(&self, owner: &impl Owner, child: &str, cached: &T) {
        let finalizers = cached.meta().finalizers.as_deref().unwrap_or_default();
        if !is_terminating(cached) || finalizers.is_empty() {
            return;
        }
        let message = format!(
            "{child} is being deleted, and waits for its finalizers {}: it is created again once it is gone",
            finalizers.join(", ")
        );
        self.shared.recorder.record(owner, Event::normal("ChildTerminating", message));
    }

    /// Records a warning on the owner if the child, which is being deleted, differed from the content that was applied last, and
    /// another client has therefore changed it. `result` is that of the request which restores it.
    pub(super) fn report_restored_terminating(
        &self,
        owner: &impl Owner,
        desired: &Desired,
        existing: &T,
        result: &ApplyResult<Applied<T>>,
    ) where
        T: Serialize,
    {
        let kind = &self.shared.client.kind;
        let fields = |child: &T| desired.observe(child, kind).ok().map(|observed| observed.fields);
        let outcome = match result {
            Ok(Applied::Updated { old, new }) if fields(old) != fields(new) => "it was restored".to_owned(),
            Err(NotApplied::Refused { source, .. }) if status_code(source) == Some(422) => {
                format!("it could not be restored: {}", describe(source.as_ref()))
            }
            _ => return,
        };
        if desired.was_applied_to(existing) {
            let child = &desired.name;
            let message = format!("{child} is being deleted, and another client has changed it: {outcome}");
            self.shared.recorder.record(owner, Event::warning("ChildTerminating", message));
        }
    }
}

/// Returns the result of a write of this child, which is being deleted. A refusal is no error: the API server may refuse any
/// change of such a child, and its end enqueues the owner.
pub(super) fn without_refusal<T>(child: Arc<T>, result: ApplyResult<Applied<T>>) -> ApplyResult<Applied<T>> {
    match result {
        Err(NotApplied::Refused { source, .. }) if matches!(status_code(&source), Some(404 | 409 | 422)) => {
            Ok(Applied::Unchanged(child))
        }
        result => result,
    }
}

/// Returns true if the object is being deleted.
pub(super) fn is_terminating(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}
