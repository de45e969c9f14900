//! Tests of refused requests: 422 Invalid with a cause for each field, and 503 while caches are not read.

use std::time::Duration;

use crate::{
    bulb::v1::Bulb,
    lamp::{Lamp, Rule, not_in_the_attic},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ApiResource;
use reknit_apis::{FieldError, Request, Validatable, kind};
use reknit_injection::{Context, Informer, internal::optional_informer, select};
use reknit_testing::ApiServer;
use reknit_webhook::{Mutator, Webhook, internal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Sends the review of a new object named `x` with this spec to a path, and returns the response.
async fn response(webhook: &Webhook, path: &str, kind: &str, spec: Value) -> Value {
    let object =
        json!({"apiVersion": "tests.reknit.dev/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": "CREATE", "userInfo": {}, "name": "x",
            "kind": {"group": "tests.reknit.dev", "version": "v1", "kind": kind}, "object": object,
        },
    });
    let (code, body) = internal::answer(webhook, path, review.to_string()).await;
    assert_eq!(code, 200);
    serde_json::from_slice::<Value>(&body).unwrap()["response"].take()
}

/// Sends the review of a new lamp named `x` with this spec to a path, and returns the status of the response.
async fn refused_status(path: &str, spec: Value) -> Value {
    let webhook = Webhook::new("demo.reknit.dev").defaulting::<Lamp>().validation::<Lamp>();
    let mut response = response(&webhook, path, "Lamp", spec).await;
    assert_eq!(response["allowed"], false);
    response["status"].take()
}

fn cause(reason: &str, field: &str, message: &str) -> Value {
    json!({"reason": reason, "field": field, "message": message})
}

/// A Kind with a fault in each of its numbers.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Counter", namespaced)]
struct CounterSpec {
    numbers: Vec<u8>,
}

kind!(Counter {});

impl Validatable for Counter {
    fn validate(&self, _: &Request) -> FieldError {
        let numbers = self.spec.numbers.iter().enumerate();
        let faults = numbers.map(|(index, number)| FieldError::invalid_array_value(number, "numbers", index));
        faults.fold(FieldError::none(), FieldError::also).via_field("spec")
    }
}

#[tokio::test]
async fn the_response_to_thousands_of_faults_has_the_first_and_their_number() {
    let webhook = Webhook::new("demo.reknit.dev").validation::<Counter>();
    let spec = json!({"numbers": vec![0; 5_000]});
    let response = response(&webhook, "/resource-validation", "Counter", spec).await;
    let size = response.to_string().len();
    assert!(size < 30_000, "{size} bytes");
    let message = response["status"]["message"].as_str().unwrap();
    assert!(message.ends_with("\nand 4900 more faults"), "{message}");
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

impl Validatable for Bulb {
    fn validate(&self, _: &Request) -> FieldError {
        FieldError::none()
    }
}

#[tokio::test]
async fn a_validator_whose_caches_are_not_synced_denies_its_kind_with_503_while_other_kinds_go_on() {
    let webhook = |cx: &Context| {
        let _: Informer<Namespace> = cx.get();
        let webhook = Webhook::new("demo.reknit.dev").validator(Rule(not_in_the_attic)).validation::<Bulb>();
        internal::await_informers(webhook, cx)
    };
    let answers = async |webhook: &Webhook| {
        let path = "/resource-validation";
        let lamp = response(webhook, path, "Lamp", json!({"room": "hall"})).await;
        (lamp, response(webhook, path, "Bulb", json!({"milliwatts": 1})).await)
    };
    let builder = || Context::builder("webhook", ApiServer::new().client());
    let cx = builder().build();
    let (lamp, bulb) = answers(&webhook(&cx)).await;
    let status = &lamp["status"];
    assert_eq!((&lamp["allowed"], &status["code"]), (&json!(false), &json!(503)), "{lamp}");
    assert_eq!(status["reason"], "ServiceUnavailable");
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with("the webhook has not read ") && message.contains("amespace"), "{message}");
    assert_eq!(bulb["allowed"], true, "{bulb}");

    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here"}});
    let (lamp, _) = answers(&webhook(&builder().preloaded(vec![namespace]).build())).await;
    assert_eq!(lamp["allowed"], true, "{lamp}");
}

#[tokio::test]
async fn a_validator_does_not_wait_for_an_optional_informer() {
    let cx = Context::new("webhook", ApiServer::new().client());
    let _namespaces: Informer<Namespace> = optional_informer(&cx, select());
    let webhook = Webhook::new("demo.reknit.dev").validator(Rule(not_in_the_attic));
    let webhook = internal::await_informers(webhook, &cx);
    let lamp = response(&webhook, "/resource-validation", "Lamp", json!({"room": "hall"})).await;
    assert_eq!(lamp["allowed"], true, "{lamp}");
}

/// Sets the color of each new lamp.
struct Painter([ApiResource; 1]);

impl Mutator for Painter {
    fn path(&self) -> &'static str {
        "/paint"
    }

    fn resources(&self) -> &[ApiResource] {
        &self.0
    }

    fn mutate(&self, _: &Request, _: Option<&Value>, lamp: &mut Value) -> Result<(), String> {
        lamp["spec"]["color"] = json!("red");
        Ok(())
    }
}

/// A webhook with a mutator, whose constructor requests an informer of this API server.
fn painting_webhook(server: &ApiServer) -> (Webhook, Context, Informer<Namespace>) {
    let cx = Context::new("webhook", server.client());
    let namespaces = cx.get();
    let webhook = Webhook::new("demo.reknit.dev").mutator(Painter([ApiResource::erase::<Lamp>(&())]));
    (internal::await_informers(webhook, &cx), cx, namespaces)
}

async fn paint(webhook: &Webhook) -> Value {
    response(webhook, "/paint", "Lamp", json!({"room": "hall"})).await
}

#[tokio::test(start_paused = true)]
async fn a_mutator_is_asked_once_the_first_lists_are_there() {
    let server = ApiServer::new();
    server.fail_times("list", "namespaces", 429, 2);
    let (webhook, cx, namespaces) = painting_webhook(&server);
    let assert_denied = async || {
        let denied = paint(&webhook).await;
        assert_eq!((&denied["allowed"], &denied["status"]["code"]), (&json!(false), &json!(503)), "{denied}");
        let message = denied["status"]["message"].as_str().unwrap();
        assert!(message.starts_with("the webhook has not read namespaces yet: "), "{message}");
    };
    assert_denied().await;
    cx.informers().start();
    assert_denied().await;
    namespaces.synced().await;
    let painted = paint(&webhook).await;
    assert!(painted["allowed"] == true && painted["warnings"].is_null(), "{painted}");
    assert!(painted["patch"].is_array(), "{painted}");
}

#[tokio::test(start_paused = true)]
async fn a_mutator_is_asked_with_a_warning_about_a_first_list_that_is_refused_or_fails_for_a_minute() {
    for (code, seconds_denied) in [(403, 0), (500, 59)] {
        let server = ApiServer::new();
        server.fail("list", "namespaces", code);
        let (webhook, cx, _namespaces) = painting_webhook(&server);
        cx.informers().start();
        for second in 0..seconds_denied {
            assert_eq!(paint(&webhook).await["allowed"], false, "after {second}s");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let painted = paint(&webhook).await;
        assert!(painted["allowed"] == true && painted["patch"].is_array(), "{code}: {painted}");
        let warning = painted["warnings"][0].as_str().unwrap();
        assert!(warning.starts_with("the webhook has not read namespaces yet: "), "{warning}");
    }
}
