//! Reports a child that is not applied because it is being deleted.

use reknit_injection::Cached;

use super::{lister::Owned, owner::Owner};
use crate::Event;

impl<T: Cached> Owned<T> {
    /// Records an event on the owner if the child is being deleted and waits for its finalizers: otherwise nothing would
    /// show why the child is not applied.
    pub(super) fn report_terminating(&self, owner: &impl Owner, child: &str, cached: &T) {
        let finalizers = cached.meta().finalizers.as_deref().unwrap_or_default();
        if cached.meta().deletion_timestamp.is_none() || finalizers.is_empty() {
            return;
        }
        let message = format!(
            "{child} is being deleted, and waits for its finalizers {}: it is applied again once it is gone",
            finalizers.join(", ")
        );
        self.shared.recorder.record(owner, Event::normal("ChildTerminating", message));
    }
}
