//! Conversion of large objects and lists.

use std::time::Duration;

use reknit_webhook::{Limits, Webhook, internal};
use serde_json::{Value, json};

use crate::{
    beacon,
    bulb::v1alpha1,
    lantern,
    memory::{in_own_process, resident_mib},
};

/// A ConversionReview of objects, each with a list of numbers in an unknown field.
fn review(objects: usize, numbers: usize) -> String {
    let bulb = json!({
        "apiVersion": "tests.reknit.dev/v1alpha1", "kind": "Bulb", "metadata": {"name": "large"},
        "spec": {"watts": 40.0, "numbers": vec![0; numbers]},
    });
    let objects = vec![bulb.to_string(); objects].join(",");
    let request =
        format!(r#"{{"uid":"u1","desiredAPIVersion":"tests.reknit.dev/v1","objects":[{objects}]}}"#);
    format!(r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{request}}}"#)
}

#[test]
fn a_large_list_is_converted_in_little_memory() {
    in_own_process(async || {
        // On a busy machine, this takes longer than a request may take by default.
        let limits = Limits { response_timeout: Duration::from_secs(600), ..Limits::default() };
        let webhook = Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>().limits(limits);
        let body = review(24, 500_000);
        let (size, before) = (body.len(), resident_mib());
        let mut answer = std::pin::pin!(internal::answer(&webhook, "/resource-conversion", body));
        let (mut peak_mib, mut ticks) = (0, tokio::time::interval(Duration::from_millis(5)));
        let (code, message) = loop {
            tokio::select! {
                answer = &mut answer => break answer,
                _ = ticks.tick() => peak_mib = peak_mib.max(resident_mib().saturating_sub(before)),
            }
        };
        println!("{size} bytes converted in {peak_mib} MiB");
        let answer: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(
            (code, &answer["kind"], &answer["response"]["uid"]),
            (200, &json!("ConversionReview"), &json!("u1"))
        );
        let converted = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!(converted.len(), 24);
        assert!(converted.iter().all(|bulb| bulb["spec"]["milliwatts"] == 40_000));
        assert!(size > 24_000_000 && peak_mib < 200, "{size} bytes, {peak_mib} MiB");
    });
}

/// serde_json without the feature `float_roundtrip` reads the first one as 0.9215686321258544.
#[tokio::test]
async fn a_conversion_keeps_each_fraction() {
    let webhook = Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>();
    for watts in ["0.9215686321258545", "117.63331139400017", "0.1"] {
        let body = review(1, 1)
            .replace("40.0", watts)
            .replace("tests.reknit.dev/v1\"", "tests.reknit.dev/v1alpha1\"");
        let (code, answer) = internal::answer(&webhook, "/resource-conversion", body).await;
        let answer = String::from_utf8(answer.into()).unwrap();
        assert!(code == 200 && answer.contains(&format!(r#""watts":{watts}"#)), "{answer}");
    }
}

#[tokio::test]
async fn an_object_larger_than_the_body_limit_fails_the_conversion() {
    let webhook = Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>();
    let (code, message) = internal::answer(&webhook, "/resource-conversion", review(1, 4_000_000)).await;
    let answer: Value = serde_json::from_slice(&message).unwrap();
    let result = &answer["response"]["result"];
    assert_eq!((code, &result["status"]), (200, &json!("Failure")));
    let message = result["message"].as_str().unwrap();
    assert!(
        message.starts_with("an object has 8000") && message.ends_with("bytes, more than 7340032"),
        "{message}"
    );
    assert_eq!(answer["response"]["convertedObjects"], json!([]));
}

#[tokio::test]
async fn an_object_of_too_many_tiny_objects_fails_the_conversion() {
    let limits = Limits { body: 1 << 20, ..Limits::default() };
    let webhook = Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>().limits(limits);
    let tiny = vec![r#"{"":0}"#; 50_000].join(",");
    let body = review(1, 1).replace("[0]", &format!("[{tiny}]"));
    let (code, message) = internal::answer(&webhook, "/resource-conversion", body).await;
    let answer: Value = serde_json::from_slice(&message).unwrap();
    let message = &answer["response"]["result"]["message"];
    assert_eq!((code, message), (200, &json!("an object has too many fields and items")));
}

/// Each item of the decoded list takes 16 bytes, so 32 MiB of such a text would take 257 MiB more.
#[tokio::test]
async fn a_list_of_numbers_is_refused_at_its_first_item() {
    let webhook = Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>();
    let request = json!({"uid": "u1", "desiredAPIVersion": "tests.reknit.dev/v1", "objects": vec![0; 1_000]});
    let review =
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request});
    let (code, message) = internal::answer(&webhook, "/resource-conversion", review.to_string()).await;
    let message = str::from_utf8(&message).unwrap();
    assert!(code == 400 && message.contains("item 0 is not an object"), "{code} {message}");
}

/// Converts one object, and returns the answer's result and the converted object.
async fn convert(object: &str, version: &str) -> (Value, Value) {
    let webhook =
        Webhook::new("demo.reknit.dev").conversion::<v1alpha1::Bulb>().conversion::<beacon::v1::Beacon>();
    let request = format!(r#"{{"uid":"u1","desiredAPIVersion":"{version}","objects":[{object}]}}"#);
    let review = format!(
        r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{request}}}"#
    );
    let (code, message) = internal::answer(&webhook, "/resource-conversion", review).await;
    assert_eq!(code, 200);
    let answer: Value = serde_json::from_slice(&message).unwrap();
    (answer["response"]["result"].clone(), answer["response"]["convertedObjects"][0].clone())
}

#[tokio::test]
async fn partial_objects_are_converted() {
    const OLD: &str = "tests.reknit.dev/v1alpha1";
    const NEW: &str = "tests.reknit.dev/v1";
    let converted = async |from: &str, to: &str, fields: Value| {
        let mut object = json!({"apiVersion": from, "kind": "Bulb"});
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let (result, mut converted) = convert(&object.to_string(), to).await;
        assert_eq!(result["status"], "Success", "{result}");
        assert_eq!((&converted["apiVersion"], &converted["kind"]), (&json!(to), &json!("Bulb")));
        converted.as_object_mut().unwrap().retain(|key, _| !matches!(&**key, "apiVersion" | "kind"));
        converted
    };
    for (from, to) in [(OLD, NEW), (NEW, OLD)] {
        assert_eq!(converted(from, to, json!({})).await, json!({"metadata": {}}));
        let metadata =
            json!({"metadata": {"name": "x", "labels": {"a": "b"}, "managedFields": [{"manager": "t"}]}});
        assert_eq!(converted(from, to, metadata.clone()).await, metadata);
    }
    assert_eq!(
        converted(OLD, NEW, json!({"spec": {"watts": 60.0}})).await,
        json!({"metadata": {}, "spec": {"milliwatts": 60_000, "colour": "warm"}})
    );
    assert_eq!(
        converted(OLD, NEW, json!({"metadata": {}, "spec": {"colour": "red"}})).await,
        json!({"metadata": {}, "spec": {"colour": "red"}})
    );
    assert_eq!(
        converted(NEW, OLD, json!({"metadata": {}, "spec": {"socket": "E14"}})).await,
        json!({"metadata": {"annotations": {"bulbs.tests.reknit.dev/socket": "E14"}}})
    );
}

#[tokio::test]
async fn partial_objects_are_converted_whatever_the_types_of_their_required_fields() {
    let site = |power: Value, light: Value| json!({"address": "fd00::7", "power": power, "light": light, "release": "3.1.4"});
    let battery = json!({"type": "Battery", "hours": 3});
    let blinking = json!({"Blinking": {"hertz": 2}});
    for (spec, expected) in [
        (json!({}), json!({})),
        (json!({"watts": 2}), json!({"milliwatts": 2_000})),
        (
            json!({"watts": 2, "site": {"address": "10.1.2.3"}}),
            json!({"milliwatts": 2_000, "site": {"address": "10.1.2.3"}}),
        ),
        (json!({"site": {"power": {"type": "Mains"}}}), json!({"site": {"power": {"type": "Mains"}}})),
        (json!({"site": {"power": {"hours": 3}}}), json!({"site": {"power": battery}})),
        (json!({"site": {"light": "Off"}}), json!({"site": {"light": "Off"}})),
        (
            json!({"watts": 2, "site": site(battery.clone(), blinking.clone())}),
            json!({"milliwatts": 2_000, "site": site(battery.clone(), blinking.clone())}),
        ),
    ] {
        let beacon = json!({"apiVersion": "tests.reknit.dev/v1alpha1", "kind": "Beacon", "metadata": {},
            "spec": spec, "status": {"phase": "Shining"}});
        let (result, converted) = convert(&beacon.to_string(), "tests.reknit.dev/v1").await;
        assert_eq!(result["status"], "Success", "{spec}: {result}");
        assert_eq!(converted["status"], json!({"phase": "Shining"}));
        assert_eq!(converted.get("spec").unwrap_or(&json!({})), &expected, "{spec}");
    }
}

/// The definition of a newer release has them, during a rollout and after a rollback of the program alone.
#[tokio::test]
async fn fields_that_neither_version_knows_survive_a_conversion() {
    let [old, new] = ["tests.reknit.dev/v1alpha1", "tests.reknit.dev/v1"];
    for (from, to, brightness) in
        [(old, new, json!({"watts": 40.0})), (new, old, json!({"milliwatts": 40_000}))]
    {
        let mut bulb =
            json!({"apiVersion": from, "kind": "Bulb", "metadata": {"name": "x"}, "spec": brightness});
        bulb["spec"]["shape"] = json!({"of": "pear"});
        bulb["status"] = json!({"hours": 3});
        let (result, converted) = convert(&bulb.to_string(), to).await;
        assert_eq!(result["status"], "Success", "{result}");
        assert_eq!(
            (&converted["spec"]["shape"], &converted["status"]),
            (&bulb["spec"]["shape"], &bulb["status"])
        );
    }
}

#[tokio::test]
async fn what_a_version_cannot_read_is_let_through_for_the_schema_to_refuse() {
    let wrong = json!({"apiVersion": "tests.reknit.dev/v1alpha1", "kind": "Bulb", "metadata": {"name": "x"},
        "spec": {"watts": "many"}});
    let (result, converted) = convert(&wrong.to_string(), "tests.reknit.dev/v1").await;
    assert_eq!(result["status"], "Success", "{result}");
    assert_eq!(converted["apiVersion"], "tests.reknit.dev/v1");
    assert_eq!(converted["spec"], wrong["spec"]);
}

#[tokio::test]
async fn an_object_that_cannot_be_converted_is_named() {
    let deep = "[".repeat(5_000) + &"]".repeat(5_000);
    let bulb = |extra: &str, kind: &str, version: &str| {
        format!(
            r#"{{"apiVersion":"tests.reknit.dev/{version}","kind":"{kind}","metadata":{{"name":"x"}},"spec":{{{extra}}}}}"#
        )
    };
    let message = async |object: String| {
        let (result, _) = convert(&object, "tests.reknit.dev/v1").await;
        result["message"].as_str().unwrap_or_default().to_owned()
    };
    let too_deep = message(bulb(&format!(r#""deep":{deep}"#), "Bulb", "v1alpha1")).await;
    assert!(too_deep.starts_with("could not decode Bulb \"x\": recursion limit exceeded"), "{too_deep}");
    let refused = message(bulb(r#""watts":-1"#, "Bulb", "v1alpha1")).await;
    assert!(refused.ends_with("of \"x\": -1 W is less than nothing"), "{refused}");
    let unknown = message(bulb("", "Bulb", "v0")).await;
    assert!(unknown.contains("no conversion support for tests.reknit.dev/v0, Kind=Bulb"), "{unknown}");
    let other = message(bulb("", "Torch", "v1alpha1")).await;
    assert!(other.contains("no conversion support for tests.reknit.dev/v1alpha1, Kind=Torch"), "{other}");
}

/// Converts lanterns, and returns the status code and the answer.
async fn convert_lanterns(objects: &[Value], version: &str) -> (u16, String) {
    let webhook = Webhook::new("demo.reknit.dev").conversion::<lantern::v1alpha1::Lantern>();
    let version = format!("tests.reknit.dev/{version}");
    let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u1", "desiredAPIVersion": version, "objects": objects}});
    let (code, body) = internal::answer(&webhook, "/resource-conversion", review.to_string()).await;
    (code, String::from_utf8(body.to_vec()).unwrap())
}

fn lantern(version: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("tests.reknit.dev/{version}"), "kind": "Lantern",
        "metadata": {"namespace": "shop", "name": name}, "spec": spec})
}

#[tokio::test]
async fn a_status_that_cannot_be_read_counts_as_absent() {
    let (old, new) = (json!({"watts": 2}), json!({"milliwatts": 2_000}));
    for (from, spec, to, expected) in [("v1", &new, "v1alpha1", &old), ("v1alpha1", &old, "v1", &new)] {
        let with_status = |phase: &str| {
            let mut object = lantern(from, "x", spec.clone());
            object["status"] = json!({"phase": phase});
            object
        };
        let (_, answer) = convert_lanterns(&[with_status("Migrating"), with_status("Lit")], to).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["response"]["result"]["status"], "Success", "{answer}");
        let converted = &answer["response"]["convertedObjects"];
        assert_eq!((&converted[0]["spec"], &converted[0]["status"]), (expected, &Value::Null));
        assert_eq!((&converted[1]["spec"], &converted[1]["status"]), (expected, &json!({"phase": "Lit"})));
    }
}

#[tokio::test]
async fn a_failed_conversion_names_each_object_with_its_namespace() {
    let failing = |name: &str| lantern("v1alpha1", name, json!({"watts": u64::MAX}));
    let fine = lantern("v1alpha1", "fine", json!({"watts": 1}));
    let message = async |objects: &[Value]| {
        let (code, answer) = convert_lanterns(objects, "v1").await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((code, &answer["response"]["convertedObjects"]), (200, &json!([])));
        answer["response"]["result"]["message"].as_str().unwrap().to_owned()
    };
    let two = message(&[failing("a"), fine, failing("b")]).await;
    let failure = |name: &str| {
        format!("conversion failed to version v1 for kind Lantern of \"shop/{name}\": too bright")
    };
    assert_eq!(two, format!("{}; {}", failure("a"), failure("b")));
    let many: Vec<_> = (0..100).map(|n| failing(&format!("l{n}"))).collect();
    let many = message(&many).await;
    assert_eq!(many.matches("too bright").count(), 20);
    assert!(many.ends_with("; and perhaps others"), "{many}");
}

#[tokio::test]
async fn a_panic_names_the_object_that_was_converted() {
    let unlucky = lantern("v1alpha1", "x", json!({"watts": 13}));
    let (code, message) = convert_lanterns(&[unlucky], "v1").await;
    assert_eq!(code, 500);
    assert!(message.contains("an unlucky number"), "{message}");
    assert!(message.ends_with(", in the conversion of Lantern \"shop/x\"\n"), "{message}");
}

/// In a cluster, the conditions of each Kind have a key, which their type does not have to name.
#[tokio::test]
async fn an_unknown_field_of_a_condition_stays_although_the_conversion_changes_the_condition() {
    let condition = json!({"type": "Ready", "status": "True", "message": "lit", "origin": "remote"});
    let mut object = lantern("v1", "x", json!({"milliwatts": 1_000}));
    object["status"] = json!({"phase": "Lit", "conditions": [condition]});
    let (code, answer) = convert_lanterns(&[object], "v1alpha1").await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let converted = &answer["response"]["convertedObjects"][0]["status"]["conditions"][0];
    assert_eq!((code, &converted["origin"]), (200, &json!("remote")), "{answer}");
    assert_eq!(converted["message"], "in an older version");
}
