//! The spec and status of a channel, which delivers events to its subscribers.

use reknit_apis::{DuckShaped, DuckStatus, KReference};
use serde::{Deserialize, Serialize};

use crate::{
    addressable::AddressStatus,
    delivery::DeliverySpec,
    subscribable::{SubscribableSpec, SubscribableStatus},
};

/// The fields of the spec of a channel. Embed it with `#[serde(flatten)]`, or read any channel with it.
///
/// ```
/// use reknit_knative::ChannelableSpec;
///
/// let spec = r#"{"subscribers": [{"uid": "1", "subscriberUri": "http://web/"}], "delivery": {"retry": 3}}"#;
/// let spec: ChannelableSpec = serde_json::from_str(spec)?;
/// assert_eq!(spec.subscribable.subscribers[0].uid, "1");
/// assert_eq!(spec.delivery.unwrap().retry, Some(3));
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The subscribers of a channel, and the options of delivering events to them.")]
pub struct ChannelableSpec {
    /// The subscribers.
    #[serde(flatten)]
    pub subscribable: SubscribableSpec,
    /// The options of delivering events to subscribers that have none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The fields of the status of a channel, with Knative's conditions. Embed it with `#[serde(flatten)]`, use it as the
/// status, or read any channel with it.
///
/// ```
/// use reknit_knative::ChannelableStatus;
///
/// let status = r#"{"address": {"url": "http://channel/"}, "subscribers": [{"uid": "1", "ready": "True"}]}"#;
/// let status: ChannelableStatus = serde_json::from_str(status)?;
/// assert_eq!(status.addresses.address.unwrap().url.unwrap().to_string(), "http://channel/");
/// assert_eq!(status.subscribable.subscriber("1").unwrap().ready, "True");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The state of a channel, as its controller last observed it.")]
pub struct ChannelableStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The addresses of the channel.
    #[serde(flatten)]
    pub addresses: AddressStatus,
    /// The state of each subscriber.
    #[serde(flatten)]
    pub subscribable: SubscribableStatus,
    /// The channel to which undeliverable events are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_channel: Option<KReference>,
}

impl DuckShaped for ChannelableStatus {
    fn duck(&self) -> &DuckStatus {
        &self.duck
    }

    fn duck_mut(&mut self) -> &mut DuckStatus {
        &mut self.duck
    }
}
