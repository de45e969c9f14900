//! Tests of eventing with the permissions of its role, in the process of the test.

use std::fmt::Debug;

use k8s_openapi::{
    NamespaceResourceScope,
    api::{apps::v1::Deployment, core::v1::Service},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use reknit::{
    apis::service_host_name,
    prelude::*,
    testing::{ControlPlane, Controllers, RunningControllers, eventually},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    environment::{bind_role, plane_with_nodes, restricted_kubeconfig},
    support::{
        eventing::{
            container_source, object,
            program::{self, ContainerSource, InMemoryChannel, SinkBinding, Trigger},
            sink_binding, trigger,
        },
        file,
        wait::TIMEOUT,
    },
};

/// The definition of a broker Kind that the program does not know. The test plays its controller.
const EXCHANGES: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: exchanges.brokers.example.com}
spec:
  group: brokers.example.com
  names: {kind: Exchange, plural: exchanges, singular: exchange}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: exchanges}
rules:
  - {apiGroups: [brokers.example.com], resources: [exchanges], verbs: [get, list, watch]}
"#;

/// The controllers of the program, in a namespace of their own.
struct Eventing {
    plane: &'static ControlPlane,
    namespace: String,
    client: Client,
    controllers: RunningControllers,
}

impl Eventing {
    async fn start() -> Self {
        let plane = plane_with_nodes().await;
        let namespace = plane.namespace("eventing").await.unwrap();
        let client = plane.client().unwrap();
        restricted_kubeconfig(plane, "eventing", &namespace).await;
        let controllers = Controllers::new(plane.client_as(&namespace, "eventing").await.unwrap())
            .controller(program::container_sources)
            .controller(program::sink_bindings)
            .controller(program::triggers)
            .controller(program::brokers)
            .controller(program::channels)
            .controller(program::subscriptions)
            .provide(select().namespace(&namespace))
            .start();
        controllers.synced(TIMEOUT).await;
        Self { plane, namespace, client, controllers }
    }

    fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create<K>(&self, object: K)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        self.api().create(&PostParams::default(), &object).await.unwrap();
    }

    async fn create_service(&self, name: &str) {
        let service = json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
        self.create::<Service>(object(service)).await;
    }

    fn url(&self, service: &str) -> String {
        format!("http://{}", service_host_name(service, &self.namespace))
    }

    /// Waits until the object exists and meets the condition, which `what` describes.
    async fn wait_for<K>(&self, name: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        let objects = self.api::<K>();
        eventually(format!("{} {name} {what}", K::kind(&())), TIMEOUT, async || {
            let found = objects.get_opt(name).await.map_err(|error| error.to_string())?;
            let found = json!(found);
            if condition(&found) { Ok(found) } else { Err(format!("{found:#}")) }
        })
        .await
    }

    async fn wait_until_ready<K>(&self, name: &str) -> Value
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        self.wait_for::<K>(name, "that is ready", |found| condition(found, "Ready")["status"] == "True").await
    }
}

/// The condition of this type, or null.
fn condition(object: &Value, kind: &str) -> Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
}

/// The value of the variable `K_SINK` in the first container.
fn injected_sink(deployment: &Value) -> Value {
    let variables = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array();
    let sink = variables.into_iter().flatten().find(|variable| variable["name"] == "K_SINK");
    sink.map(|sink| sink["value"].clone()).unwrap_or_default()
}

fn service_ref(name: &str) -> Value {
    json!({"ref": {"apiVersion": "v1", "kind": "Service", "name": name}})
}

fn web(replicas: i32) -> Deployment {
    let template = json!({
        "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i"}]},
    });
    let spec =
        json!({"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template});
    object(json!({"metadata": {"name": "web"}, "spec": spec}))
}

#[tokio::test]
async fn a_container_source_runs_a_deployment_with_the_address_of_its_sink() {
    let eventing = Eventing::start().await;
    eventing.create(container_source("clock", service_ref("late"))).await;
    let reason = |found: &Value| condition(found, "SinkBindingReady")["reason"] == "NoAddressable";
    eventing.wait_for::<ContainerSource>("clock", "without a sink", reason).await;

    eventing.create_service("late").await;
    let source = eventing.wait_until_ready::<ContainerSource>("clock").await;
    assert_eq!(source["status"]["sinkUri"], eventing.url("late"));
    let deployment = eventing.wait_for::<Deployment>("clock-deployment", "with a sink", |found| {
        injected_sink(found) == eventing.url("late")
    });
    deployment.await;
    eventing.wait_until_ready::<SinkBinding>("clock-sinkbinding").await;
    eventing.controllers.stop().await;
}

#[tokio::test]
async fn a_sink_binding_injects_until_it_is_deleted() {
    let eventing = Eventing::start().await;
    eventing.create_service("sink").await;
    eventing.create(web(1)).await;
    let subject = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    eventing.create(sink_binding("orders", json!({"sink": service_ref("sink"), "subject": subject}))).await;
    let sink = eventing.url("sink");
    eventing
        .wait_for::<Deployment>("web", "with a sink", |found| injected_sink(found) == sink.as_str())
        .await;
    eventing.wait_until_ready::<SinkBinding>("orders").await;

    // The webhook injects into an object before it is stored.
    eventing.api::<Deployment>().delete("web", &DeleteParams::background()).await.unwrap();
    eventing.wait_for::<Deployment>("web", "that is deleted", Value::is_null).await;
    let server = eventing.plane.serve_webhook(&eventing.namespace, program::webhook).await.unwrap();
    let created = eventually("a Deployment with the injection", TIMEOUT, async || {
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let created = eventing.api().create(&dry_run, &web(1)).await.map_err(|error| error.to_string())?;
        let created = json!(created);
        if injected_sink(&created) == sink.as_str() { Ok(created) } else { Err(format!("{created:#}")) }
    });
    created.await;
    eventing.create(web(1)).await;
    drop(server);

    eventing.api::<SinkBinding>().delete("orders", &DeleteParams::default()).await.unwrap();
    eventing.wait_for::<Deployment>("web", "without a sink", |found| injected_sink(found).is_null()).await;
    eventing.wait_for::<SinkBinding>("orders", "that is deleted", Value::is_null).await;
    eventing.controllers.stop().await;
}

#[tokio::test]
async fn a_trigger_waits_for_its_broker_its_subscriber_and_its_dependency() {
    let eventing = Eventing::start().await;
    eventing.plane.apply_yaml(EXCHANGES).await.unwrap();
    bind_role(&eventing.client, "exchanges", "eventing", &eventing.namespace).await;
    let broker = json!({"apiVersion": "brokers.example.com/v1", "kind": "Exchange", "name": "orders"});
    let dependency =
        json!({"apiVersion": "sources.knative.dev/v1", "kind": "ContainerSource", "name": "clock"});
    let mut ticks = trigger("ticks", json!({"brokerRef": broker, "subscriber": service_ref("late")}));
    ticks.metadata.annotations = Some([("knative.dev/dependency".into(), dependency.to_string())].into());
    eventing.create(ticks).await;
    let fails = async |kind: &str, reason: &str| {
        let what = format!("whose {kind} is {reason}");
        eventing
            .wait_for::<Trigger>("ticks", &what, |found| condition(found, kind)["reason"] == reason)
            .await;
    };
    fails("BrokerReady", "BrokerDoesNotExist").await;
    create_exchange(&eventing).await;
    fails("SubscriberResolved", "Unable to get the Subscriber's URI").await;
    eventing.create_service("late").await;
    fails("DependencyReady", "DependencyDoesNotExist").await;
    eventing.create(container_source("clock", service_ref("late"))).await;
    let ready = eventing.wait_until_ready::<Trigger>("ticks").await;
    assert_eq!(ready["status"]["subscriberUri"], eventing.url("late"));
    eventing.controllers.stop().await;
}

#[tokio::test]
async fn the_objects_of_the_example_become_ready() {
    let eventing = Eventing::start().await;
    let example = std::fs::read_to_string(file("eventing", "example.yaml")).unwrap();
    for mut object in serde_saphyr::from_multiple::<Value>(&example).unwrap() {
        object["metadata"]["namespace"] = json!(eventing.namespace);
        eventing.plane.apply_yaml(&object.to_string()).await.unwrap();
    }
    let trigger = eventing.wait_until_ready::<Trigger>("ticks").await;
    assert_eq!(trigger["status"]["subscriberUri"], eventing.url("display"));
    let source = eventing.wait_until_ready::<ContainerSource>("clock").await;
    assert_eq!(source["status"]["sinkUri"], eventing.url("broker-ingress"));
    eventing.controllers.stop().await;
}

/// Creates a ready Exchange, and its channel.
async fn create_exchange(eventing: &Eventing) {
    let channel = json!({"metadata": {"name": "orders-channel"}, "spec": {}});
    eventing.create::<InMemoryChannel>(object(channel)).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("brokers.example.com", "v1", "Exchange"));
    let exchanges: Api<DynamicObject> =
        Api::namespaced_with(eventing.client.clone(), &eventing.namespace, &resource);
    let mut exchange = DynamicObject::new("orders", &resource);
    let class = ("eventing.knative.dev/broker.class".into(), "MTChannelBasedBroker".into());
    exchange.metadata.annotations = Some([class].into());
    exchanges.create(&PostParams::default(), &exchange).await.unwrap();
    let channel = json!({
        "knative.dev/channelAPIVersion": "messaging.knative.dev/v1", "knative.dev/channelKind": "InMemoryChannel",
        "knative.dev/channelName": "orders-channel",
    });
    let status = json!({
        "conditions": [{"type": "Ready", "status": "True"}], "annotations": channel,
        "address": {"url": "http://exchange.example.com"},
    });
    let patch = Patch::Merge(json!({"status": status}));
    exchanges.patch_status("orders", &PatchParams::default(), &patch).await.unwrap();
}
