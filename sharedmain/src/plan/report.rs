//! The report of a plan: its exit status, and its text and JSON.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write},
};

use reknit_apis::{Key, internal::visible};
use reknit_injection::internal::{HashMap, Redaction};
use reknit_reconciler::internal::APPLIED;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Value, json};

use super::{
    compact::Compact,
    diff::diff,
    generated::{generated_values, replace_texts, with_generated},
    notes::{Finding, Notes},
    overlay::{Cause, Entry, Id, Overlay, Part, difference, is_terminating, with_fields},
    reply::Reason,
};
use crate::observe::log_line::without_controls;

/// The number of keys that a group of equal entries names.
const NAMED: usize = 3;
/// The number of entries of a section that the text shows.
const MAX_SECTION: usize = 20;
/// The number of lines that the changes of one pass have at most.
const MAX_LINES: usize = 200;

/// The passes of a key.
pub(super) struct Run {
    pub(super) passes: usize,
    /// False if the last pass still enqueued the key.
    pub(super) is_quiescent: bool,
    /// The error of the last pass.
    pub(super) error: Option<String>,
}

impl Default for Run {
    fn default() -> Self {
        Self { passes: 0, is_quiescent: true, error: None }
    }
}

/// The controllers and objects that the program could not read.
pub(super) struct NotRead {
    /// The controllers whose objects were not listed.
    pub(super) not_synced: Vec<String>,
    /// The objects that this version cannot decode.
    pub(super) not_decoded: BTreeSet<String>,
}

/// The changes that a program would make, and what could not be planned.
pub(crate) struct Report {
    objects: Vec<Object>,
    /// The passes by controller and key. Two keys with generated names may be shown as the same.
    runs: Vec<((String, String), Run)>,
    not_read: NotRead,
    effects: Vec<String>,
    refused: Vec<String>,
    dropped_fields: Vec<String>,
    warnings: Vec<String>,
    events: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Action {
    Create,
    Delete,
    Replace,
    Change,
    ChangeStatus,
}

/// An object that would change. Names and uids that the API server would generate are replaced, and hidden values masked.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object {
    action: Action,
    api_version: String,
    kind: String,
    key: String,
    before: Compact,
    after: Compact,
    /// The state before the last step.
    #[serde(skip)]
    previous: Compact,
    causes: BTreeSet<Cause>,
    not_validated: BTreeSet<Reason>,
}

impl Report {
    pub(super) fn new(
        overlay: Overlay,
        notes: &Notes,
        runs: BTreeMap<(String, Key), Run>,
        not_read: NotRead,
        redaction: &Redaction,
    ) -> Self {
        let generated = generated_values(&overlay, &notes.since);
        let texts = |finding| {
            let texts = notes.of(finding).map(|note| with_generated(&note.to_string(), &generated));
            let mut texts: Vec<_> = texts.collect();
            texts.sort_unstable();
            texts
        };
        let events = BTreeSet::from_iter(texts(Finding::Event));
        Self {
            effects: texts(Finding::Effect),
            refused: texts(Finding::Refusal),
            dropped_fields: texts(Finding::DroppedField),
            warnings: texts(Finding::Warning),
            events: events.into_iter().collect(),
            runs: runs.into_iter().map(|(id, run)| shown_run(id, run, &generated)).collect(),
            objects: objects(overlay, &generated, redaction),
            not_read,
        }
    }

    /// The report for people, without characters that control a terminal: users choose what objects contain.
    pub(crate) fn text(&self) -> String {
        visible(&self.to_string()).into_owned()
    }

    /// The report for programs, without such characters too.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self).map(|json| without_controls(json) + "\n")
    }

    /// 0: nothing to change; 3: changes; 4: the plan is incomplete.
    pub(crate) fn exit_status(&self) -> u8 {
        match () {
            () if !self.is_complete() => 4,
            () if !self.objects.is_empty() || !self.effects.is_empty() => 3,
            () => 0,
        }
    }

    fn is_complete(&self) -> bool {
        let is_done = |run: &Run| run.is_quiescent && run.error.is_none();
        let problems = [&self.not_read.not_synced, &self.refused, &self.dropped_fields];
        let is_read = self.not_read.not_decoded.is_empty();
        is_read
            && self.runs.iter().all(|(_, run)| is_done(run))
            && problems.iter().all(|problems| problems.is_empty())
    }

    fn count(&self, actions: &[Action]) -> usize {
        self.objects.iter().filter(|object| actions.contains(&object.action)).count()
    }

    fn failed(&self) -> usize {
        self.runs.iter().filter(|(_, run)| run.error.is_some()).count()
    }

    /// Writes the objects by the key that causes their change. Keys whose changes are equal but for their name are one
    /// group.
    fn write_objects(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_cause: BTreeMap<Cause, Vec<&Object>> = BTreeMap::new();
        for object in &self.objects {
            let outside = || Cause { controller: String::new(), key: "outside of a pass".into() };
            let cause = object.causes.first().cloned();
            by_cause.entry(cause.unwrap_or_else(outside)).or_default().push(object);
        }
        let mut groups: BTreeMap<(&str, String), Vec<(&str, String)>> = BTreeMap::new();
        for (Cause { controller, key }, objects) in &by_cause {
            let text = counted(objects);
            let name = key.rsplit('/').next().unwrap_or_default();
            groups.entry((controller, text.replace(name, "{name}"))).or_default().push((key, text));
        }
        for ((controller, _), alike) in &groups {
            let keys: Vec<_> = alike.iter().map(|(key, _)| *key).collect();
            writeln!(f, "# {controller} {}", named(&keys))?;
            f.write_str(&alike[0].1)?;
        }
        Ok(())
    }

    fn write_failed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut by_error: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for ((controller, key), run) in &self.runs {
            if let Some(error) = &run.error {
                by_error.entry((controller, error)).or_default().push(key);
            }
        }
        let lines = by_error.iter().map(|((controller, error), keys)| {
            let is_undeclared = error.contains("field not declared in schema");
            let hint = if is_undeclared {
                " (apply the CustomResourceDefinitions of this version first)"
            } else {
                ""
            };
            format!("{controller} {}: {error}{hint}", named(keys))
        });
        write_section(f, "Failed", lines)
    }

    fn write_unsettled(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unsettled = self.runs.iter().filter(|(_, run)| !run.is_quiescent);
        write_section(
            f,
            "Not quiescent",
            unsettled.map(|((controller, key), run)| {
                let cause = Cause { controller: controller.clone(), key: key.clone() };
                let mut text = format!(
                    "{controller} {key} still has changes after {} passes; the last ones:",
                    run.passes
                );
                for object in self.objects.iter().filter(|object| object.causes.contains(&cause)) {
                    let lines = diff(&object.previous.value(), &object.after.value());
                    let _ = write!(text, "\n{} {}", object.kind, object.key);
                    lines.iter().for_each(|line| text.extend(["\n  ", line]));
                }
                text
            }),
        )
    }
}

/// The JSON for programs.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let keys = self.runs.iter().map(|((controller, key), run)| {
            let outcome = if run.error.is_some() { "error" } else { "success" };
            json!({
                "controller": controller, "key": key, "passes": run.passes, "quiescent": run.is_quiescent,
                "outcome": outcome, "error": run.error,
            })
        });
        let summary = json!({
            "create": self.count(&[Action::Create, Action::Replace]),
            "change": self.count(&[Action::Change]),
            "changeStatus": self.count(&[Action::ChangeStatus]),
            "delete": self.count(&[Action::Delete, Action::Replace]),
            "failed": self.failed(),
        });
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("formatVersion", &1)?;
        map.serialize_entry("complete", &self.is_complete())?;
        map.serialize_entry("summary", &summary)?;
        map.serialize_entry("objects", &self.objects)?;
        map.serialize_entry("keys", &keys.collect::<Vec<_>>())?;
        map.serialize_entry("notSynced", &self.not_read.not_synced)?;
        map.serialize_entry("notDecoded", &self.not_read.not_decoded)?;
        map.serialize_entry("refused", &self.refused)?;
        map.serialize_entry("droppedFields", &self.dropped_fields)?;
        map.serialize_entry("warnings", &self.warnings)?;
        map.serialize_entry("effects", &self.effects)?;
        map.serialize_entry("events", &self.events)?;
        map.end()
    }
}

/// The text for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_objects(f)?;
        self.write_failed(f)?;
        self.write_unsettled(f)?;
        write_section(f, "Not synced", self.not_read.not_synced.iter())?;
        write_section(f, "Not decoded (this version would skip them)", self.not_read.not_decoded.iter())?;
        write_section(f, "Refused", self.refused.iter())?;
        let dropped = "Dropped fields (apply the CustomResourceDefinitions of this version first)";
        write_section(f, dropped, self.dropped_fields.iter())?;
        let not_validated = self.objects.iter().flat_map(|object| {
            object.not_validated.iter().map(move |part| format!("{} {}: {part}", object.kind, object.key))
        });
        write_section(f, "Not validated by the API server", not_validated)?;
        write_section(f, "Warnings", self.warnings.iter())?;
        write_section(
            f,
            "Other effects: outside the API server, or requests to subresources",
            self.effects.iter(),
        )?;
        write_section(f, "Events", self.events.iter())?;
        let effects = match self.effects.len() {
            0 => String::new(),
            number => format!(", {number} other"),
        };
        writeln!(
            f,
            "Plan: {} to create, {} to change, {} to change in status only, {} to delete{effects}; {} failed",
            self.count(&[Action::Create, Action::Replace]),
            self.count(&[Action::Change]),
            self.count(&[Action::ChangeStatus]),
            self.count(&[Action::Delete, Action::Replace]),
            self.failed(),
        )
    }
}

impl Object {
    fn new(
        id: &Id,
        entry: Entry,
        generated: &HashMap<String, String>,
        redaction: &Redaction,
    ) -> Option<Self> {
        let action = action(&entry)?;
        let states = [&entry.before, &entry.after, &entry.previous];
        let states = states.map(|state| shown(state.as_ref().map(Compact::value), generated));
        let [mut before, mut after, mut previous] = states;
        redaction.mask([&mut before, &mut after, &mut previous], id.is_secret());
        let object = if after.is_object() { &after } else { &before };
        let [api_version, kind] =
            ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap_or_default().to_owned());
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or(&id.key.name);
        let namespace = metadata["namespace"].as_str();
        let key = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"));
        let Entry { causes, not_validated, .. } = entry;
        let causes = causes.into_iter().map(|cause| shown_cause(cause, generated)).collect();
        let [before, after, previous] = [before, after, previous].map(|state| Compact::from(&state));
        Some(Self { action, api_version, kind, key, before, after, previous, causes, not_validated })
    }
}

/// The object with its differences, as a part of the text.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [before, after] = [&self.before, &self.after].map(Compact::value);
        let (sign, lines) = match self.action {
            Action::Create => ("+", diff(&identity(&after), &after)),
            Action::Delete => ("-", vec![]),
            Action::Replace => ("-/+", diff(&before, &after)),
            Action::Change | Action::ChangeStatus => ("~", diff(&before, &after)),
        };
        writeln!(f, "  {sign} {} {}", self.kind, self.key)?;
        // The hash of what was applied differs for each object, and other lines show the change.
        let is_hash = |line: &&String| line[2..].starts_with(&format!("metadata.annotations.{APPLIED}:"));
        let shown: Vec<_> = lines.iter().filter(|line| !is_hash(line)).collect();
        let shown = if shown.is_empty() { lines.iter().collect() } else { shown };
        shown.iter().try_for_each(|line| writeln!(f, "      {line}"))
    }
}

/// The objects that would change, sorted by their names.
fn objects(overlay: Overlay, generated: &HashMap<String, String>, redaction: &Redaction) -> Vec<Object> {
    let entries = overlay.entries.into_iter();
    let objects = entries.filter_map(|(id, entry)| Object::new(&id, entry, generated, redaction));
    let mut objects: Vec<_> = objects.collect();
    objects.sort_by(|a, b| (&a.kind, &a.key).cmp(&(&b.kind, &b.key)));
    objects
}

/// The changes of one pass as text. Empty if there are none.
pub(super) fn changes(overlay: Overlay, notes: &Notes, redaction: &Redaction) -> String {
    let generated = generated_values(&overlay, &notes.since);
    let objects = objects(overlay, &generated, redaction);
    let mut text = counted(&objects.iter().collect::<Vec<_>>());
    text.extend(notes.of(Finding::Effect).map(|note| format!("  {}: {}\n", note.object, note.text)));
    let hidden = text.lines().count().saturating_sub(MAX_LINES);
    let mut shown: Vec<_> = text.lines().take(MAX_LINES).map(str::to_owned).collect();
    shown.extend((hidden > 0).then(|| format!("  and {hidden} more lines")));
    shown.join("\n")
}

/// The fields of a new object that its heading shows already.
fn identity(object: &Value) -> Value {
    let metadata = with_fields(
        json!({}),
        &object["metadata"],
        &["generateName", "name", "namespace", "ownerReferences"],
    );
    let mut identity = with_fields(json!({}), object, &["apiVersion", "kind"]);
    identity["metadata"] = metadata;
    identity
}

/// The change of an object, if there is one.
fn action(entry: &Entry) -> Option<Action> {
    let differs = |part: Part, before: &Value, after: &Value| {
        difference(&part.of(before), &part.of(after)) != json!({})
    };
    let states = [&entry.before, &entry.after].map(|state| state.as_ref().map(Compact::value));
    match &states {
        [None, None] => None,
        [None, Some(_)] => Some(Action::Create),
        [Some(_), None] => Some(Action::Delete),
        [Some(_), Some(_)] if entry.is_planned => Some(Action::Replace),
        [Some(before), Some(after)] if is_terminating(after) && !is_terminating(before) => {
            Some(Action::Delete)
        }
        [Some(before), Some(after)] if differs(Part::Main, before, after) => Some(Action::Change),
        [Some(before), Some(after)] => differs(Part::Status, before, after).then_some(Action::ChangeStatus),
    }
}

/// The state as it is shown: without the fields that only the API server sets, and without generated values.
fn shown(object: Option<Value>, generated: &HashMap<String, String>) -> Value {
    let Some(object) = object else { return Value::Null };
    let mut shown = Part::Main.written(&object);
    replace_texts(&mut shown, generated);
    shown
}

/// The cause without generated names: the pass may be of an object that the plan itself creates.
fn shown_cause(cause: Cause, generated: &HashMap<String, String>) -> Cause {
    Cause { key: with_generated(&cause.key, generated), ..cause }
}

/// The run of a key without generated names, in the key and in the error.
fn shown_run(
    (controller, key): (String, Key),
    run: Run,
    generated: &HashMap<String, String>,
) -> ((String, String), Run) {
    let error = run.error.map(|error| with_generated(&error, generated));
    ((controller, with_generated(&key.to_string(), generated)), Run { error, ..run })
}

/// The texts of these objects. Equal ones are shown once, with their number.
fn counted(objects: &[&Object]) -> String {
    let texts: Vec<String> = objects.iter().map(|object| object.to_string()).collect();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    texts.iter().for_each(|text| *counts.entry(text).or_default() += 1);
    let shown = texts.iter().filter_map(|text| match counts.remove(&**text)? {
        1 => Some(text.clone()),
        count => Some(text.replacen('\n', &format!(" ({count} times)\n"), 1)),
    });
    shown.collect()
}

/// The first keys, and the number of the others.
fn named<S: AsRef<str>>(keys: &[S]) -> String {
    let first: Vec<_> = keys.iter().take(NAMED).map(AsRef::as_ref).collect();
    match keys.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        others => format!("{} and {others} more", first.join(", ")),
    }
}

fn write_section(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> fmt::Result {
    let mut lines = lines.into_iter().peekable();
    if lines.peek().is_some() {
        writeln!(f, "{title}:")?;
    }
    let indent = |line: &str| line.replace('\n', "\n    ");
    lines.by_ref().take(MAX_SECTION).try_for_each(|line| writeln!(f, "  {}", indent(line.as_ref())))?;
    match lines.count() {
        0 => Ok(()),
        others => writeln!(f, "  and {others} more, which --plan-output json prints"),
    }
}
