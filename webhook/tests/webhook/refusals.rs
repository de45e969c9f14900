//! Tests of the status of refused requests: 422 Invalid with a cause for each field.

use crate::lamp::Lamp;
use reknit_webhook::{Webhook, internal};
use serde_json::{Value, json};

/// Sends the review of a new lamp named `x` with this spec to a path, and returns the status of the response.
async fn refused_status(path: &str, spec: Value) -> Value {
    let webhook = Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>();
    let object =
        json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "metadata": {"name": "x"}, "spec": spec});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "userInfo": {}, "name": "x",
            "kind": {"group": "tests.reknit.dev", "version": "v1", "kind": "Lamp"}, "object": object,
        },
    });
    let (code, body) = internal::answer(&webhook, path, review.to_string()).await;
    assert_eq!(code, 200);
    let mut answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["response"]["allowed"], false);
    answer["response"]["status"].take()
}

fn cause(reason: &str, field: &str, message: &str) -> Value {
    json!({"reason": reason, "field": field, "message": message})
}

#[tokio::test]
async fn an_invalid_object_is_refused_as_invalid_with_a_cause_for_each_field() {
    let status = refused_status("/resource-validation", json!({"room": "", "watts": 1_000})).await;
    let causes = [
        cause("FieldValueInvalid", "spec.watts", "Invalid value: expected 1 <= 1000 <= 999"),
        cause("FieldValueRequired", "spec.room", "Required value"),
    ];
    let expected = json!({
        "status": "Failure", "code": 422, "reason": "Invalid",
        "message": "validation failed: expected 1 <= 1000 <= 999: spec.watts\nmissing field(s): spec.room",
        "details": {"name": "x", "group": "tests.reknit.dev", "kind": "Lamp", "causes": causes},
    });
    assert_eq!(status, expected);
}

#[tokio::test]
async fn an_undecodable_object_is_refused_as_invalid_with_a_cause_for_each_field() {
    let causes = async |spec: Value| {
        let mut status = refused_status("/defaulting", spec).await;
        assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));
        status["details"]["causes"].take()
    };
    assert_eq!(causes(json!({})).await, json!([cause("FieldValueRequired", "spec.room", "Required value")]));
    assert_eq!(
        causes(json!({"room": 1})).await,
        json!([cause(
            "FieldValueTypeInvalid",
            "spec.room",
            "Invalid value: invalid type: integer `1`, expected a string"
        )])
    );
    assert_eq!(
        causes(json!({"room": "hall", "wats": 1, "fabric": {"color": 1}})).await,
        json!([
            cause("FieldValueForbidden", "spec.fabric.color", "Forbidden: unknown field"),
            cause("FieldValueForbidden", "spec.wats", "Forbidden: unknown field"),
        ])
    );
}
