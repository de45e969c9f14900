//! The values that the API server generates, which a plan replaces by texts: they differ in each dry run.

use std::ops::RangeInclusive;

use reknit_apis::Key;
use reknit_injection::internal::{HashMap, now};
use serde_json::Value;

use super::overlay::{Entry, Overlay};

/// The length of a time in RFC 3339 up to its seconds.
const SECONDS: usize = "2006-01-02T15:04:05".len();
/// The text that is shown instead of a time within the plan.
const NOW: &str = "(now)";
/// The name that the API server gives the volume with the token of a Pod, up to its random part. No request says that it is
/// generated.
const TOKEN_VOLUME: &str = "kube-api-access-";
const RANDOM_LENGTH: usize = 5;

/// The uids and names that the API server would generate and the times since the plan began, with the texts that are shown
/// instead.
pub(super) fn generated_values(overlay: &Overlay, since: &str) -> HashMap<String, String> {
    let mut texts = HashMap::default();
    let (since, until) = (since.get(..SECONDS).unwrap_or_default(), now().to_string());
    for object in overlay.entries.values().filter_map(Entry::after) {
        add_times(&mut texts, &object, since..=until.get(..SECONDS).unwrap_or_default());
    }
    let planned: Vec<_> = overlay.entries.iter().filter(|(_, entry)| entry.is_planned).collect();
    for (id, entry) in &planned {
        let path = [Some(&*id.key.name), id.key.namespace.as_deref()];
        let sent = entry.layers.iter().map(|layer| layer.patch.text()).chain(path.into_iter().flatten());
        let sent: Vec<_> = sent.collect();
        entry.after().iter().for_each(|object| add_names(&mut texts, object, &sent));
    }
    for (_, entry) in &planned {
        let Some(object) = entry.after() else { continue };
        let metadata = &object["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
        let mut name = text("name");
        if entry.has_generated_name {
            let shown = format!("{}(generated)", text("generateName"));
            texts.insert(std::mem::replace(&mut name, shown.clone()), shown);
        }
        let kind = object["kind"].as_str().unwrap_or_default();
        texts.insert(
            text("uid"),
            format!("(uid of {kind} {})", Key::new(metadata["namespace"].as_str(), &name)),
        );
    }
    texts
}

fn add_times(texts: &mut HashMap<String, String>, value: &Value, times: RangeInclusive<&str>) {
    match value {
        Value::String(text)
            if text.ends_with('Z') && text.get(..SECONDS).is_some_and(|seconds| times.contains(&seconds)) =>
        {
            texts.insert(text.clone(), NOW.into());
        }
        Value::Array(items) => items.iter().for_each(|item| add_times(texts, item, times.clone())),
        Value::Object(fields) => fields.values().for_each(|field| add_times(texts, field, times.clone())),
        _ => {}
    }
}

/// Adds the names of volumes in an object that the API server has generated: no request for the object contained them.
fn add_names(texts: &mut HashMap<String, String>, value: &Value, sent: &[&str]) {
    match value {
        Value::String(text) => {
            if let Some(shown) =
                generated_name(text).filter(|_| !sent.iter().any(|sent| sent.contains(&**text)))
            {
                texts.insert(text.clone(), shown);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| add_names(texts, item, sent)),
        Value::Object(fields) => fields.values().for_each(|field| add_names(texts, field, sent)),
        _ => {}
    }
}

/// The text that is shown instead of the name of a volume with a token.
fn generated_name(name: &str) -> Option<String> {
    name.strip_prefix(TOKEN_VOLUME)
        .filter(|random| random.len() == RANDOM_LENGTH)
        .map(|_| format!("{TOKEN_VOLUME}(generated)"))
}

/// Replaces the generated names in a text.
pub(super) fn with_generated(text: &str, generated: &HashMap<String, String>) -> String {
    let is_outside = |c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c));
    let words = text.split_inclusive(is_outside).map(|part| {
        let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        match generated.get(word) {
            Some(shown) => format!("{shown}{}", &part[word.len()..]),
            None => part.to_owned(),
        }
    });
    words.collect()
}

pub(super) fn replace_texts(value: &mut Value, texts: &HashMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = texts.get(text) {
                text.clone_from(new);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_texts(item, texts)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_texts(field, texts)),
        _ => {}
    }
}
