//! Destinations whose object appears later, on a real API server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, Client, CustomResource,
    api::{Patch, PatchParams, PostParams},
};
use reknit_apis::cluster_domain;
use reknit_injection::{Context, Informer};
use reknit_knative::{AddressResolver, AddressStatus, Destination};
use reknit_reconciler::{Controller, Key, Kinds, Outcome, ReconcileKind, Result};
use reknit_testing::{ControlPlane, ControllerExt, eventually};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(10);

/// An Addressable Kind that the controller knows only by reference.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "resolver.reknit.dev", version = "v1", kind = "Sink", namespaced, status = "AddressStatus")]
struct SinkSpec {}

/// Resolves the destination in a ConfigMap's data, and keeps the last URL or error message.
struct SinkFollower {
    resolver: AddressResolver,
    result: Arc<Mutex<String>>,
}

impl ReconcileKind for SinkFollower {
    type Kind = ConfigMap;
    async fn reconcile_kind(&self, map: &ConfigMap, _: &mut ()) -> Result<Outcome> {
        let sink = map.data.iter().flatten().find(|(key, _)| *key == "sink").map(|(_, value)| value.as_str());
        let sink: Destination = serde_json::from_str(sink.unwrap_or("{}"))?;
        let resolved = self.resolver.resolve(map, &sink).await;
        *self.result.lock().unwrap() = match &resolved {
            Ok(address) => address.url.as_ref().map(ToString::to_string).unwrap_or_default(),
            Err(error) => error.to_string(),
        };
        resolved.map(|_| Outcome::done())
    }
}

/// A controller that resolves the destination in one ConfigMap, and the last result.
struct Follower {
    client: Client,
    namespace: String,
    controller: Controller,
    key: Key,
    result: Arc<Mutex<String>>,
}

impl Follower {
    async fn of(sink: Value) -> Self {
        let plane = ControlPlane::shared().await.unwrap();
        let (client, namespace) = (plane.client().unwrap(), plane.namespace("resolver").await.unwrap());
        let map = json!({"metadata": {"name": "observer"}, "data": {"sink": sink.to_string()}});
        let map = serde_json::from_value(map).unwrap();
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        maps.create(&PostParams::default(), &map).await.unwrap();
        let result = Arc::default();
        let (controller, maps, informers) = {
            let cx = Context::new("test", client.clone());
            let mut build = Controller::of::<ConfigMap>(&cx);
            let resolver = AddressResolver::new(build.track_any(Kinds::any()));
            let follower = SinkFollower { resolver, result: Arc::clone(&result) };
            (build.reconciler(follower).build(), cx.get::<Informer<ConfigMap>>(), cx.informers())
        };
        informers.start();
        let key = Key::new(namespace.as_str(), "observer");
        eventually("the observer in the cache", TIMEOUT, async || maps.contains(&key)).await;
        controller.take_queued();
        Self { client, namespace, controller, key, result }
    }

    /// Runs a pass, and another one once the Kind of the destination is listed.
    async fn pass(&self) -> String {
        if self.controller.once(&self.key).await.is_err_and(|error| error.is_waiting()) {
            self.wait_until_enqueued().await;
            let _ = self.controller.once(&self.key).await;
        }
        self.result.lock().unwrap().clone()
    }

    async fn wait_until_enqueued(&self) {
        let is_queued = async || self.controller.take_queued().contains(&self.key);
        eventually("the observer in the queue", TIMEOUT, is_queued).await;
    }

    fn api<K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_reconciled_when_its_sink_appears_and_when_the_address_of_the_sink_changes() {
    ControlPlane::shared().await.unwrap().install::<Sink>().await.unwrap();
    let reference = json!({"apiVersion": "resolver.reknit.dev/v1", "kind": "Sink", "name": "later"});
    let destination = json!({"ref": reference, "uri": "/in"});
    let follower = Follower::of(destination).await;
    let missing = follower.pass().await;
    assert!(missing.ends_with("/later: sinks.resolver.reknit.dev \"later\" not found"), "{missing}");
    follower.controller.take_queued();

    let sinks = follower.api::<Sink>();
    sinks.create(&PostParams::default(), &Sink::new("later", SinkSpec {})).await.unwrap();
    follower.wait_until_enqueued().await;
    assert!(follower.pass().await.starts_with("address not set for Kind = Sink"));

    for url in ["http://one.example", "https://two.example/path"] {
        let status = Patch::Merge(json!({"status": {"address": {"url": url}}}));
        sinks.patch_status("later", &PatchParams::default(), &status).await.unwrap();
        follower.wait_until_enqueued().await;
        let host = url.trim_end_matches("/path");
        assert_eq!(follower.pass().await, format!("{host}/in"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_observer_is_reconciled_when_its_service_appears() {
    let service = json!({"apiVersion": "v1", "kind": "Service", "name": "web"});
    let follower = Follower::of(json!({"ref": service})).await;
    assert!(follower.pass().await.ends_with("/web: services \"web\" not found"));
    follower.controller.take_queued();

    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let service = serde_json::from_value(service).unwrap();
    follower.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    follower.wait_until_enqueued().await;
    let expected = format!("http://web.{}.svc.{}", follower.namespace, cluster_domain());
    assert_eq!(follower.pass().await, expected);
}
