//! The channels and Subscriptions that a pass makes for a Sequence.

use kube::ResourceExt;
use reknit::testing::{Given, given};
use serde_json::{Value, json};

use crate::support::sequence::{
    program::{InMemoryChannel, Sequence, Subscription, sequences},
    sequence,
};

pub(super) const KEY: &str = "test-namespace/test-sequence";

/// The Sequence with these steps, and the default channel template.
pub(super) fn sequence_of(steps: Value) -> Sequence {
    let mut object = sequence("test-sequence", json!({"steps": steps}));
    object.metadata.namespace = Some("test-namespace".into());
    object.metadata.uid = Some("uid-of-test-sequence".into());
    object.metadata.generation = Some(7);
    object
}

/// The step with this number, at a URL of its own.
pub(super) fn step(number: usize) -> Value {
    json!({"uri": format!("http://example.com/{number}")})
}

pub(super) fn one_step() -> Sequence {
    sequence_of(json!([step(0)]))
}

pub(super) fn two_steps() -> Sequence {
    sequence_of(json!([step(0), step(1)]))
}

pub(super) fn three_steps() -> Sequence {
    sequence_of(json!([step(0), step(1), step(2)]))
}

/// The name of a step's channel and Subscription.
pub(super) fn child_name(step: usize) -> String {
    format!("test-sequence-kn-sequence-{step}")
}

pub(super) fn child_key(step: usize) -> String {
    format!("test-namespace/{}", child_name(step))
}

/// The children of a Sequence.
#[derive(Clone)]
pub(super) struct Children {
    pub(super) channels: Vec<InMemoryChannel>,
    pub(super) subscriptions: Vec<Subscription>,
}

impl Children {
    /// The children that the first pass of this Sequence makes.
    pub(super) async fn of(sequence: &Sequence) -> Self {
        let effects = given(sequence.clone()).reconcile(sequences, KEY).await;
        let keys: Vec<String> = (0..sequence.spec.steps.len()).map(child_key).collect();
        Self {
            channels: keys.iter().filter_map(|key| effects.object(key)).collect(),
            subscriptions: keys.iter().filter_map(|key| effects.object(key)).collect(),
        }
    }

    /// The same children after their own controllers have reconciled them.
    pub(super) fn ready(mut self) -> Self {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        for channel in &mut self.channels {
            let url = format!("http://{}", channel.name_any());
            let status = json!({"conditions": conditions, "address": {"url": url}});
            channel.status = serde_json::from_value(status).unwrap();
        }
        for subscription in &mut self.subscriptions {
            subscription.status = serde_json::from_value(json!({"conditions": conditions})).unwrap();
        }
        self
    }

    /// A state with this Sequence and these children.
    pub(super) fn given_with(&self, sequence: Sequence) -> Given {
        let given = self.channels.iter().cloned().fold(given(sequence), Given::and);
        self.subscriptions.iter().cloned().fold(given, Given::and)
    }
}
