//! Plans of objects that another client changes while they are made.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use reknit::prelude::*;
use reknit_samples::{SimpleDeployment, SimpleDeploymentSpec};
use serde_json::{Value, json};

use super::{is_dry_run, run_once, server, writes};

/// Patches the ConfigMap `live` twice. In between, another client changes it once.
struct Interrupted {
    program: Client,
    other: Client,
}

impl ReconcileKind for Interrupted {
    type Kind = SimpleDeployment;

    async fn reconcile_kind(
        &self,
        object: &SimpleDeployment,
        _: &mut reknit_samples::SimpleDeploymentStatus,
    ) -> Result<Outcome> {
        let namespace = object.namespace().unwrap_or_default();
        let [maps, others] = [&self.program, &self.other]
            .map(|client| Api::<ConfigMap>::namespaced(client.clone(), &namespace));
        let patch = async |maps: &Api<ConfigMap>, data: Value| {
            maps.patch("live", &PatchParams::default(), &Patch::Merge(json!({ "data": data }))).await
        };
        let apply = async |value: &str| {
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "live"}, "data": {"applied": value}});
            maps.patch("live", &PatchParams::apply("interrupted").force(), &Patch::Apply(map)).await
        };
        let first = patch(&maps, json!({"first": "1"})).await?;
        apply("1").await?;
        patch(&others, json!({"other": "1"})).await?; // changes it once: the later ones change nothing
        patch(&maps, json!({"second": "2"})).await?;
        apply("2").await?;
        assert_eq!(first.data.unwrap_or_default()["first"], "1");
        Ok(Outcome::done())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn planned_writes_move_to_the_new_state_of_an_object_that_changes_meanwhile() {
    let server = server().await;
    let objects = server.objects_in_new_namespace("plan").await;
    let maps: Api<ConfigMap> = Api::namespaced(objects.client.clone(), &objects.namespace);
    let live = json!({"metadata": {"name": "live"}, "data": {"old": "1"}});
    let live = serde_json::from_value(live).expect("a ConfigMap");
    maps.create(&PostParams::default(), &live).await.expect("the ConfigMap is created");
    let object = SimpleDeployment::new("web", SimpleDeploymentSpec { image: "a".into(), replicas: 0 });
    objects.deployments().create(&PostParams::default(), &object).await.expect("the object is created");

    let other = objects.client.clone();
    let interrupted = move |cx: &Context| {
        let reconciler = Interrupted { program: cx.client(), other: other.clone() };
        Ok(Controller::of::<SimpleDeployment>(cx).reconciler(reconciler).build())
    };
    let logged = writes(&server).len();
    let main = Main::new("interrupted").controller(interrupted.clone()).plannable();
    let planned = reknit::sharedmain::internal::plan(main, objects.client.clone().into()).await;
    let (status, text, plan) = planned.expect("a plan");
    println!("{text}");
    let real = writes(&server).into_iter().skip(logged).filter(|event| !is_dry_run(event)).count();
    assert_eq!((status, &plan["keys"][0]["passes"]), (3, &json!(2)), "{text}");
    assert_eq!(real, 2, "only the other client has written, once in each pass");
    let mut changed = plan["objects"].as_array().expect("a list").iter();
    let planned = changed.find(|object| object["kind"] == "ConfigMap").expect("the ConfigMap is planned");
    assert_eq!(planned["before"]["data"], json!({"old": "1", "other": "1"}));

    run_once(&Context::new("interrupted", objects.client.clone()), interrupted).await;
    let map = maps.get("live").await.expect("the ConfigMap");
    assert_eq!(planned["after"]["data"], json!(map.data));
}
