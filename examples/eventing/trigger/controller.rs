//! The controller of Triggers, which subscribes the filter of a Trigger to the channel of its broker.

use kube::{ResourceExt, api::ObjectMeta};
use reknit::{
    apis::{child_name, service_host_name},
    injection::Verb,
    knative::{AddressResolver, DeliverySpec, DeliveryStatus, Destination, SourceStatus, Url},
    prelude::*,
    reconciler::{Duck, Kinds, OwnedOptions, TrackedAny},
};

use super::{
    super::{
        broker::{
            ADDRESSABLE, BrokerSpec, BrokerStatus, CHANNEL_API_VERSION, CHANNEL_BASED, CHANNEL_KIND,
            CHANNEL_NAME, CLASS,
        },
        subscription::{Subscription, SubscriptionSpec},
    },
    Trigger, TriggerStatus,
};

/// A broker of any Kind.
type AnyBroker = Duck<BrokerStatus, BrokerSpec>;
/// A source of any Kind.
type AnySource = Duck<SourceStatus>;

/// The resources of brokers, and of the sources on which a Trigger can depend with the generated role. For other
/// sources, bind another role to the service account.
const OBJECTS: [(&str, &str); 2] =
    [("eventing.knative.dev", "brokers"), ("sources.knative.dev", "containersources")];

/// Reconciles Triggers, and tracks what they refer to. They own Subscriptions.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Trigger>(cx);
    let verbs = [Verb::Get, Verb::Create, Verb::Patch, Verb::Delete];
    let reconciler = Reconciler {
        objects: build.track_any(Kinds::of(OBJECTS).or_any()),
        resolver: AddressResolver::new(build.track_any(Kinds::of(ADDRESSABLE).or_any())),
        subscriptions: build.owns_with(OwnedOptions::default().verbs(verbs)),
        filter_host: service_host_name("broker-filter", cx.system_namespace().unwrap_or("knative-eventing")),
    };
    Ok(build.reconciler(reconciler).build())
}

struct Reconciler {
    objects: TrackedAny,
    resolver: AddressResolver,
    subscriptions: Owned<Subscription>,
    /// The host of the program that filters events.
    filter_host: String,
}

impl ReconcileKind for Reconciler {
    type Kind = Trigger;

    async fn reconcile_kind(&self, trigger: &Trigger, status: &mut TriggerStatus) -> Result<Outcome> {
        let Some(broker) = self.broker(trigger, status).await? else { return Ok(Outcome::done()) };
        if broker.annotations().get(CLASS).map(String::as_str) != Some(CHANNEL_BASED) {
            return Ok(Outcome::skip());
        }
        if !propagate_broker(&broker, status) {
            return Ok(Outcome::done());
        }
        let channel = channel_of(&broker).ok_or("Broker.Status.Annotations nil or missing values");
        let channel = channel.inspect_err(|why| {
            let message = format!("Failed to get broker {:?} annotations: {why}", broker.name_any());
            Trigger::CONDITIONS.manage(status).mark_false("BrokerReady", "MissingBrokerChannel", message);
        })?;
        self.resolve_subscriber(trigger, status).await?;
        self.resolve_dead_letter_sink(trigger, &broker, status).await?;
        self.subscribe(trigger, &broker, channel, status).await?;
        self.check_dependency(trigger, status).await?;
        Ok(Outcome::done())
    }
}

impl Reconciler {
    /// Returns the broker. If it does not exist, the condition says so, and its creation enqueues the Trigger.
    async fn broker(&self, trigger: &Trigger, status: &mut TriggerStatus) -> Result<Option<AnyBroker>> {
        let reference = trigger.broker();
        let found = self.objects.get_as::<AnyBroker>(trigger, &reference).await;
        let (reason, message) = match &found {
            Ok(Some(_)) => return found,
            Ok(None) => ("BrokerDoesNotExist", format!("Broker {:?} does not exist", reference.name)),
            Err(error) => {
                let message = format!("Failed to get broker {:?} : {}", reference.name, error.in_full());
                ("FailedToGetBroker", message)
            }
        };
        Trigger::CONDITIONS.manage(status).mark_false("BrokerReady", reason, message);
        found
    }

    async fn resolve_subscriber(&self, trigger: &Trigger, status: &mut TriggerStatus) -> Result<()> {
        let resolved = self.resolver.resolve(trigger, &trigger.spec.subscriber).await;
        let address = resolved.as_ref().ok().cloned().unwrap_or_default();
        (status.subscriber_uri, status.subscriber_ca_certs) = (address.url, address.ca_certs);
        let mut conditions = Trigger::CONDITIONS.manage(status);
        match resolved {
            Ok(_) => conditions.mark_true("SubscriberResolved"),
            Err(error) => {
                let reason = "Unable to get the Subscriber's URI";
                conditions.mark_false("SubscriberResolved", reason, error.in_full());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Resolves the dead letter sink of the Trigger, or else takes over that of the broker.
    async fn resolve_dead_letter_sink(
        &self,
        trigger: &Trigger,
        broker: &AnyBroker,
        status: &mut TriggerStatus,
    ) -> Result<()> {
        const CONDITION: &str = "DeadLetterSinkResolved";
        status.delivery = DeliveryStatus::default();
        if let Some(sink) = dead_letter_sink(trigger.spec.delivery.as_ref()) {
            let resolved = self.resolver.resolve(trigger, sink).await.inspect_err(|error| {
                let reason = "Unable to get the dead letter sink's URI";
                Trigger::CONDITIONS.manage(status).mark_false(CONDITION, reason, error.in_full());
            })?;
            status.delivery = resolved.into();
        } else if dead_letter_sink(broker.spec.delivery.as_ref()).is_none() {
            let message = "No dead letter sink is configured.";
            let mut conditions = Trigger::CONDITIONS.manage(status);
            conditions.mark_true_with_reason(CONDITION, "DeadLetterSinkNotConfigured", message);
            return Ok(());
        } else if broker.status.delivery.dead_letter_sink_uri.is_none() {
            let reason = format!("Broker {} didn't set status.deadLetterSinkURI", broker.name_any());
            Trigger::CONDITIONS.manage(status).mark_false(CONDITION, &reason, "");
            return Err(Error::permanent(reason));
        } else {
            status.delivery = broker.status.delivery.clone();
        }
        Trigger::CONDITIONS.manage(status).mark_true(CONDITION);
        Ok(())
    }

    /// Applies the Subscription. Its channel is immutable, so a Subscription to another channel is replaced.
    async fn subscribe(
        &self,
        trigger: &Trigger,
        broker: &AnyBroker,
        channel: KReference,
        status: &mut TriggerStatus,
    ) -> Result<()> {
        let desired = new_subscription(trigger, broker, channel.clone(), &self.filter_host)?;
        let name = desired.name_any();
        let has_other_channel = |existing: &Subscription| existing.spec.channel != channel;
        let applied = self.subscriptions.apply_or_replace(trigger, desired, has_other_channel).await;
        let mut conditions = Trigger::CONDITIONS.manage(status);
        match &applied {
            Ok(subscription) => {
                match subscription.status.as_ref().and_then(|one| one.duck.condition("Ready")) {
                    Some(ready) => conditions.propagate("SubscriptionReady", ready),
                    None => {
                        let message = "Subscription has not yet been reconciled.";
                        conditions.mark_unknown("SubscriptionReady", "SubscriptionNotConfigured", message);
                    }
                }
            }
            Err(NotApplied::Taken { .. }) => {
                let message = format!("trigger {:?} does not own subscription {name:?}", trigger.name_any());
                conditions.mark_false("SubscriptionReady", "SubscriptionNotOwnedByTrigger", message);
            }
            Err(error) => conditions.mark_false("SubscriptionReady", "NotSubscribed", error.to_string()),
        }
        applied?;
        Ok(())
    }

    /// Takes over the readiness of the source that the annotation names.
    async fn check_dependency(&self, trigger: &Trigger, status: &mut TriggerStatus) -> Result<()> {
        const CONDITION: &str = "DependencyReady";
        let Some(reference) = trigger.dependency() else {
            Trigger::CONDITIONS.manage(status).mark_true(CONDITION);
            return Ok(());
        };
        let reference = match reference {
            Ok(reference) => reference,
            Err(error) => {
                let message = format!(
                    "Unable to unmarshal objectReference from dependency annotation of trigger: {error}"
                );
                Trigger::CONDITIONS.manage(status).mark_false(CONDITION, "ReferenceError", message);
                return Err(error).context("getting object ref from dependency annotation").permanent();
            }
        };
        let found = self.objects.get_as::<AnySource>(trigger, &reference).await;
        let mut conditions = Trigger::CONDITIONS.manage(status);
        let source = match found {
            Ok(Some(source)) => source,
            Ok(None) => {
                let message = format!("Dependency does not exist: {reference} was not found");
                conditions.mark_false(CONDITION, "DependencyDoesNotExist", message);
                return Ok(());
            }
            Err(error) => {
                let message = format!("Failed to get dependency: {}", error.in_full());
                conditions.mark_unknown(CONDITION, "DependencyGetFailed", message);
                return Err(error.context("propagating dependency readiness"));
            }
        };
        let (generation, observed) = (source.metadata.generation, source.status.duck.observed_generation);
        match source.status.duck.condition("Ready") {
            _ if generation.unwrap_or_default() != observed.unwrap_or_default() => {
                let message = format!(
                    "The dependency's metadata.generation, {:?}, is not equal to its status.observedGeneration, {:?}.",
                    generation.unwrap_or_default(),
                    observed.unwrap_or_default(),
                );
                conditions.mark_unknown(CONDITION, "GenerationNotEqual", message);
            }
            Some(ready) => conditions.propagate(CONDITION, ready),
            None => {
                let message = "Dependency has not yet been reconciled.";
                conditions.mark_unknown(CONDITION, "DependencyNotConfigured", message);
            }
        }
        Ok(())
    }
}

/// Takes over the readiness of the broker. Returns true if the broker is ready.
fn propagate_broker(broker: &AnyBroker, status: &mut TriggerStatus) -> bool {
    let mut conditions = Trigger::CONDITIONS.manage(status);
    match broker.status.duck.condition("Ready") {
        Some(ready) => {
            conditions.propagate("BrokerReady", ready);
            ready.is_true()
        }
        None => {
            let message = "Broker has not yet been reconciled.";
            conditions.mark_unknown("BrokerReady", "BrokerNotConfigured", message);
            false
        }
    }
}

/// The channel in the annotations of the broker's status.
fn channel_of(broker: &AnyBroker) -> Option<KReference> {
    let value = |key| broker.status.duck.annotations.get(key).filter(|value| !value.is_empty()).cloned();
    Some(KReference {
        api_version: value(CHANNEL_API_VERSION)?,
        kind: value(CHANNEL_KIND)?,
        name: value(CHANNEL_NAME)?,
        ..KReference::default()
    })
}

fn dead_letter_sink(delivery: Option<&DeliverySpec>) -> Option<&Destination> {
    delivery?.dead_letter_sink.as_ref()
}

/// The Subscription that sends the events of the channel to the filter, and the subscriber's replies to the broker.
fn new_subscription(
    trigger: &Trigger,
    broker: &AnyBroker,
    channel: KReference,
    filter_host: &str,
) -> Result<Subscription> {
    let (name, namespace) = (trigger.name_any(), trigger.namespace().unwrap_or_default());
    let uid = trigger.uid().unwrap_or_default();
    let filter = Url::http(filter_host).resolve(&format!("/triggers/{namespace}/{name}/{uid}").parse()?);
    let spec = SubscriptionSpec {
        channel,
        subscriber: Some(Destination { uri: Some(filter), ..Destination::default() }),
        reply: Some(KReference { namespace: None, ..broker.reference() }.into()),
        delivery: trigger.spec.delivery.clone().or_else(|| broker.spec.delivery.clone()),
    };
    let labels =
        [("eventing.knative.dev/broker", broker.name_any()), ("eventing.knative.dev/trigger", name.clone())];
    let metadata = ObjectMeta {
        name: Some(child_name(&format!("{}-{name}", broker.name_any()), &format!("-{uid}"))),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        ..ObjectMeta::default()
    };
    Ok(Subscription { metadata, spec, status: None })
}
