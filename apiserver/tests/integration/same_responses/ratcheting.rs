//! The updates of objects that a changed definition has made invalid: only what an update changes has to be valid.

use serde_json::{Value, json};

use super::{TestResult, recorder::Recorder};

const RELICS: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/relics";

/// The definition of relics that allows less than the first one.
const TIGHTENED: &str = include_str!("tightened.yaml");

fn relic(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Relic", "metadata": {"name": name}, "spec": spec})
}

/// Fields that become invalid, each with the values of later updates.
fn fields() -> [(&'static str, Value, Vec<Value>); 12] {
    let part = |name: &str, size: u32| json!({"name": name, "size": size});
    [
        ("watts", json!(10), vec![json!(10), json!(11), json!(1), json!(10)]),
        (
            "needy",
            json!({"watts": 100}),
            vec![json!({"watts": 100}), json!({"watts": 101}), json!({"colour": "x"})],
        ),
        ("open", json!({"extra": 1}), vec![json!({"extra": 1}), json!({"extra": 2}), json!({"colour": "x"})]),
        (
            "labels",
            json!({"a": "long"}),
            vec![json!({"a": "long"}), json!({"b": "c"}), json!({"a": "longer"})],
        ),
        (
            "plain",
            json!([{"size": 10}, {"size": 11}]),
            vec![
                json!([{"size": 10}, {"size": 11}]),
                json!([{"size": 10}, {"size": 1}]),
                json!([{"size": 10, "note": "x"}, {"size": 1}]),
            ],
        ),
        (
            "unique",
            json!(["a", "b"]),
            vec![json!(["a", "b"]), json!(["b", "a"]), json!(["b", "c"]), json!(["b"])],
        ),
        ("unique", json!(["long"]), vec![json!(["long"]), json!(["longer"])]),
        (
            "duplicates",
            json!(["a", "a"]),
            vec![json!(["a", "a"]), json!(["a", "a", "b", "b"]), json!(["a"]), json!(["a", "a"])],
        ),
        (
            "parts",
            json!([part("a", 10), part("b", 11)]),
            vec![
                json!([part("a", 10), part("b", 11)]),
                json!([part("b", 11), part("a", 10)]),
                json!([part("b", 1), part("a", 10)]),
                json!([part("a", 10)]),
                json!([part("a", 11)]),
            ],
        ),
        (
            "shape",
            json!({"circle": 1, "square": 1}),
            vec![
                json!({"circle": 1, "square": 1}),
                json!({"circle": 2, "square": 1}),
                json!({"square": 1, "circle": null}),
            ],
        ),
        (
            "power",
            json!({"type": "Solar", "volts": 1}),
            vec![
                json!({"type": "Solar", "volts": 1}),
                json!({"type": "Solar", "volts": 2}),
                json!({"type": "Off", "volts": 2}),
            ],
        ),
        ("colour", json!("blue"), vec![json!("blue"), json!("green"), json!(null), json!("blue")]),
    ]
}

/// The parts of an object, and the subresources that write them.
const PARTS: [(&str, &str); 2] = [("spec", ""), ("status", "/status")];

pub(crate) async fn send(server: &mut Recorder) -> TestResult {
    for (number, (field, before, _)) in fields().into_iter().enumerate() {
        for (part, subresource) in PARTS {
            let name = format!("{part}-{number}");
            server.post(RELICS, relic(&name, json!({}))).await?;
            let path = format!("{RELICS}/{name}{subresource}");
            server.merge_patch(&path, json!({part: {field: before}})).await?;
        }
    }
    server.redefine(TIGHTENED, RELICS, &relic("refused", json!({"watts": 10}))).await?;
    for (number, (field, _, updates)) in fields().into_iter().enumerate() {
        for (part, subresource) in PARTS {
            let path = format!("{RELICS}/{part}-{number}");
            server.merge_patch(&path, json!({"metadata": {"labels": {"a": "b"}}})).await?;
            server.merge_patch(&path, json!({"spec": {"watts": 1}})).await?;
            for value in &updates {
                server.merge_patch(&format!("{path}{subresource}"), json!({part: {field: value}})).await?;
            }
        }
    }
    Ok(())
}
