//! The report of a failed run: a text for the terminal, and a page with a picture.

use std::{collections::BTreeSet, env, fmt::Write, fs, path::PathBuf};

use serde_json::Value;

use crate::{
    html,
    oracles::{self, Violation},
    time::Time,
    trace::{Pass, Sent, Trace},
    world::Run,
};

/// The number of lines of a timeline.
const MAX_LINES: usize = 60;

/// A failed run.
pub(crate) struct Failure<'a> {
    /// The name of the test.
    pub(crate) test: &'a str,
    pub(crate) seed: u64,
    pub(crate) replicas: usize,
    pub(crate) run: &'a Run,
}

/// One line of a timeline.
pub(crate) struct Line {
    pub(crate) at: Time,
    pub(crate) replica: Option<usize>,
    pub(crate) text: String,
}

pub(crate) fn failure(failure: &Failure<'_>) -> String {
    let Failure { test, seed, run, .. } = failure;
    let mut text = String::new();
    for violation in &run.violations {
        let Violation { oracle, message, at, .. } = violation;
        _ = writeln!(text, "violated: {oracle}\n  {message}\n  (at {at} s)");
    }
    _ = writeln!(text, "\nseed {seed}, faults: {}\n", run.plan);
    let lines = timeline(run);
    let skipped = lines.len().saturating_sub(MAX_LINES);
    if skipped > 0 {
        _ = writeln!(text, "  … {skipped} earlier lines");
    }
    for Line { at, replica, text: line } in &lines[skipped..] {
        let replica = replica.map_or_else(|| "-".into(), |replica| format!("replica-{replica}"));
        _ = writeln!(text, "  {:>9}  {replica:<10} {line}", at.to_string());
    }
    if let Some(path) = write_page(failure) {
        _ = writeln!(text, "\npicture: {}", path.display());
    }
    let seed = if run.plan.single.is_some() { String::new() } else { format!("REKNIT_SIM_SEED={seed} ") };
    _ = write!(text, "again:   {seed}cargo test {test}");
    text
}

/// The requests and passes of the keys that the violations name, and the faults.
pub(crate) fn timeline(run: &Run) -> Vec<Line> {
    let trace = &run.trace;
    let keys: BTreeSet<_> =
        run.violations.iter().flat_map(|violation| violation.keys.iter().cloned()).collect();
    let keys = with_writers(trace, keys);
    let concerns = |key: &str| keys.is_empty() || keys.contains(key);
    let mut lines = Vec::new();
    for note in &trace.notes {
        lines.push(Line { at: note.at, replica: note.replica, text: note.text.clone() });
    }
    let writers: BTreeSet<_> = trace.requests.iter().filter_map(|sent| sent.pass).collect();
    let is_idle = |id: &u64, pass: &Pass| pass.result.as_deref() == Some("skip") && !writers.contains(id);
    for (_, pass) in trace.passes.iter().filter(|(id, pass)| concerns(&pass.key) && !is_idle(id, pass)) {
        let (replica, controller, key) = (Some(pass.replica), &pass.controller, &pass.key);
        lines.push(Line { at: pass.begun, replica, text: format!("{controller} {key}: the pass begins") });
        if let Some(ended) = pass.ended {
            let text = format!("{controller} {key}: the pass ends: {}", pass.outcome());
            lines.push(Line { at: ended, replica, text });
        }
    }
    for sent in &trace.requests {
        let pass_key = sent.pass.and_then(|pass| trace.passes.get(&pass)).map(|pass| pass.key.as_str());
        if sent.is_of_events()
            || !(pass_key.is_some_and(concerns) || sent.is_effect() && concerns(&sent.key()))
        {
            continue;
        }
        let answer = sent.answered.as_ref().map_or_else(
            || "no answer".into(),
            |(at, answer)| format!("{answer} after {} ms", at.since(sent.at).as_millis()),
        );
        lines.push(Line {
            at: sent.at,
            replica: Some(sent.replica),
            text: format!("{} → {answer}", sent.summary()),
        });
    }
    lines.sort_by_key(|line| line.at);
    lines
}

/// Adds the keys of the passes that wrote objects of these keys.
fn with_writers(trace: &Trace, mut keys: BTreeSet<String>) -> BTreeSet<String> {
    let writers = trace.requests.iter().filter_map(|sent| {
        let object = &sent.stored.as_ref()?.name;
        let (_, key) = object.split_once(' ')?;
        keys.contains(key).then(|| trace.passes.get(&sent.pass?)).flatten()
    });
    let writers: Vec<_> = writers.map(|pass| pass.key.clone()).collect();
    keys.extend(writers);
    keys
}

/// Writes the page beside the other files of the build, and returns its path.
fn write_page(failure: &Failure<'_>) -> Option<PathBuf> {
    let folder = target()?.join("simulation");
    fs::create_dir_all(&folder).ok()?;
    let name: String =
        failure.test.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    let path = folder.join(format!("{name}-{}.html", failure.seed));
    fs::write(&path, html::page(failure)).ok()?;
    Some(path)
}

/// The target folder, in whose `deps` the test binary lies.
fn target() -> Option<PathBuf> {
    let binary = env::current_exe().ok()?;
    let deps = binary.ancestors().find(|folder| folder.ends_with("deps"));
    let target = deps.and_then(|deps| deps.parent()?.parent()).map(Into::into);
    Some(target.unwrap_or_else(env::temp_dir))
}

/// The message for a program whose runs of one seed differ, with the first request in which they do.
pub(crate) fn nondeterminism(seed: u64, first: &Trace, second: &Trace) -> String {
    let requests = |n| [first, second].map(|trace| trace.requests.get(n));
    let [first, second] = (0..first.requests.len().max(second.requests.len()))
        .map(requests)
        .find(|[first, second]| first.map(Sent::identity) != second.map(Sent::identity))
        .unwrap_or_default();
    let line = |sent: Option<&Sent>| {
        sent.map_or_else(
            || "nothing".into(),
            |Sent { at, replica, method, uri, .. }| format!("{at} replica-{replica} {method} {uri}"),
        )
    };
    let mut text = format!(
        "two runs of seed {seed} differ, so its failures cannot be repeated. The first request that differs:\n  \
         first run:  {}\n  second run: {}\n",
        line(first),
        line(second)
    );
    let [first, second] = [first, second]
        .map(|sent| sent.and_then(|sent| serde_json::from_slice(&sent.body).ok()).unwrap_or(Value::Null));
    if first != second && !first.is_null() && !second.is_null() {
        _ = writeln!(text, "  in its body, {}", oracles::difference("", &first, &second));
    }
    text + "A controller that is simulated depends on nothing but objects, the time of reknit's Clock or tokio's, and the \
            order of a BTreeMap: not on SystemTime, Instant, random numbers, threads, or the order of a HashMap."
}
