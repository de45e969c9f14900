//! Passes of the controller of Triggers.

use k8s_openapi::api::core::v1::Service;
use kube::api::DynamicObject;
use reknit::{
    apis::service_host_name,
    prelude::*,
    testing::{Effects, Given, each_permission_is_needed, given, nothing},
    webhook::TestRequest,
};
use serde_json::{Value, json};

use super::{assert_conditions, condition, stored};
use crate::{
    permissions::failed_status_writes,
    support::eventing::{
        object,
        program::{Broker, InMemoryChannel, Subscription, Trigger, brokers, channels, triggers, webhook},
        trigger,
    },
};

const KEY: &str = "shop/orders";
const SUBSCRIPTION: &str = "shop/default-orders-uid-of-orders";

/// The Trigger `shop/orders` with these fields besides the broker `default` and a subscriber.
fn orders(fields: Value) -> Trigger {
    let mut spec = json!({"broker": "default", "subscriber": {"uri": "http://web/"}});
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    stored(trigger("orders", spec))
}

fn depending_on(annotation: &str) -> Trigger {
    let mut trigger = orders(json!({}));
    trigger.metadata.annotations = Some([("knative.dev/dependency".into(), annotation.into())].into());
    trigger
}

/// The Broker `shop/default` with this condition `Ready`, and these fields added to its status.
fn broker(ready: Value, fields: Value) -> Broker {
    let channel = json!({
        "knative.dev/channelAPIVersion": "messaging.knative.dev/v1", "knative.dev/channelKind": "InMemoryChannel",
        "knative.dev/channelName": "default-kne-trigger",
    });
    let mut status = json!({"conditions": [ready], "annotations": channel});
    for (field, value) in fields.as_object().unwrap() {
        status[field] = value.clone();
    }
    let annotations = json!({"eventing.knative.dev/broker.class": "MTChannelBasedBroker"});
    let metadata = json!({"name": "default", "namespace": "shop", "annotations": annotations});
    object(json!({"metadata": metadata, "spec": {}, "status": status}))
}

fn ready() -> Value {
    json!({"type": "Ready", "status": "True"})
}

fn ready_broker() -> Broker {
    broker(ready(), json!({}))
}

/// A source of a Kind that the program does not know.
fn source(observed_generation: i64, conditions: Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "sources.example.com/v1", "kind": "ClockSource",
        "metadata": {"name": "clock", "namespace": "shop", "generation": 1},
        "status": {"observedGeneration": observed_generation, "conditions": conditions},
    }))
    .unwrap()
}

fn source_ref() -> String {
    json!({"apiVersion": "sources.example.com/v1", "kind": "ClockSource", "name": "clock"}).to_string()
}

async fn reconcile(given: Given) -> Effects {
    given.system_namespace("knative-eventing").reconcile(triggers, KEY).await
}

fn status_of(effects: &Effects) -> Value {
    json!(effects.object::<Trigger>(KEY).unwrap().status)
}

fn check(effects: &Effects, expected: &[(&str, &str, &str, &str)]) {
    assert_conditions(&effects.object::<Trigger>(KEY).unwrap().status.unwrap().duck, expected);
}

#[tokio::test]
async fn the_broker_must_exist_and_be_ready() {
    let effects = reconcile(given(orders(json!({})))).await;
    assert!(effects.result.is_ok());
    check(&effects, &[("BrokerReady", "False", "BrokerDoesNotExist", r#"Broker "default" does not exist"#)]);

    let unreconciled = Broker { status: None, ..ready_broker() };
    let unnamed = broker(ready(), json!({"annotations": {}}));
    let no_channel =
        r#"Failed to get broker "default" annotations: Broker.Status.Annotations nil or missing values"#;
    for (broker, expected) in [
        (unreconciled, ("Unknown", "BrokerNotConfigured", "Broker has not yet been reconciled.")),
        (broker(condition("Ready", "Unknown", "Wait", "soon"), json!({})), ("Unknown", "Wait", "soon")),
        (broker(condition("Ready", "False", "Broken", "no"), json!({})), ("False", "Broken", "no")),
        (unnamed, ("False", "MissingBrokerChannel", no_channel)),
    ] {
        let effects = reconcile(given(orders(json!({}))).and(broker)).await;
        let (status, reason, message) = expected;
        check(&effects, &[("BrokerReady", status, reason, message)]);
        assert_eq!(effects.writes(), ["patch triggers/status shop/orders"]);
    }
}

#[tokio::test]
async fn a_trigger_of_a_broker_of_another_class_gets_no_subscription() {
    let mut other = ready_broker();
    other.metadata.annotations = Some([("eventing.knative.dev/broker.class".into(), "Kafka".into())].into());
    let effects = reconcile(given(orders(json!({}))).and(other)).await;
    assert_eq!(effects.writes(), ["patch triggers/status shop/orders"]);
    check(&effects, &[("BrokerReady", "Unknown", "", ""), ("SubscriptionReady", "Unknown", "", "")]);
}

#[tokio::test]
async fn the_filter_is_subscribed_to_the_channel_of_the_broker() {
    let effects = reconcile(given(orders(json!({}))).and(ready_broker())).await;
    assert!(effects.result.is_ok());
    let created = effects.object::<Subscription>(SUBSCRIPTION).unwrap();
    let host = service_host_name("broker-filter", "knative-eventing");
    let expected = json!({
        "channel": {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "name": "default-kne-trigger"},
        "subscriber": {"uri": format!("http://{host}/triggers/shop/orders/uid-of-orders")},
        "reply": {"ref": {"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "default"}},
    });
    assert_eq!(json!(created.spec), expected);
    let labels = json!({"eventing.knative.dev/broker": "default", "eventing.knative.dev/trigger": "orders"});
    assert_eq!(json!(created.metadata.labels), labels);
    check(
        &effects,
        &[
            ("BrokerReady", "True", "", ""),
            ("SubscriberResolved", "True", "", ""),
            ("DependencyReady", "True", "", ""),
            (
                "DeadLetterSinkResolved",
                "True",
                "DeadLetterSinkNotConfigured",
                "No dead letter sink is configured.",
            ),
            (
                "SubscriptionReady",
                "Unknown",
                "SubscriptionNotConfigured",
                "Subscription has not yet been reconciled.",
            ),
        ],
    );
    assert_eq!(status_of(&effects)["subscriberUri"], "http://web/");
}

/// The state after the first pass, with a change of the Subscription.
async fn with_subscription(change: impl FnOnce(&mut Subscription)) -> Given {
    let first = reconcile(given(orders(json!({}))).and(ready_broker())).await;
    let mut subscription = first.object::<Subscription>(SUBSCRIPTION).unwrap();
    change(&mut subscription);
    given(first.object::<Trigger>(KEY).unwrap()).and(ready_broker()).and(subscription)
}

#[tokio::test]
async fn a_trigger_follows_its_subscription() {
    for (stored, expected) in [
        (ready(), ("True", "", "")),
        (condition("Ready", "False", "Refused", "no"), ("False", "Refused", "no")),
    ] {
        let status = serde_json::from_value(json!({"conditions": [stored]})).unwrap();
        let effects = reconcile(with_subscription(|subscription| subscription.status = status).await).await;
        let (status, reason, message) = expected;
        check(
            &effects,
            &[("SubscriptionReady", status, reason, message), ("Ready", status, reason, message)],
        );
    }
}

#[tokio::test]
async fn a_subscription_to_another_channel_is_replaced() {
    let other = with_subscription(|subscription| subscription.spec.channel.name = "other".into()).await;
    let effects = reconcile(other).await;
    let key = "default-orders-uid-of-orders";
    assert_eq!(
        effects.writes()[..2],
        [format!("delete subscriptions shop/{key}"), format!("patch subscriptions shop/{key}")]
    );
}

#[tokio::test]
async fn a_subscription_of_another_owner_is_not_changed() {
    let forget_owner = |subscription: &mut Subscription| {
        (subscription.metadata.owner_references, subscription.metadata.annotations) = (None, None);
    };
    let foreign = with_subscription(forget_owner).await;
    let effects = reconcile(foreign).await;
    let message = r#"trigger "orders" does not own subscription "default-orders-uid-of-orders""#;
    check(&effects, &[("SubscriptionReady", "False", "SubscriptionNotOwnedByTrigger", message)]);
    assert_eq!(effects.writes(), ["patch triggers/status shop/orders"]);
}

#[tokio::test]
async fn the_subscriber_is_resolved_when_it_appears() {
    let subscriber = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "web"}});
    let given = || given(orders(json!({"subscriber": subscriber}))).and(ready_broker());
    let missing = r#"failed to get object shop/web: services "web" not found"#;
    let effects = reconcile(given()).await;
    let reason = "Unable to get the Subscriber's URI";
    check(&effects, &[("SubscriberResolved", "False", reason, missing)]);
    assert!(effects.result.as_ref().is_err_and(Error::is_permanent), "its creation enqueues the Trigger");

    let web: Service = object(json!({"metadata": {"name": "web", "namespace": "shop"}}));
    let effects = reconcile(given().and(web)).await;
    assert_eq!(status_of(&effects)["subscriberUri"], format!("http://{}", service_host_name("web", "shop")));
}

#[tokio::test]
async fn the_dead_letter_sink_of_the_trigger_comes_before_that_of_the_broker() {
    let letters = |uri: &str| json!({"deadLetterSink": {"uri": uri}});
    let mut with_sink = broker(ready(), json!({"deadLetterSinkUri": "http://brokers/"}));
    with_sink.spec.delivery = serde_json::from_value(letters("http://brokers/")).unwrap();
    let mut unresolved = with_sink.clone();
    unresolved.status.as_mut().unwrap().delivery = Default::default();

    let own = orders(json!({"delivery": letters("http://own/")}));
    for (trigger, expected) in [(own, "http://own/"), (orders(json!({})), "http://brokers/")] {
        let effects = reconcile(given(trigger).and(with_sink.clone())).await;
        check(&effects, &[("DeadLetterSinkResolved", "True", "", "")]);
        assert_eq!(status_of(&effects)["deadLetterSinkUri"], expected);
        let subscription = json!(effects.object::<Subscription>(SUBSCRIPTION).unwrap().spec);
        assert_eq!(subscription["delivery"], letters(expected));
    }
    let effects = reconcile(given(orders(json!({}))).and(unresolved)).await;
    let reason = "Broker default didn't set status.deadLetterSinkURI";
    check(&effects, &[("DeadLetterSinkResolved", "False", reason, "")]);
}

#[tokio::test]
async fn a_trigger_is_ready_only_if_its_dependency_is() {
    let check_dependency = async |given: Given, expected: (&str, &str, &str)| {
        let effects = reconcile(given.and(ready_broker())).await;
        let (status, reason, message) = expected;
        check(&effects, &[("DependencyReady", status, reason, message)]);
    };
    let depending = || given(depending_on(&source_ref()));
    let not_json = "Unable to unmarshal objectReference from dependency annotation of trigger: \
                    expected ident at line 1 column 2";
    check_dependency(given(depending_on("none")), ("False", "ReferenceError", not_json)).await;
    let missing = "Dependency does not exist: ClockSource clock was not found";
    let mut another = source(1, json!([]));
    another.metadata.name = Some("other".into());
    check_dependency(depending().and(another), ("False", "DependencyDoesNotExist", missing)).await;
    let unequal =
        "The dependency's metadata.generation, 1, is not equal to its status.observedGeneration, 0.";
    let old = source(0, json!([ready()]));
    check_dependency(depending().and(old), ("Unknown", "GenerationNotEqual", unequal)).await;
    let unready = source(1, json!([condition("Ready", "False", "NoSink", "no sink")]));
    check_dependency(depending().and(unready), ("False", "NoSink", "no sink")).await;
    let unreconciled = ("Unknown", "DependencyNotConfigured", "Dependency has not yet been reconciled.");
    check_dependency(depending().and(source(1, json!([]))), unreconciled).await;
    check_dependency(depending().and(source(1, json!([ready()]))), ("True", "", "")).await;
}

#[tokio::test]
async fn a_broker_may_be_of_any_kind() {
    let broker_ref = json!({"apiVersion": "brokers.example.com/v1", "kind": "Exchange", "name": "orders"});
    let mut exchange = json!(ready_broker());
    exchange["apiVersion"] = json!("brokers.example.com/v1");
    exchange["kind"] = json!("Exchange");
    exchange["metadata"]["name"] = json!("orders");
    let exchange: DynamicObject = serde_json::from_value(exchange).unwrap();
    let effects =
        reconcile(given(orders(json!({"broker": "", "brokerRef": broker_ref}))).and(exchange)).await;
    check(&effects, &[("BrokerReady", "True", "", "")]);
    let subscription = effects.object::<Subscription>("shop/orders-orders-uid-of-orders").unwrap();
    assert_eq!(json!(subscription.spec)["reply"], json!({ "ref": broker_ref }));
}

#[tokio::test]
async fn a_broker_gets_a_channel_and_is_ready_when_the_channel_is() {
    let unreconciled = Broker { status: None, ..ready_broker() };
    let first = given(unreconciled).reconcile(brokers, "shop/default").await;
    assert_eq!(
        first.writes(),
        ["patch inmemorychannels shop/default-kne-trigger", "patch brokers/status shop/default"]
    );
    let channel = first.object::<InMemoryChannel>("shop/default-kne-trigger").unwrap();
    let channel = given(channel).reconcile(channels, "shop/default-kne-trigger").await;
    let channel = channel.object::<InMemoryChannel>("shop/default-kne-trigger").unwrap();
    let second = given(first.object::<Broker>("shop/default").unwrap()).and(channel);
    let second = second.reconcile(brokers, "shop/default").await;
    let status = second.object::<Broker>("shop/default").unwrap().status.unwrap();
    let no_sink = (
        "DeadLetterSinkResolved",
        "True",
        "DeadLetterSinkNotConfigured",
        "No dead letter sink is configured.",
    );
    let ready = [("Ready", "True", "", ""), ("TriggerChannelReady", "True", "", ""), no_sink];
    assert_conditions(&status.duck, &ready);
    assert_eq!(status.duck.annotations["knative.dev/channelName"], "default-kne-trigger");
}

#[tokio::test]
async fn the_dead_letter_sink_of_a_broker_is_resolved_when_it_appears() {
    let sink = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "letters"}});
    let mut broker = Broker { status: None, ..ready_broker() };
    broker.spec.delivery = serde_json::from_value(json!({"deadLetterSink": sink})).unwrap();
    let status_of = |effects: &Effects| effects.object::<Broker>("shop/default").unwrap().status.unwrap();

    let effects = given(broker.clone()).reconcile(brokers, "shop/default").await;
    let reason = "Unable to get the dead letter sink's URI";
    let missing = r#"failed to get object shop/letters: services "letters" not found"#;
    let failed = ("DeadLetterSinkResolved", "False", reason, missing);
    assert_conditions(&status_of(&effects).duck, &[failed, ("Ready", "False", reason, missing)]);
    assert!(effects.result.as_ref().is_err_and(Error::is_permanent), "its creation enqueues the Broker");

    let letters: Service = object(json!({"metadata": {"name": "letters", "namespace": "shop"}}));
    let effects = given(broker).and(letters).reconcile(brokers, "shop/default").await;
    let status = status_of(&effects);
    assert_conditions(&status.duck, &[("DeadLetterSinkResolved", "True", "", "")]);
    let url = format!("http://{}", service_host_name("letters", "shop"));
    assert_eq!(json!(status)["deadLetterSinkUri"], url);
}

#[tokio::test]
async fn the_webhook_sets_defaults_and_refuses_invalid_triggers() {
    let webhook = nothing().webhook(webhook);
    let admitted = webhook.admit(TestRequest::create(orders(json!({"broker": ""})))).await.unwrap();
    assert_eq!(admitted.object["spec"]["broker"], "default");
    let reference = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": namespace}).to_string()
    };
    webhook.admit(TestRequest::create(depending_on(&reference("shop")))).await.unwrap();
    for (trigger, expected) in [
        (
            orders(json!({"subscriber": {}})),
            "expected at least one, got none: spec.subscriber.ref, spec.subscriber.uri",
        ),
        (
            orders(json!({"brokerRef": {"apiVersion": "v1", "kind": "Service", "name": "web"}})),
            "expected exactly one, got both: spec.broker, spec.brokerRef",
        ),
        (
            orders(json!({"filter": {"attributes": {"1a": "x"}}})),
            r#"Invalid attribute name: "1a": spec.filter.attributes"#,
        ),
        (orders(json!({"delivery": {"retry": -1}})), "invalid value: -1: spec.delivery.retry"),
        (
            depending_on(&reference("theirs")),
            "mismatched namespaces: metadata.annotations[knative.dev/dependency].namespace",
        ),
        (depending_on("{}"), "metadata.annotations[knative.dev/dependency]"),
    ] {
        let refusal = webhook.admit(TestRequest::create(&trigger)).await.unwrap_err().to_string();
        assert!(refusal.contains(expected), "{refusal}");
    }
}

#[tokio::test]
async fn each_declared_permission_of_triggers_is_needed() {
    let first = reconcile(given(orders(json!({}))).and(ready_broker())).await;
    let mut other = first.object::<Subscription>(SUBSCRIPTION).unwrap();
    other.spec.channel.name = "other".into();
    each_permission_is_needed(|| {
        let given = || given(orders(json!({}))).and(ready_broker()).and(other.clone());
        failed_status_writes(triggers, "triggers", KEY, given)
    })
    .await;
}

#[tokio::test]
async fn each_declared_permission_of_brokers_is_needed() {
    let unreconciled = Broker { status: None, ..ready_broker() };
    each_permission_is_needed(|| {
        failed_status_writes(brokers, "brokers", "shop/default", || given(unreconciled.clone()))
    })
    .await;
}
