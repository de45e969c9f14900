//! Passes of the controller of Subscriptions.

use k8s_openapi::api::core::v1::Service;
use reknit::{
    apis::service_host_name,
    prelude::*,
    testing::{Given, Want, each_permission_is_needed, given, table},
};
use serde_json::{Value, json};

use crate::{
    permissions::failed_status_writes,
    support::sequence::{
        channel,
        program::{InMemoryChannel, Subscription, subscriptions},
        subscription,
    },
};

const KEY: &str = "shop/orders";

/// The Subscription `shop/orders`, to the channel `orders`.
fn orders(subscriber: Value, reply: Value) -> Subscription {
    let channel =
        json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "name": "orders"});
    let spec = json!({"channel": channel, "subscriber": subscriber, "reply": reply});
    let mut subscription = subscription("orders", spec);
    subscription.metadata.namespace = Some("shop".into());
    subscription
}

fn channel_ref(name: &str) -> Value {
    json!({"ref": {"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "name": name}})
}

fn service_ref(name: &str) -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": name}})
}

/// The channel of this name, with or without an address.
fn channel_at(name: &str, url: Option<&str>) -> InMemoryChannel {
    let mut channel = channel(name);
    channel.metadata.namespace = Some("shop".into());
    channel.status = serde_json::from_value(json!({"address": url.map(|url| json!({"url": url}))})).unwrap();
    channel
}

fn given_orders(subscriber: Value, reply: Value) -> Given {
    given(orders(subscriber, reply)).and(channel_at("orders", Some("http://orders")))
}

/// The Subscription whose references are resolved to these addresses.
fn resolved(addresses: Value) -> Subscription {
    let mut subscription = orders(Value::Null, Value::Null);
    let conditions =
        json!([{"type": "Ready", "status": "True"}, {"type": "ReferencesResolved", "status": "True"}]);
    let status = json!({"conditions": conditions, "physicalSubscription": addresses});
    subscription.status = serde_json::from_value(status).unwrap();
    subscription
}

/// The Subscription of which a reference could not be resolved.
fn unresolved(reason: &str, message: &str) -> Subscription {
    let mut subscription = orders(Value::Null, Value::Null);
    let condition = |kind| json!({"type": kind, "status": "False", "reason": reason, "message": message});
    let conditions = json!([condition("Ready"), condition("ReferencesResolved")]);
    subscription.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
    subscription
}

fn want_unresolved(reason: &str, message: &str) -> Want {
    Want::permanent_error(message).status(&unresolved(reason, message)).event(Event::warning(reason, message))
}

#[tokio::test]
async fn subscriber_and_reply_are_resolved() {
    let mut web = Service::default();
    web.metadata.name = Some("web".into());
    web.metadata.namespace = Some("shop".into());
    let web_url = format!("http://{}", service_host_name("web", "shop"));
    let url = json!({"uri": "http://example.com"});
    let absent = Value::Null;
    let mut elsewhere = service_ref("web");
    elsewhere["ref"]["namespace"] = json!("elsewhere");
    let no_service = r#"failed to get object shop/web: services "web" not found"#;
    let no_channel =
        r#"failed to get object shop/orders: inmemorychannels.messaging.knative.dev "orders" not found"#;
    let no_address = "address not set for Kind = InMemoryChannel, Namespace = shop, Name = next, \
                      APIVersion = messaging.knative.dev/v1, Group = , Address = ";
    table(subscriptions)
        .row(
            "a URL is its own address",
            KEY,
            given_orders(url.clone(), absent.clone()),
            Want::done().status(&resolved(json!({"subscriberUri": "http://example.com"}))),
        )
        .row(
            "a Service and a channel have addresses",
            KEY,
            given_orders(service_ref("web"), channel_ref("next"))
                .and(web.clone())
                .and(channel_at("next", Some("http://next"))),
            Want::done().status(&resolved(json!({"subscriberUri": web_url, "replyUri": "http://next"}))),
        )
        .row(
            "a reference leads to the Subscription's own namespace",
            KEY,
            given_orders(elsewhere, absent.clone()).and(web),
            Want::done().status(&resolved(json!({"subscriberUri": web_url}))),
        )
        .row(
            "neither subscriber nor reply is required",
            KEY,
            given_orders(absent.clone(), absent.clone()),
            Want::done().status(&resolved(json!({}))),
        )
        .row(
            "the channel does not exist",
            KEY,
            given(orders(url.clone(), absent.clone())),
            want_unresolved(
                "ChannelReferenceFailed",
                &format!("Failed to resolve spec.channel: {no_channel}"),
            ),
        )
        .row(
            "the subscriber does not exist",
            KEY,
            given_orders(service_ref("web"), absent),
            want_unresolved(
                "SubscriberResolveFailed",
                &format!("Failed to resolve spec.subscriber: {no_service}"),
            ),
        )
        .row(
            "the reply has no address",
            KEY,
            given_orders(url, channel_ref("next")).and(channel_at("next", None)),
            want_unresolved("ReplyResolveFailed", &format!("Failed to resolve spec.reply: {no_address}")),
        )
        .run()
        .await;
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    each_permission_is_needed(|| {
        failed_status_writes(subscriptions, "subscriptions", KEY, || given_orders(Value::Null, Value::Null))
    })
    .await;
}
