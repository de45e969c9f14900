//! Passes of the controller of Sequences.

use kube::api::DynamicObject;
use reknit::{
    injection::Permission,
    prelude::*,
    testing::{Verb, Want, each_permission_is_needed, given, nothing, table},
};
use serde_json::{Value, json};

use super::{
    children::{Children, KEY, child_key, child_name, one_step, sequence_of, step, three_steps, two_steps},
    conditions::{applied, channels_failed, ready, subscriptions_failed},
};
use crate::{
    permissions::failed_status_writes,
    support::sequence::{
        channel,
        program::{ChannelTemplate, InMemoryChannel, Sequence, Subscription, sequences},
        subscription,
    },
};

fn channel_ref(name: &str) -> Value {
    json!({"apiVersion": "messaging.knative.dev/v1", "kind": "InMemoryChannel", "name": name})
}

/// A reply to a channel, which the Sequence has and its last Subscription must get.
fn reply() -> Value {
    let mut channel = channel_ref("reply-channel");
    channel["namespace"] = json!("test-namespace");
    json!({"ref": channel})
}

fn with_reply(mut sequence: Sequence) -> Sequence {
    sequence.spec.reply = serde_json::from_value(reply()).unwrap();
    sequence
}

/// The expected Subscription of a step, with this subscriber and this reply.
fn subscription_of(number: usize, subscriber: Value, reply: Value) -> Subscription {
    let name = child_name(number);
    subscription(&name, json!({"channel": channel_ref(&name), "subscriber": subscriber, "reply": reply}))
}

/// The reply of a step that is not the last: the next channel.
fn next_channel(number: usize) -> Value {
    json!({"ref": channel_ref(&child_name(number + 1))})
}

/// A pass that applies the channels of the Sequence.
fn want_channels(want: Want, sequence: &Sequence) -> Want {
    let steps = 0..sequence.spec.steps.len();
    steps.fold(want, |want, step| want.child(sequence, &channel(&child_name(step))))
}

/// A pass that applies the channels and the Subscriptions. The last Subscription has this reply.
fn want_children(want: Want, sequence: &Sequence, last_reply: Value) -> Want {
    let count = sequence.spec.steps.len();
    let reply = |number| if number + 1 < count { next_channel(number) } else { last_reply.clone() };
    (0..count).fold(want_channels(want, sequence), |want, number| {
        want.child(sequence, &subscription_of(number, step(number), reply(number)))
    })
}

/// A pass that fails with this message.
fn want_failure(message: &str) -> Want {
    Want::error(message).event(Event::warning("InternalError", message))
}

#[tokio::test]
async fn channels_and_subscriptions_are_created() {
    let mut deleted = one_step();
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let (one, two, three) = (one_step(), two_steps(), three_steps());
    let (one_and_reply, three_and_reply) = (with_reply(one_step()), with_reply(three_steps()));
    table(sequences)
        .row("a Sequence that does not exist", "foo/not-found", nothing(), Want::skip())
        .row("a Sequence that is being deleted", KEY, given(deleted), Want::skip())
        .row(
            "one step",
            KEY,
            given(one.clone()),
            want_children(Want::done(), &one, Value::Null).status(&applied(one)),
        )
        .row(
            "two steps",
            KEY,
            given(two.clone()),
            want_children(Want::done(), &two, Value::Null).status(&applied(two)),
        )
        .row(
            "three steps",
            KEY,
            given(three.clone()),
            want_children(Want::done(), &three, Value::Null).status(&applied(three)),
        )
        .row(
            "one step and a reply",
            KEY,
            given(one_and_reply.clone()),
            want_children(Want::done(), &one_and_reply, reply()).status(&applied(one_and_reply)),
        )
        .row(
            "three steps and a reply",
            KEY,
            given(three_and_reply.clone()),
            want_children(Want::done(), &three_and_reply, reply()).status(&applied(three_and_reply)),
        )
        .run()
        .await;
}

/// The message of a step's channel that could not be applied.
fn channel_failure(step: usize) -> String {
    let (name, key) = (child_name(step), child_key(step));
    format!(
        "failed to reconcile channel {name} at step {step}: cannot apply InMemoryChannel {key}: \
         inducing failure for patch inmemorychannels (500 InternalError)"
    )
}

/// The message of a step's Subscription that could not be reconciled.
fn subscription_failure(step: usize, cause: &str) -> String {
    format!("failed to reconcile subscription resource for step: {step}: {cause}")
}

fn subscription_not_applied(step: usize, verb: &str) -> String {
    let cause = format!("inducing failure for {verb} subscriptions (500 InternalError)");
    subscription_failure(step, &format!("cannot apply Subscription {}: {cause}", child_key(step)))
}

#[tokio::test]
async fn a_failed_request_is_reported_by_the_condition_of_its_kind() {
    let one = one_step();
    let not_deleted = subscription_not_applied(0, "delete");
    // A Subscription to a channel of another Kind has to be replaced.
    let mut outdated = Children::of(&one).await.subscriptions.remove(0);
    outdated.spec.channel.kind = "OtherKindOfChannel".into();
    table(sequences)
        .row(
            "a channel cannot be created",
            KEY,
            given(one.clone()).failing(Verb::Patch, "inmemorychannels", 500),
            want_channels(want_failure(&channel_failure(0)), &one)
                .status(&channels_failed(one.clone(), &channel_failure(0))),
        )
        .row(
            "a Subscription cannot be created",
            KEY,
            given(one.clone()).failing(Verb::Patch, "subscriptions", 500),
            want_children(want_failure(&subscription_not_applied(0, "patch")), &one, Value::Null)
                .status(&subscriptions_failed(one.clone(), &subscription_not_applied(0, "patch"))),
        )
        .row(
            "a Subscription to another channel cannot be deleted",
            KEY,
            given(one.clone()).and(outdated.clone()).failing(Verb::Delete, "subscriptions", 500),
            want_channels(want_failure(&not_deleted), &one)
                .delete::<Subscription>(&child_key(0))
                .status(&subscriptions_failed(one.clone(), &not_deleted)),
        )
        .row(
            "a Subscription to another channel is deleted, and cannot be created again",
            KEY,
            given(one.clone()).and(outdated.clone()).failing(Verb::Patch, "subscriptions", 500),
            want_channels(want_failure(&subscription_not_applied(0, "patch")), &one)
                .delete::<Subscription>(&child_key(0))
                .child(&one, &subscription_of(0, step(0), Value::Null))
                .status(&subscriptions_failed(one.clone(), &subscription_not_applied(0, "patch"))),
        )
        .row(
            "a Subscription to another channel is deleted and created again",
            KEY,
            given(one.clone()).and(outdated),
            want_channels(Want::done(), &one)
                .delete::<Subscription>(&child_key(0))
                .child(&one, &subscription_of(0, step(0), Value::Null))
                .status(&applied(one)),
        )
        .run()
        .await;
}

#[tokio::test]
async fn a_changed_step_changes_its_subscription_only() {
    let before = Children::of(&three_steps()).await;
    let changed = sequence_of(json!([step(0), step(7), step(2)]));
    let given = before.given_with(changed.clone());
    given.reconcile(sequences, KEY).await.check(
        Want::done().child(&changed, &subscription_of(1, step(7), next_channel(1))).status(&applied(changed)),
    );
}

#[tokio::test]
async fn the_children_of_removed_steps_are_deleted() {
    let three = Children::of(&three_steps()).await;
    let two = two_steps();
    // The reply of the second Subscription was the third channel, so it is removed.
    let shortened = |want: Want| want.child(&two, &subscription_of(1, step(1), Value::Null));
    let channel_not_deleted = "inducing failure for delete inmemorychannels (500 InternalError)";
    let subscription_not_deleted = "inducing failure for delete subscriptions (500 InternalError)";
    table(sequences)
        .row(
            "a step is removed",
            KEY,
            three.given_with(two.clone()),
            shortened(Want::done())
                .delete::<InMemoryChannel>(&child_key(2))
                .delete::<Subscription>(&child_key(2))
                .status(&applied(two.clone())),
        )
        .row(
            "the channel of a removed step cannot be deleted",
            KEY,
            three.given_with(two.clone()).failing(Verb::Delete, "inmemorychannels", 500),
            shortened(want_failure(channel_not_deleted))
                .delete::<InMemoryChannel>(&child_key(2))
                .status(&applied(two.clone())),
        )
        .row(
            "the Subscription of a removed step cannot be deleted",
            KEY,
            three.given_with(two.clone()).failing(Verb::Delete, "subscriptions", 500),
            shortened(want_failure(subscription_not_deleted))
                .delete::<InMemoryChannel>(&child_key(2))
                .delete::<Subscription>(&child_key(2))
                .status(&applied(two.clone())),
        )
        .run()
        .await;
}

/// The template of another channel Kind, with a spec.
fn other_template() -> ChannelTemplate {
    let template = json!({
        "apiVersion": "messaging.knative.dev/v1", "kind": "OtherChannel", "spec": {"partitions": {"count": 3}},
    });
    serde_json::from_value(template).unwrap()
}

/// The permission that a cluster with the other channel Kind grants by a role of its own.
fn other_channels() -> Permission {
    Permission::new("messaging.knative.dev", "otherchannels", [Verb::Get, Verb::Create, Verb::Patch])
}

/// The expected channel of another Kind.
fn other_channel(step: usize) -> DynamicObject {
    let channel = json!({
        "apiVersion": "messaging.knative.dev/v1", "kind": "OtherChannel",
        "metadata": {"namespace": "test-namespace", "name": child_name(step)},
        "spec": {"partitions": {"count": 3}},
    });
    serde_json::from_value(channel).unwrap()
}

#[tokio::test]
async fn a_sequence_with_ready_children_is_ready_and_has_the_address_of_its_first_channel() {
    let children = Children::of(&three_steps()).await.ready();
    let first = children.given_with(three_steps()).reconcile(sequences, KEY).await;
    first.check(Want::done().status(&ready(three_steps())));
    let after = first.object::<Sequence>(KEY).unwrap();
    children.given_with(after).reconcile(sequences, KEY).await.check(Want::done());
}

#[tokio::test]
async fn a_changed_template_replaces_the_channels_and_subscriptions() {
    let before = Children::of(&one_step()).await;
    let mut changed = applied(one_step());
    changed.spec.channel_template = Some(other_template());
    let pass = before.given_with(changed).allowing(other_channels()).reconcile(sequences, KEY).await;
    assert!(pass.result.is_ok());
    let key = child_key(0);
    let expected = [
        format!("delete inmemorychannels {key}"),
        format!("patch otherchannels {key}"),
        format!("delete subscriptions {key}"),
        format!("patch subscriptions {key}"),
        format!("patch sequences/status {KEY}"),
    ];
    assert_eq!(pass.writes(), expected);
    assert_eq!(pass.write(1).body["spec"], other_channel(0).data["spec"]);
    assert_eq!(pass.object::<Subscription>(&key).unwrap().spec.channel.kind, "OtherChannel");
    let status = pass.object::<Sequence>(KEY).unwrap().status.unwrap();
    assert_eq!(status.channel_statuses[0].channel.kind, "OtherChannel");
}

#[tokio::test]
async fn a_changed_spec_of_the_template_is_applied_to_the_channels() {
    let mut sequence = one_step();
    sequence.spec.channel_template = Some(other_template());
    let first = given(sequence.clone()).allowing(other_channels()).reconcile(sequences, KEY).await;
    let stored: DynamicObject = serde_json::from_value(first.write(0).body.clone()).unwrap();
    let subscription = first.object::<Subscription>(&child_key(0)).unwrap();

    let template = sequence.spec.channel_template.as_mut().unwrap();
    template.spec.insert("partitions".into(), json!({"count": 5}));
    let second = given(sequence).and(stored).and(subscription).allowing(other_channels());
    let second = second.reconcile(sequences, KEY).await;
    let expected = [format!("patch otherchannels {}", child_key(0)), format!("patch sequences/status {KEY}")];
    assert_eq!(second.writes(), expected);
    assert_eq!(second.write(0).body["spec"], json!({"partitions": {"count": 5}}));
}

#[tokio::test]
async fn a_channel_or_subscription_of_another_owner_is_reported_and_not_changed() {
    let mut foreign_channel = channel(&child_name(0));
    foreign_channel.metadata.namespace = Some("test-namespace".into());
    let mut foreign_subscription = subscription_of(0, step(5), Value::Null);
    foreign_subscription.metadata.namespace = Some("test-namespace".into());
    let one = one_step();
    for (given, condition, writes) in [
        (given(one.clone()).and(foreign_channel), "ChannelsReady", 1),
        (given(one).and(foreign_subscription), "SubscriptionsReady", 2),
    ] {
        let pass = given.reconcile(sequences, KEY).await;
        assert_eq!(pass.writes().len(), writes, "{:?}", pass.writes());
        let status = pass.object::<Sequence>(KEY).unwrap().status.unwrap();
        let message = status.duck.condition(condition).unwrap().message.clone().unwrap();
        assert!(message.contains("exists"), "{message}");
    }
}

#[tokio::test]
async fn the_delivery_options_of_a_step_are_those_of_its_subscription() {
    let sink = json!({"ref": channel_ref("dead-letters")});
    let mut with_delivery = step(1);
    with_delivery["delivery"] = json!({"deadLetterSink": sink, "retry": 3});
    let pass = given(sequence_of(json!([step(0), with_delivery, step(2)]))).reconcile(sequences, KEY).await;
    let delivery_of =
        |step| json!(pass.object::<Subscription>(&child_key(step)).unwrap())["spec"]["delivery"].clone();
    assert_eq!((delivery_of(0), delivery_of(2)), (Value::Null, Value::Null));
    assert_eq!(delivery_of(1)["retry"], 3);
    // The namespace is a default.
    assert_eq!(delivery_of(1)["deadLetterSink"]["ref"]["namespace"], "test-namespace");
}

#[tokio::test]
async fn channels_are_kept_if_only_the_version_of_their_kind_changes() {
    let before = Children::of(&one_step()).await;
    let mut changed = applied(one_step());
    let mut template = changed.spec.channel_template();
    template.api_version = "messaging.knative.dev/v1beta1".into();
    changed.spec.channel_template = Some(template);
    let pass = before.given_with(changed).reconcile(sequences, KEY).await;
    assert!(pass.result.is_ok(), "{:?}", pass.result);
    let writes = pass.writes();
    assert!(!writes.contains(&format!("delete inmemorychannels {}", child_key(0))), "{writes:?}");
}

#[tokio::test]
async fn each_declared_permission_is_needed() {
    let before = Children::of(&two_steps()).await;
    each_permission_is_needed(|| {
        failed_status_writes(sequences, "sequences", KEY, || given(one_step())).unchecked_row(
            "the children of a removed step are deleted",
            KEY,
            before.given_with(one_step()),
        )
    })
    .await;
}
