//! The subscribers of a channel.

use reknit_apis::ConditionStatus;
use serde::{Deserialize, Serialize};

use crate::{auth::AuthStatus, delivery::DeliverySpec, url::Url};

/// The part of a spec that lists subscribers. Embed it with `#[serde(flatten)]`.
///
/// The list is a map by `uid` in the schema, so each field manager can apply a subscriber of its own.
///
/// ```
/// use reknit_knative::SubscribableSpec;
///
/// let spec: SubscribableSpec = serde_json::from_str(r#"{"subscribers": [{"uid": "1", "subscriberUri": "http://web/"}]}"#)?;
/// assert_eq!(spec.subscribers[0].subscriber_uri.as_ref().unwrap().to_string(), "http://web/");
/// # Ok::<_, serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(description = "The subscribers of the object.")]
pub struct SubscribableSpec {
    /// The subscribers, one of each uid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub subscribers: Vec<SubscriberSpec>,
}

/// One subscriber. At least one of `subscriber_uri` and `reply_uri` is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "One subscriber.")]
pub struct SubscriberSpec {
    /// The uid of the object from which the subscriber originates, such as a Subscription.
    #[serde(default)]
    pub uid: String,
    /// The generation of that object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The URL of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<Url>,
    /// The certificate authorities of the subscriber in PEM.
    #[serde(rename = "subscriberCACerts", default, skip_serializing_if = "Option::is_none")]
    pub subscriber_ca_certs: Option<String>,
    /// The OIDC audience of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_audience: Option<String>,
    /// The URL for the replies of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_uri: Option<Url>,
    /// The certificate authorities for the replies in PEM.
    #[serde(rename = "replyCACerts", default, skip_serializing_if = "Option::is_none")]
    pub reply_ca_certs: Option<String>,
    /// The OIDC audience for the replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_audience: Option<String>,
    /// The options of delivering events to the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The part of a status that reports each subscriber. Embed it with `#[serde(flatten)]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(description = "The state of the subscribers of the object.")]
pub struct SubscribableStatus {
    /// The state of the subscribers, one of each uid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["uid"]))]
    pub subscribers: Vec<SubscriberStatus>,
}

impl SubscribableStatus {
    /// Returns the state of the subscriber with this uid, if it is reported.
    pub fn subscriber(&self, uid: &str) -> Option<&SubscriberStatus> {
        self.subscribers.iter().find(|subscriber| subscriber.uid == uid)
    }
}

/// The state of one subscriber.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(description = "The state of one subscriber.")]
pub struct SubscriberStatus {
    /// The uid of the object from which the subscriber originates.
    #[serde(default)]
    pub uid: String,
    /// The generation of that object, as the channel last observed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// True if events are delivered to the subscriber: True, False or Unknown.
    #[serde(default)]
    #[schemars(with = "String")]
    pub ready: ConditionStatus,
    /// The reason for `ready`, for humans.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The ServiceAccount with which the channel authenticates itself to the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<AuthStatus>,
}
