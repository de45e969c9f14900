//! The text about a restored field.

use std::{fmt, time::Duration};

use serde_json::Value;

use super::{
    field::{Field, Step},
    managers::Rival,
};

/// The maximum length of a value in bytes.
const MAX_VALUE: usize = 80;
/// The maximum length of the path of a field in bytes. The key of a map can have a megabyte.
const MAX_PATH: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct RestoredText {
    rival: Option<Rival>,
    field: String,
    others: usize,
    theirs: String,
    ours: String,
    times: u32,
    within: Duration,
}

impl RestoredText {
    pub(super) fn new(
        rival: Option<Rival>,
        field: &Field,
        is_hidden: bool,
        others: usize,
        times: u32,
        within: Duration,
    ) -> Self {
        let [theirs, ours] = [&field.theirs, &field.ours].map(|value| value_text(value.as_ref(), is_hidden));
        Self { rival, field: path_text(&field.path), others, theirs, ours, times, within }
    }
}

/// Formats as `capacity-bot set spec.replicas to 5, restored to 2, 900 times in 12 minutes`, and with `#`, without the
/// values, as `capacity-bot set spec.replicas, restored 900 times in 12 minutes`.
impl fmt::Display for RestoredText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, others, theirs, ours, times, within, .. } = self;
        match &self.rival {
            Some(Rival::Manager(manager)) => f.write_str(manager)?,
            Some(Rival::Namesake(manager)) => write!(f, "another client with the field manager {manager}")?,
            None => f.write_str("another client")?,
        }
        write!(f, " set {field}")?;
        if *others > 0 {
            write!(f, " (and {others} more)")?;
        }
        match f.alternate() {
            false => write!(f, " to {theirs}, restored to {ours}, {times} times in ")?,
            true => write!(f, ", restored {times} times in ")?,
        }
        match within.as_secs() {
            0..=1 => f.write_str("1 second"),
            seconds @ 2..120 => write!(f, "{seconds} seconds"),
            seconds => write!(f, "{} minutes", seconds / 60),
        }
    }
}

/// Formats a path, such as `metadata.labels[example.com/x]` or `spec.ports[0].name`.
pub(super) fn path_text(path: &[Step]) -> String {
    let is_plain =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    let text = path.iter().fold(String::new(), |text, step| match step {
        Step::Item(n, _) => format!("{text}[{n}]"),
        Step::Name(name) if !is_plain(name) => format!("{text}[{name}]"),
        Step::Name(name) if text.is_empty() => name.clone(),
        Step::Name(name) => format!("{text}.{name}"),
    });
    cut(text, MAX_PATH)
}

fn cut(text: String, max: usize) -> String {
    let end = text.floor_char_boundary(max);
    if end < text.len() { format!("{}…", &text[..end]) } else { text }
}

/// The value as JSON, cut.
fn value_text(value: Option<&Value>, is_hidden: bool) -> String {
    match value {
        None => "nothing".into(),
        Some(_) if is_hidden => "(hidden)".into(),
        Some(value) => cut(value.to_string(), MAX_VALUE),
    }
}

/// The change of a field by a request. Formats as `ConfigMap shop/a: data.x from "1" to "2"`, and with `#`, without the
/// values, as `ConfigMap shop/a: data.x`.
#[derive(Clone, Debug)]
pub struct FieldChange {
    field: String,
    values: String,
}

impl fmt::Display for FieldChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.field)?;
        if f.alternate() { Ok(()) } else { f.write_str(&self.values) }
    }
}

impl FieldChange {
    pub(super) fn new(object: &str, field: &Field, is_hidden: bool) -> Self {
        let [from, to] = [&field.theirs, &field.ours].map(|value| value_text(value.as_ref(), is_hidden));
        let path = path_text(&field.path);
        Self { field: format!("{object}: {path}"), values: format!(" from {from} to {to}") }
    }
}
