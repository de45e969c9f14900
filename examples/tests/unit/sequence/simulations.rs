//! Simulations of Sequences, with their channels and Subscriptions.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::CustomResourceExt;
use reknit::apis::kubernetes_schema;
use reknit::simulation::{Cluster, Simulation, simulation};
use serde_json::{Value, json};

use super::children::{KEY, sequence_of, step};
use crate::support::sequence::program::{
    InMemoryChannel, Sequence, Subscription, channels, sequences, subscriptions,
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A step at a Service, which exists from the tenth second on.
fn at_service() -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": "test-namespace"}})
}

fn create_service(cluster: &mut Cluster) {
    let service = json!({"metadata": {"name": "web", "namespace": "test-namespace"}});
    cluster.create(serde_json::from_value::<Service>(service).unwrap());
}

/// Sets the steps at this time.
fn steps_at(simulation: Simulation, second: u64, steps: Value) -> Simulation {
    simulation.at(secs(second), move |cluster| {
        cluster.merge::<Sequence>(KEY, &json!({"spec": {"steps": steps}}));
    })
}

/// A Sequence whose steps change, and another one that is deleted.
fn changing_sequence() -> Simulation {
    let mut short_lived = sequence_of(json!([step(0)]));
    short_lived.metadata.name = Some("short-lived".into());
    let simulation = simulation([sequences, subscriptions, channels])
        .given(kubernetes_schema(InMemoryChannel::crd()))
        .at(secs(1), |cluster| cluster.create(sequence_of(json!([step(0), at_service()]))))
        .at(secs(2), move |cluster| cluster.create(short_lived.clone()))
        .at(secs(10), create_service)
        .at(secs(30), |cluster| cluster.delete::<Sequence>("test-namespace/short-lived"));
    let simulation = steps_at(simulation, 25, json!([at_service(), step(1), step(2)]));
    steps_at(simulation, 40, json!([step(2), at_service()])).finally("two steps are ready", |cluster| {
        let status = cluster.get::<Sequence>(KEY).and_then(|sequence| sequence.status).unwrap_or_default();
        let children = (cluster.list::<InMemoryChannel>().len(), cluster.list::<Subscription>().len());
        children == (2, 2) && status.duck.condition("Ready").is_some_and(|ready| ready.is_true())
    })
}

#[test]
fn a_sequence_keeps_its_children_through_faults() {
    changing_sequence().seeds(0..6).run();
}

#[test]
fn a_sequence_of_three_replicas_keeps_its_children_through_faults() {
    changing_sequence().replicas(3).seeds(1..3).run();
}
