//! Keys that a task enqueues when its probe ends, and keys that an own write enqueues.
use reknit::testing::ControllerExt;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::addressable_service::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt, api::PostParams};
use reknit::{injection::Inject, prelude::*};

/// Probes the network in a task, as the example waitdeployment does, so that no worker waits for the response.
struct ProbingReconciler {
    queue: Queue,
    results: Arc<Mutex<HashMap<Key, bool>>>,
    network: Network,
}
/// The network of a test. A probe ends when the test notifies it.
#[derive(Clone, Default)]
struct Network(Arc<tokio::sync::Notify>);
impl Inject for Network {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}
impl ReconcileKind for ProbingReconciler {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let key = Key::of(object);
        if self.results.lock().unwrap().contains_key(&key) {
            return Ok(Outcome::done());
        }
        let (queue, results, network) = (self.queue.clone(), self.results.clone(), self.network.clone());
        tokio::spawn(async move {
            network.0.notified().await; // a real probe would call TcpStream::connect with a timeout
            results.lock().unwrap().insert(key.clone(), true);
            queue.add(key);
        });
        Ok(Outcome::skip())
    }
}
fn probing_controller(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<AddressableService>(cx);
    let (queue, results, network) = (build.queue(), Arc::default(), cx.get());
    Ok(build.reconciler(ProbingReconciler { queue, results, network }).build())
}

/// Reads the ConfigMap `shared` in every reconcile. The reconcile of the object `one` creates the ConfigMap if missing.
struct CreatingReconciler {
    client: Client,
    config_maps: Tracked<ConfigMap>,
}
impl ReconcileKind for CreatingReconciler {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        if self.config_maps.get(object, "shared").is_none() && object.name_any() == "one" {
            let mut config_map = ConfigMap::default();
            config_map.metadata.name = Some("shared".into());
            config_map.metadata.namespace = object.namespace();
            let api = Api::namespaced(self.client.clone(), "default");
            api.create(&PostParams::default(), &config_map).await?;
            assert!(self.config_maps.get(object, "shared").is_some(), "the pass does not read its own write");
        }
        Ok(Outcome::done())
    }
}
fn creating_controller(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let (client, config_maps) = (build.client(), build.track());
    Ok(build.reconciler(CreatingReconciler { client, config_maps }).build())
}
/// The AddressableServices `one` and `two`.
fn objects() -> Vec<serde_json::Value> {
    let object = |name: &str| {
        let object = AddressableService::new(name, AddressableServiceSpec { service_name: "w".into() });
        let mut object = crate::with_metadata(object, Some("default"), 1);
        object.metadata.resource_version = Some("1".into());
        object
    };
    ["one", "two"].map(|name| serde_json::to_value(object(name)).unwrap()).into()
}
/// A client whose server responds as an API server would: with a newer state of the object to a patch of `one` or `two`,
/// and otherwise with the body of the request.
fn echo_client() -> Client {
    let echo = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
        use http_body_util::BodyExt;
        let name = request
            .uri()
            .path()
            .split('/')
            .find(|segment| ["one", "two"].contains(segment))
            .map(str::to_owned);
        let bytes = request.into_body().collect().await.unwrap().to_bytes();
        let object = name.and_then(|name| {
            objects().into_iter().find(|object| object["metadata"]["name"] == name.as_str())
        });
        let body = object.map_or(bytes.to_vec(), |mut object| {
            object["metadata"]["resourceVersion"] = "2".into();
            object.to_string().into_bytes()
        });
        Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(body)))
    });
    Client::new(echo, "default")
}
#[tokio::test]
async fn a_task_enqueues_its_key_when_its_probe_ends() {
    let cx = Context::preloaded("test", echo_client(), objects());
    let controller = probing_controller(&cx).unwrap();
    assert_eq!(controller.once(&Key::new("default", "one")).await.unwrap(), Outcome::skip());
    assert!(controller.take_queued().is_empty());
    cx.get::<Network>().0.notify_one();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(controller.take_queued(), [Key::new("default", "one")]);
}
#[tokio::test]
async fn a_status_write_does_not_enqueue_its_key_and_a_user_write_enqueues_all_keys_that_read_the_object() {
    let cx = Context::preloaded("test", echo_client(), objects());
    let (creating, other) = (creating_controller(&cx).unwrap(), probing_controller(&cx).unwrap());
    let (one, two) = (Key::new("default", "one"), Key::new("default", "two"));
    // The object two tracks the ConfigMap, which does not exist yet.
    let _ = creating.once(&two).await.unwrap();
    assert_eq!(
        (creating.take_queued(), other.take_queued()),
        (vec![], vec![two.clone()]),
        "keys that the status write enqueues: two, in the other controller only"
    );
    let _ = creating.once(&one).await.unwrap();
    // The key one is enqueued too: its status may have been computed before its reconcile created the ConfigMap.
    assert_eq!(creating.take_queued(), [one.clone(), two]);
    assert_eq!(other.take_queued(), [one]);
}
