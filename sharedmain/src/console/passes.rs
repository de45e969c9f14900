//! The view of the running passes and the last finished ones.
use reknit_reconciler::internal::PassRecord;
use serde_json::{Value, json};

use super::State;

/// The passes without their requests, which the view of a key shows.
pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "running": [], "finished": [] }) };
    let without_requests = |pass: PassRecord| PassRecord { requests: Vec::new(), ..pass };
    let current: Vec<_> = running.passes.running().into_iter().map(without_requests).collect();
    json!({ "running": current, "finished": running.passes.summaries() })
}
