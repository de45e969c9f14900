//! The view of the keys that run or wait, and the view of one key.
use reknit_apis::Key;
use reknit_reconciler::{
    Health,
    internal::{KeyState, PassRecord},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{State, routes::Parameters};

/// The maximum number of keys in an answer.
const MAX_KEYS: usize = 1000;
/// The maximum number of passes of one key in an answer.
const MAX_PASSES: usize = 50;

/// A key and its controller.
#[derive(Serialize)]
struct Waiting<'a> {
    controller: &'a str,
    #[serde(flatten)]
    key: KeyState,
}

/// Some of the keys that run or wait. Controllers share the answer evenly.
pub(super) fn view(state: &State) -> Value {
    let controllers = state.controllers();
    let share = MAX_KEYS / controllers.len().max(1);
    let running = running(state);
    let keys = controllers.iter().flat_map(|(health, _)| {
        let keys = states(health, share, &running, |_| true).into_iter().take(share);
        keys.map(|key| Waiting { controller: health.name(), key })
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
    let finished = passes.map(|passes| passes.finished(MAX_PASSES, is_own));
    let recorded = finished.iter().flatten().find_map(|pass| pass.recorded.clone());
    Ok(json!({
        "controller": controller,
        "key": key.to_string(),
        "led": leadership.leads(&key),
        "states": states(health, 1, &running, |queued| *queued == key),
        "object": health.object(&key),
        "running": running,
        "passes": finished,
        "recorded": recorded,
        "related": health.related(&key),
        "commands": commands(health, &key),
    }))
}

fn running(state: &State) -> Vec<PassRecord> {
    state.running.get().map(|running| running.passes.running()).unwrap_or_default()
}

/// The states of keys, with the causes of those that run.
fn states(
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
    states
}

/// The kubectl commands for the object of a key, which the console does not run. `None` without an object.
fn commands(health: &Health, key: &Key) -> Option<Value> {
    health.object(key)?;
    let (resource, pause, name) = (health.resource(), health.paused_by(), quoted(&key.name));
    let namespace = key.namespace.as_ref().map_or_else(String::new, |namespace| format!(" -n {namespace}"));
    let annotate = |annotation: &str| format!("kubectl annotate {resource} {name}{namespace} {annotation}");
    Some(json!({
        "pause": annotate(&format!("{pause}=true")),
        "resume": annotate(&format!("{pause}-")),
        "run_again": annotate("reknit.dev/run-again=\"$(date)\" --overwrite"),
    }))
}

/// The name as one word of a shell: some Kinds, such as Roles, allow almost any character in a name.
fn quoted(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if name.bytes().all(is_plain) { name.into() } else { format!("'{}'", name.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_shell_would_interpret_are_quoted() {
        for (name, word) in [
            ("web-1.example", "web-1.example"),
            ("system:node", "system:node"),
            ("a;reboot", "'a;reboot'"),
            ("$(reboot)", "'$(reboot)'"),
            ("a'b", r"'a'\''b'"),
        ] {
            assert_eq!(quoted(name), word);
        }
    }
}
