//! Field selectors, as a list request writes them.

use serde_json::Value;

use super::answer::{Answer, bad_request};

/// `metadata.name=a,status.phase!=Running`.
pub(super) struct Selector(Vec<Requirement>);

struct Requirement {
    path: String,
    equal: bool,
    value: String,
}

impl Selector {
    /// Refuses what cannot be selected by.
    pub(super) fn parse(text: &str, is_selectable: impl Fn(&str) -> bool) -> Result<Self, Answer> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let all: Vec<_> = parts.map(Requirement::parse).collect::<Result<_, _>>()?;
        match all.iter().find(|requirement| !is_selectable(&requirement.path)) {
            Some(Requirement { path, .. }) => Err(bad_request(&format!("field label not supported: {path}"))),
            None => Ok(Self(all)),
        }
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|requirement| requirement.holds(object))
    }
}

impl Requirement {
    fn parse(text: &str) -> Result<Self, Answer> {
        let split = text.split_once("!=").map(|(path, value)| (path, false, value));
        let split = split.or_else(|| text.split_once("==").map(|(path, value)| (path, true, value)));
        let split = split.or_else(|| text.split_once('=').map(|(path, value)| (path, true, value)));
        let (path, equal, value) = split
            .ok_or_else(|| bad_request(&format!("invalid selector: '{text}'; can't understand '{text}'")))?;
        Ok(Self { path: path.into(), equal, value: value.into() })
    }

    fn holds(&self, object: &Value) -> bool {
        let found = self.path.split('.').fold(object, |object, field| &object[field]);
        let found = match found {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        (found == self.value) == self.equal
    }
}
