//! The requests on a Kind whose schema has alternatives, such as those that reknit writes for enums.

use serde_json::{Value, json};

use super::{TestResult, recorder::Recorder};

const GALLERIES: &str = "/apis/compare.reknit.dev/v1/namespaces/shop/galleries";

pub(crate) async fn send(server: &mut Recorder) -> TestResult {
    creates(server).await?;
    updates(server).await?;
    statuses(server).await
}

fn gallery(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "compare.reknit.dev/v1", "kind": "Gallery", "metadata": {"name": name}, "spec": spec})
}

/// Values of each form, valid and invalid ones.
fn values() -> Vec<Value> {
    let values = json!({
        "shape": [
            {"circle": {"radius": 1}}, {"square": 1}, {}, {"circle": {"radius": 1}, "square": 1}, {"circle": {}},
            {"square": "1"}, null, [],
        ],
        "power": [
            {"type": "Mains", "volts": 230}, {"type": "Off"}, {"type": "Battery"}, {"type": "Mains"},
            {"type": "Battery", "volts": 9}, {"type": "Solar"}, {"volts": 1}, {"type": "Off", "volts": 500}, {"type": 1}, {},
        ],
        "size": [{"diameter": 1}, {"width": 1, "height": 1, "diameter": 1}, {}, {"width": 1}, {"height": 1}],
        "colour": ["red", "blue", null, 1],
        "mood": ["calm", "wild", null],
        "title": ["abc", "a", "abcde"],
        "name": ["some", "none"],
        "step": [0, 5, 7, -5, 1.5, 3_000_000_000_i64, "5", true, {}, []],
        "ratio": [0.5, 1, 0.7, -0.3],
        "pair": [{"a": "b"}, {}, {"a": "1", "b": "2", "c": "3"}],
        "unit": [{}, null],
        "port": ["http", 1, 10, 1.5, true],
        "nested": [[{"kind": "a"}, {"kind": null}, {}], [{"kind": "b"}]],
        "sets": [{"a": ["x"]}, {"a": ["x", "x"]}],
    });
    let fields = values.as_object().into_iter().flatten();
    let values = fields
        .flat_map(|(field, values)| values.as_array().into_iter().flatten().map(move |value| (field, value)));
    values.map(|(field, value)| json!({field: value})).collect()
}

async fn creates(server: &mut Recorder) -> TestResult {
    for (number, spec) in values().into_iter().enumerate() {
        server.post(GALLERIES, gallery(&format!("g{number}"), spec)).await?;
    }
    Ok(())
}

async fn updates(server: &mut Recorder) -> TestResult {
    let spec = json!({"shape": {"circle": {"radius": 1}}, "power": {"type": "Mains", "volts": 1}, "size": {"diameter": 1}});
    server.post(GALLERIES, gallery("updated", spec)).await?;
    let path = format!("{GALLERIES}/updated");
    for spec in [
        json!({"shape": {"square": 1}}),
        json!({"shape": {"square": 1, "circle": null}}),
        json!({"power": {"type": "Battery"}}),
        json!({"power": {"type": "Off"}}),
        json!({"power": {"volts": 2}}),
        json!({"power": {"volts": null}}),
        json!({"size": {"diameter": null}}),
        json!({"size": {"width": 3}}),
        json!({"colour": "blue"}),
        json!({"nested": [{"kind": null}, {"kind": "a"}]}),
        json!({"nested": [{"kind": "a"}, {"kind": null}]}),
        json!({"nested": {"kind": null}}),
    ] {
        server.merge_patch(&path, json!({"spec": spec})).await?;
    }
    let applied = format!("{GALLERIES}/applied?fieldManager=me");
    server.apply(&applied, gallery("applied", json!({"power": {"type": "Battery"}}))).await?;
    server.apply(&applied, gallery("applied", json!({"power": {"type": "Mains", "volts": 1}}))).await?;
    server.apply(&applied, gallery("applied", json!({"power": {"type": "Battery", "hours": 1}}))).await?;
    Ok(())
}

async fn statuses(server: &mut Recorder) -> TestResult {
    server.post(GALLERIES, gallery("status", json!({}))).await?;
    for status in values() {
        server.merge_patch(&format!("{GALLERIES}/status/status"), json!({"status": status})).await?;
        server.merge_patch(&format!("{GALLERIES}/status/status"), json!({"status": null})).await?;
    }
    Ok(())
}
