//! The values of objects that are hidden wherever objects are shown: in recorded passes, plans, events and log lines.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use serde_json::{Value, json};

/// Contains the manifest, and so each value, of an object that was applied with kubectl.
pub(crate) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The number of texts within each other that are read. A text within more of them is hidden if it mentions a hidden value.
pub(crate) const MAX_NESTING: usize = 3;

/// The values of objects that are hidden: those of Secrets, and those at the JSON pointers that the author of the program
/// names. Clones share the pointers.
#[derive(Clone, Debug, Default)]
pub struct Redaction(Arc<OnceLock<Vec<Vec<String>>>>);

/// The form of a hidden value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Texts, or a value of any type.
    Plain,
    /// The data of a Secret.
    Base64,
    /// The annotations of a Secret, or the annotation of kubectl.
    Annotation,
}

impl Redaction {
    /// Sets the JSON pointers, such as `/spec/users/*/password`. They lead into objects of all Kinds, and the segment `*` is any
    /// key and any index. Only the first call has an effect.
    pub fn set(&self, pointers: &[String]) {
        let segments = |pointer: &String| {
            let segments = pointer.trim_start_matches('/').split('/');
            segments.map(|segment| segment.replace("~1", "/").replace("~0", "~")).collect()
        };
        self.0.get_or_init(|| pointers.iter().map(segments).collect());
    }

    fn pointers(&self) -> &[Vec<String>] {
        self.0.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn has_pointers(&self) -> bool {
        !self.pointers().is_empty()
    }

    /// Replaces each hidden value in the states of one object, and in the objects and the manifests within it, by
    /// `(masked value 1)`. Different values get different numbers. `is_secret` tells what a state without a Kind is.
    pub fn mask<'a>(&self, states: impl IntoIterator<Item = &'a mut Value>, is_secret: bool) {
        let mut numbers = BTreeMap::new();
        let mut mask = |value: &mut Value| {
            if value.as_str().is_some_and(|text| text.starts_with("(masked value ")) {
                return;
            }
            let next = numbers.len() + 1;
            let number = *numbers.entry(value.to_string()).or_insert(next);
            *value = json!(format!("(masked value {number})"));
        };
        for state in states {
            self.hide_object(state, is_secret, &mut |value, _| for_each_leaf(value, &mut mask));
            self.hide_within(state, 0, &mut mask);
        }
    }

    /// Calls the function with each hidden value of an object, or of the objects of a list.
    pub(crate) fn hide_object(
        &self,
        object: &mut Value,
        is_secret: bool,
        hide: &mut dyn FnMut(&mut Value, Form),
    ) {
        let is_secret = is_secret || matches!(object["kind"].as_str(), Some("Secret" | "SecretList"));
        for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
            self.hide_object(item, is_secret, hide);
        }
        if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
            let hidden = annotations.iter_mut().filter(|(name, _)| is_secret || *name == LAST_APPLIED);
            hidden.for_each(|(_, value)| hide(value, Form::Annotation));
        }
        if is_secret {
            for (field, form) in [("data", Form::Base64), ("stringData", Form::Plain)] {
                object.get_mut(field).into_iter().for_each(|value| hide(value, form));
            }
        }
        for pointer in self.pointers() {
            hide_at(object, pointer, hide);
        }
    }

    /// Calls the function with each hidden value of the objects of a Kind within the value, and with the texts that contain
    /// hidden values.
    fn hide_within(&self, value: &mut Value, nesting: usize, hide: &mut dyn FnMut(&mut Value)) {
        match value {
            Value::String(text) => {
                if self.is_hidden_text(text, nesting) {
                    hide(value);
                }
                return;
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.hide_within(item, nesting, hide)),
            Value::Object(fields) => {
                fields.values_mut().for_each(|field| self.hide_within(field, nesting, hide));
            }
            _ => return,
        }
        if value["kind"].is_string() {
            self.hide_object(value, false, &mut |value, _| for_each_leaf(value, hide));
        }
    }

    /// Returns true for a text with a manifest that has hidden values, or that cannot be read and mentions them.
    fn is_hidden_text(&self, text: &str, nesting: usize) -> bool {
        if !text.contains("kind") || !self.is_mentioned_in(text) {
            return false;
        }
        let Some(documents) = Some(text).filter(|_| nesting < MAX_NESTING).and_then(documents) else {
            return true;
        };
        let mut is_hidden = false;
        // A sentence is a document too, which consists of itself.
        for mut document in documents.into_iter().filter(|document| document.as_str() != Some(text.trim())) {
            self.hide_within(&mut document, nesting + 1, &mut |_| is_hidden = true);
        }
        is_hidden
    }

    /// Returns true for a text with the Kind of Secrets, or with all keys of a pointer.
    pub(crate) fn is_mentioned_in(&self, text: &str) -> bool {
        let is_key = |segment: &&String| *segment != "*" && segment.parse::<usize>().is_err();
        let is_mentioned =
            |pointer: &Vec<String>| pointer.iter().filter(is_key).all(|key| text.contains(key));
        text.contains("Secret") || self.pointers().iter().any(is_mentioned)
    }

    /// Returns true if the value at this path of an object is hidden, contains a hidden value, or is a part of one. The path may
    /// lead through other objects.
    pub(crate) fn hides(&self, object: &Value, path: &[String]) -> bool {
        let (mut value, mut rest) = (Some(object), path);
        loop {
            let kind = value.and_then(|value| value["kind"].as_str());
            if (kind.is_some() || rest.len() == path.len()) && self.hides_path(kind == Some("Secret"), rest) {
                return true;
            }
            let Some((segment, others)) = rest.split_first() else { return false };
            value = match value {
                Some(Value::Array(items)) => segment.parse().ok().and_then(|n: usize| items.get(n)),
                value => value.and_then(|value| value.get(segment)),
            };
            rest = others;
        }
    }

    /// Returns true if a path of an object leads to a value that is hidden, contains a hidden one, or is a part of one.
    pub(crate) fn hides_path(&self, is_secret: bool, path: &[String]) -> bool {
        let of_secrets: [&[&str]; 3] = [&["data"], &["stringData"], &["metadata", "annotations"]];
        let of_secrets = of_secrets.into_iter().filter(|_| is_secret);
        of_secrets.chain([&["metadata", "annotations", LAST_APPLIED][..]]).any(|hidden| meets(hidden, path))
            || self.pointers().iter().any(|pointer| meets(pointer, path))
    }
}

/// Returns true if one of the paths is the beginning of the other.
fn meets(pointer: &[impl AsRef<str>], path: &[String]) -> bool {
    pointer.iter().zip(path).all(|(segment, step)| segment.as_ref() == "*" || segment.as_ref() == step)
}

fn hide_at(value: &mut Value, pointer: &[String], hide: &mut dyn FnMut(&mut Value, Form)) {
    let Some((segment, rest)) = pointer.split_first() else { return hide(value, Form::Plain) };
    match value {
        Value::Object(fields) if segment == "*" => {
            fields.values_mut().for_each(|field| hide_at(field, rest, hide));
        }
        Value::Object(fields) => {
            fields.get_mut(segment).into_iter().for_each(|field| hide_at(field, rest, hide))
        }
        Value::Array(items) => {
            let items = items.iter_mut().enumerate();
            let named = items.filter(|(index, _)| segment == "*" || *segment == index.to_string());
            named.for_each(|(_, item)| hide_at(item, rest, hide));
        }
        _ => {}
    }
}

/// Calls the function with each text, number and boolean within the value.
fn for_each_leaf(value: &mut Value, visit: &mut dyn FnMut(&mut Value)) {
    match value {
        Value::Null => {}
        Value::Array(items) => items.iter_mut().for_each(|item| for_each_leaf(item, visit)),
        Value::Object(fields) => fields.values_mut().for_each(|field| for_each_leaf(field, visit)),
        leaf => visit(leaf),
    }
}

/// The documents of YAML or JSON. `None` if one is faulty, or if aliases make them much longer than the text.
pub(crate) fn documents(text: &str) -> Option<Vec<Value>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_total_scalar_bytes: 2 * text.len() },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: text.len() },
        with_snippet: false,
    };
    serde_saphyr::from_multiple_with_options(text, options).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redaction() -> Redaction {
        let redaction = Redaction::default();
        redaction.set(&["/spec/password".into(), "/spec/users/*/token".into()]);
        redaction
    }

    #[test]
    fn values_are_masked_in_objects_lists_and_manifests_and_numbered() {
        let secret =
            json!({"kind": "Secret", "data": {"a": "b2xk"}, "metadata": {"annotations": {"x": "y"}}});
        let state = |password: &str| {
            json!({
                "kind": "Work",
                "metadata": {"annotations": {LAST_APPLIED: "{}", "x": "y"}},
                "spec": {"password": password, "users": [{"name": "ann", "token": 5}], "manifests": [secret]},
                "text": secret.to_string(),
                "message": "no matches for kind \"Secret\"",
            })
        };
        let (mut before, mut after) = (state("old"), state("new"));
        redaction().mask([&mut before, &mut after], false);
        let masked = |number: usize| format!("(masked value {number})");
        assert_eq!(before["metadata"]["annotations"], json!({LAST_APPLIED: masked(1), "x": "y"}));
        assert_eq!(before["spec"]["password"], masked(2));
        assert_eq!(after["spec"]["password"].as_str().unwrap().len(), masked(2).len());
        assert_ne!(after["spec"]["password"], before["spec"]["password"]);
        assert_eq!(before["spec"]["users"], json!([{"name": "ann", "token": masked(3)}]));
        assert_eq!(after["spec"]["users"], before["spec"]["users"]);
        assert_eq!(before["message"], "no matches for kind \"Secret\"");
        assert!(before["text"].as_str().unwrap().starts_with("(masked value "));
        assert!(!format!("{before}{after}").contains("b2xk"));
    }

    #[test]
    fn a_path_is_hidden_if_it_meets_a_hidden_one() {
        let secret = json!({"kind": "Secret", "data": {"a": "b2xk"}});
        let work = json!({"kind": "Work", "spec": {"password": {"text": "a"}, "users": [{}], "manifests": [secret]}});
        for (object, path, is_hidden) in [
            (&secret, "data/a", true),
            (&secret, "data", true),
            (&secret, "metadata/labels/a", false),
            (&work, "data/a", false),
            (&work, "spec", true),
            (&work, "spec/password/text", true),
            (&work, "spec/users/0/token", true),
            (&work, "spec/users/0/name", false),
            (&work, "spec/manifests/0/data/a", true),
            (&work, "spec/manifests/0/type", false),
        ] {
            let path: Vec<_> = path.split('/').map(str::to_owned).collect();
            assert_eq!(redaction().hides(object, &path), is_hidden, "{path:?}");
        }
    }
}
