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

/// An informer that hears of own writes only, until the gate is opened.
struct Deaf<K: Cached> {
    held: Informer<K>,
    reported: ReportedChanges,
    api: Api<K>,
    gate: Gate,
}

impl<K> Deaf<K>
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope> + Cached,
{
    async fn start(plane: &ControlPlane, namespace: &str) -> Self {
        let (client, gate) = Gate::before(plane.client().unwrap());
        let cx = Context::new("test", client);
        let held = cx.informer::<K>(select().namespace(namespace));
        let reported = ReportedChanges::by(&held);
        cx.informers().start();
        held.synced().await;
        gate.hold();
        Self { held, reported, api: Api::namespaced(cx.client(), namespace), gate }
    }
}

impl<K: Cached + Resource<DynamicType = ()> + Serialize + DeserializeOwned> Deaf<K> {
    async fn create(&self, object: Value) -> Key {
        let object: K = serde_json::from_value(object).unwrap();
        Key::of(&self.api.create(&PostParams::default(), &object).await.unwrap())
    }

    async fn delete(&self, key: &Key, params: &DeleteParams) {
        self.api.delete(&key.name, params).await.unwrap();
    }

    fn is_held(&self, key: &Key) -> bool {
        self.held.get(key).is_some()
    }

    fn is_going(&self, key: &Key) -> bool {
        self.held.get(key).is_some_and(|object| object.meta().deletion_timestamp.is_some())
    }

    /// Asserts that the handlers were called for nothing else, once the watch has delivered an object that is created last.
    async fn ends(self, last: Value, reported: &[&str]) {
        let before = self.reported.all();
        assert_eq!(before, reported, "from own writes alone");
        self.gate.open();
        let key = self.create(last).await;
        self.reported.until(&format!("+{}", key.name)).await;
        self.delete(&key, &DeleteParams::default()).await;
        self.held.until(&key, |now| now.is_none().then_some(())).await;
        let all = self.reported.all();
        assert_eq!(all[..reported.len()], *reported);
        assert!(all[reported.len()..].iter().all(|word| word.ends_with(&key.name)), "{all:?}");
    }
}

#[tokio::test]
async fn a_config_map_that_was_deleted_is_gone_and_may_be_created_again() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let maps = Deaf::<k8s_openapi::api::core::v1::ConfigMap>::start(plane, &namespace).await;
    let key = maps.create(json!({"metadata": {"name": "a"}})).await;
    maps.delete(&key, &DeleteParams::default()).await;
    assert!(!maps.is_held(&key));
    maps.create(json!({"metadata": {"name": "a"}})).await;
    assert!(maps.is_held(&key));
    maps.delete(&key, &DeleteParams::default()).await;
    assert!(!maps.is_held(&key));
    maps.ends(json!({"metadata": {"name": "last"}}), &["+a", "-a", "+a", "-a"]).await;
}

#[tokio::test]
async fn a_service_that_was_deleted_is_gone() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let services = Deaf::<Service>::start(plane, &namespace).await;
    let service = |name| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let key = services.create(service("web")).await;
    services.delete(&key, &DeleteParams::default()).await;
    assert!(!services.is_held(&key));
    services.ends(service("last"), &["+web", "-web"]).await;
}

fn lamp(name: &str, finalizers: &[&str]) -> Value {
    json!({"apiVersion": "deletions.reknit.dev/v1", "kind": "Lamp",
        "metadata": {"name": name, "finalizers": finalizers}, "spec": {"room": "hall"}})
}

#[tokio::test]
async fn a_custom_resource_with_a_finalizer_is_going_until_that_is_taken_away() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let lamps = Deaf::<Lamp>::start(plane, &namespace).await;
    let key = lamps.create(lamp("a", &["example.com/wait"])).await;
    lamps.delete(&key, &DeleteParams::default()).await;
    assert!(lamps.is_going(&key));
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_held(&key), "with its last finalizer it went");

    let key = lamps.create(lamp("b", &[])).await;
    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..Default::default() };
    lamps.delete(&key, &foreground).await;
    assert!(lamps.is_going(&key), "it waits for what it owns");
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("b", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_held(&key));

    let key = lamps.create(lamp("c", &[])).await;
    lamps.delete(&key, &DeleteParams::default()).await;
    assert!(!lamps.is_held(&key));
    lamps.ends(lamp("last", &[]), &["+a", "~a", "-a", "+b", "~b", "-b", "+c", "-c"]).await;
}

#[tokio::test]
async fn a_terminating_object_is_removed_with_its_last_finalizer() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    plane.install::<Lamp>().await.unwrap();
    let lamps = Deaf::<Lamp>::start(plane, &namespace).await;
    lamps.gate.open();
    let key = lamps.create(lamp("a", &["example.com/wait"])).await;
    let others: Api<Lamp> = Api::namespaced(plane.client().unwrap(), &namespace);
    others.delete("a", &DeleteParams::default()).await.unwrap();
    let is_going = |lamp: &Lamp| lamp.metadata.deletion_timestamp.is_some();
    lamps.held.until(&key, |now| now.is_some_and(is_going).then_some(())).await;
    lamps.gate.hold();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    lamps.api.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert!(!lamps.is_held(&key));
    lamps.ends(lamp("last", &[]), &["+a", "~a", "-a"]).await;
}

#[tokio::test]
async fn a_pod_is_going_while_its_node_ends_it_and_gone_where_it_has_none() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("deletion").await.unwrap();
    let pods = Deaf::<Pod>::start(plane, &namespace).await;
    let pod = |name: &str, node: Option<&str>| json!({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}]}});
    let waiting = pods.create(pod("waiting", None)).await;
    pods.delete(&waiting, &DeleteParams::default()).await;
    assert!(!pods.is_held(&waiting));
    let running = pods.create(pod("running", Some("node-1"))).await;
    pods.delete(&running, &DeleteParams::default()).await;
    assert!(pods.is_going(&running));
    pods.delete(&running, &DeleteParams::default()).await;
    assert!(pods.is_going(&running), "deleting it again changes nothing");
    pods.delete(&running, &DeleteParams::default().grace_period(0)).await;
    assert!(!pods.is_held(&running), "by force");
    pods.ends(pod("last", None), &["+waiting", "-waiting", "+running", "~running", "-running"]).await;
}

#[tokio::test]
async fn a_namespace_and_a_definition_are_there_while_they_end() {
    let plane = ControlPlane::shared().await.unwrap();
    let cx = Context::new("test", plane.client().unwrap());
    let namespaces: Informer<Namespace> = cx.get();
    let definitions: Informer<CustomResourceDefinition> = cx.get();
    cx.informers().start();
    tokio::join!(namespaces.synced(), definitions.synced());
    let name = plane.namespace("ending").await.unwrap();
    let api: Api<Namespace> = Api::all(cx.client());
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let held = namespaces.get(&Key::new(None, &name)).unwrap();
    assert!(held.metadata.deletion_timestamp.is_some(), "nobody has finalized it");

    let api: Api<CustomResourceDefinition> = Api::all(cx.client());
    let mut definition = Ending::crd();
    definition.metadata.finalizers = Some(vec!["deletions.reknit.dev/held".into()]);
    let name = api.create(&PostParams::default(), &definition).await.unwrap().metadata.name.unwrap();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    let held = definitions.get(&Key::new(None, &name)).unwrap();
    assert!(held.metadata.deletion_timestamp.is_some(), "a finalizer holds it back");
    let finalized = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch(&name, &PatchParams::default(), &finalized).await.unwrap();
}
