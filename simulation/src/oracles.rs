//! The checks that need no code of the user: a controller that breaks one is wrong, whatever it is for.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use reknit_apis::Key;
use reknit_leadership::{LeaderElectionConfig, Ring};
use reknit_reconciler::internal::APPLIED;
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    scenario::{COMPONENT, REST, Scenario},
    time::Time,
    trace::{Pass, RequestId, Sent, Stored, Trace},
};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// The rule, as a sentence.
    pub(crate) oracle: String,
    pub(crate) message: String,
    /// The keys whose timeline explains it, as `shop/a`. Empty for all keys.
    pub(crate) keys: Vec<String>,
    pub(crate) at: Time,
}

impl Violation {
    pub(crate) fn new(oracle: &str, message: String, keys: Vec<String>, at: Time) -> Self {
        Self { oracle: oracle.into(), message, keys, at }
    }
}

/// The terms of leadership, as the Leases on the API server show them.
pub(crate) struct Terms {
    election: LeaderElectionConfig,
    by_lease: BTreeMap<String, Term>,
}

struct Term {
    /// The replica and its incarnation; `None` after a release.
    holder: Option<(usize, u32)>,
    since: Time,
    expires: Time,
}

impl Terms {
    pub(crate) fn new(election: &LeaderElectionConfig) -> Self {
        Self { election: election.clone(), by_lease: BTreeMap::new() }
    }

    /// Records a successful write of a Lease.
    pub(crate) fn record(&mut self, sent: &Sent, lease: &[u8], now: Time) {
        let Ok(lease) = serde_json::from_slice::<Value>(lease) else { return };
        let (Some(name), spec) = (lease["metadata"]["name"].as_str(), &lease["spec"]) else { return };
        let is_held = spec["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty());
        let holder = is_held.then_some((sent.replica, sent.incarnation));
        let duration = Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or_default());
        let known = self.by_lease.get(name).filter(|term| term.holder == holder);
        let since = known.map_or(now, |term| term.since);
        self.by_lease.insert(name.into(), Term { holder, since, expires: now + duration });
    }

    /// Checks that a write was sent in the term of its sender.
    pub(crate) fn check(&self, trace: &Trace, id: RequestId) -> Option<Violation> {
        let sent = &trace.requests[id];
        let pass = trace.passes.get(&sent.pass?).filter(|_| sent.is_effect())?;
        let key = Key::from(pass.key.as_str());
        let names = self.election.bucket_names(COMPONENT, &pass.controller);
        let ring = Ring::new(names);
        let lease = ring.owner(&key);
        let sender = Some((sent.replica, sent.incarnation));
        let problem = match self.by_lease.get(lease) {
            None => "the Lease was never acquired".to_owned(),
            Some(term) if term.holder == sender && sent.at <= term.expires => return None,
            Some(term) if term.holder == sender => format!("its term ended at {}", term.expires),
            // The write left before the other one's first pass could begin.
            Some(term) if term.since >= sent.at => return None,
            Some(Term { holder: Some((replica, _)), since, .. }) => {
                format!("replica-{replica} leads since {since}")
            }
            Some(Term { holder: None, since, .. }) => format!("the Lease was released at {since}"),
        };
        let message = format!(
            "replica-{} sent {:?} for {} at {}, but {problem} (Lease {lease})",
            sent.replica,
            sent.summary(),
            pass.key,
            sent.at
        );
        Some(Violation::new("no write is sent after the term", message, vec![pass.key.clone()], sent.at))
    }
}

/// The time after a crash in which no successor of the dead process writes, so that the last writes of the dead process
/// come before.
const FENCE: Duration = Duration::from_secs(2);

/// The last writer of each key, and the processes that crashed.
#[derive(Default)]
pub(crate) struct Successions {
    /// The replica and its incarnation, with the time of the crash.
    crashes: BTreeMap<(usize, u32), Time>,
    /// By controller and key: the writer, with the time at which it sent the write.
    writers: BTreeMap<(String, String), ((usize, u32), Time)>,
}

impl Successions {
    pub(crate) fn record_crash(&mut self, process: (usize, u32), now: Time) {
        self.crashes.insert(process, now);
    }

    /// Records a write that the API server has handled, and checks that no write of a process that crashed comes after
    /// one of its successor. A write that takes longer than the fence may.
    pub(crate) fn record_write(&mut self, trace: &Trace, id: RequestId, now: Time) -> Option<Violation> {
        let sent = &trace.requests[id];
        let pass = trace.passes.get(&sent.pass?)?;
        let process = (sent.replica, sent.incarnation);
        let last = self.writers.insert((pass.controller.clone(), pass.key.clone()), (process, sent.at));
        let ((successor, _), successor_sent) = last.filter(|(writer, _)| *writer != process)?;
        let crash = *self.crashes.get(&process)?;
        if successor_sent < crash || now.since(crash) > FENCE {
            return None;
        }
        let message = format!(
            "replica-{} crashed at {crash}, and its {:?} arrived at {now}, after replica-{successor} had sent a write for \
             the same key at {successor_sent}",
            sent.replica,
            sent.summary()
        );
        let oracle = "no write of a dead process comes after one of its successor";
        Some(Violation::new(oracle, message, vec![pass.key.clone()], now))
    }
}

/// The object that a write has stored. An object that is created anew is another one.
pub(crate) fn stored(body: &[u8]) -> Option<Stored> {
    let mut object: Value = serde_json::from_slice(body).ok()?;
    let (name, uid) = (identity(&object), object["metadata"]["uid"].to_string());
    strip(&mut object);
    normalize(&mut object, &BTreeMap::new(), 0);
    let mut hasher = DefaultHasher::new();
    object.to_string().hash(&mut hasher);
    Some(Stored { name, uid, content: hasher.finish() })
}

/// The Kind and the key of an object, as `ConfigMap shop/a`.
fn identity(object: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap_or_default(), key(object))
}

fn key(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str();
    let name = text("name").unwrap_or_default();
    text("namespace").map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// The objects of the cluster without what may differ between two runs: times, uids, versions, and generated names.
pub(crate) fn final_state(cluster: &Cluster) -> BTreeMap<String, Value> {
    let mut objects: Vec<Value> =
        cluster.objects().iter().map(|object| Value::clone(object)).filter(is_state).collect();
    let names = canonical_names(&objects);
    for object in &mut objects {
        let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
        strip(object);
        normalize(object, &names, generation);
    }
    objects.into_iter().map(|object| (identity(&object), object)).collect()
}

/// Returns true for an object that controllers are responsible for.
fn is_state(object: &Value) -> bool {
    !matches!(object["kind"].as_str(), Some("Event" | "Lease"))
}

/// The replacements of uids by the objects that have them, and of generated names by numbered ones.
fn canonical_names(objects: &[Value]) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let mut generated = Vec::new();
    for object in objects {
        let metadata = &object["metadata"];
        if let (Some(prefix), Some(name)) = (metadata["generateName"].as_str(), metadata["name"].as_str()) {
            let mut content = object.clone();
            strip(&mut content);
            content["metadata"]["name"] = Value::Null;
            normalize(&mut content, &BTreeMap::new(), 0);
            generated.push((prefix.to_owned(), content.to_string(), name.to_owned()));
        }
        if let Some(uid) = metadata["uid"].as_str() {
            names.insert(uid.to_owned(), format!("<uid of {}>", identity(object)));
        }
    }
    generated.sort();
    for (number, (prefix, _, name)) in generated.into_iter().enumerate() {
        names.insert(name, format!("{prefix}<{number}>"));
    }
    names
}

/// Removes the metadata that the API server sets, and the hash of what was applied, which is compared itself.
fn strip(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(APPLIED);
        }
        for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
            metadata.remove(field);
        }
    }
}

fn normalize(value: &mut Value, names: &BTreeMap<String, String>, generation: i64) {
    match value {
        Value::String(text) if is_time(text) => *text = "<time>".into(),
        Value::String(text) => {
            if let Some(name) = names.get(text) {
                text.clone_from(name);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| normalize(item, names, generation)),
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == "observedGeneration" && field.as_i64() == Some(generation) {
                    *field = "<generation>".into();
                }
                normalize(field, names, generation);
            }
        }
        _ => {}
    }
}

/// Returns true for a time as RFC 3339 writes it.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20 && bytes[4] == b'-' && bytes[7] == b'-' && bytes[10] == b'T' && bytes[13] == b':'
}

/// Checks a run after its end.
pub(crate) fn check_end(trace: &Trace, cluster: &Cluster, scenario: &Scenario, end: Time) -> Vec<Violation> {
    let mut violations = Vec::new();
    violations.extend(storm(cluster, end));
    violations.extend(endless_pass(trace, end));
    violations.extend(writes_at_rest(trace, end));
    violations.extend(write_fight(trace, end));
    violations.extend(unfinished_deletion(cluster, end));
    violations.extend(orphan(cluster, end));
    for (name, check) in &scenario.finally {
        if let Err(message) = check(cluster) {
            violations.push(Violation::new(name, message, Vec::new(), end));
        }
    }
    violations
}

/// Checks that each controller has run, since a run says nothing about one whose passes all fail, or that has none.
pub(crate) fn idle_controllers(trace: &Trace, scenario: &Scenario, end: Time) -> Option<Violation> {
    let controllers: BTreeSet<_> = trace.passes.values().map(|pass| &*pass.controller).collect();
    let (mut run, mut last_failure) = (Vec::new(), String::new());
    for controller in controllers {
        let mut passes = trace.passes.values().filter(|pass| pass.controller == controller);
        match passes.clone().rfind(|pass| pass.has_failed()) {
            Some(failed) if !passes.any(Pass::has_succeeded) => {
                last_failure = format!("\n  {controller} {}: {}", failed.key, failed.outcome());
            }
            _ => run.push(controller),
        }
    }
    let (idle, names) = (scenario.constructors.len().checked_sub(run.len())?, run.join(", "));
    let message = format!(
        "{idle} of {} controllers have completed no pass (passes of: {}): create an object of their Kind in a step, or \
         leave them out{last_failure}",
        scenario.constructors.len(),
        if names.is_empty() { "none" } else { &names },
    );
    (idle > 0).then(|| Violation::new("each controller runs", message, Vec::new(), end))
}

/// An object that its controller has reported to be in a storm, which is slowed and so is no hot loop any more.
fn storm(cluster: &Cluster, end: Time) -> Option<Violation> {
    let event = cluster.objects().into_iter().find(|object| {
        object["kind"].as_str() == Some("Event") && object["reason"].as_str() == Some("ReconcileStorm")
    })?;
    let about = key(&json!({ "metadata": event["regarding"] }));
    let message = format!("{about} is {}", event["note"].as_str().unwrap_or_default());
    Some(Violation::new("it comes to rest", message, vec![about], end))
}

/// A pass that still runs after the last part of the run, in which nothing happens.
fn endless_pass(trace: &Trace, end: Time) -> Option<Violation> {
    let is_open = |pass: &&Pass| pass.ended.is_none() && end.since(pass.begun) > REST;
    let Pass { controller, key, begun, .. } = trace.passes.values().find(is_open)?;
    let message = format!(
        "a pass of {controller} {key} has run since {begun}: a pass that waits for something else than a response \
         returns `Outcome::after`"
    );
    Some(Violation::new("it comes to rest", message, vec![key.clone()], end))
}

/// The first write in the last part of the run, in which nothing happens.
fn writes_at_rest(trace: &Trace, end: Time) -> Option<Violation> {
    let is_late = |sent: &&Sent| end.since(sent.at) < REST;
    let sent = trace.requests.iter().rev().take_while(is_late).find(|sent| sent.is_effect())?;
    let pass = sent.pass.and_then(|pass| trace.passes.get(&pass));
    let keys = pass.map_or_else(|| sent.key(), |pass| pass.key.clone());
    let message =
        format!("{:?} was sent at {}, although nothing has changed for a long time", sent.summary(), sent.at);
    Some(Violation::new("at rest nobody writes", message, vec![keys], end))
}

/// The number of times that an object may return to the content before its last change.
const MAX_RETURNS: usize = 4;

/// An object that replicas write back and forth.
fn write_fight(trace: &Trace, end: Time) -> Option<Violation> {
    let mut histories: BTreeMap<&str, (Vec<u64>, usize)> = BTreeMap::new();
    for sent in trace.requests.iter().filter(|sent| sent.pass.is_some()) {
        let Some(Stored { name, uid, content }) = &sent.stored else { continue };
        let (history, returns) = histories.entry(uid).or_default();
        if history.last() == Some(content) {
            continue;
        }
        if history.len() >= 2 && history[history.len() - 2] == *content {
            *returns += 1;
        }
        history.push(*content);
        if *returns > MAX_RETURNS {
            let message = format!("{name} returned {returns} times to the content before its last change");
            let key = name.split_once(' ').map_or("", |(_, key)| key);
            return Some(Violation::new(
                "no object is written back and forth",
                message,
                vec![key.into()],
                end,
            ));
        }
    }
    None
}

fn unfinished_deletion(cluster: &Cluster, end: Time) -> Option<Violation> {
    let objects = cluster.objects();
    let object = objects.iter().find(|object| !object["metadata"]["deletionTimestamp"].is_null())?;
    let finalizers = &object["metadata"]["finalizers"];
    let message = format!("{} was deleted, and still has the finalizers {finalizers}", identity(object));
    Some(Violation::new("finalizers end", message, vec![key(object)], end))
}

fn orphan(cluster: &Cluster, end: Time) -> Option<Violation> {
    let objects = cluster.objects();
    let uids: BTreeSet<_> = objects.iter().filter_map(|object| object["metadata"]["uid"].as_str()).collect();
    objects.iter().filter(|object| is_state(object.as_ref())).find_map(|object| {
        let owners = object["metadata"]["ownerReferences"].as_array()?;
        let owner =
            owners.iter().find(|owner| owner["uid"].as_str().is_some_and(|uid| !uids.contains(uid)))?;
        let message =
            format!("{} has the owner {} {}, which is gone", identity(object), owner["kind"], owner["name"]);
        Some(Violation::new("nothing is orphaned", message, vec![key(object)], end))
    })
}

/// The differences between the final state and the one without faults.
pub(crate) fn compare_states(
    expected: &BTreeMap<String, Value>,
    actual: &BTreeMap<String, Value>,
    end: Time,
) -> Option<Violation> {
    let objects: BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
    let mut messages = Vec::new();
    let mut keys = Vec::new();
    for object in objects {
        let problem = match (expected.get(object), actual.get(object)) {
            (Some(expected), Some(actual)) if expected == actual => continue,
            (Some(expected), Some(actual)) => {
                format!("{object} differs: {}", difference("", expected, actual))
            }
            (Some(_), None) => format!("{object} is missing"),
            (None, _) => format!("{object} should not exist"),
        };
        messages.push(problem);
        let found = actual.get(object).or(expected.get(object));
        keys.extend(found.into_iter().flat_map(keys_of));
    }
    let message = (!messages.is_empty()).then(|| messages.join("\n  "))?;
    Some(Violation::new("the final state is that of a run without faults", message, keys, end))
}

/// The keys whose timeline explains an object of a final state: those of its owners, and its own. A generated name is
/// replaced in such a state, so that it names no object of the timeline.
fn keys_of(object: &Value) -> Vec<String> {
    let namespace = &object["metadata"]["namespace"];
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    let owners =
        owners.map(|owner| key(&json!({"metadata": {"namespace": namespace, "name": owner["name"]}})));
    owners.chain([key(object)].into_iter().filter(|key| !key.contains('<'))).collect()
}

/// The first field in which two values differ.
pub(crate) fn difference(path: &str, expected: &Value, actual: &Value) -> String {
    if let (Value::Object(expected), Value::Object(actual)) = (expected, actual) {
        let names: BTreeSet<_> = expected.keys().chain(actual.keys()).collect();
        for name in names {
            let [old, new] = [expected, actual].map(|fields| fields.get(name).unwrap_or(&Value::Null));
            if old != new {
                return difference(&format!("{path}.{name}"), old, new);
            }
        }
    }
    format!("{} is {actual} instead of {expected}", path.trim_start_matches('.'))
}
