//! Simulations of the sample controllers.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Service, ServicePort, ServiceSpec};
use kube::api::ObjectMeta;
use reknit::simulation::{Cluster, Simulation, pods_get_ready, simulation};
use reknit_samples::{
    AddressableService, AddressableServiceSpec, SimpleDeployment, SimpleDeploymentSpec, addressable_service,
    simple_deployment,
};
use serde_json::json;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn deployment(name: &str, replicas: i32) -> SimpleDeployment {
    let spec = SimpleDeploymentSpec { image: "web:1".into(), replicas };
    let mut deployment = SimpleDeployment::new(name, spec);
    deployment.metadata.namespace = Some("shop".into());
    deployment
}

fn service(name: &str) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("shop".into()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            ports: Some(vec![ServicePort { port: 80, ..ServicePort::default() }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn alive_pods(cluster: &Cluster) -> usize {
    cluster.list::<Pod>().iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).count()
}

fn simple_deployment() -> Simulation {
    simulation([simple_deployment::controller])
        .cluster(pods_get_ready(secs(2)))
        .at(secs(1), |cluster| cluster.create(deployment("web", 3)))
        .at(secs(20), |cluster| {
            cluster.merge::<SimpleDeployment>("shop/web", &json!({"spec": {"image": "web:2"}}))
        })
        .at(secs(40), |cluster| {
            cluster.merge::<SimpleDeployment>("shop/web", &json!({"spec": {"replicas": 1}}))
        })
        .finally("one pod of the new image runs", |cluster| {
            let pods = cluster.list::<Pod>();
            let images: Vec<_> =
                pods.iter().filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone()).collect();
            if images == ["web:2"] { Ok(()) } else { Err(format!("the images are {images:?}")) }
        })
        .always("few pods", |cluster| alive_pods(cluster) <= 12)
}

fn addressable_service() -> Simulation {
    simulation([addressable_service::controller])
        .at(secs(1), |cluster| {
            let mut object =
                AddressableService::new("a", AddressableServiceSpec { service_name: "web".into() });
            object.metadata.namespace = Some("shop".into());
            cluster.create(object);
        })
        .at(secs(10), |cluster| cluster.create(service("web")))
        .at(secs(30), |cluster| cluster.delete::<Service>("shop/web"))
        .at(secs(50), |cluster| cluster.create(service("web")))
        .finally("the address is known", |cluster| {
            let object = cluster.get::<AddressableService>("shop/a");
            object.and_then(|object| object.status).is_some_and(|status| status.address.is_some())
        })
}

#[test]
fn a_simple_deployment_keeps_its_pods_through_faults() {
    simple_deployment().seeds(0..30).each_write().run();
}

#[test]
fn a_simple_deployment_of_three_replicas_keeps_its_pods_through_faults() {
    simple_deployment().replicas(3).seeds(0..8).run();
}

#[test]
fn an_addressable_service_follows_its_service_through_faults() {
    addressable_service().seeds(0..30).each_write().run();
}

#[test]
fn an_addressable_service_of_three_replicas_follows_its_service_through_faults() {
    addressable_service().replicas(3).seeds(0..8).run();
}
