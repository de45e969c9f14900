//! The defaults of WarmGreeting objects.

use super::WarmGreeting;

impl WarmGreeting {
    /// Sets the defaults of fields that the spec leaves out, in the webhook and before each reconcile.
    pub(super) fn set_spec_defaults(&mut self) {
        // For an optional field: self.spec.count.get_or_insert(1);
    }
}
