//! Bindings at admission.

use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use kube::{ResourceExt, api::ApiResource, core::GroupVersionKind};
use reknit_injection::Context;
use reknit_knative::{BindingMutator, BindingSelection};
use reknit_testing::ApiServer;
use reknit_webhook::{TestRequest, Webhook, internal};
use serde_json::{Value, json};

use crate::{
    paint::Paint,
    tone::{Tone, tone},
};

const LABEL: &str = "paints.tests.reknit.dev/blue";

fn paint(subject: Value) -> Value {
    json!({
        "apiVersion": "tests.reknit.dev/v1", "kind": "Paint",
        "metadata": {"namespace": "shop", "name": "blue", "uid": "uid-blue"},
        "spec": {"color": "blue", "subject": subject},
    })
}

fn paint_by_name() -> Value {
    paint(json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}))
}

fn paint_by_labels() -> Value {
    paint(
        json!({"apiVersion": "apps/v1beta1", "kind": "Deployment", "selector": {"matchLabels": {"tier": "front"}}}),
    )
}

fn mutator(paint: Value) -> BindingMutator {
    BindingMutator::of::<Paint>(&Context::preloaded("test", ApiServer::new().client(), vec![paint]))
}

fn webhook(mutator: BindingMutator) -> Webhook {
    Webhook::new("tests.reknit.dev").mutator(mutator)
}

fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": namespace, "name": name, "labels": {"tier": "front"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "main", "newer": 1}]}}},
    })
}

/// The deployment as the binding changes it.
fn painted(mut deployment: Value) -> Value {
    deployment["metadata"]["labels"][LABEL] = json!("bound");
    deployment["spec"]["template"]["spec"]["containers"][0]["env"] =
        json!([{"name": "COLOR", "value": "blue"}]);
    deployment
}

async fn admit_creation(paint: Value, deployment: Value) -> Value {
    webhook(mutator(paint)).admit(TestRequest::create(deployment)).await.unwrap().object
}

async fn admit_update(paint: Value, old: Value, new: Value) -> Value {
    webhook(mutator(paint)).admit(TestRequest::update(old, new)).await.unwrap().object
}

/// A webhook that lists the bindings of this API server once the informers of its Context are started.
fn listing_webhook(server: &ApiServer) -> (Webhook, Context) {
    let cx = Context::new("webhook", server.client());
    let mutator = BindingMutator::of::<Paint>(&cx);
    (internal::await_informers(webhook(mutator), &cx), cx)
}

#[tokio::test(start_paused = true)]
async fn subjects_are_denied_until_the_bindings_are_listed() {
    let server = ApiServer::new();
    server.insert::<Paint>(&serde_json::from_value(paint_by_name()).unwrap());
    server.fail_times("list", "paints", 429, 2);
    let (webhook, cx) = listing_webhook(&server);
    cx.informers().start();
    let create = TestRequest::create(deployment("shop", "web"));
    let denied = webhook.admit(create.clone()).await.unwrap_err().to_string();
    assert!(denied.starts_with("the webhook has not read paints.tests.reknit.dev yet: "), "{denied}");
    cx.dependencies()[0].synced().await;
    let admitted = webhook.admit(create).await.unwrap();
    assert_eq!((admitted.object, admitted.warnings), (painted(deployment("shop", "web")), vec![]));
}

#[tokio::test(start_paused = true)]
async fn subjects_are_admitted_with_a_warning_while_the_bindings_cannot_be_listed() {
    let server = ApiServer::new();
    server.fail("list", "paints", 403);
    let (webhook, cx) = listing_webhook(&server);
    cx.informers().start();
    cx.dependencies()[0].synced().await;
    let web = deployment("shop", "web");
    let admitted = webhook.admit(TestRequest::create(web.clone())).await.unwrap();
    assert_eq!(admitted.object, web);
    let [warning] = &admitted.warnings[..] else { panic!("{:?}", admitted.warnings) };
    assert!(warning.starts_with("the webhook has not read paints.tests.reknit.dev yet: "), "{warning}");
}

#[tokio::test]
async fn a_created_subject_is_bound_by_name_or_by_labels() {
    let web = deployment("shop", "web");
    assert_eq!(admit_creation(paint_by_name(), web.clone()).await, painted(web.clone()));
    assert_eq!(admit_creation(paint_by_labels(), web.clone()).await, painted(web.clone()));
}

#[tokio::test]
async fn other_objects_are_not_bound() {
    let mut job = deployment("shop", "web");
    (job["apiVersion"], job["kind"]) = (json!("batch/v1"), json!("Job"));
    for other in [deployment("shop", "db"), deployment("bank", "web"), job] {
        assert_eq!(admit_creation(paint_by_name(), other.clone()).await, other);
    }
    let mut unlabelled = deployment("shop", "web");
    unlabelled["metadata"]["labels"] = json!({"tier": "back"});
    assert_eq!(admit_creation(paint_by_labels(), unlabelled.clone()).await, unlabelled);
}

#[tokio::test]
async fn a_subject_of_another_kind_is_bound_once_the_webhook_names_its_kind() {
    let paint = paint(json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "web"}));
    let mut service = deployment("shop", "web");
    (service["apiVersion"], service["kind"]) = (json!("serving.knative.dev/v1"), json!("Service"));
    assert_eq!(admit_creation(paint.clone(), service.clone()).await, service);
    let service_kind = ApiResource::from_gvk(&GroupVersionKind::gvk("serving.knative.dev", "v1", "Service"));
    let webhook = webhook(mutator(paint).subject(service_kind));
    let admitted = webhook.admit(TestRequest::create(service.clone())).await.unwrap();
    assert_eq!(admitted.object, painted(service));
}

#[tokio::test]
async fn a_binding_does_not_reach_into_another_namespace() {
    let elsewhere =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "namespace": "bank", "name": "web"});
    let bank = deployment("bank", "web");
    assert_eq!(admit_creation(paint(elsewhere), bank.clone()).await, bank);
}

#[tokio::test]
async fn an_update_of_the_pod_template_is_bound_and_any_other_update_is_left_to_the_controller() {
    let (old, mut scaled, mut replaced) =
        (painted(deployment("shop", "web")), deployment("shop", "web"), deployment("shop", "web"));
    scaled["spec"]["replicas"] = json!(3);
    assert_eq!(admit_update(paint_by_name(), deployment("shop", "web"), scaled.clone()).await, scaled);
    assert_eq!(admit_update(paint_by_name(), old.clone(), replaced.clone()).await, old);
    replaced["spec"]["template"]["spec"]["containers"][0]["image"] = json!("new");
    assert_eq!(admit_update(paint_by_name(), old, replaced.clone()).await, painted(replaced));
}

/// The mutator of the paint of `web`, and then of these tones.
fn mutator_with_tones(tones: &[Value]) -> BindingMutator {
    let namespaced = |tone: &Value| {
        let mut tone = tone.clone();
        tone["metadata"]["namespace"] = json!("shop");
        tone
    };
    let objects = tones.iter().map(namespaced).chain([paint_by_name()]).collect();
    let cx = Context::preloaded("test", ApiServer::new().client(), objects);
    BindingMutator::of::<Paint>(&cx).and::<Tone>(&cx)
}

/// The deployment `web` in which bindings have set these variables.
fn with_variables(env: &[(&str, &str)]) -> Value {
    let mut web = painted(deployment("shop", "web"));
    for name in ["a", "b"] {
        web["metadata"]["labels"][format!("tones.tests.reknit.dev/{name}")] = json!("bound");
    }
    let env = env.iter().map(|(name, value)| json!({"name": name, "value": value}));
    web["spec"]["template"]["spec"]["containers"][0]["env"] = env.collect();
    web
}

#[tokio::test]
async fn injections_that_are_there_stay_where_they_are_beside_new_ones() {
    let tones = [tone("a", "TONE"), tone("b", "SOUND")];
    let admit = async |object: Value| {
        let webhook = webhook(mutator_with_tones(&tones));
        webhook.admit(TestRequest::create(object)).await.unwrap().object
    };
    let [sound, color, late, tone] = [("SOUND", "b"), ("COLOR", "blue"), ("LATE", "1"), ("TONE", "a")];
    let bound = with_variables(&[sound, color, tone, late]);
    assert_eq!(admit(bound.clone()).await, bound);
    assert_eq!(
        admit(with_variables(&[color, late, tone])).await,
        with_variables(&[color, late, tone, sound])
    );
}

#[tokio::test]
async fn a_terminating_binding_withdraws_its_injection() {
    let mut terminating = paint_by_name();
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let web = deployment("shop", "web");
    assert_eq!(admit_creation(terminating, painted(web.clone())).await, web);
}

#[tokio::test]
async fn terminating_bindings_withdraw_their_injections_before_the_others_inject() {
    let mut terminating = [tone("b", "TONE"), tone("c", "COLOR")];
    for tone in &mut terminating {
        tone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let [b, c] = terminating;
    let webhook = webhook(mutator_with_tones(&[tone("a", "TONE"), b, c]));
    let admitted = webhook.admit(TestRequest::create(deployment("shop", "web"))).await.unwrap().object;
    let env = &admitted["spec"]["template"]["spec"]["containers"][0]["env"];
    assert_eq!(env, &json!([{"name": "COLOR", "value": "blue"}, {"name": "TONE", "value": "a"}]));
}

#[tokio::test]
async fn a_subject_without_a_pod_template_of_the_right_form_is_refused() {
    let mut web = deployment("shop", "web");
    web["spec"]["template"]["spec"]["containers"] = json!("main");
    let refused = webhook(mutator(paint_by_name())).admit(TestRequest::create(web)).await.unwrap_err();
    assert!(refused.to_string().starts_with("unable to decode object: invalid type"), "{refused}");
}

#[tokio::test]
async fn the_configuration_has_rules_for_the_subjects_and_selectors_of_the_mode() {
    for (mode, key, operator) in [
        (BindingSelection::Exclusion, "bindings.knative.dev/exclude", "NotIn"),
        (BindingSelection::Inclusion, "bindings.knative.dev/include", "In"),
    ] {
        let webhook = webhook(mutator(paint_by_name()).selection(mode));
        let configurations = webhook.configurations(|path| {
            assert_eq!(path, "/bindings");
            WebhookClientConfig::default()
        });
        let [configuration] = &configurations[..] else { panic!("not one configuration") };
        assert_eq!(configuration.name_any(), "bindings.webhook.tests.reknit.dev");
        let entry = &configuration.data["webhooks"][0];
        let rules = entry["rules"].as_array().unwrap();
        let resources: Vec<_> = rules.iter().map(|rule| rule["resources"][0].as_str().unwrap()).collect();
        assert_eq!(resources, ["daemonsets", "deployments", "statefulsets", "jobs"]);
        let expected = json!([{"key": key, "operator": operator, "values": ["true"]}]);
        for selector in ["namespaceSelector", "objectSelector"] {
            assert_eq!(entry[selector]["matchExpressions"], expected, "{selector}");
        }
    }
}
