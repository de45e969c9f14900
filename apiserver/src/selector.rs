//! Label and field selectors of requests to a collection.

use serde_json::Value;

use crate::response::{Response, bad_request};

/// The objects that a request to a collection selects.
pub(crate) struct Selection {
    pub(crate) labels: Selector,
    pub(crate) fields: Selector,
}

impl Selection {
    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches_labels(object) && self.fields.matches_fields(object)
    }
}

/// Requirements. An object matches if it meets all of them.
pub(crate) struct Selector(Vec<Requirement>);

struct Requirement {
    /// The name of a label, or the path of a field.
    key: String,
    operator: Operator,
}

enum Operator {
    Exists,
    DoesNotExist,
    In(Vec<String>),
    NotIn(Vec<String>),
    GreaterThan(i64),
    LessThan(i64),
}

impl Selector {
    /// Parses `a=b,a!=b,a,!a,a in (b,c),a notin (b,c),a>1,a<3`.
    pub(crate) fn parse_labels(text: &str) -> Result<Self, Response> {
        let requirements = split_requirements(text).into_iter().map(|text| text.trim().to_owned());
        requirements
            .filter(|text| !text.is_empty())
            .map(|text| Requirement::parse_label(&text))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Parses `metadata.name=a,status.phase!=Running`, and refuses fields by which objects cannot be selected. A comma, an
    /// equals sign and a backslash of a value are escaped by a backslash.
    pub(crate) fn parse_fields(text: &str, is_selectable: impl Fn(&str) -> bool) -> Result<Self, Response> {
        let terms = split_terms(text).into_iter().filter(|term| !term.is_empty());
        let requirements = terms.map(|term| Requirement::parse_field(term, text));
        let requirements: Vec<_> = requirements.collect::<Result<_, _>>()?;
        match requirements.iter().find(|requirement| !is_selectable(&requirement.key)) {
            Some(Requirement { key, .. }) => Err(bad_request(&format!("field label not supported: {key}"))),
            None => Ok(Self(requirements)),
        }
    }

    fn matches_labels(&self, object: &Value) -> bool {
        self.matches(|label| object["metadata"]["labels"][label].as_str().map(Into::into))
    }

    fn matches_fields(&self, object: &Value) -> bool {
        self.matches(|path| match path.split('.').fold(object, |object, field| &object[field]) {
            Value::Null => Some(String::new()),
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
    }

    fn matches(&self, value_of: impl Fn(&str) -> Option<String>) -> bool {
        self.0.iter().all(|Requirement { key, operator }| {
            let value = value_of(key);
            let is_in = |values: &[String]| value.as_ref().is_some_and(|value| values.contains(value));
            let number = || value.as_ref().and_then(|value| value.parse::<i64>().ok());
            match operator {
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
                Operator::In(values) => is_in(values),
                Operator::NotIn(values) => !is_in(values),
                Operator::GreaterThan(bound) => number().is_some_and(|number| number > *bound),
                Operator::LessThan(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }
}

impl Requirement {
    /// Parses a term of a field selector.
    fn parse_field(term: &str, selector: &str) -> Result<Self, Response> {
        let (key, value) = term.split_once('=').ok_or_else(|| {
            bad_request(&format!("invalid selector: '{selector}'; can't understand '{term}'"))
        })?;
        let operator = match key.strip_suffix('!') {
            Some(_) => Operator::NotIn(vec![unescape(value)?]),
            None => Operator::In(vec![unescape(value.strip_prefix('=').unwrap_or(value))?]),
        };
        Ok(Self { key: key.strip_suffix('!').unwrap_or(key).into(), operator })
    }

    fn parse_label(text: &str) -> Result<Self, Response> {
        let (key, operator) = if let Some(set) = parse_set(text) {
            set
        } else if let Some(equality) = parse_equality(text) {
            equality
        } else if let Some((key, bound)) = text.split_once('>') {
            (key, Operator::GreaterThan(parse_bound(bound)?))
        } else if let Some((key, bound)) = text.split_once('<') {
            (key, Operator::LessThan(parse_bound(bound)?))
        } else if let Some(key) = text.strip_prefix('!') {
            (key, Operator::DoesNotExist)
        } else {
            (text, Operator::Exists)
        };
        let key = key.trim();
        match key.split_once(' ') {
            None if !key.is_empty() => Ok(Self { key: key.into(), operator }),
            None => Err(bad_request(&format!("unable to parse requirement: {text:?} names no label"))),
            Some((_, rest)) => Err(bad_request(&format!(
                "unable to parse requirement: found '{rest}', expected: in, notin, =, ==, !=, gt, lt"
            ))),
        }
    }
}

/// Parses `a in (b,c)` or `a notin (b,c)` into the key and an operator.
fn parse_set(text: &str) -> Option<(&str, Operator)> {
    let (head, values) = text.strip_suffix(')')?.split_once('(')?;
    let (key, operator) = head.trim().rsplit_once(char::is_whitespace)?;
    let values = values.split(',').map(|value| value.trim().to_owned()).collect();
    match operator {
        "in" => Some((key, Operator::In(values))),
        "notin" => Some((key, Operator::NotIn(values))),
        _ => None,
    }
}

/// Parses the number with which a label is compared.
fn parse_bound(text: &str) -> Result<i64, Response> {
    let text = text.trim();
    text.parse().map_err(|_| {
        bad_request(&format!(
            "unable to parse requirement: values[0]: Invalid value: {text:?}: for 'Gt', 'Lt' operators, the value must be an \
             integer"
        ))
    })
}

/// Parses `a=b`, `a==b` or `a!=b` into the key and an operator.
fn parse_equality(text: &str) -> Option<(&str, Operator)> {
    let single = |value: &str| vec![value.trim().to_owned()];
    match text.split_once("!=") {
        Some((key, value)) => Some((key, Operator::NotIn(single(value)))),
        None => {
            let (key, value) = text.split_once("==").or_else(|| text.split_once('='))?;
            Some((key, Operator::In(single(value))))
        }
    }
}

/// Splits a field selector at the commas that are not escaped.
fn split_terms(selector: &str) -> Vec<&str> {
    let mut is_escaped = false;
    let ends_term = |letter: char| {
        let ends = letter == ',' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    };
    selector.split(ends_term).collect()
}

/// Removes the backslashes that escape the characters of a field's value.
fn unescape(value: &str) -> Result<String, Response> {
    let fault = |what: &str| bad_request(&format!("invalid field selector: {what}"));
    let (mut unescaped, mut letters) = (String::new(), value.chars());
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(letter @ ('\\' | ',' | '=')) => unescaped.push(letter),
                other => {
                    let sequence: String = [letter].into_iter().chain(other).collect();
                    return Err(fault(&format!("invalid escape sequence: {sequence}")));
                }
            },
            ',' | '=' => {
                return Err(fault(&format!("unescaped character in value: {}", u32::from(letter))));
            }
            letter => unescaped.push(letter),
        }
    }
    Ok(unescaped)
}

/// Splits a label selector at the commas that are not within parentheses.
fn split_requirements(selector: &str) -> Vec<String> {
    let mut requirements: Vec<String> = Vec::new();
    for piece in selector.split(',') {
        match requirements.last_mut() {
            Some(last) if last.matches('(').count() > last.matches(')').count() => {
                last.push(',');
                last.push_str(piece);
            }
            _ => requirements.push(piece.into()),
        }
    }
    requirements
}
