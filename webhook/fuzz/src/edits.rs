//! Edits of reviews, chosen by bytes. The result is valid JSON, and mostly a valid review.

use serde_json::{Value, json};

use crate::reviews::seeds;

/// Names of known fields, and names that need quoting.
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
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> usize {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        usize::from(*first)
    }
}

/// The largest number of edits. Each may double the size of the review.
const MOST: usize = 8;

/// Edits one of the seeds until the bytes end.
pub(crate) fn edited(seed: usize, edits: &[u8]) -> Value {
    let mut seeds = seeds();
    let mut review = seeds.swap_remove(seed % seeds.len());
    let mut bytes = Bytes(edits);
    for _ in 0..MOST {
        if bytes.0.is_empty() {
            break;
        }
        let value = value(&mut bytes, &review);
        edit(node(&mut review, &mut bytes), &mut bytes, value);
    }
    review
}

/// Chooses a node of the JSON, usually a deep one.
fn node<'a>(mut from: &'a mut Value, bytes: &mut Bytes<'_>) -> &'a mut Value {
    loop {
        let stop = bytes.next().is_multiple_of(8);
        let count = match &*from {
            Value::Object(fields) => fields.len(),
            Value::Array(items) => items.len(),
            _ => 0,
        };
        if stop || count == 0 {
            return from;
        }
        let index = bytes.next() % count;
        from = match from {
            Value::Object(fields) => fields.values_mut().nth(index).unwrap(),
            Value::Array(items) => &mut items[index],
            _ => unreachable!(),
        };
    }
}

fn edit(node: &mut Value, bytes: &mut Bytes<'_>, value: Value) {
    let (choice, index) = (bytes.next(), bytes.next());
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

fn value(bytes: &mut Bytes<'_>, review: &Value) -> Value {
    match bytes.next() % 16 {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(0),
        3 => json!(-1),
        4 => json!(u64::MAX),
        5 => json!(1e308),
        6 => json!(0.1),
        7 => json!(""),
        8 => json!(NAMES[bytes.next() % NAMES.len()]),
        9 => json!([]),
        10 => json!({}),
        11 => json!([null]),
        12 => json!({"": {"": []}}),
        13 => json!("a\nb"),
        14 => review["request"]["object"].clone(),
        _ => node(&mut review.clone(), bytes).clone(),
    }
}
