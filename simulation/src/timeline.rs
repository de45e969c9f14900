//! A failed run, and its timeline.

use std::collections::BTreeSet;

use crate::{
    time::Time,
    trace::{Pass, Trace},
    world::Run,
};

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
