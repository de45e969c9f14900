//! Tests of ConfigMaps that defaults and rules read.

use std::{collections::BTreeMap, error::Error};

use k8s_openapi::api::core::v1::ConfigMap;
use reknit_apis::{Defaultable, FieldError, Request, Validatable, kind};
use reknit_injection::{Context, FromConfigMap, Informer, select};
use reknit_testing::{ApiServer, InformerExt};
use reknit_webhook::{TestRequest, Webhook, internal};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The default and the maximum of the watts of a torch.
#[derive(Default)]
struct Watts {
    default: u32,
    maximum: u32,
}

impl FromConfigMap for Watts {
    const NAME: &'static str = "config-watts";

    fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let number = |key: &str| data.get(key).map_or(Ok(40), |text| text.parse());
        Ok(Self { default: number("default")?, maximum: number("maximum")? })
    }
}

#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Torch", namespaced)]
struct TorchSpec {
    watts: Option<u32>,
}

kind!(Torch {});

impl Defaultable for Torch {
    fn set_request_defaults(&mut self, _: Option<&Self>, request: &Request) {
        self.spec.watts.get_or_insert_with(|| request.config::<Watts>().default);
    }
}

impl Validatable for Torch {
    fn validate(&self, request: &Request) -> FieldError {
        let maximum = request.config::<Watts>().maximum;
        match self.spec.watts {
            Some(watts) if watts > maximum => FieldError::out_of_bounds(watts, 0, maximum, "spec.watts"),
            _ => FieldError::none(),
        }
    }
}

fn webhook() -> Webhook {
    let webhook = Webhook::new("demo.reknit.dev").defaulting_by_request::<Torch>().validation::<Torch>();
    webhook.config::<Watts>().config_validation::<Watts>()
}

fn torch(watts: Option<u32>) -> Torch {
    Torch::new("x", TorchSpec { watts })
}

/// A webhook that watches its ConfigMap, and the informer by which a test changes the ConfigMap.
fn watching(config_maps: &[Value]) -> (Webhook, Informer<ConfigMap>) {
    let builder =
        Context::builder("webhook", ApiServer::new().client()).system_namespace(Some("here".into()));
    let cx = builder.preloaded(config_maps.to_vec()).build();
    let informer = cx.informer(select().namespace("here").field("metadata.name", Watts::NAME));
    (internal::watch_configs(webhook(), &cx), informer)
}

fn config_map(data: Value) -> Value {
    let metadata = json!({"name": "config-watts", "namespace": "here"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
}

/// Sends the review of a new object as the API server does, and returns the response.
async fn answer(webhook: &Webhook, path: &str, object: impl Serialize) -> Value {
    answer_to(webhook, path, "CREATE", (json!(object), Value::Null)).await
}

/// Sends the review of an object and its stored state.
async fn answer_to(webhook: &Webhook, path: &str, operation: &str, objects: (Value, Value)) -> Value {
    let (object, old) = objects;
    let (group, version) = object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": operation, "userInfo": {}, "name": "x",
            "kind": {"group": group, "version": version, "kind": object["kind"]}, "object": object, "oldObject": old,
        },
    });
    let (code, body) = internal::answer(webhook, path, review.to_string()).await;
    assert_eq!(code, 200);
    serde_json::from_slice::<Value>(&body).unwrap()["response"].take()
}

/// Returns the message of the refusal, or an empty string if the torch is admitted.
async fn refusal(webhook: &Webhook, watts: u32) -> String {
    let response = answer(webhook, "/resource-validation", torch(Some(watts))).await;
    response["status"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn defaults_and_rules_read_the_value_that_a_test_provides() {
    let create = |watts| TestRequest::create(torch(watts)).with(Watts { default: 7, maximum: 9 });
    let admitted = webhook().admit(create(None)).await.unwrap();
    assert_eq!(admitted.object["spec"]["watts"], 7);
    let refused = webhook().admit(create(Some(10))).await.unwrap_err();
    assert_eq!(refused.to_string(), "validation failed: expected 0 <= 10 <= 9: spec.watts");
    let unset = webhook().admit(TestRequest::create(torch(None))).await.unwrap();
    assert_eq!(unset.object["spec"]["watts"], 0, "without a value: Watts::default()");
}

#[tokio::test]
async fn a_request_carries_the_latest_value_of_the_config_map() {
    let (webhook, config_maps) = watching(&[config_map(json!({"maximum": "60"}))]);
    assert_eq!(refusal(&webhook, 50).await, "");
    let lower: ConfigMap = serde_json::from_value(config_map(json!({"maximum": "30"}))).unwrap();
    config_maps.insert(lower);
    assert_eq!(refusal(&webhook, 50).await, "validation failed: expected 0 <= 50 <= 30: spec.watts");
    let invalid: ConfigMap = serde_json::from_value(config_map(json!({"maximum": "many"}))).unwrap();
    config_maps.insert(invalid);
    assert_eq!(refusal(&webhook, 50).await, "validation failed: expected 0 <= 50 <= 30: spec.watts");
}

#[tokio::test]
async fn requests_are_denied_while_the_config_map_is_invalid_from_the_start_but_the_map_can_be_repaired() {
    let (webhook, _) = watching(&[config_map(json!({"maximum": "many"}))]);
    for path in ["/defaulting", "/resource-validation"] {
        let mut response = answer(&webhook, path, torch(Some(1))).await;
        let status = response["status"].take();
        assert_eq!((&status["code"], &status["reason"]), (&json!(503), &json!("ServiceUnavailable")));
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with("the webhook has not read ConfigMap config-watts yet: "), "{message}");
        assert!(message.ends_with("invalid digit found in string"), "{message}");
    }
    let repaired = config_map(json!({"maximum": "60"}));
    assert_eq!(answer(&webhook, "/config-validation", repaired).await["allowed"], true);
}

#[tokio::test]
async fn the_metadata_of_stored_objects_can_be_changed_while_the_config_map_is_invalid_from_the_start() {
    let (webhook, _) = watching(&[config_map(json!({"maximum": "many"}))]);
    let stored = json!(torch(Some(1)));
    let mut labelled = stored.clone();
    labelled["metadata"]["labels"] = json!({"room": "hall"});
    let brighter = json!(torch(Some(2)));
    for path in ["/defaulting", "/resource-validation"] {
        for (object, is_admitted) in [(&labelled, true), (&brighter, false)] {
            let answer = answer_to(&webhook, path, "UPDATE", (object.clone(), stored.clone())).await;
            assert_eq!(answer["allowed"], is_admitted, "{path}: {answer}");
            assert!(answer["patch"].is_null(), "{path}: {answer}");
        }
    }
}
