//! The view of the keys that run or wait, and the view of one key.
use std::{collections::BTreeMap, time::Duration};

use reknit_apis::Key;
use reknit_reconciler::{
    Health,
    internal::{KeyState, PassRecord},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::{Parameters, State, passes};
use crate::observe::passes::waits_of;

/// The maximum number of keys in an answer.
const MAX_KEYS: usize = 1000;
/// The state of a key whose last pass failed with a permanent error.
const FAILED: &str = "failed";
/// The maximum number of passes of one key in an answer.
const MAX_PASSES: usize = 50;
/// The age from which on a running pass is asked what it waits for.
const WAITS_AFTER: Duration = Duration::from_secs(1);

/// A key and its controller.
#[derive(Serialize)]
struct Waiting<'a> {
    controller: &'a str,
    #[serde(flatten)]
    key: KeyState,
}

/// Some of the keys that run, wait or have failed. Controllers share the answer evenly, and so do the states of each.
pub(super) fn view(state: &State) -> Value {
    let controllers = state.controllers();
    let share = MAX_KEYS / controllers.len().max(1);
    let running = running(state);
    let keys = controllers.iter().flat_map(|(health, _)| {
        let keys = first_of_each_state(states(state, health, share, &running, |_| true), share);
        keys.into_iter().map(|key| Waiting { controller: health.name(), key })
    });
    json!({ "keys": keys.collect::<Vec<_>>(), "limit": MAX_KEYS })
}

/// One key: its object, its passes, what it read and owns, and the commands that pause it or make it run again.
pub(super) fn one(state: &State, parameters: &Parameters) -> Result<Value, String> {
    let get = |name| parameters.get(name).map(String::as_str);
    let (Some(controller), Some(text)) = (get("controller"), get("key")) else {
        return Err("the parameters controller and key are required, the key as namespace/name".into());
    };
    let found = state.controllers().iter().find(|(health, _)| health.name() == controller);
    let (health, leadership) = found.ok_or("there is no controller of this name")?;
    let key = Key::from(text);
    let passes = state.running.get().map(|running| &running.passes);
    let mut running = running(state);
    running.retain(|pass| &*pass.controller == controller && pass.key == key.to_string());
    let is_own = |of: &str, pass: &Key| of == controller && *pass == key;
    let mut finished = passes.map(|passes| passes.finished(MAX_PASSES, is_own));
    passes::keep_written_files(state, finished.iter_mut().flatten());
    let recorded = state.running.get().and_then(|running| running.recordings.last_file(controller, &key));
    Ok(json!({
        "controller": controller,
        "key": key.to_string(),
        "led": leadership.leads(&key),
        "states": states(state, health, 1, &running, |queued| *queued == key),
        "object": health.object(&key),
        "running": running,
        "waits": waits(state, controller, &key),
        "passes": finished,
        "recorded": recorded,
        "related": health.related(&key),
        "commands": commands(health, &key),
    }))
}

/// The requests and code that the pass of the key waits for, if it has run for a second. Only the view of one key shows
/// them, so the stack of at most one pass is resolved. Called on a blocking thread.
fn waits(state: &State, controller: &str, key: &Key) -> Vec<String> {
    let (Some(running), Ok(runtime)) = (state.running.get(), Handle::try_current()) else {
        return Vec::new();
    };
    let waiting = runtime.block_on(running.passes.waiting(|pass| {
        *pass.controller == *controller && *pass.key == *key && pass.begun.elapsed() >= WAITS_AFTER
    }));
    waiting.iter().flat_map(waits_of).collect()
}

fn running(state: &State) -> Vec<PassRecord> {
    state.running.get().map(|running| running.passes.running()).unwrap_or_default()
}

/// Keeps this number of keys, the first ones of each state: a queue of thousands of keys displaces no key that fails.
fn first_of_each_state(states: Vec<KeyState>, limit: usize) -> Vec<KeyState> {
    let mut counts = BTreeMap::new();
    let ranked = states.into_iter().enumerate().map(|(place, state)| {
        let rank = counts.entry(state.state).or_insert(0);
        *rank += 1;
        (*rank, place, state)
    });
    let mut ranked: Vec<(usize, _, _)> = ranked.collect();
    ranked.sort_by_key(|(rank, ..)| *rank);
    ranked.truncate(limit);
    ranked.sort_by_key(|(_, place, _)| *place);
    ranked.into_iter().map(|(.., state)| state).collect()
}

/// The states of keys, with the causes of those that run, and the errors of those that have failed.
fn states(
    process: &State,
    health: &Health,
    limit: usize,
    running: &[PassRecord],
    is_wanted: impl Fn(&Key) -> bool,
) -> Vec<KeyState> {
    let mut states = health.key_states(limit, is_wanted);
    for state in states.iter_mut().filter(|state| state.state == "running") {
        let is_its = |pass: &&PassRecord| *pass.controller == *health.name() && pass.key == state.key;
        state.causes = running.iter().find(is_its).map(|pass| pass.causes.clone()).unwrap_or_default();
    }
    if states.iter().any(|state| state.state == FAILED) {
        let errors = last_errors(process, health.name());
        for state in states.iter_mut().filter(|state| state.state == FAILED) {
            let error = errors.get(&state.key).map(|error| &**error);
            state.causes =
                error.unwrap_or("a permanent error, which the warning event of the object has").into();
        }
    }
    states
}

/// The errors of the last passes of a controller, by key.
fn last_errors(process: &State, controller: &str) -> BTreeMap<String, Box<str>> {
    let passes =
        process.running.get().map(|running| running.passes.finished(usize::MAX, |of, _| of == controller));
    let newest_last = passes.into_iter().flatten().rev();
    newest_last.filter_map(|pass| Some((pass.key, pass.error?))).collect()
}

/// The kubectl commands for the object of a key, which the console does not run. `None` without an object.
fn commands(health: &Health, key: &Key) -> Option<Value> {
    health.object(key)?;
    let (pause, object) = (health.paused_by(), object_word(health.resource(), &key.name));
    let namespace = key.namespace.as_ref().map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    let annotate = |annotation: &str| format!("kubectl annotate {object}{namespace} {annotation}");
    Some(json!({
        "pause": pause.map(|annotation| annotate(&format!("{annotation}=true"))),
        "resume": pause.map(|annotation| annotate(&format!("{annotation}-"))),
        "run_again": annotate("reknit.dev/run-again=\"$(date)\" --overwrite"),
    }))
}

/// The resource and the name as one word of a shell, so that no name is taken for a flag, such as `--all`: some Kinds, such
/// as Roles, allow almost any character in a name.
fn object_word(resource: &str, name: &str) -> String {
    let word = format!("{resource}/{name}");
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte);
    if word.bytes().all(is_plain) { word } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_queued_keys_displace_no_key_that_fails() {
        let of = |state, key: String| KeyState {
            key,
            state,
            age_seconds: None,
            due_seconds: None,
            causes: String::new(),
        };
        let mut states: Vec<_> = (0..1000).map(|n| of("queued", format!("shop/{n}"))).collect();
        states.extend(["retrying", FAILED].map(|state| of(state, "shop/x".into())));
        let shown: Vec<_> = first_of_each_state(states, 4).into_iter().map(|state| state.state).collect();
        assert_eq!(shown, ["queued", "queued", "retrying", FAILED]);
    }

    #[test]
    fn no_name_is_a_flag_or_is_interpreted_by_a_shell() {
        for (name, word) in [
            ("web-1.example", "roles/web-1.example"),
            ("system:node", "roles/system:node"),
            ("--all", "roles/--all"),
            ("a;reboot", "'roles/a;reboot'"),
            ("$(reboot)", "'roles/$(reboot)'"),
            ("a'b", r"'roles/a'\''b'"),
        ] {
            assert_eq!(object_word("roles", name), word);
        }
    }
}
