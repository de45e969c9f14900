//! A channel Kind whose objects get an address. It has no data plane: no events flow through its channels.

use kube::{CustomResource, ResourceExt};
use reknit::{
    apis::service_host_name,
    knative::{AddressStatus, Addressable, ChannelableSpec, ChannelableStatus, Url},
    prelude::*,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A channel that keeps its events in memory.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[kube(
    group = "messaging.knative.dev",
    version = "v1",
    kind = "InMemoryChannel",
    doc = "A channel that keeps its events in memory.",
    namespaced,
    status = "ChannelableStatus",
    printcolumn = r#"{"name": "URL", "type": "string", "jsonPath": ".status.address.url"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#
)]
pub struct InMemoryChannelSpec {
    /// The subscribers and the delivery options.
    #[serde(flatten)]
    pub channelable: ChannelableSpec,
}

kind!(InMemoryChannel { status: ChannelableStatus, conditions: knative(["Addressable"]) });

/// Reconciles InMemoryChannels.
pub fn controller(cx: &Context) -> Result<Controller> {
    Ok(Controller::of::<InMemoryChannel>(cx).reconciler(Reconciler).build())
}

struct Reconciler;

impl ReconcileKind for Reconciler {
    type Kind = InMemoryChannel;

    async fn reconcile_kind(
        &self,
        channel: &InMemoryChannel,
        status: &mut ChannelableStatus,
    ) -> Result<Outcome> {
        let service = format!("{}-kn-channel", channel.name_any());
        let url = Url::http(service_host_name(&service, &channel.namespace().unwrap_or_default()));
        status.addresses = AddressStatus::one(Addressable { url: Some(url), ..Addressable::default() });
        InMemoryChannel::CONDITIONS.manage(status).mark_true("Addressable");
        Ok(Outcome::done())
    }
}
