//! The expected status of a Sequence.

use serde_json::{Value, json};

use super::children::child_name;
use crate::support::sequence::program::Sequence;

const CHANNELS: &str = "Channels are not ready yet, or there are none";
const SUBSCRIPTIONS: &str = "Subscriptions are not ready yet, or there are none";

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

fn unknown(kind: &str, reason: &str, message: &str) -> Value {
    condition(kind, "Unknown", reason, message)
}

fn with_status(mut sequence: Sequence, status: Value) -> Sequence {
    sequence.status = serde_json::from_value(status).unwrap();
    sequence
}

fn child_status(field: &str, api_version: &str, kind: &str, step: usize, ready: Value) -> Value {
    let name = child_name(step);
    let child = json!({"apiVersion": api_version, "kind": kind, "namespace": "test-namespace", "name": name});
    json!({field: child, "ready": ready})
}

fn channel_statuses(sequence: &Sequence, ready: &Value) -> Vec<Value> {
    let template = sequence.spec.channel_template();
    let status = |step| child_status("channel", &template.api_version, &template.kind, step, ready.clone());
    (0..sequence.spec.steps.len()).map(status).collect()
}

fn subscription_statuses(sequence: &Sequence, ready: &Value) -> Vec<Value> {
    let status =
        |step| child_status("subscription", "messaging.knative.dev/v1", "Subscription", step, ready.clone());
    (0..sequence.spec.steps.len()).map(status).collect()
}

fn no_ready(kind: &str) -> Value {
    unknown("Ready", "NoReady", &format!("{kind} does not have Ready condition"))
}

/// All children exist, and none has a condition yet.
pub(super) fn applied(sequence: Sequence) -> Sequence {
    let conditions = json!([
        unknown("Addressable", "emptyAddress", "addressable is nil"),
        unknown("ChannelsReady", "ChannelsNotReady", CHANNELS),
        unknown("Ready", "SubscriptionsNotReady", SUBSCRIPTIONS),
        unknown("SubscriptionsReady", "SubscriptionsNotReady", SUBSCRIPTIONS),
    ]);
    let status = json!({
        "observedGeneration": 7,
        "conditions": conditions,
        "channelStatuses": channel_statuses(&sequence, &no_ready("Channel")),
        "subscriptionStatuses": subscription_statuses(&sequence, &no_ready("Subscription")),
    });
    with_status(sequence, status)
}

/// A channel could not be applied.
pub(super) fn channels_failed(sequence: Sequence, message: &str) -> Sequence {
    let conditions = json!([
        {"type": "Addressable", "status": "Unknown"},
        unknown("ChannelsReady", "ChannelsNotReady", message),
        unknown("Ready", "ChannelsNotReady", message),
        {"type": "SubscriptionsReady", "status": "Unknown"},
    ]);
    with_status(sequence, json!({"observedGeneration": 7, "conditions": conditions}))
}

/// The channels exist, and a Subscription could not be applied.
pub(super) fn subscriptions_failed(sequence: Sequence, message: &str) -> Sequence {
    let conditions = json!([
        unknown("Addressable", "emptyAddress", "addressable is nil"),
        unknown("ChannelsReady", "ChannelsNotReady", CHANNELS),
        unknown("Ready", "SubscriptionsNotReady", message),
        unknown("SubscriptionsReady", "SubscriptionsNotReady", message),
    ]);
    let channels = channel_statuses(&sequence, &no_ready("Channel"));
    let status = json!({"observedGeneration": 7, "conditions": conditions, "channelStatuses": channels});
    with_status(sequence, status)
}

/// All children are ready.
pub(super) fn ready(sequence: Sequence) -> Sequence {
    let is_true = |kind| json!({"type": kind, "status": "True"});
    let conditions = ["Addressable", "ChannelsReady", "Ready", "SubscriptionsReady"].map(is_true);
    let status = json!({
        "observedGeneration": 7,
        "conditions": conditions,
        "address": {"url": format!("http://{}", child_name(0))},
        "channelStatuses": channel_statuses(&sequence, &is_true("Ready")),
        "subscriptionStatuses": subscription_statuses(&sequence, &is_true("Ready")),
    });
    with_status(sequence, status)
}
