//! Reconciles Sequences: creates a channel in front of each step, and a Subscription that leads from the channel to the
//! step and on to the next channel.

use std::sync::Arc;

use kube::{
    ResourceExt,
    api::{DynamicObject, ObjectMeta},
};
use reknit::{
    injection::Verb,
    prelude::*,
    reconciler::{Kinds, OwnedAny, OwnedOptions},
};
use serde_json::json;

use super::{
    sequence::{ChannelTemplate, Channelable, Sequence, SequenceStatus, SequenceStep},
    subscription::{Subscription, SubscriptionSpec},
};

/// Reconciles Sequences. They own Subscriptions, and channels of any Kind of their group.
pub fn controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<Sequence>(cx);
    let options = OwnedOptions::default().verbs([Verb::Get, Verb::Create, Verb::Patch, Verb::Delete]);
    // For channels of other Kinds, bind another role to the service account.
    let kinds =
        Kinds::of([("messaging.knative.dev", "inmemorychannels")]).or_any_in(["messaging.knative.dev"]);
    let channels = build.owns_any(kinds, options.clone());
    let subscriptions = build.owns_with(options);
    Ok(build.reconciler(Reconciler { channels, subscriptions }).build())
}

struct Reconciler {
    channels: OwnedAny,
    subscriptions: Owned<Subscription>,
}

impl ReconcileKind for Reconciler {
    type Kind = Sequence;

    async fn reconcile_kind(&self, sequence: &Sequence, status: &mut SequenceStatus) -> Result<Outcome> {
        let channels = self.reconcile_channels(sequence, status).await;
        let channels = channels.inspect_err(|error| status.mark_channels_not_ready(error.in_full()))?;
        status.propagate_channel_statuses(&channels);
        let subscriptions = self.reconcile_subscriptions(sequence).await;
        let subscriptions =
            subscriptions.inspect_err(|error| status.mark_subscriptions_not_ready(error.in_full()))?;
        status.propagate_subscription_statuses(&subscriptions);
        self.delete_unwanted_channels(sequence).await?;
        self.delete_unwanted_subscriptions(sequence).await?;
        Ok(Outcome::done())
    }
}

impl Reconciler {
    async fn reconcile_channels(
        &self,
        sequence: &Sequence,
        status: &SequenceStatus,
    ) -> Result<Vec<Channelable>> {
        self.delete_channels_of_other_kinds(sequence, status).await?;
        let channels = self.channels_of_template(sequence).await?;
        let mut reconciled = Vec::new();
        for step in 0..sequence.spec.steps.len() {
            let applied = channels.apply(sequence, new_channel(sequence, step)).await;
            let name = child_name(sequence, step);
            let channel =
                applied.context(format_args!("failed to reconcile channel {name} at step {step}"))?;
            reconciled.push(Channelable::of(&channel)?);
        }
        Ok(reconciled)
    }

    async fn reconcile_subscriptions(&self, sequence: &Sequence) -> Result<Vec<Arc<Subscription>>> {
        let mut reconciled = Vec::new();
        for (number, step) in sequence.spec.steps.iter().enumerate() {
            let subscription =
                self.reconcile_subscription(sequence, new_subscription(sequence, number, step)).await;
            let text = format_args!("failed to reconcile subscription resource for step: {number}");
            reconciled.push(subscription.context(text)?);
        }
        Ok(reconciled)
    }

    /// Applies a Subscription. Its channel is immutable, so a Subscription to another channel is deleted first.
    async fn reconcile_subscription(
        &self,
        sequence: &Sequence,
        desired: Subscription,
    ) -> Result<Arc<Subscription>> {
        let channel = desired.spec.channel.clone();
        let has_other_channel = |existing: &Subscription| existing.spec.channel != channel;
        let applied = self.subscriptions.apply_or_replace(sequence, desired, has_other_channel).await?;
        Ok(applied.into_object())
    }

    /// Deletes the channels whose Kind the template no longer has.
    async fn delete_channels_of_other_kinds(
        &self,
        sequence: &Sequence,
        status: &SequenceStatus,
    ) -> Result<()> {
        let stored = status.channel_statuses.iter().map(|status| &status.channel);
        for channel in self.channels.of(sequence, stored).await? {
            let reference = Channelable::of(&channel)?.reference();
            if !sequence.spec.channel_template().is_of_kind(&reference) {
                let channels = self.channels.kind(sequence, &reference.api_version, &reference.kind).await?;
                channels.delete(&channel).await?;
            }
        }
        Ok(())
    }

    async fn delete_unwanted_channels(&self, sequence: &Sequence) -> Result<()> {
        let channels = self.channels_of_template(sequence).await?;
        for channel in channels.of(sequence).filter(|channel| is_unwanted(sequence, &**channel)) {
            channels.delete(&channel).await?;
        }
        Ok(())
    }

    async fn delete_unwanted_subscriptions(&self, sequence: &Sequence) -> Result<()> {
        let owned = self.subscriptions.of(sequence);
        for subscription in owned.filter(|subscription| is_unwanted(sequence, &**subscription)) {
            self.subscriptions.delete(&subscription).await?;
        }
        Ok(())
    }

    async fn channels_of_template(&self, sequence: &Sequence) -> Result<Owned<DynamicObject>> {
        let template = sequence.spec.channel_template();
        self.channels.kind(sequence, &template.api_version, &template.kind).await
    }
}

/// The name of a step's channel, and of its Subscription.
fn child_name(sequence: &Sequence, step: usize) -> String {
    format!("{}-kn-sequence-{step}", sequence.name_any())
}

/// Returns true if the child belongs to none of the steps and is not being deleted.
fn is_unwanted(sequence: &Sequence, child: &impl ResourceExt) -> bool {
    let mut wanted = (0..sequence.spec.steps.len()).map(|step| child_name(sequence, step));
    child.meta().deletion_timestamp.is_none() && wanted.all(|name| name != child.name_any())
}

fn new_channel(sequence: &Sequence, step: usize) -> DynamicObject {
    DynamicObject {
        types: None,
        metadata: ObjectMeta { name: Some(child_name(sequence, step)), ..ObjectMeta::default() },
        data: json!({"spec": sequence.spec.channel_template().spec}),
    }
}

fn channel_reference(sequence: &Sequence, step: usize) -> KReference {
    let ChannelTemplate { api_version, kind, .. } = sequence.spec.channel_template();
    KReference { api_version, kind, name: child_name(sequence, step), ..KReference::default() }
}

/// The Subscription of a step. Replies go to the next channel, and those of the last step to the Sequence's `reply`.
fn new_subscription(sequence: &Sequence, number: usize, step: &SequenceStep) -> Subscription {
    let is_last = number + 1 == sequence.spec.steps.len();
    let next_channel = || channel_reference(sequence, number + 1).into();
    let spec = SubscriptionSpec {
        channel: channel_reference(sequence, number),
        subscriber: Some(step.subscriber.clone()),
        reply: if is_last { sequence.spec.reply.clone() } else { Some(next_channel()) },
        delivery: step.delivery.clone(),
    };
    Subscription::new(&child_name(sequence, number), spec)
}
