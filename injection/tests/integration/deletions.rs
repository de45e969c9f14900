use k8s_openapi::{
    api::core::v1::{Namespace, Pod, Service},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, CustomResource, CustomResourceExt, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy},
};
use reknit_apis::Key;
use reknit_injection::{Cached, Context, Informer, select};
use reknit_testing::ControlPlane;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{gate::Gate, reported::ReportedChanges};

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[kube(group = "deletions.reknit.dev", version = "v1", kind = "Lamp", namespaced)]
pub(crate) struct LampSpec {
    room: String,
}

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[kube(group = "deletions.reknit.dev", version = "v1", kind = "Ending", namespaced)]
pub(crate) struct EndingSpec {}

/// An informer whose watch is held back, so it learns only of own writes until the gate is opened.
struct GatedInformer<K: Cached> {
    informer: Informer<K>,
    reported: ReportedChanges,
    api: Api<K>,
    gate: Gate,
}

impl<K> GatedInformer<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Cached,
{
    async fn start(plane: &ControlPlane, namespace: &str) -> Self {
        let (client, gate) = Gate::before(plane.client().unwrap());
        let cx = Context::new("test", client);
        let informer = cx.informer::<K>(select().namespace(namespace));
        let reported = ReportedChanges::by(&informer);
        cx.informers().start();
        informer.synced().await;
        gate.hold();
        Self { informer, reported, api: Api::namespaced(cx.client(), namespace), gate }
    }
}

impl<K: Cached + Resource<DynamicType = ()> + Serialize + DeserializeOwned> GatedInformer<K> {
    async fn create(&self, object: Value) -> Key {
        let object: K = serde_json::from_value(object).unwrap();
        Key::of(&self.api.create(&PostParams::default(), &object).await.unwrap())
    }

    async fn delete(&self, key: &Key, params: &DeleteParams) {
        self.api.delete(&key.name, params).await.unwrap();
    }

    fn is_cached(&self, key: &Key) -> bool {
        self.informer.get(key).is_some()
    }

    fn is_terminating(&self, key: &Key) -> bool {
        self.informer.get(key).is_some_and(|object| object.meta().deletion_timestamp.is_some())
    }

    /// Asserts that the changes so far were reported as these words (`+a` added, `~a` updated, `-a` deleted), and that
    /// the echoes of own writes are not reported. To wait for the echoes, it opens the gate, and then creates and
    /// deletes the object `last`.
    async fn assert_reported(self, reported: &[&str], last: Value) {
        assert_eq!(self.reported.all(), reported, "reported before the gate is opened");
        self.gate.open();
        let key = self.create(last).await;
        self.reported.until(&format!("+{}", key.name)).await;
        self.delete(&key, &DeleteParams::default()).await;
        self.informer.until(&key, |object| object.is_none().then_some(())).await;
        let all = self.reported.all();
        assert_eq!(all[..reported.len()], *reported);
        assert!(all[reported.len()..].iter().all(|word| word.ends_with(&key.name)), "{all:?}");
    }
}

#[tokio::test]
async fn a_deleted_config_map_is_removed_and_can_be_created_again() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let maps = GatedInformer::<k8s_openapi::api::core::v1::ConfigMap>::start(plane, &namespace).await;
    let key = maps.create(json!({"metadata": {"name": "a"}})).await;
    maps.delete(&key, &DeleteParams::default()).await;
    assert!(!maps.is_cached(&key));
    maps.create(json!({"metadata": {"name": "a"}})).await;
    assert!(maps.is_cached(&key));
    maps.delete(&key, &DeleteParams::default()).await;
    assert!(!maps.is_cached(&key));
    maps.assert_reported(&["+a", "-a", "+a", "-a"], json!({"metadata": {"name": "last"}})).await;
}

#[tokio::test]
async fn a_deleted_service_is_removed() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let services = GatedInformer::<Service>::start(plane, &namespace).await;
    let service = |name| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let key = services.create(service("web")).await;
    services.delete(&key, &DeleteParams::default()).await;
    assert!(!services.is_cached(&key));
    services.assert_reported(&["+web", "-web"], service("last")).await;
}

fn lamp(name: &str, finalizers: &[&str]) -> Value {
    json!({"apiVersion": "deletions.reknit.dev/v1", "kind": "Lamp",
        "metadata": {"name": name, "finalizers": finalizers}, "spec": {"room": "hall"}})
}

#[tokio::test]
async fn a_custom_resource_with_a_finalizer_is_terminating_until_the_finalizer_is_removed() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let lamps = GatedInformer::<Lamp>::start(plane, &namespace).await;
    let key = lamps.create(lamp("a", &["example.com/wait"])).await;
    lamps.delete(&key, &DeleteParams::default()).await;
    assert!(lamps.is_terminating(&key));
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_cached(&key), "removed with its last finalizer");

    let key = lamps.create(lamp("b", &[])).await;
    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..Default::default() };
    lamps.delete(&key, &foreground).await;
    assert!(lamps.is_terminating(&key), "it waits for its dependents");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("b", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_cached(&key));

    let key = lamps.create(lamp("c", &[])).await;
    lamps.delete(&key, &DeleteParams::default()).await;
    assert!(!lamps.is_cached(&key));
    lamps.assert_reported(&["+a", "~a", "-a", "+b", "~b", "-b", "+c", "-c"], lamp("last", &[])).await;
}

#[tokio::test]
async fn an_object_deleted_by_another_client_is_removed_with_its_last_finalizer() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let lamps = GatedInformer::<Lamp>::start(plane, &namespace).await;
    lamps.gate.open();
    let key = lamps.create(lamp("a", &["example.com/wait"])).await;
    let others: Api<Lamp> = Api::namespaced(plane.client().unwrap(), &namespace);
    others.delete("a", &DeleteParams::default()).await.unwrap();
    let is_terminating = |lamp: &Lamp| lamp.metadata.deletion_timestamp.is_some();
    lamps.informer.until(&key, |lamp| lamp.is_some_and(is_terminating).then_some(())).await;
    lamps.gate.hold();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_cached(&key));
    lamps.assert_reported(&["+a", "~a", "-a"], lamp("last", &[])).await;
}

#[tokio::test]
async fn a_deleted_pod_is_terminating_on_its_node_and_removed_at_once_without_one() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let pods = GatedInformer::<Pod>::start(plane, &namespace).await;
    let pod = |name: &str, node: Option<&str>| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    let pending = pods.create(pod("pending", None)).await;
    pods.delete(&pending, &DeleteParams::default()).await;
    assert!(!pods.is_cached(&pending));
    let running = pods.create(pod("running", Some("node-1"))).await;
    pods.delete(&running, &DeleteParams::default()).await;
    assert!(pods.is_terminating(&running));
    pods.delete(&running, &DeleteParams::default()).await;
    assert!(pods.is_terminating(&running), "deleting it again changes nothing");
    pods.delete(&running, &DeleteParams::default().grace_period(0)).await;
    assert!(!pods.is_cached(&running), "deleted without a grace period");
    pods.assert_reported(&["+pending", "-pending", "+running", "~running", "-running"], pod("last", None))
        .await;
}

#[tokio::test]
async fn a_terminating_namespace_and_custom_resource_definition_stay_cached() {
    let plane = ControlPlane::shared().await.unwrap();
    let cx = Context::new("test", plane.client().unwrap());
    let namespaces: Informer<Namespace> = cx.get();
    let definitions: Informer<CustomResourceDefinition> = cx.get();
    cx.informers().start();
    tokio::join!(namespaces.synced(), definitions.synced());
    let name = plane.namespace("ending").await.unwrap();
    let api: Api<Namespace> = Api::all(cx.client());
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let cached = namespaces.get(&Key::new(None, &name)).unwrap();
    assert!(cached.metadata.deletion_timestamp.is_some(), "it is not finalized yet");

    let api: Api<CustomResourceDefinition> = Api::all(cx.client());
    let mut definition = Ending::crd();
    definition.metadata.finalizers = Some(vec!["deletions.reknit.dev/held".into()]);
    let name = api.create(&PostParams::default(), &definition).await.unwrap().metadata.name.unwrap();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let cached = definitions.get(&Key::new(None, &name)).unwrap();
    assert!(cached.metadata.deletion_timestamp.is_some(), "a finalizer delays the deletion");
    let finalize = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch(&name, &PatchParams::default(), &finalize).await.unwrap();
}
