use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, CustomResource, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, PostParams},
    core::GroupVersionKind,
    discovery::Scope,
};
use reknit_apis::Key;
use reknit_injection::{Context, InformerState, select};
use reknit_testing::{ControlPlane, eventually};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{TIME_LIMIT, map, reported::ReportedChanges};

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[kube(group = "kinds.reknit.dev", version = "v1", kind = "Late", plural = "latecomers", namespaced)]
pub(crate) struct LateSpec {
    number: u8,
}

#[derive(CustomResource, Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
#[kube(group = "kinds.reknit.dev", version = "v1", kind = "Loose", namespaced)]
pub(crate) struct LooseSpec {
    number: u8,
}

/// The CustomResourceDefinition of `Loose`, with a schema that admits any object.
fn loose_crd() -> CustomResourceDefinition {
    let mut crd = Loose::crd();
    for version in &mut crd.spec.versions {
        version.schema = serde_json::from_value(json!({
            "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
        }))
        .unwrap();
    }
    crd
}

#[tokio::test]
async fn a_kind_is_watched_after_it_is_installed_and_after_it_is_reinstalled() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("late").await.unwrap();
    let cx = Context::new("test", plane.client().unwrap());
    let gvk = GroupVersionKind::gvk("kinds.reknit.dev", "v1", "Late");
    assert!(cx.informers().resolve(&gvk).await.unwrap().is_none());
    let late = cx.informer::<Late>(select().namespace(&namespace));
    let reported = ReportedChanges::by(&late);
    cx.informers().start();
    let reason = || match late.state() {
        InformerState::Waiting { reason, .. } if !reason.is_empty() => Some(reason),
        _ => None,
    };
    let why = eventually("the reason", TIME_LIMIT, async || reason()).await;
    assert!(why.contains("latecomers of kinds.reknit.dev/v1 (Late)"), "{why}");

    let api: Api<Late> = Api::namespaced(plane.client().unwrap(), &namespace);
    let object = Late::new("a", LateSpec { number: 1 });
    plane.install::<Late>().await.unwrap();
    late.synced().await;
    api.create(&PostParams::default(), &object).await.unwrap();
    reported.until("+a").await;
    // The answer that there is no such Kind is remembered for some seconds.
    let resolve = async || cx.informers().resolve(&gvk).await.unwrap();
    let (resource, scope) = eventually("the resource", TIME_LIMIT, resolve).await;
    assert_eq!((resource.plural.as_str(), scope), ("latecomers", Scope::Namespaced));

    let definitions: Api<CustomResourceDefinition> = Api::all(plane.client().unwrap());
    definitions.delete(&Late::crd().name_any(), &DeleteParams::default()).await.unwrap();
    reported.until("-a").await;
    eventually("the definition to be removed", TIME_LIMIT, async || {
        definitions.get_opt(&Late::crd().name_any()).await.unwrap().is_none()
    })
    .await;
    plane.install::<Late>().await.unwrap();
    api.create(&PostParams::default(), &Late::new("b", LateSpec { number: 2 })).await.unwrap();
    reported.until("+b").await;
    assert_eq!(reported.take(), ["+a", "-a", "+b"]);
}

#[tokio::test]
async fn an_undecodable_object_is_reported_and_does_not_affect_others() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("loose").await.unwrap();
    plane.install_crd(loose_crd()).await.unwrap();
    let kind = kube::discovery::ApiResource::erase::<Loose>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(plane.client().unwrap(), &namespace, &kind);
    let object = |name: &str, number: serde_json::Value| {
        DynamicObject::new(name, &kind).data(json!({"spec": {"number": number}}))
    };
    api.create(&PostParams::default(), &object("bad", json!("many"))).await.unwrap();
    api.create(&PostParams::default(), &object("good", json!(1))).await.unwrap();

    let cx = Context::new("test", plane.client().unwrap());
    let loose = cx.informer::<Loose>(select().namespace(&namespace));
    let (reported, undecodable) = (ReportedChanges::by(&loose), Arc::new(Mutex::new(Vec::new())));
    let errors = undecodable.clone();
    loose.on_undecodable(move |key, why| errors.lock().unwrap().push(format!("{} {why}", key.name)));
    cx.informers().start();
    loose.synced().await;
    assert_eq!(reported.take(), ["+good"]);
    let error = undecodable.lock().unwrap().pop().unwrap();
    assert!(error.starts_with("bad spec.number: invalid type: string \"many\", expected u8"), "{error}");

    let mut good = api.get("good").await.unwrap();
    good.data["spec"]["number"] = json!(300);
    api.replace("good", &PostParams::default(), &good).await.unwrap();
    let mut bad = api.get("bad").await.unwrap();
    bad.data["spec"]["number"] = json!(3);
    api.replace("bad", &PostParams::default(), &bad).await.unwrap();
    reported.until("+bad").await;
    assert!(undecodable.lock().unwrap().pop().unwrap().starts_with("good spec.number: invalid value"));
    assert_eq!(
        loose.get(&Key::new(&*namespace, "good")).unwrap().spec.number,
        1,
        "the last state that could be decoded"
    );
    api.delete("good", &DeleteParams::default()).await.unwrap();
    reported.until("-good").await;
    assert_eq!(reported.take(), ["+bad", "-good"]);
    assert_eq!(Loose::kind(&()), "Loose");
}

#[tokio::test]
async fn a_kind_that_no_constructor_requested_is_listed_before_it_is_read() {
    let plane = ControlPlane::shared().await.unwrap();
    let namespace = plane.namespace("opened").await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(plane.client().unwrap(), &namespace);
    maps.create(&PostParams::default(), &map("a", &[])).await.unwrap();
    let informers = Context::new("test", plane.client().unwrap()).informers();
    informers.start();
    let gvk = GroupVersionKind::gvk("", "v1", "ConfigMap");
    let (resource, _) = informers.resolve(&gvk).await.unwrap().unwrap();
    let opened = informers.open::<DynamicObject>(&resource, select().namespace(&namespace)).await.unwrap();
    assert!(opened.get(&Key::new(&*namespace, "a")).is_some(), "{:?}", opened.state());
}
