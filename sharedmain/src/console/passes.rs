//! The view of the running passes and the last finished ones.
use reknit_reconciler::internal::PassRecord;
use serde_json::{Value, json};

use super::State;

/// The maximum number of finished passes in an answer.
const MAX_PASSES: usize = 1000;

/// The passes without their requests, which the view of a key shows.
pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "running": [], "finished": [] }) };
    let without_requests = |pass: PassRecord| PassRecord { requests: Vec::new(), ..pass };
    let records = |passes: Vec<PassRecord>| passes.into_iter().map(without_requests).collect::<Vec<_>>();
    json!({
        "running": records(running.passes.running()),
        "finished": records(running.passes.finished(MAX_PASSES, |_, _| true)),
    })
}
