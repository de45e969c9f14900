//! A simulation of all controllers of eventing.

use std::time::Duration;

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Service};
use kube::CustomResourceExt;
use reknit::apis::kubernetes_schema;
use reknit::simulation::{Cluster, Simulation, deployments_roll_out, simulation};
use serde_json::json;

use super::stored;
use crate::support::eventing::{
    container_source, object,
    program::{
        Broker, ContainerSource, InMemoryChannel, SinkBinding, Subscription, Trigger, brokers, channels,
        container_sources, sink_bindings, subscriptions, triggers,
    },
    trigger,
};

fn create_broker(cluster: &mut Cluster) {
    let annotations = json!({"eventing.knative.dev/broker.class": "MTChannelBasedBroker"});
    let metadata = json!({"name": "default", "namespace": "shop", "annotations": annotations});
    cluster.create(object::<Broker>(json!({"metadata": metadata, "spec": {}})));
}

/// A source and a Trigger, before their Service and Broker exist. Another source is deleted.
fn sources_and_triggers() -> Simulation {
    let secs = Duration::from_secs;
    let web = json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": "web", "namespace": "shop"}});
    let source = stored(container_source("clock", web.clone()));
    let short_lived = stored(container_source("short-lived", json!({"uri": "http://sink/"})));
    let orders = stored(trigger("orders", json!({"broker": "default", "subscriber": web})));
    let container = json!({"name": "source", "image": "example.com/source:2"});
    let new_image = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
    let service = object::<Service>(json!({"metadata": {"name": "web", "namespace": "shop"}}));
    simulation([brokers, channels, container_sources, sink_bindings, subscriptions, triggers])
        .given(kubernetes_schema(Broker::crd()))
        .given(kubernetes_schema(InMemoryChannel::crd()))
        .cluster(deployments_roll_out(secs(2)))
        .at(secs(1), move |cluster| cluster.create(source.clone()))
        .at(secs(2), move |cluster| cluster.create(short_lived.clone()))
        .at(secs(3), move |cluster| cluster.create(orders.clone()))
        .at(secs(10), move |cluster| cluster.create(service.clone()))
        .at(secs(15), create_broker)
        .at(secs(30), move |cluster| cluster.merge::<ContainerSource>("shop/clock", &new_image))
        .at(secs(40), |cluster| cluster.delete::<ContainerSource>("shop/short-lived"))
}

#[test]
fn sources_and_triggers_get_ready_through_faults() {
    sources_and_triggers()
        .finally("the source sends to its sink, and the Trigger subscribes", |cluster| {
            let source: ContainerSource = cluster.get("shop/clock").unwrap();
            let trigger: Trigger = cluster.get("shop/orders").unwrap();
            let statuses = [source.status.unwrap_or_default().duck, trigger.status.unwrap_or_default().duck];
            let is_ready = statuses.iter().all(|status| status.condition("Ready").unwrap().is_true());
            let container =
                json!(cluster.list::<Deployment>())[0]["spec"]["template"]["spec"]["containers"][0].take();
            let pod = (container["image"].as_str(), container["env"][0]["value"].as_str());
            let counts = (cluster.list::<SinkBinding>().len(), cluster.list::<Subscription>().len());
            let expected = (Some("example.com/source:2"), Some("http://web.shop.svc.cluster.local"));
            if is_ready && pod == expected && counts == (1, 1) {
                Ok(())
            } else {
                Err(format!("{pod:?} {statuses:?}"))
            }
        })
        .seeds(1..4)
        .run();
}
