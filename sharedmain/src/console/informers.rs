//! The view of the informers: their objects, size and progress.
use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use reknit_apis::Key;
use reknit_injection::{InformerState, internal::decode_errors};
use serde_json::{Value, json};

use super::{Running, State};

/// The maximum number of objects that an informer names which cannot be decoded.
const MAX_UNDECODABLE: usize = 20;
/// The maximum length of the error of each in bytes.
const MAX_ERROR: usize = 1000;

pub(super) fn view(state: &State) -> Value {
    let Some(running) = state.running.get() else { return json!({ "informers": [] }) };
    let (metrics, unwatched, mut waits) = (state.gather(), unwatched(running), waits(running));
    let errors = decode_errors(&running.informers, MAX_UNDECODABLE);
    let informer = |(name, state): (String, InformerState)| {
        let state = waits.remove(&name).unwrap_or(state);
        let value = |metric| metrics.value(metric, &[("name", &*name)]);
        json!({
            "name": name,
            "state": name_of(&state),
            "reason": state.reason().or_else(|| unwatched.get(&name).map(String::as_str)),
            "objects": value("reflector_objects"),
            "undecodable": value("reflector_undecodable_objects"),
            "undecodable_keys": errors.get(&name).map(undecodable_keys).unwrap_or_default(),
            "bytes": value("reflector_object_bytes"),
            "events": value("reflector_events_total"),
            "lists": value("reflector_lists_total"),
            "watches": value("reflector_watches_total"),
            "failures": value("reflector_failures_total"),
            "last_change": value("reflector_last_change_timestamp_seconds").and_then(time_of),
            "last_response_seconds": value("reflector_last_response_age_seconds"),
        })
    };
    json!({ "informers": running.informers.states().into_iter().map(informer).collect::<Vec<_>>() })
}

/// The time of a last change; `None` before the first.
fn time_of(unix_seconds: f64) -> Option<Timestamp> {
    if unix_seconds == 0.0 { None } else { Timestamp::from_second(unix_seconds as i64).ok() }
}

fn name_of(state: &InformerState) -> &'static str {
    match state {
        InformerState::NotStarted => "not started",
        InformerState::Waiting { .. } => "waiting",
        InformerState::Unavailable { .. } => "unavailable",
        InformerState::Synced { .. } => "synced",
    }
}

/// Some objects that cannot be decoded, with the errors.
fn undecodable_keys(errors: &BTreeMap<Key, String>) -> Vec<Value> {
    let cut = |error: &str| error[..error.floor_char_boundary(MAX_ERROR)].to_owned();
    let errors = errors.iter().take(MAX_UNDECODABLE);
    errors.map(|(key, error)| json!({ "key": key.to_string(), "error": cut(error) })).collect()
}

/// The states of the informers that controllers wait for, by their names. A controller may also wait for the content of
/// what an informer has listed, as for a valid ConfigMap.
fn waits(running: &Running) -> BTreeMap<String, InformerState> {
    let informers = running.controllers.iter().flat_map(|(health, _)| health.informers());
    let states = informers.map(|informer| (informer.name().to_owned(), informer.state()));
    states.filter(|(_, state)| !state.is_synced()).collect()
}

/// The reasons why informers do not watch, by their names.
fn unwatched(running: &Running) -> BTreeMap<String, String> {
    let informers = running.controllers.iter().flat_map(|(health, _)| health.informers());
    informers
        .filter_map(|informer| Some((informer.name().to_owned(), informer.unwatched()?.reason)))
        .collect()
}
