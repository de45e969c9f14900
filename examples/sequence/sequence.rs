//! The Sequence Kind and the rules of its status.

use std::sync::Arc;

use kube::CustomResource;
use reknit::{
    apis::Condition,
    knative::{AddressStatus, Addressable, ChannelableStatus, DeliverySpec, Destination},
    prelude::*,
    reconciler::Duck,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::subscription::Subscription;

/// Subscribers that are called one after the other: each gets the reply of the one before it.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(
    group = "flows.knative.dev",
    version = "v1",
    kind = "Sequence",
    doc = "Subscribers that are called one after the other: each gets the reply of the one before it.",
    namespaced,
    status = "SequenceStatus",
    printcolumn = r#"{"name": "URL", "type": "string", "jsonPath": ".status.address.url"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SequenceSpec {
    /// The subscribers, in the order in which they are called. A pass makes four requests for each.
    #[schemars(length(max = 100))]
    pub steps: Vec<SequenceStep>,
    /// The channel to create in front of each step. If absent, the webhook sets the one of ConfigMap default-ch-webhook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel_template: Option<ChannelTemplate>,
    /// The destination of the last subscriber's reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
}

/// One subscriber.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct SequenceStep {
    /// The subscriber.
    #[serde(flatten)]
    pub subscriber: Destination,
    /// The options of delivering events to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The Kind and the spec of a channel.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChannelTemplate {
    /// The API group and version of the channel.
    pub api_version: String,
    /// The Kind of the channel.
    pub kind: String,
    /// The spec of the channel.
    #[serde(default)]
    pub spec: Map<String, Value>,
}

impl SequenceSpec {
    /// The channel to create in front of each step: an InMemoryChannel if the Sequence was stored without a template.
    pub fn channel_template(&self) -> ChannelTemplate {
        self.channel_template.clone().unwrap_or_else(|| ChannelTemplate {
            api_version: "messaging.knative.dev/v1".into(),
            kind: "InMemoryChannel".into(),
            spec: Map::new(),
        })
    }

    /// Sets the namespace of references that name none.
    fn set_namespaces(&mut self, namespace: &str) {
        for SequenceStep { subscriber, delivery } in &mut self.steps {
            subscriber.set_defaults(namespace);
            delivery.iter_mut().for_each(|delivery| delivery.set_defaults(namespace));
        }
        self.reply.iter_mut().for_each(|reply| reply.set_defaults(namespace));
    }
}

impl ChannelTemplate {
    /// Returns true if the reference names an object of the template's Kind, in any version.
    pub fn is_of_kind(&self, reference: &KReference) -> bool {
        let group = |api_version: &str| api_version.split_once('/').map(|(group, _)| group.to_owned());
        (group(&self.api_version), &self.kind) == (group(&reference.api_version), &reference.kind)
    }
}

/// The state of the Sequence.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SequenceStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The subscriptions, in the order of the steps.
    #[serde(default)]
    pub subscription_statuses: Vec<SequenceSubscriptionStatus>,
    /// The channels, in the order of the steps.
    #[serde(default)]
    pub channel_statuses: Vec<SequenceChannelStatus>,
    /// The address of the first channel.
    #[serde(flatten)]
    pub addresses: AddressStatus,
}

/// The state of a step's Subscription.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct SequenceSubscriptionStatus {
    /// The Subscription.
    pub subscription: KReference,
    /// Its condition `Ready`.
    pub ready: Condition,
}

/// The state of a step's channel.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
pub struct SequenceChannelStatus {
    /// The channel.
    pub channel: KReference,
    /// Its condition `Ready`.
    pub ready: Condition,
}

kind!(Sequence {
    status: SequenceStatus,
    conditions: knative(duck, ["ChannelsReady", "SubscriptionsReady", "Addressable"]),
    defaults: |sequence| {
        let namespace = sequence.metadata.namespace.clone().unwrap_or_default();
        sequence.spec.set_namespaces(&namespace);
    },
});

/// A channel of any Kind.
pub(super) type Channelable = Duck<ChannelableStatus>;

impl SequenceStatus {
    /// Records the channels, and the address of the first one.
    pub fn propagate_channel_statuses(&mut self, channels: &[Channelable]) {
        let statuses = channels.iter().map(|channel| SequenceChannelStatus {
            channel: channel.reference(),
            ready: ready_condition("Channel", &channel.status.duck),
        });
        self.channel_statuses = statuses.collect();
        self.set_address(channels.first().and_then(|first| first.status.addresses.address.clone()));
        if is_all_ready(self.channel_statuses.iter().map(|status| &status.ready)) {
            Sequence::CONDITIONS.manage(self).mark_true("ChannelsReady");
        } else {
            self.mark_channels_not_ready("Channels are not ready yet, or there are none");
        }
    }

    /// Records the Subscriptions.
    pub fn propagate_subscription_statuses(&mut self, subscriptions: &[Arc<Subscription>]) {
        let statuses = subscriptions.iter().map(|subscription| SequenceSubscriptionStatus {
            subscription: KReference::of(&**subscription),
            ready: ready_condition("Subscription", &subscription.status.clone().unwrap_or_default().duck),
        });
        self.subscription_statuses = statuses.collect();
        if is_all_ready(self.subscription_statuses.iter().map(|status| &status.ready)) {
            Sequence::CONDITIONS.manage(self).mark_true("SubscriptionsReady");
        } else {
            self.mark_subscriptions_not_ready("Subscriptions are not ready yet, or there are none");
        }
    }

    /// Marks that a channel is not ready, or could not be applied.
    pub fn mark_channels_not_ready(&mut self, message: impl Into<String>) {
        Sequence::CONDITIONS.manage(self).mark_unknown("ChannelsReady", "ChannelsNotReady", message);
    }

    /// Marks that a Subscription is not ready, or could not be applied.
    pub fn mark_subscriptions_not_ready(&mut self, message: impl Into<String>) {
        Sequence::CONDITIONS.manage(self).mark_unknown(
            "SubscriptionsReady",
            "SubscriptionsNotReady",
            message,
        );
    }

    fn set_address(&mut self, address: Option<Addressable>) {
        self.addresses.address = address.filter(|address| address.url.is_some());
        let has_address = self.addresses.address.is_some();
        let mut conditions = Sequence::CONDITIONS.manage(self);
        match has_address {
            true => conditions.mark_true("Addressable"),
            false => conditions.mark_unknown("Addressable", "emptyAddress", "addressable is nil"),
        }
    }
}

/// The condition `Ready` of a child of this Kind, or an Unknown one if it has none yet.
fn ready_condition(kind: &str, status: &DuckStatus) -> Condition {
    status.condition("Ready").cloned().unwrap_or_else(|| Condition {
        kind: "Ready".into(),
        reason: Some("NoReady".into()),
        message: Some(format!("{kind} does not have Ready condition")),
        ..Condition::default()
    })
}

/// Returns true if there are conditions and all are True.
fn is_all_ready<'a>(mut conditions: impl ExactSizeIterator<Item = &'a Condition>) -> bool {
    conditions.len() > 0 && conditions.all(Condition::is_true)
}
