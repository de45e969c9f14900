//! Children of Kinds that are known only at run time.

use std::sync::{Arc, Mutex};

use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, ObjectMeta, PostParams},
    core::GroupVersionKind,
};
use reknit_injection::Context;
use reknit_reconciler::{
    Applied, Controller, KReference, Kinds, Outcome, OwnedAny, OwnedOptions, ReconcileKind, Result,
};
use reknit_testing::{ApiServer, ControllerExt};
use serde_json::{Value, json};

use crate::{Lamp, LampStatus, key, lamp};

const GROUP_VERSION: &str = "messaging.knative.dev/v1";

/// Applies a channel of the Kind that the test sets, and deletes the lamp's other channels of that Kind. Does nothing
/// without a Kind.
struct Templater {
    children: OwnedAny,
    kind: Arc<Mutex<Option<&'static str>>>,
}

impl ReconcileKind for Templater {
    type Kind = Lamp;
    async fn reconcile_kind(&self, lamp: &Lamp, _: &mut LampStatus) -> Result<Outcome> {
        let kind = *self.kind.lock().unwrap();
        if let Some(kind) = kind {
            let channels = self.children.kind(lamp, GROUP_VERSION, kind).await?;
            channels.apply(lamp, channel("child")).await?;
            for surplus in channels.of(lamp).filter(|channel| channel.name_any() != "child") {
                channels.delete(&surplus).await?;
            }
        }
        Ok(Outcome::done())
    }
}

/// A controller of the lamp `default/x`, on an API server in memory.
struct Fixture {
    server: ApiServer,
    controller: Controller,
    children: OwnedAny,
    kind: Arc<Mutex<Option<&'static str>>>,
    cx: Context,
}

impl Fixture {
    fn new(kind: &'static str, objects: Vec<Value>) -> Self {
        let server = ApiServer::new();
        let objects = objects.into_iter().chain([server.insert(&lamp())]).collect();
        let cx = Context::preloaded("test", server.client(), objects);
        let mut build = Controller::of::<Lamp>(&cx);
        let children = build.owns_any(Kinds::of([("messaging.knative.dev", "*")]), OwnedOptions::default());
        let kind = Arc::new(Mutex::new(Some(kind)));
        let templater = Templater { children: children.clone(), kind: kind.clone() };
        Self { server, controller: build.reconciler(templater).build(), children, kind, cx }
    }

    fn channels(&self, kind: &str) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("messaging.knative.dev", "v1", kind);
        Api::namespaced_with(self.cx.client(), "default", &ApiResource::from_gvk(&gvk))
    }

    /// Runs a pass, and returns its writes except those of the status.
    async fn pass(&self) -> Vec<String> {
        let _ = self.controller.once(&key()).await.unwrap();
        let writes = self.server.take_writes().into_iter();
        writes.map(|write| write.to_string()).filter(|write| !write.contains("status")).collect()
    }
}

fn channel(name: &str) -> DynamicObject {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    DynamicObject { types: None, metadata, data: json!({"spec": {"delivery": null, "retry": 3}}) }
}

#[tokio::test]
async fn a_child_of_a_template_is_applied_once_and_listed() {
    let fixture = Fixture::new("InMemoryChannel", vec![]);
    assert_eq!(fixture.pass().await, ["patch inmemorychannels default/child"]);
    assert_eq!(fixture.pass().await, [""; 0]);
    let stored = fixture.channels("InMemoryChannel").get("child").await.unwrap();
    assert_eq!(stored.types.unwrap().kind, "InMemoryChannel");
    assert_eq!(stored.metadata.owner_references.unwrap()[0].uid, "uid-x");
    assert_eq!(stored.data["spec"]["retry"], 3);

    let channels = fixture.children.kind(&lamp(), GROUP_VERSION, "InMemoryChannel").await.unwrap();
    let mut second = channel("");
    second.metadata.generate_name = Some("child-".into());
    let second = channels.create(&lamp(), second).await.unwrap();
    assert_eq!(channels.of(&lamp()).count(), 2);
    assert!(matches!(channels.apply(&lamp(), channel("child")).await.unwrap(), Applied::Unchanged(_)));
    let deletion = format!("delete inmemorychannels default/{}", second.name_any());
    assert!(fixture.pass().await.contains(&deletion));
    assert_eq!(channels.of(&lamp()).count(), 1);
}

#[tokio::test]
async fn a_change_of_a_templated_child_enqueues_its_owner() {
    let fixture = Fixture::new("InMemoryChannel", vec![]);
    fixture.pass().await;
    fixture.controller.take_queued();
    let channels = fixture.channels("InMemoryChannel");
    let mut child = channels.get("child").await.unwrap();
    child.data["spec"]["retry"] = json!(5);
    channels.replace("child", &PostParams::default(), &child).await.unwrap();
    assert_eq!(fixture.controller.take_queued(), [key()]);
    assert!(fixture.pass().await.contains(&"patch inmemorychannels default/child".into()));
    fixture.controller.take_queued();
    channels.delete("child", &DeleteParams::default()).await.unwrap();
    assert_eq!(fixture.controller.take_queued(), [key()]);
}

#[tokio::test]
async fn the_informer_of_a_kind_that_no_owner_uses_any_more_closes() {
    let fixture = Fixture::new("InMemoryChannel", vec![]);
    fixture.pass().await;
    let opened = format!("{:?}", fixture.children);
    assert!(opened.contains("inmemorychannels.messaging.knative.dev"), "{opened}");
    *fixture.kind.lock().unwrap() = Some("KafkaChannel");
    fixture.pass().await;
    let opened = format!("{:?}", fixture.children);
    assert!(opened.contains("kafkachannels") && !opened.contains("inmemorychannels"), "{opened}");
    *fixture.kind.lock().unwrap() = None;
    fixture.pass().await;
    assert_eq!(format!("{:?}", fixture.children), "OwnedAny { opened: [], .. }");
}

#[tokio::test]
async fn a_kind_of_another_group_or_scope_is_a_permanent_error() {
    let cluster_scoped =
        json!({"apiVersion": GROUP_VERSION, "kind": "ClusterChannel", "metadata": {"name": "a"}});
    let fixture = Fixture::new("ClusterChannel", vec![cluster_scoped]);
    let error = fixture.controller.once(&key()).await.unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(
        error.to_string(),
        "ClusterChannel of messaging.knative.dev/v1 is cluster-scoped and cannot be controlled by Lamp default/x, \
         which is in a namespace"
    );
    let error = fixture.children.kind(&lamp(), "v1", "Secret").await.unwrap_err();
    assert!(error.is_permanent());
    assert_eq!(
        error.to_string(),
        "Secret of v1 is not among the Kinds that this controller may use: they are those in the `Kinds` of its builder \
         call"
    );
}

#[tokio::test]
async fn the_children_of_all_kinds_in_use_and_of_known_references_are_listed_and_deleted() {
    let fixture = Fixture::new("InMemoryChannel", vec![]);
    fixture.pass().await;
    let reference = |kind: &str| KReference {
        api_version: GROUP_VERSION.into(),
        kind: kind.into(),
        name: "child".into(),
        ..KReference::default()
    };
    let stored = [reference("InMemoryChannel")];
    let unknown: &[KReference] = &[];
    for stored in [&stored[..], unknown] {
        let children = fixture.children.of(&lamp(), stored).await.unwrap();
        assert_eq!(children.iter().map(|child| child.name_any()).collect::<Vec<_>>(), ["child"]);
    }
    let child = fixture.children.of(&lamp(), &stored).await.unwrap().remove(0);
    let types = child.types.clone().unwrap();
    let channels = fixture.children.kind(&lamp(), &types.api_version, &types.kind).await.unwrap();
    channels.delete(&child).await.unwrap();
    assert!(fixture.children.of(&lamp(), &stored).await.unwrap().is_empty());
}

#[tokio::test]
async fn references_that_cannot_lead_to_a_child_hide_no_other_children() {
    let cluster_scoped =
        json!({"apiVersion": GROUP_VERSION, "kind": "ClusterChannel", "metadata": {"name": "a"}});
    let fixture = Fixture::new("InMemoryChannel", vec![cluster_scoped]);
    fixture.pass().await;
    let reference = |api_version: &str, kind: &str| KReference {
        api_version: api_version.into(),
        kind: kind.into(),
        name: "child".into(),
        ..KReference::default()
    };
    let stored = [
        reference("messaging.knative.dev/v1/v2", "InMemoryChannel"),
        reference("", "InMemoryChannel"),
        reference(GROUP_VERSION, "ClusterChannel"),
        reference(GROUP_VERSION, "InMemoryChannel"),
    ];
    let children = fixture.children.of(&lamp(), &stored).await.unwrap();
    assert_eq!(children.iter().map(|child| child.name_any()).collect::<Vec<_>>(), ["child"]);
}
