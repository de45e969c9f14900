//! Plans of the sample and of its next version, and real runs that do the same.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::GroupVersionKind,
};
use reknit::{
    injection::Selection,
    prelude::*,
    reconciler::{OwnedOptions, keys},
    sharedmain::NamespaceFlag,
    testing::ControllerExt,
};
use reknit_samples::{
    ClusterDomain, POD_OWNER, SimpleDeployment, SimpleDeploymentSpec, addressable_service, simple_deployment,
};
use serde_json::{Value, json};

use super::{NOTHING, Planned, plan, server, versions};
use crate::support::objects::Objects;

fn sample() -> Main {
    Main::new("controller")
        .flags::<NamespaceFlag>()
        .controller(addressable_service::controller)
        .controller(simple_deployment::controller)
        .plannable()
}

/// The next version of the sample: it labels the pods, and publishes addresses in another domain.
fn next_version() -> Main {
    let addresses = |cx: &Context| {
        cx.provide(ClusterDomain::new("next.example.com"));
        addressable_service::controller(cx)
    };
    let pods = |cx: &Context| {
        let mut build = Controller::of::<SimpleDeployment>(cx);
        let pods = cx.informer::<Pod>(cx.get::<Selection>());
        build.watch(&pods).keys(keys::label(POD_OWNER));
        let pods = build.owns_in(&pods, OwnedOptions::default());
        Ok(build.reconciler(Labelling { pods, client: cx.client() }).build())
    };
    Main::new("controller").flags::<NamespaceFlag>().controller(addresses).controller(pods).plannable()
}

/// Labels the pods of each object.
struct Labelling {
    pods: Owned<Pod>,
    client: Client,
}

impl ReconcileKind for Labelling {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let label = Patch::Merge(json!({"metadata": {"labels": {"version": "next"}}}));
        for pod in self.pods.of(object).filter(|pod| !pod.labels().contains_key("version")) {
            api.patch(&pod.name_any(), &PatchParams::default(), &label).await?;
        }
        Ok(Outcome::done())
    }
}

/// Runs a program for real, until no key is queued.
async fn run(objects: &Objects, main: Main) {
    let (controllers, informers) = {
        let cx = Context::new("controller", objects.client.clone());
        (main.construct(&cx).expect("the controllers").0, cx.informers())
    };
    informers.start();
    for informer in controllers.iter().flat_map(Controller::informers) {
        informer.synced().await;
    }
    loop {
        let mut is_idle = true;
        for controller in &controllers {
            for key in controller.take_queued() {
                let _ = controller.once(&key).await.expect("the pass succeeds");
                is_idle = false;
            }
        }
        if is_idle {
            return;
        }
    }
}

/// Runs a program as [`run`] does. Asserts that it changes no object but those of the plan.
async fn run_planned(objects: &Objects, main: Main, plan: &Value) {
    let before = versions(objects).await;
    run(objects, main).await;
    let after = versions(objects).await;
    for name in before.keys().chain(after.keys()).filter(|&name| before.get(name) != after.get(name)) {
        let is_planned = plan["objects"].as_array().expect("a list").iter().any(|object| {
            let text = |field: &str| object[field].as_str().unwrap_or_default();
            let planned = format!("{} {}", text("kind"), text("key").rsplit('/').next().unwrap_or_default());
            let prefix = planned.strip_suffix("(generated)").filter(|_| !before.contains_key(name));
            *name == planned || prefix.is_some_and(|prefix| name.starts_with(prefix))
        });
        assert!(is_planned, "{name} has changed and was not planned: {plan:#}");
    }
}

/// Asserts that the real run has left an object as planned.
async fn assert_as_planned(objects: &Objects, planned: &Value) {
    let text = |field: &str| planned[field].as_str().expect("a text");
    let (group, version) = text("apiVersion").split_once('/').unwrap_or(("", text("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("kind")));
    let api: Api<DynamicObject> = Api::namespaced_with(objects.client.clone(), &objects.namespace, &resource);
    let live = api.get(text("key").rsplit('/').next().unwrap_or_default()).await.expect("the object");
    let live = serde_json::to_value(live).expect("JSON");
    let metadata = ["labels", "annotations", "finalizers", "ownerReferences"];
    for part in metadata
        .map(|field| format!("/metadata/{field}"))
        .into_iter()
        .chain(["/spec".into(), "/status".into()])
    {
        let [planned, live] = [&planned["after"], &live].map(|object| object.pointer(&part));
        let is_same =
            planned.zip(live).map_or(planned == live, |(planned, live)| is_as_planned(planned, live));
        assert!(is_same, "{part} of {}: planned {planned:?}, is {live:?}", text("key"));
    }
}

/// Compares a planned value with the live one. A time of the second in which the plan began, or a later one, is `(now)`.
fn is_as_planned(planned: &Value, live: &Value) -> bool {
    match (planned, live) {
        (Value::Object(planned), Value::Object(live)) => {
            let is_same = |(name, planned)| live.get(name).is_some_and(|live| is_as_planned(planned, live));
            planned.len() == live.len() && planned.iter().all(is_same)
        }
        (Value::Array(planned), Value::Array(live)) => {
            let is_same = |(planned, live)| is_as_planned(planned, live);
            planned.len() == live.len() && planned.iter().zip(live).all(is_same)
        }
        _ => planned == live || planned == "(now)",
    }
}

/// The image and the labels of each pod: what the sample decides about it.
async fn pods(objects: &Objects) -> Vec<(Value, Value)> {
    let pods = objects.pods().list(&ListParams::default()).await.expect("a list").items.into_iter();
    pods.map(|pod| decided(&serde_json::to_value(pod).expect("JSON"))).collect()
}

fn decided(pod: &Value) -> (Value, Value) {
    (pod["spec"]["containers"][0]["image"].clone(), pod["metadata"]["labels"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sample_does_what_its_plan_says() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "old".into(), replicas: 3 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");

    for (image, deleted) in [("old", 0), ("new", 3)] {
        let change = Patch::Merge(json!({ "spec": { "image": image } }));
        objects
            .deployments()
            .patch("web", &PatchParams::default(), &change)
            .await
            .expect("the object is changed");
        let Planned(status, text, json) = plan(&server, &objects, sample()).await;
        let summary = format!(
            "Plan: 3 to create, 0 to change, 1 to change in status only, {deleted} to delete; 0 failed"
        );
        assert_eq!((status, text.lines().last()), (3, Some(&*summary)));
        assert!(
            text.contains(&format!("  + Pod {}/web-(generated) (3 times)\n", objects.namespace)),
            "{text}"
        );

        run_planned(&objects, sample(), &json).await;
        let planned = json["objects"].as_array().expect("a list").iter();
        let created =
            planned.clone().filter(|object| object["kind"] == "Pod" && object["action"] == "create");
        assert_eq!(created.map(|object| decided(&object["after"])).collect::<Vec<_>>(), pods(&objects).await);
        let status = objects.deployments().get("web").await.expect("the object").status;
        let status = serde_json::to_value(status).expect("JSON");
        let mut planned = planned.filter(|object| object["kind"] == "SimpleDeployment");
        let planned = &planned.next().expect("the object is planned")["after"]["status"];
        for field in ["observedGeneration", "readyReplicas"] {
            assert_eq!(planned[field], status[field], "{field}");
        }
        let Planned(status, text, _) = plan(&server, &objects, sample()).await;
        assert_eq!((status, &*text), (0, NOTHING));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_version_of_the_sample_does_what_its_plan_says() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 3 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");
    objects.create_service("web").await;
    objects.create_addressable("hello", "web").await;
    run(&objects, sample()).await;
    let Planned(status, text, _) = plan(&server, &objects, sample()).await;
    assert_eq!((status, &*text), (0, NOTHING));

    let Planned(status, text, json) = plan(&server, &objects, next_version()).await;
    let summary = "Plan: 0 to create, 3 to change, 1 to change in status only, 0 to delete; 0 failed";
    assert_eq!((status, text.lines().last()), (3, Some(summary)));
    run_planned(&objects, next_version(), &json).await;
    for planned in json["objects"].as_array().expect("a list") {
        assert_as_planned(&objects, planned).await;
    }
    let address = objects.get_addressable("hello").await.status.and_then(|status| status.address?.url);
    let expected = format!("http://web.{}.svc.next.example.com", objects.namespace);
    assert_eq!(address.map(|url| url.to_string()), Some(expected));
    let Planned(status, text, _) = plan(&server, &objects, next_version()).await;
    assert_eq!((status, &*text), (0, NOTHING));
}
