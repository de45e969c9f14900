//! `allOf`, `anyOf`, `oneOf` and `not`.

use serde_json::Value;

use super::{node::Node, outcome::Outcome, validation::validate};
use crate::response::FieldError;

pub(super) fn check(node: &Node) -> Outcome {
    let mut outcome = Outcome::passed();
    outcome.merge(check_any(node));
    outcome.merge(check_one(node));
    outcome.merge(check_all(node));
    if let Some(schema) = node.schema.get("not")
        && validate(&node.with_schema(schema)).is_valid()
    {
        outcome.add(broken(node, "must not validate the schema (not)"));
    }
    outcome
}

fn check_any(node: &Node) -> Outcome {
    let Some(schemas) = schemas(node, "anyOf") else { return Outcome::default() };
    let mut failed = Vec::new();
    for schema in schemas {
        match validate(&node.with_schema(schema)) {
            valid if valid.is_valid() => return valid,
            invalid => failed.push(invalid),
        }
    }
    let mut outcome = Outcome::from(broken(node, "must validate at least one schema (anyOf)"));
    outcome.merge(closest(failed));
    outcome
}

fn check_one(node: &Node) -> Outcome {
    let Some(schemas) = schemas(node, "oneOf") else { return Outcome::default() };
    let outcomes = schemas.iter().map(|schema| validate(&node.with_schema(schema)));
    let (mut valid, failed): (Vec<_>, Vec<_>) = outcomes.partition(Outcome::is_valid);
    let count = match valid.len() {
        1 => return valid.remove(0),
        0 => "Found none valid".to_owned(),
        count => format!("Found {count} valid alternatives"),
    };
    let error = broken(node, &format!("must validate one and only one schema (oneOf). {count}"));
    let mut outcome = Outcome::from(error);
    if valid.is_empty() {
        outcome.merge(closest(failed));
    }
    outcome
}

fn check_all(node: &Node) -> Outcome {
    let Some(schemas) = schemas(node, "allOf") else { return Outcome::default() };
    let (mut outcome, mut valid) = (Outcome::default(), 0);
    for schema in schemas {
        let found = validate(&node.with_schema(schema));
        valid += usize::from(found.is_valid());
        outcome.merge(found);
    }
    if valid < schemas.len() {
        let none = if valid == 0 { ". None validated" } else { "" };
        outcome.add(broken(node, &format!("must validate all the schemas (allOf){none}")));
    }
    outcome
}

fn schemas<'a>(node: &Node<'a>, keyword: &str) -> Option<&'a Vec<Value>> {
    node.schema.get(keyword)?.as_array().filter(|schemas| !schemas.is_empty())
}

fn broken(node: &Node, rule: &str) -> FieldError {
    node.error_of_root(&format!("{:?} {rule}", node.name))
}

/// The first outcome with the most matches.
fn closest(outcomes: Vec<Outcome>) -> Outcome {
    let closer = |best: Outcome, next: Outcome| if next.matches > best.matches { next } else { best };
    outcomes.into_iter().reduce(closer).unwrap_or_default()
}
