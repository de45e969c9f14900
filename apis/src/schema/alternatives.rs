//! Alternatives as one structural schema, such as those of an enum.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::nullable::{Node, allow_null, separate_null};

/// The rules in CEL.
const RULES: &str = "x-kubernetes-validations";

/// The schema of any value.
pub(super) fn any() -> Node {
    Node::from_iter([("x-kubernetes-preserve-unknown-fields".into(), true.into())])
}

/// Adds what another schema says to a schema. Both have to hold. What is said twice is kept, except for fields, which
/// then allow both.
pub(super) fn merge(node: &mut Node, other: Node) {
    for (key, value) in other {
        match (&*key, node.get_mut(&key), value) {
            (_, None, value) => drop(node.insert(key, value)),
            ("properties", Some(Value::Object(fields)), Value::Object(other)) => {
                for (name, field) in other {
                    add_field(fields, name, field);
                }
            }
            ("required", Some(Value::Array(names)), Value::Array(other)) => {
                names.extend(other.into_iter().filter(|name| !names.contains(name)).collect::<Vec<_>>());
            }
            ("allOf", Some(Value::Array(parts)), Value::Array(other)) => parts.extend(other),
            (RULES, Some(Value::Array(rules)), Value::Array(other)) => {
                rules.extend(other.into_iter().filter(|rule| !rules.contains(rule)).collect::<Vec<_>>());
            }
            ("oneOf" | "anyOf", _, value) => {
                let parts = node.entry("allOf").or_insert_with(|| json!([]));
                parts.as_array_mut().into_iter().for_each(|parts| parts.push(json!({&*key: value.clone()})));
            }
            ("type", Some(kind), other) if *kind != other => {
                node.remove("type");
                merge(node, any());
            }
            _ => {}
        }
    }
}

fn add_field(fields: &mut Map<String, Value>, name: String, field: Value) {
    let field = match (fields.remove(&name), field) {
        (Some(Value::Object(old)), Value::Object(field)) if old != field => {
            Value::Object(combine(vec![old, field], false))
        }
        (_, field) => field,
    };
    fields.insert(name, field);
}

/// Returns the schema of a value that has one of these schemas. It allows more if a structural schema cannot say so.
/// `exclusive` tells whether a value has exactly one of the schemas.
pub(super) fn combine(mut nodes: Vec<Node>, exclusive: bool) -> Node {
    nodes.iter_mut().for_each(separate_null);
    // Each is removed, so that equal alternatives are found.
    let nullable: Vec<_> = nodes.iter_mut().filter_map(|node| node.remove("nullable")).collect();
    let is_nullable = nullable.iter().any(|value| *value == true);
    let rules: Vec<Value> = nodes.iter().flat_map(rules_of).collect();
    let mut different: Vec<Node> = Vec::new();
    for node in nodes {
        if !different.contains(&node) {
            different.push(node);
        }
    }
    let kinds: BTreeSet<&str> = different.iter().map(kind_of).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut combined = match &*kinds {
        _ if different.len() == 1 => different.pop().unwrap_or_default(),
        ["object"] => combine_objects(different, exclusive),
        ["any"] | [] => any(),
        ["array"] => combine_arrays(different),
        ["int-or-string", ..] if kinds.iter().all(|kind| is_int_or_string(kind)) => int_or_string(),
        ["integer", "string"] => int_or_string(),
        ["integer", "number"] => Node::from_iter([("type".into(), "number".into())]),
        [_] => combine_scalars(different),
        ["object", "string"] => units_beside_data(&different),
        _ => any(),
    };
    keep_rules(&mut combined, rules);
    if is_nullable {
        combined.insert("nullable".into(), true.into());
        allow_null(&mut combined);
    }
    combined
}

/// The rules of a schema, also those that could not be kept when it was combined from others.
fn rules_of(node: &Node) -> Vec<Value> {
    let list = |rules: Option<&Value>| rules.and_then(Value::as_array).cloned().unwrap_or_default();
    let lost =
        node.get("allOf").and_then(Value::as_array).into_iter().flatten().filter(|part| is_lost_rule(part));
    let lost = lost.flat_map(|part| list(part.get(RULES)));
    list(node.get(RULES)).into_iter().chain(lost).collect()
}

/// Keeps the rules that a combined schema would lose, in a part of `allOf`. The API server refuses rules there, so that the
/// definition is refused instead of a rule being dropped.
fn keep_rules(combined: &mut Node, mut rules: Vec<Value>) {
    let kept = rules_of(combined);
    rules.retain(|rule| !kept.contains(rule));
    if rules.is_empty() {
        return;
    }
    let parts = combined.entry("allOf").or_insert_with(|| json!([]));
    parts.as_array_mut().into_iter().for_each(|parts| parts.push(json!({RULES: rules.clone()})));
}

/// Returns true if a part of a schema has a rule that [`combine`] could not keep.
pub(super) fn is_lost_rule(part: &Value) -> bool {
    part.as_object().is_some_and(|part| part.len() == 1 && part.contains_key(RULES))
}

/// Combines the names of units with objects, as of an enum of units beside data: any value, but an object has to have the
/// fields of one variant. `enum` names the units.
fn units_beside_data(nodes: &[Node]) -> Node {
    let (texts, objects): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| kind_of(node) == "string");
    let mut combined = any();
    let is_listed = texts.iter().all(|node| node.contains_key("enum"));
    if is_listed && objects.iter().all(|node| !required(node).is_empty()) {
        let units = texts.iter().map(|node| json!({"enum": node["enum"]}));
        let data = objects.iter().map(|node| json!({"required": required(node)}));
        combined.insert("anyOf".into(), units.chain(data).collect());
    }
    combined
}

fn is_int_or_string(kind: &str) -> bool {
    matches!(kind, "int-or-string" | "integer" | "string")
}

fn int_or_string() -> Node {
    Node::from_iter([("x-kubernetes-int-or-string".into(), true.into())])
}

fn kind_of(node: &Node) -> &str {
    match node.get("type").and_then(Value::as_str) {
        Some(kind) => kind,
        None if node.contains_key("x-kubernetes-int-or-string") => "int-or-string",
        None => "any",
    }
}

/// Keeps what all schemas say.
fn in_common(nodes: &[Node]) -> Node {
    let mut common = nodes.first().cloned().unwrap_or_default();
    common.retain(|key, value| nodes.iter().all(|node| node.get(key) == Some(value)));
    common
}

/// Combines strings, numbers or booleans. The listed values of all are allowed.
fn combine_scalars(nodes: Vec<Node>) -> Node {
    let mut combined = in_common(&nodes);
    let lists: Option<Vec<&Vec<Value>>> = nodes.iter().map(|node| node.get("enum")?.as_array()).collect();
    if let Some(lists) = lists {
        let mut values: Vec<Value> = Vec::new();
        for value in lists.into_iter().flatten() {
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
        combined.insert("enum".into(), values.into());
    }
    combined
}

fn combine_arrays(nodes: Vec<Node>) -> Node {
    let mut combined = in_common(&nodes);
    let items = nodes.into_iter().map(|mut node| match node.remove("items") {
        Some(Value::Object(items)) => items,
        _ => any(),
    });
    combined.insert("items".into(), Value::Object(combine(items.collect(), false)));
    combined
}

/// Combines objects: all their fields, and the fields that are required together.
fn combine_objects(mut nodes: Vec<Node>, exclusive: bool) -> Node {
    nodes.iter_mut().for_each(describe_only_field);
    drop_own_defaults(&mut nodes);
    let restrictions = restrictions(&nodes, exclusive);
    let mut combined = in_common(&nodes);
    let shared = shared_required(&nodes);
    let (mut fields, mut values, mut is_open) = (Map::new(), Vec::new(), false);
    for mut node in nodes {
        is_open |= node.contains_key("x-kubernetes-preserve-unknown-fields");
        match node.remove("additionalProperties") {
            Some(Value::Object(of_map)) => values.push(of_map),
            Some(Value::Bool(true)) => is_open = true,
            _ => {}
        }
        if let Some(Value::Object(of_node)) = node.remove("properties") {
            of_node.into_iter().for_each(|(name, field)| add_field(&mut fields, name, field));
        }
    }
    ["properties", "required", "additionalProperties", "oneOf", "anyOf", "allOf", "maxProperties"]
        .iter()
        .for_each(|key| drop(combined.remove(*key)));
    if is_open || (!values.is_empty() && !fields.is_empty()) {
        merge(&mut combined, any());
    } else if !values.is_empty() {
        combined.insert("additionalProperties".into(), Value::Object(combine(values, false)));
    }
    if !fields.is_empty() {
        combined.insert("properties".into(), Value::Object(fields));
    }
    if !shared.is_empty() {
        combined.insert("required".into(), json!(shared));
    }
    combined.extend(restrictions);
    combined
}

/// Moves the description of a variant to its only field, unless the field has one.
fn describe_only_field(node: &mut Node) {
    let description = node.remove("description");
    let mut fields =
        node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut);
    if let (Some(description), Some(Value::Object(field)), None) = (description, fields.next(), fields.next())
    {
        field.insert("description".into(), description);
    }
}

/// Drops the defaults of the fields that not every alternative has: the API server would set them in the values of the
/// others too. Where the alternative has the field, serde sets its default.
fn drop_own_defaults(nodes: &mut [Node]) {
    let names = |node: &Node| -> BTreeSet<String> {
        node.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys).cloned().collect()
    };
    let shared = nodes.iter().map(names).reduce(|shared, names| &shared & &names).unwrap_or_default();
    for node in nodes {
        for (name, field) in node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
            if let Value::Object(field) = field
                && !shared.contains(name)
            {
                field.remove("default");
            }
        }
    }
}

fn required(node: &Node) -> BTreeSet<&str> {
    node.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn shared_required(nodes: &[Node]) -> BTreeSet<String> {
    let first = nodes.first().map(required).unwrap_or_default();
    let is_shared = |name: &&str| nodes.iter().all(|node| required(node).contains(name));
    first.into_iter().filter(is_shared).map(str::to_owned).collect()
}

/// Returns `oneOf` or `anyOf` with the fields that each alternative requires, or nothing if one requires none.
fn restrictions(nodes: &[Node], exclusive: bool) -> Option<(String, Value)> {
    let shared = shared_required(nodes);
    let own: Vec<Vec<&str>> = nodes
        .iter()
        .map(|node| required(node).into_iter().filter(|name| !shared.contains(*name)).collect())
        .collect();
    if own.iter().all(Vec::is_empty) {
        return None;
    }
    if let Some(tag) = shared.iter().find(|name| is_tag(nodes, name)) {
        let parts = nodes.iter().zip(own).map(|(node, own)| {
            let mut part = json!({"properties": {tag: {"enum": node["properties"][tag]["enum"]}}});
            if !own.is_empty() {
                part["required"] = json!(own);
            }
            // kube would move the properties of a direct part to the schema itself.
            json!({"allOf": [part]})
        });
        return Some(("oneOf".into(), parts.collect()));
    }
    if own.iter().any(Vec::is_empty) {
        return None;
    }
    let is_unknown_to_others = |index: usize, name: &&str| {
        let others = nodes.iter().enumerate().filter(|(other, _)| *other != index);
        others
            .into_iter()
            .all(|(_, node)| node.get("properties").is_none_or(|fields| fields.get(name).is_none()))
    };
    let is_exclusive = exclusive
        && own
            .iter()
            .enumerate()
            .all(|(index, own)| own.iter().any(|name| is_unknown_to_others(index, name)));
    let parts = own.into_iter().map(|own| json!({"required": own}));
    Some((if is_exclusive { "oneOf" } else { "anyOf" }.into(), parts.collect()))
}

/// Returns true if each alternative lists other values for this field.
fn is_tag(nodes: &[Node], name: &str) -> bool {
    let mut seen = Vec::new();
    nodes.iter().all(|node| {
        let values = node.get("properties").and_then(|fields| fields.get(name)?.get("enum")?.as_array());
        values.is_some_and(|values| {
            let is_new = values.iter().all(|value| !seen.contains(value));
            seen.extend(values.iter().cloned());
            is_new
        })
    })
}
