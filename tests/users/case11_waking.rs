//! Enqueuing a key from outside (a probe that ended), and the keys that an own write enqueues.
use reknit::testing::ControllerExt;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use crate::case0_addressable::{AddressableService, AddressableServiceSpec, AddressableServiceStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt, api::PostParams};
use reknit::prelude::*;

/// waitdeployment: the probe runs beside the pass; no worker waits for a black hole.
struct Probing {
    queue: Queue,
    answers: Arc<Mutex<HashMap<Key, bool>>>,
    network: Network,
}
#[derive(Clone, Default)]
struct Network(Arc<tokio::sync::Notify>);
impl Inject for Network {
    fn inject(_: &Context) -> Self {
        Self::default()
    }
}
impl ReconcileKind for Probing {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        let key = Key::of(object);
        if self.answers.lock().unwrap().contains_key(&key) {
            return Ok(Outcome::done());
        }
        let (queue, answers, network) = (self.queue.clone(), self.answers.clone(), self.network.clone());
        tokio::spawn(async move {
            network.0.notified().await; // TcpStream::connect under a timeout
            answers.lock().unwrap().insert(key.clone(), true);
            queue.add(key);
        });
        Ok(Outcome::skip())
    }
}
fn probing(cx: &Context) -> Result<Controller> {
    let build = Controller::of::<AddressableService>(cx);
    let (queue, answers, network) = (build.queue(), Arc::default(), cx.get());
    Ok(build.reconciler(Probing { queue, answers, network }).build())
}

/// Creates a ConfigMap that other keys track.
struct Writer {
    client: Client,
    maps: Tracked<ConfigMap>,
}
impl ReconcileKind for Writer {
    type Kind = AddressableService;
    async fn reconcile_kind(
        &self,
        object: &AddressableService,
        _: &mut AddressableServiceStatus,
    ) -> Result<Outcome> {
        if self.maps.get(object, "shared").is_none() && object.name_any() == "one" {
            let mut map = ConfigMap::default();
            map.metadata.name = Some("shared".into());
            map.metadata.namespace = object.namespace();
            Api::namespaced(self.client.clone(), "default").create(&PostParams::default(), &map).await?;
            assert!(self.maps.get(object, "shared").is_some(), "a pass reads its own writes");
        }
        Ok(Outcome::done())
    }
}
fn writing(cx: &Context) -> Result<Controller> {
    let mut build = Controller::of::<AddressableService>(cx);
    let (client, maps) = (build.client(), build.track());
    Ok(build.reconciler(Writer { client, maps }).build())
}
fn objects() -> Vec<serde_json::Value> {
    let some = |name: &str| {
        let object = AddressableService::new(name, AddressableServiceSpec { service_name: "w".into() });
        let mut object = crate::at(object, Some("default"), 1);
        object.metadata.resource_version = Some("1".into());
        object
    };
    ["one", "two"].map(|n| serde_json::to_value(some(n)).unwrap()).into()
}
/// Answers every write with what was sent, as an API server would (status patches with the whole object).
fn echo() -> Client {
    let echo = tower::service_fn(|r: http::Request<kube::client::Body>| async move {
        use http_body_util::BodyExt;
        let name = r.uri().path().split('/').find(|p| ["one", "two"].contains(p)).map(str::to_owned);
        let bytes = r.into_body().collect().await.unwrap().to_bytes();
        let whole = name.and_then(|n| objects().into_iter().find(|o| o["metadata"]["name"] == n.as_str()));
        let body = whole.map_or(bytes.to_vec(), |o| o.to_string().into_bytes());
        Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(body)))
    });
    Client::new(echo, "default")
}
#[tokio::test]
async fn a_probe_wakes_its_key_when_it_ends() {
    let cx = Context::preloaded("test", echo(), objects());
    let made = probing(&cx).unwrap();
    assert_eq!(made.once(&Key::new("default", "one")).await.unwrap(), Outcome::skip());
    assert!(made.queued().is_empty());
    cx.get::<Network>().0.notify_one();
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
    assert_eq!(made.queued(), [Key::new("default", "one")]);
}
#[tokio::test]
async fn a_status_write_wakes_other_controllers_but_not_its_key_and_what_user_code_wrote_wakes_all_who_read_it()
 {
    let cx = Context::preloaded("test", echo(), objects());
    let (writer, other) = (writing(&cx).unwrap(), probing(&cx).unwrap());
    let (one, two) = (Key::new("default", "one"), Key::new("default", "two"));
    let _ = writer.once(&two).await.unwrap(); // two tracks the map that is not there yet
    assert_eq!(
        (writer.queued(), other.queued()),
        (vec![], vec![two.clone()]),
        "the status write of two woke the other controller, not itself"
    );
    let _ = writer.once(&one).await.unwrap();
    assert_eq!(writer.queued(), [one.clone(), two], "one wrote the map, and may have read before it wrote");
    assert_eq!(other.queued(), [one]);
}
