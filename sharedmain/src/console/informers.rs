//! The view of the informers: their objects, size and progress.
use std::collections::BTreeMap;

use reknit_injection::InformerState;
use serde_json::{Value, json};

use super::{Running, State};

pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "informers": [] }) };
    let (metrics, refusals, mut waits) = (state.gather(), watch_refusals(running), waits(running));
    let informer = |(name, state): (String, InformerState)| {
        let state = waits.remove(&name).unwrap_or(state);
        let value = |metric| metrics.value(metric, &[("name", &*name)]);
        json!({
            "name": name,
            "state": name_of(&state),
            "reason": state.reason().or_else(|| refusals.get(&name).map(String::as_str)),
            "objects": value("reflector_objects"),
            "bytes": value("reflector_object_bytes"),
            "events": value("reflector_events_total"),
            "lists": value("reflector_lists_total"),
            "watches": value("reflector_watches_total"),
            "failures": value("reflector_failures_total"),
            "last_response_seconds": value("reflector_last_response_age_seconds"),
        })
    };
    json!({ "informers": running.informers.states().into_iter().map(informer).collect::<Vec<_>>() })
}

fn name_of(state: &InformerState) -> &'static str {
    match state {
        InformerState::NotStarted => "not started",
        InformerState::Waiting { .. } => "waiting",
        InformerState::Unavailable { .. } => "unavailable",
        InformerState::Synced { .. } => "synced",
    }
}

/// The states of the informers that controllers wait for, by their names. A controller may also wait for the content of
/// what an informer has listed, as for a valid ConfigMap.
fn waits(running: &Running) -> BTreeMap<String, InformerState> {
    let informers = running.controllers.iter().flat_map(|(health, _)| health.informers());
    let states = informers.map(|informer| (informer.name().to_owned(), informer.state()));
    states.filter(|(_, state)| !state.is_synced()).collect()
}

/// The reasons for which informers cannot watch, by their names.
fn watch_refusals(running: &Running) -> BTreeMap<String, String> {
    let informers = running.controllers.iter().flat_map(|(health, _)| health.informers());
    informers.filter_map(|informer| Some((informer.name().to_owned(), informer.watch_refusal()?))).collect()
}
