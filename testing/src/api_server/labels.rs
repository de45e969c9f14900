//! Label selectors, as a list request writes them.

use serde_json::Value;

use super::answer::{Answer, bad_request};

/// `a=b,a!=b,a,!a,a in (b,c),a notin (b,c)`.
pub(super) struct Selector(Vec<Requirement>);

struct Requirement {
    label: String,
    test: Test,
}

enum Test {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

impl Selector {
    pub(super) fn parse(text: &str) -> Result<Self, Answer> {
        let parts =
            parts(text).into_iter().map(|part| part.trim().to_owned()).filter(|part| !part.is_empty());
        parts.map(|part| Requirement::parse(&part)).collect::<Result<_, _>>().map(Self)
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| requirement.holds(labels[&requirement.label].as_str()))
    }
}

impl Requirement {
    fn parse(text: &str) -> Result<Self, Answer> {
        let among = |values: &str| {
            let values = values.trim().trim_start_matches('(').trim_end_matches(')');
            values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
        };
        let (label, test) = if let Some((label, values)) = text.split_once(" notin ") {
            (label, Test::NotIn(among(values)))
        } else if let Some((label, values)) = text.split_once(" in ") {
            (label, Test::In(among(values)))
        } else if let Some((label, value)) = text.split_once("!=") {
            (label, Test::NotIn(vec![value.trim().into()]))
        } else if let Some((label, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
            (label, Test::In(vec![value.trim().into()]))
        } else if let Some(label) = text.strip_prefix('!') {
            (label, Test::Missing)
        } else {
            (text, Test::Exists)
        };
        let label = label.trim();
        match label.split_once(' ') {
            None if !label.is_empty() => Ok(Self { label: label.into(), test }),
            Some((_, rest)) => {
                let message = format!(
                    "unable to parse requirement: found '{rest}', expected: in, notin, =, ==, !=, gt, lt"
                );
                Err(bad_request(&message))
            }
            None => Err(bad_request(&format!("unable to parse requirement: {text:?} names no label"))),
        }
    }

    fn holds(&self, label: Option<&str>) -> bool {
        let among = |values: &[String]| values.iter().any(|value| label == Some(value));
        match &self.test {
            Test::Exists => label.is_some(),
            Test::Missing => label.is_none(),
            Test::In(values) => among(values),
            Test::NotIn(values) => !among(values),
        }
    }
}

/// What is between the commas that are not within brackets.
fn parts(selector: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for letter in selector.chars() {
        depth += match letter {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        match parts.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => parts.push(String::new()),
        }
    }
    parts
}
