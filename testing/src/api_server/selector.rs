//! Label and field selectors of list requests.

use serde_json::Value;

use super::answer::{Answer, bad_request};

/// A conjunction of requirements.
pub(super) struct Selector(Vec<Requirement>);

struct Requirement {
    /// A label, or the path of a field.
    key: String,
    test: Test,
}

enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    /// Parses `a=b,a!=b,a,!a,a in (b,c),a notin (b,c)`.
    pub(super) fn of_labels(text: &str) -> Result<Self, Answer> {
        let parts = parts(text).into_iter().map(|part| part.trim().to_owned());
        parts
            .filter(|part| !part.is_empty())
            .map(|part| Requirement::of_label(&part))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Parses `metadata.name=a,status.phase!=Running`, and refuses fields that cannot be selected by.
    pub(super) fn of_fields(text: &str, is_selectable: impl Fn(&str) -> bool) -> Result<Self, Answer> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let all: Vec<_> = parts.map(Requirement::of_field).collect::<Result<_, _>>()?;
        match all.iter().find(|requirement| !is_selectable(&requirement.key)) {
            Some(Requirement { key, .. }) => Err(bad_request(&format!("field label not supported: {key}"))),
            None => Ok(Self(all)),
        }
    }

    pub(super) fn matches_labels(&self, object: &Value) -> bool {
        self.matches(|label| object["metadata"]["labels"][label].as_str().map(Into::into))
    }

    pub(super) fn matches_fields(&self, object: &Value) -> bool {
        self.matches(|path| match path.split('.').fold(object, |object, field| &object[field]) {
            Value::Null => Some(String::new()),
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
    }

    fn matches(&self, value: impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|Requirement { key, test }| {
            let value = value(key);
            let among = |values: &[String]| value.as_ref().is_some_and(|value| values.contains(value));
            match test {
                Test::Exists => value.is_some(),
                Test::Missing => value.is_none(),
                Test::In(values) => among(values),
                Test::NotIn(values) => !among(values),
            }
        })
    }
}

impl Requirement {
    fn of_field(text: &str) -> Result<Self, Answer> {
        let (key, test) = equality(text)
            .ok_or_else(|| bad_request(&format!("invalid selector: '{text}'; can't understand '{text}'")))?;
        Ok(Self { key: key.into(), test })
    }

    fn of_label(text: &str) -> Result<Self, Answer> {
        let among = |values: &str| {
            let values = values.trim().trim_start_matches('(').trim_end_matches(')');
            values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
        };
        let (key, test) = if let Some((key, values)) = text.split_once(" notin ") {
            (key, Test::NotIn(among(values)))
        } else if let Some((key, values)) = text.split_once(" in ") {
            (key, Test::In(among(values)))
        } else if let Some(equality) = equality(text) {
            equality
        } else if let Some(key) = text.strip_prefix('!') {
            (key, Test::Missing)
        } else {
            (text, Test::Exists)
        };
        let key = key.trim();
        match key.split_once(' ') {
            None if !key.is_empty() => Ok(Self { key: key.into(), test }),
            None => Err(bad_request(&format!("unable to parse requirement: {text:?} names no label"))),
            Some((_, rest)) => Err(bad_request(&format!(
                "unable to parse requirement: found '{rest}', expected: in, notin, =, ==, !=, gt, lt"
            ))),
        }
    }
}

/// Parses `a=b`, `a==b` or `a!=b` into the key and the test.
fn equality(text: &str) -> Option<(&str, Test)> {
    let one = |value: &str| vec![value.trim().to_owned()];
    match text.split_once("!=") {
        Some((key, value)) => Some((key, Test::NotIn(one(value)))),
        None => {
            let (key, value) = text.split_once("==").or_else(|| text.split_once('='))?;
            Some((key, Test::In(one(value))))
        }
    }
}

/// Splits at the commas that are not within brackets.
fn parts(selector: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in selector.split(',') {
        match parts.last_mut() {
            Some(last) if last.matches('(').count() > last.matches(')').count() => {
                last.push(',');
                last.push_str(piece);
            }
            _ => parts.push(piece.into()),
        }
    }
    parts
}
