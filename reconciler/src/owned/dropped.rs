//! Reports the fields of a child that the API server accepted but did not store: the schema of the Kind lacks them, a
//! feature is disabled, or an admission webhook removed them.

use reknit_apis::equality::dropped_fields;
use reknit_injection::Cached;
use serde_json::Value;

use super::{lister::Owned, owner::Owner};
use crate::Event;

/// The maximum number of fields that a report names.
const MAX_FIELDS: usize = 10;

impl<T: Cached> Owned<T> {
    /// Reports the fields of `sent` that the API server's answer lacks, in the log and in an event on the owner.
    pub(super) fn report_dropped(&self, owner: &impl Owner, child: &str, sent: &Value, answer: &Value) {
        let mut fields = dropped_fields(sent, answer);
        if fields.is_empty() {
            return;
        }
        self.shared.metrics.record_dropped_fields();
        fields.truncate(MAX_FIELDS);
        let message = format!(
            "the API server did not store {} of {child}: update its definition if the schema lacks them, or exempt it from \
             the admission webhook that removes them",
            fields.join(", ")
        );
        if self.shared.logged_dropped.lock().allows(&fields) {
            tracing::warn!("{message}");
        }
        self.shared.recorder.record(owner, Event::warning("ChildFieldsDropped", message));
    }
}
