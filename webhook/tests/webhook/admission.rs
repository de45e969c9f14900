//! Tests of defaulting and validation without a server.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::lamp::{Lamp, LampSpec, Rule, Shade, not_in_the_attic};
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Namespace};
use reknit_apis::{FieldError, Level, Operation, Request, Validatable, kind};
use reknit_injection::Context;
use reknit_reconciler::{Key, Result};
use reknit_testing::{ApiServer, ControllerExt};
use reknit_webhook::{
    TestRequest, Validator, Webhook,
    internal::{ServiceNames, certificate_controller, validate_config},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

fn lamp_webhook() -> Webhook {
    Webhook::new("demo.reknit.dev").defaulting_by_request::<Lamp>().validation::<Lamp>()
}

fn lamp(room: &str) -> Value {
    let spec = LampSpec { room: room.into(), watts: None, owner: None, shade: Shade::default() };
    json!(Lamp::new("x", spec))
}

/// Sets the value at a JSON pointer.
fn with(mut lamp: Value, pointer: &str, value: impl Into<Value>) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    lamp.pointer_mut(parent).unwrap()[key] = value.into();
    lamp
}

async fn refusal(request: TestRequest) -> String {
    lamp_webhook().admit(request).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_new_object_gets_the_defaults_of_its_kind_and_of_the_request_and_its_creator() {
    let admitted = lamp_webhook().admit(TestRequest::create(lamp("hall")).by("alice")).await.unwrap();
    assert_eq!(admitted.object["spec"], json!({"room": "hall", "watts": 40, "owner": "alice"}));
    let annotations = json!({"tests.reknit.dev/creator": "alice", "tests.reknit.dev/lastModifier": "alice"});
    assert_eq!(admitted.object["metadata"]["annotations"], annotations);
}

#[tokio::test]
async fn only_a_change_of_the_spec_sets_the_last_modifier() {
    let old = lamp_webhook().admit(TestRequest::create(lamp("hall")).by("alice")).await.unwrap().object;
    let labelled = with(old.clone(), "/metadata/labels", json!({"a": "b"}));
    let same = lamp_webhook().admit(TestRequest::update(&old, labelled).by("bob")).await.unwrap();
    assert_eq!(same.object["metadata"]["annotations"]["tests.reknit.dev/lastModifier"], "alice");
    let with_more_watts = with(old.clone(), "/spec/watts", 41);
    let changed = lamp_webhook().admit(TestRequest::update(&old, with_more_watts).by("bob")).await.unwrap();
    assert_eq!(changed.object["metadata"]["annotations"]["tests.reknit.dev/lastModifier"], "bob");
    assert_eq!(changed.object["metadata"]["annotations"]["tests.reknit.dev/creator"], "alice");
    assert_eq!(changed.object["spec"]["owner"], "alice");
}

#[tokio::test]
async fn disabled_user_annotations_are_neither_set_nor_removed() {
    let webhook = lamp_webhook().user_annotations(false);
    let created = webhook.admit(TestRequest::create(lamp("hall")).by("alice")).await.unwrap().object;
    assert_eq!((&created["spec"]["watts"], &created["metadata"]["annotations"]), (&json!(40), &Value::Null));
    let annotated = with(created, "/metadata/annotations", json!({"tests.reknit.dev/creator": "alice"}));
    let brighter = with(annotated.clone(), "/spec/watts", 50);
    let updated = webhook.admit(TestRequest::update(&annotated, &brighter).by("bob")).await.unwrap().object;
    assert_eq!(updated, brighter);
}

#[tokio::test]
async fn a_serde_default_is_not_in_the_patch() {
    let shaded = with(lamp("hall"), "/spec/fabric", json!({}));
    let admitted = lamp_webhook().admit(TestRequest::create(shaded)).await.unwrap();
    assert_eq!(admitted.object["spec"]["fabric"], json!({}));
}

#[tokio::test]
async fn a_refusal_lists_the_faults_by_field() {
    let refused = lamp_webhook().admit(TestRequest::create(lamp(""))).await.unwrap_err();
    let causes: Vec<_> = refused.causes().iter().map(|cause| (&*cause.field, &*cause.message)).collect();
    assert_eq!(causes, [("spec.room", "Required value")]);
}

#[tokio::test]
async fn a_new_default_for_a_stored_object_does_not_set_the_last_modifier() {
    let update = TestRequest::update(lamp("hall"), with(lamp("hall"), "/metadata/labels", json!({"a": "b"})))
        .by("bob");
    let admitted = lamp_webhook().admit(update).await.unwrap();
    assert_eq!(admitted.object["spec"]["watts"], 40);
    assert_eq!(admitted.object["metadata"]["annotations"], Value::Null);
    // The API server calls the webhook again if another webhook changes the object afterwards.
    let again = TestRequest::update(lamp("hall"), admitted.object).by("bob");
    assert_eq!(lamp_webhook().admit(again).await.unwrap().object["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn unknown_fields_are_refused_with_their_paths_even_in_a_flattened_struct() {
    let misspelt =
        with(with(lamp("hall"), "/spec/wats", 1), "/spec/fabric", json!({"colour": "red", "color": 1}));
    assert_eq!(
        refusal(TestRequest::create(&misspelt)).await,
        "mutation failed: cannot decode incoming new object: unknown field \"spec.fabric.color\", unknown field \
         \"spec.wats\""
    );
    let validation = Webhook::new("demo.reknit.dev").validation::<Lamp>();
    assert_eq!(
        validation
            .admit(TestRequest::create(with(lamp("hall"), "/spec/wats", 1)))
            .await
            .unwrap_err()
            .to_string(),
        "decoding request failed: cannot decode incoming new object: unknown field \"spec.wats\""
    );
    let with_empty_finalizers = with(misspelt.clone(), "/metadata/finalizers", json!([]));
    assert!(lamp_webhook().admit(TestRequest::update(misspelt, with_empty_finalizers)).await.is_ok());
}

#[tokio::test]
async fn refusals_have_the_messages_of_knative() {
    let invalid = with(with(lamp(""), "/spec/watts", 1_000), "/spec/owner", "x");
    assert_eq!(
        refusal(TestRequest::create(invalid)).await,
        "validation failed: expected 1 <= 1000 <= 999: spec.watts\nmissing field(s): spec.room"
    );
    assert_eq!(
        refusal(TestRequest::update(lamp("hall"), lamp("attic"))).await,
        "validation failed: must not set the field(s): spec.room"
    );
    assert_eq!(refusal(TestRequest::delete(lamp("cellar"))).await, "validation failed: stays on: spec.room");
    let negative_lumens = with(lamp("hall"), "/status", json!({"lumens": -1}));
    assert_eq!(
        refusal(TestRequest::update(lamp("hall"), negative_lumens).subresource("status")).await,
        "validation failed: invalid value: -1: status.lumens"
    );
    let missing = json!({"apiVersion": "tests.reknit.dev/v1", "kind": "Lamp", "spec": {}});
    assert_eq!(
        refusal(TestRequest::create(missing)).await,
        "mutation failed: cannot decode incoming new object: missing field(s): spec.room"
    );
    assert_eq!(
        refusal(TestRequest::create(with(lamp("hall"), "/spec/room", 1))).await,
        "mutation failed: cannot decode incoming new object: spec.room: invalid type: integer `1`, expected a string"
    );
}

/// A Kind with rules for subresources, although its `SUBRESOURCES` names none.
#[derive(kube::CustomResource, Serialize, Deserialize, Clone, Debug, schemars::JsonSchema)]
#[kube(group = "tests.reknit.dev", version = "v1", kind = "Fuse", namespaced)]
struct FuseSpec {}

kind!(Fuse {});

impl Validatable for Fuse {
    fn validate(&self, _: &Request) -> FieldError {
        FieldError::none()
    }

    fn validate_subresource(&self, _: &Self, _: &Request) -> FieldError {
        FieldError::disallowed(["status"])
    }
}

#[tokio::test]
async fn subresources_get_no_defaults_and_are_validated_only_if_the_kind_lists_them() {
    let fuse = Fuse::new("x", FuseSpec {});
    let webhook = lamp_webhook().validation::<Fuse>().defaulting::<Fuse>();
    webhook.admit(TestRequest::update(&fuse, &fuse).subresource("status")).await.unwrap();
    let lit = with(lamp("hall"), "/status", json!({"lumens": 1}));
    let admitted =
        webhook.admit(TestRequest::update(lamp("hall"), &lit).subresource("status").by("bob")).await.unwrap();
    assert_eq!(admitted.object, lit);
}

#[tokio::test]
async fn each_line_of_a_warning_is_returned_and_the_request_is_allowed() {
    let admitted =
        lamp_webhook().admit(TestRequest::create(with(lamp("hall"), "/spec/watts", 100))).await.unwrap();
    assert_eq!(admitted.warnings, ["a lot of light: spec.watts", "100 W"]);
}

#[tokio::test]
async fn an_undecodable_object_can_be_replaced_and_deleted() {
    let undecodable = with(lamp("cellar"), "/spec/room", json!({}));
    assert!(lamp_webhook().admit(TestRequest::delete(&undecodable)).await.is_ok());
    assert!(lamp_webhook().admit(TestRequest::update(&undecodable, lamp("cellar"))).await.is_ok());
    let rule = || Rule(async |_| Err("ask me first".into()));
    let refusing = Webhook::new("demo.reknit.dev").validator(rule()).deletion_validator(rule());
    refusing.admit(TestRequest::delete(&undecodable)).await.unwrap();
    assert!(refusing.admit(TestRequest::delete(lamp("hall"))).await.is_err());
    assert!(refusing.admit(TestRequest::create(&undecodable)).await.is_err());
}

#[tokio::test]
async fn an_undecodable_status_fails_only_requests_for_the_status() {
    let webhook = lamp_webhook().validator(Rule(async |_| Ok(FieldError::none())));
    let stored = with(lamp("hall"), "/status", json!({"lumens": "many"}));
    let labelled = with(stored.clone(), "/metadata/labels", json!({"a": "b"}));
    let admitted = webhook.admit(TestRequest::update(&stored, &labelled).by("bob")).await.unwrap().object;
    assert_eq!(admitted["status"], stored["status"]);
    assert_eq!(admitted["spec"], json!({"room": "hall", "watts": 40, "owner": "bob"}));
    webhook.admit(TestRequest::create(&stored)).await.unwrap();
    let room_changed = with(stored.clone(), "/spec/room", "attic");
    let message = refusal(TestRequest::update(&stored, room_changed)).await;
    assert_eq!(message, "validation failed: must not set the field(s): spec.room");
    let changed = with(stored.clone(), "/status/lumens", "few");
    let message = refusal(TestRequest::update(&stored, &changed).subresource("status")).await;
    let expected = "decoding request failed: cannot decode incoming new object: status.lumens: invalid type: string \"few\"";
    assert!(message.starts_with(expected), "{message}");
    let undeletable = with(lamp("cellar"), "/status", json!({"lumens": "many"}));
    assert_eq!(
        refusal(TestRequest::delete(&undeletable)).await,
        refusal(TestRequest::delete(lamp("cellar"))).await
    );
}

#[tokio::test]
async fn a_status_that_replaces_an_undecodable_status_is_validated_alone() {
    let lamp_without_room = |lumens: Value| with(lamp(""), "/status", json!({"lumens": lumens}));
    let update_to = |lumens: i32| {
        TestRequest::update(lamp_without_room("many".into()), lamp_without_room(lumens.into()))
            .subresource("status")
    };
    lamp_webhook().admit(update_to(1)).await.unwrap();
    assert_eq!(refusal(update_to(-1)).await, "validation failed: invalid value: -1: status.lumens");
}

#[tokio::test]
async fn an_invalid_object_that_is_being_deleted_can_lose_its_finalizers() {
    let undecodable = with(lamp("hall"), "/spec/room", json!({}));
    for invalid in [lamp(""), with(lamp("hall"), "/spec/wats", 1), undecodable] {
        let deleted = with(invalid, "/metadata/deletionTimestamp", "2026-01-02T03:04:05Z");
        let with_finalizer = with(deleted.clone(), "/metadata/finalizers", json!(["a.dev/b"]));
        let admitted =
            lamp_webhook().admit(TestRequest::update(&with_finalizer, &deleted).by("bob")).await.unwrap();
        assert_eq!(admitted.object, deleted);
        let changed = with(with(deleted, "/spec/room", ""), "/spec/watts", 1_000);
        assert!(lamp_webhook().admit(TestRequest::update(&with_finalizer, changed)).await.is_err());
    }
}

/// A webhook whose rules have become stricter than the lamps that are stored: too bright, and in the attic.
fn stricter_webhook() -> Webhook {
    lamp_webhook().validator(Rule(async |lamp: Lamp| {
        let labels = lamp.metadata.labels.clone().unwrap_or_default();
        match labels.contains_key("forbidden") {
            true => Ok(FieldError::generic("a forbidden label", ["metadata.labels"])),
            false => not_in_the_attic(lamp).await,
        }
    }))
}

#[tokio::test]
async fn a_change_that_leaves_the_spec_alone_is_admitted_although_the_spec_breaks_a_new_rule() {
    let admit = async |request: TestRequest| {
        let admitted =
            stricter_webhook().admit(request).await.map(|admitted| admitted.object["spec"].clone());
        admitted.map_err(|refused| refused.to_string())
    };
    let undecodable = with(lamp("hall"), "/spec/room", json!({}));
    let too_bright = with(lamp("hall"), "/spec/watts", 1_000);
    for stored in [lamp(""), lamp("attic"), too_bright, undecodable] {
        let finalizing = with(stored.clone(), "/metadata/finalizers", json!(["a.dev/b"]));
        let labelled = with(stored.clone(), "/metadata/labels", json!({"a": "b"}));
        let lit = with(stored.clone(), "/status", json!({"lumens": 1}));
        for changed in [&finalizing, &labelled] {
            assert_eq!(admit(TestRequest::update(&stored, changed)).await.map(drop), Ok(()), "{changed}");
        }
        admit(TestRequest::update(&stored, &lit).subresource("status")).await.unwrap();
        // A change of the spec is judged as a whole.
        let changed = with(labelled, "/spec/owner", "bob");
        assert!(admit(TestRequest::update(&stored, &changed)).await.is_err(), "{changed}");
        if stored["spec"]["room"].is_string() {
            let dark = with(stored.clone(), "/status", json!({"lumens": -1}));
            assert!(
                admit(TestRequest::update(&stored, &dark).subresource("status")).await.is_err(),
                "{dark}"
            );
        }
    }
}

#[tokio::test]
async fn a_rule_about_the_metadata_applies_to_an_object_whose_spec_is_invalid() {
    let forbidden = with(lamp("attic"), "/metadata/labels", json!({"forbidden": "yes"}));
    let refused = stricter_webhook().admit(TestRequest::update(lamp("attic"), &forbidden)).await.unwrap_err();
    assert_eq!(refused.to_string(), "validation failed: a forbidden label: metadata.labels");
    let other = with(forbidden.clone(), "/metadata/annotations", json!({"a": "b"}));
    stricter_webhook().admit(TestRequest::update(forbidden, other)).await.unwrap();
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn a_config_map_with_several_parsers_must_satisfy_each_of_them() {
    let requires = |key: &'static str| {
        move |data: &BTreeMap<String, String>| data.get(key).map(drop).ok_or_else(|| format!("no {key}"))
    };
    let webhook = validate_config(Webhook::new("demo.reknit.dev"), "config-x", requires("a"));
    let webhook = validate_config(webhook, "config-x", requires("b"));
    let message = async |data: Value| {
        let admitted = webhook.admit(TestRequest::create(config_map("config-x", data))).await;
        admitted.err().map(|refused| refused.to_string()).unwrap_or_default()
    };
    assert_eq!(message(json!({"b": "1"})).await, "validation failed: no a");
    assert_eq!(message(json!({"a": "1"})).await, "validation failed: no b");
    assert_eq!(message(json!({"a": "1", "b": "1"})).await, "");
}

#[tokio::test]
async fn an_invalid_config_map_that_is_being_deleted_can_lose_its_finalizers() {
    let parse =
        |data: &BTreeMap<String, String>| if data.is_empty() { Ok(()) } else { Err("wrong".to_owned()) };
    let webhook = validate_config(Webhook::new("demo.reknit.dev"), "config-x", parse);
    let map = config_map("config-x", json!({"a": "1"}));
    let deleted = with(map, "/metadata/deletionTimestamp", "2026-01-02T03:04:05Z");
    let with_finalizer = with(deleted.clone(), "/metadata/finalizers", json!(["a.dev/b"]));
    webhook.admit(TestRequest::update(&with_finalizer, &deleted)).await.unwrap();
    let changed_data = with(deleted, "/data/a", "2");
    assert!(webhook.admit(TestRequest::update(&with_finalizer, changed_data)).await.is_err());
}

#[tokio::test]
async fn an_invalid_config_map_can_be_labelled() {
    let webhook = validate_config(Webhook::new("demo.reknit.dev"), "config-x", |_| Err("wrong".to_owned()));
    let map = config_map("config-x", json!({"a": "1"}));
    let labelled = with(map.clone(), "/metadata/labels", json!({"a": "b"}));
    webhook.admit(TestRequest::update(&map, &labelled)).await.unwrap();
    let changed = with(labelled, "/data/a", "2");
    assert!(webhook.admit(TestRequest::update(&map, changed)).await.is_err());
}

#[tokio::test]
async fn validators_are_asked_after_the_rules_of_the_kind_and_in_dry_runs() {
    let calls = Arc::new(AtomicU32::new(0));
    let call_count = calls.clone();
    let counted = move |lamp| {
        call_count.fetch_add(1, Ordering::Relaxed);
        not_in_the_attic(lamp)
    };
    let webhook = lamp_webhook().validator(Rule(counted.clone())).deletion_validator(Rule(counted));
    webhook.admit(TestRequest::create(lamp(""))).await.unwrap_err();
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    webhook.admit(TestRequest::create(lamp("hall"))).await.unwrap();
    for refused in [TestRequest::create(lamp("attic")).dry_run(), TestRequest::delete(lamp("attic"))] {
        let denied = webhook.admit(refused).await.unwrap_err();
        assert_eq!(denied.to_string(), "validation failed: no lamps there: spec.room");
        assert_eq!(denied.causes()[0].field, "spec.room");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

/// Refuses to move a lamp.
struct Fixed;

impl Validator for Fixed {
    type Kind = Lamp;

    async fn validate(&self, lamp: &Lamp, old: Option<&Lamp>, request: &Request) -> Result<FieldError> {
        assert_eq!(old.is_some(), request.operation == Operation::Update);
        Ok(match old {
            Some(old) if old.spec.room != lamp.spec.room => FieldError::disallowed(["spec.room"]),
            _ => FieldError::generic("fixed", ["spec.room"]).at(Level::Warning),
        })
    }
}

#[tokio::test]
async fn a_validator_gets_the_stored_object_and_may_warn() {
    let webhook = Webhook::new("demo.reknit.dev").validator(Fixed);
    let admitted = webhook.admit(TestRequest::create(lamp("hall"))).await.unwrap();
    assert_eq!(admitted.warnings, ["fixed: spec.room"]);
    let moved = webhook.admit(TestRequest::update(lamp("hall"), lamp("cellar"))).await.unwrap_err();
    assert_eq!(moved.to_string(), "validation failed: must not set the field(s): spec.room");
    webhook.admit(TestRequest::delete(lamp("hall"))).await.unwrap();
}

#[tokio::test]
async fn a_validator_judges_the_metadata_of_an_object_whose_spec_breaks_a_new_rule() {
    let labelled = with(lamp(""), "/metadata/labels", json!({"forbidden": "yes"}));
    let refused = stricter_webhook().admit(TestRequest::update(lamp(""), labelled)).await.unwrap_err();
    assert_eq!(refused.to_string(), "validation failed: a forbidden label: metadata.labels");
}

#[tokio::test]
async fn a_validator_that_fails_for_the_stored_object_too_blocks_only_changes_of_the_spec() {
    let webhook = Webhook::new("demo.reknit.dev")
        .validator(Rule(async |lamp: Lamp| Err(format!("failed at {:?}", lamp.metadata.labels).into())));
    let finalizing = with(lamp("hall"), "/metadata/finalizers", json!(["a.dev/b"]));
    webhook.admit(TestRequest::update(&finalizing, lamp("hall"))).await.unwrap();
    for changed in [lamp("attic"), with(lamp("hall"), "/metadata/labels", json!({"a": "b"}))] {
        let refused = webhook.admit(TestRequest::update(lamp("hall"), changed)).await.unwrap_err();
        assert!(refused.to_string().starts_with("validation failed: failed at "), "{refused}");
    }
}

#[tokio::test]
async fn invalid_certificate_lifetimes_are_refused() {
    let unreachable_server = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(unreachable_server).unwrap();
    let cx = Context::builder("webhook", client).system_namespace(Some("here".into())).build();
    let day = Duration::from_secs(86_400);
    let refusal = |validity, renew_before| {
        let webhook = lamp_webhook().certificates(validity, renew_before);
        let controller = certificate_controller(&webhook, &cx, &ServiceNames::default());
        controller.err().map(|error| error.to_string())
    };
    assert_eq!(refusal(day * 7, day), None);
    let expected = "certificates that last 86400s cannot be renewed ";
    for renew_before in [Duration::ZERO, day, day * 2] {
        let message = refusal(day, renew_before).unwrap_or_default();
        assert!(message.starts_with(expected), "{renew_before:?}: {message:?}");
    }
    for validity in [day * 3_653, Duration::MAX] {
        let message = refusal(validity, day).unwrap_or_default();
        assert!(
            message.starts_with("certificates cannot last ") && message.ends_with(": ten years at most"),
            "{message:?}"
        );
    }
}

#[tokio::test]
async fn the_system_namespace_owns_the_configurations_unless_that_is_turned_off() {
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mine", "resourceVersion": "1"},
        "webhooks": [{
            "name": "defaulting.webhook.demo.reknit.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1/defaulting"},
        }],
    });
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "here", "uid": "u1"}});
    for owned_by_namespace in [true, false] {
        let server = ApiServer::new();
        server.insert(&serde_json::from_value::<Namespace>(namespace.clone()).unwrap());
        server
            .insert(&serde_json::from_value::<MutatingWebhookConfiguration>(configuration.clone()).unwrap());
        let configurations = BTreeMap::from([("defaulting".into(), "mine".into())]);
        let names = ServiceNames { configurations, owned_by_namespace, ..ServiceNames::default() };
        let builder = Context::builder("webhook", server.client()).system_namespace(Some("here".into()));
        let cx = builder.preloaded(vec![configuration.clone()]).build();
        let webhook = Webhook::new("demo.reknit.dev").defaulting::<Lamp>();
        let controller = certificate_controller(&webhook, &cx, &names).unwrap();
        let _ = controller.once(&Key::new("here", &names.secret)).await.unwrap();
        for _ in ["the bundle", "the owner"] {
            let _ = controller.once(&Key::new(None, "mine")).await.unwrap();
        }
        let object: MutatingWebhookConfiguration = server.object(None, "mine").unwrap();
        assert!(object.webhooks.unwrap()[0].client_config.ca_bundle.is_some());
        let owners = object.metadata.owner_references.unwrap_or_default();
        let owners: Vec<_> = owners.iter().map(|owner| (&*owner.kind, &*owner.name, &*owner.uid)).collect();
        assert_eq!(owners, if owned_by_namespace { vec![("Namespace", "here", "u1")] } else { vec![] });
    }
}

#[tokio::test]
async fn a_missing_configuration_or_entry_is_an_error() {
    let named = |what: &str| format!("{what}.webhook.demo.reknit.dev");
    let validating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": named("validation")},
        "webhooks": [{
            "name": "validation.demo.reknit.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1/validation"},
        }],
    });
    let (server, names) = (ApiServer::new(), ServiceNames::default());
    let builder = Context::builder("webhook", server.client()).system_namespace(Some("here".into()));
    let cx = builder.preloaded(vec![validating]).build();
    let controller = certificate_controller(&lamp_webhook(), &cx, &names).unwrap();
    let _ = controller.once(&Key::new("here", &names.secret)).await.unwrap();
    let message =
        async |what: &str| controller.once(&Key::new(None, &named(what))).await.unwrap_err().to_string();
    assert_eq!(
        message("defaulting").await,
        "there is no MutatingWebhookConfiguration \"defaulting.webhook.demo.reknit.dev\": without it the API server does not \
         call this webhook; add it to the manifests"
    );
    let missing = controller.once(&Key::new(None, &named("defaulting"))).await.unwrap_err();
    assert!(missing.is_permanent(), "its creation enqueues the key");
    assert_eq!(
        message("validation").await,
        "ValidatingWebhookConfiguration \"validation.webhook.demo.reknit.dev\" has no entry \
         \"validation.webhook.demo.reknit.dev\": the API server does not call this webhook"
    );
}
