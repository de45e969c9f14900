//! The view of the running passes and the last finished ones.
use reknit_reconciler::internal::PassRecord;
use serde_json::{Value, json};

use super::State;

/// The passes without their requests, which the view of a key shows.
pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "running": [], "finished": [] }) };
    let without_requests = |pass: PassRecord| PassRecord { requests: Vec::new(), ..pass };
    let current: Vec<_> = running.passes.running().into_iter().map(without_requests).collect();
    let mut finished = running.passes.summaries();
    keep_written_files(state, finished.iter_mut());
    json!({ "running": current, "finished": finished })
}

/// Keeps the names of files that have been written and are still there.
pub(super) fn keep_written_files<'a>(state: &State, passes: impl Iterator<Item = &'a mut PassRecord>) {
    let files = state.running.get().map(|running| running.recordings.files()).unwrap_or_default();
    for pass in passes {
        pass.recorded = pass.recorded.take().filter(|name| files.contains(&**name));
    }
}
