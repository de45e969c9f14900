//! The Broker Kind, and its controller, which creates the channel of the Broker's events.

use kube::{CustomResource, ResourceExt};
use reknit::{
    apis::{child_name, service_host_name},
    knative::{AddressResolver, AddressStatus, Addressable, DeliverySpec, DeliveryStatus, Url},
    prelude::*,
    reconciler::Kinds,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::channel::{InMemoryChannel, InMemoryChannelSpec};

/// The annotation with the class of a Broker, which selects its implementation.
pub(crate) const CLASS: &str = "eventing.knative.dev/broker.class";
/// The class of the Brokers that keep their events in a channel.
pub(crate) const CHANNEL_BASED: &str = "MTChannelBasedBroker";
/// The annotation in the status of a Broker with the API version of its channel.
pub(crate) const CHANNEL_API_VERSION: &str = "knative.dev/channelAPIVersion";
/// The annotation with the Kind of the channel.
pub(crate) const CHANNEL_KIND: &str = "knative.dev/channelKind";
/// The annotation with the name of the channel.
pub(crate) const CHANNEL_NAME: &str = "knative.dev/channelName";

/// Receives events, from which Triggers select.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "eventing.knative.dev",
    version = "v1",
    kind = "Broker",
    doc = "Receives events, from which Triggers select.",
    namespaced,
    status = "BrokerStatus",
    printcolumn = r#"{"name": "URL", "type": "string", "jsonPath": ".status.address.url"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#
)]
#[serde(default)]
pub struct BrokerSpec {
    /// The options of delivering events to Triggers that have none of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The state of the Broker. Annotations name its channel.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct BrokerStatus {
    /// The conditions, the observed generation and the annotations.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The address that accepts events.
    #[serde(flatten)]
    pub addresses: AddressStatus,
    /// The address to which undeliverable events are sent: that of the dead letter sink.
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
}

kind!(Broker {
    status: BrokerStatus,
    conditions: knative(duck, ["TriggerChannelReady", "Addressable", "DeadLetterSinkResolved"]),
});

/// The resources that the generated ClusterRole permits to read, and so the possible targets of sinks and subscribers.
/// For other targets, bind a further role to the service account.
pub(crate) const ADDRESSABLE: [(&str, &str); 3] =
    [("", "services"), ("eventing.knative.dev", "brokers"), ("messaging.knative.dev", "inmemorychannels")];

/// Reconciles the Brokers of the class [`CHANNEL_BASED`], which own channels.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Broker>(cx);
    let channels = build.owns();
    let resolver = AddressResolver::new(build.track_any(Kinds::of(ADDRESSABLE).or_any()));
    Ok(build.class(CLASS, CHANNEL_BASED).reconciler(Reconciler { channels, resolver }).build())
}

struct Reconciler {
    channels: Owned<InMemoryChannel>,
    resolver: AddressResolver,
}

impl ReconcileKind for Reconciler {
    type Kind = Broker;

    async fn reconcile_kind(&self, broker: &Broker, status: &mut BrokerStatus) -> Result<Outcome> {
        let name = child_name(&broker.name_any(), "-kne-trigger");
        let channel = InMemoryChannel::new(&name, InMemoryChannelSpec::default());
        let channel = self.channels.apply(broker, channel).await?;
        let KReference { api_version, kind, name, .. } = KReference::of(&*channel);
        status.duck.annotations.extend([
            (CHANNEL_API_VERSION.into(), api_version),
            (CHANNEL_KIND.into(), kind),
            (CHANNEL_NAME.into(), name),
        ]);
        let channel_status = channel.status.clone().unwrap_or_default();
        let ready = channel_status.duck.condition("Ready").cloned().unwrap_or_default();
        Broker::CONDITIONS.manage(status).propagate("TriggerChannelReady", &ready);
        self.resolve_dead_letter_sink(broker, status).await?;
        let host = service_host_name("broker-ingress", &broker.namespace().unwrap_or_default());
        status.addresses =
            AddressStatus::one(Addressable { url: Some(Url::http(host)), ..Addressable::default() });
        Broker::CONDITIONS.manage(status).mark_true("Addressable");
        Ok(Outcome::done())
    }
}

impl Reconciler {
    /// Publishes the address of the dead letter sink, from which Triggers without a sink of their own take it.
    async fn resolve_dead_letter_sink(&self, broker: &Broker, status: &mut BrokerStatus) -> Result<()> {
        const CONDITION: &str = "DeadLetterSinkResolved";
        status.delivery = DeliveryStatus::default();
        let delivery = broker.spec.delivery.as_ref();
        let Some(sink) = delivery.and_then(|delivery| delivery.dead_letter_sink.as_ref()) else {
            let message = "No dead letter sink is configured.";
            let mut conditions = Broker::CONDITIONS.manage(status);
            conditions.mark_true_with_reason(CONDITION, "DeadLetterSinkNotConfigured", message);
            return Ok(());
        };
        let resolved = self.resolver.resolve(broker, sink).await.inspect_err(|error| {
            let reason = "Unable to get the dead letter sink's URI";
            Broker::CONDITIONS.manage(status).mark_false(CONDITION, reason, error.in_full());
        })?;
        status.delivery = resolved.into();
        Broker::CONDITIONS.manage(status).mark_true(CONDITION);
        Ok(())
    }
}
