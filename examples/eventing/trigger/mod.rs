//! The Trigger Kind, and the rules of its spec.

mod controller;

use std::{borrow::Cow, collections::BTreeMap};

use kube::{CustomResource, ResourceExt};
use reknit::{
    knative::{DeliverySpec, DeliveryStatus, Destination, Url},
    prelude::*,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::controller::controller;

/// The annotation with a reference, in JSON, to the source on which a Trigger depends.
const DEPENDENCY: &str = "knative.dev/dependency";

/// Sends the events of a broker that pass a filter to a subscriber.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, PartialEq, JsonSchema)]
#[kube(
    group = "eventing.knative.dev",
    version = "v1",
    kind = "Trigger",
    doc = "Sends the events of a broker that pass a filter to a subscriber.",
    namespaced,
    status = "TriggerStatus",
    validation = Rule::new("self.spec.broker == oldSelf.spec.broker").message("spec.broker is immutable"),
    printcolumn = r#"{"name": "Broker", "type": "string", "jsonPath": ".spec.broker"}"#,
    printcolumn = r#"{"name": "Subscriber_URI", "type": "string", "jsonPath": ".status.subscriberUri"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].reason"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TriggerSpec {
    /// The name of the Broker. The default is `default`. Empty if `brokerRef` names the broker. It cannot be changed.
    #[serde(default)]
    pub broker: String,
    /// The broker, which may be of another Kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_ref: Option<KReference>,
    /// The filter. Without one, all events pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<TriggerFilter>,
    /// The destination of the events.
    pub subscriber: Destination,
    /// The options of delivering events. The default is those of the broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliverySpec>,
}

/// The events that pass.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
pub struct TriggerFilter {
    /// The attributes that an event must have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// The state of the Trigger.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TriggerStatus {
    /// The conditions and the observed generation.
    #[serde(flatten)]
    pub duck: DuckStatus,
    /// The address of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriber_uri: Option<Url>,
    /// The certificate authorities of the subscriber in PEM.
    #[serde(rename = "subscriberCACerts", default, skip_serializing_if = "Option::is_none")]
    pub subscriber_ca_certs: Option<String>,
    /// The address of events that could not be delivered.
    #[serde(flatten)]
    pub delivery: DeliveryStatus,
}

kind!(Trigger {
    status: TriggerStatus,
    conditions: knative(
        duck,
        [
            "BrokerReady",
            "SubscriptionReady",
            "DependencyReady",
            "SubscriberResolved",
            "DeadLetterSinkResolved"
        ]
    ),
    defaults: |trigger| {
        let namespace = trigger.metadata.namespace.clone().unwrap_or_default();
        let spec = &mut trigger.spec;
        if spec.broker.is_empty() && spec.broker_ref.is_none() {
            spec.broker = "default".into();
        }
        spec.subscriber.set_defaults(&namespace);
        spec.delivery.iter_mut().for_each(|delivery| delivery.set_defaults(&namespace));
    },
});

impl Validatable for Trigger {
    fn validate(&self, _: &Request) -> FieldError {
        let spec = &self.spec;
        let broker = match (&spec.broker_ref, spec.broker.as_str()) {
            (None, "") => FieldError::missing_one_of(["broker", "brokerRef"]),
            (Some(_), broker) if !broker.is_empty() => FieldError::multiple_one_of(["broker", "brokerRef"]),
            (Some(reference), _) => reference.validate().via_field("brokerRef"),
            (None, _) => FieldError::none(),
        };
        let delivery = spec.delivery.as_ref().map(DeliverySpec::validate).unwrap_or_default();
        let spec = broker
            .also(validate_filter(spec.filter.as_ref()).via_field("filter"))
            .also(spec.subscriber.validate().via_field("subscriber"))
            .also(delivery.via_field("delivery"));
        spec.via_field("spec").also(self.validate_dependency())
    }
}

/// Names of attributes consist of lower-case letters and digits, and start with a letter.
fn validate_filter(filter: Option<&TriggerFilter>) -> FieldError {
    let is_valid = |name: &&String| {
        name.starts_with(|first: char| first.is_ascii_lowercase())
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let names = filter.into_iter().flat_map(|filter| filter.attributes.keys());
    names.filter(|name| !is_valid(name)).fold(FieldError::none(), |errors, name| {
        errors.also(FieldError::generic(format!("Invalid attribute name: {name:?}"), ["attributes"]))
    })
}

impl Trigger {
    /// The broker that the spec names.
    fn broker(&self) -> Cow<'_, KReference> {
        match &self.spec.broker_ref {
            Some(reference) => Cow::Borrowed(reference),
            None => Cow::Owned(KReference {
                api_version: "eventing.knative.dev/v1".into(),
                kind: "Broker".into(),
                name: self.spec.broker.clone(),
                ..KReference::default()
            }),
        }
    }

    /// The source in the annotation, if there is one.
    fn dependency(&self) -> Option<serde_json::Result<KReference>> {
        self.annotations().get(DEPENDENCY).map(|json| serde_json::from_str(json))
    }

    fn validate_dependency(&self) -> FieldError {
        let error = match self.dependency() {
            None => FieldError::none(),
            Some(Ok(dependency)) => {
                dependency.validate_within(self.metadata.namespace.as_deref().unwrap_or_default())
            }
            Some(Err(error)) => {
                let json = &self.annotations()[DEPENDENCY];
                let message = format!("The provided annotation was not a corev1.ObjectReference: {json:?}");
                FieldError::generic(message, [""]).details(error.to_string())
            }
        };
        error.via_field(&format!("metadata.annotations[{DEPENDENCY}]"))
    }
}
