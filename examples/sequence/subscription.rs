//! The Subscription Kind and its controller, which resolves the references of a Subscription to addresses.

use kube::{CustomResource, ResourceExt};
use reknit::{
    knative::{AddressResolver, DeliverySpec, Destination, Url},
    prelude::*,
    reconciler::Kinds,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sends the events of a channel to a subscriber, and its replies to another destination.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "messaging.knative.dev",
    version = "v1",
    kind = "Subscription",
    doc = "Sends the events of a channel to a subscriber, and its replies to another destination.",
    namespaced,
    status = "SubscriptionStatus",
    validation = Rule::new("self.spec.channel == oldSelf.spec.channel").message("spec.channel is immutable"),
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionSpec {
    /// The channel, in the same namespace. It cannot be changed.
    pub channel: KReference,
    /// The destination of the channel's events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber: Option<Destination>,
    /// The destination of the subscriber's replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Destination>,
    /// The options of delivering events to the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The state of the Subscription.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The addresses of the references, once all are resolved.
    #[serde(default)]
    pub physical_subscription: PhysicalSubscription,
}

/// The addresses that a channel sends to.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PhysicalSubscription {
    /// The address of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<Url>,
    /// The address of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_uri: Option<Url>,
    /// The address of events that could not be delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_sink_uri: Option<Url>,
}

kind!(Subscription { status: SubscriptionStatus, conditions: knative(duck, ["ReferencesResolved"]) });

/// Reconciles Subscriptions, and tracks all that they refer to.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Subscription>(cx);
    let addressable = [("", "services"), ("messaging.knative.dev", "inmemorychannels")];
    let resolver = AddressResolver::new(build.track_any(Kinds::of(addressable).or_any()));
    Ok(build.reconciler(Reconciler { resolver }).build())
}

struct Reconciler {
    resolver: AddressResolver,
}

impl ReconcileKind for Reconciler {
    type Kind = Subscription;

    async fn reconcile_kind(
        &self,
        subscription: &Subscription,
        status: &mut SubscriptionStatus,
    ) -> Result<Outcome> {
        status.physical_subscription = PhysicalSubscription::default();
        let resolved = self.resolve_references(subscription).await;
        let mut conditions = Subscription::CONDITIONS.manage(status);
        match resolved {
            Ok(addresses) => {
                conditions.mark_true("ReferencesResolved");
                status.physical_subscription = addresses;
                Ok(Outcome::done())
            }
            Err(error) => {
                conditions.mark_false("ReferencesResolved", error.event_reason(), error.in_full());
                Err(error)
            }
        }
    }
}

impl Reconciler {
    async fn resolve_references(&self, subscription: &Subscription) -> Result<PhysicalSubscription> {
        let SubscriptionSpec { channel, subscriber, reply, delivery } = subscription.spec.clone();
        self.resolve(subscription, Some(channel.into()), "channel", "ChannelReferenceFailed").await?;
        let sink = delivery.and_then(|delivery| delivery.dead_letter_sink);
        Ok(PhysicalSubscription {
            subscriber_uri: self
                .resolve(subscription, subscriber, "subscriber", "SubscriberResolveFailed")
                .await?,
            reply_uri: self.resolve(subscription, reply, "reply", "ReplyResolveFailed").await?,
            dead_letter_sink_uri: self
                .resolve(subscription, sink, "delivery.deadLetterSink", "DeadLetterSinkResolveFailed")
                .await?,
        })
    }

    /// Resolves the destination in this field. As in Knative, its object is always looked up in the Subscription's own
    /// namespace.
    async fn resolve(
        &self,
        subscription: &Subscription,
        destination: Option<Destination>,
        field: &str,
        reason: &str,
    ) -> Result<Option<Url>> {
        let Some(mut destination) = destination else { return Ok(None) };
        if let Some(reference) = &mut destination.reference {
            reference.namespace = subscription.namespace();
        }
        let resolved = self.resolver.resolve(subscription, &destination).await;
        let address = resolved.context(format_args!("Failed to resolve spec.{field}")).reason(reason)?;
        Ok(address.url)
    }
}
