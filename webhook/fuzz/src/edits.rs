//! Edits of reviews. The bytes of the fuzz input choose the edits. The result is valid JSON, and mostly a valid review.

use serde_json::{Value, json};

use crate::reviews::seeds;

/// Names of known fields, the empty name, and names with characters that a JSON pointer or a JSON string must escape.
const NAMES: [&str; 16] = [
    "spec",
    "metadata",
    "annotations",
    "watts",
    "owner",
    "status",
    "object",
    "oldObject",
    "apiVersion",
    "kind",
    "name",
    "fuzz.reknit.dev/creator",
    "a/b~c",
    "",
    "\u{0}\u{2603}",
    "data",
];

/// The bytes that choose the edits, followed by endless zeros.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> usize {
        let (choice, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*choice)
    }
}

/// The maximum number of edits. An edit may double the size of the review.
const MAX_EDITS: usize = 8;

/// Edits a seed until the bytes end, at most [`MAX_EDITS`] times.
pub(crate) fn edited(seed: usize, edits: &[u8]) -> Value {
    let mut seeds = seeds();
    let mut review = seeds.swap_remove(seed % seeds.len());
    let mut choices = Choices(edits);
    for _ in 0..MAX_EDITS {
        if choices.0.is_empty() {
            break;
        }
        let value = value(&mut choices, &review);
        edit(node(&mut review, &mut choices), &mut choices, value);
    }
    review
}

/// Chooses a node of the JSON document, usually a deeply nested one.
fn node<'a>(mut from: &'a mut Value, choices: &mut Choices<'_>) -> &'a mut Value {
    loop {
        let stop = choices.next().is_multiple_of(8);
        let count = match &*from {
            Value::Object(fields) => fields.len(),
            Value::Array(items) => items.len(),
            _ => 0,
        };
        if stop || count == 0 {
            return from;
        }
        let index = choices.next() % count;
        from = match from {
            Value::Object(fields) => fields.values_mut().nth(index).unwrap(),
            Value::Array(items) => &mut items[index],
            _ => unreachable!(),
        };
    }
}

/// Replaces the node, or removes a field or an item from it, or adds a field or an item to it.
fn edit(node: &mut Value, choices: &mut Choices<'_>, value: Value) {
    let (choice, index) = (choices.next(), choices.next());
    match (choice % 4, node) {
        (0, node) => *node = value,
        (1, Value::Object(fields)) if !fields.is_empty() => {
            let name = fields.keys().nth(index % fields.len()).cloned().unwrap();
            fields.remove(&name);
        }
        (1, Value::Array(items)) if !items.is_empty() => drop(items.remove(index % items.len())),
        (_, Value::Object(fields)) => drop(fields.insert(NAMES[index % NAMES.len()].into(), value)),
        (_, Value::Array(items)) => items.push(value),
        (_, node) => *node = value,
    }
}

/// Chooses the value that an edit sets.
fn value(choices: &mut Choices<'_>, review: &Value) -> Value {
    match choices.next() % 16 {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(1e308),
        6 => json!(0.1),
        7 => json!(""),
        8 => json!(NAMES[choices.next() % NAMES.len()]),
        9 => json!([]),
        10 => json!({}),
        11 => json!([null]),
        12 => json!({"": {"": []}}),
        13 => json!("a\nb"),
        14 => review["request"]["object"].clone(),
        _ => node(&mut review.clone(), choices).clone(),
    }
}
